"""What is due of compaction, and of the purge of what it covers, is found out alike on every store (CMP-5, CMP-9, CMP-10)."""

from __future__ import annotations

from uuid import uuid4

from message_lifecycle.app import steps
from message_lifecycle.app.compacted_read import read_compacted
from message_lifecycle.app.compaction_due import due_compactions, due_purges
from message_lifecycle.app.previews import Scheduled
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from tests.contract.conftest import MakeWorld

AS_OF = Instant(1_800_000_000_000_000)


def append(world: World, name: TopicName, partition: int, *pairs: str) -> None:
    messages = [
        NewMessage(append_time=Instant(AS_OF - 1), key=key.encode(), value=value.encode(), partition=partition)
        for key, value in (pair.split(":") for pair in pairs)
    ]
    world.writer.append(name, messages, policy_of(world.services, name))


def run(world: World, name: TopicName, work: Scheduled) -> str:
    outcome = steps.run(world.services, name, as_of=AS_OF, work=work, approver=lambda _plan, _report: (True, "tester", "as expected"))
    return outcome.name


def test_from_new_messages_to_a_purged_log(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(AS_OF)
    s, name = world.services, TopicName(stream=f"{world.scratch or 'due'}.{uuid4().hex[:6]}", topic="prices")
    create_topic(s, name, partitions=3, settings={"cleanup_policy": "compact"})

    def is_due() -> bool:
        (answer,) = due_compactions(s, [name], as_of=AS_OF)
        assert answer.error is None
        assert s.reader.end_offsets(name) == s.reader.log(name).end_offsets
        return answer.due

    assert not is_due(), "nothing is in it"
    append(world, name, 0, "a:1", "b:1", "a:2")
    append(world, name, 2, "c:1")
    assert is_due()
    assert run(world, name, "compaction") == "published"
    assert not is_due()
    world.writer.foreign_delete(name, [(0, 0)])
    assert not is_due(), "what another writer removed is nothing new"
    world.writer.seal(name, 0)
    append(world, name, 0, "b:2")
    assert is_due()
    assert run(world, name, "compaction") == "published"
    (purge,) = due_purges(s, [name], as_of=AS_OF)
    assert purge.due, purge.reason
    assert run(world, name, "purge_compacted") == "published"
    assert [(m.partition, m.offset) for m in s.reader.messages(name)] == [(0, 3), (2, 0)], "what is sealed and compacted went"
    assert not is_due(), "the log's end has not moved"
    (purge,) = due_purges(s, [name], as_of=AS_OF)
    assert not purge.due
    assert [(m.key, m.value) for m in read_compacted(s, name)] == [(b"a", b"2"), (b"b", b"2"), (b"c", b"1")]
