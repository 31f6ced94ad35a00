"""Evidence for the gate: small frames about the staged change, from Iceberg's own metadata (DEL-2).

The identity of files shows that kept messages are unchanged, so no file needs to be read for that. The evidence reads data in these cases
only:

- up to three files that are removed with their segments;
- files that lose single messages, may hold overdue ones, are cut by a limit, or hold times in the future;
- keys, for staged markers.

Tasks read the files of the second kind if they are many and an engine runs. No JVM is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import REASON_HEADER, Marker, Place, digest, go_duration
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import evidence_files as frames
from message_lifecycle.stores.iceberg.data_rows import Vectors
from message_lifecycle.stores.iceberg.evidence_files import both_snapshots, files_of_both
from message_lifecycle.stores.iceberg.evidence_limits import limit_evidence
from message_lifecycle.stores.iceberg.evidence_rows import RowEvidence
from message_lifecycle.stores.iceberg.marks import (
    CAUSES_NONE,
    IS_MARKER,
    causes,
    find_owed,
    may_have_new_rows,
    new_offsets,
    newest_times,
    places_of,
    removal_list,
)
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.snapshot_rows import snapshot_rows
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from message_lifecycle.stores.iceberg.engine import Engine


def evidence(
    table: Table,
    plan: Plan,
    staged: Staged,
    policy: Policy,
    horizons: Mapping[int, int] | None = None,
    *,
    engine: Callable[[], Engine | None] = lambda: None,
) -> Mapping[str, pa.Table]:
    """See `ports.MessageStore.evidence`.

    Args:
        table: The log's table.
        plan: The plan that made the stage.
        staged: The staged change.
        policy: The topic's policy.
        horizons: The topic's current compaction horizons, if they decide which messages may be removed (CMP-9).
        engine: Returns the engine whose tasks read many files. None: this process reads them.

    Raises:
        PlanConflict: The plan's or the staged snapshot is missing.
        FileLost, FileUnreadable, MessageWithoutPlace, OffsetGivenTwice: A file is missing or damaged.
        JudgingFailed, DueSearchFailed: A task failed before it read a file.
    """
    was, now = both_snapshots(table, plan, staged)
    prefix = location_prefix(table.location())
    planned = {absolute(prefix, name) for name in plan.selection.files}
    removals = plan.log_commit.mark + staged.superseded
    by_row = {absolute(prefix, action.file) for action in removals}
    active = _active_segments(table, was, plan)
    latest_allowed_time = policy.latest_allowed_time(plan.as_of)

    marks = marker_evidence(table, plan, staged, policy)
    before, after = files_of_both(table, was, now)
    if marks.files:
        after = after.filter(pc.invert(pc.is_in(after["name"], value_set=pa.array(sorted(marks.files)))))
    live_before, live_after = frames.live(before), frames.live(after)
    gone = frames.gone(live_before, live_after)
    with_segment = pa.array((plan.drops(*place) for place in frames.rows_of(gone, "partition", "segment")), pa.bool_())
    whole = gone.filter(with_segment)
    single = {**frames.places(gone.filter(pc.invert(with_segment))), **frames.shrunk(live_before, live_after)}

    rows = RowEvidence(
        table=table,
        plan=plan,
        policy=policy,
        before=Vectors(table, was),
        after=Vectors(table, now),
        active=active,
        engine=engine,
        renewed=marks.renewed,
        removals=removals,
    )
    segments = frames.segments(live_before, latest_allowed_time)
    rows.newest.update(_newest_in_time(rows, segments, live_before, latest_allowed_time))
    ahead = {place for place in frames.late_places(segments) if rows.newest[place] is None}
    expired = [place for place in rows.newest if rows.is_expired(place)]
    stays = set(live_after["name"].to_pylist())
    rows.limits = limit_evidence(
        table, plan, policy, expired, before=rows.before, after=rows.after, stays=stays, renewed=marks.renewed, engine=engine
    )
    going = frames.going(whole, frames.may_keep(whole, policy), planned, active)
    suspects = list(_suspects(rows, live_after, policy, plan.as_of))
    unsure = {file.path: file.place for file in suspects if file.overdue is None}
    rows.judge({**unsure, **single}, losing={path: path.removeprefix(prefix) for path in single}, stays=stays, overdue=unsure)
    lost, overdue = rows.lost(single), _overdue(rows, suspects)
    removed = sum((pc.sum(frame["rows"]).as_py() or 0) for frame in (going, lost))
    if horizons is not None:
        going = frames.with_compacted(going, horizons)
    return {
        "going": going.drop_columns(["name"]),
        "rows": lost,
        "purged": rows.purged(),
        "difference": frames.difference(before, after, planned, by_row),
        "order": frames.order(
            going, plan.expiring_by_row, _standing(rows, frames.segments(live_after, latest_allowed_time), overdue, ahead)
        ),
        "sample": rows.sample(frames.sampled(going) if horizons is None else going.slice(0, 0)),
        "left": frames.left(((place, last, count) for place, (last, count) in overdue.items() if count), plan.held),
        "limits": rows.limits.frame,
        "figures": frames.figures(live_before, live_after, removed, asks=len(plan.asks)),
        **marks.frames,
    }


def _newest_in_time(rows: RowEvidence, segments: pa.Table, files: pa.Table, latest_allowed_time: int) -> Iterator[tuple[Place, int | None]]:
    """Yield every segment's newest time. If that time is late, read the segment's late files for the newest time that is not (CLK-4)."""
    late: dict[Place, int | None] = {}
    for partition, segment, newest, is_late in frames.rows_of(segments, "partition", "segment", "newest_at", "late"):
        if is_late:
            late[partition, segment] = None
        else:
            yield (partition, segment), newest
    if not late:
        return
    times = {
        (name, (partition, segment)): newest
        for name, partition, segment, newest in frames.rows_of(files, "name", "partition", "segment", "known_newest_at")
        if (partition, segment) in late
    }
    read = rows.newest_in_time([name for (name, _), newest in times.items() if newest > latest_allowed_time], latest_allowed_time)
    for (name, place), newest in times.items():
        late[place] = max((time for time in (late[place], read.get(name, newest)) if time is not None), default=None)
    yield from late.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """A file of the staged snapshot that may hold overdue messages.

    Attributes:
        last: The last offset of the file. None: it is unknown.
        overdue: How many messages are overdue, by the file's bounds. None: only its columns show it.
    """

    path: str
    place: Place
    last: int | None
    overdue: int | None


def _suspects(rows: RowEvidence, files: pa.Table, policy: Policy, as_of: int) -> Iterator[_Suspect]:
    """Yield the files of the staged snapshot that may hold overdue messages, by their bounds."""
    # The operation `retention` leaves expiry and TTL alone (RET-5).
    cleans = "expiry" in rows.plan.reasons
    expiry, heeds_ttl, max_age = policy.message_expiry_us if cleans else 0, policy.allow_msg_ttl and cleans, policy.max_age_us
    if "retention_age" not in rows.plan.reasons or not (expiry or max_age is not None or heeds_ttl):
        return
    kept = frames.may_keep(files, policy).to_pylist()
    facts = ("rows", "written", "last_offset", "oldest_at", "known_newest_at", "expires_from", "without_expiry")
    for may_keep, row in zip(kept, frames.rows_of(files, "name", "partition", "segment", *facts), strict=True):
        name, partition, segment, alive, written, last, oldest, newest, expires_from, without_expiry = row
        place = partition, segment
        expired = bool(expiry) and rows.is_expired(place)
        sure = (
            newest is not None
            and not may_keep
            and ((expired and newest <= as_of - expiry) or (max_age is not None and newest < as_of - max_age))
        )
        ttl = heeds_ttl and without_expiry != written and (expires_from is None or expires_from <= as_of)
        aged = max_age is not None and (oldest is None or oldest < as_of - max_age)
        if sure or expired or ttl or aged:
            yield _Suspect(path=name, place=place, last=last, overdue=alive if sure else None)


def _overdue(rows: RowEvidence, suspects: Iterable[_Suspect]) -> Mapping[Place, tuple[int | None, int]]:
    """Return, for each segment that stays, the last offset and the number of messages that are overdue or beyond a limit.

    Segments count only if they have files that may hold such messages.
    """
    found: dict[Place, tuple[int | None, int]] = {}
    for file in suspects:
        last, known = found.get(file.place, (file.last, 0))
        count = rows.judged[file.path].overdue if file.overdue is None else file.overdue
        found[file.place] = (file.last if last is None or (file.last is not None and file.last > last) else last), known + count
    for place, (beyond, count) in rows.limits.left.items():
        last, known = found.get(place, (beyond, 0))
        found[place] = max(beyond, last or 0), known + count
    return found


def _standing(rows: RowEvidence, segments: pa.Table, overdue: Mapping[Place, tuple[int | None, int]], ahead: set[Place]) -> Iterator[Place]:
    """Yield the segments that stay because of their own age.

    A segment does not count if it has lost its last message, or if its times are all in the future (`ahead`). An expired segment may also
    keep only messages that no age removes: late ones, or messages of a legal hold or an undone plan. Such a segment does not count either,
    because another check judges these messages.
    """
    for partition, segment, left in frames.rows_of(segments, "partition", "segment", "rows"):
        place = (partition, segment)
        if (
            left
            and place not in ahead
            and (not rows.is_expired(place) or (overdue.get(place, (None, 0))[1] and not rows.plan.skips(*place)))
        ):
            yield place


def _active_segments(table: Table, snapshot: Snapshot, plan: Plan) -> dict[int, int]:
    """Return the base offset of each partition's active segment in the plan's snapshot, after the plan's own seals."""
    sealed = {seal.partition: seal.next_offset for seal in plan.log_commit.seal}
    active = newest_state(table, snapshot).active
    return {partition: sealed.get(partition, segment.base_offset) for partition, segment in active.items()}


