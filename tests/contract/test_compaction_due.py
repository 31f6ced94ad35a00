"""What is due of compaction, and of the purge of what it covers, is found out alike on every store (CMP-5, CMP-9, CMP-10)."""

from __future__ import annotations

from uuid import uuid4

from message_lifecycle.app import steps
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.contract.test_undo_view import compacted
from tests.errors import raises
from tests.logs import SECOND
from tests.undone import published, run, undone

AS_OF = Instant(1_800_000_000_000_000)


def append(world: World, name: TopicName, partition: int, *pairs: str) -> None:
    messages = [
        NewMessage(append_time=Instant(AS_OF - 1), key=key.encode(), value=value.encode(), partition=partition)
        for key, value in (pair.split(":") for pair in pairs)
    ]
    world.writer.append(name, messages, policy_of(world.services, name))


def run_now(world: World, name: TopicName, work: Scheduled) -> str:
    outcome = steps.run(world.services, name, as_of=AS_OF, work=work, approver=lambda _plan, _report: (True, "tester", "as expected"))
    return outcome.name


def test_from_new_messages_to_a_purged_log(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(AS_OF)
    s, name = world.services, TopicName(stream=f"{world.scratch or 'due'}.{uuid4().hex[:6]}", topic="prices")
    create_topic(s, name, partitions=3, settings={"cleanup_policy": "compact"})

    def is_due() -> bool:
        (answer,) = judge(s, [name], as_of=AS_OF, work="compaction")
        assert answer.error is None
        assert s.reader.end_offsets(name) == s.reader.log(name).end_offsets
        return answer.due

    assert not is_due(), "nothing is in it"
    append(world, name, 0, "a:1", "b:1", "a:2")
    append(world, name, 2, "c:1")
    assert is_due()
    assert run_now(world, name, "compaction") == "published"
    assert not is_due()
    world.writer.foreign_delete(name, [(0, 0)])
    assert not is_due(), "what another writer removed is nothing new"
    world.writer.seal(name, 0)
    append(world, name, 0, "b:2")
    assert is_due()
    assert run_now(world, name, "compaction") == "published"
    (purge,) = judge(s, [name], as_of=AS_OF, work="purge_compacted")
    assert purge.due, purge.reason
    assert run_now(world, name, "purge_compacted") == "published"
    assert [(m.partition, m.offset) for m in s.reader.messages(name)] == [(0, 3), (2, 0)], "what is sealed and compacted went"
    assert not is_due(), "the log's end has not moved"
    (purge,) = judge(s, [name], as_of=AS_OF, work="purge_compacted")
    assert not purge.due
    assert [(m.key, m.value) for m in read_compacted(s, name)] == [(b"a", b"2"), (b"b", b"2"), (b"c", b"1")]


def test_of_an_empty_topic_an_empty_view_is_made_and_binds_as_any_other(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(AS_OF)
    s, name = world.services, TopicName(stream=f"{world.scratch or 'due'}.{uuid4().hex[:6]}", topic="prices")
    create_topic(s, name, partitions=2, settings={"cleanup_policy": "compact,delete", "message_expiry": 5})
    (asked,) = judge(s, [name], as_of=AS_OF, work="compaction", named=True)
    assert asked.due
    assert run_now(world, name, "compaction") == "published"
    view = s.stores.view.view(name)
    assert view is not None
    assert (view.rows, view.has_reached, view.reach(0), view.reach(1)) == (0, False, None, None)
    assert list(read_compacted(s, name)) == []
    (again,) = judge(s, [name], as_of=AS_OF, work="compaction", named=True)
    assert not again.due
    assert run_now(world, name, "compaction") == "no_op"
    append(world, name, 1, "a:1", "a:2")
    world.writer.seal(name, 1)
    later = Instant(AS_OF + 10 * SECOND)
    world.set_now(later)
    cleaned = steps.run(s, name, as_of=later)
    assert (cleaned.name, [held.holder for held in cleaned.held]) == ("no_op", ["compaction"]), "a compacted topic's log waits for its view"
    assert [message.value for message in read_compacted(s, name)] == [b"1", b"2"]
    compaction = steps.run(s, name, as_of=AS_OF, work="compaction")
    assert (compaction.name, dict(compaction.removed)) == ("published", {"superseded": 1})
    assert [message.value for message in read_compacted(s, name)] == [b"2"]


def test_messages_without_keys_are_refused_by_an_empty_view_too(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(AS_OF)
    s, name = world.services, TopicName(stream=f"{world.scratch or 'due'}.{uuid4().hex[:6]}", topic="prices")
    create_topic(s, name, settings={"cleanup_policy": "compact"})
    assert run_now(world, name, "compaction") == "published"
    world.writer.append(name, [NewMessage(append_time=AS_OF, key=None, value=b"v", partition=0)], policy_of(s, name))
    with raises("TopicWithoutKeys"):
        run_now(world, name, "compaction")


def due(world: World, name: TopicName, at_s: int) -> bool:
    (answer,) = judge(world.services, [name], as_of=Instant(at_s * SECOND), work="compaction")
    assert answer.error is None
    return answer.due


@TABLES_HUNTED
def test_what_a_request_takes_from_a_view_applies_no_setting_to_it(make_world: MakeWorld) -> None:
    world = make_world({})
    name = compacted(world, b"a", None, b"b", cleanup_policy="compact")
    alter_topic(world.services, name, {"retain_null_key": False})
    assert due(world, name, 5)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    assert due(world, name, 6), "no message was judged by the new setting"
    undone(world, name, 7, plan_id)
    assert due(world, name, 8)
    assert dict(run(world, name, 8, "compaction").removed) == {"null_key": 1}
    assert not due(world, name, 9)


@TABLES_HUNTED
def test_what_comes_back_from_before_a_setting_is_judged_by_it(make_world: MakeWorld) -> None:
    world = make_world({})
    name = compacted(world, b"a", None, b"b", cleanup_policy="compact")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    alter_topic(world.services, name, {"retain_null_key": False})
    assert run(world, name, 6, "compaction").name == "published"
    assert not due(world, name, 7)
    undone(world, name, 7, plan_id)
    assert due(world, name, 8)
    assert dict(run(world, name, 8, "compaction").removed) == {"null_key": 1}
    assert not due(world, name, 9)


def test_a_request_between_two_changes_of_a_setting_hides_nothing_that_is_due(make_world: MakeWorld) -> None:
    """By the setting of the time of the request nothing is due."""
    world = make_world({})
    name = compacted(world, b"a", b"b", cleanup_policy="compact", max_age_seconds=50.0)
    alter_topic(world.services, name, {"max_age_seconds": None})
    published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    alter_topic(world.services, name, {"max_age_seconds": 50.0})
    assert due(world, name, 100)
    assert dict(run(world, name, 100, "compaction").removed) == {"retention_age": 1}
