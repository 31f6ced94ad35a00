"""Reading a topic through its compacted view: each key's latest message up to the horizon, then the log (CMP-6).

A topic that was never compacted has no horizon, and all of its log lies past that (CMP-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CompactedTableMissing
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.rules import Rule, holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import NOTHING, ViewState
from message_lifecycle.operations import age_rules
from message_lifecycle.operations.compaction_fold import order

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_TRIES = 3
_COMPACTION: tuple[Operation, ...] = ("compaction",)


def read_compacted(
    s: Services, name: TopicName, *, partition: int | None = None, start: int = 0, at: Instant | None = None
) -> Iterator[Message]:
    """Messages from offset `start` of each partition, in order: from the view up to its horizon, from the log after it.

    `at`: a logical read, which hides what is dead then, and with it every older message of its key (CMP-8); None: raw.
    Raises CompactedTableMissing: never is the log read instead of a view that was there (CMP-4)."""
    from message_lifecycle.app.services import policy_of

    log, view = _pair(s, name)
    policy = policy_of(s, name)
    rule = None if at is None else age_rules.hidden(policy)
    later = partial(order, by_event_time=policy.by_event_time)
    for each in sorted(log.end_offsets):
        if partition in (None, each):
            messages = _of_partition(s, name, log, view, each, start)
            yield from (
                messages
                if rule is None or at is None
                else _alive(messages, _may_be_dead(s, name, log, view, each, policy), partial(_holds, rule, at), later)
            )


def _pair(s: Services, name: TopicName) -> tuple[LogState, ViewState | None]:
    """The log first, then the view: what was purged from the log is then in the view. None: the topic was never compacted."""
    for _ in range(_TRIES):
        # Whether there was a view is asked before it is looked for: a first compaction may be published meanwhile.
        log, known = s.reader.log(name), s.ledger.accepted_view(name) is not None
        view = s.views.view(name)
        whole = all(_horizon(view, partition) >= purged for partition, purged in log.purged_through.items())
        if view is None and (known or (whole and _was_compacted(s, log))):
            raise CompactedTableMissing(str(name), "it was published before, and its table is not there any more")
        if whole:
            return log, view
    raise CompactedTableMissing(str(name), "the log was purged past the view's horizon: this is not the view that the purge relied on")


def _was_compacted(s: Services, log: LogState) -> bool:
    """Whether a view of this very table was published, also where a person lets it be made anew and it is not there yet."""
    done = (outcome.plan_id for _, outcome in s.ledger.history(log.topic, operations=_COMPACTION) if outcome.name == "published")
    plans = (s.ledger.record(plan_id).plan for plan_id in done if plan_id is not None)
    return any(plan.requirements.table_uuid == log.table_uuid for plan in plans)


def _horizon(view: ViewState | None, partition: int) -> int:
    return NOTHING if view is None else view.horizon(partition)


def _of_partition(s: Services, name: TopicName, log: LogState, view: ViewState | None, partition: int, start: int) -> Iterator[Message]:
    horizon = _horizon(view, partition)
    if view is not None and start <= horizon:
        rows = s.views.view_rows(name, view, partition=partition, start=start)
        yield from (row.message for row in rows if not row.remembered)
    yield from s.reader.messages(name, at=log, after={partition: horizon}, partition=partition, start=start)


def _holds(rule: Rule, at: Instant, message: Message) -> bool:
    return holds(rule, message, at)


def _may_be_dead(s: Services, name: TopicName, log: LogState, view: ViewState | None, partition: int, policy: Policy) -> Iterator[Message]:
    """Where a dead message may have older ones of its key beside it: past the horizon, and by event time in the view, too."""
    if policy.by_event_time:
        return _of_partition(s, name, log, view, partition, start=0)
    return s.reader.messages(name, at=log, after={} if view is None else view.horizons, partition=partition)


def _alive(
    messages: Iterator[Message], judged: Iterator[Message], dead: Callable[[Message], bool], later: Callable[[Message], tuple[int, int]]
) -> Iterator[Message]:
    """Without what is dead, nor anything older of its key."""
    latest_dead: dict[bytes, tuple[int, int]] = {}
    for message in judged:
        if message.key is not None and dead(message):
            latest_dead[message.key] = max(later(message), latest_dead.get(message.key, later(message)))
    for message in messages:
        older = message.key is not None and message.key in latest_dead and later(message) < latest_dead[message.key]
        if not dead(message) and not older:
            yield message
