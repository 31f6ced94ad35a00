"""A key is gone from the archives of what a topic has lost as well, whatever became of the plans that wrote there (RET-7)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.errors import code_of
from message_lifecycle.stores.archive import ParquetArchive
from tests.contract.conftest import MakeWorld
from tests.contract.test_erasure import AS_OF, EVERY, KEY, MEMORY, NAME, YES, append, bytes_under, erase, keys, make


@EVERY
def test_the_archive_loses_the_key_too(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, b"a", KEY, b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    append(world, KEY, b"c")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    archive = ParquetArchive(tmp_path)
    kept = {plan_id: [message.key for message in archive.read(NAME, plan_id)] for plan_id in archive.plans(NAME)}
    assert sorted(kept.values(), key=repr) == sorted([[b"a", KEY], [b"b", KEY]], key=repr)
    (archive.file(NAME, next(iter(kept))).with_suffix(".parquet.new")).write_bytes(b"torn " + KEY)
    request_id = erase(world)
    left = [[message.key for message in archive.read(NAME, plan_id)] for plan_id in archive.plans(NAME)]
    assert sorted(left) == [[b"a"], [b"b"]]
    assert not any(KEY in content for _, content in bytes_under(tmp_path))
    assert receipts.verify(world.services, request_id) == []


@EVERY
def test_an_archive_of_before_that_holds_the_key_is_not_passed_over(make_world: MakeWorld, tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(before))
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    alter_topic(world.services, NAME, {"archive_to": str(now)}, accept=YES[:2])
    request = ask(world.services, KEY, topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "UnsupportedErasure"
    assert str(before) in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    alter_topic(world.services, NAME, {"archive_to": str(before)}, accept=YES[:2])
    carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert not any(KEY in content for _, content in bytes_under(tmp_path))
    alter_topic(world.services, NAME, {"archive_to": str(now)}, accept=YES[:2])
    erase(world)


@EVERY
@pytest.mark.parametrize("of_before", [False, True])
def test_an_archive_that_is_not_there_is_no_empty_one(make_world: MakeWorld, tmp_path: Path, *, of_before: bool) -> None:
    """Its disk may not be mounted: then the place is there, and nothing in it."""
    place, away = tmp_path / "mounted", tmp_path / "away"
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(place))
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    if of_before:
        alter_topic(world.services, NAME, {"on_remove": None, "archive_to": None}, accept=YES[:2])
    append(world, KEY, b"c")
    place.rename(away)
    place.mkdir()
    request = ask(world.services, KEY, topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "UnsupportedErasure"
    assert str(place) in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    if of_before:
        ParquetArchive(place).file(NAME, "any").parent.mkdir(parents=True)
    else:
        place.rmdir()
        away.rename(place)
    request_id = erase(world)
    assert not any(KEY in content for _, content in bytes_under(place))
    place.rename(tmp_path / "away again")
    assert any(str(place) in wrong for wrong in receipts.verify(world.services, request_id))


@MEMORY
def test_an_archive_whose_mount_does_not_answer_is_named_too(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, KEY, b"a", b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    request = ask(world.services, KEY, topics=[NAME], forbid=False, by="ada", why="a letter")
    there, look = ParquetArchive(tmp_path).file(NAME, "any").parent, os.stat

    def stale(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if str(path) == str(there):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return look(path, *given, **named)

    monkeypatch.setattr(os, "stat", stale)
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "UnsupportedErasure"
    assert str(there) in str(found.error)


@EVERY
def test_a_receipt_does_not_hold_where_the_key_came_since_and_is_archived(make_world: MakeWorld, tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(before))
    append(world, KEY, b"a")
    request_id = erase(world)
    assert receipts.verify(world.services, request_id) == []
    append(world, KEY, b"b")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    assert keys(world) == [b"b"]
    assert receipts.verify(world.services, request_id) != []
    alter_topic(world.services, NAME, {"archive_to": str(now)}, accept=YES[:2])
    assert any(str(before) in found for found in receipts.verify(world.services, request_id))


@EVERY
def test_a_receipt_still_holds_where_a_topic_that_archived_nothing_of_the_key_archives_no_more(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, b"a", b"b", KEY)
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    request_id = erase(world)
    alter_topic(world.services, NAME, {"on_remove": None, "archive_to": None}, accept=YES[:2])
    assert receipts.verify(world.services, request_id) == []


@EVERY
def test_what_was_archived_for_a_plan_that_waits_goes_with_it_and_then_the_key(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, KEY, b"a", b"b")
    assert steps.run(world.services, NAME, as_of=AS_OF, work="retention").name == "needs_approval"
    assert len(ParquetArchive(tmp_path).plans(NAME)) == 1
    erase(world)
    assert keys(world) == [b"a", b"b"]
    assert not any(KEY in content for _, content in bytes_under(tmp_path))


@EVERY
def test_a_half_written_archive_of_a_plan_that_nobody_knows_any_more_goes_too(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, b"a", b"b")
    left = ParquetArchive(tmp_path).file(NAME, "unknown").with_suffix(".parquet.new")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"torn " + KEY)
    request_id = erase(world)
    assert not left.exists()
    assert receipts.verify(world.services, request_id) == []


@EVERY
@pytest.mark.parametrize("content", [b"", b"no Parquet", b"PAR1 nor is this PAR1"])
def test_an_archived_file_that_cannot_be_read_leaves_the_request_open(make_world: MakeWorld, tmp_path: Path, content: bytes) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, KEY, b"a")
    file = ParquetArchive(tmp_path).file(NAME, "p1")
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    request = ask(world.services, KEY, topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert code_of(found.error) == "DamagedLog"
    assert str(file) in str(found.error)
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    assert keys(world) == [KEY, b"a"]


@EVERY
def test_an_archived_file_of_nothing_else_goes_whole(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=str(tmp_path))
    append(world, KEY, b"a")
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    erase(world)
    assert ParquetArchive(tmp_path).plans(NAME) == []
