"""Holds in the ledger: placed once, released once, and of a released key nothing but a digest (DEL-8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, What, held_key
from tests.errors import raises
from tests.holds import hold_of
from tests.ledgers import AS_OF, OTHER, TOPIC

KEY = b"\xff\x00customer 7"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)
    return url


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with open_ledger(url, clock=lambda: AS_OF) as opened:
        yield opened


@pytest.mark.parametrize(
    "what",
    [HeldTopic(), HeldRange(partition=3, first=0), HeldRange(partition=0, first=5, last=2**63 - 1), held_key("h", KEY), held_key("h", b"")],
)
def test_a_hold_comes_back_as_it_was_placed(ledger: Ledger, what: What) -> None:
    placed = hold_of(TOPIC, what)
    assert ledger.add_hold(placed) == placed
    assert ledger.add_hold(placed) == placed, "the same again changes nothing"
    assert ledger.holds(TOPIC) == ledger.holds() == [placed]
    assert ledger.holds(OTHER) == []
    assert ledger.hold("0123") == placed


def test_a_release_ends_it_and_leaves_a_digest_of_its_key(ledger: Ledger, url: str) -> None:
    placed = ledger.add_hold(hold_of(TOPIC, held_key("0123456789abcdef", KEY)))
    released = ledger.release_hold("0123456789abcdef", by="bob", why="case 7 is closed")
    assert ledger.release_hold("0123", by="bob", why="case 7 is closed") == released
    assert (released.is_active, released.released_by, released.released_why, released.released_at) == (
        False,
        "bob",
        "case 7 is closed",
        AS_OF,
    )
    assert isinstance(placed.what, HeldKey)
    assert released.what == HeldKey(key=None, digest=placed.what.digest)
    assert ledger.holds(TOPIC) == []
    assert ledger.holds(TOPIC, released=True) == [released]
    with raises("HoldReleased", match="bob"):
        ledger.release_hold("0123", by="eve", why="me too")


def test_a_digest_is_its_holds_own() -> None:
    digests = {held_key(hold_id, key).digest for hold_id in ("a", "b") for key in (b"x", b"y")}
    assert len(digests) == 4


def test_a_wrong_word_is_refused(ledger: Ledger) -> None:
    ledger.add_hold(hold_of(TOPIC, hold_id="aa1"))
    ledger.add_hold(hold_of(OTHER, hold_id="aa2"))
    with raises("UnknownHold", match="aa1, aa2"):
        ledger.hold("aa")
    for unknown in ("b", "", "%", "_a1"):
        with raises("UnknownHold"):
            ledger.hold(unknown)
    with raises("UnnamedPerson"):
        ledger.release_hold("aa1", by="  ", why="over")
    with raises("InvalidHold", match="a reason"):
        ledger.release_hold("aa1", by="bob", why="")
    assert all(hold.is_active for hold in ledger.holds())


@pytest.mark.parametrize(
    ("partition", "first", "last", "field"),
    [(-1, 0, None, "partition"), (2**31, 0, None, "partition"), (0, -1, None, "from"), (0, 2**63, None, "from"), (0, 5, 4, "to")],
)
def test_a_range_that_is_none_is_refused(partition: int, first: int, last: int | None, field: str) -> None:
    with raises("InvalidHold", match=f"^hold: {field} is "):
        HeldRange(partition=partition, first=first, last=last)
