"""What goes is in the archive before it goes, all of it and as it was, on every backend that can archive (RET-7)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from lifecycle_local.s3_server import Refused, S3Request, Serve
from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.errors import InvalidSetting, PlanConflict, UnsafePath
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.model.topic import Backend
from message_lifecycle.stores.archive import ParquetArchive
from tests.archives import Archived, InStore
from tests.contract.conftest import MakeWorld, at_both, on
from tests.contract.test_retention_on_backends import append, judged, offsets, run, stored, topic_of
from tests.effort import sample
from tests.errors import raises
from tests.retained import AS_OF, SECOND

EVERYWHERE = at_both("memory", "json_file", "rotating_file", "redis_streams")
EVERY = pytest.mark.parametrize("store_kind", on("memory", "json_file", "rotating_file", "redis_streams"), indirect=True)
IN_STORE = at_both(in_store=("json_file",))
ODD = NewMessage(append_time=None, key=None, value=b"\xff\x00", headers=(("h", b""), ("h", b"\xfe")), event_time=Instant(-7))


def filled(world: World, to: str) -> tuple[TopicName, list[Message]]:
    """Two messages of ordinary kind, one of odd fields, and one that stays; what is stored."""
    name = topic_of(world, max_records=1, on_remove="archive", archive_to=to)
    append(world, name, 1, 2)
    world.writer.append(name, [ODD], policy_of(world.services, name))
    append(world, name, 3)
    return name, stored(world, name)


@EVERYWHERE
def test_what_went_is_in_the_archive_as_it_was(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, before = filled(world, archive.to)
    outcome = run(world, name)
    assert (outcome.name, outcome.archived, outcome.removed_rows) == ("published", 3, 3), outcome.detail
    assert stored(world, name) == before[3:]
    assert outcome.plan_id is not None
    assert list(ParquetArchive(archive.to).read(name, outcome.plan_id)) == before[:3]
    assert archive.files() == [ParquetArchive(archive.to).file(name, outcome.plan_id)]
    assert archive.half_written() == 0
    if archive.to.startswith("/"):
        assert Path(archive.files()[0]).stat().st_mode & 0o777 == 0o600
    again = run(world, name)
    assert (again.name, again.archived) == ("no_op", 0)
    assert len(archive.files()) == 1


@EVERYWHERE
def test_an_archive_that_differs_blocks(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, before = filled(world, archive.to)
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    steps.stage(world.services, plan_id)
    ParquetArchive(archive.to).write(name, plan_id, [before[0], before[1], before[3]])
    report = steps.gate(world.services, plan_id)
    assert [check.id for check in report.blocking] == ["archive_same"]
    assert stored(world, name) == before
    assert archive.files() == [], "nothing went, nothing is archived"


@EVERYWHERE
@pytest.mark.parametrize("lost", ["file", "rows", "content"])
def test_an_archive_that_is_lost_after_the_gate_stops_the_plan(make_world: MakeWorld, archive: Archived, lost: str) -> None:
    world = make_world({})
    name, before = filled(world, archive.to)
    plan_id = judged(world, name)
    if lost == "file":
        ParquetArchive(archive.to).drop(name, plan_id)
    elif lost == "content":
        archive.put(ParquetArchive(archive.to).file(name, plan_id), b"no Parquet")
    else:
        ParquetArchive(archive.to).write(name, plan_id, before[:2])
    with pytest.raises(PlanConflict, match="of the 3 messages that go"):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before


@EVERYWHERE
def test_an_archive_that_says_other_than_what_goes_stops_the_plan(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, before = filled(world, archive.to)
    plan_id = judged(world, name)
    ParquetArchive(archive.to).write(name, plan_id, [before[0], before[1], before[3]])
    with pytest.raises(PlanConflict, match="do not agree on what goes"):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before
    assert run(world, name).archived == 3
    assert stored(world, name) == before[3:]


@EVERY
def test_an_archive_that_a_link_leads_elsewhere_stops_the_plan(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, str(tmp_path / "archive"))
    plan_id = judged(world, name)
    folder = Path(ParquetArchive(tmp_path / "archive").file(name, plan_id)).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePath, match="a symbolic link"):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before


@EVERY
def test_an_archive_that_cannot_be_made_is_named_and_nothing_goes(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, str(tmp_path / ("x" * 300)))
    with raises("StorageRefused", match="xxx: File name too long"):
        run(world, name)
    assert stored(world, name) == before


@EVERYWHERE
def test_a_refused_plan_leaves_no_archive(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, before = filled(world, archive.to)
    world.set_now(AS_OF)
    no = steps.run(world.services, name, as_of=AS_OF, work="retention", approver=lambda _plan, _report: (False, "tester", "keep it"))
    assert (no.name, no.archived) == ("refused", 0)
    assert stored(world, name) == before
    assert archive.files() == []


@EVERYWHERE
def test_a_blocked_plan_leaves_nothing_of_an_archive_that_a_crash_has_left_half_written(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, _ = filled(world, archive.to)
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    steps.stage(world.services, plan_id)
    file = ParquetArchive(archive.to).file(name, plan_id)
    archive.leave_half_written(file, archive.content(file))
    archive.remove(file)
    assert steps.gate(world.services, plan_id).judgement == "blocked"
    assert (archive.files(), archive.half_written()) == ([], 0)


@EVERYWHERE
def test_what_a_person_asks_to_have_removed_is_kept_nowhere(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, _ = filled(world, archive.to)
    world.set_now(AS_OF)
    request = RemoveMessages(positions=((0, 1),))
    steps.run(world.services, name, as_of=AS_OF, work=request, approver=lambda _plan, _report: (True, "tester", "as asked"))
    assert offsets(world, name) == [0, 2, 3]
    assert archive.files() == []


@EVERY
def test_an_archive_has_a_place_and_only_then(make_world: MakeWorld, store_kind: Backend) -> None:
    world = make_world({})
    for own in ({"on_remove": "archive"}, {"archive_to": "/archive"}, {"on_remove": "archive", "archive_to": "relative"}):
        with pytest.raises(InvalidSetting, match="archive_to"):
            topic_of(world, **own)


@EVERYWHERE
def test_what_cannot_be_told_to_the_end_does_not_appear(archive: Archived, make_world: MakeWorld) -> None:
    """Parquet's writer makes a whole file of what it has got until then."""
    make_world({})
    there, name = ParquetArchive(archive.to), TopicName(stream="kept", topic="torn")

    def torn() -> Iterator[Message]:
        yield _message(0)
        raise LookupError("the log does not go on")

    with pytest.raises(LookupError):
        there.write(name, "p", torn())
    assert (archive.files(), there.plans(name)) == ([], [])
    there.write(name, "p", [_message(0), _message(1)])
    with pytest.raises(LookupError):
        there.write(name, "p", torn())
    assert [message.offset for message in there.read(name, "p")] == [0, 1]
    there.drop(name, "p")
    assert (archive.files(), archive.half_written()) == ([], 0)


