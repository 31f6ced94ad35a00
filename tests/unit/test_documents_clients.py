"""Clients that lag, detach, die and come back, while snapshots are made and changes purged (P8, P1, P9, SNP-6, SNP-7).

No live client ever meets a hole or loses an edit without being told; what anybody gets is what all changes give.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from message_lifecycle.app import documents
from message_lifecycle.app.documents import PullResult
from message_lifecycle.folds import fold_of
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import EpochMismatch
from message_lifecycle.model.instants import Instant
from tests.documents import NAME, Drafts, drafts
from tests.effort import effort, generated
from tests.errors import suppressed

DOCUMENTS = ("a", "b")
CLIENTS = ("ann", "bob", "cid")
SILENT_US = 40_000_000
FOLD = fold_of("text_splice", yjs_roots={})
# Mostly one document: what matters is what its clients do to each other.
where = {"document": st.sampled_from(("a", "a", "a", "b")), "client": st.sampled_from(CLIENTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a client has of a document: a text, up to where, and since when it is known to the server (None: it is not)."""

    seq: int = 0
    epoch: int = 0
    text: str = ""
    known_at: int | None = None


class Clients(RuleBasedStateMachine):
    topic: Drafts
    now: int
    truth: dict[str, list[Change]]
    """Every change that was ever taken."""
    standing: dict[tuple[str, str], Standing]

    @initialize(
        interval=st.integers(3, 5),
        keep=st.integers(1, 2),
        last=st.none() | st.integers(1, 4),
        age=st.none() | st.integers(0, 30),
    )
    def begin(self, interval: int, keep: int, last: int | None, age: int | None) -> None:
        bounds = {name: value for name, value in (("changes_keep_last", last), ("changes_max_age", age)) if value is not None}
        self.topic = drafts(
            snapshot_interval=interval, snapshot_threshold=2, snapshots_keep=keep, client_deactivate_after=SILENT_US // 1_000_000, **bounds
        )
        self.now, self.truth, self.standing = 0, {document: [] for document in DOCUMENTS}, {}

    def text_at(self, document: str, seq: int) -> str:
        folding = FOLD.start(None)
        for change in self.truth[document][:seq]:
            folding.apply(change.payload)
        return str(folding.shown())

    def has(self, document: str, client: str) -> Standing:
        return self.standing.get((document, client), Standing())

    def is_live(self, standing: Standing) -> bool:
        """Its row is there, and no run can have found it silent yet."""
        return standing.known_at is not None and self.now < standing.known_at + SILENT_US

    def takes(self, document: str, client: str, pulled: PullResult) -> None:
        had = self.has(document, client)
        if pulled.snapshot is not None:
            assert pulled.state == self.text_at(document, pulled.snapshot.server_seq)
        start = had.seq if pulled.snapshot is None else pulled.snapshot.server_seq
        assert [change.server_seq for change in pulled.changes] == list(range(start + 1, pulled.seq + 1)), "a hole"
        folding = FOLD.start(json.dumps(had.text if pulled.snapshot is None else pulled.state).encode())
        for change in pulled.changes:
            folding.apply(change.payload)
        text = str(folding.shown())
        assert text == self.text_at(document, pulled.seq) == self.text_at(document, len(self.truth[document]))
        self.standing[document, client] = replace(had, seq=pulled.seq, epoch=pulled.epoch, text=text)

    def anew(self, document: str, client: str) -> None:
        self.standing[document, client] = Standing()
        self.takes(document, client, documents.attach(self.topic.s, NAME, document, client=client))

    @rule(**where, spots=st.lists(st.integers(0, 30), min_size=1, max_size=5), deleted=st.integers(0, 3))
    def edits(self, document: str, client: str, spots: list[int], deleted: int) -> None:
        """On what it has pulled just now; refused only with a word."""
        for spot in spots:
            self.edit(document, client, spot, deleted)

    def edit(self, document: str, client: str, spot: int, deleted: int) -> None:
        if self.truth[document]:
            self.pulls(document, client)
        had = self.has(document, client)
        spot = min(spot, len(had.text))
        splice = [[spot, min(deleted, len(had.text) - spot), f"{len(self.truth[document])},"]]
        change = Change(document=document, server_seq=had.seq + 1, client=client, at=Instant(self.now), payload=json.dumps(splice).encode())
        documents.add_changes(self.topic.s, NAME, [change], epoch=had.epoch)
        self.truth[document].append(change)

    @rule(**where)
    def pulls(self, document: str, client: str) -> None:
        if not self.truth[document]:
            return
        had = self.has(document, client)
        try:
            pulled = documents.pull(self.topic.s, NAME, document, client_seq=had.seq, client=client, epoch=had.epoch, at=Instant(self.now))
        except EpochMismatch:
            assert not self.is_live(had), "a live client was turned away"
            self.anew(document, client)
        else:
            self.takes(document, client, pulled)
            if self.is_live(had):  # and by asking it stays so (SNP-3)
                self.standing[document, client] = replace(self.has(document, client), known_at=self.now)

    @rule(**where, pulls=st.booleans())
    def syncs(self, document: str, client: str, pulls: bool) -> None:
        if pulls:
            self.pulls(document, client)
        had = self.has(document, client)
        if not had.seq:
            return
        try:
            done = documents.sync(self.topic.s, NAME, document, client=client, server_seq=had.seq, at=Instant(self.now), epoch=had.epoch)
        except EpochMismatch:
            assert not self.is_live(had), "a live client was turned away"
            self.anew(document, client)
        else:
            self.standing[document, client] = replace(had, epoch=done.epoch, known_at=self.now)

    @rule(**where)
    def detaches(self, document: str, client: str) -> None:
        with suppressed("UnknownDocument"):  # nothing was written to it yet
            documents.detach(self.topic.s, NAME, document, client=client)
        self.standing[document, client] = replace(self.has(document, client), known_at=None)

    @rule(seconds=st.integers(1, 25))
    def time_goes_by(self, seconds: int) -> None:
        self.now += seconds * 1_000_000

    @rule()
    def runs(self) -> None:
        outcome = self.topic.run(self.now)
        assert outcome.name in ("published", "no_op"), outcome.detail
        assert outcome.rows_in == (outcome.rows_kept or 0) + outcome.removed_rows  # P9
        assert outcome.rows_kept == sum(len(self.topic.stored(document)) for document in DOCUMENTS)
        self.snapshot_and_tail_give_what_all_changes_give()
        before = [(self.topic.stored(document), self.topic.s.documents.snapshots(NAME, document)) for document in DOCUMENTS]
        assert self.topic.run(self.now).name == "no_op"  # P1
        assert before == [(self.topic.stored(document), self.topic.s.documents.snapshots(NAME, document)) for document in DOCUMENTS]

    def snapshot_and_tail_give_what_all_changes_give(self) -> None:
        for document in DOCUMENTS:
            stored = self.topic.stored(document)
            assert stored == list(range(len(self.truth[document]) - len(stored) + 1, len(self.truth[document]) + 1))
            for snapshot in self.topic.s.documents.snapshots(NAME, document):
                assert FOLD.start(snapshot.state).shown() == self.text_at(document, snapshot.server_seq)
            shown = list(documents.history(self.topic.s, NAME, document)) if self.truth[document] else []
            assert [state for _, state in shown] == [self.text_at(document, seq) for seq, _ in shown]
            assert not shown or shown[-1][0] == len(self.truth[document])


Clients.TestCase.settings = settings(effort("memory", 15), stateful_step_count=40)


TestClients = generated(Clients.TestCase)
