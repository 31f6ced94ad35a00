"""A topic's messages as a reader sees them. Dead, expired and excess messages are hidden even before they are removed (RET-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.app.holds import record_ledger
from message_lifecycle.model.errors import CompactedTableMissing, InvalidSetting, another_topic, topic_uuid_needed
from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NOTHING, Message, ViewState
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.rules import Rule, rule_holds
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.operations import expiry, message_cleaner
from message_lifecycle.operations.compaction import recency_key
from message_lifecycle.operations.limits import NONE_BEYOND, BeyondLimits, kept_in_group, newest_messages, visible_messages

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def progress_of(s: Services, name: TopicName, consumer: str) -> list[Progress]:
    """Return the consumer's progress in each partition. Empty: the consumer is not registered. Raises InvalidName."""
    wanted = normalise_name(consumer)
    return [row for row in s.ledger.consumers(name) if row.consumer == wanted]


def commit_progress(
    s: Services,
    name: TopicName,
    consumer: str,
    partition: int,
    offset: int,
    at: Instant,
    *,
    end_offset: int | None = None,
    topic_uuid: str | None = None,
) -> Progress:
    """Record the last offset that the consumer has processed, and register the consumer by its first one (EXP-6).

    If the consumer registers or goes back, an older backup of the ledger would keep less for it, so the topic then refuses that ledger
    (DEL-8).

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        consumer: The consumer's name.
        partition: The partition that the offset belongs to.
        offset: The last processed offset.
        at: The time of the commit.
        end_offset: The partition's end offset, if the caller knows it.
        topic_uuid: The topic that the consumer has read. The name is not enough if another topic had the name before.

    Raises:
        AnotherTopic: The consumer has read another topic of this name.
        TopicUuidNeeded: Another topic had this name, and the commit does not say which of them the consumer has read.
        InvalidName, InvalidProgress, ReplicaProgress: See `TopicState.commit`.
    """
    _require_same_topic(s, name, consumer, offset, topic_uuid)
    known = [] if "/" in consumer else progress_of(s, name, consumer)  # a replica's name: the ledger refuses it
    if not any(row.partition == partition and row.offset <= offset for row in known):
        record_ledger(s, name)
    return s.ledger.commit(name, consumer, partition, offset, at, end_offset=end_offset)


def _require_same_topic(s: Services, name: TopicName, consumer: str, offset: int, topic_uuid: str | None) -> None:
    there = s.topics.describe(name).uuid
    if topic_uuid is not None and topic_uuid != there:
        raise another_topic(str(name), consumer, read=topic_uuid, there=there)
    if topic_uuid is None and offset >= 0 and any(one.table_uuid != there for one in s.ledger.log_witnesses(name)):
        raise topic_uuid_needed(str(name), consumer, there=there)


def read(
    s: Services,
    name: TopicName,
    *,
    at: Instant | None,
    partition: int | None = None,
    start: int = 0,
    compacted: bool = False,
    progress: Iterable[Progress] = (),
    since: Instant | None = None,
    limit: int | None = None,
) -> Iterable[Message]:
    """Return the topic's messages in order of (partition, offset).

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        at: Hide messages as of this instant. None: show every stored message.
        partition: Read this partition. None: all partitions.
        start: The first offset in each partition.
        compacted: Read each key's latest message. Limits by number and size do not apply, because they count messages of the log.
        progress: The progress of the reading consumer.
        since: After the topic's limits, keep only messages at or after this instant, and messages of unknown time.
        limit: Keep only so many of the newest messages.

    Raises:
        InvalidSetting: The limit is below 1.
        UnknownTopic, CompactedTableMissing: The topic cannot be read.
    """
    check_limit(name, limit)
    topic = s.topics.describe(name)
    policy = resolve(topic=topic.settings, server=s.server)
    progress = tuple(progress)
    shown: Iterator[Message]
    if compacted:
        shown = visible_messages(read_compacted(s, name, partition=partition, start=start, at=at), policy, at=None, since=since)
    elif at is not None and policy.limits is not None and topic.partitions == 1 and policy.limits.scope != "key" and not progress:
        # With one partition, the order of messages is their rank. So one pass is enough, without counting the whole log first.
        kept = kept_in_group(visible_messages(s.reader.messages(name), policy, at=at), policy.limits)
        shown = iter(kept)
        if start or partition is not None or since is not None:
            here = (message for message in kept if message.offset >= start and partition in (None, message.partition))
            shown = visible_messages(here, policy, at=None, since=since)
    else:
        beyond = NONE_BEYOND if at is None else find_beyond_limits(s, s.reader.log(name), policy, at)
        stored = s.reader.messages(name, partition=partition, start=start)
        shown = visible_messages(stored, policy, at=at, progress=progress, since=since, beyond=beyond)
    return shown if limit is None else newest_messages(shown, limit)


def check_limit(name: TopicName, limit: int | None) -> None:
    """Raise InvalidSetting for a limit below 1, because such a read could never show a message (RET-5)."""
    if limit is not None and limit < 1:
        raise InvalidSetting(where=f"a read of topic {name}", key="limit", value=limit, allowed="a whole number from 1")


