"""The obligations of each topic and their delays (OBL-1), computed only from facts, the ledger and the time.

`status`, `topic describe`, the pages and the metrics show the same value.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import cast

from message_lifecycle.app import refused
from message_lifecycle.app.changes import waits_for_person, why_outdated
from message_lifecycle.app.erasures import newest_ended_outcome
from message_lifecycle.app.holds import holds_of
from message_lifecycle.app.known import error_of_one_topic
from message_lifecycle.app.operations.registry import OPERATIONS, Operation, Scheduled, operation_named, operation_of_plan
from message_lifecycle.app.operations.topics import policy_of_deleted, undo_until
from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.errors import LifecycleError, internal_error
from message_lifecycle.model.instants import Instant, format_to_second, seconds
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import OF_TOPIC, Look, Obligation, Owed, judge
from message_lifecycle.model.outcome import Outcome, OutcomeName, PlanSummary
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.plan import Operation as PlanOperation
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.topic import SCHEDULER_LATENCY_SECONDS

log = logging.getLogger("lifecycle")

_GOOD_ENDS = ("published", "no_op")
_ENDS_SEARCHED = 50
"""A question that was asked more often is told as that often, at the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFacts:
    """The facts that are read once for all topics: the time, the waiting questions, and the open erasures.

    `deleted` has, by name, the deleted topics that cannot come back and whose space must still be freed.
    """

    now: Instant
    waiting: Sequence[PlanSummary]
    erasures: Sequence[ErasureRequest]
    deleted: Mapping[TopicName, Sequence[Obligation]]
    unknown: LifecycleError | None
    """The error that prevented reading the deleted topics; None: they were read."""


def read_lake(s: Services) -> LakeFacts:
    open_erasures = tuple(request for request in s.ledger.erasures() if request.state == "requested")
    now = s.ledger.now()
    deleted: Mapping[TopicName, Sequence[Obligation]] = {}
    unknown = None
    try:
        deleted = _deleted_obligations(s, now)
    except LifecycleError as error:  # the topics that stand are reported without it
        unknown = error
    except Exception as error:  # the barrier of the deleted topics: logged with its traceback, named in each status
        log.exception("deleted topics")
        unknown = internal_error("(deleted topics)", error)
    return LakeFacts(now=now, waiting=s.ledger.waiting(), erasures=open_erasures, deleted=deleted, unknown=unknown)


def with_cleaner_enabled(policy: Policy) -> Policy:
    """Return the policy as if the cleaner were enabled, because obligations do not depend on that setting."""
    return policy if policy.cleaner_enabled else policy.with_narrower({"enabled": True})


def obligations_of_topic(s: Services, name: TopicName, policy: Policy, made: Mapping[str, Plan], lake: LakeFacts) -> list[Obligation]:
    """`made`: by operation, plans that the caller has made under `regardless` settings as of now, so that none is made twice."""
    looks = s.ledger.looks(name)
    stands = looks.get(OF_TOPIC, Look(looked_at=None, settled_at=None))
    # Under its name there may have been another topic before it.
    its_own = (
        (work, [end for end in without_deleted_reclaims(s, name, ends) if end[0] >= (stands.settled_at or 0)])
        for work, ends in s.ledger.newest(name).items()
    )
    ended = {work: ends for work, ends in its_own if ends}
    found: list[Obligation] = []
    for operation in map(operation_named, OPERATIONS):
        if operation.on_records != (name in s.backends):
            continue
        ends = ended.get(operation.name, ())
        look = _update_look(s, name, looks.get(operation.name), ends, stands)
        last = next(((at, outcome.name) for at, outcome in ends), None)
        bound = bound_us(s, policy, operation)
        try:
            owed = _find_owed(s, name, policy, operation, made, look, lake.now)
        except Exception as error:  # noqa: BLE001 - the barrier of one operation: the others are judged and reported
            found.append(_unjudged_obligation(operation, last, look, error_of_one_topic(s, name, error)))
            continue
        found += [
            judge(one, operation=operation.name, look=look, last_run=last, bound_us=bound, stands_since=stands.looked_at, now=lake.now)
            for one in owed
        ]
    at_work = {one.operation for one in found if one.amount}
    return [
        *found,
        *_question_obligations(s, name, policy, lake, ended, at_work),
        *_erasure_obligations(s, name, policy, lake, stands),
        *refused.obligations(s, name),
        *lake.deleted.get(name, ()),
    ]


