"""The gate's look at staged markers, key by key: what went and what stayed is found by comparing the two snapshots, not from what the
marker generation asked (MRK-1, MRK-3 to MRK-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from message_lifecycle.stores.iceberg.marks import dropped_places, owed, removal_list
from message_lifecycle.stores.iceberg.publish_markers import new_offsets
from message_lifecycle.stores.iceberg.session import forget_cached, sql_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def marker_evidence(start: Callable[[], SparkSession], plan: Plan, staged: Staged, policy: Policy) -> MarkerEvidence:
    if staged.markers is None or policy.marker_ttl_us is None:
        return MarkerEvidence(frames={"markers": MARKERS.empty_table(), "unmarked": UNMARKED.empty_table(), "marked": MARKED.empty_table()})
    session = start()
    forget_cached(session, plan.topic)
    marks: dict[str, object] = {
        "table": sql_table(plan.topic),
        "before": plan.requirements.snapshot_id,
        "after": staged.snapshot_id,
        "new": new_offsets(dict(plan.requirements.end_offsets)),
        "dropped": dropped_places(plan),
        "reach": _reach(plan, staged),
        "as_of": int(plan.as_of),
        "ttl": go_duration(policy.marker_ttl_us),
    }
    with removal_list(session, plan.on_log.mark + staged.superseded) as listed:
        marks["listed"] = listed
        emptied = owed(session, plan) if plan.on_log.sweep else sql.EMPTIED.format(**marks)
        answer = session.sql(sql.JUDGED.format(**marks, emptied=emptied)).toArrow()
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


def _reach(plan: Plan, staged: Staged) -> str:
    """Where messages went from: a literal prunes files, which a join would not."""
    places = {(action.partition, action.base_offset) for action in plan.on_log.mark + staged.superseded}
    by_row = " OR ".join(f"(t.partition = {partition} AND t.segment = {segment})" for partition, segment in sorted(places))
    return f"{dropped_places(plan)} OR {by_row or 'false'}"
