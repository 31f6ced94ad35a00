"""What a topic's tables remember of their past, and which files only the past needs: what reclaiming is planned from (DEL-7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFact:
    """`carries`: whose word stands in its summary (a writer's progress, our own state): they look for it in the newest ancestor that has it.
    `main_left_at`: when another became the newest of main in its place, the last time; None: main's log does not tell."""

    snapshot_id: int
    parent_id: int | None
    at: Instant
    carries: tuple[str, ...] = ()
    main_left_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefFact:
    """A branch or a tag, with its own rules, or the table's where it has none; None: no rule. Durations in microseconds."""

    name: str
    snapshot_id: int
    is_branch: bool
    max_ref_age_us: int | None = None
    max_snapshot_age_us: int | None = None
    min_snapshots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """One table of a topic. `table`: its kind, empty for the log itself. `refs` with main among them, where the table has a snapshot."""

    table: str
    table_uuid: str
    snapshots: tuple[SnapshotFact, ...]
    refs: tuple[RefFact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseQuestion:
    """Which files of a table may go if `kept` alone of its snapshots stay.

    Metadata files replaced before `metadata_before` count as loose, and files that nothing names if they last changed before
    `orphans_before`. At the most `limit` files are told."""

    table: str
    kept: tuple[int, ...]
    metadata_before: Instant
    orphans_before: Instant
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """The answer. `files`: name, kind and bytes of each, by name. `total_files` and `total_bytes`: of all that lies below the table's
    location. `more`: there are others beyond the limit."""

    table: str
    files: tuple[tuple[str, str, int], ...]
    total_files: int
    total_bytes: int
    more: bool = False


AskLoose = Callable[[LooseQuestion], LooseFiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimFacts:
    """`needed_since`: the beginning of the oldest ingest or plan that is still open; nothing younger may go. `undoable_since`: the same of
    plans that can still be taken back by the ledger's clock, which may have recorded a commit long after it was made. `held`: what holds
    the whole topic, in words. `accepted`: the settings under which its removals were last accepted; None: unknown."""

    topic: TopicName
    tables: tuple[TableHistory, ...]
    snapshot_id: int | None
    needed_since: Instant | None = None
    undoable_since: Instant | None = None
    held: tuple[str, ...] = ()
    heeded: tuple[str, ...] = ()
    accepted: Mapping[str, Value | None] | None = None
