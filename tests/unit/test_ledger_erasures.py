"""The ledger's memory of erasures: requests, what they forbid and for how long, receipts."""

from __future__ import annotations

import pytest

from message_lifecycle.ledger import Ledger
from message_lifecycle.model.erasure import ErasureRequest, KeyDigest, KeyDigests, Lifted
from message_lifecycle.model.names import TopicName
from tests.errors import raises
from tests.ledgers import AS_OF, OTHER, TOPIC

KEYS = KeyDigests(secret="f" * 16, each=(KeyDigest(digest="ab" * 32, mark="abc"), KeyDigest(digest="cd" * 32, mark="def")))


def ask(ledger: Ledger, name: str = "e1", *, topics: tuple[TopicName, ...] = (), forbid: bool = True) -> ErasureRequest:
    return ledger.add_erasure(name, KEYS, topics=topics, forbid=forbid, requested_by=" ada ", why=" a letter of 3 May ")


def test_a_request_is_kept_as_it_was_made(ledger: Ledger) -> None:
    made = ask(ledger, topics=(TOPIC, OTHER, TOPIC))
    assert made == ErasureRequest(
        request_id="e1",
        keys=KEYS,
        topics=(TOPIC, OTHER),
        forbid=True,
        requested_by="ada",
        why="a letter of 3 May",
        requested_at=AS_OF,
    )
    assert ledger.erasure("e1") == made
    assert ask(ledger, topics=(OTHER,)) == made, "the same id again changes nothing"


def test_requests_are_found_by_a_beginning_and_listed_newest_first(ledger: Ledger) -> None:
    for name in ("abc", "abd", "ab", "x"):
        ask(ledger, name)
    assert [request.request_id for request in ledger.erasures()] == ["x", "ab", "abd", "abc"]
    assert [request.request_id for request in ledger.erasures(limit=1)] == ["x"]
    assert ledger.erasure("abc").request_id == ledger.erasure("abc").request_id == "abc"
    assert ledger.erasure("ab").request_id == "ab", "a whole id is one, whatever begins with it"
    with raises("AmbiguousErasure"):
        ledger.erasure("a")
    for unknown in ("", "y", "_", "%"):
        with raises("UnknownErasure"):
            ledger.erasure(unknown)


@pytest.mark.parametrize(("by", "why"), [(" ", "law"), ("ada", "\n")])
def test_who_and_why_are_asked_for(ledger: Ledger, by: str, why: str) -> None:
    with raises("UnnamedPerson", "UnexplainedErasure"):
        ledger.add_erasure("e1", KEYS, topics=(), forbid=False, requested_by=by, why=why)
    assert not ledger.erasures()


def test_what_is_forbidden_where(ledger: Ledger) -> None:
    ask(ledger, "everywhere")
    ask(ledger, "one topic", topics=(TOPIC,))
    ask(ledger, "erased only", forbid=False)

    def forbidden(topic: TopicName) -> list[str]:
        return [request.request_id for request in ledger.forbidden(topic)]

    assert forbidden(TOPIC) == ["everywhere", "one topic"]
    assert forbidden(OTHER) == ["everywhere"]
    ledger.set_erasure_state("everywhere", "erased")
    assert forbidden(OTHER) == ["everywhere"]
    ledger.set_erasure_state("one topic", "refused", detail="held")
    assert forbidden(TOPIC) == ["everywhere"], "what was refused forbids nothing"
    assert ledger.erasure("one topic").detail == "held"
    lifted = ledger.allow_keys_again("everywhere", by="bob", why="a new contract")
    assert lifted.lifted == Lifted(by="bob", why="a new contract", at=AS_OF)
    assert forbidden(TOPIC) == []
    for name in ("everywhere", "erased only"):
        with raises("NothingForbidden"):
            ledger.allow_keys_again(name, by="bob", why="again")


def test_lifting_names_a_person_and_a_reason(ledger: Ledger) -> None:
    ask(ledger)
    for by, why in (("", "x"), ("x", "")):
        with raises("UnnamedPerson", "UnexplainedErasure"):
            ledger.allow_keys_again("e1", by=by, why=why)
    assert ledger.forbidden(TOPIC)


def test_the_newest_receipt_stands(ledger: Ledger) -> None:
    ask(ledger)
    with raises("NoReceipt", match=r"it is requested.*erase run"):
        ledger.receipt("e1")
    ledger.set_erasure_state("e1", "erased")
    with raises("NoReceipt", match=r"Search again: .*erase run"):
        ledger.receipt("e1")
    met: list[str | None] = []

    def made(kept: str | None) -> str:
        met.append(kept)
        return f'{{"n":{len(met)}}}'

    ledger.keep_receipt("e1", made)
    ledger.keep_receipt("e1", made)
    assert met == [None, '{"n":1}']
    assert ledger.receipt("e") == '{"n":2}'
    for deed in (lambda: ledger.keep_receipt("e2", made), lambda: ledger.set_erasure_state("e2", "erased"), lambda: ledger.receipt("e2")):
        with raises("UnknownErasure"):
            deed()
