"""The topics that are due at `as_of`, found without a JVM and without reading unchanged tables.

A topic is due if, and only if, a plan made now would change something. A table that merely differs is not due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast, get_args

from message_lifecycle.app.changes import belongs_to_another, waits_for_person
from message_lifecycle.app.known import error_of_one_topic, holds_documents
from message_lifecycle.app.operations import registry
from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import readers_of, spared_state
from message_lifecycle.app.witness import require_intact
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.facts import READERS
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import DueState, Outcome, PlanSummary
from message_lifecycle.model.phrases import short
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import PlanState
from message_lifecycle.model.settings import Policy

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The answer for one topic, with its reason.

    Args:
        error: The topic could not be judged. Not being due is then no good news.
        waits: Messages are due, but a holder keeps them or another run works on them.
    """

    topic: TopicName
    due: bool
    reason: str
    error: LifecycleError | None = None
    waits: bool = False

    @property
    def is_settled(self) -> bool:
        """True if no message is due and none waits."""
        return not self.due and not self.waits and self.error is None


def due(
    s: Services,
    names: Iterable[TopicName],
    *,
    as_of: Instant,
    run: str | None = None,
    work: registry.Scheduled = "message_cleaner",
    named: bool = False,
) -> list[Due]:
    """Judge every topic that the operation applies to.

    Args:
        s: The stores, the ledger and the settings.
        names: The topics to judge.
        as_of: Judge ages at this instant.
        run: Open plans of this run are not rivals.
        work: The scheduled operation.
        named: A person named these topics.
    """
    operation, asked = registry.operation_named(work), DueContext(s, as_of=as_of, run=run, named=named)

    def one(name: TopicName) -> Due:
        require_intact(s, name)
        return operation.due(s, name, asked=asked)

    return _judge_each(s, operation.candidates(s, names, named=named), one)


def record_looks(s: Services, found: Iterable[Due], *, as_of: Instant, work: registry.Scheduled) -> None:
    """Record that a run has checked these topics, and which of them had nothing due or held (OBL-1)."""
    judged = {answer.topic: answer.is_settled for answer in found if answer.error is None}
    s.ledger.set_looks(registry.operation_named(work).name, judged, as_of=as_of)


def _judge_each(s: Services, names: Iterable[TopicName], one: Callable[[TopicName], Due]) -> list[Due]:
    """Judge each topic by itself, so that one failing topic hides no other."""
    found = []
    for name in names:
        try:
            found.append(one(name))
        except Exception as error:  # noqa: BLE001 - the barrier of one topic: a dropped table or a wrong setting must not stop the others
            topic_error = error_of_one_topic(s, name, error)
            found.append(Due(topic=name, due=False, reason=f"{topic_error.code}: {topic_error}", error=topic_error))
    return found


class DueContext:
    """The context of the due check of one run. Values about all topics are read once."""

    def __init__(self, s: Services, *, as_of: Instant, run: str | None, named: bool) -> None:
        self.as_of, self.named = as_of, named
        self._s, self._run, self._read = s, run, dict[object, object]()

    def cached(self, read: Callable[[Services], Found]) -> Found:
        """Return the result of `read`, which runs for the first topic only."""
        if read not in self._read:
            self._read[read] = read(self._s)
        return cast(Found, self._read[read])

    def question(self, name: TopicName) -> Due | None:
        """Return the answer for a topic whose plan waits for a person. None: no plan waits.

        A question ends when it lapses or settings change. The next plan then closes it.
        """
        question = self.cached(_waiting_plans).get(name)
        if question is None:
            return None
        if not waits_for_person(self._s, self._s.ledger.record(question.plan_id)):
            return None
        return Due(topic=name, due=False, reason=f"plan {short(question.plan_id)} is pending approval", waits=True)

    def due_unless_blocked(self, made: Plan, reason: str) -> Due:
        """Return that the plan makes the topic due, unless another run works on it or a person's refusal still counts."""
        rival = _plan_under_way(self._s, made.topic, self._run)
        if rival is not None:
            return Due(topic=made.topic, due=False, reason=f"another run works on it: plan {short(rival)}", waits=True)
        refused_until = _refused_until(self._s, made, self.as_of)
        if refused_until is not None:
            refused = f"a person refused it. The next request comes after {format_to_second(refused_until)}"
            return Due(topic=made.topic, due=False, reason=refused, waits=True)
        return Due(topic=made.topic, due=True, reason=reason)


