"""A topic's documents: the stored changes and snapshots, the clients and their progress, and the content that a client gets (SNP-1 to SNP-9)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from message_lifecycle.app.documents import DocumentDescription, PullResult, describe
from message_lifecycle.app.rendering import ABSENT, Block, Count, Line, Number, Table, View
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.wording import ROWS, count, setting_text
from message_lifecycle.model.document import Change, DocumentState, Synced
from message_lifecycle.model.instants import Instant, is_dead
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import OWN_SETTINGS, Value
from message_lifecycle.model.settings import BY_NAME, Policy
from message_lifecycle.operations import document_reading
from message_lifecycle.operations.snapshot_with_purge import silent_since

_SETTINGS = Table(
    columns={"setting": lambda one: one[0], "value": lambda one: setting_text(one[1], BY_NAME[one[0]].unit)},
    title="Settings that act on it",
)


class ClientView(View):
    """A client's progress. `keeps`: changes are kept for it, until it falls silent."""

    client: str
    server_seq: Number
    lag: Count
    at: Instant | None
    falls_silent_at: Instant | None
    keeps: bool

    table = Table(
        columns={
            "client": "client", "has": "server_seq", "behind": "lag", "last request": "at",
            "keeps changes": lambda one: "yes" if one.keeps else "no, silent for too long", "falls silent": "falls_silent_at",
        },
        wrap=("client",), absent={"falls silent": "never"}, title="Clients",
    )  # fmt: skip


class DocumentView(View):
    """One document.

    Args:
        first: The first stored change. None: no change is stored.
        lowest_synced: The lowest progress of the clients that keep changes. None: no client keeps changes.
        settings: The effective settings, if the caller requested them.
    """

    topic: TopicName = ABSENT
    document: str
    owner: str | None
    seq: Number
    first: Number | None
    changes: Count
    snapshots: tuple[int, ...]
    epoch: Number
    lowest_synced: Number | None
    clients: tuple[ClientView, ...]
    settings: Mapping[str, Value | None] = ABSENT

    @property
    def stored(self) -> str:
        return "none" if self.first is None else f"{self.first}..{self.seq}"

    @property
    def newest_snapshot(self) -> Number | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def client_count(self) -> Count:
        return len(self.clients)

    table = Table(
        columns={
            "document": "document", "owner": "owner", "changes": "stored", "newest snapshot": "newest_snapshot", "epoch": "epoch",
            "lowest synced": "lowest_synced", "clients": "client_count",
        },
        right=("changes",), wrap=("document",), absent={"newest snapshot": "none", "lowest synced": "nobody"}, most=ROWS, title="Documents",
    )  # fmt: skip

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.topic}: {self.document}", style="bold")
        yield {
            "owner": self.owner or "nobody",
            "at change": count(self.seq),
            "stored": self.stored,
            "snapshots": ", ".join(map(str, self.snapshots)) or "none yet",
            "epoch": str(self.epoch),
            "lowest synced": "nobody: nothing is purged" if self.lowest_synced is None else str(self.lowest_synced),
        }
        yield ClientView.table.of(self.clients)
        yield _SETTINGS.of(self.settings.items())


class OwnSetting(View):
    """A setting of one document, or of all documents of a user."""

    level: Literal["user", "document"]
    name: str
    setting: str
    value: Value | None

    table = Table(
        columns={"of": lambda one: f"{one.level} {one.name}", "setting": "setting", "value": lambda one: setting_text(one.value, BY_NAME[one.setting].unit)}, most=ROWS,
        title="Settings below the topic's",
    )  # fmt: skip


class DocumentsView(View):
    """The documents of a topic, by name, and their sums."""

    topic: TopicName
    fold: str | None
    changes_uuid: str | None
    changes_id: Number | None
    snapshots_uuid: str | None
    snapshots_id: Number | None
    changes: Count
    snapshots: Count
    clients: Count
    purged: Count
    documents: tuple[DocumentView, ...]
    own_settings: tuple[OwnSetting, ...]

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.topic}: {count(len(self.documents))} documents, folded as {self.fold}", style="bold")
        yield {
            "changes": count(self.changes),
            "snapshots": count(self.snapshots),
            "clients": count(self.clients),
            "purged before": f"{count(self.purged)} documents",
        }
        yield DocumentView.table.of(self.documents)
        yield OwnSetting.table.of(self.own_settings)


def documents_view(s: Services, name: TopicName) -> DocumentsView:
    """Raises UnknownTopic, NotADocumentTopic."""
    own, now = s.ledger.settings_below_topic(name), s.ledger.now()
    found = tuple(document_view(one, now) for one in describe(s, name))
    return DocumentsView.of(
        s.documents.tables(name),
        fold=policy_of(s, name).fold,
        changes=sum(view.changes for view in found),
        snapshots=sum(len(view.snapshots) for view in found),
        clients=sum(len(view.clients) for view in found),
        purged=sum(view.epoch > 0 for view in found),
        documents=found,
        own_settings=(*_own_settings("user", own.users), *_own_settings("document", own.documents)),
    )


