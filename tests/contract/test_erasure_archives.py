"""A key is gone from the archives of what a topic has lost as well, whatever became of the plans that wrote there (RET-7)."""

from __future__ import annotations

import errno
import os
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from lifecycle_local.s3_server import Refused
from message_lifecycle.app import receipts, steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.archive import ParquetArchive
from tests.archives import Archived, InStore, OnDisk
from tests.contract.conftest import MakeWorld, at_both, on
from tests.contract.test_erasure import AS_OF, KEY, MEMORY, NAME, YES, append, erase, keys, make

EVERY = at_both("memory", "json_file", "rotating_file", "redis_streams")
ON_DISK = pytest.mark.parametrize("store_kind", on("memory", "json_file", "rotating_file", "redis_streams"), indirect=True)
IN_STORE = at_both(in_store=("json_file",))


@EVERY
def test_the_archive_loses_the_key_too(make_world: MakeWorld, archive: Archived) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, b"a", KEY, b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    append(world, KEY, b"c")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    there = ParquetArchive(archive.to)
    kept = {plan_id: [message.key for message in there.read(NAME, plan_id)] for plan_id in there.plans(NAME)}
    assert sorted(kept.values(), key=repr) == sorted([[b"a", KEY], [b"b", KEY]], key=repr)
    archive.leave_half_written(there.file(NAME, next(iter(kept))), b"torn " + KEY)
    request_id = erase(world)
    left = [[message.key for message in there.read(NAME, plan_id)] for plan_id in there.plans(NAME)]
    assert sorted(left) == [[b"a"], [b"b"]]
    assert not archive.holds(KEY)
    assert archive.half_written() == 0
    assert receipts.verify(world.services, request_id) == []


@EVERY
def test_an_archive_of_before_that_holds_the_key_is_not_passed_over(make_world: MakeWorld, archive: Archived) -> None:
    before, now = archive.below("before"), archive.below("now")
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=before.to)
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    alter_topic(world.services, NAME, {"archive_to": now.to}, accept=YES[1:])
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "UnsupportedErasure"
    assert before.to in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    alter_topic(world.services, NAME, {"archive_to": before.to}, accept=YES[1:])
    carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert not archive.holds(KEY)
    assert archive.half_written() == 0
    alter_topic(world.services, NAME, {"archive_to": now.to}, accept=YES[1:])
    erase(world)


@ON_DISK
@pytest.mark.parametrize("of_before", [False, True])
def test_an_archive_that_is_not_there_is_no_empty_one(make_world: MakeWorld, tmp_path: Path, *, of_before: bool) -> None:
    """Its disk may not be mounted: then the place is there, and nothing in it."""
    place, away = tmp_path / "mounted", tmp_path / "away"
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(place))
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    if of_before:
        alter_topic(world.services, NAME, {"on_remove": None, "archive_to": None}, accept=YES[1:])
    append(world, KEY, b"c")
    place.rename(away)
    place.mkdir()
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "UnsupportedErasure"
    assert str(place) in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    if of_before:
        Path(ParquetArchive(place).file(NAME, "any")).parent.mkdir(parents=True)
    else:
        place.rmdir()
        away.rename(place)
    request_id = erase(world)
    assert not OnDisk(place).holds(KEY)
    place.rename(tmp_path / "away again")
    assert any(str(place) in wrong for wrong in receipts.verify(world.services, request_id))


@MEMORY
def test_an_archive_whose_mount_does_not_answer_is_named_too(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    there, look = Path(ParquetArchive(tmp_path).file(NAME, "any")).parent, os.stat

    def stale(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if str(path) == str(there):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return look(path, *given, **named)

    monkeypatch.setattr(os, "stat", stale)
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "UnsupportedErasure"
    assert str(there) in str(found.error)


@EVERY
def test_a_receipt_does_not_hold_where_the_key_came_since_and_is_archived(make_world: MakeWorld, archive: Archived) -> None:
    before, now = archive.below("before"), archive.below("now")
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=before.to)
    append(world, KEY, b"a")
    request_id = erase(world)
    assert receipts.verify(world.services, request_id) == []
    append(world, KEY, b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    assert keys(world) == [b"b"]
    assert receipts.verify(world.services, request_id) != []
    alter_topic(world.services, NAME, {"archive_to": now.to}, accept=YES[1:])
    assert any(before.to in found for found in receipts.verify(world.services, request_id))


@EVERY
def test_a_receipt_still_holds_where_a_topic_that_archived_nothing_of_the_key_archives_no_more(
    make_world: MakeWorld, archive: Archived
) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, b"a", b"b", KEY)
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    request_id = erase(world)
    alter_topic(world.services, NAME, {"on_remove": None, "archive_to": None}, accept=YES[1:])
    assert receipts.verify(world.services, request_id) == []


@EVERY
def test_what_was_archived_for_a_plan_that_waits_goes_with_it_and_then_the_key(make_world: MakeWorld, archive: Archived) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, KEY, b"a", b"b")
    assert steps.run(world.services, NAME, as_of=AS_OF, work="retention").name == "needs_approval"
    assert len(ParquetArchive(archive.to).plans(NAME)) == 1
    erase(world)
    assert keys(world) == [b"a", b"b"]
    assert not archive.holds(KEY)
    assert archive.half_written() == 0


