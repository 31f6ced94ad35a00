"""An erasure from streams that dies, or that another comes between, anywhere: the key is gone, nothing else is, and nobody is lied to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from message_lifecycle.app import receipts
from message_lifecycle.app.erasures import TopicErasureResult, ask, carry_out
from message_lifecycle.app.parts import with_parts
from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.redis_streams.layout import REPLACE
from tests.effort import sample
from tests.redis_streams.streams import AS_OF, Died, Streams, Topic, patient

pytestmark = pytest.mark.redis
KEY = b"customer 17 of the north"
MOST_COMMANDS = 1_000
EVERY = pytest.mark.parametrize("every", sample([3, 1], 3))
"""Cut before every command, or before every third."""


class Interrupted(redis.Redis):
    """Before its command number `at` (from 0) it lets another do something; `published`: whether the removal was sent by then."""

    at: int
    done: int
    published: bool
    between: Callable[[], None]

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        if self.done == self.at:
            self.between()
        self.done += 1
        self.published |= REPLACE in arguments and self.done <= self.at
        return super().execute_command(*arguments, **options)


def interrupted(streams: Streams, at: int, between: Callable[[], None]) -> Interrupted:
    made = Interrupted(connection_pool=streams.client.connection_pool)
    made.set_response_callback("XRANGE", lambda entries, **_: entries)
    made.at, made.done, made.published, made.between = at, 0, False, between
    return made


def filled(streams: Streams, number: int) -> Topic:
    topic = streams.topic(name=TopicName(stream="web", topic=f"clicks-{number}"), partitions=2)
    topic.append(1, key=b"a")
    topic.append(2, 3, key=KEY)
    topic.append(4, key=b"b")
    topic.append(5, key=KEY, partition=1)
    topic.append(6, key=b"c", partition=1)
    topic.group("billing", partition=1)
    topic.deliver("billing", 2, partition=1)
    return topic


def asked(topic: Topic) -> str:
    return ask(topic.services, [KEY], topics=[topic.name], forbid=False, by="ada", why="a letter").request_id


def erase(s: Services, request_id: str) -> TopicErasureResult:
    (found,) = carry_out(s, request_id, approver=lambda _plan, _report: (True, "ada", "a letter"))
    return found


def over(topic: Topic, client: redis.Redis) -> Services:
    return with_parts(topic.over(client), key_secret=topic.services.key_secret)


def keys(topic: Topic) -> list[bytes | None]:
    return [message.key for message in topic.services.reader.messages(topic.name)]


def topics(streams: Streams, every: int) -> Iterator[tuple[int, Topic]]:
    for at in range(0, MOST_COMMANDS, every):
        yield at, filled(streams, at)
    raise AssertionError("it never came to its end")


@EVERY
def test_an_erasure_that_dies_anywhere_is_finished_by_the_next(streams: Streams, every: int) -> None:
    streams = patient(streams)
    for commands, topic in topics(streams, every):
        request_id, died = asked(topic), False
        try:
            erase(over(topic, streams.dying(commands)), request_id)
        except Died:
            died = True
            assert [key for key in keys(topic) if key != KEY] == [b"a", b"b", b"c"]
            assert erase(topic.services, request_id).is_done
        assert keys(topic) == [b"a", b"b", b"c"]
        assert receipts.verify(topic.services, request_id) == []
        if not died:
            assert commands > 20, "it was cut everywhere"
            (of_topic,) = Receipt.from_json(topic.services.ledger.receipt(request_id)).topics
            (log,) = of_topic.tables
            # The server's memory and files still have the key's bytes, and the receipt says so.
            assert "append-only file" in (log.remains or "") and "BGREWRITEAOF" in (log.remains or "")
            return


@EVERY
def test_what_another_removes_anywhere_meanwhile_is_a_generation_of_its_own(streams: Streams, every: int) -> None:
    for at, topic in topics(streams, every):
        key = topic.keys.stream(0)
        client = interrupted(streams, at, lambda key=key: streams.client.xdel(key, "4-0"))  # type: ignore[misc]  # of a lambda with a default mypy knows no type
        request_id = asked(topic)
        found = erase(over(topic, client), request_id)
        if code_of(found.error) == "LogReplaced":
            found = erase(over(topic, client), request_id)
        assert found.is_done, f"before command {at}: {found.why_not_done()}"
        if client.done <= at:
            return
        assert keys(topic) == [b"a", b"c"]
        commits = streams.logs().open(topic.name).head().commits
        generations = [commit.generation for commit in commits]
        assert generations == sorted(set(generations)), f"before command {at}: two states with one number"
        assert [commit.plan_id for commit in commits].count(None) == 1, f"before command {at}: what another removed is told"


@EVERY
def test_a_message_of_the_key_that_comes_anywhere_before_the_commit_goes_too(streams: Streams, every: int) -> None:
    """As of a writer that has waited until the lock lapsed."""
    for at, topic in topics(streams, every):

        def come(name: TopicName = topic.name) -> None:
            log = streams.logs().open(name)
            head = log.head()
            new = Message(partition=0, offset=4, append_time=Instant(AS_OF - 1), key=KEY, value=b"v", segment=0)
            log.append([new], replace(head, end_offsets={**head.end_offsets, 0: 5}))

        client = interrupted(streams, at, come)
        found = erase(over(topic, client), asked(topic))
        if client.done <= at or client.published:
            return
        assert found.is_done, f"before command {at}: {found.why_not_done()}"
        assert keys(topic) == [b"a", b"b", b"c"], f"before command {at}"
        assert streams.logs().open(topic.name).head().end_offsets == {0: 5, 1: 2}
