"""The fence by itself: asked in every attempt, and whatever goes wrong in it refuses the commit (DEL-4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from message_lifecycle.model.errors import CommitRefused, PlanConflict, TableBusy
from message_lifecycle.stores.iceberg import fence, table_metadata
from message_lifecycle.stores.iceberg.fence import AlreadyPublished, Walk, check_only_appends, fenced_commit, newest_state
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, PLAN_ID, LogSummary
from message_lifecycle.stores.iceberg.witness import Known
from tests.errors import raises

BASE, MINE, OTHER = 1, "mine", "another's"


@pytest.fixture(autouse=True)
def maps_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables here are none of Java's, and neither are their maps."""
    monkeypatch.setattr(fence, "entries", dict)
    monkeypatch.setattr(fence, "read_snapshot", known)


class Snapshot:
    """As Iceberg's own has it."""

    def __init__(self, snapshot_id: int, operation: str = "append", summary: Mapping[str, str] | None = None) -> None:
        self._id, self._operation, self._summary = snapshot_id, operation, dict(summary or {})

    def snapshotId(self) -> int:  # the names here are Iceberg's
        return self._id

    def operation(self) -> str:
        return self._operation

    def summary(self) -> dict[str, str]:
        return self._summary


def known(snapshot: Snapshot) -> Known:
    parent, sequence = (getattr(snapshot, name, lambda: None)() for name in ("parentId", "sequenceNumber"))
    return Known(
        snapshot_id=snapshot.snapshotId(),
        sequence_number=sequence or 0,
        parent_id=parent,
        operation=snapshot.operation(),
        summary=snapshot.summary(),
    )


def newest_first(*came: Snapshot) -> Iterator[Known]:
    """Snapshots that came after the plan's, in their order, on it."""
    return (known(snapshot) for snapshot in (*reversed(came), Snapshot(BASE)))


class Table:
    """A table of which main has these snapshots behind the plan's, and that has no properties."""

    def __init__(self, *came: Snapshot) -> None:
        self._came = (Snapshot(BASE), *came)

    def name(self) -> str:
        return "a.table"

    def properties(self) -> dict[str, str]:
        return {}

    def currentSnapshot(self) -> Snapshot:  # the names here are Iceberg's
        return self.snapshot(self._came[-1].snapshotId())

    def snapshot(self, snapshot_id: int) -> Snapshot:
        at = next(at for at, one in enumerate(self._came) if one.snapshotId() == snapshot_id)
        return Chained(self._came[at], self._came[at - 1].snapshotId() if at else None)


class Chained(Snapshot):
    def __init__(self, one: Snapshot, parent: int | None) -> None:
        super().__init__(one.snapshotId(), one.operation(), one.summary())
        self._parent = parent

    def parentId(self) -> int | None:
        return self._parent

    def sequenceNumber(self) -> int:
        return self.snapshotId()


class Attempts:
    """A table on a catalog before which another commit comes each of these times; every transaction begins on the newest. What is committed
    to one of them is `made` when its metadata are."""

    def __init__(self, others: int = 0) -> None:
        self.head, self.tries, self.made, self._others = Head(BASE), 0, list[str](), others

    def newTransaction(self) -> Attempt:  # the names here are Iceberg's
        return Attempt(self.head)

    def operations(self) -> Attempts:
        return self

    def commit(self, base: Head, changed: list[str]) -> None:
        self.tries += 1
        if self.tries <= self._others:
            self.head = Head(base.snapshotId() + 1)
            raise came_first()
        self.made += changed

    def current(self) -> None: ...


class Head(Snapshot):
    """A table's metadata, as far as main's newest snapshot goes."""

    def currentSnapshot(self) -> Head:
        return self

    def parentId(self) -> None: ...

    def properties(self) -> dict[str, str]:
        return {}


class Made(list[str]):
    """The metadata that an attempt made: what was put there, and no snapshot of main."""

    def currentSnapshot(self) -> None: ...


class Attempt:
    def __init__(self, base: Head) -> None:
        self._base, self._made = base, Made()

    def startMetadata(self) -> Head:
        return self._base

    def currentMetadata(self) -> Made:
        return self._made

    def commit(self) -> None:
        """As an update of it, too."""
        self._made.append(f"on {self._base.snapshotId()}")


class Told(Py4JError):
    """As Java tells it: the name of a class."""

    def __init__(self, name: str) -> None:
        super().__init__("Trace:")
        self.java_exception = self
        self.name = name

    def getClass(self) -> Told:
        return self

    def getSimpleName(self) -> str:
        return self.name

    def getMessage(self) -> str:
        return "as told"


