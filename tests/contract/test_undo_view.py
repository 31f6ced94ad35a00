"""What every store of whole logs must do to take back a plan that took messages from the compacted view too (DEL-7, PRG-1, CMP-9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, ViewRow, is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Published
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, TruncateLog, UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import CommitContext
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.contract.test_requests import append, topic_of
from tests.errors import raises
from tests.logs import SECOND
from tests.undone import approved, published, run, sealed_segments, stored, undone


def view(world: World, name: TopicName) -> list[ViewRow]:
    """Every column of every row."""
    state = world.services.stores.view.view(name)
    assert state is not None
    return list(world.services.stores.view.view_rows(name, state))


def shown(world: World, name: TopicName) -> list[tuple[int, bytes | None]]:
    return [(m.offset, m.key) for m in read_compacted(world.services, name)]


def compacted(world: World, *keys: bytes | None, **settings: Value) -> TopicName:
    """A topic of one message a second, all of them compacted."""
    name = topic_of(world, **settings)
    append(world, name, 1, *keys)
    assert run(world, name, 2, "compaction").name == "published"
    return name


def test_messages_come_back_to_the_log_and_to_the_view(make_world: MakeWorld) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"b", b"a", b"c")
    was, rows = stored(world, name), view(world, name)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1), (0, 2))))
    assert shown(world, name) == [(3, b"c")]
    append(world, name, 6, b"later")

    outcome = undone(world, name, 7, plan_id)

    assert (outcome.restored, dict(outcome.removed)) == (2, {})
    assert stored(world, name)[:-1] == was
    assert view(world, name) == rows, "row for row, every column"
    assert shown(world, name) == [(1, b"b"), (2, b"a"), (3, b"c"), (4, b"later")]
    (known,) = world.services.ledger.undone(name)
    assert known.ranges == ((0, 1, 2),)
    again = run(world, name, 8, UndoPlan(plan_id=plan_id))
    assert (again.name, again.first_plan_id) == ("no_op", outcome.plan_id)


@pytest.mark.parametrize(
    "work",
    [PurgeKey(key=b"a"), TruncateLog(partition=0, before=3), RemoveNullKeys(partition=0, first=0, last=4)],
    ids=["purge", "truncate", "null keys"],
)
def test_every_request_is_taken_back(make_world: MakeWorld, work: Work) -> None:
    world = make_world({})
    name = compacted(world, b"a", None, b"b", b"a", None, b"c", allow_msg_ttl=True, subject_delete_marker_ttl=600)
    was, rows = stored(world, name), view(world, name)
    plan_id = published(world, name, 5, work)
    assert view(world, name) != rows
    undone(world, name, 6, plan_id)
    assert stored(world, name) == was
    assert not any(is_marker(m.headers) for m in stored(world, name))
    assert view(world, name) == rows


def test_what_the_view_alone_had_comes_back_there(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, cleanup_policy="compact")
    sealed_segments(world, name, 1, 2)
    append(world, name, 3, b"z")
    assert run(world, name, 5, "compaction").name == "published"
    rows = view(world, name)
    published(world, name, 6, "purge_compacted")
    left = stored(world, name)
    plan_id = published(world, name, 7, PurgeKey(key=b"a"))
    outcome = undone(world, name, 8, plan_id)
    assert (outcome.restored, outcome.removed, outcome.rows_kept) == (0, (), len(left))
    assert outcome.detail == "brought back 1 message to the compacted view"
    assert stored(world, name) == left
    assert view(world, name) == rows
    assert run(world, name, 9, UndoPlan(plan_id=plan_id)).name == "no_op"


def past_lag(world: World) -> tuple[TopicName, str]:
    """Two keys compacted; past the horizon a newer `a`, dead by its own lifetime, which the cleaner has taken with the older one of the view."""
    name = compacted(world, b"a", b"b", allow_msg_ttl=True, max_compaction_lag=60)
    append(world, name, 3, b"a", ttl="1s")
    append(world, name, 3, b"c")
    return name, published(world, name, 100)


def test_what_went_past_the_lag_comes_back_and_hides_what_it_hid(make_world: MakeWorld) -> None:  # CMP-8, CMP-9
    world = make_world({})
    name, plan_id = past_lag(world)
    assert [row.message.offset for row in view(world, name)] == [1]
    undone(world, name, 101, plan_id)
    assert [row.message.offset for row in view(world, name)] == [0, 1]
    assert [m.offset for m in stored(world, name)] == [0, 1, 2, 3]
    assert shown(world, name) == [(0, b"a"), (1, b"b"), (2, b"a"), (3, b"c")]
    again = run(world, name, 102)
    assert (again.name, {entry.holder for entry in again.held}) == ("no_op", {"undone_plan"})
    assert [row.message.offset for row in view(world, name)] == [0, 1]
    run(world, name, 103, "compaction")
    assert shown(world, name) == [(1, b"b"), (3, b"c")], "the newest is dead, and no older value comes back (P3)"


@TABLES_HUNTED
def test_a_compaction_past_what_hid_the_view_s_message_is_named(make_world: MakeWorld) -> None:  # P3
    world = make_world({})
    name, plan_id = past_lag(world)
    later = published(world, name, 101, "compaction")
    with raises("LaterPlan", match=later[:12]):
        run(world, name, 102, UndoPlan(plan_id=plan_id))
    assert shown(world, name) == [(1, b"b"), (3, b"c")]


@TABLES_HUNTED
@pytest.mark.parametrize("more", [0, 30], ids=["then marked", "then rewritten"])
@pytest.mark.parametrize("tail", [1, 9], ids=["marked", "rewritten"])
def test_a_compaction_of_other_keys_is_no_hindrance(make_world: MakeWorld, tail: int, more: int) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"b", b"c", b"d")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0), (0, 2))))
    append(world, name, 6, *(b"n%d" % at for at in range(tail)))
    published(world, name, 7, "compaction")
    undone(world, name, 8, plan_id)
    assert [row.message.offset for row in view(world, name)] == [0, 1, 2, 3, *range(4, 4 + tail)]
    assert [m.offset for m in stored(world, name)] == [*range(4 + tail)]
    append(world, name, 9, b"a", *(b"m%d" % at for at in range(more)))
    published(world, name, 10, "compaction")
    assert [row.message.offset for row in view(world, name)] == [*range(1, 5 + tail + more)], "what came back is compacted as any other"


@TABLES_HUNTED
@pytest.mark.parametrize("value", [b"v", None], ids=["a value", "a tombstone"])
def test_a_compaction_of_a_newer_message_of_the_key_is_named(make_world: MakeWorld, value: bytes | None) -> None:  # P3
    world = make_world({})
    name = compacted(world, b"a", b"b")
    plan_id = published(world, name, 5, PurgeKey(key=b"a"))
    newer = NewMessage(append_time=Instant(6 * SECOND), key=b"a", value=value)
    world.writer.append(name, [newer], policy_of(world.services, name))
    later = published(world, name, 7, "compaction")
    seen, rows = shown(world, name), view(world, name)
    with raises("LaterPlan", match=f"{later[:12]}.*newer message"):
        run(world, name, 8, UndoPlan(plan_id=plan_id))
    assert (shown(world, name), view(world, name)) == (seen, rows)


@TABLES_HUNTED
def test_a_newer_message_of_the_key_that_a_later_request_took_is_named_until_that_is_undone(make_world: MakeWorld) -> None:  # PRG-1, P3
    world = make_world({})
    name = compacted(world, b"a", b"b")
    append(world, name, 3, b"a")
    was, rows = stored(world, name), view(world, name)
    first = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    second = published(world, name, 6, RemoveMessages(positions=((0, 2),)))
    with raises("LaterPlan", match=second[:12]):
        run(world, name, 7, UndoPlan(plan_id=first))
    assert shown(world, name) == [(1, b"b")], "its key shows no value that is older than what was removed"
    undone(world, name, 8, second)
    undone(world, name, 9, first)
    assert (stored(world, name), view(world, name)) == (was, rows)


@TABLES_HUNTED
def test_what_went_from_the_view_and_then_by_a_later_request_from_the_log_is_named_until_that_is_undone(  # PRG-1
    make_world: MakeWorld,
) -> None:
    """The view had lost it as the older message of its key; a person then had it removed by itself."""
    world = make_world({})
    name = compacted(world, b"a", b"b")
    append(world, name, 3, b"a")
    was, rows = stored(world, name), view(world, name)
    first = published(world, name, 5, RemoveMessages(positions=((0, 2),)))
    assert view(world, name) == rows[1:]
    second = published(world, name, 6, RemoveMessages(positions=((0, 0),)))
    with raises("LaterPlan", match=second[:12]):
        run(world, name, 7, UndoPlan(plan_id=first))
    assert shown(world, name) == [(1, b"b")], "nobody is shown what was removed"
    undone(world, name, 8, second)
    undone(world, name, 9, first)
    assert (stored(world, name), view(world, name)) == (was, rows)


def test_what_went_from_the_view_and_then_by_its_age_from_the_log_comes_back_to_the_view(make_world: MakeWorld) -> None:
    """A rule of ages takes it from the log alone, where the view has it as well."""
    world = make_world({})
    name = compacted(world, b"a", b"b", message_expiry=50)
    world.writer.seal(name, 0)
    append(world, name, 55, b"a")
    rows = view(world, name)
    first = published(world, name, 56, RemoveMessages(positions=((0, 2),)))
    assert view(world, name) == rows[1:]
    published(world, name, 60)
    assert stored(world, name) == []
    undone(world, name, 61, first)
    assert ([m.offset for m in stored(world, name)], view(world, name)) == ([2], rows)


@TABLES_HUNTED
@pytest.mark.parametrize("work", [RemoveMessages(positions=((0, 2),)), "compaction"], ids=["request", "compaction"])
def test_a_later_plan_that_failed_after_its_commit_is_named_too(  # P3
    make_world: MakeWorld, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has done what it did, whatever was found afterwards."""
    world = make_world({})
    name = compacted(world, b"a", b"b")
    newer = NewMessage(append_time=Instant(3 * SECOND), key=b"a", value=None)
    world.writer.append(name, [newer], policy_of(world.services, name))
    first = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    with monkeypatch.context() as patched:
        patched.setattr(steps, "differences", lambda *_: ["something else"])
        later = run(world, name, 6, work)
    assert later.name == "failed" and later.plan_id is not None
    with raises("LaterPlan", match=later.plan_id[:12]):
        run(world, name, 7, UndoPlan(plan_id=first))
    assert [row.message.offset for row in view(world, name)] == [1]


