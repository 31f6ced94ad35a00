"""A whole topic deleted, and brought back row for row, on every store of whole logs (DEL-3, DEL-4, DEL-7, DEL-8)."""

from __future__ import annotations

import random

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out, describe_unsearched_places, record_request_state
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.operations.topics import undo_until
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.requests import delete_topic, deleted_topics
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.topics import deleted_view
from message_lifecycle.app.witness import missing_tables
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import (
    CatalogUnavailable,
    HeldByLegalHold,
    PlanConflict,
    UnknownTopic,
)
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import DeleteTopic, RemoveMessages, UndoPlan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import COMPACTED
from tests.contract.conftest import TABLES_HUNTED, MakeWorld, on
from tests.contract.test_requests import append, topic_of
from tests.errors import raises
from tests.holds import WHENS, When, held, run_with_hold
from tests.logs import SECOND
from tests.undone import approved, published, run, stored, undone


def deleted(world: World, name: TopicName, at_s: int) -> str:
    """The id of the plan."""
    world.set_now(Instant(at_s * SECOND))
    outcome = delete_topic(world.services, name, by="ada", text="not needed")
    assert outcome.name == "published", outcome.detail
    assert outcome.plan_id is not None
    return outcome.plan_id


def granted(world: World, name: TopicName) -> str:
    """A deletion that a person has said yes to, and that is not published yet."""
    s = world.services
    plan_id = steps.plan(s, name, as_of=Instant(0), work=DeleteTopic()).plan.plan_id
    steps.stage(s, plan_id)
    steps.gate(s, plan_id)
    steps.approve(s, plan_id, granted=True, by="tester", text="as expected")
    return plan_id


def test_a_deleted_topic_is_unknown_and_comes_back_row_for_row(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world, cleanup_policy="compact", undo_window=1000)
    append(world, name, 1, b"a", b"b", b"a")
    published(world, name, 2, RemoveMessages(positions=((0, 1),)))
    assert run(world, name, 3, "compaction").name == "published"
    append(world, name, 4, b"c")
    was, view = stored(world, name), [(m.offset, m.key) for m in read_compacted(s, name)]
    topic, log = s.topics.describe(name), s.reader.log(name)

    plan_id = deleted(world, name, 5)

    outcome = s.ledger.record(plan_id).outcome
    assert outcome is not None
    assert (dict(outcome.removed), outcome.rows_in, outcome.rows_kept) == ({"removed": 3}, 3, 0)
    assert name not in s.topics.list()
    for look in (s.topics.describe, s.reader.log, s.reader.end_offsets):
        with pytest.raises(UnknownTopic):
            look(name)
    with pytest.raises(UnknownTopic):
        run(world, name, 6)
    (told,) = [t for t in deleted_topics(s) if t.topic == name]
    assert (told.plan_id, told.rows, told.deleted_at) == (plan_id, 3, Instant(5 * SECOND))
    assert [table.table for table in told.tables] == ["", "compacted"]
    assert undo_until(s, told) == Instant(1005 * SECOND)
    assert deleted_view(s, told).messages == 3

    back = undone(world, name, 7, plan_id)

    assert (back.restored, back.rows_kept) == (3, 3)
    assert stored(world, name) == was, "row for row, every column"
    assert [(m.offset, m.key) for m in read_compacted(s, name)] == view
    assert s.topics.describe(name) == topic
    assert s.reader.log(name) == log, "the same table, at the same snapshot"
    assert [t for t in deleted_topics(s) if t.topic == name] == []
    append(world, name, 8, b"d")
    assert run(world, name, 9, "compaction").name == "published", "it goes on as ever"


@pytest.mark.parametrize("store_kind", on("iceberg")[:1], indirect=True)
def test_a_table_that_came_back_with_its_topic_is_missed(make_world: MakeWorld) -> None:
    """Another engine drops the view of a topic that was deleted and brought back."""
    world = make_world({})
    s, name = world.services, topic_of(world, cleanup_policy="compact", undo_window=1000)
    append(world, name, 1, b"a", b"b", b"a")
    published(world, name, 2, "compaction")
    plan_id = deleted(world, name, 3)
    assert missing_tables(s, name) == (), "the deletion took it away"
    undone(world, name, 4, plan_id)
    assert missing_tables(s, name) == ()
    Tables().catalog.drop_table((name.namespace, name.table(COMPACTED)))
    assert [table.kind for table in missing_tables(s, name)] == [COMPACTED]


