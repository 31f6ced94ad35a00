"""The stores, ledger and settings that the verbs use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from message_lifecycle.app.erasure_secret import configured_secret
from message_lifecycle.app.parts import OptionalPart, Part
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.message import ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.tables import Deletion
from message_lifecycle.model.topic import RECORD_LOGS, Backend
from message_lifecycle.ports import (
    ChangeStore,
    Copier,
    DeletedReclaimer,
    Documents,
    Eraser,
    Gate,
    Groups,
    LogIntegrity,
    LogReturns,
    MessageReader,
    MessageStore,
    QuarantineStore,
    Reclaimer,
    Topic,
    TopicDeleter,
    Topics,
    ViewStore,
)

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger  # SQLAlchemy comes with it


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores that apply changes, one for each key of a change (`of`). None: the backend does not support such a change.

    The key is the kind of the change (`kind`), or one of its `later_stores`. `backend` decides which stores exist.
    """

    backend: Backend
    log: Part[MessageStore] = Part()
    log_return: Part[LogReturns] = Part()
    view: Part[ViewStore] = Part()
    """Reads and compacts the view."""
    view_removal: Part[ChangeStore] = Part()
    view_return: Part[ChangeStore] = Part()
    snapshots: Part[ChangeStore] = Part()
    """The documents' snapshots and epochs."""
    snapshots_return: Part[ChangeStore] = Part()
    changes: Part[ChangeStore] = Part()
    """Purges the documents' changes, after `snapshots`."""
    changes_return: Part[ChangeStore] = Part()
    forget: Part[Reclaimer] = Part()
    quarantine: OptionalPart[QuarantineStore] = OptionalPart()
    quarantine_return: OptionalPart[ChangeStore] = OptionalPart()
    rewrite: OptionalPart[Eraser] = OptionalPart()
    delete_tables: OptionalPart[TopicDeleter] = OptionalPart()
    restore_tables: OptionalPart[ChangeStore] = OptionalPart()
    drop_tables: OptionalPart[DeletedReclaimer] = OptionalPart()

    def deletions(self) -> Sequence[Deletion]:
        """Return the deleted topics, the newest first. Empty if the store cannot delete topics."""
        return () if self.delete_tables is None else self.delete_tables.deletions()

    def store_for(self, key: str) -> ChangeStore:
        found: ChangeStore | None = getattr(self, key)
        assert found is not None, "who plans a change has asked for its store"
        return found


@dataclass(frozen=True, kw_only=True)
class Services:
    """The stores, ledger and settings that the verbs use. Only `wiring` creates them."""

    topics: Topics
    reader: MessageReader
    stores: Stores
    copier: Part[Copier] = Part()
    documents: Part[Documents] = Part()
    gate: Part[Gate] = Part()
    ledger: Ledger
    server: Mapping[str, Value]
    witnesses: OptionalPart[LogIntegrity] = OptionalPart()
    """None: no other engine can change the logs of this store."""
    groups: Groups | None = None
    """The readers that the store itself knows. None: only the ledger knows readers."""
    backends: Mapping[TopicName, Backend] = field(default_factory=dict)
    """Topics in configured backends next to the lake (see `backends`). `topics.list` does not include them."""
    strays: Callable[[], Sequence[str]] = tuple
    """Describes the topics in those backends that no verb reaches, because the configuration does not name them (any more)."""
    key_secret: Callable[[bool], KeySecret] = configured_secret
    """Returns the secret for hashing keys, read only when a key is hashed. With True, a missing secret is created. See `erasure_secret`."""

    @property
    def backend(self) -> Backend:
        """The backend of these stores. Topics in `backends` have another backend."""
        return self.stores.backend

    def backend_of(self, name: TopicName) -> Backend:
        return self.backends.get(name, self.backend)

    def view_of(self, name: TopicName) -> ViewState | None:
        """Return the topic's compacted view, or None. A log of single records has none: a compacted read shows the whole log (CMP-4)."""
        return None if self.backend_of(name) in RECORD_LOGS else self.stores.view.view(name)

    def view_commit(self, plan: Plan) -> Published | None:
        """Return the plan's commit on the compacted view, or None."""
        return None if self.backend_of(plan.topic) in RECORD_LOGS else self.stores.view.find_published(plan)

    def work_on(self, name: TopicName) -> Literal["message_cleaner", "retention"]:
        """Return the operation that cleans a topic of messages. Topics in a backend have only retention (RET-5)."""
        return "retention" if name in self.backends else "message_cleaner"


def find_topic(s: Services, name: TopicName) -> Topic | None:
    try:
        return s.topics.describe(name)
    except UnknownTopic:
        return None


def policy_of(s: Services, name: TopicName) -> Policy:
    """The topic's effective settings now."""
    return resolve(topic=s.topics.describe(name).settings, server=s.server)
