"""Appending a batch of messages, numbered without a lock (MSG-4).

The batch is numbered on from the state of a base snapshot and written to a branch. The commit holds only if the partitions
that it touches still end where the base ended, and their active segments are still open; else it is numbered and written
again. Partitions that it does not touch are carried over from what the commit really builds on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LifecycleError, TableBusy
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import ledger_text
from message_lifecycle.stores.iceberg.exactly_once import (
    AlreadyThere,
    Appended,
    MayCommit,
    Written,
    commit_staged,
    staging,
)
from message_lifecycle.stores.iceberg.fence import main_ancestors, newest_state
from message_lifecycle.stores.iceberg.layout import LEDGER, PARTITIONS_PROPERTY, LogSummary
from message_lifecycle.stores.iceberg.numbering import CutRules, number
from message_lifecycle.stores.iceberg.session import forget_cached, sql_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