def _unjudged_obligation(operation: Operation, last: tuple[Instant, OutcomeName] | None, look: Look, error: LifecycleError) -> Obligation:
    return Obligation(
        kind="unknown",
        operation=operation.name,
        amount=None,
        unit="",
        due_since=None,
        held=(),
        last_run=last,
        looked_at=look.looked_at,
        problems=(f"the pending work of {operation.name} is unknown: {error.code}: {error}",),
    )


def bound_us(s: Services, policy: Policy, operation: Operation) -> int:
    """Return how long work may be due before it is reported as late: `max_overdue`, but at least the time until the next run."""
    interval = resolve(topic={}, server=s.server)[operation.interval]
    assert isinstance(interval, int), "every interval has a default"
    return max(policy.max_overdue_us, seconds(interval + SCHEDULER_LATENCY_SECONDS))


def _find_owed(
    s: Services, name: TopicName, policy: Policy, operation: Operation, made: Mapping[str, Plan], look: Look, now: Instant
) -> Sequence[Owed]:
    free = with_cleaner_enabled(policy)

    @cache
    def plan() -> Plan:
        there = made.get(operation.name)
        return operation.plan(s, name, free, cast(Scheduled, operation.name), as_of=now) if there is None else there

    return operation.find_owed(s, name, free, plan, look)


def _update_look(s: Services, name: TopicName, kept: Look | None, ends: Sequence[tuple[Instant, Outcome]], stands: Look) -> Look:
    """Return the look, updated with every run that has ended since. Scheduled runs and runs by hand count alike.

    `stands` is the lower limit: no run can have examined the topic before the topic was as it is now.
    """
    looked = [None if kept is None else kept.looked_at, *(at for at, _ in ends), stands.looked_at]
    done = [outcome for _, outcome in ends if outcome.name in _GOOD_ENDS]
    if any(outcome.more for outcome in done):  # the last outcome that left nothing over is older
        done += [
            one
            for _, one in without_deleted_reclaims(s, name, s.ledger.history(name, limit=_ENDS_SEARCHED, operations=[done[0].operation]))
            if one.name in _GOOD_ENDS
        ]
    whole = (outcome.as_of for outcome in done if not outcome.more and not outcome.held)
    return Look(looked_at=_newest(looked), settled_at=_newest([None if kept is None else kept.settled_at, *whole, stands.looked_at]))


def without_deleted_reclaims(s: Services, name: TopicName, ends: Sequence[tuple[Instant, Outcome]]) -> Sequence[tuple[Instant, Outcome]]:
    """Return the ends without the reclaims of a deleted topic with the same name, because they say nothing about the existing topic."""

    def is_of_another(outcome: Outcome) -> bool:
        if outcome.plan_id is None or operation_named(outcome.operation).counts_messages:
            return False
        # A reclaim's plan has many MB, so it is read only if a topic of this name was deleted once.
        if not s.ledger.history(name, limit=1, operations=["topic_delete"]):
            return False
        return operation_of_plan(s.ledger.record(outcome.plan_id).plan).topic(s, name) is None

    found = [end for end in ends if not is_of_another(end[1])]
    if len(found) == len(ends):
        return ends
    return [end for end in s.ledger.history(name, limit=_ENDS_SEARCHED, operations=[ends[0][1].operation]) if not is_of_another(end[1])]


def _newest(times: Iterable[Instant | None]) -> Instant | None:
    return max((at for at in times if at is not None), default=None)