@TABLES_HUNTED
def test_a_later_compaction_that_failed_before_its_commit_is_no_hindrance(make_world: MakeWorld) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"b")
    append(world, name, 3, b"a")
    rows = view(world, name)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    world.set_now(Instant(6 * SECOND))
    made = steps.plan(world.services, name, as_of=Instant(6 * SECOND), work="compaction").plan
    steps.close(world.services, made, "failed", "its run ended")
    undone(world, name, 7, plan_id)
    assert view(world, name) == rows


@TABLES_HUNTED
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first first", "second first"])
def test_two_plans_on_the_same_view_come_back_one_by_one(make_world: MakeWorld, order: tuple[int, int]) -> None:
    world = make_world({})
    name = compacted(world, *(b"k%d" % at for at in range(8)))
    rows = view(world, name)
    taken = ((1, 3), (2, 5, 6))
    plans = [published(world, name, 5 + at, RemoveMessages(positions=tuple((0, o) for o in offsets))) for at, offsets in enumerate(taken)]
    undone(world, name, 20, plans[order[0]])
    assert view(world, name) == [row for row in rows if row.message.offset not in taken[order[1]]]
    undone(world, name, 21, plans[order[1]])
    assert view(world, name) == rows


@TABLES_HUNTED
def test_what_a_person_takes_again_comes_back_again(make_world: MakeWorld) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"b", None)
    was, rows = stored(world, name), view(world, name)
    first = published(world, name, 5, PurgeKey(key=b"a"))
    undone(world, name, 6, first)
    second = published(world, name, 7, PurgeKey(key=b"a"))
    assert run(world, name, 8, UndoPlan(plan_id=first)).name == "no_op"
    assert view(world, name) == rows[1:], "what the first took is taken back once"
    undone(world, name, 9, second)
    assert (stored(world, name), view(world, name)) == (was, rows)


