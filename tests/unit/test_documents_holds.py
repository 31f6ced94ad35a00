"""A held document is left as it is, placed before a run or in the middle of it (DEL-8)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.holds import release_hold
from message_lifecycle.app.views.status import topic_status
from message_lifecycle.model.instants import Instant
from tests.documents import NAME, Drafts, drafts
from tests.holds import WHENS, When, held, run_with_hold


@pytest.fixture
def two() -> Drafts:
    """Documents `a` and `b` of ten changes each, of which a client has eight."""
    made = drafts(max_removed_fraction=1.0)
    for document in ("a", "b"):
        made.write(document, range(1, 11))
        made.sync(document, "ann", 8)
    return made


@pytest.mark.parametrize("when", WHENS)
def test_a_held_document_keeps_its_changes(two: Drafts, when: When) -> None:
    outcome = run_with_hold(two.s, NAME, "snapshot_with_purge", as_of=Instant(0), when=when, place=lambda: held(two.s, NAME, key=b" A "))
    assert (outcome.name, dict(outcome.removed)) == ("published", {"purged_synced": 7}), outcome.detail
    assert (two.stored("a"), two.snapshots("a"), two.epoch("a")) == (list(range(1, 11)), [], 0)
    assert (two.stored("b"), two.snapshots("b"), two.epoch("b")) == ([8, 9, 10], [10], 1)
    assert [(entry.holder, entry.rows) for entry in outcome.held] == [("hold", 7)]
    (shown,) = topic_status(two.s, NAME).held
    assert "document a: legal hold" in shown.detail


@pytest.mark.parametrize("when", WHENS)
def test_a_held_topic_keeps_all(two: Drafts, when: When) -> None:
    outcome = run_with_hold(two.s, NAME, "snapshot_with_purge", as_of=Instant(0), when=when, place=lambda: held(two.s, NAME))
    assert outcome.name == "no_op", outcome.detail
    assert all(two.stored(document) == list(range(1, 11)) and two.snapshots(document) == [] for document in ("a", "b"))


def test_a_run_that_died_before_its_purge_leaves_the_changes_to_a_hold(two: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first commit raised the epoch and made the snapshot; the second would have taken the changes."""
    plan_id = two.gated()
    with monkeypatch.context() as dying:

        def die(*_: object, **__: object) -> None:
            raise ConnectionError("the process went away here")

        dying.setattr(two.s.documents, "purge", die)
        with pytest.raises(ConnectionError):
            steps.publish(two.s, plan_id)
    held(two.s, NAME, key=b"a")
    assert two.run().name == "published"
    assert two.stored("a") == list(range(1, 11))
    assert two.stored("b") == [8, 9, 10]


def test_a_topic_is_looked_at_again_once_a_hold_is_released(two: Drafts) -> None:
    hold = held(two.s, NAME)
    (due,) = judge(two.s, [NAME], as_of=Instant(0), work="snapshot_with_purge")
    assert not due.due
    release_hold(two.s, hold.hold_id, by="ada", why="closed")
    (due,) = judge(two.s, [NAME], as_of=Instant(0), work="snapshot_with_purge")
    assert due.due, due.reason
