"""A topic's messages as a reader sees them: what is dead, too old or beyond the limits is hidden while it is still there (RET-5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from message_lifecycle.app.compacted_read import read_compacted
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.operations import retention_run
from message_lifecycle.operations.visibility import NONE_BEYOND, BeyondLimits, kept_of_one, newest, visible

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


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
    """Messages in order of (partition, offset), from offset `start` of each partition, as they are shown at `at` (None: raw).

    After the limits of the topic: only those at or after `since` and of unknown time, then the newest `limit` of these, at least 1.
    `progress`: the reading consumer's. A compacted read is bound by no limit of number or size: those are the log's.
    Raises InvalidSetting for a limit below 1, UnknownTopic, CompactedTableMissing."""
    check_limit(name, limit)
    topic = s.topics.describe(name)
    policy = resolve(topic=topic.settings, server=s.server)
    progress = tuple(progress)
    shown: Iterator[Message]
    if compacted:
        shown = visible(read_compacted(s, name, partition=partition, start=start, at=at), policy, at=None, since=since)
    elif at is not None and policy.limits is not None and topic.partitions == 1 and policy.limits.scope != "key" and not progress:
        # One partition is one group, and its order the rank: one pass tells, instead of a count of the whole log before it.
        kept = kept_of_one(visible(s.reader.messages(name), policy, at=at), policy.limits)
        shown = iter(kept)
        if start or partition is not None or since is not None:
            here = (message for message in kept if message.offset >= start and partition in (None, message.partition))
            shown = visible(here, policy, at=None, since=since)
    else:
        beyond = NONE_BEYOND if at is None else beyond_limits(s, s.reader.log(name), policy, at)
        stored = s.reader.messages(name, partition=partition, start=start)
        shown = visible(stored, policy, at=at, progress=progress, since=since, beyond=beyond)
    return shown if limit is None else newest(shown, limit)


def check_limit(name: TopicName, limit: int | None) -> None:
    """Raises InvalidSetting where a read would show nothing, whatever there is (RET-5)."""
    if limit is not None and limit < 1:
        raise InvalidSetting(where=f"a read of topic {name}", key="limit", value=limit, allowed="a whole number from 1")


def beyond_limits(s: Services, log: LogState, policy: Policy, at: Instant) -> BeyondLimits:
    """What of the whole log lies beyond its limits by number and size at `at`, as the store counts it for a plan, too."""
    question = retention_run.shown(policy, at)
    return NONE_BEYOND if question is None else BeyondLimits.of(s.reader.rows(log, question))
