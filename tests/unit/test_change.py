"""A plan's commit of one table, whatever the table: found before anything is made, asked and told as its store says (DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from message_lifecycle.model.errors import CatalogUnavailable, CommitUnknown, PlanConflict
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan, SnapshotRequirements
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import NO_CONTEXT, CommitContext
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.change import TableStore, Update, appends_pass, head_is, required_head, staged_change
from message_lifecycle.stores.iceberg.fence import Judge, Walk, main_ancestors
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from message_lifecycle.stores.iceberg.witness import Known
from tests.unit.test_commits import Table
from tests.unit.test_fence import BASE, OTHER, Snapshot, known
from tests.unit.test_quarantine_age import file, plan
from tests.verdicts import by, let_pass

PLAN = plan(file("a", 0))
OURS = Snapshot(2, "delete", {PLAN_ID: PLAN.plan_id})
ENGINE, GIVEN = MagicMock(), by(("ledger", 1))


@pytest.fixture(autouse=True)
def maps_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables here are none of Java's, and neither are their maps."""
    monkeypatch.setattr(fence, "entries", dict)
    monkeypatch.setattr(fence, "read_snapshot", known)


class Store(TableStore):
    kinds = ("",)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        raise AssertionError("nobody judges here")

    def publish(self, verdict: object, given: CommitContext) -> Published:
        raise AssertionError("its parts are asked here")

    def commit(self, table: Table, make: Callable[[], Update], given: CommitContext = GIVEN) -> Published:
        verdict = let_pass(PLAN, Staged(plan_id=PLAN.plan_id, branch=None, snapshot_id=2))
        return self._commit(ENGINE, table, verdict, given, make, of="deed")


class Told(dict[str, str]):
    """An update, as far as it is told what its summary says."""

    def set(self, key: str, value: str) -> None:
        self[key] = value


@pytest.fixture
def steps() -> list[str]:
    return []


@pytest.fixture
def store(steps: list[str]) -> Store:
    return Store(lambda: ENGINE, tables=cast("Any", None), steps=steps.append)


def committing(monkeypatch: pytest.MonkeyPatch, table: Table, *before: Snapshot, ends: Exception | None = None) -> None:
    """Commits are made on this table, after these of others."""

    def commit(on: Table, judge: Judge, make: Callable[[Table, Walk], Iterator[Told]], **_: object) -> None:
        table.comes(*before)
        table.refresh()
        judge(lambda: main_ancestors(table))
        if ends is not None:
            raise ends
        for update in make(on, lambda: main_ancestors(table)):
            table.comes(Snapshot(9, "delete", update))

    monkeypatch.setattr(fence, "fenced_commit", commit)


def made(condition: Judge = lambda _walk: None) -> Update:
    return Update(update=lambda _: Told(), condition=condition, tells={"more": "said"})


def test_one_that_is_there_is_told_and_nothing_is_made(store: Store, steps: list[str]) -> None:
    table = Table()
    table.comes(OURS)
    table.refresh()
    found = store.commit(table, lambda: pytest.fail("it is there"), NO_CONTEXT)  # so no identity of a ledger is drawn either
    assert (found.snapshot_id, steps) == (2, [])


def test_it_is_made_once_under_the_stores_condition(store: Store, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = Table(), list[int]()
    committing(monkeypatch, table)

    def condition(walk: Callable[[], Iterator[Known]]) -> None:
        asked.append(next(walk()).snapshot_id)

    assert store.commit(table, lambda: made(condition)).snapshot_id == 9
    assert steps == ["before_deed", "inside_deed", "after_deed"]
    assert asked == [BASE]
    said = next(main_ancestors(table)).summary
    assert (said[PLAN_ID], said["more"], said["lifecycle.operation"]) == (PLAN.plan_id, "said", "quarantine")


@pytest.mark.parametrize(
    ("condition", "came", "passes"),
    [
        (appends_pass(PLAN.plan_id, BASE), Snapshot(5), True),
        (appends_pass(PLAN.plan_id, BASE), Snapshot(5, "delete", {PLAN_ID: OTHER}), False),
        (head_is(PLAN.plan_id, BASE, table="the table was"), Snapshot(5), False),
    ],
)
def test_what_came_first_refuses_as_the_condition_says(
    store: Store, monkeypatch: pytest.MonkeyPatch, condition: Judge, came: Snapshot, passes: bool
) -> None:
    table = Table()
    committing(monkeypatch, table, came)
    if passes:
        assert store.commit(table, lambda: made(condition)).snapshot_id == 9
    else:
        with pytest.raises(PlanConflict, match="first"):
            store.commit(table, lambda: made(condition))


def test_a_catalog_that_has_gone_hides_no_unknown_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    committing(monkeypatch, table, ends=CommitUnknown("publishing"))

    def gone(*_: object, **__: object) -> None:
        raise CatalogUnavailable("gone")

    monkeypatch.setattr(ENGINE, "forget", gone)
    with pytest.raises(CommitUnknown):
        store.commit(table, made)


def test_nothing_is_committed_that_was_not_staged() -> None:
    for staged_id in (None, BASE):
        with pytest.raises(PlanConflict, match=f"nothing is staged for it .snapshot {staged_id}."):
            staged_change(ENGINE, Table(), PLAN.plan_id, staged_id, BASE)


class Beside(Table):
    def uuid(self) -> str:
        return "t"


@pytest.mark.parametrize(
    ("uuid", "snapshot_id", "came", "told"),
    [
        ("t", BASE, (), None),
        ("t", BASE, (Snapshot(3),), "it has changed since it was planned"),
        ("another", BASE, (), "it has changed since it was planned"),
        (None, None, (), None),
        (None, None, (Snapshot(3),), "it was made since it was planned"),
    ],
)
def test_a_plan_builds_on_the_newest_snapshot(
    uuid: str | None, snapshot_id: int | None, came: tuple[Snapshot, ...], told: str | None
) -> None:
    table, base = Beside(), SnapshotRequirements(table_uuid=uuid, snapshot_id=snapshot_id)
    table.comes(*came)
    table.refresh()
    if told is None:
        assert required_head(table, "p", base, made="it was made", changed="it has changed") == BASE
    else:
        with pytest.raises(PlanConflict, match=told):
            required_head(table, "p", base, made="it was made", changed="it has changed")
