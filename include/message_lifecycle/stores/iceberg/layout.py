"""How a topic lies in a table: columns, partitioning, properties, and the state that every commit of ours repeats (MSG-4).

A segment is the set of data files of one (partition, segment) pair, so metadata alone can name it. Which segment of a
partition still takes messages, and how full it is, stands in the snapshot summary: readers take the newest ancestor of main
that carries it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import damaged_property
from message_lifecycle.model.facts import ActiveSegment, CopyState
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.setting_list import PROPERTY_PREFIX, Value
from message_lifecycle.model.settings import parse_topic_settings, property_text
from message_lifecycle.stores.iceberg import parsed

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CATALOG = "lake"
OF_TABLE = "lifecycle.table"
"""Setting of an I/O: namespace and name of the table, as JSON, whose keys it has."""
COMPACTED = "compacted"
"""Kind of the table beside a topic's that holds its compacted view."""
LATEST = "latest"
"""Kind of the view beside a topic's table that reads it through its compacted view."""
LIVE = "live"
"""Kind of the view beside a topic's table that hides dead messages; no name of a topic ends in it."""
SNAPSHOTS = "snapshots"
"""Kind of the table beside a document topic's that holds its documents' snapshots."""
QUARANTINE = "quarantine"
"""Kind of the table beside a topic's that holds what was refused (QUA-1)."""
KINDS = ("", COMPACTED, SNAPSHOTS, QUARANTINE)
"""Kinds of a topic's tables, its own first."""
BESIDE = (COMPACTED, LATEST, LIVE, SNAPSHOTS, QUARANTINE)
"""Kinds of all that lies beside topics' tables."""

ROW_GROUPS: Mapping[str, str] = {
    # Iceberg asks how large a row group is after 100 rows first, and after 10,000 at the latest. That many messages of the largest size are
    # more than a task has memory.
    "write.parquet.row-group-size-bytes": str(64 << 20),
    "write.parquet.row-group-check-min-record-count": "1",
    "write.parquet.row-group-check-max-record-count": "8",
}
"""Of every table that holds messages or refused rows: how large row groups become."""
TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    **ROW_GROUPS,
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # A plan is an explicit list: rows appended meanwhile cannot match it, so the weaker level is right and lets appends pass.
    "write.delete.isolation-level": "snapshot",
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # Iceberg's default is level 9, and a commit that drops many segments then spends half its time on it.
    "write.manifest.compression-level": "1",
    # Every question of the planner is answered by these columns' bounds and by the partition; each column more makes every
    # commit slower that drops many segments.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.offset": "full",
    "write.metadata.metrics.column.append_time": "full",
    "write.metadata.metrics.column.expires_at": "full",
    "write.metadata.metrics.column.never": "full",
}

# Table properties beside the settings (which are `lifecycle.<setting>`); `_` keeps them apart.
STREAM_PROPERTY = "lifecycle._stream"
TOPIC_PROPERTY = "lifecycle._topic"
PARTITIONS_PROPERTY = "lifecycle._partitions"
_PARTITIONS_MOST = 100_000
ROLE_PROPERTY = "lifecycle._role"
# How a message without a partition of its own is given one (MSG-3): CRC-32 of the key, or of the value where there is no key,
# modulo the number of partitions.
PARTITIONER_PROPERTY = "lifecycle._partitioner"
PARTITIONER = "crc32"
FOLD_PROPERTY = f"{PROPERTY_PREFIX}fold"
"""Set on tables of documents' changes, and on no other (SNP-10)."""
SCRATCH_PROPERTY = "lifecycle._scratch"
"""A scenario's table: no run of the lake sees it."""

DELETED = "lifecycle_deleted"
"""Namespace of the tables of deleted topics: no stream's, for `_` in a stream's name is written otherwise."""
# On a deleted topic's tables, and off them again when it comes back.
DELETED_BY = "lifecycle._deleted-by"
DELETED_AT = "lifecycle._deleted-at"
DELETED_GATE = "lifecycle._deleted-gate"
DELETED_KIND = "lifecycle._deleted-kind"
RETURNED_BY = "lifecycle._returned-by"
"""The undo that brought the topic back."""
LEDGER_MARK = "lifecycle._ledger-mark"
"""`uuid:sequence` of the ledger that placed or released the newest hold, or took the table on: no commit of ours tells (DEL-8)."""
WITNESS = "lifecycle._log-state"
"""Table property: the state of our newest commit, which an expiry of snapshots does not remove (MSG-4, see `witness`)."""
ERASING = "lifecycle._erasing"
"""Names the list of files that an erasure has still to delete; set by its commit, and taken away when they are gone."""

