"""What the verbs work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from message_lifecycle.app.erasure_secret import secret_of_place
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve
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
)

if TYPE_CHECKING:
    from message_lifecycle.ledger import Ledger  # SQLAlchemy comes with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Who carries out a change: one store for each key that a change has (`of`). None: such a change cannot be done here.

    A `Commit` has the name of its table: log, view, snapshots, changes, quarantine. The other kinds of change have their own: rewrite,
    forget, move. `gone` forgets a deleted topic for good."""

    log: MessageStore
    view: ViewStore
    snapshots: ChangeStore
    """Of documents, with their epochs."""
    changes: ChangeStore
    """Of documents."""
    quarantine: QuarantineStore | None = None
    rewrite: Eraser | None = None
    forget: Reclaimer
    move: TopicDeleter | None = None
    gone: DeletedReclaimer | None = None

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