def document_view(found: DocumentDescription, now: Instant, **given: object) -> DocumentView:
    clients = tuple(_client(row, found.state.seq, found.policy, now) for row in found.clients)
    lowest = min((client.server_seq for client in clients if client.keeps), default=None)
    given |= {"owner": found.owner, "changes": _stored(found.state), "clients": clients, "lowest_synced": lowest}
    return DocumentView.of(found.state, **given)


def described_view(name: TopicName, found: DocumentDescription, now: Instant) -> DocumentView:
    """Return the view of a single document, with its effective settings."""
    return document_view(found, now, topic=name, settings={setting: found.policy[setting] for setting in OWN_SETTINGS})


def _stored(state: DocumentState) -> int:
    return 0 if state.first is None else state.seq - state.first + 1


def _client(row: Synced, seq: int, policy: Policy, now: Instant) -> ClientView:
    end = silent_since(row, policy)
    last = None if end is None else Instant(end - 1)  # the last instant at which it keeps anything, as of consumers
    return ClientView.of(row, lag=seq - row.server_seq, falls_silent_at=last, keeps=end is None or not is_dead(end, now))


def _own_settings(level: Literal["user", "document"], of: Mapping[str, Mapping[str, Value | None]]) -> Iterator[OwnSetting]:
    for name, settings in sorted(of.items()):
        yield from (OwnSetting(level=level, name=name, setting=setting, value=value) for setting, value in sorted(settings.items()))


class AlteredView(View):
    """The settings of one document, or of all documents of a user."""

    topic: TopicName
    level: Literal["user", "document"]
    name: str
    settings: Mapping[str, Value | None]
    owner: str | None

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.level} {self.name} of {self.topic}", style="bold")
        yield {"owner": self.owner, **{name: setting_text(value, BY_NAME[name].unit) for name, value in self.settings.items()}}
        if not self.settings:
            yield "no settings of its own"


class StateView(View):
    """A document after a change."""

    server_seq: Number
    state: object


class ChangeView(View):
    """A change as a client gets it."""

    server_seq: Number
    client: str
    at: Instant | None
    payload: object

    table = Table(
        columns={"change": "server_seq", "client": "client", "at": "at", "payload": lambda one: json.dumps(one.payload, ensure_ascii=False)}
    )


class PulledView(View):
    """The content that a client gets, and the epoch that it must give with its next request."""

    document: str
    seq: Number
    epoch: Number
    snapshot: StateView | None
    changes: tuple[ChangeView, ...]

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.document}: at change {count(self.seq)}, epoch {self.epoch}", style="bold")
        if self.snapshot is not None:
            yield f"snapshot at {count(self.snapshot.server_seq)}: {json.dumps(self.snapshot.state, ensure_ascii=False)}"
        if self.changes:
            yield ChangeView.table.of(self.changes)
        elif self.snapshot is None:
            yield "nothing is new"


def pulled_view(pulled: PullResult, fold: str | None) -> PulledView:
    snapshot = None if pulled.snapshot is None else StateView(server_seq=pulled.snapshot.server_seq, state=pulled.state)
    changes = tuple(ChangeView.of(change, payload=_payload(change, fold)) for change in pulled.changes)
    return PulledView.of(pulled, snapshot=snapshot, changes=changes)


def _payload(change: Change, fold: str | None) -> object:
    """As `lifecycle document add` takes it. A stored payload that is no JSON is shown as its bytes."""
    try:
        if fold != "yjs":
            return json.loads(change.payload)
    except ValueError:
        pass
    return {"base64": base64.b64encode(change.payload).decode()}


class NotShownView(View):
    """Stored changes that the history cannot show. `first_shown` is the first change that it can show, or None."""

    from_: Number
    to: Number
    first_shown: Number | None


def not_shown_view(state: DocumentState, start: int) -> NotShownView | None:
    """Return the changes from `start` on that `history` cannot show, or None.

    The changes before them were purged, so there is no state to apply them to (SNP-8).
    """
    shown, first = document_reading.history(state, start), state.first
    if first is None or start > state.seq:
        return None
    stored, first_shown = max(start, first), shown.first if shown.last else None
    if stored == first_shown:
        return None
    return NotShownView(from_=stored, to=state.seq if first_shown is None else first_shown - 1, first_shown=first_shown)


def history_blocks(
    document: str, entries: Iterable[tuple[int, object]], following: Callable[[], int | None], hidden: NotShownView | None
) -> Iterator[Block]:
    """Yield the states as they come, because a table would need all of them for the width of its columns.

    Args:
        document: The document's name.
        entries: Each server_seq with the state after it.
        following: Called at the end. Returns the start of the next page, or None.
        hidden: Stored changes that the history cannot show. None: there are none.
    """
    none = True
    for seq, state in entries:
        if none:
            yield Line("change  the document after it", style="dim")
        none = False
        yield f"{seq:>6}  {json.dumps(state, ensure_ascii=False)}"
    if none:
        yield f"{document}: no change is there from which on the history can be shown"
    goes_on_from = following()
    if goes_on_from is not None:
        yield f"More: --from {goes_on_from}"
    if hidden is not None:
        why = "what came before them was purged, and no snapshot is there from which on they could be applied"
        yield f"Changes {count(hidden.from_)} to {count(hidden.to)} are stored and cannot be shown: {why}"
