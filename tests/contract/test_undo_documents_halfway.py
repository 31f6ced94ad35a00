"""What every store of documents must do where an undo of a purge died between its two commits (DEL-4, DEL-7)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from message_lifecycle.app import documents
from message_lifecycle.app.operations.undo import release
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import CommitContext
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.undone_documents import Make, Shown, Topic, made, purged


@pytest.fixture
def make(make_world: MakeWorld) -> Make:
    return lambda **settings: made(make_world({}), **settings)


@dataclass(frozen=True)
class Dying:
    """A store whose run ends between the two commits."""

    real: object

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        raise KeyboardInterrupt


def half_done(topic: Topic) -> tuple[str, Shown]:
    """An undo that has brought back the changes, and no snapshot yet."""
    (*_, plan_id), was = purged(topic)
    stores = replace(topic.s.stores, snapshots_return=Dying(topic.s.stores.snapshots_return))  # type: ignore[arg-type]  # it has all that ChangeStore has
    dying = replace(topic.s, stores=stores)
    with pytest.raises(KeyboardInterrupt):
        topic.run(4, UndoPlan(plan_id=plan_id), dying)
    assert (topic.stored(), topic.snapshots()) == (list(range(18, 35)), [24, 34])
    assert [seq for seq, _ in documents.history(topic.s, topic.name, "a")] == list(range(24, 35)), "whole at any moment"
    return plan_id, was


@pytest.mark.parametrize("work", ["snapshot_with_purge", "undo"])
def test_whoever_comes_next_finishes_an_undo_that_died_between_its_commits(make: Make, work: str) -> None:
    topic = make()
    plan_id, was = half_done(topic)
    outcome = topic.run(5, "snapshot_with_purge" if work == "snapshot_with_purge" else UndoPlan(plan_id=plan_id))
    assert outcome.name == ("published" if work == "undo" else "no_op")
    assert (topic.shown()[0], topic.snapshots(), topic.epoch()) == (was[0], [10, 24, 34], 3)
    (known,) = topic.s.ledger.undone(topic.name)
    assert known.plan_id == plan_id
    assert topic.run(6, UndoPlan(plan_id=plan_id)).first_plan_id == known.undone_by


@TABLES_HUNTED
def test_settings_changed_between_its_commits_do_not_keep_it_from_its_end(make: Make) -> None:
    topic = make()
    _, was = half_done(topic)
    alter_topic(topic.s, topic.name, {"snapshots_keep": 2})
    assert topic.run(4).name == "no_op"
    assert (topic.shown()[0], topic.snapshots()) == (was[0], [10, 24, 34])


@TABLES_HUNTED
def test_where_another_came_between_the_commits_the_rest_comes_back_by_another_undo(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make()
    plan_id, was = half_done(topic)

    def refuse(*_: object, **__: object) -> Published:
        raise PlanConflict(plan_id, "the documents' snapshots were changed first")

    with monkeypatch.context() as patched:
        patched.setattr(topic.s.stores.snapshots_return, "publish", refuse)
        assert topic.run(4).name == "no_op"
    assert topic.shown()[0] == was[0], "the new plan may not remove what is back"
    outcome = topic.undone(5, plan_id)
    assert (outcome.restored, topic.snapshots()) == (0, [10, 24, 34])
    # From now on it is undone, by the one that brought the rest: what a person lets go is not brought back by asking for it once more.
    release(topic.s, plan_id, by="ada", text="they may go")
    assert topic.run(6).name == "published"
    gone = topic.shown()
    again = topic.run(7, UndoPlan(plan_id=plan_id))
    assert (again.name, again.first_plan_id, topic.shown()) == ("no_op", outcome.plan_id, gone)
    assert topic.run(6, UndoPlan(plan_id=plan_id)).name == "no_op"
