"""The fence by itself: asked in every attempt, and whatever goes wrong in it refuses the commit (DEL-4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.stores.iceberg.fence import AlreadyPublished, Ancestor, Fence, newest_state, only_appends_since
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, PLAN_ID, LogSummary

BASE, MINE, OTHER = 1, "mine", "another's"


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


def newest_first(*came: Snapshot) -> Iterator[Ancestor]:
    """Snapshots that came after the plan's, in their order, on it."""
    return (Ancestor(snapshot) for snapshot in (*reversed(came), Snapshot(BASE)))


class NoAncestors:
    def iterator(self) -> Any:
        raise AssertionError("nobody walks them here")


def test_each_attempt_is_judged_by_itself() -> None:
    told: list[Exception | None] = [None, PlanConflict("p", "another came first"), None, PlanConflict("p", "and another")]
    asked = iter(told)

    def judge(_walk: object) -> None:
        found = next(asked)
        if found is not None:
            raise found

    fence = Fence(judge)
    assert [fence.validate(NoAncestors()) for _ in told] == [True, False, True, False]
    assert fence.attempts == 4
    assert fence.refusal is told[-1]
    assert "and another" in fence.errorMessage()


def test_what_nobody_expected_lets_nothing_pass() -> None:
    """Iceberg takes what is raised as a refusal; only True lets the attempt go on."""

    def judge(_walk: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Fence(judge).validate(NoAncestors())


def test_appends_of_others_pass() -> None:
    only_appends_since(newest_first(Snapshot(2), Snapshot(3)), MINE, BASE)
    only_appends_since(newest_first(), MINE, BASE)


@pytest.mark.parametrize("operation", ["delete", "overwrite", "replace"])
def test_no_other_change_passes_whoever_made_it_and_wherever_it_stands(operation: str) -> None:
    for plan_id in ({}, {PLAN_ID: OTHER}):
        change = Snapshot(3, operation, plan_id)
        for came in ((change,), (Snapshot(2), change), (change, Snapshot(4))):
            with pytest.raises(PlanConflict, match="came first") as refused:
                only_appends_since(newest_first(*came), MINE, BASE)
            assert refused.value.rival == plan_id.get(PLAN_ID, "snapshot 3")


def test_a_plans_append_does_not_pass_either() -> None:
    with pytest.raises(PlanConflict, match=OTHER):
        only_appends_since(newest_first(Snapshot(2, "append", {PLAN_ID: OTHER})), MINE, BASE)


def test_a_plan_that_is_there_is_not_committed_again() -> None:
    with pytest.raises(AlreadyPublished):
        only_appends_since(newest_first(Snapshot(2, "delete", {PLAN_ID: MINE}), Snapshot(3)), MINE, BASE)


def test_a_log_without_the_plans_snapshot_is_another_one() -> None:
    with pytest.raises(PlanConflict, match="not among the ancestors"):
        only_appends_since(iter([Ancestor(Snapshot(5)), Ancestor(Snapshot(4))]), MINE, BASE)


def test_the_state_is_that_of_the_newest_that_carries_any() -> None:  # MSG-4
    first, second = LogSummary(end_offsets={0: 3}), LogSummary(end_offsets={0: 7})
    came = (Snapshot(2, "append", first.to_properties()), Snapshot(3, "append", second.to_properties()), Snapshot(4))
    assert newest_state(newest_first(*came)) == second, "another writer's commit carries none"
    assert END_OFFSETS in second.to_properties()
    assert newest_state(newest_first()) == LogSummary()
