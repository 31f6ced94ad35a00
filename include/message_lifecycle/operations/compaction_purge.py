"""The purge of raw messages that the compacted view covers (CMP-9): whole sealed segments, never past a horizon or a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from message_lifecycle.model.change import Commit, DropSegments, that_change
from message_lifecycle.model.facts import Facts, ReaderKind, Segment
from message_lifecycle.model.hold import Spared, SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.plan import Bound, Expected, Held, Holder, Plan, Selection
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.barriers import Barriers, barriers
from message_lifecycle.operations.required import required
from message_lifecycle.operations.sparing import markers_spare


def plan(facts: Facts, policy: Policy, horizons: Mapping[int, int], *, as_of: Instant) -> Plan:
    """What may go at `as_of`. `horizons`: the last offset compacted per partition; one that is not there has none, and loses nothing.

    `facts.consumers` are the topic's readers without compaction itself, whose horizon bounds every run anyway. Per partition the
    leading run of segments goes: what stays keeps all that follows it, so that a reader meets no hole in what is left of the log."""
    log, readers = facts.log, barriers(facts.consumers, policy, as_of)
    spared = SparedOffsets(facts.spared)
    going: list[Segment] = []
    held: list[Held] = []
    if policy.purges_compacted and policy.cleaner_enabled:
        for partition, group in groupby(log.segments, key=lambda segment: segment.partition):
            covered = [s for s in group if s.sealed and s.last_offset <= horizons.get(partition, -1)]
            slowest = readers.slowest(partition)
            cut = INT64_MAX if slowest is None or slowest[0].offset is None else slowest[0].offset
            free, kept = _leading(covered, cut, spared)
            going += free
            if len(free) < len(covered):
                stay = covered[len(free) :]
                holder, detail = (kept.holder, kept.detail) if kept is not None else _reader(slowest)
                held.append(
                    Held(
                        partition=partition,
                        first_base=stay[0].base_offset,
                        last_offset=stay[-1].last_offset,
                        rows=sum(segment.rows for segment in stay),
                        overdue_since=None,
                        holder=holder,
                        detail=detail,
                        reason="compacted",
                    )
                )
    rows = sum(segment.rows for segment in going)
    asks = () if facts.accepted is None else policy.tightened_since(facts.accepted)
    return Plan(
        operation="purge_compacted",
        topic=log.topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=required(log, policy, facts.heeded),
        bounds=tuple(_bounds(log.end_offsets, horizons, readers)),
        changes=that_change(Commit(table="log", drop=tuple(_runs(going)))),
        selection=Selection(files=tuple(sorted(name for segment in going for name in segment.files))),
        expected=Expected(
            rows_in=sum(segment.rows for segment in log.segments),
            removed=(("compacted", rows),) if rows else (),
            removed_bytes=sum(segment.size_bytes for segment in going),
            bytes_in=sum(segment.size_bytes for segment in log.segments),
            segments=len(going),
        ),
        held=tuple(held),
        warnings=(),
        asks=tuple(f"tightened since the last accepted run: {name}" for name in asks if name == "cleanup_policy") if going else (),
        more=False,
        due_since=None,
        next_due_at=None,
        reasons=("compacted",),
        spared=markers_spare(facts, policy),
    )


def _leading(covered: list[Segment], cut: int, spared: SparedOffsets) -> tuple[list[Segment], Spared | None]:
    """The segments before the first that a reader needs or that is spared, and who spares that one."""
    for at, segment in enumerate(covered):
        kept = spared.touching(segment.partition, segment.base_offset, segment.last_offset)
        if kept is not None or segment.last_offset >= cut:
            return covered[:at], kept
    return covered, None


def _reader(slowest: tuple[Bound, ReaderKind] | None) -> tuple[Holder, str]:
    assert slowest is not None, "a cut was made because a reader makes it"
    return slowest[1], f"{slowest[0].name} {slowest[0].reason}"


def _bounds(partitions: Mapping[int, int], horizons: Mapping[int, int], readers: Barriers) -> Iterator[Bound]:
    for partition in sorted(partitions):
        horizon = horizons.get(partition, -1)
        reason = f"is compacted up to offset {horizon}" if horizon >= 0 else "is not compacted yet"
        yield Bound(name="compaction", partition=partition, offset=horizon + 1, reason=reason)
        yield from (reader.bound(partition) for reader in readers.readers)


def _runs(going: list[Segment]) -> Iterator[DropSegments]:
    """Segments of a partition that follow each other are one run."""
    for partition, group in groupby(going, key=lambda segment: segment.partition):
        run = list(group)
        times = [segment.newest_at for segment in run]
        known = [time for time in times if time is not None]
        yield DropSegments(
            partition=partition,
            first_base=run[0].base_offset,
            last_base=run[-1].base_offset,
            last_offset=max(segment.last_offset for segment in run),
            segments=len(run),
            rows=sum(segment.rows for segment in run),
            size_bytes=sum(segment.size_bytes for segment in run),
            newest_at=max(known) if len(known) == len(times) else None,
            reason="compacted",
        )
