"""Past its `max_compaction_lag`, a topic on tables comes to what the memory store comes to, whose rules hold one by one (CMP-9, P3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from tests.compacted import Log, Topic
from tests.effort import sample
from tests.logs import AS_OF, SECOND
from tests.spark.test_compaction_stores import PARTITIONS, batch_of

from message_lifecycle.app.scenario import World
from message_lifecycle.app.wiring import iceberg_world, memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

EARLY = Instant(AS_OF - 8 * SECOND)
LATER = Instant(AS_OF + 9 * SECOND)
TOPICS: Mapping[str, Mapping[str, Value]] = {
    "segments and their own TTL": {"message_expiry": 10, "segment_size_bytes": 60},
    "single messages": {"max_age_seconds": 9.0, "segment_size_bytes": 400},
    "tombstones kept": {"max_age_seconds": 12.0, "delete_retention": 4.0, "segment_size_bytes": 400},
}


@pytest.fixture
def worlds(spark: SparkSession) -> Iterator[tuple[World, World]]:
    made = memory_world({}), iceberg_world({})
    yield made
    for world in made:
        world.close()


def past(topic: Topic) -> Mapping[int, Instant]:
    s = topic.world.services
    view = s.stores.view.view(topic.name)
    assert view is not None
    return s.stores.view.oldest_past(s.reader.log(topic.name), view)


def told(outcome: Outcome) -> tuple[object, ...]:
    held = Counter[tuple[object, ...]]()  # tables tell of each file, memory of each segment
    for entry in outcome.held:
        held[entry.partition, entry.first_base, entry.holder, entry.detail, entry.reason] += entry.rows
    assert outcome.name in ("published", "no_op"), outcome.detail
    return (
        outcome.name,
        dict(outcome.removed),
        outcome.rows_kept,
        held,
        [text.replace(str(outcome.topic), "TOPIC") for text in outcome.warnings],
    )


def log_of(topic: Topic) -> list[Message]:
    return list(topic.world.services.reader.messages(topic.name))


@pytest.mark.parametrize("kind", sample(TOPICS, "segments and their own TTL"))
def test_tables_come_to_what_memory_comes_to(worlds: tuple[World, World], kind: str) -> None:
    chance = random.Random(kind)
    settings: dict[str, Value] = {"allow_msg_ttl": True, "max_removed_fraction": 1.0, "max_compaction_lag": 3, **TOPICS[kind]}
    log = Log(settings=settings, batches=(), partitions=PARTITIONS)
    memory, tables = topics = [Topic(world, log) for world in worlds]
    early = [replace(message, append_time=EARLY, headers=()) for message in batch_of(chance, 30)]
    first, second = [*early, *batch_of(chance, 6)], batch_of(chance, 6)
    for topic in topics:
        topic.append(first)
        # What is later than this, and all behind it, waits past the horizon, in the same files as what is compacted.
        assert topic.run(Instant(EARLY + 4 * SECOND)).name == "published"
    lost = [(m.partition, m.offset) for m in chance.sample(memory.past, 3)]
    for topic in topics:
        topic.world.writer.foreign_delete(topic.name, lost)
        topic.append(second)
    view, taken = memory.view(), set(log_of(memory))
    for as_of in (AS_OF, LATER):
        assert past(tables) == past(memory)
        assert told(tables.run(as_of, "message_cleaner")) == told(memory.run(as_of, "message_cleaner"))
        assert log_of(tables) == log_of(memory)
        assert tables.view() == memory.view()
        assert told(tables.run(as_of, "message_cleaner"))[0] == "no_op"
    taken -= set(log_of(memory))
    assert [m for m in taken if m in memory.past], "else nothing was tried"
    assert [row for row in view if row not in memory.view()], "else nothing was tried"
    for topic in topics:
        topic.run(LATER)
    assert tables.view() == memory.view()
