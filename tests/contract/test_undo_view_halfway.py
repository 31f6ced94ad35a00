"""What every store of whole logs must do where a removal from the compacted view and the log stopped between its two commits (DEL-7, DEL-8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, ViewRow
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.request import PurgeKey, UndoPlan
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import CommitContext
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.contract.test_requests import append
from tests.contract.test_undo_view import Dying, compacted, view
from tests.errors import raises
from tests.holds import held
from tests.logs import SECOND
from tests.undone import approved, published, run, stored, undone


@dataclass(frozen=True)
class Half:
    """A purge of the key `a` that has come to its first commit, the view's."""

    name: TopicName
    plan_id: str
    log: list[Message]
    view: list[ViewRow]
    """Both as they were before it."""


def half_purged(world: World) -> Half:
    name = compacted(world, b"a", b"b", message_expiry=1000, undo_window=100)
    log, rows = stored(world, name), view(world, name)
    stores = replace(world.services.stores, log=Dying(world.services.stores.log))  # type: ignore[arg-type]  # it has all that MessageStore has
    dying = replace(world.services, stores=stores)
    world.set_now(Instant(10 * SECOND))
    with pytest.raises(KeyboardInterrupt):
        steps.run(dying, name, as_of=Instant(10 * SECOND), approver=approved, work=PurgeKey(key=b"a"))
    record = world.services.ledger.open_plan(name)
    assert record is not None
    assert (stored(world, name), view(world, name)) == (log, rows[1:])
    return Half(name, record.plan.plan_id, log, rows)


@pytest.mark.parametrize("by", ["a hold", "other settings"])
def test_what_has_stopped_between_its_commits_comes_back_to_the_view(make_world: MakeWorld, by: str) -> None:  # DEL-8
    world = make_world({})
    half = half_purged(world)
    if by == "a hold":
        held(world.services, half.name)
    else:
        alter_topic(world.services, half.name, {"message_expiry": 2000})
    append(world, half.name, 11, b"later")
    published(world, half.name, 12, "compaction")
    assert stored(world, half.name)[:-1] == half.log, "the second commit is not made"
    stopped = world.services.ledger.record(half.plan_id).outcome
    assert stopped is not None and (stopped.name, f"`lifecycle undo {half.plan_id[:12]} --by NAME --why WHY`" in stopped.detail) == (
        "superseded",
        True,
    )
    outcome = undone(world, half.name, 13, half.plan_id)
    assert (outcome.restored, outcome.removed) == (0, ())
    assert (stored(world, half.name)[:-1], view(world, half.name)[:-1]) == (half.log, half.view)
    again = run(world, half.name, 14, UndoPlan(plan_id=half.plan_id))
    assert (again.name, again.first_plan_id) == ("no_op", outcome.plan_id)


def test_its_window_ends_as_any_other(make_world: MakeWorld) -> None:
    world = make_world({})
    half = half_purged(world)
    held(world.services, half.name)
    assert run(world, half.name, 11).name == "no_op"
    with raises("UndoWindowPassed"):
        run(world, half.name, 110, UndoPlan(plan_id=half.plan_id))


@dataclass
class Conflicting:
    """A store whose first commit to the log comes too late."""

    real: object
    conflicts: int = 1

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        self.conflicts -= 1
        if self.conflicts >= 0:
            raise PlanConflict(verdict.plan.plan_id, "the log was changed first")
        return self.real.publish(verdict, given)  # type: ignore[attr-defined,no-any-return]  # it is a MessageStore


@TABLES_HUNTED
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the view first", "the log first"])
def test_both_plans_of_a_request_that_was_planned_anew_come_back(make_world: MakeWorld, order: tuple[int, int]) -> None:
    """Another writer came between its commits: what the second plan takes is in the log alone."""
    world = make_world({})
    name = compacted(world, b"a", b"b")
    log, rows = stored(world, name), view(world, name)
    world.set_now(Instant(10 * SECOND))
    stores = replace(world.services.stores, log=Conflicting(world.services.stores.log))  # type: ignore[arg-type]  # it has all that MessageStore has
    late = replace(world.services, stores=stores)
    outcome = steps.run(late, name, as_of=Instant(10 * SECOND), approver=approved, work=PurgeKey(key=b"a"))
    assert (outcome.name, stored(world, name), view(world, name)) == ("published", log[1:], rows[1:])
    second, first = (known.plan_id for known in world.services.ledger.plans(name)[:2])
    assert outcome.plan_id == second
    for at, which in enumerate(order):
        undone(world, name, 11 + at, (first, second)[which])
    assert (stored(world, name), view(world, name)) == (log, rows)
