"""One topic: its log, its settings and where they come from, who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.compaction import compacted, horizon_of, view_facts
from message_lifecycle.app.views.documents import documents_view, holds_documents
from message_lifecycle.app.views.holds import holds_view
from message_lifecycle.app.views.outcomes import runs
from message_lifecycle.app.views.plans import plan_view
from message_lifecycle.app.views.state import topic_status
from message_lifecycle.app.views.values import View, when
from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import BY_NAME, Policy, resolve
from message_lifecycle.model.topic_config import api_level, origin_of
from message_lifecycle.model.view import ViewState

_RUNS_SHOWN = 10


def topic_page(s: Services, name: TopicName) -> View:
    """Everything about one topic, now."""
    now = s.ledger.now()
    page = {
        **describe(s, name),
        "holds": holds_view(s, name),
        "status": topic_status(s, name, now=now),
        "runs": runs(s, name, limit=_RUNS_SHOWN),
    }
    if holds_documents(s, name):
        return page
    return {**page, "consumers": consumers_view(s, name), "bounds": plan_view(preview(s, name, as_of=now))["bounds"]}


def describe(s: Services, name: TopicName) -> View:
    """Settings with their origin, partitions and end offsets; of a topic of documents these, and who has synchronised them."""
    topic = s.topics.describe(name)
    if holds_documents(s, name):
        return {
            "topic": str(name),
            "uuid": topic.uuid,
            "documents": documents_view(s, name),
            "settings": settings_view(resolve(topic=topic.settings, server=s.server)),
        }
    log = s.reader.log(name)
    view, missing = compacted(s, name)
    return {
        "topic": str(name),
        "role": topic.role,
        "origin": None if (origin := origin_of(name, topic.settings)) is None else str(origin),
        "api_level": api_level(topic.settings),
        "uuid": topic.uuid,
        "view": topic.live_view,
        "snapshot_id": log.snapshot_id,
        "messages": sum(segment.rows for segment in log.segments),
        "bytes": sum(segment.size_bytes for segment in log.segments),
        "compacted": view_facts(view),
        "compacted_missing": missing,
        "partitions": _partitions(log, view),
        "settings": settings_view(resolve(topic=topic.settings, server=s.server)),
    }


def settings_view(policy: Policy) -> list[View]:
    """Every effective setting: its value, unit, origin and meaning."""
    return [
        {
            "setting": name,
            "value": resolved.value,
            "unit": BY_NAME[name].unit,
            "origin": resolved.origin,
            "on_topic": BY_NAME[name].on_topic,
            "section": BY_NAME[name].section,
            "help": BY_NAME[name].help,
        }
        for name, resolved in policy.settings
    ]


def consumers_view(s: Services, name: TopicName) -> list[View]:
    """Each consumer's progress by partition, and when it falls silent and keeps nothing any more (EXP-6); a replica never does (TTL-6)."""
    now = s.ledger.now()
    policy = resolve(topic=s.topics.describe(name).settings, server=s.server)
    progress = s.ledger.consumers(name)
    if not progress:
        return []
    ends = s.reader.log(name).end_offsets
    found = []
    ordered = sorted(progress, key=lambda p: (p.consumer, p.partition))
    for consumer, group in groupby(ordered, key=lambda p: p.consumer):
        own = list(group)
        found.append(
            {
                "consumer": consumer,
                "replica": any(p.kind == "replica" for p in own),
                "pins": any(p.pins_at(now, policy.consumer_expiry_us) for p in own),
                "falls_silent_at": when(_silent_at(own, policy)),
                "consumer_expiry": policy["consumer_expiry"],
                "partitions": _progress(own, ends),
            }
        )
    return found


def _silent_at(own: Iterable[Progress], policy: Policy) -> Instant | None:
    """The last instant at which it keeps anything: alive in one partition is alive. None: its time is not known, so always."""
    ends = [p.silent_at(policy.consumer_expiry_us) for p in own]
    known = [end for end in ends if end is not None]
    return Instant(max(known) - 1) if len(known) == len(ends) else None


def _progress(own: list[Progress], ends: Mapping[int, int]) -> list[View]:
    # A replica is registered before it has copied anything.
    by_partition = {p.partition: p for p in own if p.offset >= 0}
    return [
        {
            "partition": partition,
            "offset": by_partition[partition].offset if partition in by_partition else None,
            "lag": end - 1 - by_partition[partition].offset if partition in by_partition else end,
            "at": when(by_partition[partition].at) if partition in by_partition else None,
        }
        for partition, end in sorted(ends.items())
    ]


def _partitions(log: LogState, view: ViewState | None) -> list[View]:
    by_partition = {partition: list(group) for partition, group in groupby(log.segments, key=lambda segment: segment.partition)}
    found = []
    for partition, end in sorted(log.end_offsets.items()):
        segments = by_partition.get(partition, [])
        oldest = [segment.oldest_at for segment in segments if segment.oldest_at is not None]
        newest = [segment.newest_at for segment in segments if segment.newest_at is not None]
        found.append(
            {
                "partition": partition,
                "start_offset": segments[0].base_offset if segments else end,
                "end_offset": end,
                "horizon": horizon_of(view, partition),
                "messages": sum(segment.rows for segment in segments),
                "bytes": sum(segment.size_bytes for segment in segments),
                "segments": len(segments),
                "oldest_at": when(min(oldest, default=None)),
                "newest_at": when(max(newest, default=None)),
            }
        )
    return found