@TABLES_HUNTED
def test_what_came_back_dead_goes_with_the_next_compaction(make_world: MakeWorld) -> None:  # CMP-5, CMP-8
    world = make_world({})
    name = compacted(world, b"a", b"b", max_age_seconds=50.0)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    undone(world, name, 100, plan_id)
    assert shown(world, name) == [(0, b"a"), (1, b"b")]
    assert dict(run(world, name, 100, "compaction").removed) == {"retention_age": 2}


@dataclass(frozen=True)
class Dying:
    """A store whose run ends where it would commit."""

    real: object

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        raise KeyboardInterrupt


def dies_between(world: World, name: TopicName, plan_id: str) -> None:
    """An undo that has brought back what went from the log, and nothing to the view yet."""
    stores = replace(world.services.stores, view_return=Dying(world.services.stores.view_return))  # type: ignore[arg-type]  # it has all that ChangeStore has
    dying = replace(world.services, stores=stores)
    world.set_now(Instant(10 * SECOND))
    with pytest.raises(KeyboardInterrupt):
        steps.run(dying, name, as_of=Instant(10 * SECOND), approver=approved, work=UndoPlan(plan_id=plan_id))


@pytest.mark.parametrize("work", ["message_cleaner", "compaction", PurgeKey(key=b"a")], ids=["cleaner", "compaction", "the same request"])
def test_a_request_that_died_between_its_commits_is_finished_and_comes_back_whole(make_world: MakeWorld, work: Work) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"b")
    was, rows = stored(world, name), view(world, name)
    stores = replace(world.services.stores, log=Dying(world.services.stores.log))  # type: ignore[arg-type]  # it has all that MessageStore has
    dying = replace(world.services, stores=stores)
    world.set_now(Instant(10 * SECOND))
    with pytest.raises(KeyboardInterrupt):
        steps.run(dying, name, as_of=Instant(10 * SECOND), approver=approved, work=PurgeKey(key=b"a"))
    assert (stored(world, name), view(world, name)) == (was, rows[1:]), "the view comes first"
    assert run(world, name, 11, work).name == "no_op"
    assert (stored(world, name), view(world, name)) == (was[1:], rows[1:])
    (plan_id,) = [
        known.plan_id
        for known in world.services.ledger.plans(name)
        if known.operation == "message_request" and known.outcome == "published"
    ]
    undone(world, name, 12, plan_id)
    assert (stored(world, name), view(world, name)) == (was, rows)


