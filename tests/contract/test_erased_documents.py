"""The key of a document is its name: a document is gone from both tables and from the ledger, and all others are as they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import inspect, text

from message_lifecycle.app import documents, receipts, steps
from message_lifecycle.app.documents import alter_document
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.operations import erasure as operation
from message_lifecycle.app.requests import delete_topic, reclaim_deleted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.plans import approval_text
from message_lifecycle.ledger import Ledger
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import HeldByLegalHold, TopicBusy
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport, Outcome
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import EraseKey
from message_lifecycle.model.setting_list import Value
from tests.contract.conftest import TABLES_HUNTED, MakeWorld, on
from tests.documents import PURGING, Died, die
from tests.errors import raises
from tests.holds import WHENS, When, held, run_with_hold

MEMORY = pytest.mark.parametrize("store_kind", on("memory"), indirect=True)
"""Of what the ledger alone does."""
AS_OF = Instant(1_000_000)
Make = Callable[..., "Topic"]


def grant(*_: object) -> tuple[bool, str, str]:
    return True, "ada", "a letter"


@dataclass
class Topic:
    """`gone`: the document that is to be erased, `kept` another one; each with changes, purged ones, snapshots and clients."""

    world: World
    name: TopicName
    gone: str
    kept: str = "kept"

    @property
    def s(self) -> Services:
        return self.world.services

    def write(self, document: str, first: int, last: int) -> dict[str, int]:
        payload = [json.dumps([[0, 0, f"{seq} "]]).encode() for seq in range(first, last + 1)]
        changes = [
            Change(document=document, server_seq=first + at, client="ann", at=Instant(0), payload=one) for at, one in enumerate(payload)
        ]
        return documents.add_changes(self.s, self.name, changes)

    def sync(self, document: str, seq: int) -> None:
        documents.sync(self.s, self.name, document, client="ann", server_seq=seq, at=AS_OF)

    def purge(self, approver: Any = grant) -> Outcome:
        return steps.run(self.s, self.name, as_of=AS_OF, approver=approver, work="snapshot_with_purge")

    def request(self, *, forbid: bool = False) -> str:
        return ask(self.s, [self.gone.encode()], topics=[self.name], forbid=forbid, by="ada", why="a letter").request_id

    def erase(self, request_id: str | None = None, approver: Any = grant) -> Outcome:
        (found,) = carry_out(self.s, request_id or self.request(), approver=approver)
        assert found.error is None, found.why_not_done()
        assert found.outcome is not None
        return found.outcome

    def shown(self, document: str) -> object:
        changes = list(self.s.documents.changes(self.name, document))
        states = self.s.documents.states(self.name, self.s.documents.tables(self.name), only=[document])
        return states, changes, list(self.s.documents.snapshots(self.name, document))

    def told(self) -> Iterator[str]:
        """All text in the ledger that tells the name."""
        ledger = self.s.ledger
        assert isinstance(ledger, Ledger)
        once = json.dumps(self.gone)[1:-1]
        spelled = {self.gone, once, json.dumps(once)[1:-1], self.gone.encode().hex()}
        with ledger._database.reading() as connection:
            for table in inspect(connection).get_table_names():
                for row in connection.execute(text(f"SELECT * FROM {table}")):
                    yield from (f"{table}: {value}" for value in row if any(one in str(value) for one in spelled))


@pytest.fixture
def make(make_world: MakeWorld) -> Make:
    def made(**settings: Value) -> Topic:
        world = make_world({})
        name = TopicName.parse(f"{world.scratch}.erased/drafts" if world.scratch else "erased/drafts")
        create_topic(world.services, name, settings={**PURGING, **settings})
        world.set_now(AS_OF)
        topic = Topic(world=world, name=name, gone=f"über-\u05e9\u05b8\u05dc\u05d5\u05dd-{token_hex(32)}")
        for document in (topic.gone, topic.kept):
            topic.write(document, 1, 10)
            topic.sync(document, 8)
        return topic

    return made


@pytest.fixture
def topic(make: Make) -> Topic:
    """After a purge, with changes that came since."""
    made = make()
    assert made.purge().name == "published"
    for document in (made.gone, made.kept):
        made.write(document, 11, 12)
    return made


def test_a_document_is_gone_and_the_others_are_as_they_were(topic: Topic) -> None:
    alter_document(topic.s, topic.name, topic.gone, {"changes_keep_last": 3}, owner="bob")
    alter_document(topic.s, topic.name, topic.kept, {"changes_keep_last": 4}, owner="bob")
    before = topic.shown(topic.kept)
    assert list(topic.told())
    request_id = topic.request()
    outcome = topic.erase(request_id)
    assert (outcome.name, outcome.removed, outcome.rows_in, outcome.rows_kept) == ("published", (("erased", 5),), 10, 5)
    assert topic.shown(topic.gone) == ([], [], [])
    assert topic.shown(topic.kept) == before
    assert list(topic.told()) == []
    own = topic.s.ledger.settings_below_topic(topic.name)
    assert (dict(own.documents), dict(own.owners)) == ({topic.kept: {"changes_keep_last": 4}}, {topic.kept: "bob"})
    assert [row.document for row in topic.s.ledger.synced(topic.name)] == [topic.kept]
    assert topic.s.ledger.erasure(request_id).state == "erased"
    assert receipts.verify(topic.s, request_id) == []
    (of_topic,) = json.loads(topic.s.ledger.receipt(request_id))["topics"]
    assert any("write-ahead log" in (table["remains"] or "") for table in of_topic["tables"])
    assert [table["table"] for table in of_topic["tables"]] == ["snapshots", "log"]
    assert topic.erase().name == "no_op"


def test_several_documents_go_by_one_request_each_under_its_own_substitute(topic: Topic) -> None:
    topic.write("third", 1, 2)
    alter_document(topic.s, topic.name, topic.kept, {"changes_keep_last": 4}, owner="bob")
    names = (topic.gone.encode(), topic.kept.encode())
    request = ask(topic.s, names, topics=[topic.name], forbid=True, by="ada", why="a letter")
    outcome = topic.erase(request.request_id)
    assert (outcome.name, outcome.removed) == ("published", (("erased", 10),))
    assert topic.shown(topic.gone) == topic.shown(topic.kept) == ([], [], [])
    assert list(topic.told()) == []
    assert not topic.s.ledger.synced(topic.name)
    assert not topic.s.ledger.settings_below_topic(topic.name).documents
    plans = [topic.s.ledger.record(summary.plan_id).plan for summary in topic.s.ledger.plans(topic.name)]
    (purge,) = (plan for plan in plans if plan.operation == "snapshot_with_purge")
    hashes = (topic.s.key_secret(False).hash(name).hex() for name in names)
    assert {action.document for action in purge.snapshots_commit.documents} == {f"erased:{found[:12]}" for found in hashes}
    assert receipts.verify(topic.s, request.request_id) == []
    assert [len(list(topic.s.documents.changes(topic.name, document))) for document in ("third", topic.kept)] == [2, 0]


@MEMORY
def test_what_was_recorded_of_it_is_kept_without_its_name(topic: Topic) -> None:
    ledger = topic.s.ledger
    was = {summary.plan_id: ledger.record(summary.plan_id) for summary in ledger.plans(topic.name)}
    topic.erase()
    for plan_id, record in was.items():
        now = ledger.record(plan_id)
        assert (now.plan.plan_id, now.outcome, now.state) == (plan_id, record.outcome, record.state)
        purged_by_document = {action.document: action.purged for action in now.plan.snapshots_commit.documents}
        assert purged_by_document.pop(topic.kept) == 7
        ((word, purged),) = purged_by_document.items()
        assert (word.startswith("erased:"), purged) == (True, 7)


def test_a_client_of_it_is_told_that_it_is_gone(topic: Topic) -> None:
    topic.erase()
    for asked in (
        lambda: topic.sync(topic.gone, 12),
        lambda: documents.pull(topic.s, topic.name, topic.gone, client_seq=12, client="ann", epoch=1, at=AS_OF),
        lambda: documents.describe(topic.s, topic.name, topic.gone),
    ):
        with raises("UnknownDocument"):
            asked()
    with raises("InvalidServerSeq"):
        topic.write(topic.gone, 13, 13)
    assert documents.attach(topic.s, topic.name, topic.gone, client="ann").seq == 0
    assert list(topic.told()) == []


def test_the_others_go_on(topic: Topic) -> None:
    topic.erase()
    topic.write(topic.kept, 13, 20)
    topic.sync(topic.kept, 18)
    outcome = topic.purge()
    assert (outcome.name, outcome.removed) == ("published", (("purged_synced", 10),))
    assert [change.server_seq for change in topic.s.documents.changes(topic.name, topic.kept)] == [18, 19, 20]


@MEMORY
def test_a_plan_that_names_it_gives_way_to_its_erasure(make: Make) -> None:
    topic = make()
    alter_document(topic.s, topic.name, topic.gone, {"changes_keep_last": 5})
    topic.purge()
    alter_document(topic.s, topic.name, topic.gone, {"changes_keep_last": 1})
    topic.write(topic.gone, 11, 20)
    topic.sync(topic.gone, 20)
    assert topic.purge(approver=None).name == "needs_approval"
    open_plan = topic.s.ledger.open_plan(topic.name)
    assert open_plan is not None
    assert topic.gone in repr(open_plan.plan.asks), "a person is told which document's setting is tighter"
    question = approval_text(topic.s, topic.s.ledger.record(open_plan.plan.plan_id))
    assert "1 approval reason" in question
    assert topic.gone not in question, "Airflow keeps the question"
    assert topic.erase().name == "published"
    closed = topic.s.ledger.record(open_plan.plan.plan_id)
    assert closed.outcome is not None
    assert closed.outcome.name == "lapsed"
    assert list(topic.told()) == []


def test_changes_of_it_that_come_after_the_plan_make_it_plan_again(topic: Topic) -> None:
    came = iter([13])

    def late(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
        for seq in came:
            topic.write(topic.gone, seq, seq)
            topic.write(topic.kept, seq, seq)
        return grant()

    assert topic.erase(approver=late).removed == (("erased", 6),)
    assert topic.shown(topic.gone) == ([], [], [])
    assert [change.server_seq for change in topic.s.documents.changes(topic.name, topic.kept)] == list(range(8, 14))


@MEMORY
def test_a_name_that_the_ledger_alone_has_goes_too(topic: Topic) -> None:
    topic.erase()
    alter_document(topic.s, topic.name, topic.gone, {}, owner="bob")
    assert list(topic.told())
    assert topic.erase().name == "no_op"
    assert list(topic.told()) == []


@MEMORY
@pytest.mark.parametrize("anew", [False, True])
def test_the_ledger_forgets_it_where_its_topic_went_for_good(topic: Topic, anew: bool) -> None:
    """No plan of an erasure is made for it, also where a topic of messages has the name now."""
    alter_document(topic.s, topic.name, topic.gone, {"changes_keep_last": 3}, owner="bob")
    deletion = delete_topic(topic.s, topic.name, by="ada", text="not needed").plan_id or ""
    later = Instant(AS_OF + 8 * 86_400_000_000)
    topic.world.set_now(later)
    if anew:
        create_topic(topic.s, topic.name, partitions=1, settings={})
    request = ask(topic.s, [topic.gone.encode()], topics=[], forbid=False, by="ada", why="a letter")
    carry_out(topic.s, request.request_id, approver=grant)
    assert (topic.s.ledger.erasure(request.request_id).state, bool(list(topic.told()))) == ("requested", True)
    assert reclaim_deleted(topic.s, deletion, as_of=later, approver=grant).name == "published"
    carry_out(topic.s, request.request_id, approver=grant)
    # Of the topic that has the name now the key was looked for, and found nowhere (DEL-7).
    ended = "not_found" if anew else "erased"
    assert (topic.s.ledger.erasure(request.request_id).state, list(topic.told())) == (ended, [])
    assert [topic.s.ledger.record(summary.plan_id).plan.topic for summary in topic.s.ledger.plans(topic.name)]


@TABLES_HUNTED
def test_what_is_forbidden_does_not_come_in_again(topic: Topic) -> None:
    request_id = topic.request(forbid=True)
    assert topic.write(topic.gone, 13, 13) == {}, "from the request on"
    assert topic.erase(request_id).name == "published"
    assert topic.write(topic.gone, 1, 3) == {}
    assert topic.write(topic.kept, 13, 13) == {topic.kept: 13}
    assert topic.shown(topic.gone) == ([], [], [])
    assert receipts.verify(topic.s, request_id) == []
    topic.s.ledger.allow_keys_again(request_id, by="bob", why="a new contract")
    assert topic.write(topic.gone, 1, 3) == {topic.gone: 3}
    assert receipts.verify(topic.s, request_id) != []


@MEMORY
@pytest.mark.parametrize("write", ["forget_documents", "keep_receipt", "record_outcome"])
def test_a_run_that_dies_after_its_commit_is_finished_by_the_next(topic: Topic, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    request_id = topic.request()
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(Ledger, write, lambda *_, **__: die())
        topic.erase(request_id)
    assert topic.s.ledger.erasure(request_id).state == "requested"
    topic.erase(request_id)
    assert topic.s.ledger.erasure(request_id).state == "erased"
    assert [outcome.removed for _, outcome in topic.s.ledger.history(topic.name, operations=("erasure",)) if outcome.removed] == [
        (("erased", 5),)
    ]
    assert list(topic.told()) == []
    assert receipts.verify(topic.s, request_id) == []


@MEMORY
def test_changes_wait_for_an_erasure_that_is_being_published(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one that looked before the request could store them after the search."""
    monkeypatch.setattr(documents, "_WAIT_SECONDS", 0.0)
    with operation.lock_out_writers(topic.s, topic.name), pytest.raises(TopicBusy):
        topic.write(topic.gone, 13, 13)
    assert topic.write(topic.gone, 13, 13) == {topic.gone: 13}


