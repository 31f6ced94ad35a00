"""What the ledger keeps of plans that were taken back (DEL-7)."""

from __future__ import annotations

import pytest

from message_lifecycle.ledger import Ledger
from message_lifecycle.model.undo import Undone
from tests.errors import raises
from tests.ledgers import OTHER, TOPIC, outcome_of, plan_of, report_of, staged_of

RANGES = ((0, 0, 4), (0, 9, 9), (2, 0, 2**63 - 1))


def test_what_came_back_is_kept_once(ledger: Ledger) -> None:
    ledger.set_undone(TOPIC, "p1", "u1", RANGES)
    (first,) = ledger.undone(TOPIC)
    assert first == Undone(plan_id="p1", topic=TOPIC, undone_by="u1", undone_at=first.undone_at, ranges=RANGES)
    ledger.set_undone(TOPIC, "p1", "u2", ((0, 50, 60),))
    assert ledger.undone(TOPIC) == [first], "the first undo stands"
    ledger.set_undone(TOPIC, "p1", "u3", (), instead_of="u2")
    assert ledger.undone(TOPIC) == [first], "it is another than it would take the place of"
    assert (ledger.undone_by("p1"), ledger.undone_by("p2"), ledger.undone(OTHER)) == ("u1", None, [])


def test_an_undo_takes_the_place_of_one_that_did_not_bring_all(ledger: Ledger) -> None:
    ledger.set_undone(TOPIC, "p1", "u1", RANGES)
    ledger.release_undone("p1", by="ada", text="fine")
    ledger.set_undone(TOPIC, "p1", "u2", (), instead_of="u1")
    (known,) = ledger.undone(TOPIC)
    assert (known.undone_by, known.ranges, known.released_at, known.released_by, known.text) == ("u2", RANGES, None, None, None)


@pytest.mark.parametrize(
    ("partition", "offset", "covered"), [(0, 0, True), (0, 4, True), (0, 5, False), (0, 9, True), (1, 0, False), (2, 2**63 - 1, True)]
)
def test_ranges_hold_both_of_their_ends(ledger: Ledger, partition: int, offset: int, covered: bool) -> None:
    ledger.set_undone(TOPIC, "p1", "u1", RANGES)
    found = ledger.undone(TOPIC, at=(partition, offset))
    assert [len(known.ranges) for known in found] == [1] * covered, "the other ranges are not read"
    assert ledger.undone(OTHER, at=(partition, offset)) == []


def test_a_release_is_a_persons_word_and_the_first_stands(ledger: Ledger) -> None:
    ledger.set_undone(TOPIC, "p1", "u1", RANGES)
    with raises("UnnamedPerson"):
        ledger.release_undone("p1", by="  ", text="why not")
    with raises("NotUndone", match="lifecycle undo p2"):
        ledger.release_undone("p2", by="ada", text="fine")
    first = ledger.release_undone("p1", by="ada", text="fine")
    assert (first.released_by, first.text, first.released_at is not None) == ("ada", "fine", True)
    assert ledger.release_undone("p1", by="bob", text="again") == first
    assert ledger.undone(TOPIC) == [first]


def test_a_topic_that_is_made_anew_knows_nothing_of_the_old_one(ledger: Ledger) -> None:
    ledger.set_undone(TOPIC, "p1", "u1", RANGES)
    ledger.set_undone(OTHER, "p2", "u2", RANGES)
    ledger.reset_topic(TOPIC)
    assert [known.plan_id for known in ledger.undone(TOPIC)] == ["p1"], "until it is there, the old one may come back"
    ledger.forget_former(TOPIC)
    assert (ledger.undone(TOPIC), [known.plan_id for known in ledger.undone(OTHER)]) == ([], ["p2"])
    ledger.set_undone(TOPIC, "p1", "u3", RANGES)
    assert ledger.undone(TOPIC)[0].ranges == RANGES


def test_when_a_plan_was_published_is_known_and_what_came_after_it(ledger: Ledger) -> None:
    first, second = plan_of(as_of=10), plan_of(as_of=20)
    for plan in (first, second):
        ledger.add_plan(plan)
        assert ledger.published_at(plan.plan_id) is None
        ledger.record_staged(staged_of(plan))
        ledger.record_report(staged_of(plan), report_of(plan))
        ledger.record_outcome(outcome_of(plan))
    assert ledger.published_at(first.plan_id) == ledger.history(TOPIC)[1][0]
    assert [record.plan for record in ledger.published_after(TOPIC, first.plan_id, first.operation)] == [second]
    assert ledger.published_after(TOPIC, second.plan_id, first.operation) == []
    assert ledger.published_after(TOPIC, first.plan_id, "compaction") == []
