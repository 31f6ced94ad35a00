"""A process that dies between any two commands loses no retained message, repeats nothing and leaves no half state."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest
import redis

from message_lifecycle.app import steps
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log import Head
from message_lifecycle.stores.redis_streams import layout
from tests.effort import sample
from tests.redis_streams.streams import AS_OF, SECOND, Died, Streams, Topic, patient

pytestmark = pytest.mark.redis


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is left of a topic."""

    kept: tuple[list[int], ...]
    ends: dict[int, int]
    commits: list[tuple[str | None, tuple[tuple[str, int], ...]]]
    rows: tuple[int, ...]
    pending: int


def state(topic: Topic) -> State:
    head = topic.streams.logs().open(topic.name).head()
    client = topic.streams.client
    return State(
        kept=(topic.offsets(0), topic.offsets(1)),
        ends=dict(head.end_offsets),
        commits=[(commit.plan_id and "a plan", commit.removed) for commit in head.commits],
        rows=tuple(int(client.hget(topic.keys.topic, f"rows:{partition}") or 0) for partition in (0, 1)),
        pending=client.xpending(topic.keys.stream(1), "billing")["pending"],  # type: ignore[index]  # of a client that waits
    )


def filled(streams: Streams, number: int) -> Topic:
    """Something goes from the beginning, something from the middle, and something is kept for a group."""
    topic = streams.topic(name=TopicName(stream="web", topic=f"clicks-{number}"), partitions=2, max_age_seconds=60.0)
    topic.append(1, 2, None, 4, 5, AS_OF)
    topic.append(1, 2, 3, AS_OF, partition=1)
    topic.group("billing", partition=1)
    topic.acknowledge("billing", *topic.deliver("billing", 2, partition=1)[:1], partition=1)
    return topic


@pytest.mark.parametrize("every", sample([3, 1], 3))
def test_a_run_that_dies_anywhere_is_finished_by_the_next(streams: Streams, every: int) -> None:
    streams = patient(streams)
    whole = filled(streams, 0)
    assert whole.run().name == "published"
    expected = state(whole)
    assert expected.kept == ([2, 5], [1, 2, 3])
    for commands in range(1, 1_000, every):
        topic = filled(streams, commands)
        client = streams.dying(commands)
        try:
            topic.run(topic.over(client))
            break
        except Died:
            left = state(topic)
            assert left.kept in (([0, 1, 2, 3, 4, 5], [0, 1, 2, 3]), expected.kept), f"after {commands} commands: half a removal"
        outcome = topic.run()
        assert outcome.name in ("published", "no_op"), f"after {commands} commands"
        assert state(topic) == expected, f"after {commands} commands"
    else:
        raise AssertionError("it never came to its end")
    assert commands > 20, "a run that asks so little has not been cut everywhere"


def test_an_append_that_dies_anywhere_is_there_whole_or_not_at_all(streams: Streams) -> None:
    streams = patient(streams)
    seen = set()
    for commands in range(1, 100):
        topic = streams.topic(name=TopicName(stream="web", topic=f"clicks-{commands}"), partitions=2)
        topic.append(1)
        services = topic.over(streams.dying(commands))
        try:
            with suppress(CommitUnknown):  # what a dying client says
                policy = policy_of(topic.services, topic.name)
                new = [NewMessage(append_time=None, key=b"k", value=b"v", partition=partition) for partition in (0, 1, 0)]
                services.stores.log.append(topic.name, new, policy)  # type: ignore[attr-defined]  # a record log is one store for all
            break
        except Died:
            found = (topic.offsets(0), topic.offsets(1))
            assert found in (([0], []), ([0, 1, 2], [0]))
            seen.add(len(found[0]))
        topic.append(2)
        assert topic.offsets(0)[-1] == len(found[0]), "no offset twice, and none left out"
    assert seen == {1, 3}, "it was cut before the messages were there, and after"


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_whose_creation_died_is_made_by_the_next_attempt(streams: Streams, partitions: int) -> None:
    ends = dict.fromkeys(range(partitions), 0)
    head = Head(uuid="u", partitions=partitions, settings={}, ledger=None, end_offsets=ends, segments=ends)
    name = TopicName(stream="web", topic="orders")
    with pytest.raises(Died):
        streams.logs(streams.dying(1)).create(name, head)
    assert streams.logs().names() == []
    streams.logs().create(name, head)
    assert streams.logs().names() == [name]


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not done"])
def test_a_publish_without_an_answer_is_looked_up_by_its_plan(streams: Streams, done: bool) -> None:  # DEL-4
    """The connection breaks when the script has been sent: nobody knows whether it was carried out."""

    class Breaking(redis.Redis):
        def execute_command(self, *arguments: object, **options: object) -> object:
            if arguments[:2] == ("EVAL", layout.REPLACE):
                if done:
                    super().execute_command(*arguments, **options)
                raise redis.ConnectionError("Connection closed by server.")
            return super().execute_command(*arguments, **options)

    topic = streams.topic(max_age_seconds=60.0)
    topic.append(1, 2, AS_OF - 10 * SECOND, AS_OF)
    plan_id = topic.planned()
    client = Breaking(connection_pool=streams.client.connection_pool)
    client.set_response_callback("XRANGE", lambda entries, **_: entries)
    with pytest.raises(CommitUnknown):
        steps.publish(topic.over(client), plan_id)
    assert topic.offsets() == ([2, 3] if done else [0, 1, 2, 3])
    steps.publish(topic.services, plan_id)
    outcome = steps.verify(topic.services, plan_id)
    assert (outcome.name, dict(outcome.removed), topic.offsets()) == ("published", {"retention_age": 2}, [2, 3])
    assert len(streams.logs().open(topic.name).head().commits) == 1
