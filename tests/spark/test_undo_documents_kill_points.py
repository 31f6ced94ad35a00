"""An undo that brings back changes and snapshots of documents, killed at any step, leaves what an uninterrupted one leaves (DEL-4, DEL-7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import hunt, sample
from tests.engines import change_tables
from tests.spark.documents import KINDS, LATER, Documents, text_at, typed
from tests.spark.kill_points import Run, dies, next_run_finishes, start_dying, two_at_once_publish_once, with_ledger
from tests.spark.lake import tables
from tests.spark.test_document_kill_points import losing

from message_lifecycle.app import documents, steps
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS, UNDOES

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

BEFORE = ("after_stage", "before_changes_commit", "inside_changes_commit")
BETWEEN = ("after_changes_commit", "before_snapshots_commit", "inside_snapshots_commit")
KEPT = ("inside_changes_commit", "after_changes_commit", "inside_snapshots_commit", "after_snapshots_commit")


class Topic(Documents):
    """Of a document changes 18 to 29 went, and the snapshot at 12; of another, changes alone."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        super().__init__(replace(configured_lake(), ledger=open_ledger(ledger_url)), f"undo-{token_hex(4)}")
        for first, synced in ((1, 8), (13, 18), (25, 30)):
            self.add(*typed("one", first, first + 11), *(typed("two", 1, 12) if first == 25 else ()))
            self.sync("one", a=synced)
            if first == 25:
                self.sync("two", a=5)
                self.was = self.changes("one"), self.changes("two")
            outcome = super().run()
            assert outcome.name == "published" and outcome.plan_id is not None, outcome.detail
            self.plan_id = outcome.plan_id
        assert (self.stored("one"), [seq for seq, _, _ in self.snapshots("one")]) == (list(range(30, 37)), [24, 36])

    def changes(self, document: str) -> list[object]:
        return list(self.s.documents.changes(self.name, document))

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, LATER, last_step, "undo", self.plan_id, ledger_url=self.ledger_url)

    def undo(self) -> Outcome:
        """The next undo of the same plan, uninterrupted."""
        return steps.run(
            self.s,
            self.name,
            as_of=LATER,
            approver=lambda _plan, _report: (True, "tester", "as expected"),
            work=UndoPlan(plan_id=self.plan_id),
        )

    def is_whole(self) -> None:
        """A reader at any moment: nothing has a hole, and every snapshot is a fold."""
        for document, last in (("one", 36), ("two", 12)):
            left = self.stored(document)
            assert left == list(range(left[0], last + 1))
            assert all(state == text_at(seq) for seq, _, state in self.snapshots(document))
            assert next(reversed(list(documents.history(self.s, self.name, document))))[0] == last

    def is_as_after_one_run(self) -> None:
        self.is_whole()
        assert (self.changes("one"), self.changes("two")) == self.was, "row for row"
        assert self.snapshots("one") == [(12, 1, text_at(12)), (24, 2, text_at(24)), (36, 3, text_at(36))]
        assert (self.snapshots("two"), self.epoch("one"), self.epoch("two")) == ([(12, 1, text_at(12))], 3, 1)
        assert self.branches() == {"main"}, "what was staged is gone"
        (known,) = self.s.ledger.undone(self.name)
        for kind in KINDS:
            made = [one for one in tables().load(self.name, kind=kind).snapshots() if one.summary and one.summary[UNDOES] == self.plan_id]
            assert len(made) == 1, "each commit is made once"
            assert self.plans(kind)[-1] == known.undone_by
        outcome = self.s.ledger.record(known.undone_by).outcome
        assert outcome is not None and (outcome.name, outcome.restored) == ("published", 16)


class Undone(Topic):
    """As the helpers of kill points run it."""

    run = Topic.undo  # type: ignore[assignment]  # the operation at hand is the undo


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Undone, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample([*BEFORE, *BETWEEN, "after_snapshots_commit"], *KEPT))
def test_a_killed_undo_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    topic.is_whole()
    assert (topic.stored("one")[0], topic.stored("two")[0]) == ((30, 5) if step in BEFORE else (18, 1))
    assert ([seq for seq, _, _ in topic.snapshots("one")] == [24, 36]) is (step != "after_snapshots_commit")
    next_run_finishes(topic)


@hunt
def test_a_purge_that_comes_after_a_killed_undo_finishes_it_first(topic: Topic) -> None:
    dies(topic, "before_snapshots_commit")
    outcome = Documents.run(topic, LATER)
    assert (outcome.name, {entry.holder for entry in outcome.held}) == ("no_op", {"undone_plan"})
    topic.is_as_after_one_run()


@hunt
def test_two_undos_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)


@pytest.mark.parametrize("made", sample((True, False), True), ids=["made", "not made"])
@pytest.mark.parametrize("lost", sample(KINDS, KINDS[1]), ids=["changes", "snapshots"])
def test_a_commit_of_unknown_result_is_looked_for_and_never_repeated(topic: Topic, lost: str, made: bool) -> None:  # DEL-4
    with pytest.MonkeyPatch.context() as patched:
        change_tables(patched, partial(losing, lost=lost, made=made))
        if made:
            assert topic.undo().name == "published"
        else:
            with pytest.raises(CommitUnknown):
                topic.undo()
    topic.is_whole()
    if not made:
        assert (topic.stored("one")[0] == 18) is (lost == SNAPSHOTS)
        assert topic.undo().name in ("published", "no_op")
    topic.is_as_after_one_run()
