"""Markers on a plan's branch: the keys that the staged change empties, their markers, and the removed older markers (MRK-1 to MRK-5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import KV_HEADER, REASON_HEADER, Marker, Place, digest, offsets_of, ranges_text
from message_lifecycle.model.outcome import Staged, StagedMarkers
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import marker_of, marker_reasons
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.admission import Lifetime, admit
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg.branches import StagedChange, commit_to, head_of, set_refs
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.data_files import delete_rows
from message_lifecycle.stores.iceberg.engine import Engine, job_text
from message_lifecycle.stores.iceberg.fence import newest_state
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID, LogSummary
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.snapshot_rows import SnapshotRows, snapshot_rows
from message_lifecycle.stores.iceberg.table_folder import location_prefix
from message_lifecycle.stores.iceberg.writer import Row, row_of, write_rows

if TYPE_CHECKING:
    from pyiceberg.table import Table


def mark(engine: Engine, log: Table, plan: Plan, staged: Staged, policy: Policy) -> Staged:
    """See `ports.MessageStore.mark`. The markers are numbered as if nothing were appended until the commit.

    `log` is the topic's table, with the staged change.
    """
    assert policy.marker_ttl_us is not None
    staged = _start_over(engine, plan, staged)
    base_id = plan.requirements.snapshot_id
    assert staged.branch is not None and base_id is not None
    emptied, newest = _emptied(log, plan, staged)
    made = tuple(_marker(row, plan.as_of, newest.get(row["partition"]), policy.marker_ttl_us) for row in emptied)
    superseded: tuple[RemoveRows, ...] = ()
    if made:
        superseded = tuple(_older(log, plan, emptied))
        if superseded:
            delete_rows(engine, log.io, plan.topic, staged.branch, superseded, description=partial(job_text, plan))
        table = engine.table(plan.topic)
        state = seal_state(newest_state(table, table.snapshot(base_id)), plan)
        rows, _ = number_markers(made, state, policy, latest_allowed_time=policy.latest_allowed_time(plan.as_of))
        append_to(table, staged.branch, write_rows(engine, table, rows))
        engine.forget(plan.topic)
    table = engine.table(plan.topic)
    table.refresh()
    head = int(table.snapshot(staged.branch).snapshotId())
    return replace(staged, snapshot_id=head, markers=StagedMarkers(count=len(made), digest=digest(made), superseded=superseded))


def _start_over(engine: Engine, plan: Plan, staged: Staged) -> Staged:
    """Back to the removal alone: a run that died here may have left markers on the branch, or older ones removed."""
    table = engine.table(plan.topic)
    branch, removal = staged.branch, table.snapshot(staged.snapshot_id)
    while removal is not None and removal.snapshotId() != plan.requirements.snapshot_id and not removal.summary().get(STAGED_PLAN_ID):
        parent = removal.parentId()
        removal = None if parent is None else table.snapshot(parent)
    if removal is None or table.snapshot(branch) is None:
        raise PlanConflict(plan.plan_id, f"what was staged for it ({staged.snapshot_id}) is gone")
    removal_id = int(removal.snapshotId())
    if int(table.snapshot(branch).snapshotId()) != removal_id:
        set_refs(
            table,
            lambda refs: refs.replaceBranch(branch, removal_id),
            done=lambda: head_of(table, str(branch)) == removal_id,
            what=f"marking plan {plan.plan_id}",
        )
    engine.forget(plan.topic)
    return replace(staged, snapshot_id=removal_id, markers=None)


def _emptied(log: Table, plan: Plan, staged: Staged) -> tuple[list[Row], Mapping[int, int | None]]:
    """Return the rows of `MARKED`, and the newest time of each partition that has a time later than the plan's `as_of`."""
    # Without a removal that can cause a marker, do not build the list, which may have most of a log (DEL-9).
    caused = bool(plan.log_commit.drop) or any(marker_of(rows.reason) is not None for rows in plan.log_commit.mark)
    before_id = plan.requirements.snapshot_id
    with snapshot_rows(log, plan.plan_id) as rows:
        if plan.log_commit.sweep:
            find_owed(rows, log, plan)
        else:
            removals = plan.log_commit.mark if caused else ()
            places = places_of(removals)
            rows.relate(
                "before", before_id, lambda file: (file.partition, file.segment) in places or plan.drops(file.partition, file.segment)
            )
            rows.register("listed", removal_list(removals))
            rows.run(EMPTIED.format(dropped=dropped_places(plan), causes=causes()))
        # If no message with a key was removed, the remaining messages need no scan.
        if not rows.ask("SELECT 1 FROM emptied LIMIT 1").num_rows:
            return [], {}
        rows.relate("after", staged.snapshot_id)
        found: list[Row] = rows.ask(MARKED).to_pylist()
        return found, {row["partition"]: row["newest"] for row in newest_times(rows, plan).to_pylist()}


