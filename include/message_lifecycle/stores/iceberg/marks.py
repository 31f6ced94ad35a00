"""Markers on a plan's branch: which keys the staged change empties, their markers, and the older markers that go (MRK-1 to MRK-5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import REASONS, Marker, digest
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged, StagedMarkers
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import offsets_of, ranges_text
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.lifetime import Lifetime
from message_lifecycle.operations.numbering import admit
from message_lifecycle.stores.iceberg import marks_sql as sql
from message_lifecycle.stores.iceberg.append import WRITE_OPTIONS
from message_lifecycle.stores.iceberg.branches import set_refs
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.fence import Ancestor, newest_state
from message_lifecycle.stores.iceberg.file_names import location_prefix
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID, LogSummary
from message_lifecycle.stores.iceberg.row_deletes import delete_rows
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table, sql_table
from message_lifecycle.stores.iceberg.writer import row_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession


def mark(session: SparkSession, io: FileIO, plan: Plan, staged: Staged, policy: Policy) -> Staged:
    """See `ports.MessageStore.mark`. The markers are numbered as if nothing were appended until the commit."""
    assert policy.marker_ttl_us is not None
    staged = _start_over(session, plan, staged)
    assert staged.branch is not None
    emptied = _emptied(session, plan, staged)
    made = tuple(_marker(row, plan.as_of, policy.marker_ttl_us) for row in emptied)
    superseded: tuple[RemoveRows, ...] = ()
    if made:
        superseded = tuple(_older(session, plan, emptied))
        if superseded:
            delete_rows(session, io, plan.topic, staged.branch, superseded)
        table = java_table(session, plan.topic)
        rows, _ = numbered(made, sealed(newest_state(ancestors(table, plan.requirements.snapshot_id)), plan), policy)
        write(session, plan.topic, staged.branch, rows)
    table = java_table(session, plan.topic)
    table.refresh()
    head = int(table.snapshot(staged.branch).snapshotId())
    return replace(staged, snapshot_id=head, markers=StagedMarkers(count=len(made), digest=digest(made), superseded=superseded))


def _start_over(session: SparkSession, plan: Plan, staged: Staged) -> Staged:
    """Back to the removal alone: a run that died here may have left markers on the branch, or older ones removed."""
    table = java_table(session, plan.topic)
    branch, removal = staged.branch, table.snapshot(staged.snapshot_id)
    while removal is not None and removal.snapshotId() != plan.requirements.snapshot_id and not removal.summary().get(STAGED_PLAN_ID):
        parent = removal.parentId()
        removal = None if parent is None else table.snapshot(parent)
    if removal is None or table.snapshot(branch) is None:
        raise PlanConflict(plan.plan_id, f"what was staged for it ({staged.snapshot_id}) is gone")
    removal_id = int(removal.snapshotId())
    if int(table.snapshot(branch).snapshotId()) != removal_id:
        set_refs(table, lambda refs: refs.replaceBranch(branch, removal_id), what=f"marking plan {plan.plan_id}")
    forget_cached(session, plan.topic)
    return replace(staged, snapshot_id=removal_id, markers=None)


def _emptied(session: SparkSession, plan: Plan, staged: Staged) -> list[dict[str, Any]]:
    """See `marks_sql.MARKED`."""
    # Where nothing that goes can cause a marker, the list, which may be most of a log, is not made (DEL-9).
    caused = bool(plan.on_log.drop) or any(rows.reason in REASONS for rows in plan.on_log.mark)
    with removal_list(session, plan.on_log.mark if caused else ()) as listed:
        marks: dict[str, object] = {
            "table": sql_table(plan.topic),
            "before": plan.requirements.snapshot_id,
            "after": staged.snapshot_id,
            "listed": listed,
            "dropped": dropped_places(plan),
        }
        emptied = owed(session, plan) if plan.on_log.sweep else sql.EMPTIED.format(**marks)
        found: list[dict[str, Any]] = session.sql(sql.MARKED.format(**marks, emptied=emptied)).toArrow().to_pylist()
    return found


def _marker(row: Mapping[str, Any], as_of: Instant, ttl_us: int) -> Marker:
    return Marker(
        partition=row["partition"],
        replaces=row["offset"],
        key=row["key"],
        reason=REASONS[row["reason"]],
        append_time=Instant(max(as_of, row["newest"] or as_of)),
        ttl_us=ttl_us,
    )


def owed(session: SparkSession, plan: Plan) -> str:
    """The question which keys another writer has left without a message or a marker."""
    table, name = java_table(session, plan.topic), sql_table(plan.topic)
    left_empty = " UNION ALL ".join(
        f"({sql.LEFT_EMPTY.format(table=name, parent=int(table.snapshot(removal).parentId()), removal=removal)})"
        for removal in plan.on_log.sweep
    )
    return sql.OWED.format(left_empty=left_empty, table=name, before=plan.requirements.snapshot_id)


def _older(session: SparkSession, plan: Plan, emptied: Iterable[Mapping[str, Any]]) -> Iterator[RemoveRows]:
    """The older markers of these keys, but for what the plan spares (MRK-5)."""
    columns = itemgetter("partition", "segment", "file", "offset")
    found = sorted(columns(older) for row in emptied for older in row["older"] or ())
    prefix = location_prefix(str(java_table(session, plan.topic).location()))
    for (partition, segment, file), group in groupby(found, key=itemgetter(0, 1, 2)):
        offsets = [offset for *_, offset in group if not plan.spares(partition, offset)]
        if not offsets:
            continue
        yield RemoveRows(
            partition=partition,
            base_offset=segment,
            file=file.removeprefix(prefix),
            offsets=ranges_text(offsets),
            rows=len(offsets),
            reason="superseded",
        )


def numbered(made: Iterable[Marker], state: LogSummary, policy: Policy) -> tuple[pa.Table, LogSummary]:
    """The markers as rows that follow the log in `state`, and the state with them."""
    ends, active = dict(state.end_offsets), deepcopy(dict(state.active))
    rows = []
    for marker in made:
        end = ends.get(marker.partition, 0)
        mine = active.setdefault(marker.partition, ActiveSegment(base_offset=end))
        message = marker.message()
        offset, segment = admit(message, end_offset=end, active=mine, policy=policy)
        ends[marker.partition] = offset + 1
        dies = Lifetime(expires_at=Instant(marker.append_time + marker.ttl_us))
        rows.append(row_of(message, offset, segment, dies))
    return pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow()), replace(state, end_offsets=ends, active=active)


def write(session: SparkSession, name: TopicName, branch: str, rows: pa.Table) -> None:
    ordered = session.createDataFrame(rows).coalesce(1).sortWithinPartitions("partition", "segment", "offset")
    ordered.writeTo(sql_table(name, branch=branch)).options(**WRITE_OPTIONS).append()
    forget_cached(session, name)


def sealed(state: LogSummary, plan: Plan) -> LogSummary:
    """The log's state after the plan's seals, and after what it purges because the compacted view covers it."""
    for seal in plan.on_log.seal:
        state = state.sealed_at(seal.partition, seal.base_offset, seal.next_offset)
    for run in plan.on_log.drop:
        if run.reason == "compacted":
            state = state.purged({run.partition: run.last_offset})
    return state


def ancestors(table: Java, snapshot_id: int | None) -> Iterator[Ancestor]:
    """The snapshot and those before it, newest first."""
    snapshot = None if snapshot_id is None else table.snapshot(snapshot_id)
    while snapshot is not None:
        yield Ancestor(snapshot)
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def dropped_places(plan: Plan) -> str:
    """Where the segments lie that go whole, as a condition on `t`."""
    return (
        " OR ".join(
            f"(t.partition = {run.partition} AND t.segment BETWEEN {run.first_base} AND {run.last_base})" for run in plan.on_log.drop
        )
        or "false"
    )


@contextmanager
def removal_list(session: SparkSession, removals: Sequence[RemoveRows]) -> Iterator[str]:
    """A view of (partition, offset, reason)."""
    offsets = [pa.array(offsets_of(action.offsets), pa.int64()) for action in removals]
    each = list(zip(removals, offsets, strict=True))
    columns = {
        "partition": pa.chunked_array([pa.repeat(pa.scalar(action.partition, pa.int32()), len(of)) for action, of in each], pa.int32()),
        "offset": pa.chunked_array(offsets, pa.int64()),
        "reason": pa.chunked_array([pa.repeat(pa.scalar(action.reason, pa.string()), len(of)) for action, of in each], pa.string()),
    }
    session.createDataFrame(pa.table(columns)).createOrReplaceTempView("removal_list")
    try:
        yield "removal_list"
    finally:
        session.catalog.dropTempView("removal_list")


@contextmanager
def keys_view(session: SparkSession, plan_id: str, keys: Iterable[bytes]) -> Iterator[str]:
    view = f"keys_{plan_id}"
    session.createDataFrame(pa.table({"key": pa.array(keys, pa.binary())})).createOrReplaceTempView(view)
    try:
        yield view
    finally:
        session.catalog.dropTempView(view)