def _waiting_plans(s: Services) -> dict[TopicName, PlanSummary]:
    return {plan.topic: plan for plan in s.ledger.waiting()}


def topics_of_messages(s: Services, names: Iterable[TopicName]) -> list[TopicName]:
    """Return the topics of messages. An unreadable topic stays in the list and is judged with the others."""
    return [name for name in names if holds_documents(s, name) is not True]


def _plan_under_way(s: Services, name: TopicName, run: str | None) -> str | None:
    """Return the plan that another run carries out now."""
    for plan in s.ledger.plans(name, limit=1):
        at_work = plan.state not in (PlanState.CLOSED, PlanState.ASKED)
        if at_work and belongs_to_another(s, plan.plan_id, plan.recorded_at, run):
            return plan.plan_id
    return None


def nothing_due_text(next_due_at: Instant | None) -> str:
    """Return why nothing is due."""
    if next_due_at is None:
        return "nothing due until something changes"
    return f"nothing due before {format_to_second(next_due_at)}"


def _parent_of(s: Services, outcome: Outcome) -> str | None:
    return None if outcome.plan_id is None else s.ledger.record(outcome.plan_id).plan.parent


def _refused_until(s: Services, made: Plan, as_of: Instant) -> Instant | None:
    """Return until when a person's refusal counts (`approval_ttl`). Otherwise every interval would ask the same question.

    Outcomes of other operations do not matter here.
    """
    for _, outcome in s.ledger.history(made.topic, limit=1, operations=(made.operation,)):
        until = Instant(outcome.as_of + Policy.from_values(made.policy).approval_ttl_us)
        if outcome.name == "refused" and as_of < until and _parent_of(s, outcome) == made.parent:
            return until
    return None


# The state that a check leaves for the next one: when the topic can be due again, and the holders of overdue messages.


def due_states(s: Services) -> Mapping[TopicName, DueState]:
    """Return the states that earlier runs recorded."""
    return s.ledger.due_states()


def note_due(s: Services, after: Plan, marker: str | None = None) -> None:
    """Record for the next check when this topic can be due again, and the holders of overdue messages."""
    more_now = after.as_of if after.changes or after.more else after.next_due_at
    s.ledger.set_due_state(
        after.topic,
        DueState(
            marker=marker or s.reader.marker(after.topic),
            policy_hash=after.requirements.policy_hash,
            next_due_at=more_now,
            holders=holders_of(s, after),
        ),
    )


def holders_of(s: Services, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the holders of overdue messages with their state now: consumers, legal holds, undone plans.

    A change of a state makes the topic due again.
    """
    readers = any(entry.holder in READERS for entry in plan.held)
    spared = any(entry.holder in get_args(SparedBy) for entry in plan.held)
    return _state(s, plan.topic, readers=readers, spared=spared)


def have_changed(s: Services, name: TopicName, holders: tuple[tuple[str, str], ...]) -> bool:
    """Return True if the state of a recorded holder has changed."""
    if not holders:
        return False
    spared = [":" in held for held, _ in holders]
    return _state(s, name, readers=not all(spared), spared=any(spared)) != holders


def _state(s: Services, name: TopicName, *, readers: bool, spared: bool) -> tuple[tuple[str, str], ...]:
    return (*(consumer_state(s, name) if readers else ()), *(spared_state(s, name) if spared else ()))


def consumer_state(s: Services, name: TopicName) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((f"{p.consumer}/{p.partition}", str(p.offset)) for p in readers_of(s, name)))