def came_first() -> Told:
    return Told("CommitFailedException")


def one(on: Attempt, _walk: Walk) -> Iterator[Attempt]:
    yield on


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_metadata.time, "sleep", lambda _: None)


def test_each_attempt_is_judged_by_itself() -> None:
    table, asked = Attempts(others=2), list[int]()
    fenced_commit(table, lambda walk: asked.append(next(walk()).snapshot_id), one, what="a deed")
    assert (asked, table.made) == ([BASE, BASE + 1, BASE + 2], [f"on {BASE + 2}"]), "each on what it builds on, and made of it anew"


def test_a_later_attempt_may_be_refused() -> None:
    table, told = Attempts(others=1), iter([None, PlanConflict("p", "another came first")])

    def judge(_walk: Walk) -> None:
        if (refusal := next(told)) is not None:
            raise refusal

    with pytest.raises(PlanConflict, match="another came first"):
        fenced_commit(table, judge, one, what="a deed")
    assert (table.tries, table.made) == (1, [])


def test_what_nobody_expected_lets_nothing_pass() -> None:
    table = Attempts()

    def judge(_walk: Walk) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fenced_commit(table, judge, one, what="a deed")
    assert (table.tries, table.made) == (0, [])


def test_where_others_always_come_first_it_says_so() -> None:
    table = Attempts(others=1000)
    with pytest.raises(TableBusy, match="a deed"):
        fenced_commit(table, lambda _walk: None, one, what="a deed")
    assert table.made == []


@pytest.mark.parametrize(
    ("ended", "told"),
    [(Told("ValidationException"), CommitRefused), (Py4JNetworkError("the line went dead"), Py4JNetworkError), (Told("AnyOther"), Told)],
)
def test_what_stops_an_attempt_is_told_by_its_name(ended: Exception, told: type[Exception]) -> None:
    table = Attempts()

    def make(_on: Attempt, _walk: Walk) -> Iterator[Attempt]:
        raise ended
        yield

    with pytest.raises(told):
        fenced_commit(table, lambda _walk: None, make, what="a deed")
    assert (table.tries, table.made) == (0, [])


def test_appends_of_others_pass() -> None:
    check_only_appends(newest_first(Snapshot(2), Snapshot(3)), MINE, BASE)
    check_only_appends(newest_first(), MINE, BASE)


@pytest.mark.parametrize("operation", ["delete", "overwrite", "replace"])
def test_no_other_change_passes_whoever_made_it_and_wherever_it_stands(operation: str) -> None:
    for plan_id in ({}, {PLAN_ID: OTHER}):
        change = Snapshot(3, operation, plan_id)
        for came in ((change,), (Snapshot(2), change), (change, Snapshot(4))):
            with pytest.raises(PlanConflict, match="came first") as refused:
                check_only_appends(newest_first(*came), MINE, BASE)
            assert refused.value.rival == plan_id.get(PLAN_ID, "snapshot 3")


def test_a_plans_append_does_not_pass_either() -> None:
    with pytest.raises(PlanConflict, match=OTHER):
        check_only_appends(newest_first(Snapshot(2, "append", {PLAN_ID: OTHER})), MINE, BASE)


def test_a_plan_that_is_there_is_not_committed_again() -> None:
    with pytest.raises(AlreadyPublished):
        check_only_appends(newest_first(Snapshot(2, "delete", {PLAN_ID: MINE}), Snapshot(3)), MINE, BASE)


def test_a_log_without_the_plans_snapshot_is_another_one() -> None:
    with pytest.raises(PlanConflict, match="not among the ancestors"):
        check_only_appends(iter([known(Snapshot(5)), known(Snapshot(4))]), MINE, BASE)


def test_the_state_is_that_of_the_newest_that_carries_any() -> None:  # MSG-4
    first, second = LogSummary(end_offsets={0: 3}), LogSummary(end_offsets={0: 7})
    came = (Snapshot(2, "append", first.to_properties()), Snapshot(3, "append", second.to_properties()), Snapshot(4, "replace"))
    table = Table(*came)
    assert newest_state(table) == second, "another writer's commit carries none"
    assert END_OFFSETS in second.to_properties()


def test_a_table_of_which_nothing_says_where_it_ends_is_no_empty_log() -> None:  # MSG-4
    with raises("LogStateLost"):
        newest_state(Table())
