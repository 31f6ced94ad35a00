"""A plan's life is one table: every state and event against the ledger, every state and verb on the memory store, and the docs' picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services
from message_lifecycle.ledger import Ledger
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.outcome import Approval, Check, GateReport, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import LIFE, NEEDS, PLANNING, Decision, Event, OpenPlanSituation, Planner, PlanState
from tests.errors import raises
from tests.ledgers import approval_of, outcome_of, plan_of, report_of, staged_of
from tests.logs import AS_OF
from tests.unit.test_steps_again import NAME, BlockingGate, Killed, append, one, with_log, world

PAGE = Path(__file__).parents[2] / "docs" / "plan-states.md"
PLANNED, STAGED, PASSED, ASKED, BLOCKED, APPROVED, REFUSED, PUBLISHING, CLOSED = PlanState
UNANSWERED = (STAGED, PASSED, ASKED, BLOCKED)
each_state = pytest.mark.parametrize("state", PlanState)


def blocked_report(plan: Plan) -> GateReport:
    broken = Check(id="rule", says="a rule", kind="rule", evaluated=True, passed=False, found="broken")
    return replace(report_of(plan), checks=(broken, *report_of(plan).checks[1:]))


def other(report: GateReport) -> GateReport:
    return replace(report, figures=(("rows", 2),))


def in_state(ledger: Ledger, state: PlanState) -> Plan:
    """A plan that the ledger has in this state."""
    plan = plan_of()
    ledger.add_plan(plan)
    staged, asks = staged_of(plan), state in (ASKED, APPROVED, REFUSED)
    report = blocked_report(plan) if state is BLOCKED else report_of(plan, asks=asks)
    if state is not PLANNED:
        ledger.record_staged(staged)
    if state not in (PLANNED, STAGED):
        ledger.record_report(staged, report)
    if state in (APPROVED, REFUSED):
        ledger.record_approval(approval_of(plan, granted=state is APPROVED))
    if state in (PUBLISHING, CLOSED):
        ledger.record_publishing(staged, report)
    if state is CLOSED:
        ledger.record_outcome(outcome_of(plan))
    assert ledger.record(plan.plan_id).state is state
    return plan


def enter(ledger: Ledger, plan: Plan, event: Event) -> object:
    """Write the event into the ledger."""
    record, staged = ledger.record(plan.plan_id), staged_of(plan)
    judged = {Event.PASS: report_of(plan), Event.ASK: report_of(plan, asks=True), Event.BLOCK: blocked_report(plan)}
    match event:
        case Event.STAGE:
            return ledger.record_staged(replace(staged, branch="of another run"))
        case Event.PASS | Event.ASK | Event.BLOCK:
            return ledger.record_report(staged, other(judged[event]))
        case Event.GRANT | Event.REFUSE:
            return ledger.record_approval(approval_of(plan, granted=event is Event.GRANT, by="eve"))
        case Event.PUBLISH:
            return ledger.record_publishing(record.staged or staged, record.report or report_of(plan))
        case _:
            return ledger.record_outcome(outcome_of(plan, "published" if event is Event.VERIFY else "superseded"))


@each_state
@pytest.mark.parametrize("event", Event)
def test_the_ledger_moves_a_plan_as_the_table_says(ledger: Ledger, state: PlanState, event: Event) -> None:  # DEL-1 to DEL-5
    plan = in_state(ledger, state)
    if state is CLOSED and event in (Event.VERIFY, Event.END):
        assert enter(ledger, plan, event) == outcome_of(plan), "the first outcome stands"
    elif state in LIFE[event]:
        enter(ledger, plan, event)
        assert ledger.record(plan.plan_id).state is LIFE[event][state]
    else:
        answered = state.is_answered and event in (Event.GRANT, Event.REFUSE)
        with raises("AlreadyAnswered" if answered else "NotReady") as error:
            enter(ledger, plan, event)
        assert answered or str(error.value).endswith(f"This step needs {NEEDS[event][state not in (PLANNED, CLOSED)]}.")
        assert ledger.record(plan.plan_id).state is state


def test_every_state_is_reached_and_the_last_one_is_not_left() -> None:
    assert LIFE.keys() == NEEDS.keys() == set(Event)
    assert {after for row in LIFE.values() for after in row.values()} == set(PlanState) - {PLANNED}
    assert {state for row in LIFE.values() for state in row} == set(PlanState) - {CLOSED}


def test_every_open_plan_has_its_decision() -> None:
    """Files that are gone make a difference to the same work alone: for other work the plan stands as if they were there."""
    assert {(stands, planner) for stands in OpenPlanSituation for planner in Planner} - {
        (stands, planner) for stands, row in PLANNING.items() for planner in row
    } == {(OpenPlanSituation.BEGUN, Planner.OTHER_WORK), (OpenPlanSituation.BEGUN, Planner.YIELDING_WORK)}
    assert {decision for row in PLANNING.values() for decision in row.values()} == set(Decision)


# The verbs, on the memory store.


class PassingGate:
    """Passes, with another report each time."""

    reports = count()

    def judge(self, plan: Plan, staged: Staged, *_: object) -> GateReport:
        check = Check(id="held", says="no hold", kind="rule", evaluated=True, passed=True, found=f"look {next(self.reports)}")
        return GateReport(plan_id=plan.plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(check,), figures=())


def die(*_: object, **__: object) -> None:
    raise Killed


def brought_to(state: PlanState, monkeypatch: pytest.MonkeyPatch) -> tuple[World, str]:
    """A log with a plan that runs, some of which died, have brought to this state."""
    w = world(message_expiry=1, max_removed_fraction=0.1 if state in (ASKED, APPROVED, REFUSED) else 1.0)
    append(w, one(1, segment=0), one(99, segment=1), one(100, segment=1))
    s = w.services
    plan_id = steps.plan(s, NAME, as_of=AS_OF).plan.plan_id
    if state is not PLANNED:
        steps.stage(s, plan_id)
    with monkeypatch.context() as dying:
        dying.setattr(steps, "close", die)
        if state is BLOCKED:
            with pytest.raises(Killed):
                steps.gate(replace(s, gate=BlockingGate()), plan_id)
        elif state not in (PLANNED, STAGED):
            steps.gate(s, plan_id)
        if state is REFUSED:
            with pytest.raises(Killed):
                steps.approve(s, plan_id, granted=False, by="ada", text="no")
    if state is APPROVED:
        steps.approve(s, plan_id, granted=True, by="ada", text="yes")
    if state is PUBLISHING:
        with pytest.raises(Killed):
            steps.publish(with_log(s, "publish", die), plan_id)
    if state is CLOSED:
        steps.publish(s, plan_id)
        steps.verify(s, plan_id)
    assert s.ledger.record(plan_id).state is state
    return w, plan_id


def answer(granted: bool) -> Callable[[Services, str], Approval]:
    return lambda s, plan_id: steps.approve(s, plan_id, granted=granted, by="eve", text="seen")


VERBS: dict[str, tuple[Callable[[Services, str], Any], Event, dict[PlanState, PlanState]]] = {
    "stage": (steps.stage, Event.STAGE, {PLANNED: STAGED, **{state: state for state in PlanState if state not in (PLANNED, CLOSED)}}),
    "mark": (steps.mark, Event.PASS, {state: state for state in PlanState if state not in (PLANNED, CLOSED)}),
    "gate": (lambda s, plan_id: steps.gate(replace(s, gate=PassingGate()), plan_id), Event.PASS, dict.fromkeys(UNANSWERED, PASSED)),
    "approve": (answer(True), Event.GRANT, {ASKED: APPROVED}),
    "refuse": (answer(False), Event.REFUSE, dict.fromkeys((state for state in PlanState if state not in (REFUSED, CLOSED)), CLOSED)),
    "publish": (
        steps.publish,
        Event.PUBLISH,
        {
            **dict.fromkeys((PASSED, APPROVED, PUBLISHING), PUBLISHING),
            **dict.fromkeys((BLOCKED, REFUSED, CLOSED), CLOSED),
            ASKED: ASKED,
        },
    ),
    "verify": (steps.verify, Event.VERIFY, {CLOSED: CLOSED}),
    "close": (
        lambda s, plan_id: steps.close(s, s.ledger.record(plan_id).plan, "superseded", "given up"),
        Event.END,
        dict.fromkeys(PlanState, CLOSED),
    ),
}
"""Each verb, the event that its errors are about, and the state after it; no state: an error. The same stage again is no event. Nothing is
committed before, so `verify` has nothing to verify."""


@each_state
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_in_any_state_does_what_the_table_says(monkeypatch: pytest.MonkeyPatch, state: PlanState, verb: str) -> None:
    w, plan_id = brought_to(state, monkeypatch)
    call, event, after = VERBS[verb]
    if state in after:
        call(w.services, plan_id)
        assert w.services.ledger.record(plan_id).state is after[state]
        return
    with pytest.raises(LifecycleError) as error:
        call(w.services, plan_id)
    if error.value.code == "AlreadyAnswered":
        assert state.is_answered and verb in ("approve", "refuse")
    else:
        assert error.value.code == "NotReady"
        assert str(error.value).endswith(f"This step needs {NEEDS[event][state not in (PLANNED, CLOSED)]}.")
    assert w.services.ledger.record(plan_id).state is state


# The picture.


def picture() -> str:
    """Return `LIFE` as the page shows it, without the arrows for another stage or report and for an end without a result."""
    moves: dict[tuple[PlanState, PlanState], list[str]] = {}
    for event, row in LIFE.items():
        for state, after in row.items():
            again = after in (STAGED, PASSED, ASKED, BLOCKED) and state in (PASSED, ASKED, BLOCKED)
            if event is not Event.END and not again and state is not after:
                moves.setdefault((state, after), []).append(event.value)
    arrows = [f"    {state} --> {after}: {', '.join(events)}" for (state, after), events in moves.items()]
    return "\n".join(
        ["```mermaid", "stateDiagram-v2", "    accTitle: The states of a plan", "    [*] --> planned", *arrows, "    closed --> [*]", "```"]
    )


def planning_table() -> str:
    """Return `PLANNING` as the page shows it."""
    heads = ["the open plan", *Planner]
    rows = [[stands.value, *(row[planner].value if planner in row else "-" for planner in Planner)] for stands, row in PLANNING.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


@pytest.mark.parametrize("shown", [picture, planning_table])
def test_the_page_shows_the_tables(shown: Callable[[], str]) -> None:
    assert f"\n{shown()}\n" in PAGE.read_text(encoding="utf-8"), f"docs/plan-states.md lacks:\n{shown()}"
