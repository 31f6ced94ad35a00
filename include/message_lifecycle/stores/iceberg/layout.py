"""The layout of a topic in a table: columns, partitioning, properties, and the state that every commit of ours repeats (MSG-4).

A segment is the set of data files of one (partition, segment) pair, so metadata alone can name it. The snapshot summary records which
segment of a partition still accepts messages, and its size. Readers take the summary from the newest ancestor of main that has it.
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
"""A setting of an I/O: namespace and name, as JSON, of the table that its storage keys are for."""
COMPACTED = "compacted"
"""The kind of the table next to a topic's with its compacted view."""
LATEST = "latest"
"""The kind of the SQL view next to a topic's table that reads the topic through its compacted view."""
LIVE = "live"
"""The kind of the SQL view next to a topic's table that hides dead messages. No topic's name ends in it."""
SNAPSHOTS = "snapshots"
"""The kind of the table next to a document topic's with the snapshots of its documents."""
QUARANTINE = "quarantine"
"""The kind of the table next to a topic's with refused rows (QUA-1)."""
KINDS = ("", COMPACTED, SNAPSHOTS, QUARANTINE)
"""The kinds of a topic's tables, its own first."""
BESIDE = (COMPACTED, LATEST, LIVE, SNAPSHOTS, QUARANTINE)
"""The kinds of all tables and views next to topics' tables."""

ROW_GROUPS: Mapping[str, str] = {
    # By default Iceberg first checks the size of a row group after 100 rows, and then after 10,000 at the latest. That many messages of the
    # largest size do not fit into a task's memory.
    "write.parquet.row-group-size-bytes": str(64 << 20),
    "write.parquet.row-group-check-min-record-count": "1",
    "write.parquet.row-group-check-max-record-count": "8",
}
"""Properties of every table with messages or refused rows: the size of row groups."""
TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    **ROW_GROUPS,
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # A plan is an explicit list, and rows appended meanwhile cannot match it. So the weaker level is correct and allows appends.
    "write.delete.isolation-level": "snapshot",
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # At Iceberg's default, level 9, a commit that drops many segments spends half its time on compression.
    "write.manifest.compression-level": "1",
    # The planner needs only the partition and the bounds of these columns. Every further column slows a commit that drops many segments.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.offset": "full",
    "write.metadata.metrics.column.append_time": "full",
    "write.metadata.metrics.column.expires_at": "full",
    "write.metadata.metrics.column.never": "full",
}

# Table properties in addition to the settings (which are `lifecycle.<setting>`); `_` keeps them apart.
STREAM_PROPERTY = "lifecycle._stream"
TOPIC_PROPERTY = "lifecycle._topic"
PARTITIONS_PROPERTY = "lifecycle._partitions"
_PARTITIONS_MOST = 100_000
ROLE_PROPERTY = "lifecycle._role"
# How a message without a partition gets one (MSG-3): CRC-32 of the key, or of the value without a key, modulo the number of partitions.
PARTITIONER_PROPERTY = "lifecycle._partitioner"
PARTITIONER = "crc32"
FOLD_PROPERTY = f"{PROPERTY_PREFIX}fold"
"""Only tables of documents' changes have this property (SNP-10)."""
SCRATCH_PROPERTY = "lifecycle._scratch"
"""Marks a scenario's table, which no run on the lake sees."""

DELETED = "lifecycle_deleted"
"""The namespace of deleted topics' tables. No stream has this namespace, because a `_` in a stream's name is encoded."""
# Properties of a deleted topic's tables. An undo removes them.
DELETED_BY = "lifecycle._deleted-by"
DELETED_AT = "lifecycle._deleted-at"
DELETED_GATE = "lifecycle._deleted-gate"
DELETED_KIND = "lifecycle._deleted-kind"
RETURNED_BY = "lifecycle._returned-by"
"""The undo that restored the topic."""
LEDGER_MARK = "lifecycle._ledger-mark"
"""`uuid:sequence` of the ledger that placed or released the newest hold, or took over the table. No commit of ours records these (DEL-8)."""
WITNESS = "lifecycle._log-state"
"""A table property with the state of our newest commit. Unlike a snapshot, it survives an expiry (MSG-4, see `witness`)."""
ERASING = "lifecycle._erasing"
"""Names the list of files that an erasure must still delete. The erasure's commit sets the property; the end of the erasure removes it."""

# Properties of a snapshot's summary.
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
"""On a plan's commit that published the staged snapshot as it was.

The value has two ids: main's snapshot before the plan, and the staged snapshot. The staged snapshot is the commit's parent.
"""
REMOVED = "lifecycle.removed"
"""Next to `STAGED_AS`: how many messages the staged snapshot removed, by Iceberg's own counts; below zero, restored."""
PARENT_PLAN_ID = "lifecycle.parent-plan-id"
"""On the append of a plan's markers, which shares one commit with its deletion."""
UNDOES = "lifecycle.undoes"
"""On an undo's commit: the undone plan."""
AT_ONCE = "lifecycle.at-once"
"""On a plan's commit that was requested together with the commits of its other tables, all or none."""
INGEST_ID = "lifecycle.ingest-id"
SPAN_SECONDS = "lifecycle.span-seconds"
"""On a batch that would have opened too many segments: the doubled span of its segments (EXP-3)."""
PURGED_THROUGH = "lifecycle.purged-through"
REPAIRED = "lifecycle.repaired"
"""On the commit of a repair: `state`, or `rollback` if an operator accepted one."""
STATE_KEYS = (END_OFFSETS, ACTIVE_SEGMENTS, COPIED, COPIED_FROM, PURGED_THROUGH)
"""The keys that `LogSummary` reads."""
# Properties of a compacted view's table.
HORIZONS = "lifecycle.horizons"
DUE_AT = "lifecycle.due-at"
VIEW_SETTINGS = "lifecycle.view-settings"
"""A hash of the settings that judged the view's messages; empty if different settings judged them."""
MEMORIES = "lifecycle.memories"
"""The number of the view's rows that are memories, not messages (CMP-12)."""
VIEW_KEYS = (HORIZONS, DUE_AT, VIEW_SETTINGS, MEMORIES)
"""The keys of a compacted view's state."""