def find_beyond_limits(s: Services, log: LogState, policy: Policy, at: Instant) -> BeyondLimits:
    """Return the messages of the whole log beyond its limits by number and size at `at`. The store counts them as for a plan."""
    question = message_cleaner.shown(policy, at)
    return NONE_BEYOND if question is None else BeyondLimits.from_answer(s.reader.rows(log, question))


# Reading a topic through its compacted view: each key's latest message up to the horizon, then the log (CMP-6).
#
# A topic that was never compacted has no horizon, so a compacted read shows its whole log (CMP-4).


_TRIES = 3
_COMPACTION: tuple[Operation, ...] = ("compaction",)


def read_compacted(
    s: Services, name: TopicName, *, partition: int | None = None, start: int = 0, at: Instant | None = None
) -> Iterator[Message]:
    """Yield the messages from offset `start` of each partition, in order: from the view up to its horizon, then from the log.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        partition: Read this partition. None: all partitions.
        start: The first offset in each partition.
        at: Hide messages that are dead at this instant, and every older message of their key (CMP-8). None: hide nothing.

    Raises:
        CompactedTableMissing: The view is gone. The log is never read instead of a view that existed (CMP-4).
    """
    from message_lifecycle.app.services import policy_of

    log, view = _log_and_view(s, name)
    policy = policy_of(s, name)
    rule = None if at is None else expiry.hiding_rule(policy)
    later = partial(recency_key, by_event_time=policy.by_event_time)
    for each in sorted(log.end_offsets):
        if partition in (None, each):
            messages = _messages_of_partition(s, name, log, view, each, start)
            yield from (
                messages
                if rule is None or at is None
                else _without_dead_messages(messages, _may_be_dead(s, name, log, view, each, policy), partial(_rule_holds, rule, at), later)
            )


def _log_and_view(s: Services, name: TopicName) -> tuple[LogState, ViewState | None]:
    """Return the log's state and the view's. The view is None if the topic was never compacted.

    The log is read first, so that the view has every message that was purged from the log.
    """
    for _ in range(_TRIES):
        # Ask the ledger before reading the view, because a first compaction may be published in between.
        log, known = s.reader.log(name), s.ledger.accepted_view(name) is not None
        view = s.view_of(name)
        whole = all(_horizon(view, partition) >= purged for partition, purged in log.purged_through.items())
        if view is None and (known or (whole and _was_compacted(s, log))):
            raise CompactedTableMissing(str(name), "it was published before, and its table is not there any more")
        if whole:
            return log, view
    raise CompactedTableMissing(str(name), "the log was purged past the view's horizon: this is not the view that the purge relied on")


def _was_compacted(s: Services, log: LogState) -> bool:
    """Return whether a compacted view of this table was ever published, even if a person dropped it to have it made again."""
    done = (outcome.plan_id for _, outcome in s.ledger.history(log.topic, operations=_COMPACTION) if outcome.name == "published")
    plans = (s.ledger.record(plan_id).plan for plan_id in done if plan_id is not None)
    return any(plan.requirements.table_uuid == log.table_uuid for plan in plans)


def _horizon(view: ViewState | None, partition: int) -> int:
    return NOTHING if view is None else view.horizon(partition)


def _messages_of_partition(
    s: Services, name: TopicName, log: LogState, view: ViewState | None, partition: int, start: int
) -> Iterator[Message]:
    horizon = _horizon(view, partition)
    if view is not None and start <= horizon:
        rows = s.stores.view.view_rows(name, view, partition=partition, start=start)
        yield from (row.message for row in rows if not row.remembered)
    yield from s.reader.messages(name, at=log, after={partition: horizon}, partition=partition, start=start)


def _rule_holds(rule: Rule, at: Instant, message: Message) -> bool:
    return rule_holds(rule, message, at)


def _may_be_dead(s: Services, name: TopicName, log: LogState, view: ViewState | None, partition: int, policy: Policy) -> Iterator[Message]:
    """Return messages that may be dead and have older messages of their key: past the horizon, and by event time also in the view."""
    if policy.by_event_time:
        return _messages_of_partition(s, name, log, view, partition, start=0)
    return s.reader.messages(name, at=log, after={} if view is None else view.horizons, partition=partition)


def _without_dead_messages(
    messages: Iterator[Message], judged: Iterator[Message], dead: Callable[[Message], bool], later: Callable[[Message], tuple[int, int]]
) -> Iterator[Message]:
    """Yield the messages without dead messages, and without older messages of a dead message's key."""
    latest_dead: dict[bytes, tuple[int, int]] = {}
    for message in judged:
        if message.key is not None and dead(message):
            latest_dead[message.key] = max(later(message), latest_dead.get(message.key, later(message)))
    for message in messages:
        older = message.key is not None and message.key in latest_dead and later(message) < latest_dead[message.key]
        if not dead(message) and not older:
            yield message
