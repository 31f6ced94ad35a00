"""Appending a batch of messages, numbered without a lock (MSG-4).

The batch is numbered on from the state of a base snapshot and written to a branch. The commit holds only if the partitions
that it touches still end where the base ended, and their active segments are still open; else it is numbered and written
again. Partitions that it does not touch are carried over from what the commit really builds on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.errors import LifecycleError, TableBusy
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import ledger_text
from message_lifecycle.stores.iceberg.exactly_once import AlreadyThere, Appended, MayCommit, Written, commit_staged, staging
from message_lifecycle.stores.iceberg.fence import main_ancestors, newest_state
from message_lifecycle.stores.iceberg.layout import LEDGER, PARTITIONS_PROPERTY, LogSummary
from message_lifecycle.stores.iceberg.session import forget_cached, sql_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# Offsets and segments for a block of messages at a time (MSG-4, EXP-3).
#
# `ActiveSegment.take` is the rule; this is the same rule over arrays, because a log of millions of messages cannot be fed
# through it one by one (a property test holds the two equal). It runs in Spark's Python workers: nothing here needs Spark, and
# what is kept from block to block is one `ActiveSegment` and the next offset per partition.


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


TRIES = 5
# One file per segment and append: the segment's size is the limit.
_NO_FILE_LIMIT = str(2**50)
WRITE_OPTIONS: Mapping[str, str] = {
    # The rows come clustered by segment and sorted: another shuffle and sort would give the same.
    "use-table-distribution-and-ordering": "false",
    "fanout-enabled": "false",
    "target-file-size-bytes": _NO_FILE_LIMIT,
}
_MESSAGE = ("partition", "append_time", "event_time", "key", "value", "headers", "size_bytes")
_MESSAGE_TYPES = (
    "partition int not null, append_time timestamp, event_time timestamp, key binary, value binary, "
    "headers array<struct<name: string, value: binary>>, size_bytes bigint not null"
)
# Of messages without headers not even a column of nulls goes through the workers.
_LIFETIME = {"expires_at": "timestamp", "never": "boolean"}
_NUMBERS = "offset bigint not null, segment bigint not null"


class MovedOn(LifecycleError):
    """Another writer was first in one of our partitions: number again. Never leaves this module."""


def append_batch(
    session: SparkSession,
    name: TopicName,
    messages: Callable[[], DataFrame],
    *,
    batch_id: str,
    rules: CutRules,
    ledger: tuple[str, int],
    may_commit: MayCommit,
    staged: Callable[[int], None],
) -> Appended | None:
    """Append the messages in order of (`partition`, `log_order`), once; None: there are none.

    `messages` gives, for each try, a frame with the columns that a message brings, and `log_order`; `expires_at` and `never` where
    messages can have lifetimes of their own. `staged` is called with
    the number of rows when they are written and before they are committed; what it raises leaves the log as it was. A batch
    that is on main already is found, not repeated. Raises TableBusy when other writers came first every time, CommitUnknown.
    """
    for _ in range(TRIES):
        with staging(session, name, batch_id) as stage:
            if (found := stage.found(batch_id)) is not None:
                return found
            base = newest_state(main_ancestors(stage.table))
            partitions = int(stage.table.properties()[PARTITIONS_PROPERTY])
            numbered = _numbered(messages(), base, rules, partitions)
            numbered.writeTo(sql_table(name, branch=stage.branch)).options(**WRITE_OPTIONS).append()
            written = stage.written()
            staged(written.rows)
            if not written.files:
                return None
            ours = state_after(session, name, stage.branch, base, written)
            with suppress(MovedOn, AlreadyThere):
                commit_staged(
                    session,
                    stage,
                    written,
                    batch_id=batch_id,
                    properties={LEDGER: ledger_text(ledger)},
                    may_commit=may_commit,
                    state=partial(merged, base, ours),
                )
        forget_cached(session, name)
    raise TableBusy(f"batch {batch_id} of topic {name}", TRIES)


def _numbered(messages: DataFrame, base: LogSummary, rules: CutRules, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    own = {name: kind for name, kind in _LIFETIME.items() if name in messages.columns}
    in_order = messages.repartitionById(partitions, "partition").sortWithinPartitions("log_order").select(*_MESSAGE, *own)
    types = ", ".join((_MESSAGE_TYPES, *(f"{name} {kind}" for name, kind in own.items()), _NUMBERS))
    # A copy of another log brings the offset there (MSG-5).
    absent = {name: kind for name, kind in {**_LIFETIME, "origin_offset": "bigint"}.items() if name not in own}
    return in_order.mapInArrow(partial(number, base=base, rules=rules), types).withColumns(
        {name: F.lit(None).cast(kind) for name, kind in absent.items()}
    )


def state_after(session: SparkSession, name: TopicName, branch: str, base: LogSummary, written: Written) -> LogSummary:
    """The log's state of the partitions that got messages, from what was written: right however often a task was run."""
    rows: dict[int, int] = {}
    for (partition, _), count in written.segments.items():
        rows[partition] = rows.get(partition, 0) + count
    ends = {partition: base.end_offsets.get(partition, 0) + count for partition, count in rows.items()}
    return LogSummary(end_offsets=ends, active=active_after(session, name, branch, base, written))


def active_after(session: SparkSession, name: TopicName, branch: str, base: LogSummary, written: Written) -> dict[int, ActiveSegment]:
    """The last segment of each partition that got messages, with what was in it before and what was written to the branch."""
    from pyspark.sql import functions as F

    if not written.segments:
        return {}
    last: dict[int, int] = {}
    for partition, segment in written.segments:
        last[partition] = max(segment, last.get(partition, segment))
    # Only the segments that still take messages, only what is new in them, only two narrow columns.
    wanted = reduce(
        or_,
        (
            (F.col("partition") == partition) & (F.col("segment") == segment) & (F.col("offset") >= base.end_offsets.get(partition, 0))
            for partition, segment in last.items()
        ),
    )
    newest = F.max(F.unix_micros("append_time"))
    unknown = F.count_if(F.col("append_time").isNull())
    found = (
        session.table(sql_table(name, branch=branch))
        .where(wanted)
        .groupBy("partition", "segment")
        .agg(F.sum("size_bytes"), F.count(F.lit(1)), newest, unknown)
        .collect()
    )
    active = {}
    for partition, segment, size, count, newest_at, unknown_times in found:
        before = base.active.get(partition)
        state = replace(before) if before is not None and before.base_offset == segment else ActiveSegment(base_offset=segment)
        state.join(size=size, rows=count, newest_at=newest_at, any_unknown=unknown_times > 0)
        active[partition] = state
    return active


def merged(base: LogSummary, ours: LogSummary, now: LogSummary) -> LogSummary:
    """Ours in our partitions, what the commit builds on in the others. Raises MovedOn where that is not our base."""
    for partition in ours.end_offsets:
        if now.end_offsets.get(partition) != base.end_offsets.get(partition):
            raise MovedOn
        if now.active.get(partition) != base.active.get(partition):
            raise MovedOn  # sealed meanwhile: our first messages would join a segment that is closed
    return replace(now, end_offsets={**now.end_offsets, **ours.end_offsets}, active={**now.active, **ours.active})
