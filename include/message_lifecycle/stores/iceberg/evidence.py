"""What the gate judges: small frames about the staged change, from Iceberg's own metadata (DEL-2).

That what stays is unchanged is shown by the identity of its files, not by reading it. Data is read of up to three files that
go with their segments, and of files that lose single messages, may hold overdue ones, or hold times in the future: never of
what merely stays; but for keys, which markers are about. None of this needs a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import Place
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import evidence_frames as frames
from message_lifecycle.stores.iceberg.data_rows import Vectors
from message_lifecycle.stores.iceberg.evidence_files import files_of_both
from message_lifecycle.stores.iceberg.evidence_limits import limit_evidence
from message_lifecycle.stores.iceberg.evidence_markers import marker_evidence
from message_lifecycle.stores.iceberg.evidence_rows import RowEvidence
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.read import newest_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def evidence(
    table: Table,
    plan: Plan,
    staged: Staged,
    policy: Policy,
    horizons: Mapping[int, int] | None = None,
) -> Mapping[str, pa.Table]:
    """See `ports.MessageStore.evidence`. `horizons`: how far the topic is compacted now, where that is what lets messages go (CMP-9).

    Raises PlanConflict where the plan's or the staged snapshot is gone.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    before_id, after_id = plan.requirements.snapshot_id, staged.snapshot_id
    was, now = (None if id_ is None else table.snapshot_by_id(id_) for id_ in (before_id, after_id))
    if was is None or now is None:
        raise PlanConflict(staged.plan_id, f"its snapshot {before_id} or what was staged for it ({after_id}) is gone")
    prefix = location_prefix(table.location())
    planned = {absolute(prefix, name) for name in plan.selection.files}
    removals = plan.on_log.mark + staged.superseded
    by_row = {absolute(prefix, action.file) for action in removals}
    active = _active_segments(table, was, plan)
    late_after = plan.as_of + policy.clock_skew_us

    marks = marker_evidence(table, plan, staged, policy)
    before, after = files_of_both(table, was, now)
    if marks.files:
        after = after.filter(pc.invert(pc.is_in(after["name"], value_set=pa.array(sorted(marks.files)))))
    live_before, live_after = frames.live(before), frames.live(after)
    gone = frames.gone(live_before, live_after)
    at_places = zip(gone["partition"].to_pylist(), gone["segment"].to_pylist(), strict=True)
    with_segment = pa.array((plan.drops(partition, segment) for partition, segment in at_places), pa.bool_())
    whole = gone.filter(with_segment)
    single = {**frames.places(gone.filter(pc.invert(with_segment))), **frames.shrunk(live_before, live_after)}

    rows = RowEvidence(
        table=table,
        plan=plan,
        policy=policy,
        before=Vectors(table, was),
        after=Vectors(table, now),
        active=active,
        renewed=marks.renewed,
        removals=removals,
    )
    segments = frames.segments(live_before, late_after)
    rows.newest.update(_newest_in_time(rows, segments, live_before, late_after))
    expired = [place for place in rows.newest if rows.is_expired(place)]
    stays = set(live_after["name"].to_pylist())
    rows.limits = limit_evidence(table, plan, policy, expired, before=rows.before, after=rows.after, stays=stays, renewed=marks.renewed)
    going = frames.going(whole, frames.may_keep(whole, heeded=policy.allow_msg_ttl, overrides=policy.ttl_overrides_age), planned, active)
    lost = rows.lost(sorted(single.items()), stays, {path: path.removeprefix(prefix) for path in single})
    overdue = dict(_overdue(rows, live_after, policy, plan.as_of))
    for place, (last, count) in rows.limits.left.items():
        known = overdue.get(place, (last, 0))
        overdue[place] = max(last, known[0] or 0), known[1] + count
    removed = sum((pc.sum(frame["rows"]).as_py() or 0) for frame in (going, lost))
    if horizons is not None:
        going = frames.with_compacted(going, horizons)
    return {
        "going": going.drop_columns(["name"]),
        "rows": lost,
        "purged": rows.purged(),
        "difference": frames.difference(before, after, planned, by_row),
        "order": frames.order(going, plan.expiring_by_row, _standing(rows, frames.segments(live_after, late_after), overdue)),
        "sample": rows.sample(frames.sampled(going) if horizons is None else going.slice(0, 0)),
        "left": frames.left(((place, last, count) for place, (last, count) in overdue.items() if count), plan.held),
        "limits": rows.limits.frame,
        "figures": frames.figures(live_before, live_after, removed, asks=len(plan.asks)),
        **marks.frames,
    }