@EVERY
def test_a_half_written_archive_of_a_plan_that_nobody_knows_any_more_goes_too(make_world: MakeWorld, archive: Archived) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, b"a", b"b")
    archive.leave_half_written(ParquetArchive(archive.to).file(NAME, "unknown"), b"torn " + KEY)
    assert archive.half_written() == 1
    request_id = erase(world)
    assert archive.half_written() == 0
    assert receipts.verify(world.services, request_id) == []


@EVERY
@pytest.mark.parametrize("content", [b"", b"no Parquet", b"PAR1 nor is this PAR1"])
def test_an_archived_file_that_cannot_be_read_leaves_the_request_open(make_world: MakeWorld, archive: Archived, content: bytes) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, KEY, b"a")
    file = ParquetArchive(archive.to).file(NAME, "p1")
    archive.put(file, content)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "DamagedLog"
    assert file in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    assert keys(world) == [KEY, b"a"]


@EVERY
def test_an_archived_file_of_nothing_else_goes_whole(make_world: MakeWorld, archive: Archived) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, KEY, b"a")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    erase(world)
    assert ParquetArchive(archive.to).plans(NAME) == []


@IN_STORE
@pytest.mark.parametrize("of_before", [False, True])
def test_an_archive_that_is_not_reached_is_no_empty_one(make_world: MakeWorld, archive: Archived, *, of_before: bool) -> None:
    """Of a bucket that is not there PyArrow lists nothing, and says nothing."""
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    if of_before:
        alter_topic(world.services, NAME, {"on_remove": None, "archive_to": None}, accept=YES[1:])
    append(world, KEY, b"c")
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    with archive.away():
        (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
        assert code_of(found.error) == "UnsupportedErasure"
        assert archive.to in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    assert archive.holds(KEY)
    if of_before:
        alter_topic(world.services, NAME, {"on_remove": "archive", "archive_to": archive.to}, accept=YES[1:])
    carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert world.services.ledger.erasure(request.request_id).state == "erased"
    assert not archive.holds(KEY)
    with archive.away():
        assert any(archive.to in wrong for wrong in receipts.verify(world.services, request.request_id))
    assert receipts.verify(world.services, request.request_id) == []


@IN_STORE
def test_what_a_bucket_keeps_of_archived_files_keeps_an_erasure_open(make_world: MakeWorld, archive: Archived) -> None:
    """The key is in no file, and in versions of files that only the bucket's owner can end; those of an archive that the topic has no more,
    too."""
    assert isinstance(archive, InStore)
    store, below = archive.store, archive.to.removeprefix("s3://")
    now = Instant(int(time.time() * 1_000_000))  # the store has a clock of its own
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    world.set_now(now)
    with store.keeping_versions("lake"):
        append(world, KEY, b"a", b"b")
        steps.run(world.services, NAME, as_of=now, work="retention", approver=lambda _plan, _report: YES)
        append(world, KEY, b"c")
        request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
        (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
        assert found.is_done, found.why_not_done()
        assert not archive.holds(KEY)
        kept = [content for _, content in store.earlier_versions(below)]
        assert [KEY in content for content in kept] == [True]
        told = "lake keeps 1 earlier versions of its objects, which nothing here reads or removes: let a rule of the bucket end them"
        assert _request(world, request.request_id) == ("requested", True)
        assert receipts.verify(world.services, request.request_id) == [f"{NAME}: {told}"]
        alter_topic(world.services, NAME, {"on_remove": None, "archive_to": None}, accept=YES[1:])
        assert receipts.verify(world.services, request.request_id) == [f"{NAME}: {told}"]
        store.end_versions(below)
        assert receipts.verify(world.services, request.request_id) == []
        carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
        assert _request(world, request.request_id) == ("erased", False)


def _request(world: World, request_id: str) -> tuple[str, bool]:
    """Its state, and whether it waits for the bucket."""
    request = world.services.ledger.erasure(request_id)
    return request.state, "earlier versions of its objects" in (request.detail or "")


@IN_STORE
def test_who_may_not_look_for_unfinished_uploads_is_told_which_right_it_takes(make_world: MakeWorld, archive: Archived) -> None:
    assert isinstance(archive, InStore)
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    append(world, KEY, b"a")
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    with archive.answering(lambda asked, serve: Refused(HTTPStatus.FORBIDDEN, "AccessDenied") if "uploads" in asked.query else serve()):
        (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "StorageRefused"
    assert "s3:ListBucketMultipartUploads" in str(found.error)
    assert keys(world) == [KEY, b"a"]
