"""The kernel, Spark SQL and the memory store come to one view of the same generated logs (P6, P9, CMP-4, CMP-5, CMP-12)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from tests.compacted import HEADERS, KEYS, TIMES, TTLS, VALUES, Log, Topic
from tests.effort import sample
from tests.logs import AS_OF, SECOND

from message_lifecycle.app.operations.registry import preview, suite_of
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.app.wiring import iceberg_world, memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, ViewRow, ViewState
from message_lifecycle.model.outcome import Outcome, Staged
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
}


def batch_of(chance: random.Random, rows: int) -> list[NewMessage]:
    def message(partition: int) -> NewMessage:
        ttl = chance.choice(TTLS)
        return NewMessage(
            partition=partition,
            append_time=chance.choice(TIMES),
            event_time=chance.choice([None, *map(Instant, range(8))]),
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


def by_engine(topic: Topic, as_of: Instant, engine: str) -> tuple[Staged, list[ViewRow]]:
    """What the engine stages, and the gate lets pass; nobody sees it, and nothing of it is left."""
    s = replace(topic.world.services, server={"compaction_engine": engine})
    topic.world.set_now(as_of)
    plan = preview(s, topic.name, as_of=as_of, work="compaction")
    staged = s.stores.view.stage(plan)
    if plan.is_empty or staged.snapshot_id is None:
        return staged, topic.view()
    policy = policy_of(s, topic.name)
    report = s.gate.judge(plan, staged, suite_of(plan, staged, policy), s.stores.view.evidence(plan, staged, policy))
    assert report.blocking == ()
    at = ViewState(
        table_uuid="", snapshot_id=staged.snapshot_id, horizons={}, rows=0, hidden_rows=0, size_bytes=0, due_at=None, settings_hash=""
    )
    rows = list(s.stores.view.view_rows(topic.name, at))
    s.stores.view.discard(plan)
    return staged, rows


def compared(memory: Topic, tables: Topic, as_of: Instant) -> Outcome:
    """One run on both, by both engines on tables."""
    wanted = memory.run(as_of)
    staged, rows = by_engine(tables, as_of, "sql")
    assert rows == memory.view()
    if staged.view is not None:
        assert staged.view.engine == "sql"
        assert dict(staged.view.removed) == dict(wanted.removed)
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


@pytest.mark.parametrize("kind", sample(TOPICS, "marked"))
def test_engines_and_the_memory_store_come_to_one_view(worlds: tuple[World, World], kind: str) -> None:
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
                alter_topic(topic.world.services, topic.name, {"retain_null_key": False})
        compared(memory, tables, as_of)
        state = tables.world.services.stores.view.view(tables.name)
        vectors = max(vectors, 0 if state is None else state.hidden_rows)
        again = tables.run(as_of)
        assert again.name == "no_op", again.removed  # P1, CMP-5
    assert bool(vectors) is (kind != "by event time")
