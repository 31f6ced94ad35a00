"""What goes is in the archive before it goes, all of it and as it was, on every backend that can archive (RET-7)."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from tests.contract.conftest import MakeWorld, on
from tests.contract.test_retention_on_backends import append, judged, offsets, run, stored, topic_of
from tests.errors import raises
from tests.retained import AS_OF

pytestmark = pytest.mark.parametrize("store_kind", on("memory", "json_file", "rotating_file", "redis_streams"), indirect=True)
ODD = NewMessage(append_time=None, key=None, value=b"\xff\x00", headers=(("h", b""), ("h", b"\xfe")), event_time=Instant(-7))


def filled(world: World, folder: Path) -> tuple[TopicName, list[Message]]:
    """Two messages of ordinary kind, one of odd fields, and one that stays; what is stored."""
    name = topic_of(world, max_records=1, on_remove="archive", archive_to=str(folder))
    append(world, name, 1, 2)
    world.writer.append(name, [ODD], policy_of(world.services, name))
    append(world, name, 3)
    return name, stored(world, name)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_went_is_in_the_archive_as_it_was(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path)
    outcome = run(world, name)
    assert (outcome.name, outcome.archived, outcome.removed_rows) == ("published", 3, 3), outcome.detail
    assert stored(world, name) == before[3:]
    assert outcome.plan_id is not None
    assert list(ParquetArchive(tmp_path).read(name, outcome.plan_id)) == before[:3]
    assert files(tmp_path) == [ParquetArchive(tmp_path).file(name, outcome.plan_id)]
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600
    again = run(world, name)
    assert (again.name, again.archived) == ("no_op", 0)
    assert len(files(tmp_path)) == 1


def test_an_archive_that_differs_blocks(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path)
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    steps.stage(world.services, plan_id)
    ParquetArchive(tmp_path).write(name, plan_id, [before[0], before[1], before[3]])
    report = steps.gate(world.services, plan_id)
    assert [check.id for check in report.blocking] == ["archive_same"]
    assert stored(world, name) == before
    assert files(tmp_path) == [], "nothing went, nothing is archived"


@pytest.mark.parametrize("lost", ["file", "rows", "content"])
def test_an_archive_that_is_lost_after_the_gate_stops_the_plan(make_world: MakeWorld, tmp_path: Path, lost: str) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path)
    plan_id = judged(world, name)
    if lost == "file":
        ParquetArchive(tmp_path).drop(name, plan_id)
    elif lost == "content":
        ParquetArchive(tmp_path).file(name, plan_id).write_bytes(b"no Parquet")
    else:
        ParquetArchive(tmp_path).write(name, plan_id, before[:2])
    with pytest.raises(PlanConflict, match="of the 3 messages that go"):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before


def test_an_archive_that_says_other_than_what_goes_stops_the_plan(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path)
    plan_id = judged(world, name)
    ParquetArchive(tmp_path).write(name, plan_id, [before[0], before[1], before[3]])
    with pytest.raises(PlanConflict, match="do not agree on what goes"):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before
    assert run(world, name).archived == 3
    assert stored(world, name) == before[3:]


def test_an_archive_that_a_link_leads_elsewhere_stops_the_plan(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path / "archive")
    plan_id = judged(world, name)
    folder = ParquetArchive(tmp_path / "archive").file(name, plan_id).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePath, match="a symbolic link"):
        steps.publish(world.services, plan_id)
    assert stored(world, name) == before


def test_an_archive_that_cannot_be_made_is_named_and_nothing_goes(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path / ("x" * 300))
    with raises("StorageRefused", match="xxx: File name too long"):
        run(world, name)
    assert stored(world, name) == before


def test_a_refused_plan_leaves_no_archive(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, before = filled(world, tmp_path)
    world.set_now(AS_OF)
    no = steps.run(world.services, name, as_of=AS_OF, work="retention", approver=lambda _plan, _report: (False, "tester", "keep it"))
    assert (no.name, no.archived) == ("refused", 0)
    assert stored(world, name) == before
    assert files(tmp_path) == []


def test_a_blocked_plan_leaves_nothing_of_an_archive_that_a_crash_has_left_half_written(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, _ = filled(world, tmp_path)
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    steps.stage(world.services, plan_id)
    whole = ParquetArchive(tmp_path).file(name, plan_id)
    whole.rename(whole.with_name(f"{whole.name}.new"))
    assert steps.gate(world.services, plan_id).judgement == "blocked"
    assert files(tmp_path) == []


def test_what_a_person_asks_to_have_removed_is_kept_nowhere(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world({})
    name, _ = filled(world, tmp_path)
    world.set_now(AS_OF)
    request = RemoveMessages(positions=((0, 1),))
    steps.run(world.services, name, as_of=AS_OF, work=request, approver=lambda _plan, _report: (True, "tester", "as asked"))
    assert offsets(world, name) == [0, 2, 3]
    assert files(tmp_path) == []


def test_an_archive_has_a_place_and_only_then(make_world: MakeWorld, store_kind: Backend) -> None:
    world = make_world({})
    for own in ({"on_remove": "archive"}, {"archive_to": "/archive"}, {"on_remove": "archive", "archive_to": "relative"}):
        with pytest.raises(InvalidSetting, match="archive_to"):
            topic_of(world, **own)
