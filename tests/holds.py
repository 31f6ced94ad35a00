"""Legal holds for tests, and the helper that shows that one survives a path.

A new operation that removes rows gets a path in `tests/contract/test_holds.py`. `run_with_hold` places the hold before the plan, or at any
step of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from message_lifecycle.app import steps
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.hold import HeldRange, HeldTopic, Hold, What, held_key
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome

When = Literal["before", "planned", "staged", "judged"]
WHENS: tuple[When, ...] = ("before", "planned", "staged", "judged")
"""When the hold is placed: before the plan, or after that step of the run."""


def hold_of(topic: TopicName, what: What | None = None, *, hold_id: str = "0123456789abcdef", at: int = 1) -> Hold:
    found = HeldTopic() if what is None else what
    return Hold(hold_id=hold_id, topic=topic, what=found, placed_by="ada", why="case 7", placed_at=Instant(at))


def held(
    s: Services, name: TopicName, *, key: bytes | None = None, offsets: tuple[int, int | None] | None = None, partition: int = 0
) -> Hold:
    """Place a hold, as the user ada."""
    span = None if offsets is None else HeldRange(partition=partition, first=offsets[0], last=offsets[1])
    return place_hold(s, name, by="ada", why="case 7", key=key, offsets=span)


def run_with_hold(s: Services, name: TopicName, work: Work, *, as_of: Instant, when: When, place: Callable[[], object]) -> Outcome:
    """Run the work to its end, with a hold placed before or in the middle of it. If the hold forces a new plan, plan again.

    Raises the errors of planning, for example HeldByLegalHold."""

    def word(_plan: object, _report: object) -> tuple[bool, str, str]:
        return True, "tester", "as expected"

    if when == "before":
        place()
        return steps.run(s, name, as_of=as_of, work=work, approver=word)
    plan_id = steps.plan(s, name, as_of=as_of, work=work).plan.plan_id
    if when == "planned":
        place()
    steps.stage(s, plan_id)
    steps.mark(s, plan_id)
    if when == "staged":
        place()
    try:
        if steps.gate(s, plan_id).judgement == "needs_approval":
            steps.approve(s, plan_id, granted=True, by="tester", text="as expected")
        if when == "judged":
            place()
        steps.publish(s, plan_id)
    except PlanConflict as conflict:
        assert "legal hold" in conflict.reason, conflict
        steps.close(s, s.ledger.record(plan_id).plan, "superseded", conflict.reason)
        return steps.run(s, name, as_of=as_of, work=work, approver=word)
    raise AssertionError("a plan was published that does not know the hold")


def digest_of(hold_id: str, key: bytes) -> str:
    return held_key(hold_id, key).digest