# Snapshot summary.
PLAN_ID = "lifecycle.plan-id"
STAGED_PLAN_ID = "lifecycle.staged-plan-id"
OPERATION = "lifecycle.operation"
AS_OF = "lifecycle.as-of"
GATE_ID = "lifecycle.gate-id"
POLICY_HASH = "lifecycle.policy-hash"
COUNTS = "lifecycle.counts"
END_OFFSETS = "lifecycle.end-offsets"
ACTIVE_SEGMENTS = "lifecycle.active-segments"
COPIED = "lifecycle.copied"
COPIED_FROM = "lifecycle.copied-from"
LEDGER = "lifecycle.ledger"
MARKERS = "lifecycle.markers"
CANCELLED_MARKERS = "lifecycle.cancelled-markers"
STAGED_AS = "lifecycle.staged-as"
"""On a plan's commit whose staged snapshot became main's as it was: two ids, of main's snapshot before the plan and of the staged one. The
staged one is the commit's parent."""
REMOVED = "lifecycle.removed"
"""Beside it: how many messages the staged snapshot took out, by Iceberg's own counts; below zero, brought back."""
PARENT_PLAN_ID = "lifecycle.parent-plan-id"
"""On the append of a plan's markers, which is committed together with its deletion."""
UNDOES = "lifecycle.undoes"
"""On an undo: the plan that it takes back."""
AT_ONCE = "lifecycle.at-once"
"""On a plan's commit that was asked for with those of its other tables, all or none."""
INGEST_ID = "lifecycle.ingest-id"
SPAN_SECONDS = "lifecycle.span-seconds"
"""On a batch that would have opened too many segments: what the span of its segments was doubled to (EXP-3)."""
PURGED_THROUGH = "lifecycle.purged-through"
REPAIRED = "lifecycle.repaired"
"""On the commit of a repair: `state`, or `rollback` where a person accepted one."""
STATE_KEYS = (END_OFFSETS, ACTIVE_SEGMENTS, COPIED, COPIED_FROM, PURGED_THROUGH)
"""All that `LogSummary` is read from."""
# Of a compacted view's table.
HORIZONS = "lifecycle.horizons"
DUE_AT = "lifecycle.due-at"
VIEW_SETTINGS = "lifecycle.view-settings"
"""Hash of the settings by which the view's messages were judged; empty where not all by the same settings."""
MEMORIES = "lifecycle.memories"
"""Number of rows of the view that are no messages any more (CMP-12)."""
VIEW_KEYS = (HORIZONS, DUE_AT, VIEW_SETTINGS, MEMORIES)
"""Keys of a compacted view's state."""


def own_properties(settings: Mapping[str, Value]) -> dict[str, str]:
    """Topic settings as table properties."""
    return {f"{PROPERTY_PREFIX}{name}": property_text(value) for name, value in settings.items()}


