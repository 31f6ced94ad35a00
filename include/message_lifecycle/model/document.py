"""Documents of a topic: their changes, snapshots, and how far each client has synchronised (SNP-1 to SNP-9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

ACCEPTED_OWN = "own_settings"
"""The key for the accepted settings of users and documents, as JSON, next to a topic's own accepted settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a document.

    Attributes:
        server_seq: 1, 2, 3 ... per document (SNP-1).
        at: None: unknown.
        payload: JSON text in UTF-8. For the fold `yjs`, the bytes of an update.
    """

    document: str
    server_seq: int
    client: str
    at: Instant | None
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The fold of every change up to `server_seq`, in the fold's own format. `epoch`: the document's epoch at that time."""

    document: str
    server_seq: int
    epoch: int
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A client that has proved to have every change up to `server_seq`, and the time of its last proof (SNP-3). Never at 0 (SNP-5)."""

    document: str
    client: str
    server_seq: int
    at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """One document by its tables.

    Attributes:
        first: The first stored change. The stored changes run from `first` to `seq` without holes. None: no change is stored.
        snapshots: Ascending.
        younger: The lowest stored server_seq that age does not remove. A change with an unknown time stays. None: every stored change is
            past `changes_max_age`, or no change is stored. Equals `first` if no age is set.
    """

    document: str
    seq: int
    first: int | None
    snapshots: tuple[int, ...]
    epoch: int
    younger: int | None

    @property
    def last_snapshot(self) -> int:
        """The newest snapshot. 0: the document has no snapshot yet."""
        return self.snapshots[-1] if self.snapshots else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTables:
    """The two tables of a document topic at one moment. An id of None: nothing was ever written to that table."""

    topic: TopicName
    changes_uuid: str
    changes_id: int | None
    snapshots_uuid: str | None
    snapshots_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedDocuments:
    """The staged change of a plan, on branches of both tables, where no reader sees it. An id is None if nothing of that table changes."""

    snapshots_id: int | None = None
    changes_id: int | None = None
    made: int = 0
    """New snapshots."""
    dropped: int = 0
    """Snapshots that leave."""
    purged: int = 0
    """Changes that leave."""
    blocked: tuple[tuple[str, str], ...] = ()
    """(document, why). A blocked document keeps every change and gets no snapshot (SNP-10)."""
    state_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSettings:
    """Settings below the topic's: settings of users (owners of documents) and of single documents, and the owner of each document (SNP-9)."""

    users: Mapping[str, Mapping[str, int | float | bool | str]]
    documents: Mapping[str, Mapping[str, int | float | bool | str]]
    owners: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChanges:
    """Changes of `OwnSettings`, all or nothing. None unsets a setting, or leaves a document without an owner."""

    users: Mapping[str, Mapping[str, int | float | bool | str | None]] = field(default_factory=dict)
    documents: Mapping[str, Mapping[str, int | float | bool | str | None]] = field(default_factory=dict)
    owners: Mapping[str, str | None] = field(default_factory=dict)
