"""What every store of documents must do to take a purge back (DEL-7, SNP-4, SNP-7, SNP-8)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import documents, steps
from message_lifecycle.app.due import due
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.operations.undo import release
from message_lifecycle.model.document import Synced
from message_lifecycle.model.errors import EpochMismatch, PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.phrases import short
from message_lifecycle.model.request import UndoPlan
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.documents import text_at
from tests.errors import raises
from tests.holds import held
from tests.logs import SECOND
from tests.undone import approved
from tests.undone_documents import Make, made, purged


@pytest.fixture
def make(make_world: MakeWorld) -> Make:
    return lambda **settings: made(make_world({}), **settings)


def test_changes_and_snapshots_come_back_row_for_row(make: Make) -> None:
    topic = make()
    plans, was = purged(topic)
    topic.write("a", [35])
    clients = topic.s.ledger.synced(topic.name)
    after = topic.shown()

    outcome = topic.undone(4, plans[2])

    assert (outcome.restored, outcome.removed, outcome.rows_in, outcome.rows_kept) == (12, (), 6, 18)
    assert outcome.detail == "brought back 12 changes and 1 snapshot"
    assert topic.shown() == ([*was[0], after[0][-1]], [*was[1], after[1][-1]]), "row for row; the snapshot that it made stays"
    assert topic.epoch() == 3, "an epoch never goes back"
    assert topic.s.ledger.synced(topic.name) == clients, "clients keep what they have"
    assert [seq for seq, _ in documents.history(topic.s, topic.name, "a")] == list(range(24, 36))
    topic.undone(5, plans[1])
    assert [seq for seq, _ in documents.history(topic.s, topic.name, "a")] == list(range(10, 36))
    topic.undone(6, plans[0])
    topic.is_whole(35)
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == (list(range(1, 36)), [10, 24, 34], 3)


@TABLES_HUNTED
def test_twice_is_a_no_op(make: Make) -> None:
    topic = make()
    plan_id = purged(topic)[0][-1]
    outcome = topic.undone(4, plan_id)
    shown = topic.shown()
    again = topic.run(4, UndoPlan(plan_id=plan_id))
    assert (again.name, again.first_plan_id) == ("no_op", outcome.plan_id)
    assert topic.shown() == shown


@TABLES_HUNTED
def test_a_client_goes_on_where_it_was_and_an_older_one_attaches(make: Make) -> None:  # SNP-7
    topic = make()
    plan_id = purged(topic)[0][-1]
    topic.undone(4, plan_id)
    pulled = documents.pull(topic.s, topic.name, "a", client_seq=31, client="ann", epoch=1)
    assert [change.server_seq for change in pulled.changes] == [32, 33, 34]
    with pytest.raises(EpochMismatch):
        documents.pull(topic.s, topic.name, "a", client_seq=31, client="eve", epoch=2)
    attached = documents.attach(topic.s, topic.name, "a", client="eve")
    assert (attached.epoch, attached.seq, attached.state) == (3, 34, text_at(34))


@TABLES_HUNTED
def test_the_next_run_leaves_it_alone_until_it_is_released(make: Make) -> None:
    topic = make()
    third = purged(topic)[0][-1]
    topic.undone(4, third)
    shown = topic.shown()
    again = topic.run(5)
    assert (again.name, topic.shown(), topic.epoch()) == ("no_op", shown, 3)
    (entry,) = again.held
    assert (entry.holder, entry.first_base, entry.last_offset, entry.rows) == ("undone_plan", 18, 29, 12)
    assert f"document a: removed by plan {short(third)}, restored by plan " in entry.detail
    # A new snapshot is made all the same, and takes the place of nothing that came back.
    topic.write("a", range(35, 45))
    topic.sync("a", 40)
    (action,) = topic.s.ledger.record(topic.purged(6)).plan.snapshots_commit.documents
    assert (action.snapshot, action.purged, action.dropped, dict(action.bounds)["undone_plan"]) == (44, 0, (34,), 18)
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == (list(range(18, 45)), [10, 24, 44], 3)
    release(topic.s, third, by="ada", text="they may go")
    assert dict(topic.run(7).removed) == {"purged_synced": 22}
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == (list(range(40, 45)), [24, 44], 4)


@TABLES_HUNTED
def test_what_goes_again_comes_back_again(make: Make) -> None:
    topic = make()
    third = purged(topic)[0][-1]
    topic.undone(4, third)
    release(topic.s, third, by="ada", text="they may go")
    topic.write("a", [35, 36])
    topic.sync("a", 33)
    was = topic.shown()
    fourth = topic.purged(5)
    assert topic.stored() == [33, 34, 35, 36]
    assert topic.run(6, UndoPlan(plan_id=third)).name == "no_op"
    topic.undone(7, fourth)
    assert topic.shown() == was
    assert topic.run(8).name == "no_op"


@TABLES_HUNTED
def test_what_lies_below_what_came_back_goes(make: Make) -> None:
    topic = make()
    plans, _ = purged(topic)
    for at, plan_id in enumerate(reversed(plans)):
        topic.undone(4 + at, plan_id)
    release(topic.s, plans[0], by="ada", text="they may go")
    outcome = topic.run(7)
    assert (dict(outcome.removed), [entry.rows for entry in outcome.held]) == ({"purged_synced": 7}, [22])
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == (list(range(8, 35)), [10, 34], 4)


@TABLES_HUNTED
def test_a_release_makes_the_topic_due_again(make: Make) -> None:
    topic = make()
    plan_id = purged(topic)[0][-1]
    topic.undone(4, plan_id)
    assert not due(topic.s, [topic.name], as_of=Instant(4 * SECOND), work="snapshot_with_purge")[0].due
    release(topic.s, plan_id, by="ada", text="they may go")
    assert due(topic.s, [topic.name], as_of=Instant(5 * SECOND), work="snapshot_with_purge")[0].due


@TABLES_HUNTED
def test_a_later_purge_of_the_document_is_named_until_that_is_undone(make: Make) -> None:
    topic = make()
    (first, second, third), _ = purged(topic)
    shown = topic.shown()
    with raises("LaterPlan", match=f"{second[:12]}.*document a further"):
        topic.run(4, UndoPlan(plan_id=first))
    assert topic.shown() == shown
    topic.undone(5, third)
    with raises("LaterPlan", match=second[:12]):
        topic.run(6, UndoPlan(plan_id=first))
    topic.undone(7, second)
    topic.undone(8, first)
    topic.is_whole(34)


@TABLES_HUNTED
def test_a_later_purge_of_another_document_is_no_hindrance(make: Make) -> None:
    topic = make()
    topic.write("a", range(1, 11))
    topic.sync("a", 8)
    plan_id = topic.purged(1)
    topic.write("b", range(1, 11))
    topic.sync("b", 5)
    topic.purged(2)
    topic.undone(4, plan_id)
    topic.is_whole(10)
    assert (topic.stored("b"), topic.snapshots("b"), topic.epoch("b")) == (list(range(5, 11)), [10], 1)


def test_documents_of_one_plan_come_back_together(make: Make) -> None:
    topic = make()
    for at, document in enumerate(("a", "b", "c", "d e")):
        topic.write(document, range(1, 11 + at))
        topic.sync(document, 3 + at)
    was = {document: topic.shown(document)[0] for document in ("a", "b", "c", "d.e")}
    plan_id = topic.purged(1)
    assert topic.undone(2, plan_id).restored == 2 + 3 + 4 + 5
    assert {document: topic.shown(document)[0] for document in was} == was
    for at, document in enumerate(was):
        topic.is_whole(10 + at, document)


def test_snapshots_alone_come_back(make: Make) -> None:
    topic = make(snapshot_with_purging_changes=False)
    for at in range(3):
        topic.write("a", range(10 * at + 1, 10 * at + 11))
        plan_id = topic.purged(at + 1)
    assert topic.snapshots() == [30]
    outcome = topic.undone(4, plan_id)
    assert (outcome.restored, outcome.rows_kept, topic.snapshots()) == (0, 30, [20, 30])
    topic.is_whole(30)
    topic.write("a", range(31, 41))
    topic.purged(5)
    assert topic.snapshots() == [20, 40]


@TABLES_HUNTED
def test_an_undo_is_refused_after_its_window(make: Make) -> None:
    topic = make(undo_window=100)
    plan_id = purged(topic)[0][-1]
    shown = topic.shown()
    with raises("UndoWindowPassed"):
        topic.run(104, UndoPlan(plan_id=plan_id))
    assert topic.shown() == shown


def test_a_plan_that_was_not_published_took_nothing(make: Make) -> None:
    topic = make()
    topic.write("a", range(1, 11))
    topic.sync("a", 8)
    plan_id = steps.plan(topic.s, topic.name, as_of=Instant(0), work="snapshot_with_purge").plan.plan_id
    with raises("NotPublished"):
        topic.run(1, UndoPlan(plan_id=plan_id))


@TABLES_HUNTED
def test_a_held_document_comes_back_too(make: Make) -> None:  # DEL-8
    topic = make()
    (*_, plan_id), was = purged(topic)
    held(topic.s, topic.name, key=b"a")
    topic.undone(4, plan_id)
    assert topic.shown()[0] == was[0]


@TABLES_HUNTED
def test_a_hold_that_is_placed_meanwhile_has_it_planned_anew(make: Make) -> None:  # DEL-8
    topic = make()
    (*_, third), was = purged(topic)
    plan_id = steps.plan(topic.s, topic.name, as_of=Instant(2 * SECOND), work=UndoPlan(plan_id=third)).plan.plan_id
    steps.stage(topic.s, plan_id)
    held(topic.s, topic.name)
    with pytest.raises(PlanConflict, match="was placed after it was planned"):
        steps.gate(topic.s, plan_id)
    topic.undone(4, third)
    assert topic.shown()[0] == was[0]


@TABLES_HUNTED
def test_it_always_asks_and_names_no_document(make: Make) -> None:
    topic = make()
    plan_id = purged(topic)[0][-1]
    shown = topic.shown()
    assert steps.run(topic.s, topic.name, as_of=Instant(2 * SECOND), work=UndoPlan(plan_id=plan_id)).name == "needs_approval"
    record = topic.s.ledger.open_plan(topic.name)
    assert record is not None
    asks = f"undoes plan {plan_id[:12]} (snapshot_with_purge): brings back 12 changes and 1 snapshot of 1 document"
    assert record.plan.asks == (asks,)
    assert topic.shown() == shown


def test_changes_that_come_while_it_is_staged_stay(make: Make) -> None:  # DEL-4
    topic = make()
    third = purged(topic)[0][-1]
    plan_id = steps.plan(topic.s, topic.name, as_of=Instant(2 * SECOND), work=UndoPlan(plan_id=third)).plan.plan_id
    steps.stage(topic.s, plan_id)
    steps.gate(topic.s, plan_id)
    steps.approve(topic.s, plan_id, granted=True, by="tester", text="as expected")
    topic.write("a", [35])
    assert isinstance(steps.publish(topic.s, plan_id), Published)
    assert steps.verify(topic.s, plan_id).name == "published"
    assert topic.stored() == [*range(18, 36)]


@TABLES_HUNTED
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_erased_document_never_comes_back(make: Make, when: str) -> None:
    topic = make()
    for document in ("a", "b"):
        topic.write(document, range(1, 11))
        topic.sync(document, 8)
    was = topic.shown("b")[0]
    plan_id = topic.purged(1)

    def erase() -> None:
        request = ask(topic.s, [b"a"], topics=[topic.name], forbid=False, by="ada", why="a letter").request_id
        (found,) = carry_out(topic.s, request, approver=approved)
        assert found.error is None and found.outcome is not None and found.outcome.name == "published", found.why_not_done()

    if when == "before":
        erase()
    outcome = topic.undone(2, plan_id)
    if when == "after":
        erase()
    else:
        assert (outcome.restored, len(outcome.warnings)) == (7, 1)
    assert topic.shown("a") == ([], [])
    assert topic.shown("b")[0] == was
    topic.is_whole(10, "b")
    topic.write("a", range(1, 11))
    topic.sync("a", 8)
    outcome = topic.run(3)
    assert (topic.stored("a"), topic.epoch("a")) == ([8, 9, 10], 1), "a new document of the name is another one"
    assert [entry.holder for entry in outcome.held] == ["undone_plan"]
    assert "document b" in outcome.held[0].detail


@TABLES_HUNTED
def test_silent_clients_are_as_they_were(make: Make) -> None:
    topic = make()
    plan_id = purged(topic)[0][-1]
    row = Synced(document="a", client="bob", server_seq=20, at=Instant(0))
    assert topic.s.ledger.replace_synced(topic.name, "a", "bob", seen=None, to=row)
    topic.run(200_001, UndoPlan(plan_id=plan_id))
    assert row in topic.s.ledger.synced(topic.name)