def _marker(row: Row, as_of: Instant, newest: int | None, ttl_us: int) -> Marker:
    reason = marker_of(row["reason"])
    assert reason is not None, "only a reason that makes a marker is asked for"
    return Marker(
        partition=row["partition"],
        replaces=row["offset"],
        key=row["key"],
        reason=reason,
        append_time=Instant(max(as_of, newest or as_of)),
        ttl_us=ttl_us,
    )


def find_owed(rows: SnapshotRows, log: Table, plan: Plan) -> None:
    """Make the table `emptied` of the keys that another writer has left without a message or a marker."""
    rows.run(LEFT_EMPTIES)
    for removal_id in plan.log_commit.sweep:
        removal = log.snapshot_by_id(removal_id)
        parent_id = None if removal is None else removal.parent_snapshot_id
        rows.relate("was", parent_id, rows.differing(parent_id, removal_id))
        rows.relate("removal", removal_id, rows.differing(removal_id, parent_id))
        rows.relate("rest", removal_id)
        rows.run(LEFT_EMPTY)
    rows.relate("now", plan.requirements.snapshot_id)
    rows.run(OWED)


def newest_times(rows: SnapshotRows, plan: Plan) -> pa.Table:
    """(partition, newest) of the files that may hold a time later than the plan's `as_of`."""
    rows.relate("late", plan.requirements.snapshot_id, lambda file: file.newest_at is None or file.newest_at > plan.as_of)
    return rows.ask(NEWEST)


def _older(log: Table, plan: Plan, emptied: Iterable[Row]) -> Iterator[RemoveRows]:
    """Yield row removals for the older markers of these keys, without the markers that the plan spares (MRK-5)."""
    columns = itemgetter("partition", "segment", "file", "offset")
    found = sorted(columns(older) for row in emptied for older in row["older"] or ())
    prefix = location_prefix(log.location())
    for (partition, segment, file), group in groupby(found, key=itemgetter(0, 1, 2)):
        offsets = [offset for *_, offset in group if not plan.keeps_marker(partition, offset)]
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


def number_markers(
    made: Iterable[Marker], state: LogSummary, policy: Policy, *, latest_allowed_time: Instant
) -> tuple[pa.Table, LogSummary]:
    """The markers as rows that follow the log in `state`, and the state with them."""
    ends, active = dict(state.end_offsets), deepcopy(dict(state.active))
    rows = []
    for marker in made:
        end = ends.get(marker.partition, 0)
        mine = active.setdefault(marker.partition, ActiveSegment(base_offset=end))
        message = marker.message()
        offset, segment = admit(message, end_offset=end, active=mine, policy=policy, latest_allowed_time=latest_allowed_time)
        ends[marker.partition] = offset + 1
        dies = Lifetime(expires_at=Instant(marker.append_time + marker.ttl_us))
        rows.append(row_of(message, offset, segment, dies))
    return pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow()), replace(state, end_offsets=ends, active=active)


def append_to(table: Java, branch: str, files: Iterable[Java]) -> None:
    update = table.newAppend()
    for file in files:
        update.appendFile(file)
    commit_to(table, branch, update, what=f"committing markers to branch {branch}")


def seal_state(state: LogSummary, plan: Plan) -> LogSummary:
    """The log's state after the plan's seals, and after what it purges because the compacted view covers it."""
    for seal in plan.log_commit.seal:
        state = state.sealed_at(seal.partition, seal.base_offset, seal.next_offset)
    for run in plan.log_commit.drop:
        if run.reason == "compacted":
            state = state.purged({run.partition: run.last_offset})
    return state


def dropped_places(plan: Plan) -> str:
    """Return a condition on `t`: the row is in a segment that the plan drops whole."""
    return (
        " OR ".join(
            f"(t.partition = {run.partition} AND t.segment BETWEEN {run.first_base} AND {run.last_base})" for run in plan.log_commit.drop
        )
        or "false"
    )


def places_of(removals: Iterable[RemoveRows]) -> frozenset[Place]:
    return frozenset((action.partition, action.base_offset) for action in removals)


