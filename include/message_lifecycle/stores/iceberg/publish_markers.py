"""A plan's markers as they stand when it is published: without those that newer messages made needless, numbered on from the log
as it is then (MRK-3, MRK-4).

An older marker of a cancelled one's key goes all the same: it is in the deletion's own row list, and exactly what was judged is
published (MRK-5). Nothing is lost with it: the message that cancelled comes after it in its partition and lives, so no reader can
meet a value from before it, and what it said of the key is not so any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import REASON_HEADER, Marker
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg import marks_sql as sql
from message_lifecycle.stores.iceberg.fence import main_ancestors, newest_state
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.marks import ancestors, append_to, numbered, sealed
from message_lifecycle.stores.iceberg.row_files import write_rows
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.session import Java
from message_lifecycle.stores.iceberg.snapshot_rows import SnapshotRows, snapshot_rows
from message_lifecycle.stores.iceberg.staged_change import Change

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersNow:
    """`files` hold `count` markers with the offsets that follow the log at the head that was looked at; `state`: the log's with them."""

    files: Sequence[Java]
    count: int
    cancelled: int
    state: LogSummary

    @classmethod
    def read(
        cls, session: SparkSession, table: Java, log: Table, verdict: Verdict, change: Change, *, base_id: int, head_id: int
    ) -> MarkersNow:
        """`log`: the table as PyIceberg reads it, at the head or later."""
        plan, staged = verdict.plan, verdict.staged
        assert staged.branch is not None
        policy = Policy.of_values(plan.policy)
        with snapshot_rows(log, plan.plan_id) as rows:
            made = kept = _staged_markers(rows, verdict, policy)
            if head_id != base_id:
                arrived = _arrived(rows, made, base_id=base_id, head_id=head_id)
                kept = [marker for marker in made if marker.key not in arrived]
        state = sealed(newest_state(main_ancestors(table)), plan)
        numbered_rows, after = numbered(kept, state, policy)
        if head_id == base_id or (kept == made and state == sealed(newest_state(ancestors(table, base_id)), plan)):
            files = change.added
        else:
            files = write_rows(session, table, numbered_rows)
            append_to(table, staged.branch, files)
        return cls(files=files, count=len(kept), cancelled=len(made) - len(kept), state=after)


def _staged_markers(rows: SnapshotRows, verdict: Verdict, policy: Policy) -> list[Marker]:
    """As they stand on the branch that the gate has judged, in their order."""
    assert policy.marker_ttl_us is not None
    ends = dict(verdict.plan.requirements.end_offsets)
    rows.relate("staged", verdict.staged.snapshot_id, lambda file: holds_new(file, ends))
    return [
        Marker(
            partition=row["partition"],
            replaces=row["offset"],
            key=row["key"],
            reason=next(header["value"] for header in row["headers"] if header["name"] == REASON_HEADER).decode(),
            append_time=Instant(row["appended"]),
            ttl_us=policy.marker_ttl_us,
        )
        for row in rows.ask(sql.STAGED.format(new=new_offsets(ends))).to_pylist()
    ]


def new_offsets(ends: dict[int, int]) -> str:
    """Offsets that the plan's snapshot had not given, as a condition on `t`."""
    return " OR ".join(f"(t.partition = {partition} AND t.offset >= {end})" for partition, end in sorted(ends.items())) or "false"


def holds_new(file: FileMetrics, ends: Mapping[int, int]) -> bool:
    """Whether the file may hold such an offset."""
    return file.partition in ends and (file.last_offset is None or file.last_offset >= ends[file.partition])


def _arrived(rows: SnapshotRows, made: list[Marker], *, base_id: int, head_id: int) -> set[bytes]:
    """Keys of the markers in what others have appended."""
    rows.relate("appended", head_id, rows.differing(head_id, base_id))
    rows.register("keys", pa.table({"key": pa.array((marker.key for marker in made), pa.binary())}))
    return {row["key"] for row in rows.ask(sql.ARRIVED).to_pylist()}