def settings_of(properties: Mapping[str, str], *, where: str) -> dict[str, Value]:
    """Topic settings out of table properties; an unknown or wrong one is an InvalidSetting that names the table."""
    given = {
        name.removeprefix(PROPERTY_PREFIX): text
        for name, text in properties.items()
        if name.startswith(PROPERTY_PREFIX) and not name.startswith(f"{PROPERTY_PREFIX}_")
    }
    return parse_topic_settings(given, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """What a commit's summary says of the log: the next offset to be given, and the active segment, per partition.

    `copied`: of a source or mirror, the origin's last offset by partition that was copied (TTL-6). It stands here so that every
    later commit repeats it: lost with an old snapshot, all would be copied again. `copied_from`: the uuid of the origin's table,
    for these offsets mean nothing in another log of that name.
    """

    end_offsets: Mapping[int, int] = field(default_factory=dict)
    active: Mapping[int, ActiveSegment] = field(default_factory=dict)
    copied: Mapping[int, int] = field(default_factory=dict)
    copied_from: str | None = None
    purged_through: Mapping[int, int] = field(default_factory=dict)
    """The last offset by partition that went because the compacted view covers it (CMP-6)."""

    @property
    def copy_state(self) -> CopyState:
        return CopyState(offsets=self.copied, origin_uuid=self.copied_from)

    def to_properties(self) -> dict[str, str]:
        return {
            END_OFFSETS: by_partition(self.end_offsets),
            ACTIVE_SEGMENTS: json.dumps({str(partition): asdict(segment) for partition, segment in sorted(self.active.items())}),
            **({COPIED: by_partition(self.copied)} if self.copied else {}),
            **({COPIED_FROM: self.copied_from} if self.copied_from else {}),
            **({PURGED_THROUGH: by_partition(self.purged_through)} if self.purged_through else {}),
        }

    @classmethod
    def from_properties(cls, summary: Mapping[str, str]) -> LogSummary | None:
        """None where the summary carries no state (another writer's commit)."""
        if END_OFFSETS not in summary:
            return None
        ends, copied, purged = (offsets_of(summary.get(key, "{}"), key) for key in (END_OFFSETS, COPIED, PURGED_THROUGH))
        active = {
            parsed.partition(partition, ACTIVE_SEGMENTS): _active_segment(fields)
            for partition, fields in parsed.json_object(summary.get(ACTIVE_SEGMENTS, "{}"), ACTIVE_SEGMENTS).items()
        }
        return cls(end_offsets=ends, active=active, copied=copied, copied_from=summary.get(COPIED_FROM), purged_through=purged)

    def sealed_at(self, partition: int, base_offset: int, next_offset: int) -> LogSummary:
        """With the active segment closed; a new, empty one follows.

        Unless messages have joined it since the plan was made (they moved the end offset): it then stays open for them.
        """
        current = self.active.get(partition)
        if current is None or current.base_offset != base_offset or self.end_offsets.get(partition) != next_offset:
            return self
        return replace(self, active={**self.active, partition: ActiveSegment(base_offset=next_offset)})

    def purged(self, through: Mapping[int, int]) -> LogSummary:
        """With what a purge has taken."""
        return replace(self, purged_through={**self.purged_through, **through})

    def is_sealed(self, partition: int, base_offset: int) -> bool:
        """Segments seal in order, so all before the active one are sealed."""
        current = self.active.get(partition)
        return current is not None and base_offset < current.base_offset


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """What a snapshot says of itself; nothing where there is none, or it says nothing."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties


def commit_that_says(table: Table, key: str, value: str) -> Snapshot | None:
    """The newest snapshot of main that has the property."""
    return next((snapshot for snapshot in ancestors(table) if summary_of(snapshot).get(key) == value), None)


def by_partition(offsets: Mapping[int, int]) -> str:
    """As `offsets_of` reads it."""
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def offsets_of(text: str, key: str = END_OFFSETS) -> dict[int, int]:
    """Return offsets by partition, out of the value of `key` in a snapshot's summary. Raises DamagedProperty."""
    return parsed.offsets(text, key)


def _active_segment(fields: object) -> ActiveSegment:
    """Raises DamagedProperty."""
    key = ACTIVE_SEGMENTS
    if not isinstance(fields, dict):
        raise damaged_property(key, fields, "a JSON object for each partition")

    def time(name: str) -> Instant | None:
        value = parsed.field(fields, name, key)
        return None if value is None else parsed.instant(value, key)

    return ActiveSegment(
        base_offset=parsed.whole(parsed.field(fields, "base_offset", key), key),
        size_bytes=parsed.whole(parsed.field(fields, "size_bytes", key), key),
        rows=parsed.whole(parsed.field(fields, "rows", key), key),
        newest_at=time("newest_at"),
        any_unknown=parsed.flag(parsed.field(fields, "any_unknown", key), key),
        # Not kept once. The newest time is no earlier than the first, so no segment ends too early by it.
        first_at=time("first_at" if "first_at" in fields else "newest_at"),
    )


def partitions_of(properties: Mapping[str, str]) -> int:
    """Return how many partitions the topic has. Raises DamagedProperty."""
    return parsed.whole(properties.get(PARTITIONS_PROPERTY), PARTITIONS_PROPERTY, least=1, most=_PARTITIONS_MOST)


def ancestors(table: Table, snapshot: Snapshot | None = None) -> Iterator[Snapshot]:
    """The snapshot (None: that of main) and those before it, newest first, as far back as the table remembers them."""
    snapshot = snapshot or table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)


def of_plan(commit_id: int, parent_id: int | None, summary: Mapping[str, str]) -> tuple[int | None, frozenset[int]]:
    """Main's snapshot just before a plan, and the plan's own snapshots on main, told from the commit that carries the plan.

    Its own are mostly that commit alone. Where the staged snapshot became main's as it was (`STAGED_AS`), they are that one and the commit."""
    if STAGED_AS not in summary:
        return parent_id, frozenset((commit_id,))
    pair = str(summary[STAGED_AS]).split()
    if len(pair) != 2:
        raise damaged_property(STAGED_AS, summary[STAGED_AS], "two ids of snapshots")
    before, staged = (parsed.whole(one, STAGED_AS, least=-INT64_MAX) for one in pair)
    return before, frozenset((staged, commit_id))