def _question_obligations(
    s: Services,
    name: TopicName,
    policy: Policy,
    lake: LakeFacts,
    ended: Mapping[str, Sequence[tuple[Instant, Outcome]]],
    at_work: Collection[str],
) -> Iterator[Obligation]:
    """Yield the waiting questions, and the lapsed questions that the next run asks again, with the number of unanswered times."""
    asked: dict[PlanOperation, list[Instant]] = {}
    for plan in lake.waiting:
        if plan.topic == name and plan.reported_at is not None:
            record = s.ledger.record(plan.plan_id)
            # The next plan closes a lapsed question, but if nothing is due any more, that plan may never come. A question that a change of
            # settings made void was not left unanswered.
            if waits_for_person(s, record) or (plan.operation in at_work and not why_outdated(s, record.plan)):
                asked[plan.operation] = [plan.reported_at]
    for ends in ended.values():
        if ends[0][1].name == "lapsed" and ends[0][1].operation in at_work:
            asked.setdefault(ends[0][1].operation, [])
    for operation, times in sorted(asked.items()):
        if not operation_named(operation).by_request:
            times += [at for _, at in takewhile(_has_lapsed, _outcomes(s, name, operation))]
        since = min(times)
        problem = f"approval of {operation} pending since {format_to_second(since)}: {amount(len(times), 'requests')} without an answer"
        late = lake.now - since > bound_us(s, policy, operation_named(operation)) or len(times) > 1
        yield Obligation(
            kind="question",
            operation=operation,
            amount=len(times),
            unit="requests",
            due_since=since,
            held=(),
            last_run=None,
            looked_at=times[0],
            problems=(problem,) if late else (),
        )


def _outcomes(s: Services, name: TopicName, operation: PlanOperation) -> Iterator[tuple[Outcome, Instant]]:
    """Yield the outcomes, the newest first, each with the time of its question. Without a question, the time of recording."""
    for at, outcome in s.ledger.history(name, limit=_ENDS_SEARCHED, operations=[operation]):
        record = None if outcome.plan_id is None else s.ledger.record(outcome.plan_id)
        yield outcome, at if record is None or record.reported_at is None else record.reported_at


def _has_lapsed(ended: tuple[Outcome, Instant]) -> bool:
    return ended[0].name == "lapsed"


def _erasure_obligations(s: Services, name: TopicName, policy: Policy, lake: LakeFacts, stands: Look) -> Iterator[Obligation]:
    """Requests that are not done, here or anywhere: a deleted topic that may hold the key has no line of its own."""
    for request in lake.erasures:
        if not request.covers(name):
            continue
        ended = newest_ended_outcome(s, request, name)
        is_done = ended is not None and ended[1].name in _GOOD_ENDS
        since = max(request.requested_at, stands.settled_at or request.requested_at)
        late = lake.now - since > policy.max_overdue_us
        if is_done and not late:
            continue
        how = "no run has searched the topic yet" if ended is None else f"it ended as {ended[1].name}: {ended[1].detail}"
        problem = f"is done here, but not everywhere: {request.detail}" if is_done else f"is not done here: {how}"
        yield Obligation(
            kind="erasure",
            operation="erasure",
            amount=None,
            unit="key",
            due_since=since,
            held=(),
            last_run=None if ended is None else (ended[0], ended[1].name),
            looked_at=None if ended is None else ended[0],
            problems=(f"erasure: request {short(request.request_id)} of {format_to_second(request.requested_at)} {problem}",)
            if late
            else (),
        )


def _deleted_obligations(s: Services, now: Instant) -> dict[TopicName, list[Obligation]]:
    found: dict[TopicName, list[Obligation]] = {}
    operation = operation_named("reclaim of topic_delete")
    for deletion in s.stores.deletions():
        since, holds = undo_until(s, deletion), holds_of(s, deletion.topic)
        if now < since:
            continue
        late = not holds and now - since > bound_us(s, policy_of_deleted(s, deletion), operation)
        problem = f"reclaim: the undo of plan {short(deletion.plan_id)} ended at {format_to_second(since)}, but the deleted topic still uses space"
        found.setdefault(deletion.topic, []).append(
            Obligation(
                kind="reclaim",
                operation="reclaim",
                amount=0 if holds else 1,
                unit="deleted topics",
                due_since=since,
                held=tuple(
                    Held(partition=0, first_base=0, last_offset=0, rows=1, overdue_since=since, holder="hold", detail=hold.description)
                    for hold in holds[:1]
                ),
                last_run=None,
                looked_at=None,
                problems=(problem,) if late else (),
            )
        )
    return found
