"""The SQL view of a compacted topic shows what the Python call reads: the view up to its horizons, then the log (CMP-6, CMP-8)."""

from __future__ import annotations

import pytest
from tests.spark.lake import SECOND, Lake

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = pytest.mark.spark
FAR = 4_000_000_000
"""Seconds: long after the machine's clock, so never due."""


class Topic:
    """A topic of two partitions, compacted by hand."""

    def __init__(self, lake: Lake, s: Services, topic: str, **settings: object) -> None:
        self.lake, self.s = lake, s
        self.name = TopicName.parse(f"{lake.stream}/{topic}")
        create_topic(s, self.name, partitions=2, settings=settings)

    def append(self, *messages: tuple[str, str, int], at: int | None = FAR, ttl: bytes | None = None) -> None:
        headers = () if ttl is None else (("Nats-TTL", ttl),)
        time = None if at is None else Instant(at * SECOND)
        made = [
            NewMessage(append_time=time, key=key.encode(), value=value.encode(), partition=partition, headers=headers)
            for key, value, partition in messages
        ]
        IcebergWriter(engine_of_process).append(self.name, made, policy_of(self.s, self.name))

    def run(self, work: Scheduled = "compaction") -> str:
        return steps.run(self.s, self.name, as_of=Instant((FAR + 1) * SECOND), work=work, approver=lambda *_: (True, "tester", "")).name

    def by_sql(self) -> list[tuple[int, int, str]]:
        rows = self.lake.session.sql(f"SELECT partition, offset, value FROM {sql_table(self.name, kind='latest')}").collect()
        return sorted((row["partition"], row["offset"], bytes(row["value"]).decode()) for row in rows)

    def by_call(self, at: int | None = None) -> list[tuple[int, int, str]]:
        shown = read_compacted(self.s, self.name, at=None if at is None else Instant(at * SECOND))
        return [(m.partition, m.offset, (m.value or b"").decode()) for m in shown]


@pytest.fixture
def s(lake: Lake) -> Services:
    return lake.services(lambda: Instant((FAR + 2) * SECOND))


def test_sql_reads_the_view_and_then_the_log(lake: Lake, s: Services) -> None:
    topic = Topic(lake, s, "latest")
    topic.append(("a", "a1", 0), ("b", "b1", 1), ("a", "a2", 0))
    assert topic.run() == "published"
    assert topic.by_sql() == topic.by_call() == [(0, 1, "a2"), (1, 0, "b1")]
    topic.append(("b", "b2", 1), ("c", "c1", 0))
    assert topic.by_sql() == topic.by_call() == [(0, 1, "a2"), (0, 2, "c1"), (1, 0, "b1"), (1, 1, "b2")]
    assert topic.run() == "published"
    assert topic.by_sql() == topic.by_call() == [(0, 1, "a2"), (0, 2, "c1"), (1, 1, "b2")]


def test_a_purge_of_the_log_leaves_no_hole(lake: Lake, s: Services) -> None:
    topic = Topic(lake, s, "purged", cleanup_policy="compact", max_removed_fraction=1.0)
    topic.append(("a", "a1", 0), ("b", "b1", 0))
    IcebergWriter(engine_of_process).seal(topic.name, 0)
    topic.append(("a", "a2", 0))
    assert topic.run() == "published"
    assert topic.run("purge_compacted") == "published"
    assert [m.offset for m in s.reader.messages(topic.name)] == [2]
    assert topic.by_sql() == topic.by_call() == [(0, 1, "b1"), (0, 2, "a2")]


def test_what_is_dead_hides_every_older_message_of_its_key(lake: Lake, s: Services) -> None:
    topic = Topic(lake, s, "dying", allow_msg_ttl=True)
    topic.append(("a", "a1", 0), ("b", "b1", 0))
    assert topic.run() == "published"
    topic.append(("a", "a2", 0), at=1, ttl=b"1s")
    assert topic.by_call() == [(0, 0, "a1"), (0, 1, "b1"), (0, 2, "a2")]
    assert topic.by_sql() == topic.by_call(at=FAR) == [(0, 1, "b1")]


def test_the_view_follows_the_topics_settings(lake: Lake, s: Services) -> None:
    topic = Topic(lake, s, "following")
    topic.append(("a", "a1", 0))
    topic.append(("b", "b1", 0), at=1)
    assert topic.run() == "published"
    assert topic.by_sql() == [(0, 0, "a1"), (0, 1, "b1")]
    alter_topic(s, topic.name, {"max_age_seconds": 60.0})
    assert topic.by_sql() == [(0, 0, "a1")]