# Evidence about staged markers, key by key. A comparison of the two snapshots shows the removed and the kept messages, not the answers to
# the marker generation (MRK-1, MRK-3 to MRK-5).


MARKERS = pa.schema({"emptied": pa.bool_(), "single": pa.bool_(), "caused": pa.bool_(), "formed": pa.bool_()})
UNMARKED = pa.schema({"partition": pa.int32()})
MARKED = pa.schema({"rows": pa.int64(), "as_made": pa.bool_()})


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerEvidence:
    """Evidence about staged markers.

    Attributes:
        frames: Frames for the gate.
        files: Paths of data files with only staged markers.
        renewed: (partition, offset) of older markers whose key has a staged one.
    """

    frames: Mapping[str, pa.Table]
    files: frozenset[str] = frozenset()
    renewed: frozenset[tuple[int, int]] = frozenset()


def marker_evidence(log: Table, plan: Plan, staged: Staged, policy: Policy) -> MarkerEvidence:
    if staged.markers is None or policy.marker_ttl_us is None:
        return MarkerEvidence(frames={"markers": MARKERS.empty_table(), "unmarked": UNMARKED.empty_table(), "marked": MARKED.empty_table()})
    before_id, ends = plan.requirements.snapshot_id, dict(plan.requirements.end_offsets)
    removals = plan.log_commit.mark + staged.superseded
    places = places_of(removals)

    def loses(file: FileMetrics) -> bool:
        return (file.partition, file.segment) in places or plan.drops(file.partition, file.segment)

    with snapshot_rows(log, plan.plan_id) as rows:
        rows.relate("was_there", before_id, loses)
        rows.relate("is_there", staged.snapshot_id, loses)
        rows.relate("after", staged.snapshot_id)
        rows.relate("staged", staged.snapshot_id, lambda file: may_have_new_rows(file, ends))
        rows.register("listed", removal_list(removals))
        if plan.log_commit.sweep:
            find_owed(rows, log, plan)
        else:
            rows.run(EMPTIED.format(causes=causes()))
        rows.register("times", newest_times(rows, plan))
        text = JUDGED.format(new=new_offsets(ends), as_of=f"{int(plan.as_of)}::BIGINT", ttl=go_duration(policy.marker_ttl_us))
        answer = rows.ask(text)
    is_marker = pc.is_valid(answer["offset"])
    found, unmarked = answer.filter(is_marker), answer.filter(pc.invert(is_marker))
    rows = found.to_pylist()
    return MarkerEvidence(
        frames={
            "markers": found.select(MARKERS.names).cast(MARKERS),
            "unmarked": unmarked.select(UNMARKED.names).cast(UNMARKED),
            "marked": pa.Table.from_pylist(
                [{"rows": len(rows), "as_made": digest(_as_marker(row, policy.marker_ttl_us) for row in rows) == staged.markers.digest}],
                schema=MARKED,
            ),
        },
        files=frozenset(row["file"] for row in rows if row["alone"]),
        renewed=frozenset((older["partition"], older["offset"]) for row in rows for older in row["renewed"] or ()),
    )


