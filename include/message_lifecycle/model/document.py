"""Documents of a topic: their changes, snapshots, and how far each client has synchronised (SNP-1 to SNP-9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

ACCEPTED_OWN = "own_settings"
"""Beside a topic's accepted settings: those of users and documents, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a document. `server_seq`: 1, 2, 3 ... per document (SNP-1). `payload`: JSON text in UTF-8, of the fold `yjs` an
    update's bytes. `at` None: not known."""

    document: str
    server_seq: int
    client: str
    at: Instant | None
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The fold of all changes up to `server_seq`, as its fold stores it. `epoch`: of the document when this was made."""

    document: str
    server_seq: int
    epoch: int
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A client that has proved to have all changes up to `server_seq`, and when it last did (SNP-3). Never at 0 (SNP-5)."""

    document: str
    client: str
    server_seq: int
    at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """One document as its tables have it. Stored changes are those from `first` to `seq`, without holes; `first` None: none is stored.

    `snapshots`: ascending. `younger`: the lowest stored server_seq that its age does not let go (unknown times are kept); None: all are
    past `changes_max_age`, or no change is stored. Where no age is set it equals `first`."""

    document: str
    seq: int
    first: int | None
    snapshots: tuple[int, ...]
    epoch: int
    younger: int | None

    @property
    def last_snapshot(self) -> int:
        """0: there is none yet."""
        return self.snapshots[-1] if self.snapshots else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTables:
    """Both tables of a document topic at one moment. `None`: nothing was ever written to it."""

    topic: TopicName
    changes_uuid: str
    changes_id: int | None
    snapshots_uuid: str | None
    snapshots_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedDocuments:
    """What a plan has made, on branches of both tables, before anybody sees it. Ids are None where nothing of that table changes."""

    snapshots_id: int | None
    changes_id: int | None
    made: int
    """Snapshots made."""
    dropped: int
    """Snapshots that go."""
    purged: int
    """Changes that go."""
    blocked: tuple[tuple[str, str], ...] = ()
    """(document, why): nothing of these goes, and no snapshot of them was made (SNP-10)."""
    state_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSettings:
    """Settings below the topic's: of users (owners of documents) and of single documents, and who owns which (SNP-9)."""

    users: Mapping[str, Mapping[str, int | float | bool | str]]
    documents: Mapping[str, Mapping[str, int | float | bool | str]]
    owners: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChanges:
    """What is to be changed of `OwnSettings`, all of it or nothing. None unsets a setting, and makes a document nobody's."""

    users: Mapping[str, Mapping[str, int | float | bool | str | None]] = field(default_factory=dict)
    documents: Mapping[str, Mapping[str, int | float | bool | str | None]] = field(default_factory=dict)
    owners: Mapping[str, str | None] = field(default_factory=dict)
