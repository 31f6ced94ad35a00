"""What the gate says of limits by number and by size: broken one by one, and asked of evidence that a wrong plan leaves (DEL-2, P5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app.operations.registry import preview, suite_of
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import RemovalReason
from tests.changes import named

NAME = TopicName(stream="s", topic="t")
AS_OF = Instant(1_000)


class Judged:
    """A topic of ten messages of ten bytes each; a plan of it, perhaps made wrong, staged and judged."""

    def __init__(self, **settings: Any) -> None:
        self.world = world = memory_world({})
        self.services = world.services
        create_topic(world.services, NAME, partitions=1, settings={"max_removed_fraction": 1.0, **settings})
        new = [NewMessage(append_time=Instant(900 + at), key=None, value=b"0123456789") for at in range(10)]
        world.writer.append(NAME, new, policy_of(world.services, NAME))
        world.set_now(AS_OF)

    @property
    def plan(self) -> Plan:
        return preview(self.services, NAME, as_of=AS_OF, work="retention")

    def judge(self, plan: Plan, **cells: int) -> GateReport:
        policy = policy_of(self.services, NAME)
        staged = self.services.stores.log.stage(plan)
        evidence = dict(self.services.stores.log.evidence(plan, staged, policy))
        evidence["limits"] = [{**row, **cells} for row in evidence["limits"]]  # type: ignore[attr-defined]  # lists of rows, in memory
        return PlainGate().judge(plan, staged, suite_of(plan, staged, policy), evidence)


def failed(report: GateReport) -> set[str]:
    return {check.id for check in report.checks if not check.passed}


def taking(plan: Plan, offsets: str, rows: int, reason: RemovalReason = "retention_count") -> Plan:
    action = RemoveRows(partition=0, base_offset=0, file="0/0", offsets=offsets, rows=rows, reason=reason)
    expected = replace(plan.expected, removed=((reason, rows),))
    return replace(plan, changes=named(action), expected=expected)


def test_the_plan_itself_passes() -> None:
    judged = Judged(max_records=4, max_total_bytes=35)
    assert dict(judged.plan.expected.removed) == {"retention_count": 6, "retention_bytes": 1}
    assert failed(judged.judge(judged.plan)) == set()


def test_a_plan_that_takes_one_too_many_is_blocked() -> None:
    judged = Judged(max_records=4)
    report = judged.judge(taking(judged.plan, "0-6", 7))
    assert report.judgement == "blocked"
    assert failed(report) >= {"limits_within", "limits_beyond", "rows_justified"}


def test_a_plan_that_takes_one_too_few_is_blocked() -> None:
    judged = Judged(max_records=4)
    report = judged.judge(taking(judged.plan, "0-4", 5))
    assert report.judgement == "blocked"
    assert failed(report) >= {"limits_records", "limits_beyond", "left"}


def test_bytes_that_do_not_fit_are_seen() -> None:
    judged = Judged(max_total_bytes=35)
    report = judged.judge(taking(judged.plan, "0-5", 6, "retention_bytes"))
    assert failed(report) >= {"limits_bytes", "limits_beyond"}


def test_a_reason_that_does_not_hold_is_seen() -> None:
    judged = Judged(max_records=4)
    assert "rows_justified" in failed(judged.judge(taking(judged.plan, "0-5", 6, "retention_bytes")))


@pytest.mark.parametrize(
    ("cells", "fails"),
    [
        ({"most_records": 5}, {"limits_records"}),
        ({"most_bytes": 36}, {"limits_bytes"}),
        ({"within": 1}, {"limits_within"}),
        ({"beyond": 6}, {"limits_beyond"}),
        ({"beyond": 8}, {"limits_beyond"}),
    ],
)
def test_each_figure_is_judged(cells: dict[str, int], fails: set[str]) -> None:
    judged = Judged(max_records=4, max_total_bytes=35)
    report = judged.judge(judged.plan, **cells)
    assert (report.judgement, failed(report)) == ("blocked", fails)


def test_nothing_kept_by_size_asks_a_person() -> None:
    """RET-3, DEL-2."""
    judged = Judged(max_total_bytes=9)
    report = judged.judge(judged.plan)
    assert report.judgement == "needs_approval"
    assert failed(report) == {"emptied", "tightened"}
    assert any("min_keep" in question for question in judged.plan.asks)


def test_min_keep_keeps_one_with_a_warning() -> None:
    judged = Judged(max_total_bytes=9, min_keep=1)
    assert failed(judged.judge(judged.plan)) == set()
    assert any("min_keep keeps" in warning for warning in judged.plan.warnings)


def test_without_limits_nothing_is_asked_of_them() -> None:
    judged = Judged(max_age_seconds=1)
    assert not any(check.id.startswith("limits") for check in judged.judge(judged.plan).checks)


def test_messages_of_unknown_time_are_told_of_where_an_age_is_set() -> None:
    """RET-2."""
    judged = Judged(max_age_seconds=1)
    new = [NewMessage(append_time=None, key=None, value=b"")]
    judged.world.writer.append(NAME, new, policy_of(judged.services, NAME))
    assert any(warning.startswith("max_age_seconds keeps messages of unknown append_time: up to 1") for warning in judged.plan.warnings)