def _as_marker(row: Mapping[str, object], ttl_us: int) -> Marker:
    headers = row["headers"]
    assert isinstance(headers, list)
    reason = next((header["value"] for header in headers if header["name"] == REASON_HEADER), b"")
    return Marker(
        partition=int(str(row["partition"])),
        replaces=int(str(row["offset"])),
        key=bytes(row["key"] or b""),  # type: ignore[call-overload]  # a column of bytes
        reason=reason.decode(),  # type: ignore[arg-type]  # whatever stands there
        append_time=Instant(int(str(row["appended"]))),
        ttl_us=ttl_us,
    )


# Queries about staged markers in DuckDB's SQL, over relations of `snapshot_rows`. `was_there` and `is_there` are the places that lose
# messages, before and after. `after` has all staged messages. `staged` has the staged files that may hold new messages.


# The keys that the removal left without a live message, from the snapshots alone.
EMPTIED = f"""
    CREATE OR REPLACE TABLE emptied AS
    WITH newest AS (
        -- What went by number or size makes no marker (DEL-9), but may be what speaks against one.
        SELECT key, max(struct_pack(partition := partition, "offset" := "offset", causes_none := causes_none)) AS last,
               max(struct_pack(partition := partition, "offset" := "offset", reason := reason)) FILTER (reason IN ({{causes}})) AS cause
        FROM (
            -- What was there and is not, but for older markers that a new one replaces.
            SELECT b.partition, b."offset", b.key, {CAUSES_NONE} AS causes_none, coalesce(l.reason, 'expiry') AS reason
            FROM (FROM was_there ANTI JOIN is_there USING (partition, "offset")) AS b
            LEFT JOIN listed AS l ON l.partition = b.partition AND l."offset" = b."offset"
            WHERE b.key IS NOT NULL AND coalesce(l.reason, '') <> 'superseded'
        ) GROUP BY key
    )
    SELECT key, last.partition AS partition, last."offset" AS "offset", cause.reason AS reason FROM newest
    ANTI JOIN (SELECT key FROM after WHERE key IS NOT NULL AND NOT {IS_MARKER}) USING (key)
    WHERE NOT last.causes_none AND cause IS NOT NULL
"""

