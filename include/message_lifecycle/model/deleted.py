"""A topic's tables as they are deleted and brought back, whole (DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """One of a topic's tables. `table`: its kind, empty for the log itself. `rows`: those that a reader sees; `size_bytes`: of its data
    files."""

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A topic that the plan deleted, and that was not brought back. `table_uuid`: of its log; `settings`: its own; `ledger`: as
    `ports.Topic.ledger`."""

    plan_id: str
    topic: TopicName
    table_uuid: str
    deleted_at: Instant
    settings: Mapping[str, Value]
    ledger: tuple[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic(Deletion):
    """With its tables, the log first, and what they hold."""

    tables: tuple[TopicTable, ...]

    @property
    def rows(self) -> int:
        """Of the log."""
        return sum(table.rows for table in self.tables if not table.table)

    @property
    def size_bytes(self) -> int:
        return sum(table.size_bytes for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """What is left of a deleted topic whose log somebody has dropped: nothing brings it back or reclaims it. `tables`: names in the
    catalog."""

    plan_id: str
    topic: TopicName
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """All that lies below the location of one of a deleted topic's tables. `location` and `metadata`: as `DropTable` has them.

    `files`: name, role (as `RemoveFiles` has it) and bytes of each, by name; `young`: of those that nothing names, the first that is not
    old enough to be nobody's."""

    table: TopicTable
    location: str = ""
    metadata: str = ""
    files: tuple[tuple[str, str, int], ...] = ()
    young: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunReclaim:
    """What the catalog tells of a reclaim of a deleted topic that has begun: `locations` of its tables, which are forgotten; `removed`:
    its files have gone, and its outcome alone may not be written yet."""

    topic: TopicName
    locations: tuple[str, ...] = ()
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedFacts:
    """A deleted topic that cannot be brought back any more. `held`: the legal holds on its name, in words; `readers`: who the ledger says
    reads it."""

    topic: DeletedTopic
    tables: tuple[TableFiles, ...]
    held: tuple[str, ...] = ()
    heeded: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