def _message(offset: int, *, value: bytes = b"v") -> Message:
    return Message(partition=0, offset=offset, append_time=Instant(1), key=b"k", value=value, segment=0)


def _refuses(asked: S3Request) -> bool:
    """A part of an upload."""
    return asked.method == "PUT" and "partNumber" in asked.query


def _completes(asked: S3Request) -> bool:
    return asked.method == "POST" and "uploadId" in asked.query


FAULTS: dict[str, Callable[[S3Request, Serve], Any]] = {
    "the store fails": lambda asked, serve: Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError") if _refuses(asked) else serve(),
    "the second part is refused": lambda asked, serve: (
        Refused(HTTPStatus.BAD_REQUEST, "InvalidPart") if asked.query.get("partNumber") == "2" else serve()
    ),
    "the line breaks": lambda asked, serve: None if _refuses(asked) else serve(),
    "it is not completed": lambda asked, serve: Refused(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown") if _completes(asked) else serve(),
    "it is completed and nobody hears of it": lambda asked, serve: _lost(serve) if _completes(asked) else serve(),
}


def _lost(serve: Serve) -> None:
    """Done, and not answered."""
    list(serve())


@IN_STORE
@pytest.mark.parametrize("fault", sample(FAULTS, "the second part is refused", "it is completed and nobody hears of it"))
def test_an_upload_that_breaks_off_leaves_what_the_next_stage_puts_right(make_world: MakeWorld, archive: Archived, fault: str) -> None:
    assert isinstance(archive, InStore)
    world = make_world({})
    name, before = filled(world, archive.to)
    large = NewMessage(append_time=Instant(4 * SECOND), key=b"k", value=random.Random(7).randbytes(11 << 20))  # two parts
    world.writer.append(name, [large], policy_of(world.services, name))
    append(world, name, 5)
    before = stored(world, name)
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    with archive.answering(FAULTS[fault]), raises("StorageRefused", match=archive.to):
        steps.stage(world.services, plan_id)
    file = ParquetArchive(archive.to).file(name, plan_id)
    nobody_hears = fault.startswith("it is completed")
    assert (archive.files(), archive.half_written()) == (([file], 0) if nobody_hears else ([], 1))
    steps.stage(world.services, plan_id)
    assert (archive.files(), archive.half_written()) == ([file], 0)
    assert list(ParquetArchive(archive.to).read(name, plan_id)) == before[:-1]
    steps.gate(world.services, plan_id)
    steps.approve(world.services, plan_id, granted=True, by="tester", text="as expected")
    steps.publish(world.services, plan_id)
    assert steps.verify(world.services, plan_id).archived == len(before) - 1
    assert stored(world, name) == before[-1:]


@IN_STORE
def test_an_upload_that_nobody_ends_goes_with_its_plan(make_world: MakeWorld, archive: Archived) -> None:
    """Others, which may be under way, do not."""
    world = make_world({})
    name, before = filled(world, archive.to)
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    there = ParquetArchive(archive.to)
    archive.leave_half_written(there.file(name, "another"), b"torn")
    archive.leave_half_written(there.file(name, plan_id), b"torn")
    archive.leave_half_written(there.file(TopicName(stream=name.stream, topic=f"{name.topic}2"), plan_id), b"torn")
    assert there.list_half_written_plans(name) == sorted(["another", plan_id])
    there.drop(name, plan_id)
    assert there.list_half_written_plans(name) == ["another"]
    there.drop_half_written(name)
    assert there.list_half_written_plans(name) == []
    assert archive.half_written() == 1, "another topic's"
    assert stored(world, name) == before


@IN_STORE
@pytest.mark.parametrize("fault", ["refused", "torn"])
def test_an_archive_that_does_not_answer_stops_the_plan_and_not_for_good(make_world: MakeWorld, archive: Archived, fault: str) -> None:
    assert isinstance(archive, InStore)
    world = make_world({})
    name, before = filled(world, archive.to)
    plan_id = judged(world, name)

    def around(asked: S3Request, serve: Serve) -> Any:
        if asked.method != "GET" or not asked.path.endswith(".parquet"):
            return serve()
        return Refused(HTTPStatus.FORBIDDEN, "AccessDenied") if fault == "refused" else None

    with archive.answering(around), raises("StorageRefused", match=archive.to):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before
    steps.publish(world.services, plan_id)
    assert stored(world, name) == before[3:]


@IN_STORE
def test_a_bucket_that_is_not_there_is_named_and_nothing_goes(make_world: MakeWorld, archive: Archived) -> None:
    world = make_world({})
    name, before = filled(world, archive.to)
    with archive.away(), raises("StorageRefused", match=archive.to):
        run(world, name)
    assert stored(world, name) == before
