"""Which topics have something to do at `as_of`: without a JVM, and without reading what has not changed.

A topic is due iff a plan made now would change something: a table that merely differs is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast, get_args

from message_lifecycle.app.changes import belongs_to_another, waits
from message_lifecycle.app.known import holds_documents, of_it_alone
from message_lifecycle.app.operations import registry
from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import readers_of, spared_state
from message_lifecycle.app.witness import require_intact
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.facts import READERS
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import DueState, Outcome, PlanSummary
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import PlanState
from message_lifecycle.model.settings import Policy

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """One topic's answer, with the reason in words. `error`: it could not be judged; not being due is then no good news.

    `waits`: something is due, and somebody keeps it or works on it."""

    topic: TopicName
    due: bool
    reason: str
    error: LifecycleError | None = None
    waits: bool = False

    @property
    def settled(self) -> bool:
        """Nothing is due, and nothing waits."""
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
    """Judge every topic that the operation is for. `run`: whose own open plans are no rival's. `named`: a person named these topics."""
    operation, asked = registry.named(work), Asked(s, as_of=as_of, run=run, named=named)

    def one(name: TopicName) -> Due:
        require_intact(s, name)
        return operation.due(s, name, asked=asked)

    return _judge_each(s, operation.candidates(s, names, named=named), one)


def note_looks(s: Services, found: Iterable[Due], *, as_of: Instant, work: registry.Scheduled) -> None:
    """Keep that a run has looked at these topics, and where it found nothing due and nothing held (OBL-1)."""
    judged = {answer.topic: answer.settled for answer in found if answer.error is None}
    s.ledger.set_looks(registry.named(work).name, judged, as_of=as_of)


def _judge_each(s: Services, names: Iterable[TopicName], one: Callable[[TopicName], Due]) -> list[Due]:
    """Each topic by itself: one that cannot be judged hides no other."""
    found = []
    for name in names:
        try:
            found.append(one(name))
        except Exception as error:  # noqa: BLE001 - the barrier of one topic: dropped since it was listed, a wrong setting: no other topic's affair
            told = of_it_alone(s, name, error)
            found.append(Due(topic=name, due=False, reason=f"{told.code}: {told}", error=told))
    return found


class Asked:
    """What is asked about all topics of a run. What is told about each of them is read once."""

    def __init__(self, s: Services, *, as_of: Instant, run: str | None, named: bool) -> None:
        self.as_of, self.named = as_of, named
        self._s, self._run, self._read = s, run, dict[object, object]()

    def once(self, read: Callable[[Services], Found]) -> Found:
        """What `read` finds, asked for with the first topic alone."""
        if read not in self._read:
            self._read[read] = read(self._s)
        return cast(Found, self._read[read])

    def question(self, name: TopicName) -> Due | None:
        """That a plan of the topic waits for a person. Nobody is asked any more once a question has lapsed, or settings were changed; the next
        plan closes it."""
        question = self.once(_waiting).get(name)
        if question is None:
            return None
        if not waits(self._s, self._s.ledger.record(question.plan_id)):
            return None
        return Due(topic=name, due=False, reason=f"plan {question.plan_id} waits for a person's approval", waits=True)

    def unless_hindered(self, made: Plan, reason: str) -> Due:
        """The topic is due by this plan, unless another run works on it, or a person's refusal of such a plan still stands."""
        rival = _under_way(self._s, made.topic, self._run)
        if rival is not None:
            return Due(topic=made.topic, due=False, reason=f"another run works on it: plan {rival}", waits=True)
        refused_until = _refused_until(self._s, made, self.as_of)
        if refused_until is not None:
            refused = f"a person refused; asked again after {format_instant(refused_until)}"
            return Due(topic=made.topic, due=False, reason=refused, waits=True)
        return Due(topic=made.topic, due=True, reason=reason)


def _waiting(s: Services) -> dict[TopicName, PlanSummary]:
    return {plan.topic: plan for plan in s.ledger.waiting()}


def of_messages(s: Services, names: Iterable[TopicName]) -> list[TopicName]:
    """Without the topics of documents, which other operations leave alone; one that cannot be looked at is judged with the others."""
    return [name for name in names if holds_documents(s, name) is not True]


def _under_way(s: Services, name: TopicName, run: str | None) -> str | None:
    """The plan that another run is carrying out now."""
    for plan in s.ledger.plans(name, limit=1):
        at_work = plan.state not in (PlanState.CLOSED, PlanState.ASKED)
        if at_work and belongs_to_another(s, plan.plan_id, plan.recorded_at, run):
            return plan.plan_id
    return None


def not_before(next_due_at: Instant | None) -> str:
    """Why nothing is due, in words."""
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


# What a look at a topic leaves for the next one: when it can have something to remove, and who holds what is overdue.


def due_states(s: Services) -> Mapping[TopicName, DueState]:
    """What all earlier looks have left."""
    return s.ledger.due_states()


def note_due(s: Services, after: Plan, marker: str | None = None) -> None:
    """Keep for the next look when this topic can have something to remove, and who holds what is overdue now."""
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
    """Consumers that hold overdue messages, with their progress now, legal holds and undone plans: a change of it makes the topic due again."""
    readers = any(entry.holder in READERS for entry in plan.held)
    spared = any(entry.holder in get_args(SparedBy) for entry in plan.held)
    return _state(s, plan.topic, readers=readers, spared=spared)


def have_changed(s: Services, name: TopicName, holders: tuple[tuple[str, str], ...]) -> bool:
    """Whether the holders of that time hold otherwise now, or not at all."""
    if not holders:
        return False
    spared = [":" in held for held, _ in holders]
    return _state(s, name, readers=not all(spared), spared=any(spared)) != holders


def _state(s: Services, name: TopicName, *, readers: bool, spared: bool) -> tuple[tuple[str, str], ...]:
    return (*(consumer_state(s, name) if readers else ()), *(spared_state(s, name) if spared else ()))


def consumer_state(s: Services, name: TopicName) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((f"{p.consumer}/{p.partition}", str(p.offset)) for p in readers_of(s, name)))