def own_properties(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return topic settings as table properties."""
    return {f"{PROPERTY_PREFIX}{name}": property_text(value) for name, value in settings.items()}


def settings_of(properties: Mapping[str, str], *, where: str) -> dict[str, Value]:
    """Return topic settings from table properties.

    Raises:
        InvalidSetting: A setting is unknown or wrong. The error names the table.
    """
    given = {
        name.removeprefix(PROPERTY_PREFIX): text
        for name, text in properties.items()
        if name.startswith(PROPERTY_PREFIX) and not name.startswith(f"{PROPERTY_PREFIX}_")
    }
    return parse_topic_settings(given, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """The log's state in a commit's summary: by partition, the next offset and the active segment.

    Attributes:
        copied: For a source or mirror, the last copied offset of the origin by partition (TTL-6). Every later commit repeats the offsets.
            If they were lost with an old snapshot, every message would be copied again.
        copied_from: The uuid of the origin's table. The copied offsets mean nothing in another log of that name.
    """

    end_offsets: Mapping[int, int] = field(default_factory=dict)
    active: Mapping[int, ActiveSegment] = field(default_factory=dict)
    copied: Mapping[int, int] = field(default_factory=dict)
    copied_from: str | None = None
    purged_through: Mapping[int, int] = field(default_factory=dict)
    """The last offset by partition that was removed because the compacted view covers it (CMP-6)."""

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
        """Return the state in a summary; None if it has no state (another writer's commit)."""
        if END_OFFSETS not in summary:
            return None
        ends, copied, purged = (offsets_of(summary.get(key, "{}"), key) for key in (END_OFFSETS, COPIED, PURGED_THROUGH))
        active = {
            parsed.partition(partition, ACTIVE_SEGMENTS): _active_segment(fields)
            for partition, fields in parsed.json_object(summary.get(ACTIVE_SEGMENTS, "{}"), ACTIVE_SEGMENTS).items()
        }
        return cls(end_offsets=ends, active=active, copied=copied, copied_from=summary.get(COPIED_FROM), purged_through=purged)

    def sealed_at(self, partition: int, base_offset: int, next_offset: int) -> LogSummary:
        """Return the state with the active segment closed; a new, empty one follows.

        The segment stays open if messages have joined it since the plan: they have moved the end offset.
        """
        current = self.active.get(partition)
        if current is None or current.base_offset != base_offset or self.end_offsets.get(partition) != next_offset:
            return self
        return replace(self, active={**self.active, partition: ActiveSegment(base_offset=next_offset)})

    def purged(self, through: Mapping[int, int]) -> LogSummary:
        """Return the state with the offsets of a purge."""
        return replace(self, purged_through={**self.purged_through, **through})

    def is_sealed(self, partition: int, base_offset: int) -> bool:
        """Return whether a segment is sealed. Segments seal in order, so every segment before the active one is sealed."""
        current = self.active.get(partition)
        return current is not None and base_offset < current.base_offset


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """Return the properties of a snapshot's summary; empty without any."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties


def commit_that_says(table: Table, key: str, value: str) -> Snapshot | None:
    """Return main's newest snapshot with the property, or None."""
    return next((snapshot for snapshot in ancestors(table) if summary_of(snapshot).get(key) == value), None)


def by_partition(offsets: Mapping[int, int]) -> str:
    """Return the offsets as the text that `offsets_of` reads."""
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def offsets_of(text: str, key: str = END_OFFSETS) -> dict[int, int]:
    """Return offsets by partition from the value of `key` in a snapshot's summary. Raises DamagedProperty."""
    return parsed.offsets(text, key)


def _active_segment(fields: object) -> ActiveSegment:
    """Return the active segment from its JSON object. Raises DamagedProperty."""
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
        # Older commits lack the first time. The newest time is no earlier, so no segment ends too early because of it.
        first_at=time("first_at" if "first_at" in fields else "newest_at"),
    )


def partitions_of(properties: Mapping[str, str]) -> int:
    """Return how many partitions the topic has. Raises DamagedProperty."""
    return parsed.whole(properties.get(PARTITIONS_PROPERTY), PARTITIONS_PROPERTY, least=1, most=_PARTITIONS_MOST)


def ancestors(table: Table, snapshot: Snapshot | None = None) -> Iterator[Snapshot]:
    """Yield the snapshot (None: main's) and its ancestors, newest first, as far back as the table remembers them."""
    snapshot = snapshot or table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)


def of_plan(commit_id: int, parent_id: int | None, summary: Mapping[str, str]) -> tuple[int | None, frozenset[int]]:
    """Return main's snapshot just before a plan, and the plan's own snapshots on main, from the plan's commit.

    Usually the plan's only snapshot is that commit. If the plan published its staged snapshot as it was (`STAGED_AS`), its snapshots are
    the staged one and the commit.
    """
    if STAGED_AS not in summary:
        return parent_id, frozenset((commit_id,))
    pair = str(summary[STAGED_AS]).split()
    if len(pair) != 2:
        raise damaged_property(STAGED_AS, summary[STAGED_AS], "two ids of snapshots")
    before, staged = (parsed.whole(one, STAGED_AS, least=-INT64_MAX) for one in pair)
    return before, frozenset((staged, commit_id))
