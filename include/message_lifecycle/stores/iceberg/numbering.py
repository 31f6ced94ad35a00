"""Offsets and segments for a block of messages at a time (MSG-4, EXP-3).

`ActiveSegment.take` is the rule; this is the same rule over arrays, because a log of millions of messages cannot be fed
through it one by one (a property test holds the two equal). It runs in Spark's Python workers: nothing here needs Spark, and
what is kept from block to block is one `ActiveSegment` and the next offset per partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.stores.iceberg.layout import LogSummary

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRules:
    """Where a segment ends: the segment size, and the message expiry (0 = never)."""

    limit_bytes: int
    expiry_us: int


def cut(state: ActiveSegment, *, first_offset: int, sizes: Longs, times: Longs, known: Flags, rules: CutRules) -> Longs:
    """The segment that each message of one partition joins; moves `state` on.

    The messages have the consecutive offsets from `first_offset`; `times` counts only where `known`.
    """
    count = len(sizes)
    segments = np.empty(count, dtype=np.int64)
    filled = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
    doubtful = _may_find_all_expired(times, known, rules.expiry_us)

    def join(start: int, end: int) -> None:
        some = known[start:end]
        state.join(
            size=int(filled[end] - filled[start]),
            rows=end - start,
            newest_at=Instant(int(times[start:end][some].max())) if some.any() else None,
            any_unknown=not some.all(),
        )

    start = 0
    while start < count:
        room = rules.limit_bytes - state.size_bytes + int(filled[start])
        full = int(np.searchsorted(filled, room, side="right")) - 1
        # A segment's first message joins whatever its size and time.
        first_judged = start if state.rows else start + 1
        end = min(max(full, first_judged), count)
        joined = start
        for at in doubtful[np.searchsorted(doubtful, first_judged) : np.searchsorted(doubtful, end)].tolist():
            if state.any_unknown:
                break
            if state.newest_at is not None and times[at] < state.newest_at + rules.expiry_us:
                continue  # the newest time so far is enough to say no: spares the sum over those between
            join(joined, at)
            joined = at
            if state.all_expired_for(Instant(int(times[at])), rules.expiry_us):
                end = at
                break
        join(joined, end)
        segments[start:end] = state.base_offset
        if end < count:
            state.restart(first_offset + end)
        start = end
    return segments


def _may_find_all_expired(times: Longs, known: Flags, expiry_us: int) -> NDArray[np.intp]:
    """Where a message may come so late that all before it in its segment are expired: it is that late after its neighbour.

    The first message's neighbour is in an earlier block, so it is always looked at.
    """
    if expiry_us == 0 or not len(times):
        return np.empty(0, dtype=np.intp)
    due = np.minimum(times[:-1], INT64_MAX - expiry_us) + expiry_us
    late = known[1:] & known[:-1] & (times[1:] >= due)
    return np.flatnonzero(np.concatenate((known[:1], late)))


def number(batches: Iterator[pa.RecordBatch], base: LogSummary, rules: CutRules) -> Iterator[pa.RecordBatch]:
    """Each batch with columns `offset` and `segment` added.

    Needs `partition`, `append_time` (microseconds) and `size_bytes`; all messages of a partition come here, in log order.
    """
    import pyarrow as pa

    ends = dict(base.end_offsets)
    active = {partition: replace(segment) for partition, segment in base.active.items()}
    for batch in batches:
        count = batch.num_rows
        if count == 0:
            continue
        partitions = _view(batch.column("partition"), np.int32)
        sizes = _view(batch.column("size_bytes"), np.int64)
        time = batch.column("append_time")
        known = _view(time.is_valid().cast(pa.uint8()), np.uint8).astype(np.bool_)
        times = _view(time.cast(pa.int64()), np.int64)  # of no meaning where not known
        offsets = np.empty(count, dtype=np.int64)
        segments = np.empty(count, dtype=np.int64)
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), count]):
            partition = int(partitions[start])
            first_offset = ends.get(partition, 0)
            state = active.setdefault(partition, ActiveSegment(base_offset=first_offset))
            run = slice(start, end)
            offsets[run] = np.arange(first_offset, first_offset + end - start)
            segments[run] = cut(state, first_offset=first_offset, sizes=sizes[run], times=times[run], known=known[run], rules=rules)
            ends[partition] = first_offset + end - start
        for name, values in (("offset", offsets), ("segment", segments)):
            batch = batch.append_column(name, pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(values)]))
        yield batch


# Buffers and no scalars, because PyArrow's own ways to and from Python import pandas: a second of CPU in every new worker.
def _view(column: pa.Array, kind: type[np.generic]) -> NDArray[Any]:
    """The numbers of a column, not copied; what stands where there is none has no meaning."""
    return np.frombuffer(column.buffers()[1], dtype=kind)[column.offset : column.offset + len(column)]
