"""A real document as a topic: 18,335 transactions of one editor, clients at their own pace, snapshots, purges and a history (SNP-1 to SNP-9)."""

from __future__ import annotations

import json

import pytest
from tests.effort import hunt
from tests.spark.documents import Documents
from tests.spark.lake import Lake

from lifecycle_local.demo_data import TRANSACTIONS, editing_trace
from message_lifecycle.app import documents
from message_lifecycle.folds import fold_of
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import EpochMismatch
from message_lifecycle.model.instants import Instant

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

DOCUMENT = "component"
BATCH = 1_000
PACE = {"near": 1, "behind": 3}
"""Of how many batches each client synchronises one; `behind` is then gone for good in the middle."""


class Client:
    """One that applies what it pulls, and believes nothing else."""

    def __init__(self, topic: Documents, name: str) -> None:
        self._topic, self.name, self.seq, self.epoch, self._text = topic, name, 0, 0, b'""'

    @property
    def text(self) -> str:
        return str(json.loads(self._text))

    def attach(self) -> None:
        self._take(documents.attach(self._topic.s, self._topic.name, DOCUMENT, client=self.name))

    def pull(self, at: int) -> None:
        """What it lacks, and then says that it has it."""
        self._take(documents.pull(self._topic.s, self._topic.name, DOCUMENT, client_seq=self.seq, client=self.name, epoch=self.epoch))
        documents.sync(self._topic.s, self._topic.name, DOCUMENT, client=self.name, server_seq=self.seq, at=Instant(at), epoch=self.epoch)

    def _take(self, found: documents.PullResult) -> None:
        fold = fold_of("text_splice", yjs_roots={})
        if found.snapshot is not None:
            self._text, self.seq = found.snapshot.state, found.snapshot.server_seq
        folding = fold.start(self._text)
        for change in found.changes:
            assert change.server_seq == self.seq + 1, "no hole"
            folding.apply(change.payload)
            self.seq = change.server_seq
        self._text, self.epoch = folding.stored(), found.epoch


@hunt
def test_a_real_editing_history_is_snapshotted_purged_and_read_to_its_end(lake: Lake) -> None:
    trace = editing_trace(document=DOCUMENT, client="editor")
    assert len(trace.changes) == TRANSACTIONS == 18_335
    topic = Documents.on(lake, snapshot_interval=1_000, snapshot_threshold=500, snapshots_keep=3, client_deactivate_after=4_000_000_000)
    clients = {name: Client(topic, name) for name in PACE}
    removed, made = 0, list[int]()
    batches = [trace.changes[at : at + BATCH] for at in range(0, TRANSACTIONS, BATCH)]
    for number, batch in enumerate(batches, start=1):
        topic.add(*batch)
        for name, client in clients.items():
            if number % PACE[name] == 0 and not (name == "behind" and number > len(batches) // 2):
                client.pull(number)
        outcome = topic.run(Instant(1_700_000_000_000_000 + number))
        assert outcome.name == ("published" if len(batch) == BATCH else "no_op"), outcome
        removed += sum(rows for _, rows in outcome.removed)
        made += [seq for seq, _, _ in topic.snapshots(DOCUMENT) if seq not in made]
        whole(topic, batch[-1])
    assert made == list(range(BATCH, TRANSACTIONS, BATCH)), "a snapshot every thousand changes"
    held = clients["behind"].seq
    assert topic.stored(DOCUMENT) == list(range(held, TRANSACTIONS + 1)), "the one that is gone still pins"
    assert removed == held - 1
    documents.detach(topic.s, topic.name, DOCUMENT, client="behind")
    assert dict(topic.run(Instant(1_700_000_000_001_000)).removed) == {"purged_synced": made[-1] + 1 - held}
    back = clients["behind"]
    with pytest.raises(EpochMismatch):
        back.pull(1)
    back.attach()
    near = clients["near"]
    late = Client(topic, "late")
    late.attach()
    assert {client.text for client in (near, back, late)} == {trace.text}
    seqs = list[int]()
    for seq, state in documents.history(topic.s, topic.name, DOCUMENT):
        seqs.append(seq)
        assert seq < TRANSACTIONS or state == trace.text
    assert seqs[-1] == TRANSACTIONS
    assert seqs == list(range(seqs[0], TRANSACTIONS + 1))


def whole(topic: Documents, newest: Change) -> None:
    """No hole in what is left, and the newest snapshot reaches it."""
    stored = topic.stored(DOCUMENT)
    assert stored == list(range(stored[0], newest.server_seq + 1))
    assert topic.snapshots(DOCUMENT)[-1][0] >= stored[0] - 1
