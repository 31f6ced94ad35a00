"""A plan's markers as they stand when it is published: without those that newer messages made needless, numbered on from the log
as it is then (MRK-3, MRK-4).

An older marker of a cancelled one's key goes all the same: it is in the deletion's own row list, and exactly what was judged is
published (MRK-5). Nothing is lost with it: the message that cancelled comes after it in its partition and lives, so no reader can
meet a value from before it, and what it said of the key is not so any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import REASON_HEADER, Marker
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg import marks_sql as sql
from message_lifecycle.stores.iceberg.fence import main_ancestors, newest_state
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.marks import ancestors, keys_view, numbered, sealed, write
from message_lifecycle.stores.iceberg.session import Java, forget_cached, sql_table
from message_lifecycle.stores.iceberg.staged_change import Change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersNow:
    """`files` hold `count` markers with the offsets that follow the log at the head that was looked at; `state`: the log's with them."""

    files: Sequence[Java]
    count: int
    cancelled: int
    state: LogSummary

    @classmethod
    def read(cls, session: SparkSession, table: Java, verdict: Verdict, change: Change, *, base_id: int, head_id: int) -> MarkersNow:
        plan, staged = verdict.plan, verdict.staged
        assert staged.branch is not None
        policy = Policy.of_values(plan.policy)
        forget_cached(session, plan.topic)
        made = _staged_markers(session, verdict, policy)
        kept = made
        if head_id != base_id:
            arrived = _arrived(session, verdict, made, base_id=base_id, head_id=head_id)
            kept = [marker for marker in made if marker.key not in arrived]
        state = sealed(newest_state(main_ancestors(table)), plan)
        rows, after = numbered(kept, state, policy)
        if head_id == base_id or (kept == made and state == sealed(newest_state(ancestors(table, base_id)), plan)):
            files = change.added
        else:
            write(session, plan.topic, staged.branch, rows) if kept else None
            table.refresh()
            files = Change.of(session, table, [table.snapshot(staged.branch)]).added if kept else ()
        return cls(files=files, count=len(kept), cancelled=len(made) - len(kept), state=after)


def _staged_markers(session: SparkSession, verdict: Verdict, policy: Policy) -> list[Marker]:
    """As they stand on the branch that the gate has judged, in their order."""
    assert policy.marker_ttl_us is not None
    ends = dict(verdict.plan.requirements.end_offsets)
    text = sql.STAGED.format(table=sql_table(verdict.plan.topic), after=verdict.staged.snapshot_id, new=new_offsets(ends))
    return [
        Marker(
            partition=row["partition"],
            replaces=row["offset"],
            key=row["key"],
            reason=next(header["value"] for header in row["headers"] if header["name"] == REASON_HEADER).decode(),
            append_time=Instant(row["appended"]),
            ttl_us=policy.marker_ttl_us,
        )
        for row in session.sql(text).toArrow().to_pylist()
    ]


def new_offsets(ends: dict[int, int]) -> str:
    """Offsets that the plan's snapshot had not given, as a condition on `t`."""
    return " OR ".join(f"(t.partition = {partition} AND t.offset >= {end})" for partition, end in sorted(ends.items())) or "false"


def _arrived(session: SparkSession, verdict: Verdict, made: list[Marker], *, base_id: int, head_id: int) -> set[bytes]:
    name = verdict.plan.topic
    appended = (
        session.read.format("iceberg")
        .option("start-snapshot-id", base_id)
        .option("end-snapshot-id", head_id)
        .load(sql_table(name).replace("`", ""))
    )
    view = f"appended_{verdict.staged.plan_id}"
    appended.createOrReplaceTempView(view)
    try:
        with keys_view(session, verdict.staged.plan_id, (marker.key for marker in made)) as keys:
            return {row["key"] for row in session.sql(sql.ARRIVED.format(appended=view, keys=keys)).toArrow().to_pylist()}
    finally:
        session.catalog.dropTempView(view)