def test_asked_twice_nothing_happens_and_the_first_is_named(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"a")
    plan_id = deleted(world, name, 2)
    again = delete_topic(world.services, name, by="ada", text="again")
    assert (again.name, again.first_plan_id) == ("no_op", plan_id)
    first = undone(world, name, 3, plan_id)
    again = run(world, name, 4, UndoPlan(plan_id=plan_id))
    assert (again.name, again.first_plan_id, again.restored) == ("no_op", first.plan_id, 0)
    with pytest.raises(UnknownTopic):
        delete_topic(world.services, TopicName(stream=name.stream, topic="never"), by="ada", text="no such")


def test_an_empty_topic_is_deleted_and_comes_back(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world)
    plan_id = deleted(world, name, 2)
    assert name not in world.services.topics.list()
    assert undone(world, name, 3, plan_id).restored == 0
    assert world.services.reader.end_offsets(name) == {0: 0}


def test_it_always_waits_for_a_persons_word(make_world: MakeWorld) -> None:  # DEL-3
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a")
    waiting = steps.run(s, name, as_of=Instant(0), work=DeleteTopic())
    assert waiting.name == "needs_approval"
    assert waiting.plan_id is not None
    assert [m.offset for m in stored(world, name)] == [0]
    steps.approve(s, waiting.plan_id, granted=False, by="anna", text="no")
    assert s.ledger.record(waiting.plan_id).outcome is not None
    assert [m.offset for m in stored(world, name)] == [0]


