"""A ledger that may have forgotten something deletes nothing (LedgerMismatch), and none judges by a time to come (CLK-1)."""

from __future__ import annotations

import pytest

from message_lifecycle.ledger import Ledger, open_ledger
from message_lifecycle.model.instants import Instant
from tests.errors import raises
from tests.ledgers import AS_OF, OTHER, TOPIC, StandingClock


def test_the_uuid_is_made_once_and_the_sequence_grows(ledger: Ledger) -> None:
    uuid, sequence = ledger.identity()
    assert ledger.identity() == (uuid, sequence)
    assert [ledger.next_identity(topic) for topic in (TOPIC, OTHER, TOPIC)] == [(uuid, sequence + n) for n in (1, 2, 3)]
    with open_ledger("sqlite://") as other:
        assert other.identity()[0] != uuid


def test_a_table_of_this_ledger_is_known(ledger: Ledger) -> None:
    ledger.check(TOPIC, None)
    found = ledger.next_identity(TOPIC)
    ledger.check(TOPIC, found)
    ledger.next_identity(TOPIC)
    ledger.check(TOPIC, found)
    ledger.check(OTHER, ledger.next_identity(OTHER))


def test_a_table_of_another_ledger_is_refused_until_taken_on(ledger: Ledger) -> None:
    foreign = ("00000000-0000-0000-0000-000000000000", 7)
    with raises("LedgerMismatch", match="00000000"):
        ledger.check(TOPIC, foreign)
    ledger.accept(TOPIC, foreign)
    ledger.check(TOPIC, foreign)
    with raises("LedgerMismatch"):
        ledger.check(OTHER, foreign)
    with raises("LedgerMismatch", match="again"):  # the other ledger is still at work
        ledger.check(TOPIC, (foreign[0], 8))


def test_a_table_younger_than_the_ledger_is_refused_until_taken_on(ledger: Ledger) -> None:
    uuid, sequence = ledger.next_identity(TOPIC)
    found = (uuid, sequence + 5)
    with raises("LedgerMismatch", match="older state"):
        ledger.check(TOPIC, found)
    ledger.accept(TOPIC, found)
    ledger.check(TOPIC, found)
    assert ledger.identity() == found
    assert ledger.next_identity(TOPIC) == (uuid, sequence + 6)


def test_a_restored_ledger_is_still_noticed_after_it_has_grown(ledger: Ledger) -> None:
    """Its own numbers catch up with what the table holds; what it gave to this topic does not."""
    uuid, sequence = ledger.next_identity(TOPIC)
    lost = (uuid, sequence + 2)  # given after the backup from which this ledger came
    for _ in range(5):
        ledger.check(OTHER, ledger.next_identity(OTHER))
    with raises("LedgerMismatch", match="older state"):
        ledger.check(TOPIC, lost)
    ledger.accept(OTHER, (uuid, sequence + 9))
    with raises("LedgerMismatch", match="older state"):
        ledger.check(TOPIC, lost)


def test_taking_on_moves_nothing_back(ledger: Ledger) -> None:
    first = ledger.next_identity(TOPIC)
    last = ledger.next_identity(TOPIC)
    ledger.accept(TOPIC, first)
    assert ledger.identity() == last
    ledger.check(TOPIC, last)


@pytest.mark.parametrize(("late_us", "refused"), [(-1, False), (0, False), (1, True)])
def test_as_of_may_be_as_late_as_the_clock_and_the_skew(ledger: Ledger, late_us: int, refused: bool) -> None:
    as_of, skew_us = Instant(AS_OF + 60_000_000 + late_us), 60_000_000
    if not refused:
        ledger.check_as_of(as_of, skew_us)
        return
    with raises("FutureAsOf", match="allows 60 s more"):
        ledger.check_as_of(as_of, skew_us)


def test_now_is_the_clock_that_was_given(ledger: Ledger, clock: StandingClock) -> None:
    clock.pass_us(3)
    assert ledger.now() == AS_OF + 3
