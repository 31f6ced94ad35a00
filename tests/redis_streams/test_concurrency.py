"""Several processes at one topic: what one appends no other loses, and a reader has one state of it."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from dataclasses import replace

import pytest

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.stores.redis_streams.log import PAGE, RedisLogs, Server
from tests.errors import raises
from tests.redis_streams.streams import AS_OF, CLICKS, Streams

pytestmark = pytest.mark.redis

ROUNDS = 60
KEPT = 10


def appending(url: str, password: str, prefix: str) -> None:
    server = Server(name="tests", url=url, password=lambda: password)
    with closing(server.connect()) as client:
        log = RedisLogs(server, prefix=prefix, client=client).open(CLICKS)
        for _ in range(ROUNDS):
            with log.lock():
                head = log.head()
                end = head.end_offsets[0]
                new = [Message(partition=0, offset=end + at, append_time=Instant(1), key=b"k", value=b"v", segment=0) for at in (0, 1)]
                log.append(new, replace(head, end_offsets={0: end + 2}))


def test_appends_of_others_and_retention_lose_nothing(streams: Streams, server: Server) -> None:
    topic = streams.topic(max_records=KEPT)
    spawn = multiprocessing.get_context("spawn")
    arguments = (server.url, server.password(), streams.prefix)
    writers = [spawn.Process(target=appending, args=arguments) for _ in range(2)]
    for writer in writers:
        writer.start()
    removed, runs = 0, 0
    while any(writer.is_alive() for writer in writers) or runs < 2:
        outcome = topic.run(as_of=Instant(AS_OF + runs))
        assert outcome.name in ("published", "no_op"), outcome.detail
        removed, runs = removed + outcome.removed_rows, runs + 1
        found = topic.offsets()
        assert found == list(range(found[0], found[0] + len(found)) if found else ()), "a reader has one state of the log"
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    removed += topic.run(as_of=Instant(AS_OF + runs)).removed_rows
    total = 2 * 2 * ROUNDS
    assert topic.offsets() == list(range(total - KEPT, total))
    assert removed == total - KEPT


def test_who_reads_a_long_log_under_the_lock_keeps_it(streams: Streams) -> None:
    streams = replace(streams, lock_seconds=60)
    topic = streams.topic()
    topic.append(*range(1, 3 * PAGE))
    log, nearly_over_ms, left = streams.logs().open(topic.name), 20_000, list[int]()
    with log.lock():
        for number, _ in enumerate(log.scan()[1]):
            if number % PAGE == 0:
                left.append(streams.client.pttl(topic.keys.lock))
                streams.client.pexpire(topic.keys.lock, nearly_over_ms)  # as after a slow page
        assert len(left) == 3 and min(left) > nearly_over_ms, "each page begins with a lock as long as the first"
        assert streams.client.exists(topic.keys.lock)
    assert not streams.client.exists(topic.keys.lock)


def test_a_reader_that_others_remove_from_under_is_told(streams: Streams) -> None:
    topic = streams.topic(max_records=1)
    topic.append(*range(1, 2_501))
    reading = topic.services.reader.messages(topic.name)
    assert next(reading).offset == 0
    topic.run()
    with raises("LogReplaced"):
        list(reading)
