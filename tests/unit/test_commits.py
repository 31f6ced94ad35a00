"""A plan's commit by itself: made once, looked up where nobody said how it ended, and found where another run was first (DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JNetworkError

from message_lifecycle.model.errors import CommitRefused, CommitUnknown, LifecycleError, PlanConflict, TableBusy
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.fence import AlreadyPublished, commit_once
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from tests.unit.test_fence import BASE, MINE, OTHER, Snapshot, known

OURS = Snapshot(2, "delete", {PLAN_ID: MINE})
UNKNOWN, REFUSED = CommitUnknown("publishing"), CommitRefused("publishing", "a file is gone")
CONFLICT, BUSY = PlanConflict(MINE, "another came first"), TableBusy("publishing", 10)


@pytest.fixture(autouse=True)
def snapshots_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "read_snapshot", known)


class History:
    """A table, as far as its snapshots are asked for; what came since is seen after a refresh."""

    def __init__(self) -> None:
        self._there, self._seen = [Snapshot(BASE)], [Snapshot(BASE)]

    def comes(self, *snapshots: Snapshot) -> None:
        self._there += snapshots

    def refresh(self) -> None:  # the names here are Iceberg's
        self._seen = list(self._there)

    def currentSnapshot(self) -> Chained:
        return Chained(self._seen)


class Chained(Snapshot):
    def __init__(self, line: list[Snapshot]) -> None:
        self._line = line
        super().__init__(line[-1].snapshotId(), line[-1].operation(), line[-1].summary())

    def parentId(self) -> int | None:
        return self._line[-2].snapshotId() if len(self._line) > 1 else None


class Table(History):
    def snapshot(self, snapshot_id: int) -> Chained:
        at = next(at for at, one in enumerate(self._seen) if one.snapshotId() == snapshot_id)
        return Chained(self._seen[: at + 1])


def once(table: Table, commit: Callable[[], None], since: int | None = BASE) -> tuple[int, list[str]]:
    steps: list[str] = []
    found = commit_once(table, MINE, commit, steps=steps.append, since=since)
    return found.snapshot_id, steps


def ending(table: Table, error: Exception | None, *came: Snapshot) -> Callable[[], None]:
    def commit() -> None:
        table.comes(*came)
        if error is not None:
            raise error

    return commit


def test_a_commit_is_found_by_its_plan() -> None:
    table = Table()
    assert once(table, ending(table, None, OURS, Snapshot(3))) == (2, ["before_commit", "after_commit"])


@pytest.mark.parametrize("error", [UNKNOWN, REFUSED, CONFLICT, AlreadyPublished(MINE)], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("since", [BASE, None])
def test_what_another_run_or_this_one_has_committed_is_found_however_it_ended(error: LifecycleError, since: int | None) -> None:
    table = Table()
    later = Snapshot(3, "delete", {PLAN_ID: OTHER})
    assert once(table, ending(table, error, OURS, later), since)[0] == 2


@pytest.mark.parametrize("error", [UNKNOWN, CONFLICT, BUSY], ids=lambda error: type(error).__name__)
def test_what_is_not_there_ends_as_it_ended(error: LifecycleError) -> None:
    table = Table()
    with pytest.raises(type(error)) as raised:
        once(table, ending(table, error, Snapshot(2)))
    assert raised.value is error


def test_a_table_that_was_busy_is_not_asked_again() -> None:
    """Nothing was changed; that another run's commit is there, the next look finds."""
    table = Table()
    with pytest.raises(TableBusy):
        once(table, ending(table, BUSY, OURS))


def test_who_was_first_is_named_where_icebergs_own_guard_came_before_ours() -> None:
    table = Table()
    with pytest.raises(PlanConflict) as refused:
        once(table, ending(table, REFUSED, Snapshot(2, "delete", {PLAN_ID: OTHER})))
    assert refused.value.rival == OTHER
    for since in (BASE, None):  # what only appended is no rival, and of other tables nobody says who may have come
        table = Table()
        with pytest.raises(PlanConflict, match="a file is gone"):
            once(table, ending(table, REFUSED, Snapshot(2)), since)


def test_a_commit_that_nobody_finds_is_unknown() -> None:
    table = Table()
    with pytest.raises(CommitUnknown):
        once(table, ending(table, None))


@pytest.mark.parametrize(("error", "ends_with"), [(UNKNOWN, CommitUnknown), (None, CommitUnknown), (CONFLICT, Py4JNetworkError)])
def test_what_cannot_be_looked_up_stays_unknown(error: LifecycleError | None, ends_with: type[Exception]) -> None:
    class Dead(Table):
        def refresh(self) -> None:
            raise Py4JNetworkError("the line went dead")

    with pytest.raises(ends_with):
        once(Dead(), ending(Dead(), error))


def test_a_plan_is_not_looked_for_before_the_snapshot_that_it_was_made_of() -> None:
    table = Table()
    table.comes(OURS, Snapshot(3))
    with pytest.raises(CommitUnknown):
        once(table, ending(table, None), since=3)