# A row for each staged marker, with the older markers that it replaces, and a row without `offset` for each emptied key without a marker.
# `new`: the condition of offsets that the plan's snapshot lacked. `times`: the newest time of each partition, if it is later than `as_of`.
JUDGED = f"""
    WITH markers AS (
        SELECT t.partition, t."offset", t.key, t.value, t.headers, epoch_us(t.append_time) AS appended, t.file
        FROM staged AS t WHERE ({{new}}) AND {IS_MARKER}
    ), older AS (
        SELECT t.key, list(struct_pack(partition := t.partition, "offset" := t."offset")) AS renewed
        FROM was_there AS t JOIN listed AS l ON l.partition = t.partition AND l."offset" = t."offset"
        WHERE l.reason = 'superseded' AND {IS_MARKER} GROUP BY t.key
    )
    SELECT coalesce(m.partition, e.partition) AS partition, m."offset", m.key, m.headers, m.appended, f.path AS file, o.renewed,
           f.rows = count(*) OVER (PARTITION BY m.file) AS alone,
           e.key IS NOT NULL AS emptied,
           count(*) OVER (PARTITION BY m.key) = 1 AS single,
           coalesce(m.headers[1].value = (CASE e.reason WHEN 'removed' THEN 'Remove' WHEN 'purged' THEN 'Purge' ELSE 'MaxAge' END)::BLOB, false) AS caused,
           coalesce(octet_length(m.value) = 0 AND len(m.headers) = 3
                    AND m.headers[1].name = 'Nats-Marker-Reason'
                    AND m.headers[2].name = 'Nats-TTL' AND m.headers[2].value = '{{ttl}}'::BLOB
                    AND m.headers[3].name = 'Nats-Rollup' AND m.headers[3].value = 'sub'::BLOB
                    AND m.appended = greatest({{as_of}}, coalesce(n.newest, {{as_of}})), false) AS formed
    FROM markers AS m
    FULL JOIN emptied AS e ON e.key = m.key
    LEFT JOIN staged_files AS f ON f.file = m.file
    LEFT JOIN times AS n ON n.partition = m.partition
    LEFT JOIN older AS o ON o.key = m.key
    ORDER BY 1, 2
"""
