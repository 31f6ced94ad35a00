"""The life of a plan as one state machine (DEL-1 to DEL-5).

`LIFE` maps each event and state to the next state. The ledger writes by `LIFE`, and the verbs in `app/steps.py` read it. `PLANNING` decides
about a topic's open plan when a run plans again. docs/plan-states.md shows both, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from message_lifecycle.model.errors import NotReady


class PlanState(StrEnum):
    """The progress of a plan, by the records of the ledger."""

    PLANNED = "planned"
    STAGED = "staged"
    PASSED = "passed"
    ASKED = "asked"
    BLOCKED = "blocked"
    APPROVED = "approved"
    REFUSED = "refused"
    PUBLISHING = "publishing"
    CLOSED = "closed"

    @property
    def word(self) -> str:
        """The state in the ledger's tables, commands and pages, which show the judgement and the answer next to it."""
        return "gated" if self in _GATED else self.value

    @property
    def is_answered(self) -> bool:
        return self in (PlanState.APPROVED, PlanState.REFUSED)


class Event(StrEnum):
    """An entry in the ledger about a plan."""

    STAGE = "another change is staged"
    PASS = "the gate passes"
    ASK = "the gate asks"
    BLOCK = "the gate blocks"
    GRANT = "a person approves"
    REFUSE = "a person refuses"
    PUBLISH = "a commit begins"
    VERIFY = "the result is verified"
    END = "it ends without a result"


_GATED: Final = (PlanState.PASSED, PlanState.ASKED, PlanState.BLOCKED, PlanState.APPROVED, PlanState.REFUSED)
_UNANSWERED: Final = (PlanState.STAGED, PlanState.PASSED, PlanState.ASKED, PlanState.BLOCKED)

LIFE: Final[Mapping[Event, Mapping[PlanState, PlanState]]] = {
    Event.STAGE: dict.fromkeys((PlanState.PLANNED, *_UNANSWERED), PlanState.STAGED),
    Event.PASS: dict.fromkeys(_UNANSWERED, PlanState.PASSED),
    Event.ASK: dict.fromkeys(_UNANSWERED, PlanState.ASKED),
    Event.BLOCK: dict.fromkeys(_UNANSWERED, PlanState.BLOCKED),
    Event.GRANT: {PlanState.ASKED: PlanState.APPROVED},
    Event.REFUSE: {PlanState.ASKED: PlanState.REFUSED},
    Event.PUBLISH: dict.fromkeys((PlanState.PASSED, PlanState.APPROVED, PlanState.PUBLISHING), PlanState.PUBLISHING),
    Event.VERIFY: dict.fromkeys((*_GATED, PlanState.PUBLISHING), PlanState.CLOSED),
    Event.END: dict.fromkeys((PlanState.PLANNED, PlanState.STAGED, *_GATED, PlanState.PUBLISHING), PlanState.CLOSED),
}
"""The state after each event. An event without an entry for a state is not allowed there. `NEEDS` has the requirement."""

_JUDGE: Final = ("a staged, open plan", "a staged plan without an answer")
NEEDS: Final[Mapping[Event, tuple[str, str]]] = {
    Event.STAGE: ("an open plan", "the staged change that was judged"),
    Event.PASS: _JUDGE,
    Event.ASK: _JUDGE,
    Event.BLOCK: _JUDGE,
    Event.GRANT: ("a plan that waits for a person",) * 2,
    Event.REFUSE: ("a plan that waits for a person",) * 2,
    Event.PUBLISH: ("a plan that the gate has judged",) * 2,
    Event.VERIFY: ("a plan that was judged and published",) * 2,
    Event.END: ("an open plan",) * 2,
}
"""The words of an error about an event that is not allowed: first for a plan that is closed or has no stage, then for any other plan."""


def state_of(word: str, judgement: str | None, granted: bool | None) -> PlanState:
    """Return the state by the ledger's columns. `granted`: a person's answer; None: there is no answer yet."""
    if word != "gated":
        return PlanState(word)
    if judgement == "needs_approval":
        return {None: PlanState.ASKED, True: PlanState.APPROVED, False: PlanState.REFUSED}[granted]
    return PlanState.PASSED if judgement == "passed" else PlanState.BLOCKED


def event_of_judgement(judgement: str) -> Event:
    """Return the event of a gate's report."""
    return {"passed": Event.PASS, "needs_approval": Event.ASK, "blocked": Event.BLOCK}[judgement]


