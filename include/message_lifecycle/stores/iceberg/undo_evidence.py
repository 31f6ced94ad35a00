"""What the gate judges of a staged undo: frames of `undo_suite`, read without a JVM.

What was there is shown to be unchanged by the identity of its files. Of what comes back, offsets are compared one by one, and content by
the bytes of the file that it was taken from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg import evidence_frames as frames
from message_lifecycle.stores.iceberg.copies_back import copied_from
from message_lifecycle.stores.iceberg.data_rows import Longs, Vectors, read_rows
from message_lifecycle.stores.iceberg.evidence_files import files_of_both
from message_lifecycle.stores.iceberg.file_copies import digest_of
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.row_deletes import within
from message_lifecycle.stores.iceberg.undo_sources import Live, given, marked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def undo_evidence(table: Table, plan: Plan, staged: Staged) -> Mapping[str, pa.Table]:
    """Raises PlanConflict where the plan's or the staged snapshot is gone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    before_id, after_id = plan.requirements.snapshot_id, staged.snapshot_id
    was, now = (None if id_ is None else table.snapshot_by_id(id_) for id_ in (before_id, after_id))
    if was is None or now is None:
        raise PlanConflict(staged.plan_id, f"its snapshot {before_id} or what was staged for it ({after_id}) is gone")
    prefix = location_prefix(table.location())
    before, after = files_of_both(table, was, now)
    copies = {at: name for name in frames.gone(frames.live(after), before)["name"].to_pylist() if (at := copied_from(name)) is not None}
    changes = _Changes(table, was, now)
    restored: list[dict[str, Any]] = []
    come = dead = 0
    for at, action in enumerate(plan.on_log.back):
        path = absolute(prefix, action.file) if action.standing else copies.get(at)
        new = np.empty(0, np.int64) if path is None else changes.come(path, copied=not action.standing)
        named = within(new, action.offsets)
        same = path is not None and (action.standing or digest_of(table.io, path) == digest_of(table.io, absolute(prefix, action.file)))
        come += len(new)
        restored.append({"rows": int(named.sum()), "missing": action.rows - int(named.sum()), "unnamed": int((~named).sum()), "same": same})
    rows: list[dict[str, Any]] = []
    marks = {absolute(prefix, action.file): action for action in plan.on_log.mark}
    for path, mark in marks.items():
        gone = changes.gone(path)
        dead += len(gone)
        rows.append({"rows": len(gone), "unnamed": int((~within(gone, mark.offsets)).sum())})
    # A copy that is not the plan's is a file that was not there.
    ours = {path for at, path in copies.items() if at < len(plan.on_log.back) and not plan.on_log.back[at].standing}
    others = after.filter(pc.invert(pc.is_in(after["name"], value_set=pa.array(sorted(ours), pa.string()))))
    touched = {absolute(prefix, action.file) for action in plan.on_log.back if action.standing} | marks.keys() | ours
    live_before, live_after = frames.live(before), frames.live(after)
    spans = given(table, plan.parent or "")
    live = Live(table, now, files_of(table, now))
    twice = [offset for at, action in enumerate(plan.on_log.back) for offset in _twice(live, prefix, plan, at, copies)]
    left = [int(offset) for _, offsets in marked(live, spans) for offset in offsets]
    return {
        "restored": _table(restored, {"rows": pa.int64(), "missing": pa.int64(), "unnamed": pa.int64(), "same": pa.bool_()}),
        "rows": _table(rows, {"rows": pa.int64(), "unnamed": pa.int64()}),
        "twice": pa.table({"offset": pa.array(twice, pa.int64())}),
        "markers_left": pa.table({"offset": pa.array(left, pa.int64())}),
        "difference": frames.difference(before, others, set(), touched),
        "figures": _table(
            [
                {
                    "rows_in": pc.sum(live_before["rows"]).as_py() or 0,
                    "rows_restored": come,
                    "rows_removed": dead,
                    "rows_kept": pc.sum(live_after["rows"]).as_py() or 0,
                    "asks": len(plan.asks),
                }
            ],
            dict.fromkeys(("rows_in", "rows_restored", "rows_removed", "rows_kept", "asks"), pa.int64()),
        ),
    }


class _Changes:
    """Which offsets of a file are there in the one snapshot and not in the other."""

    def __init__(self, table: Table, was: Snapshot, now: Snapshot) -> None:
        self._io, self._was, self._now = table.io, Vectors(table, was), Vectors(table, now)

    def come(self, path: str, *, copied: bool) -> Longs:
        then, offsets = read_rows(self._io, path, self._was[path], ()).alive, read_rows(self._io, path, self._now[path], ())
        new = offsets.alive if copied else offsets.alive & ~then
        return np.sort(offsets.offsets[new])

    def gone(self, path: str) -> Longs:
        then, offsets = read_rows(self._io, path, self._was[path], ()).alive, read_rows(self._io, path, self._now[path], ())
        return np.sort(offsets.offsets[then & ~offsets.alive])


def _twice(live: Live, prefix: str, plan: Plan, at: int, copies: Mapping[int, str]) -> list[int]:
    action = plan.on_log.back[at]
    own = action.file if action.standing else copies.get(at, "").removeprefix(prefix)
    there = live.alive((action.partition, action.base_offset), action.first_offset, action.last_offset, but=own)
    return [int(offset) for offset in there[within(there, action.offsets)]]


def _table(rows: list[dict[str, Any]], columns: Mapping[str, pa.DataType]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=pa.schema(dict(columns)))
