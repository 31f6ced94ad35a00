"""Messages on their way in: their places in the log, and which of them have a forbidden key. All of it is the work of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import INT64_MAX, MICROS_PER_SECOND, Instant
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import admission
from message_lifecycle.operations.erasure import tells_key
from message_lifecycle.stores.iceberg.key_mask import key_mask
from message_lifecycle.stores.iceberg.layout import LogSummary

# Offsets and segments for a block of messages at a time (MSG-4, EXP-3).
#
# `ActiveSegment.take` is the rule; this is the same rule over arrays, because a log of millions of messages cannot be fed
# through it one by one (a property test holds the two equal). What is kept from block to block is one `ActiveSegment` and the next offset per partition.
#
# How many segments a batch opens is known when all of it is numbered. Where they are too many, it is read once more, to count
# them by every span (`count_opened`), and numbered again by the first that fits.


Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRules:
    """Where a segment ends: the segment size, the message expiry and the segment's span (0 = never, both).

    `late_after` is the clock of the batch with the skew: a later time ends no segment and keeps none open (CLK-4).
    `most_opened`: in one task, after so many segments times end none any more; a batch that opens more is numbered again, by rules that
    are `doubled`."""

    limit_bytes: int
    expiry_us: int
    max_us: int = 0
    late_after: int = INT64_MAX
    most_opened: int = admission.MOST_OPENED
    doubled: bool = False

    @classmethod
    def of(cls, policy: Policy, *, late_after: Instant) -> CutRules:
        return cls(
            limit_bytes=policy.segment_size_bytes,
            expiry_us=policy.message_expiry_us,
            max_us=policy.segment_max_us,
            late_after=late_after,
            most_opened=admission.MOST_OPENED,
        )

    def by_span(self) -> tuple[CutRules, ...]:
        """With each span that may count for one batch, the shortest first."""
        return tuple(replace(self, max_us=max_us) for max_us in admission.spans(self.max_us))

    def fitting(self, opened: Sequence[int]) -> CutRules:
        """With the span that counts for a batch. `opened`: how many segments it opens by each of `by_span`."""
        found = next((one for one, count in zip(self.by_span(), opened, strict=True) if count <= self.most_opened), self.by_span()[-1])
        return replace(found, most_opened=INT64_MAX, doubled=found.max_us != self.max_us)

    @property
    def doubled_seconds(self) -> int | None:
        """What a segment's span was doubled to; None: it was not."""
        return self.max_us // MICROS_PER_SECOND if self.doubled else None


def cut(state: ActiveSegment, *, first_offset: int, sizes: Longs, times: Longs, known: Flags, rules: CutRules) -> Longs:
    """The segment that each message of one partition joins; moves `state` on.

    The messages have the consecutive offsets from `first_offset`; `times` counts only where `known`.
    """
    count = len(sizes)
    judged = known & (times <= rules.late_after)
    segments = np.empty(count, dtype=np.int64)
    filled = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
    doubtful = _may_find_all_expired(times, judged, rules.expiry_us)

    def join(start: int, end: int) -> None:
        some = judged[start:end]
        state.join(
            size=int(filled[end] - filled[start]),
            rows=end - start,
            newest_at=Instant(int(times[start:end][some].max())) if some.any() else None,
            any_unknown=not known[start:end].all(),
            first_at=_first_known(times[start:end], some),
        )

    start = 0
    while start < count:
        room = rules.limit_bytes - state.size_bytes + int(filled[start])
        full = int(np.searchsorted(filled, room, side="right")) - 1
        # A segment's first message joins whatever its size and time.
        first_judged = start if state.rows else start + 1
        end = min(max(full, first_judged), count)
        end = min(end, first_judged + _up_to_span(state, start, first_judged, times[:end], judged[:end], rules.max_us))
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


def _first_known(times: Longs, known: Flags) -> Instant | None:
    return Instant(int(times[known.argmax()])) if known.any() else None


def _up_to_span(state: ActiveSegment, start: int, first_judged: int, times: Longs, known: Flags, max_us: int) -> int:
    """How many messages from `first_judged` on join the segment before one is past its span; those before it, from `start` on, do join."""
    if not max_us or first_judged >= len(times):
        return len(times) - first_judged
    first_at = state.first_at if state.first_at is not None else _first_known(times[start:], known[start:])
    if first_at is None or first_at > INT64_MAX - max_us:
        return len(times) - first_judged
    past = known[first_judged:] & (times[first_judged:] > first_at + max_us)
    return int(past.argmax()) if past.any() else len(past)


def _may_find_all_expired(times: Longs, judged: Flags, expiry_us: int) -> NDArray[np.intp]:
    """The messages that may come so late that all before them in their segment are expired: each is that late after the judged one before it.

    The judged message before the first one is in an earlier block, so the first one is always among them.
    """
    found = np.flatnonzero(judged)
    if expiry_us == 0 or not len(found):
        return np.empty(0, dtype=np.intp)
    at = times[found]
    late = at[1:] >= np.minimum(at[:-1], INT64_MAX - expiry_us) + expiry_us
    return found[np.concatenate(([True], late))]


