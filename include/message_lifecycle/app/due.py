"""Which topics have something to remove at `as_of`: without a JVM, and without reading what has not changed.

A topic is looked at closely only when its remembered instant has come, or its table, its settings or a consumer that holds
overdue messages has changed. It is due iff a plan made now would remove something: a table that merely differs is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from message_lifecycle.app.due_state import have_changed, note_due
from message_lifecycle.app.open_plans import belongs_to_another
from message_lifecycle.app.previews import preview
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.errors import BackendUnavailable, LifecycleError, Unavailable, UnknownTopic
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import DueState, PlanSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """One topic's answer, with the reason in words. `error`: it could not be judged; not being due is then no good news."""

    topic: TopicName
    due: bool
    reason: str
    error: LifecycleError | None = None


def due(
    s: Services,
    names: Iterable[TopicName],
    *,
    as_of: Instant,
    run: str | None = None,
    work: Literal["message_cleaner", "retention"] = "message_cleaner",
) -> list[Due]:
    """Judge every topic; remembers what was learnt, so that the next look is cheaper. `run`: whose own open plans are no rival's.

    What is remembered is of the cleaner: for `retention` alone each topic is looked at anew."""
    questions = Questions(s)
    if work == "retention":
        return judge_each(of_messages(s, names), lambda name: _beyond_limits(s, name, questions.about(name), as_of, run))
    states = s.ledger.due_states()
    return judge_each(of_messages(s, names), lambda name: _one(s, name, states.get(name), questions.about(name), as_of, run))


def of_messages(s: Services, names: Iterable[TopicName]) -> list[TopicName]:
    """Without the topics of documents, which other operations leave alone; one that cannot be looked at is judged with the others."""
    return [name for name in names if not _holds_documents(s, name)]


def _holds_documents(s: Services, name: TopicName) -> bool:
    try:
        return "fold" in s.topics.describe(name).settings
    except BackendUnavailable:
        return False
    except Unavailable:
        raise
    except LifecycleError:
        return False


def judge_each(names: Iterable[TopicName], one: Callable[[TopicName], Due]) -> list[Due]:
    """Each topic by itself: one that cannot be judged hides no other."""
    found = []
    for name in names:
        try:
            found.append(one(name))
        except BackendUnavailable as error:  # one backend that is away is no reason to leave the others
            found.append(Due(topic=name, due=False, reason=str(error), error=error))
        except Unavailable:
            raise
        except LifecycleError as error:  # dropped since it was listed, a wrong setting: no other topic's affair
            found.append(Due(topic=name, due=False, reason=f"{type(error).__name__}: {error}", error=error))
    return found


def _one(
    s: Services,
    name: TopicName,
    state: DueState | None,
    question: str | None,
    as_of: Instant,
    run: str | None,
) -> Due:
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    s.ledger.check(name, s.topics.describe(name).ledger)
    marker = s.reader.marker(name)
    if state is not None and not _changed(s, name, state, marker) and not _reached(state, as_of):
        return Due(topic=name, due=False, reason=_not_before(state.next_due_at))
    made = preview(s, name, as_of=as_of)
    if made.is_empty:
        note_due(s, made, marker)
        return Due(topic=name, due=False, reason=_not_before(made.next_due_at))
    return due_unless_hindered(
        s, made, f"{made.expected.removed_rows} messages in {made.expected.segments} segments can go", as_of=as_of, run=run
    )


def _beyond_limits(s: Services, name: TopicName, question: str | None, as_of: Instant, run: str | None) -> Due:
    """Whether anything lies beyond the topic's limits by age, number and size (RET-5)."""
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    s.ledger.check(name, s.topics.describe(name).ledger)
    made = preview(s, name, as_of=as_of, work="retention")
    if made.is_empty:
        return Due(topic=name, due=False, reason=_not_before(made.next_due_at))
    reason = f"{made.expected.removed_rows} messages lie beyond its limits"
    return due_unless_hindered(s, made, reason, as_of=as_of, run=run)


class Questions:
    """Plans that wait for a person, read once for all topics."""

    def __init__(self, s: Services) -> None:
        self._s, self._now = s, s.ledger.now()
        self._waiting = {plan.topic: plan for plan in s.ledger.waiting()}

    def about(self, name: TopicName) -> str | None:
        """That a plan of the topic waits, in words. Nobody is asked any more once a question has lapsed; the next plan closes it."""
        question = self._waiting.get(name)
        if question is None:
            return None
        asked_at = question.reported_at or question.recorded_at
        if self._now > asked_at + self._policy_of(question).approval_ttl_us:
            return None
        return f"plan {question.plan_id} waits for a person's approval"

    def _policy_of(self, question: PlanSummary) -> Policy:
        try:
            return policy_of(self._s, question.topic)
        except UnknownTopic:  # it is about a deleted topic, and has its settings
            return Policy.of_values(self._s.ledger.record(question.plan_id).plan.policy)


def due_unless_hindered(s: Services, made: Plan, reason: str, *, as_of: Instant, run: str | None) -> Due:
    """The topic is due by this plan, unless another run works on it, or a person's refusal of such a plan still stands."""
    name = made.topic
    rival = _under_way(s, name, run)
    if rival is not None:
        return Due(topic=name, due=False, reason=f"another run works on it: plan {rival}")
    refused_until = _refused_until(s, made, as_of)
    if refused_until is not None:
        return Due(topic=name, due=False, reason=f"a person refused; asked again after {format_instant(refused_until)}")
    return Due(topic=name, due=True, reason=reason)


def _under_way(s: Services, name: TopicName, run: str | None) -> str | None:
    """The plan that another run is carrying out now."""
    for plan in s.ledger.plans(name, limit=1):
        asks = plan.judgement == "needs_approval" and plan.approval is None
        if plan.state != "closed" and not asks and belongs_to_another(s, plan.plan_id, plan.recorded_at, run):
            return plan.plan_id
    return None


def _changed(s: Services, name: TopicName, state: DueState, marker: str) -> bool:
    if state.marker != marker or policy_of(s, name).hash != state.policy_hash:
        return True
    return have_changed(s, name, state.holders)


def _reached(state: DueState, as_of: Instant) -> bool:
    return state.next_due_at is not None and as_of >= state.next_due_at


def _not_before(next_due_at: Instant | None) -> str:
    if next_due_at is None:
        return "nothing can go before something changes"
    return f"nothing can go before {format_instant(next_due_at)}"


def _parent_of(s: Services, outcome: Outcome) -> str | None:
    return None if outcome.plan_id is None else s.ledger.record(outcome.plan_id).plan.parent


def _refused_until(s: Services, made: Plan, as_of: Instant) -> Instant | None:
    """A refusal stands for `approval_ttl`, or the same question would come back with every interval; what other operations have come
    to meanwhile is no answer to it."""
    for _, outcome in s.ledger.history(made.topic, limit=1, operations=(made.operation,)):
        until = Instant(outcome.as_of + Policy.of_values(made.policy).approval_ttl_us)
        if outcome.name == "refused" and as_of < until and _parent_of(s, outcome) == made.parent:
            return until
    return None
