"""Tables and the memory store come to one view of the same generated logs (P6, P9, CMP-4, CMP-5, CMP-12)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession
from tests.compacted import HEADERS, KEYS, TIMES, TTLS, VALUES, Log, Topic
from tests.effort import sample
from tests.logs import AS_OF, SECOND

from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.app.wiring import iceberg_world, memory_world
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

PARTITIONS = 4
"""Each is a log of its own."""
RUNS = (AS_OF, Instant(AS_OF + 2 * SECOND), Instant(AS_OF + 9 * SECOND))
BATCHES = (30, 3, 3)
"""Messages per partition: after the first, views are larger than tails, so that they are marked and not rewritten."""
TOPICS: Mapping[str, Mapping[str, Value]] = {
    "marked": {"message_expiry": 25, "compaction_rewrite_fraction": 1.0},
    "tombstones kept": {"max_age_seconds": 15.0, "delete_retention": 4.0, "empty_is_value": True, "compaction_rewrite_fraction": 1.0},
    "rewritten": {"max_age_seconds": 15.0, "ttl_overrides_age": True, "compaction_rewrite_fraction": 0.0},
    "by event time": {"winner": "event_time", "delete_retention": 4.0, "message_expiry": 25},
    "by event time, then by offset": {"winner": "event_time", "delete_retention": 4.0, "message_expiry": 25},
}
EVENT_TIMES = (None, *map(Instant, (*range(6), -INT64_MAX, INT64_MAX)))


def batch_of(chance: random.Random, rows: int) -> list[NewMessage]:
    def message(partition: int) -> NewMessage:
        ttl = chance.choice(TTLS)
        return NewMessage(
            partition=partition,
            append_time=chance.choice(TIMES),
            event_time=chance.choice(EVENT_TIMES),
            key=chance.choice([*KEYS, *(b"k%d" % key for key in range(30))]),
            value=chance.choice(VALUES),
            headers=(*chance.choice(HEADERS), *((("Nats-TTL", ttl),) if ttl is not None else ())),
        )

    return [message(partition) for partition in range(PARTITIONS) for _ in range(rows)]


@pytest.fixture
def worlds(spark: SparkSession) -> Iterator[tuple[World, World]]:
    made = memory_world({}), iceberg_world({})
    yield made
    for world in made:
        world.close()


def compared(memory: Topic, tables: Topic, as_of: Instant) -> Outcome:
    """One run on both."""
    wanted = memory.run(as_of)
    found = tables.run(as_of)
    assert found.name in ("published", "no_op"), found.detail
    assert tables.view() == memory.view()
    assert tables.horizons == memory.horizons
    assert dict(found.removed) == dict(wanted.removed)
    assert (found.rows_in, found.rows_kept) == (wanted.rows_in, wanted.rows_kept)
    of_tables, of_memory = (topic.world.services.stores.view.view(topic.name) for topic in (tables, memory))
    assert of_tables is not None
    assert of_memory is not None
    assert of_tables.rows == of_memory.rows
    if of_memory.due_at is not None:  # never later than the truth
        assert of_tables.due_at is not None
        assert of_tables.due_at <= of_memory.due_at
    return found


@pytest.mark.parametrize("kind", sample(TOPICS, "marked", "by event time"))
def test_tables_and_the_memory_store_come_to_one_view(worlds: tuple[World, World], kind: str) -> None:
    chance = random.Random(kind)
    own: dict[str, Value] = {"allow_msg_ttl": True, "max_removed_fraction": 1.0, "segment_size_bytes": 400}
    log = Log(settings={**own, **TOPICS[kind]}, batches=(), partitions=PARTITIONS)
    memory, tables = (Topic(world, log) for world in worlds)
    vectors = 0
    for turn, (as_of, rows) in enumerate(zip(RUNS, BATCHES, strict=True)):
        batch = batch_of(chance, rows)
        before = set(memory.ever)
        for topic in (memory, tables):
            topic.append(batch)
        new = sorted(set(memory.ever) - before)
        gone = chance.sample(new, len(new) // 6)
        for topic in (memory, tables):
            topic.world.writer.foreign_delete(topic.name, gone)
            if turn == 2:
                back: dict[str, Value] = {"winner": "offset"} if kind.endswith("by offset") else {}
                alter_topic(topic.world.services, topic.name, {"retain_null_key": False, **back})
        compared(memory, tables, as_of)
        state = tables.world.services.stores.view.view(tables.name)
        vectors = max(vectors, 0 if state is None else state.hidden_rows)
        again = tables.run(as_of)
        assert again.name == "no_op", again.removed  # P1, CMP-5
    assert vectors or kind.startswith("by event time")
