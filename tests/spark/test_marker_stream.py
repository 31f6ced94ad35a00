"""A stream that passes over deletions still gets every message, and every marker that came with a deletion, exactly once (MRK-4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ledgers import StandingClock
from tests.spark.lake import SECOND, Lake

from message_lifecycle.app import steps
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import REASON_HEADER, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = pytest.mark.spark
MINUTE = 60 * SECOND


def granted(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
    return True, "tester", "as expected"


class Stream:
    """A consumer of a topic's table by Spark's structured streaming; each `advance` is a process that goes on where the last ended."""

    def __init__(self, lake: Lake, name: TopicName, place: Path) -> None:
        self._lake, self._name, self._place = lake, name, place

    def advance(self) -> None:
        frame = (
            self._lake.session.readStream.format("iceberg")
            .option("streaming-skip-delete-snapshots", "true")
            .load(sql_table(self._name).replace("`", ""))
        )
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self._place / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(self._place / "got"))
        query.awaitTermination()

    def got(self) -> list[tuple[int, int, bool]]:
        """(partition, offset, whether it is a marker), with repetitions."""
        found = self._lake.session.read.parquet(str(self._place / "got")).select("partition", "offset", "headers").collect()
        return sorted((row["partition"], row["offset"], any(h["name"] == REASON_HEADER for h in row["headers"])) for row in found)


def test_every_message_and_every_marker_arrives_once(lake: Lake, tmp_path: Path) -> None:
    clock = StandingClock()
    s = lake.services(clock)
    name = TopicName.parse(f"{lake.stream}/streamed")
    create_topic(s, name, partitions=2, settings={"subject_delete_marker_ttl": 90, "max_removed_fraction": 1.0})
    writer, stream = IcebergWriter(engine_of_process), Stream(lake, name, tmp_path)
    told, markers, removed = 0, [], 0

    def append(minute: int, *keys: str, partition: int = 0, ttl: bytes | None = b"60s") -> None:
        nonlocal told
        headers = () if ttl is None else (("Nats-TTL", ttl),)
        at = Instant(minute * MINUTE)
        made = [NewMessage(append_time=at, key=key.encode(), value=b"v", partition=partition, headers=headers) for key in keys]
        told += len(writer.append(name, made, policy_of(s, name)))

    def run(minute: int) -> None:
        nonlocal removed
        clock.now = Instant(minute * MINUTE)
        outcome = steps.run(s, name, as_of=Instant(minute * MINUTE), approver=granted)
        assert outcome.name == "published", outcome
        markers.append(outcome.markers)
        removed += sum(count for _, count in outcome.removed)

    append(1, "a", "b", "c")
    append(1, "x", "y", partition=1)
    append(1, "kept", ttl=None)
    run(3)  # all of a, b, c, x and y: five markers
    stream.advance()
    append(4, "a", "d")
    append(4, "kept", ttl=None)
    run(6)  # a, d and five markers, which leave none; two markers
    append(6, "e", partition=1)
    append(7, "b")
    stream.advance()
    run(9)  # nothing between two runs but the stream's reading
    run(12)  # markers alone go
    stream.advance()
    stream.advance()  # nothing new

    got = stream.got()
    ends = lake.log(name).end_offsets
    assert [place for *place, _ in got] == [[partition, offset] for partition in (0, 1) for offset in range(ends[partition])]
    assert markers == [5, 2, 2, 0]
    assert sum(is_marker for *_, is_marker in got) == sum(markers)
    assert len(got) == told + sum(markers)
    assert removed == told + sum(markers) - 2  # all but the two that stay, which the stream got as well