def removal_list(removals: Sequence[RemoveRows]) -> pa.Table:
    """Rows of (partition, offset, reason)."""
    offsets = [pa.array(offsets_of(action.offsets), pa.int64()) for action in removals]
    each = list(zip(removals, offsets, strict=True))
    columns = {
        "partition": pa.chunked_array([pa.repeat(pa.scalar(action.partition, pa.int32()), len(of)) for action, of in each], pa.int32()),
        "offset": pa.chunked_array(offsets, pa.int64()),
        "reason": pa.chunked_array([pa.repeat(pa.scalar(action.reason, pa.string()), len(of)) for action, of in each], pa.string()),
    }
    return pa.table(columns)


# The questions about keys and markers, in DuckDB's SQL. `before` and `after` are snapshots of a topic, `listed` the single messages that
# go, with their reasons; all are relations of `snapshot_rows`.


IS_MARKER = f"coalesce(list_contains(list_transform(headers, lambda h: h.name), '{REASON_HEADER}'), false)"
CAUSES_NONE = f"({IS_MARKER} OR coalesce(list_contains(headers, struct_pack(name := '{KV_HEADER}', value := 'PURGE'::BLOB)), false))"


def causes() -> str:
    """Return the reasons that make a marker, as a list in SQL."""
    return ", ".join(f"'{reason}'" for reason in marker_reasons())


# For each key: the newest removed message, and the newest that an age rule or a request removes (MRK-3). `dropped`: the dropped segments.
EMPTIED = f"""
    CREATE OR REPLACE TABLE emptied AS
    SELECT last.partition AS partition, last."offset" AS "offset", key, cause.reason AS reason
    FROM (
        SELECT key, max(struct_pack(partition := partition, "offset" := "offset", causes_none := causes_none)) AS last,
               max(struct_pack(partition := partition, "offset" := "offset", reason := reason)) FILTER (reason IN ({{causes}})) AS cause
        FROM (
            SELECT t.partition, t."offset", t.key, {CAUSES_NONE} AS causes_none, 'expiry' AS reason
            FROM before AS t WHERE t.key IS NOT NULL AND ({{dropped}})
            UNION ALL
            SELECT t.partition, t."offset", t.key, {CAUSES_NONE} AS causes_none, l.reason
            FROM before AS t JOIN listed AS l ON l.partition = t.partition AND l."offset" = t."offset" WHERE t.key IS NOT NULL
        ) GROUP BY key
    ) WHERE NOT last.causes_none AND cause IS NOT NULL
"""

# Keys that another writer left without a live message, in one snapshot. `was` is the snapshot before the removal, and `removal` the one
# after it; each has only the files that the other one lacks. `rest` is the whole snapshot of the removal.
LEFT_EMPTY = f"""
    INSERT INTO left_empty
    WITH gone AS (
        SELECT key, max(struct_pack(partition := partition, "offset" := "offset", causes_none := {CAUSES_NONE})) AS last
        FROM was AS w ANTI JOIN removal AS r ON r.partition = w.partition AND r."offset" = w."offset"
        WHERE key IS NOT NULL GROUP BY key
    )
    SELECT key, last FROM gone
    ANTI JOIN (SELECT key FROM rest SEMI JOIN gone USING (key) GROUP BY key HAVING NOT bool_and({IS_MARKER})) USING (key)
"""
LEFT_EMPTIES = 'CREATE OR REPLACE TABLE left_empty (key BLOB, last STRUCT(partition INTEGER, "offset" BIGINT, causes_none BOOLEAN))'

# Keys of `left_empty` that still have no live message, and no later marker.
OWED = f"""
    CREATE OR REPLACE TABLE emptied AS
    WITH newest AS (SELECT key, max(last) AS last FROM left_empty GROUP BY key)
    SELECT last.partition AS partition, last."offset" AS "offset", key, 'removed' AS reason FROM newest
    ANTI JOIN (
        SELECT b.key FROM now AS b JOIN newest AS n ON n.key = b.key
        GROUP BY b.key HAVING bool_or(NOT {IS_MARKER} OR b."offset" > n.last."offset")
    ) USING (key)
    WHERE NOT last.causes_none
"""

# The emptied keys in the order of their markers, with the places of each key's older markers. A key is not emptied if any message that is
# not a marker stays (MRK-3). The query checks for markers only in messages with an emptied key.
MARKED = f"""
    WITH met AS (
        SELECT key, bool_and({IS_MARKER}) AS empty,
               list(struct_pack(partition := partition, segment := segment, file := path, "offset" := "offset")) FILTER ({IS_MARKER}) AS older
        FROM (FROM after SEMI JOIN emptied USING (key)) JOIN after_files USING (file) GROUP BY key
    )
    SELECT e.partition, e."offset", e.key, e.reason, m.older
    FROM emptied AS e LEFT JOIN met AS m ON m.key = e.key
    WHERE coalesce(m.empty, true) ORDER BY e.partition, e."offset"
"""

