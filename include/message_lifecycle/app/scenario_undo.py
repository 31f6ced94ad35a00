"""What a scenario's `run` is made for, where it may take back what an earlier step did."""

from __future__ import annotations

from collections.abc import Mapping

from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario_file import RunStep
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.request import UndoPlan


def work_of(step: RunStep, plans: Mapping[int, str]) -> Work:
    """`plans`: the plan that each step made, by its index. Raises InvalidScenario."""
    assert step.operation != "erasure", "`scenario_erasure` has been asked before"
    if step.operation != "undo":
        if step.step is not None:
            raise InvalidScenario("run.step", step.step, "a step for the operation undo alone")
        return step.operation
    if step.step is None or step.step not in plans:
        made = ", ".join(str(index) for index in sorted(plans)) or "none yet"
        raise InvalidScenario("run.step", step.step, f"the index of a step before that made a plan: {made}")
    return UndoPlan(plan_id=plans[step.step])
