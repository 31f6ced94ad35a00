"""Who judges in tests that are about something else than the gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.gates.runner import _local
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.outcome import GateReport, Staged
from message_lifecycle.model.plan import Plan


class PlainGateOfTables:
    """The plain gate over frames of tables.

    `tests/spark/test_gate_great_expectations.py` holds Great Expectations to its judgement, and Great Expectations judges the scenarios on
    tables. Elsewhere Great Expectations would be half of a test's time."""

    def judge(self, plan: Plan, staged: Staged, suite: Suite, evidence: Mapping[str, object]) -> GateReport:
        rows = {name: None if (frame := _local(found)) is None else frame.to_pylist() for name, found in evidence.items()}
        return PlainGate().judge(plan, staged, suite, cast(Any, rows))
