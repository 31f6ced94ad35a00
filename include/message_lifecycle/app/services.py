"""What the verbs work with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from message_lifecycle.app.erasure_secret import secret_of_place
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.names import TopicName, made, meant, normalise_name
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.tables import Deletion
from message_lifecycle.model.topic import Backend
from message_lifecycle.ports import (
    ChangeStore,
    Copier,
    DeletedReclaimer,
    Documents,
    Eraser,
    Gate,
    Groups,
    MessageReader,
    MessageStore,
    QuarantineStore,
    Reclaimer,
    Topic,
    TopicDeleter,
    Topics,
    ViewStore,
    Witnesses,
)

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger  # SQLAlchemy comes with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Who carries out a change: one store for each key that a change has (`of`). None: such a change cannot be done here.

    The key is the kind of the change (`kind`): log, view, snapshots, changes, quarantine, rewrite, forget,
    delete_tables, restore_tables or drop_tables."""

    log: MessageStore
    view: ViewStore
    snapshots: ChangeStore
    """Of documents, with their epochs."""
    changes: ChangeStore
    """Of documents."""
    quarantine: QuarantineStore | None = None
    rewrite: Eraser | None = None
    forget: Reclaimer
    delete_tables: TopicDeleter | None = None
    restore_tables: ChangeStore | None = None
    drop_tables: DeletedReclaimer | None = None

    def deletions(self) -> Sequence[Deletion]:
        """Return the deleted topics, the newest first. None where topics cannot be deleted."""
        return () if self.delete_tables is None else self.delete_tables.deletions()

    def of(self, key: str) -> ChangeStore:
        found: ChangeStore | None = getattr(self, key)
        assert found is not None, "who plans a change has asked for its store"
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the verbs work with; made by `wiring` alone."""

    topics: Topics
    reader: MessageReader
    stores: Stores
    copier: Copier
    documents: Documents
    gate: Gate
    ledger: Ledger
    server: Mapping[str, Value]
    witnesses: Witnesses | None = None
    """None: no other engine can change the logs of this store."""
    groups: Groups | None = None
    """Where the store knows readers of its own; None: only the ledger does."""
    backends: Mapping[TopicName, Backend] = field(default_factory=dict)
    """Topics that lie in configured backends beside the lake (see `backends`), which `topics.list` does not name."""
    strays: Callable[[], Sequence[str]] = tuple
    """What lies in those backends and no verb reaches, in words: topics that the configuration does not name (any more)."""
    key_secret: Callable[[bool], KeySecret] = secret_of_place
    """What keys are hashed with, asked for only where one is; True: made where there is none. See `erasure_secret`."""

    def work_on(self, name: TopicName) -> Literal["message_cleaner", "retention"]:
        """What cleans a topic of messages: of a backend, retention is all there is (RET-5)."""
        return "retention" if name in self.backends else "message_cleaner"


def find_topic(s: Services, name: TopicName) -> Topic | None:
    try:
        return s.topics.describe(name)
    except UnknownTopic:
        return None


def policy_of(s: Services, name: TopicName) -> Policy:
    """The topic's effective settings now."""
    return resolve(topic=s.topics.describe(name).settings, server=s.server)


def document_of(s: Services, name: TopicName, text: str) -> str:
    """The document of the topic that is meant by the text (NAME-1); where there is none, its name as it is normalised.

    Raises InvalidName, AmbiguousName."""
    given = normalise_name(text)
    return kept_documents(s, name, {given})[given]


def kept_documents(s: Services, name: TopicName, given: Collection[str], *, may_be_new: bool = False) -> Mapping[str, str]:
    """Under which name each document is kept that a normalised name means, or, `may_be_new`, is kept from now on (NAME-1).

    All documents are listed only for a name that has several spellings and is none of theirs. Raises InvalidName, AmbiguousName."""
    strange = {one for one in given if not one.isascii() or one.startswith("-")}
    if not strange or not s.topics.describe(name).of_documents:
        return {one: one for one in given}
    tables = s.documents.tables(name)
    there = {state.document for state in s.documents.states(name, tables, only=strange)}

    @cache
    def every() -> frozenset[str]:
        own = s.ledger.own_settings(name)
        written, synced = s.documents.states(name, tables), s.ledger.synced(name)
        return frozenset({*own.documents, *own.owners, *(one.document for one in written), *(row.document for row in synced)})

    find = made if may_be_new else meant
    return {one: find(one, every) if one in strange - there else one for one in given}