def allows_event(state: PlanState, event: Event) -> bool:
    return state in LIFE[event]


def next_state(plan_id: str, state: PlanState, event: Event, *, ended: str | None = None) -> PlanState:
    """Return the state after the event. Raises NotReady if the event is not allowed in this state."""
    if not allows_event(state, event):
        raise not_ready(plan_id, state, event, ended=ended)
    return LIFE[event][state]


def not_ready(plan_id: str, state: PlanState, event: Event, *, ended: str | None = None) -> NotReady:
    """Return the error of an event that is not allowed. `ended`: how a closed plan has ended."""
    found = f"{state.word} and answered" if state.is_answered else (ended or state.word)
    early, late = NEEDS[event]
    return NotReady(plan_id, found, early if state in (PlanState.PLANNED, PlanState.CLOSED) else late)


class OpenPlanSituation(StrEnum):
    """The situation of an open plan when a run plans for its topic again. The ledger, the clock, the settings and the tables decide it."""

    COMMITTED = "it has all of its commits, but verify has not run"
    HALF_ANSWERED = "it has some of its commits, and a question or an answer"
    HALF = "it has some of its commits, and no question"
    BEGUN = "it has removed some of its files"
    ASKS = "it waits for a person, or has the answer"
    ASKS_LATELY = "it waits for a person, or has the answer; another run made it less than an hour ago"
    VOID = "its question has lapsed, or settings have changed"
    UNDER_WAY = "another run works on it"
    RECENT = "a run of the last hour may work on it, but a person plans by hand"
    FREE = "no run works on it"

    @property
    def is_question(self) -> bool:
        """True if a person may still answer, or the answer still counts."""
        return self in (OpenPlanSituation.ASKS, OpenPlanSituation.ASKS_LATELY)


class Planner(StrEnum):
    """The work that is planned now, against the open plan's."""

    SAME_INTERVAL = "the same work and interval"
    SAME_WORK = "the same work"
    OTHER_WORK = "other work"
    YIELDING_WORK = "other work that waits for open questions"


class Decision(StrEnum):
    """The decision about the open plan."""

    KEEP = "the open plan continues"
    VERIFY = "verify runs first"
    FINISH = "the run finishes it first"
    REFUSE = "nothing is planned (`OpenPlan`)"
    BESIDE = "an empty new plan closes next to it; any other new plan is refused"
    REPLACE_OR_BESIDE = "an empty new plan closes next to it; any other new plan replaces it"
    REPLACE = "the new plan replaces it"


def _decisions(*row: Decision) -> dict[Planner, Decision]:
    return dict(zip(Planner, row, strict=True))


PLANNING: Final[Mapping[OpenPlanSituation, Mapping[Planner, Decision]]] = {
    OpenPlanSituation.COMMITTED: dict.fromkeys(Planner, Decision.VERIFY),
    OpenPlanSituation.HALF_ANSWERED: _decisions(Decision.KEEP, Decision.KEEP, Decision.FINISH, Decision.FINISH),
    OpenPlanSituation.HALF: _decisions(Decision.KEEP, Decision.FINISH, Decision.FINISH, Decision.FINISH),
    OpenPlanSituation.BEGUN: dict.fromkeys((Planner.SAME_INTERVAL, Planner.SAME_WORK), Decision.KEEP),
    OpenPlanSituation.ASKS: _decisions(Decision.KEEP, Decision.KEEP, Decision.REPLACE_OR_BESIDE, Decision.REFUSE),
    OpenPlanSituation.ASKS_LATELY: _decisions(Decision.KEEP, Decision.KEEP, Decision.BESIDE, Decision.REFUSE),
    OpenPlanSituation.VOID: dict.fromkeys(Planner, Decision.REPLACE),
    OpenPlanSituation.UNDER_WAY: dict.fromkeys(Planner, Decision.REFUSE),
    OpenPlanSituation.RECENT: _decisions(Decision.REPLACE, Decision.REPLACE, Decision.REPLACE_OR_BESIDE, Decision.REPLACE_OR_BESIDE),
    OpenPlanSituation.FREE: dict.fromkeys(Planner, Decision.REPLACE),
}
"""The decision about an open plan, by its standing and by the new work. Other work ignores files that are gone."""
