"""The gate's look at staged markers, key by key: what went and what stayed is found by comparing the two snapshots, not from what the
marker generation asked (MRK-1, MRK-3 to MRK-5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import REASON_HEADER, Marker, digest, go_duration
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import evidence_marker_sql as sql
from message_lifecycle.stores.iceberg.marks import find_owed, newest_times, places_of, removal_list
from message_lifecycle.stores.iceberg.publish_markers import holds_new, new_offsets
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.snapshot_rows import snapshot_rows

if TYPE_CHECKING:
    from pyiceberg.table import Table

MARKERS = pa.schema({"emptied": pa.bool_(), "single": pa.bool_(), "caused": pa.bool_(), "formed": pa.bool_()})
UNMARKED = pa.schema({"partition": pa.int32()})
MARKED = pa.schema({"rows": pa.int64(), "as_made": pa.bool_()})


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerEvidence:
    """`frames` for the gate. `files`: paths of data files that hold nothing but the staged markers. `renewed`: (partition, offset) of
    older markers whose key has a staged one."""

    frames: Mapping[str, pa.Table]
    files: frozenset[str] = frozenset()
    renewed: frozenset[tuple[int, int]] = frozenset()


def marker_evidence(log: Table, plan: Plan, staged: Staged, policy: Policy) -> MarkerEvidence:
    if staged.markers is None or policy.marker_ttl_us is None:
        return MarkerEvidence(frames={"markers": MARKERS.empty_table(), "unmarked": UNMARKED.empty_table(), "marked": MARKED.empty_table()})
    before_id, ends = plan.requirements.snapshot_id, dict(plan.requirements.end_offsets)
    removals = plan.on_log.mark + staged.superseded
    places = places_of(removals)

    def loses(file: FileMetrics) -> bool:
        return (file.partition, file.segment) in places or plan.drops(file.partition, file.segment)

    with snapshot_rows(log, plan.plan_id) as rows:
        rows.relate("was_there", before_id, loses)
        rows.relate("is_there", staged.snapshot_id, loses)
        rows.relate("after", staged.snapshot_id)
        rows.relate("staged", staged.snapshot_id, lambda file: holds_new(file, ends))
        rows.register("listed", removal_list(removals))
        if plan.on_log.sweep:
            find_owed(rows, log, plan)
        else:
            rows.run(sql.EMPTIED)
        rows.register("times", newest_times(rows, plan))
        text = sql.JUDGED.format(new=new_offsets(ends), as_of=f"{int(plan.as_of)}::BIGINT", ttl=go_duration(policy.marker_ttl_us))
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