def test_the_question_names_who_reads_it(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b")
    s.ledger.commit(name, "billing", 0, 0, at=None)
    removal = published(world, name, 3, RemoveMessages(positions=((0, 1),)))
    undone(world, name, 4, removal)
    mirror = TopicName(stream=name.stream, topic=f"{name.topic}-copy")
    create_topic(s, mirror, settings={"role": "mirror", "origin": str(name)})
    made = preview(s, name, as_of=Instant(0), work=DeleteTopic())
    asks = " ".join(made.asks)
    assert "2 messages" in asks
    assert "consumer billing reads it" in asks
    assert f"replica {mirror} copies it" in asks
    assert f"undo of plan {removal[:12]}" in asks


def test_a_new_topic_of_the_name_starts_anew_and_keeps_the_old_one_away(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b")
    first = deleted(world, name, 2)
    create_topic(s, name, partitions=1, settings={"max_removed_fraction": 1.0})
    assert (stored(world, name), s.reader.end_offsets(name)) == ([], {0: 0})
    append(world, name, 3, b"new")
    with raises("NameTaken", match=str(name)):
        run(world, name, 4, UndoPlan(plan_id=first))
    assert [m.key for m in stored(world, name)] == [b"new"]
    second = deleted(world, name, 5)
    assert [t.plan_id for t in deleted_topics(s) if t.topic == name] == [second, first]
    with raises("LaterPlan", match=second[:12]):
        run(world, name, 6, UndoPlan(plan_id=first))
    undone(world, name, 7, second)
    assert [m.key for m in stored(world, name)] == [b"new"]


def test_a_new_topic_that_is_not_made_after_all_takes_nothing_from_what_may_come_back(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b")
    plan_id = deleted(world, name, 2)
    s.ledger.set_undone(name, "p1", "u1", [(0, 0, 0)])

    def refused(*_: object, **__: object) -> None:
        raise CatalogUnavailable("it went away")

    with monkeypatch.context() as failing, pytest.raises(CatalogUnavailable):
        failing.setattr(type(s.topics), "create", refused)
        create_topic(s, name, partitions=1, settings={})
    undone(world, name, 3, plan_id)
    assert {known.plan_id for known in s.ledger.undone(name)} == {"p1", plan_id}


def test_the_window_is_of_the_topic_and_by_the_ledgers_clock(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, undo_window=100)
    append(world, name, 1, b"a")
    plan_id = deleted(world, name, 5)
    with raises("UndoWindowPassed", match="1970-01-01T00:01:45"):
        run(world, name, 105, UndoPlan(plan_id=plan_id))
    assert undone(world, name, 104, plan_id).restored == 1


@TABLES_HUNTED
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("what", ["topic", "key", "range"])
def test_any_legal_hold_refuses(make_world: MakeWorld, when: When, what: str) -> None:  # DEL-8
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b")
    was = stored(world, name)

    def place() -> object:
        return held(s, name, key=b"b" if what == "key" else None, offsets=(1, 1) if what == "range" else None)

    with pytest.raises(HeldByLegalHold, match="case 7"):
        run_with_hold(s, name, DeleteTopic(), as_of=Instant(0), when=when, place=place)
    assert stored(world, name) == was
    assert "refused" in [outcome.name for _, outcome in s.ledger.history(name)]


def test_a_message_that_came_since_the_plan_is_not_lost(make_world: MakeWorld) -> None:  # DEL-4
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a")
    plan_id = granted(world, name)
    append(world, name, 2, b"later")
    with pytest.raises(PlanConflict, match="since it was planned"):
        steps.publish(s, plan_id)
    assert [m.key for m in stored(world, name)] == [b"a", b"later"]
    steps.close(s, s.ledger.record(plan_id).plan, "superseded", "it changed")
    assert steps.run(s, name, as_of=Instant(0), work=DeleteTopic(), approver=approved).removed_rows == 2


def test_the_gate_sees_a_message_that_came_since_the_plan(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a")
    plan_id = steps.plan(s, name, as_of=Instant(0), work=DeleteTopic()).plan.plan_id
    steps.stage(s, plan_id)
    append(world, name, 2, b"later")
    report = steps.gate(s, plan_id)
    assert {check.id for check in report.blocking} == {"same", "rows"}


def test_a_run_that_died_after_its_commit_is_brought_to_its_end(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a")
    plan_id = granted(world, name)
    done = steps.publish(s, plan_id)
    assert steps.publish(s, plan_id) == done, "reported, not repeated"
    again = delete_topic(s, name, by="ada", text="again")
    assert (again.name, again.first_plan_id) == ("no_op", plan_id)
    assert _outcome(world, plan_id).name == "published"


def test_an_undo_finishes_a_deletion_that_died_after_its_commit(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a")
    plan_id = granted(world, name)
    steps.publish(s, plan_id)
    assert undone(world, name, 3, plan_id).restored == 1
    assert _outcome(world, plan_id).name == "published"


def test_an_erasure_is_not_done_while_a_deleted_topic_may_hold_the_key(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"secret-key", b"b")
    plan_id = deleted(world, name, 2)
    request = ask(s, [b"secret-key"], topics=[], forbid=False, by="ada", why="asked for")
    assert record_request_state(s, request, []).state == "requested"
    assert plan_id[:12] in s.ledger.erasure(request.request_id).detail
    made = preview(s, name, as_of=Instant(0), work=UndoPlan(plan_id=plan_id))
    assert request.request_id[:12] in " ".join(made.asks)
    undone(world, name, 3, plan_id)
    found = carry_out(s, request.request_id, approver=approved)
    assert all(one.is_done for one in found if one.topic == name)
    assert [m.key for m in stored(world, name)] == [b"b"]
    again = deleted(world, name, 4)
    assert not [text for text in describe_unsearched_places(s, request) if again in text], "it was erased before it was deleted"


def test_a_topic_of_documents_goes_and_comes_back(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    name = TopicName(stream=f"{world.scratch}.docs" if world.scratch else "docs", topic=f"t{random.getrandbits(64):x}")
    create_topic(s, name, settings={"fold": "text_splice"})
    changes = [Change(document="d", server_seq=at, client="c", at=Instant(at * SECOND), payload=b'[[0, 0, "x"]]') for at in (1, 2)]
    s.documents.add(name, changes, ledger=s.ledger.next_identity(name))
    was = list(s.documents.changes(name, "d"))
    plan_id = deleted(world, name, 5)
    with pytest.raises(UnknownTopic):
        list(s.documents.changes(name, "d"))
    assert undone(world, name, 6, plan_id).restored == 2
    assert list(s.documents.changes(name, "d")) == was


def _outcome(world: World, plan_id: str) -> Outcome:
    found = world.services.ledger.record(plan_id).outcome
    assert found is not None
    return found
