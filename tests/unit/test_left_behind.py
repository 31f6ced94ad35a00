"""Logs that are files, archives, and the memory store: what a run that died has left is gone when the topic is next planned (DEL-1, RET-7)."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from message_lifecycle.app import changes, steps
from message_lifecycle.app.operations.registry import operations_on_records
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world, record_log_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.outcome import OutcomeName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.record_log.store import RecordLogStore
from tests.documents import Died, die
from tests.record_files import KINDS, NAME, Crash, CrashingDisk, files, logs_of

AS_OF = Instant(1_000_000_000)
MOST_OPERATIONS = 200


def filled(world: World, **settings: Value) -> World:
    world.set_now(AS_OF)
    create_topic(world.services, NAME, partitions=1, settings={"max_records": 4, "max_removed_fraction": 1.0, **settings})
    new = [NewMessage(append_time=AS_OF, key=b"k", value=b"v%d" % at) for at in range(12)]
    world.writer.append(NAME, new, policy_of(world.services, NAME))
    return world


def planned(world: World) -> Plan:
    return steps.plan(world.services, NAME, as_of=AS_OF, work="retention").plan


def dies_closing(world: World, plan: Plan, how: OutcomeName, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(changes, "drop", lambda *_, **__: die())
        steps.close(world.services, plan, how, "as the test wants it")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_removal_that_died_has_written_beside_the_log_goes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = 0
    for at in range(MOST_OPERATIONS):
        root = tmp_path / str(at)
        world = filled(record_log_world(logs_of(kind, root), {}, close=lambda: None))
        plan = planned(world)
        steps.stage(world.services, plan.plan_id)
        steps.gate(world.services, plan.plan_id)
        disk = CrashingDisk(at, torn=True)
        dying = RecordLogStore(logs_of(kind, root, disk=disk), server=MappingProxyType({}), operations=operations_on_records)
        before = set(files(root))
        with monkeypatch.context() as patch:
            patch.setattr(world.services.stores.log, "publish", dying.publish)
            try:
                steps.publish(world.services, plan.plan_id)
            except Crash:
                pass
            else:
                break
        published = changes.find_published(world.services, plan) is not None
        beside = {name for name in files(root) if name.endswith(".new")} | (set(files(root)) - before)
        left += bool(beside)
        if not published:
            steps.close(world.services, plan, "superseded", "as the test wants it")
        planned(world)
        clean = set(files(root))
        world.writer.append(NAME, [NewMessage(append_time=AS_OF, key=b"k", value=b"later")], policy_of(world.services, NAME))
        assert not {name for name in clean if name.endswith(".new")}, at
        assert clean <= set(files(root)), f"{at}: an append found something to take away"
    assert left > 1, "some deaths leave something"


@pytest.mark.parametrize("how", ["superseded", "lapsed", "published"])
def test_the_archive_of_a_plan_that_took_nothing_goes_and_of_one_that_did_stays(
    how: OutcomeName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = filled(memory_world({}), on_remove="archive", archive_to=str(tmp_path))
    s, plan = world.services, planned(world)
    steps.stage(s, plan.plan_id)
    if how == "published":
        steps.gate(s, plan.plan_id)
        steps.publish(s, plan.plan_id)
    dies_closing(world, plan, how, monkeypatch)
    assert [path.stem for path in tmp_path.rglob("*.parquet")] == [plan.plan_id]
    # A log may have forgotten, by the time of the sweep, what the ledger knows.
    monkeypatch.setattr(s.stores.log, "find_published", lambda _: None)
    changes.sweep(s, NAME)
    assert [path.stem for path in tmp_path.rglob("*.parquet")] == ([plan.plan_id] if how == "published" else [])
    assert s.ledger.plans_with_leftover_stages(NAME) == []


def test_a_stage_in_memory_goes_as_one_on_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(memory_world({}))
    plan = planned(world)
    steps.stage(world.services, plan.plan_id)
    dies_closing(world, plan, "lapsed", monkeypatch)
    assert world.services.stores.log.of(NAME).log.staged  # type: ignore[attr-defined]  # the memory store's own
    changes.sweep(world.services, NAME)
    assert not world.services.stores.log.of(NAME).log.staged  # type: ignore[attr-defined]  # the memory store's own table of what is staged