def half_done(world: World) -> tuple[TopicName, str, list[ViewRow]]:
    """Of the key `a` one message was in the view, and a newer one past the horizon; both had gone by one request."""
    name = compacted(world, b"a", b"b", message_expiry=1000)
    append(world, name, 3, b"a")
    rows = view(world, name)
    plan_id = published(world, name, 5, PurgeKey(key=b"a"))
    dies_between(world, name, plan_id)
    assert [m.offset for m in stored(world, name)] == [0, 1, 2]
    assert shown(world, name) == [(1, b"b"), (2, b"a")], "never an older value (P3)"
    return name, plan_id, rows


def test_an_undo_that_died_between_its_commits_is_finished_by_the_next(make_world: MakeWorld) -> None:
    world = make_world({})
    name, plan_id, rows = half_done(world)
    outcome = undone(world, name, 11, plan_id)
    assert outcome.restored == 2
    assert view(world, name) == rows
    (known,) = world.services.ledger.undone(name)
    assert (known.undone_by, known.ranges) == (outcome.plan_id, ((0, 0, 0), (0, 2, 2)))


@pytest.mark.parametrize("work", ["message_cleaner", "compaction"])
def test_whoever_comes_next_finishes_an_undo_that_died_between_its_commits(make_world: MakeWorld, work: Work) -> None:
    world = make_world({})
    name, plan_id, rows = half_done(world)
    outcome = run(world, name, 11, work)
    assert (outcome.name, outcome.removed) == (("no_op", ()) if work == "message_cleaner" else ("published", (("superseded", 1),)))
    assert view(world, name) == (rows if work == "message_cleaner" else [rows[1], replace(rows[0], message=stored(world, name)[2])])
    again = run(world, name, 12, UndoPlan(plan_id=plan_id))
    assert again.name == "no_op" and again.first_plan_id is not None


@TABLES_HUNTED
def test_settings_changed_between_its_commits_do_not_keep_an_undo_from_its_end(make_world: MakeWorld) -> None:
    world = make_world({})
    name, plan_id, rows = half_done(world)
    alter_topic(world.services, name, {"message_expiry": 1})
    assert run(world, name, 11).name == "no_op", "what came back is left alone"
    assert view(world, name) == rows
    assert run(world, name, 12, UndoPlan(plan_id=plan_id)).name == "no_op"


def test_where_another_writer_came_between_the_commits_the_rest_comes_back_by_another_undo(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({})
    s = world.services
    name, plan_id, rows = half_done(world)

    def refuse(*_: object, **__: object) -> Published:
        raise PlanConflict(plan_id, "the compacted view was changed first")

    with monkeypatch.context() as patched:
        patched.setattr(s.stores.view_return, "publish", refuse)
        assert run(world, name, 11).name == "no_op"
    (known,) = s.ledger.undone(name)
    assert known.ranges == ((0, 0, 0), (0, 2, 2)), "what is back is left alone"
    outcome: Outcome = undone(world, name, 12, plan_id)
    assert outcome.restored == 0
    assert view(world, name) == rows
    assert run(world, name, 13, UndoPlan(plan_id=plan_id)).name == "no_op"