class Numbering:
    """Places for the messages of one task. All messages of a partition come to one task, in log order."""

    def __init__(self, base: LogSummary, rules: CutRules) -> None:
        self.opened = 0
        """Segments that were opened so far."""
        self._rules = rules
        self._ends = dict(base.end_offsets)
        self._active = {partition: replace(segment) for partition, segment in base.active.items()}

    def places(self, batch: pa.RecordBatch) -> tuple[Longs, Longs]:
        """Offset and segment of each message, at least one. Needs `partition`, `append_time` (microseconds) and `size_bytes`."""
        count = batch.num_rows
        partitions = _view(batch.column("partition"), np.int32)
        sizes, times, known = _measures(batch)
        offsets = np.empty(count, dtype=np.int64)
        segments = np.empty(count, dtype=np.int64)
        rules = self._rules if self.opened <= self._rules.most_opened else replace(self._rules, max_us=0)
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), count]):
            partition = int(partitions[start])
            first_offset = self._ends.get(partition, 0)
            state = self._active.setdefault(partition, ActiveSegment(base_offset=first_offset))
            run = slice(start, end)
            offsets[run] = np.arange(first_offset, first_offset + end - start)
            segments[run] = cut(state, first_offset=first_offset, sizes=sizes[run], times=times[run], known=known[run], rules=rules)
            self._ends[partition] = first_offset + end - start
        self.opened += int(np.count_nonzero(offsets == segments))
        return offsets, segments

    def state(self, partition: int) -> tuple[int, ActiveSegment]:
        """Return where the partition ends now, and its active segment."""
        return self._ends[partition], self._active[partition]


class OriginPlaces(Numbering):
    """Places for the messages of a mirror: those of its origin.

    A segment that the mirror has closed by itself takes no more messages: the rest of the origin's starts another where the mirror's log ended.
    """

    def places(self, batch: pa.RecordBatch) -> tuple[Longs, Longs]:
        """As `Numbering.places`. Needs `offset` and `segment`, too, and the messages of one partition."""
        offsets, partition = _view(batch.column("offset"), np.int64), batch.column("partition")[0].as_py()
        state = self._active.get(partition) or ActiveSegment(base_offset=0)
        segments = np.maximum(_view(batch.column("segment"), np.int64), state.base_offset)
        sizes, times, known = _measures(batch)
        judged = known & (times <= self._rules.late_after)
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(segments)]):
            run, some = slice(start, end), judged[start:end]
            if segments[start] != state.base_offset:
                state = ActiveSegment(base_offset=int(segments[start]))
            state.join(
                size=int(sizes[run].sum()),
                rows=end - start,
                newest_at=Instant(int(times[run][some].max())) if some.any() else None,
                any_unknown=not known[run].all(),
                first_at=_first_known(times[run], some),
            )
        self._active[partition], self._ends[partition] = state, int(offsets[-1]) + 1
        return offsets, segments


def with_places(batch: pa.RecordBatch, offsets: Longs, segments: Longs) -> pa.RecordBatch:
    """Give the messages the columns `offset` and `segment`."""
    for name, values in (("offset", offsets), ("segment", segments)):
        column = pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, pa.py_buffer(np.ascontiguousarray(values))])
        at = batch.schema.get_field_index(name)
        batch = batch.append_column(name, column) if at < 0 else batch.set_column(at, name, column)
    return batch


def count_opened(batches: Iterable[pa.RecordBatch], base: LogSummary, rules: CutRules) -> list[int]:
    """Return how many segments these messages would open by each of `rules.by_span`."""
    numberings = [Numbering(base, replace(one, most_opened=INT64_MAX)) for one in rules.by_span()]
    for batch in batches:
        for numbering in numberings:
            numbering.places(batch)
    return [numbering.opened for numbering in numberings]


def _measures(batch: pa.RecordBatch) -> tuple[Longs, Longs, Flags]:
    """Sizes and times of messages, and which times are known."""
    time = batch.column("append_time")
    known = _view(time.is_valid().cast(pa.uint8()), np.uint8).astype(np.bool_)
    return _view(batch.column("size_bytes"), np.int64), _view(time.cast(pa.int64()), np.int64), known


# Buffers and no scalars, because PyArrow's own ways to and from Python import pandas: a second of CPU in every new worker.
def _view(column: pa.Array, kind: type[np.generic]) -> NDArray[Any]:
    """The numbers of a column, not copied; what stands where there is none has no meaning."""
    return np.frombuffer(column.buffers()[1], dtype=kind)[column.offset : column.offset + len(column)]


# Messages whose key may not come in.


def mark_forbidden(batch: pa.RecordBatch, match: KeyMatch, *, code: str, keyless: str) -> pa.RecordBatch:
    """Give messages with such a key this code, whatever else is wrong with them, and remove their raw text.

    Args:
        keyless: The code of records whose key cannot be read. Such a record is refused if it tells such a key anywhere.
    """
    codes, raw = batch["code"], batch["raw"]
    unread = pc.if_else(pc.equal(codes, keyless), raw, pa.scalar(None, raw.type)).to_pylist()
    tells = pa.array([record is not None and tells_key(record.encode(), match) for record in unread], pa.bool_())
    forbidden = pc.or_(key_mask(batch["key"], match), tells)
    for name, column in (("code", pc.if_else(forbidden, code, codes)), ("raw", pc.if_else(forbidden, pa.scalar(None, raw.type), raw))):
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch
