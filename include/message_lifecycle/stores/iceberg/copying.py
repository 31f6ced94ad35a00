"""A source or mirror filled from its origin: what is new there, at one snapshot, in one commit (MSG-5, TTL-6).

Which offsets of the origin are copied stands in the replica's own summaries, in the commit that holds the copies: a copier that
dies before it has copied nothing, and after it copies nothing again. The commit holds only if no other copy came first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import TableBusy
from message_lifecycle.model.facts import ActiveSegment, CopyState, LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.admission import new_in_origin
from message_lifecycle.ports import Copied
from message_lifecycle.stores.iceberg import read
from message_lifecycle.stores.iceberg.append import (
    TRIES,
    WRITE_OPTIONS,
    AlreadyThere,
    MovedOn,
    Stage,
    Written,
    active_after,
    commit_staged,
    fitting,
    merged,
    staging,
    state_after,
)
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.engine import Engine, engine_with_sql
from message_lifecycle.stores.iceberg.fence import newest_state
from message_lifecycle.stores.iceberg.incoming import CutRules, is_forbidden, number
from message_lifecycle.stores.iceberg.layout import LEDGER, ROLE_PROPERTY, LogSummary
from message_lifecycle.stores.iceberg.named import NamesFailures
from message_lifecycle.stores.iceberg.session import sql_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# One name for all copies of a topic, so that each takes away what one that died has left.
_STAGE = "copy"
_MESSAGE = (
    "partition", "append_time", "event_time", "key", "value", "headers", "size_bytes", "origin_offset", "expires_at", "never",
)  # fmt: skip
_NUMBERED = (
    "partition int not null, append_time timestamp, event_time timestamp, key binary, value binary, "
    "headers array<struct<name: string, value: binary>>, size_bytes bigint not null, origin_offset bigint not null, "
    "expires_at timestamp, never boolean, offset bigint not null, segment bigint not null"
)
Frames = Callable[["DataFrame"], "DataFrame"]


class IcebergCopier(NamesFailures):
    """`ports.Copier`. An engine is asked for only when there is something to copy.

    `own_lifetimes`: gives messages `expires_at` and `never` as their headers say, as ingest does, and refuses none.
    """

    def __init__(self, engine: Callable[[], Engine], *, own_lifetimes: Frames, tables: Tables | None = None) -> None:
        self._engine, self._own_lifetimes, self._tables = engine, own_lifetimes, tables or Tables()

    def copied(self, name: TopicName) -> CopyState:
        return read.newest_state(self._tables.load(name)).copy_state

    def copy(
        self,
        name: TopicName,
        origin: LogState,
        policy: Policy,
        *,
        ledger: tuple[str, int],
        late_after: Instant,
        forbidden: KeyMatch | None = None,
    ) -> Copied:
        engine = engine_with_sql(self._engine)
        session = engine.session
        engine.forget(origin.topic)
        batch_id = secrets.token_hex(16)
        erased: int | None = None
        rules = CutRules.of(policy, late_after=late_after)
        for _ in range(TRIES):
            with staging(engine, name, _STAGE) as stage:
                base = newest_state(stage.table)
                found = stage.found(batch_id)
                new = new_in_origin(name, origin, base.copy_state)
                if found is not None or not new:
                    return Copied(
                        copied=base.copied, rows=0 if found is None else found.rows, erased=erased, span_seconds=rules.doubled_seconds
                    )
                mirror = stage.table.properties().get(ROLE_PROPERTY) == "mirror"
                rows, left_out = _allowed(_not_copied(session, origin, base, new), forbidden)
                rows = self._own_lifetimes(rows)
                placed = _mirrored(rows, base, len(origin.end_offsets)) if mirror else _sourced(rows, base, rules, len(origin.end_offsets))
                placed.writeTo(sql_table(name, branch=stage.branch)).options(**WRITE_OPTIONS).append()
                written = stage.written()
                if not mirror and written.opens_too_many(base, rules):
                    rules = fitting(_in_order(rows, len(origin.end_offsets)), base, rules)
                    continue
                erased = left_out()
                ours = (
                    _mirror_after(stage, name, base, written, origin, new, late_after=late_after)
                    if mirror
                    else state_after(engine, name, stage.branch, base, written, late_after=late_after)
                )
                ours = replace(ours, copied={**base.copied, **new}, copied_from=origin.table_uuid)
                with suppress(MovedOn, AlreadyThere):
                    commit_staged(
                        stage,
                        written,
                        batch_id=batch_id,
                        properties={LEDGER: ledger_text(ledger)},
                        may_commit=lambda: None,
                        state=partial(_after, base, ours),
                    )
            engine.forget(name)
        raise TableBusy(f"copy of topic {origin.topic} into {name}", TRIES)


def _not_copied(session: SparkSession, origin: LogState, base: LogSummary, new: Mapping[int, int]) -> DataFrame:
    """Everything past what is copied, raw; the bounds of files spare reading the rest."""
    from pyspark.sql import functions as F

    past = reduce(
        or_, ((F.col("partition") == partition) & (F.col("offset") > base.copied.get(partition, -1)) for partition in sorted(new))
    )
    return (
        session.sql(f"SELECT * FROM {sql_table(origin.topic)} VERSION AS OF {origin.snapshot_id}")
        .where(past)
        .withColumn("origin_offset", F.col("offset"))
    )


def _allowed(rows: DataFrame, forbidden: KeyMatch | None) -> tuple[DataFrame, Callable[[], int]]:
    """Without the messages whose key may not come in; and how many those are, to be asked when the others are written."""
    if forbidden is None:
        return rows, lambda: 0
    from pyspark.sql import functions as F

    marked = rows.withColumn("forbidden", is_forbidden(forbidden))
    left_out = marked.where("forbidden")
    # By a pass of its own: where all that is new is left out, nothing is written, and Spark skips what it was to observe.
    return marked.where(~F.col("forbidden")).drop("forbidden"), left_out.count


def _sourced(rows: DataFrame, base: LogSummary, rules: CutRules, partitions: int) -> DataFrame:
    """With offsets and segments of the source's own, in the origin's order."""
    return _in_order(rows, partitions).mapInArrow(partial(number, base=base, rules=rules), _NUMBERED)


def _in_order(rows: DataFrame, partitions: int) -> DataFrame:
    return rows.repartitionById(partitions, "partition").sortWithinPartitions("partition", "origin_offset").select(*_MESSAGE)


def _mirrored(rows: DataFrame, base: LogSummary, partitions: int) -> DataFrame:
    """With the origin's offsets and segments. A segment that the mirror has closed by itself takes no more messages: the rest of
    the origin's starts another where the mirror's log ended."""
    from pyspark.sql import functions as F

    active = [F.lit(number) for partition, state in sorted(base.active.items()) for number in (partition, state.base_offset)]
    first = F.coalesce(F.create_map(*active)[F.col("partition")], F.lit(0))
    return (
        rows.withColumn("segment", F.greatest(F.col("segment"), first.cast("bigint")))
        .repartitionById(partitions, "partition")
        .sortWithinPartitions("partition", "segment", "offset")
        .select(*_MESSAGE, "offset", "segment")
    )


def _mirror_after(
    stage: Stage, name: TopicName, base: LogSummary, written: Written, origin: LogState, new: Mapping[int, int], *, late_after: Instant
) -> LogSummary:
    """The mirror's log ends where the origin's does, and its last segment is closed where the origin's is."""
    ends = {partition: max(last + 1, base.end_offsets.get(partition, 0)) for partition, last in new.items()}
    active = active_after(stage.engine, name, stage.branch, base, written, late_after=late_after)
    closed = {(segment.partition, segment.base_offset) for segment in origin.segments if segment.sealed}
    for partition, state in active.items():
        if (partition, state.base_offset) in closed:
            active[partition] = ActiveSegment(base_offset=ends[partition])
    return LogSummary(end_offsets=ends, active=active)


def _after(base: LogSummary, ours: LogSummary, now: LogSummary) -> LogSummary:
    """As `append.merged`. Raises MovedOn where another copy came first, too: what we have written would be there twice."""
    if now.copy_state != base.copy_state:
        raise MovedOn
    return replace(merged(base, ours, now), copied=ours.copied, copied_from=ours.copied_from)