@MEMORY
def test_what_began_before_its_name_was_forbidden_is_waited_for_where_nothing_is_found(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would come in behind a search that has found nothing, and there is no publish to wait for it."""
    monkeypatch.setattr(operation, "_WAIT_SECONDS", 0.0)
    topic.gone = f"new-{token_hex(32)}"
    store, store_changes, requests = topic.s.documents, topic.s.documents.add, list[str]()

    def asked_meanwhile(*args: Any, **options: Any) -> None:
        requests.append(topic.request(forbid=True))
        (found,) = carry_out(topic.s, requests[0], approver=grant)
        assert isinstance(found.error, TopicBusy), found.outcome
        store_changes(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(store, "add", asked_meanwhile)
        topic.write(topic.gone, 1, 2)
    assert topic.s.ledger.erasure(requests[0]).state == "requested"
    assert topic.erase(requests[0]).removed == (("erased", 2),)
    assert topic.shown(topic.gone) == ([], [], [])


@MEMORY
def test_a_person_may_refuse(topic: Topic) -> None:
    before = topic.shown(topic.gone)
    assert topic.erase(approver=lambda *_: (False, "bob", "not now")).name == "refused"
    assert topic.shown(topic.gone) == before
    assert list(topic.told())


@MEMORY
@pytest.mark.parametrize("when", WHENS)
def test_a_hold_on_the_document_or_the_topic_refuses(topic: Topic, when: When) -> None:
    before, work = topic.shown(topic.gone), EraseKey(request_id=topic.request())
    key = topic.gone.encode() if when in ("before", "staged") else None
    with pytest.raises(HeldByLegalHold, match="case 7"):
        run_with_hold(topic.s, topic.name, work, as_of=AS_OF, when=when, place=lambda: held(topic.s, topic.name, key=key))
    assert topic.shown(topic.gone) == before
    (_, refused), *_ = topic.s.ledger.history(topic.name, operations=("erasure",))
    assert refused.name == "refused"


@TABLES_HUNTED
def test_a_hold_on_another_document_lets_it_go_and_keeps_its_own(topic: Topic) -> None:
    before = topic.shown(topic.kept)
    held(topic.s, topic.name, key=topic.kept.encode())
    assert topic.erase().name == "published"
    assert (topic.shown(topic.gone), topic.shown(topic.kept)) == (([], [], []), before)
