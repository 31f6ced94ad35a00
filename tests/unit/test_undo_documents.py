"""Taking purges of documents back, on random histories in memory (DEL-7, P8, SNP-8)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_lifecycle.app import documents
from message_lifecycle.model.document import DocumentState, DocumentTables
from message_lifecycle.model.errors import Refused
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.operations import snapshot_with_purge
from tests.documents import NAME, Drafts, drafts, text_at
from tests.effort import effort, generated
from tests.errors import raises
from tests.undone import run

DOCUMENTS = ("a", "b")
WRITES = st.tuples(st.sampled_from(DOCUMENTS), st.integers(1, 15))
Step = tuple[str, int] | int | None
"""Changes of a document that come; the plan to take back, by its place among those that stand; or a purge, of all that clients have."""
STEPS = st.lists(st.one_of(WRITES, WRITES, st.none(), st.none(), st.integers(0, 3)), min_size=4, max_size=16)


@dataclass
class History:
    """What was ever written (by document, how many changes), and the purges that stand, oldest first."""

    topic: Drafts = field(default_factory=drafts)
    written: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DOCUMENTS, 0))
    standing: list[str] = field(default_factory=list)
    at_s: int = 0

    def step(self, step: Step) -> None:
        self.at_s += 1
        if isinstance(step, tuple):
            document, count = step
            first = self.written[document] + 1
            self.written[document] += count
            self.topic.write(document, range(first, first + count))
        elif step is None:
            for document, last in self.written.items():
                if last > 2:
                    self.topic.sync(document, "ann", last - 2)
            outcome = run(self.topic.world, NAME, self.at_s, "snapshot_with_purge")
            if outcome.name == "published" and outcome.plan_id is not None:
                self.standing.append(outcome.plan_id)
        elif step < len(self.standing):
            self.undo(self.standing[step])

    def undo(self, plan_id: str) -> None:
        self.at_s += 1
        before = self.shown()
        try:
            run(self.topic.world, NAME, self.at_s, UndoPlan(plan_id=plan_id))
        except Refused as error:
            assert error.code == "LaterPlan"
            assert self.shown() == before
        else:
            self.standing.remove(plan_id)

    def shown(self) -> object:
        return [(self.topic.stored(document), self.topic.snapshots(document)) for document in DOCUMENTS]

    def is_whole(self) -> None:
        for document, last in self.written.items():
            if not last:
                continue
            stored = self.topic.stored(document)
            assert stored == list(range(stored[0], last + 1)), "never a hole"
            found = list(documents.history(self.topic.s, NAME, document))
            assert [(seq, text_at(seq)) for seq, _ in found] == found, "fold(snapshot + tail) == fold(all)"
            assert found[-1][0] == last
            for snapshot in self.topic.s.documents.snapshots(NAME, document):
                assert json.loads(snapshot.state) == text_at(snapshot.server_seq)


@generated
@effort("memory", 18)
@given(STEPS)
@example([("a", 15), None, ("a", 2), None, ("a", 1), None])  # two purges that only raise the epoch of one snapshot
def test_purges_taken_back_leave_a_whole_history(steps: Sequence[Step]) -> None:
    history = History()
    epochs = dict.fromkeys(DOCUMENTS, 0)
    for step in steps:
        history.step(step)
        history.is_whole()
        for document, last in history.written.items():
            if last:
                assert history.topic.epoch(document) >= epochs[document], "an epoch never goes back"
                epochs[document] = history.topic.epoch(document)
    for plan_id in reversed(list(history.standing)):
        history.undo(plan_id)
    assert history.standing == [], "the last one can always be taken back"
    history.is_whole()
    for document, last in history.written.items():
        assert history.topic.stored(document) == list(range(1, last + 1)), "complete from the first change"
    run(history.topic.world, NAME, history.at_s + 1, "snapshot_with_purge")
    for document, last in ((document, last) for document, last in history.written.items() if epochs[document]):
        assert history.topic.stored(document) == list(range(1, last + 1)), "and left alone"


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (DocumentState(document="a", seq=10, first=9, snapshots=(10,), epoch=1, younger=9), (1, 10)),
        (DocumentState(document="a", seq=10, first=None, snapshots=(10,), epoch=1, younger=None), (1, 10)),
        (DocumentState(document="a", seq=10, first=8, snapshots=(10,), epoch=1, younger=8), (2, 10)),
        (DocumentState(document="a", seq=10, first=8, snapshots=(10,), epoch=1, younger=8), (1, 6)),
        (DocumentState(document="a", seq=10, first=8, snapshots=(10,), epoch=1, younger=8), None),
    ],
    ids=["another writer took one more", "took all", "the first is lost", "the last is lost", "all are lost"],
)
def test_what_would_leave_a_hole_is_refused(now: DocumentState, then: tuple[int, int] | None) -> None:
    topic = drafts()
    topic.write("a", range(1, 11))
    topic.sync("a", "ann", 8)
    outcome = topic.run()
    purge = topic.s.ledger.record(outcome.plan_id or "").plan
    was = None if then is None else DocumentState(document="a", seq=then[1], first=then[0], snapshots=(), epoch=0, younger=then[0])
    before = snapshot_with_purge.DocumentsBefore(changes_id=0, snapshots_id=None, states={} if was is None else {"a": was})
    taken = snapshot_with_purge.RemovedDocumentRows(actions=purge.snapshots_commit.documents, before=before, later=())
    tables: DocumentTables = topic.s.documents.tables(NAME)
    policy = documents.describe(topic.s, NAME, "a")[0].policy
    with raises("UndoSourceGone", match=f"plan {purge.plan_id[:12]} cannot be undone"):
        snapshot_with_purge.plan_undo(tables, [now], policy, purge, taken, as_of=purge.as_of)