def _newest_in_time(rows: RowEvidence, segments: pa.Table, files: pa.Table, late_after: int) -> Iterator[tuple[Place, int | None]]:
    """Each segment's newest time; where that is late, the newest that is not, by reading its late files (CLK-4)."""
    late: dict[Place, int | None] = {}
    for partition, segment, newest, is_late in zip(
        *(segments[n].to_pylist() for n in ("partition", "segment", "newest_at", "late")), strict=True
    ):
        if is_late:
            late[partition, segment] = None
        else:
            yield (partition, segment), newest
    if not late:
        return
    for name, partition, segment, newest in zip(
        *(files[column].to_pylist() for column in ("name", "partition", "segment", "known_newest_at")), strict=True
    ):
        place = partition, segment
        if place in late:
            found = newest if newest <= late_after else rows.newest_before(name, late_after)
            late[place] = max((time for time in (late[place], found) if time is not None), default=None)
    yield from late.items()


def _overdue(rows: RowEvidence, files: pa.Table, policy: Policy, as_of: int) -> Iterator[tuple[Place, tuple[int | None, int]]]:
    """Per segment that stays and has files which may hold overdue messages: its last offset, and how many are overdue."""
    # The operation `retention` leaves expiry and TTL alone (RET-5).
    cleans = "expiry" in rows.plan.reasons
    expiry, heeds_ttl, max_age = policy.message_expiry_us if cleans else 0, policy.allow_msg_ttl and cleans, policy.max_age_us
    if "retention_age" not in rows.plan.reasons or not (expiry or max_age is not None or heeds_ttl):
        return
    kept = frames.may_keep(files, heeded=policy.allow_msg_ttl, overrides=policy.ttl_overrides_age).to_pylist()
    names = (
        "name",
        "partition",
        "segment",
        "rows",
        "written",
        "last_offset",
        "oldest_at",
        "known_newest_at",
        "expires_from",
        "without_expiry",
    )
    found: dict[Place, tuple[int | None, int]] = {}
    for may_keep, row in zip(kept, zip(*(files[name].to_pylist() for name in names), strict=True), strict=True):
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
            count = alive if sure else rows.overdue(name, place)
            before = found.get(place, (last, 0))
            found[place] = (last if before[0] is None or (last is not None and last > before[0]) else before[0], before[1] + count)
    yield from found.items()


def _standing(rows: RowEvidence, segments: pa.Table, overdue: Mapping[Place, tuple[int | None, int]]) -> Iterator[Place]:
    """Segments that stay of their own age: not those that have lost their last message, nor those that have expired and keep only messages
    that no age takes, late ones, or what a legal hold or an undone plan keeps, which the gate looks at by itself."""
    for partition, segment, left in zip(*(segments[name].to_pylist() for name in ("partition", "segment", "rows")), strict=True):
        place = (partition, segment)
        if left and (not rows.is_expired(place) or (overdue.get(place, (None, 0))[1] and not rows.plan.skips(*place))):
            yield place


def _active_segments(table: Table, snapshot: Snapshot, plan: Plan) -> dict[int, int]:
    """Base offset of each partition's active segment in the plan's snapshot, after the plan's own seals."""
    sealed = {seal.partition: seal.next_offset for seal in plan.on_log.seal}
    active = newest_state(table, snapshot).active
    return {partition: sealed.get(partition, segment.base_offset) for partition, segment in active.items()}