# The newest time of each partition. `late` has only the files that may hold a time after the plan's `as_of`: older times do not matter.
NEWEST = "SELECT partition, max(epoch_us(append_time)) AS newest FROM late GROUP BY partition"

# Keys of a list that another writer's messages have met since the plan.
ARRIVED = f"SELECT DISTINCT key FROM appended SEMI JOIN keys USING (key) WHERE NOT {IS_MARKER}"

# Markers among the messages that the plan's snapshot has not.
STAGED = f"""
    SELECT partition, "offset", key, headers, epoch_us(append_time) AS appended FROM staged AS t WHERE {IS_MARKER} AND ({{new}})
    ORDER BY partition, "offset"
"""


# A plan's markers at the moment of publishing. Markers that newer messages made needless are cancelled. The numbers of the other markers
# follow the log's end at that moment (MRK-3, MRK-4).
#
# Publishing still removes an older marker of a cancelled key: the marker is in the deletion's own row list, and a commit publishes exactly
# what the gate judged (MRK-5). No reader loses anything. The live message that cancelled the marker comes later in the same partition, so
# no reader meets an older value, and the old marker no longer describes the key.


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersNow:
    """`files` hold `count` markers, whose offsets follow the log's end at the given head. `state`: the log's state with the markers."""

    files: Sequence[Java]
    count: int
    cancelled: int
    state: LogSummary

    @classmethod
    def read(
        cls, engine: Engine, table: Java, log: Table, verdict: Verdict, change: StagedChange, *, base_id: int, head_id: int
    ) -> MarkersNow:
        """`log`: the table as PyIceberg reads it, at the head or later."""
        plan, staged = verdict.plan, verdict.staged
        assert staged.branch is not None
        policy = Policy.from_values(plan.policy)
        with snapshot_rows(log, plan.plan_id) as rows:
            made = kept = _staged_markers(rows, verdict, policy)
            if head_id != base_id:
                arrived = _appended_keys(rows, made, base_id=base_id, head_id=head_id)
                kept = [marker for marker in made if marker.key not in arrived]
        state = seal_state(newest_state(table), plan)
        numbered_rows, after = number_markers(kept, state, policy, latest_allowed_time=policy.latest_allowed_time(plan.as_of))
        if head_id == base_id or (kept == made and state == seal_state(newest_state(table, table.snapshot(base_id)), plan)):
            files = change.added
        else:
            files = write_rows(engine, table, numbered_rows)
            append_to(table, staged.branch, files)
        return cls(files=files, count=len(kept), cancelled=len(made) - len(kept), state=after)


def _staged_markers(rows: SnapshotRows, verdict: Verdict, policy: Policy) -> list[Marker]:
    """As they stand on the branch that the gate has judged, in their order."""
    assert policy.marker_ttl_us is not None
    ends = dict(verdict.plan.requirements.end_offsets)
    rows.relate("staged", verdict.staged.snapshot_id, lambda file: may_have_new_rows(file, ends))
    return [
        Marker(
            partition=row["partition"],
            replaces=row["offset"],
            key=row["key"],
            reason=next(header["value"] for header in row["headers"] if header["name"] == REASON_HEADER).decode(),
            append_time=Instant(row["appended"]),
            ttl_us=policy.marker_ttl_us,
        )
        for row in rows.ask(STAGED.format(new=new_offsets(ends))).to_pylist()
    ]


def new_offsets(ends: dict[int, int]) -> str:
    """Return a condition on `t`: the offset is newer than the plan's snapshot."""
    return " OR ".join(f"(t.partition = {partition} AND t.offset >= {end})" for partition, end in sorted(ends.items())) or "false"


def may_have_new_rows(file: FileMetrics, ends: Mapping[int, int]) -> bool:
    """True if the file may hold an offset that is newer than the plan's snapshot."""
    return file.partition in ends and (file.last_offset is None or file.last_offset >= ends[file.partition])


def _appended_keys(rows: SnapshotRows, made: list[Marker], *, base_id: int, head_id: int) -> set[bytes]:
    """Keys of the markers in what others have appended."""
    rows.relate("appended", head_id, rows.differing(head_id, base_id))
    rows.register("keys", pa.table({"key": pa.array((marker.key for marker in made), pa.binary())}))
    return {row["key"] for row in rows.ask(ARRIVED).to_pylist()}
