"""Prepare incoming messages in tasks: give them places in the log, and find messages with a forbidden key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

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

# Assign offsets and segments to a block of messages at a time (MSG-4, EXP-3).
#
# `ActiveSegment.add_message` is the rule. The code here is the same rule over arrays, because it would be too slow for millions of single
# messages. A property test compares both. From block to block, only one `ActiveSegment` and the next offset per partition are kept.
#
# The number of segments that a batch opens is known only after the whole batch is numbered. If they are too many, tasks read the batch
# again to count segments with every span (`count_opened`). Then they number it again with the first span that fits.


Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRules:
    """The rules for the end of a segment: the segment size, the message expiry and the segment's span (0 = never, both).

    Attributes:
        latest_allowed_time: The clock of the batch plus the skew. A later time neither ends a segment nor keeps one open (CLK-4).
        most_opened: After so many segments in one task, the span ends no segment any more. A batch that opens more is numbered again.
        doubled: Whether `max_us` is a doubled span, for a second numbering.
    """

    limit_bytes: int
    expiry_us: int
    max_us: int = 0
    latest_allowed_time: int = INT64_MAX
    most_opened: int = admission.MOST_OPENED
    doubled: bool = False

    @classmethod
    def of(cls, policy: Policy, *, latest_allowed_time: Instant) -> CutRules:
        return cls(
            limit_bytes=policy.segment_size_bytes,
            expiry_us=policy.message_expiry_us,
            max_us=policy.segment_max_us,
            latest_allowed_time=latest_allowed_time,
            most_opened=admission.MOST_OPENED,
        )

    def by_span(self) -> tuple[CutRules, ...]:
        """Return the rules with each span that may count for one batch, the shortest first."""
        return tuple(replace(self, max_us=max_us) for max_us in admission.double_spans(self.max_us))

    def fitting(self, opened: Sequence[int]) -> CutRules:
        """Return the rules with the span that counts for a batch.

        Args:
            opened: How many segments the batch opens with each rule of `by_span`.
        """
        found = next((one for one, count in zip(self.by_span(), opened, strict=True) if count <= self.most_opened), self.by_span()[-1])
        return replace(found, most_opened=INT64_MAX, doubled=found.max_us != self.max_us)

    @property
    def doubled_seconds(self) -> int | None:
        """The doubled span of a segment; None: the span as set."""
        return self.max_us // MICROS_PER_SECOND if self.doubled else None


def cut(state: ActiveSegment, *, first_offset: int, sizes: Longs, times: Longs, known: Flags, rules: CutRules) -> Longs:
    """Return the segment that each message of one partition joins, and advance `state`.

    The messages have consecutive offsets from `first_offset` on; `times` counts only where `known`.
    """
    count = len(sizes)
    judged = known & (times <= rules.latest_allowed_time)
    segments = np.empty(count, dtype=np.int64)
    filled = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
    doubtful = _may_find_all_expired(times, judged, rules.expiry_us)

    def join(start: int, end: int) -> None:
        some = judged[start:end]
        state.count_messages(
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
        # The first message of a segment joins it whatever its size and time.
        first_judged = start if state.rows else start + 1
        end = min(max(full, first_judged), count)
        end = min(end, first_judged + _up_to_span(state, start, first_judged, times[:end], judged[:end], rules.max_us))
        joined = start
        for at in doubtful[np.searchsorted(doubtful, first_judged) : np.searchsorted(doubtful, end)].tolist():
            if state.any_unknown:
                break
            if state.newest_at is not None and times[at] < state.newest_at + rules.expiry_us:
                continue  # the newest time so far is proof enough, without a sum over the messages between
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
    """Return how many messages from `first_judged` on join the segment before one is past its span.

    Earlier messages, from `start` on, always join.
    """
    if not max_us or first_judged >= len(times):
        return len(times) - first_judged
    first_at = state.first_at if state.first_at is not None else _first_known(times[start:], known[start:])
    if first_at is None or first_at > INT64_MAX - max_us:
        return len(times) - first_judged
    past = known[first_judged:] & (times[first_judged:] > first_at + max_us)
    return int(past.argmax()) if past.any() else len(past)


def _may_find_all_expired(times: Longs, judged: Flags, expiry_us: int) -> NDArray[np.intp]:
    """Return the messages that may find all earlier messages of their segment expired.

    Such a message comes at least the expiry after the judged message before it. The judged message before the first one is in an earlier
    block, so the first one is always included.
    """
    found = np.flatnonzero(judged)
    if expiry_us == 0 or not len(found):
        return np.empty(0, dtype=np.intp)
    at = times[found]
    late = at[1:] >= np.minimum(at[:-1], INT64_MAX - expiry_us) + expiry_us
    return found[np.concatenate(([True], late))]


class Numbering:
    """Gives places to the messages of one task. One task gets all messages of a partition, in log order."""

    def __init__(self, base: LogSummary, rules: CutRules) -> None:
        self.opened = 0
        """The number of segments opened so far."""
        self._rules = rules
        self._ends = dict(base.end_offsets)
        self._active = {partition: replace(segment) for partition, segment in base.active.items()}

    def places(self, batch: pa.RecordBatch) -> tuple[Longs, Longs]:
        """Return offset and segment of each message, of at least one. Needs `partition`, `append_time` (microseconds) and `size_bytes`."""
        count = batch.num_rows
        partitions = _view(batch.column("partition"), np.int32)
        sizes, times, known = _sizes_and_times(batch)
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
    """Gives the messages of a mirror their places in the origin.

    A segment that the mirror has closed itself accepts no more messages. The rest of the origin's segment starts another one at the end of
    the mirror's log.
    """

    def places(self, batch: pa.RecordBatch) -> tuple[Longs, Longs]:
        """Return offsets and segments like `Numbering.places`, for messages of one partition. Needs `offset` and `segment`, too."""
        offsets, partition = _view(batch.column("offset"), np.int64), batch.column("partition")[0].as_py()
        state = self._active.get(partition) or ActiveSegment(base_offset=0)
        segments = np.maximum(_view(batch.column("segment"), np.int64), state.base_offset)
        sizes, times, known = _sizes_and_times(batch)
        judged = known & (times <= self._rules.latest_allowed_time)
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(segments)]):
            run, some = slice(start, end), judged[start:end]
            if segments[start] != state.base_offset:
                state = ActiveSegment(base_offset=int(segments[start]))
            state.count_messages(
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
    """Return how many segments the messages would open with each rule of `rules.by_span`."""
    numberings = [Numbering(base, replace(one, most_opened=INT64_MAX)) for one in rules.by_span()]
    for batch in batches:
        for numbering in numberings:
            numbering.places(batch)
    return [numbering.opened for numbering in numberings]


def _sizes_and_times(batch: pa.RecordBatch) -> tuple[Longs, Longs, Flags]:
    """Return sizes and times of messages, and which times are known."""
    time = batch.column("append_time")
    known = _view(time.is_valid().cast(pa.uint8()), np.uint8).astype(np.bool_)
    return _view(batch.column("size_bytes"), np.int64), _view(time.cast(pa.int64()), np.int64), known


# Use buffers, not scalars: PyArrow's own conversions to and from Python import pandas, which costs each new worker a second of CPU.
def _view(column: pa.Array, kind: type[Kind]) -> NDArray[Kind]:
    """Return the numbers of a column without a copy. The value at a null has no meaning."""
    return np.frombuffer(column.buffers()[1], dtype=kind)[column.offset : column.offset + len(column)]


# Messages with a forbidden key.


def mark_forbidden(batch: pa.RecordBatch, match: KeyMatch, *, code: str, keyless: str) -> pa.RecordBatch:
    """Give messages with a forbidden key the code, whatever other errors they have, and remove their raw text.

    Args:
        batch: The rows as the tasks read them.
        match: Matches forbidden keys.
        code: The code for a forbidden key.
        keyless: The code of records without a readable key. A record with this code is refused if its text contains a forbidden key.
    """
    codes, raw = batch["code"], batch["raw"]
    unread = pc.if_else(pc.equal(codes, keyless), raw, pa.scalar(None, raw.type)).to_pylist()
    tells = pa.array([record is not None and tells_key(record.encode(), match) for record in unread], pa.bool_())
    forbidden = pc.or_(key_mask(batch["key"], match), tells)
    for name, column in (("code", pc.if_else(forbidden, code, codes)), ("raw", pc.if_else(forbidden, pa.scalar(None, raw.type), raw))):
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch
