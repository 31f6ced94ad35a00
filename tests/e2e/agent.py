"""Hands in the lake of the stack under test, in a process of its own: one request a line on standard input, one answer a line.

Apart, because a process has one Spark session and one set of addresses, and pytest's may already be another lake's.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lifecycle_local.stack import landing_place
from message_lifecycle.app import steps, tasks
from message_lifecycle.app.backends import OpenedBackend
from message_lifecycle.app.config import backends_file
from message_lifecycle.app.due import due
from message_lifecycle.app.ingest import ingest
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import copy_topic, create_topic
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.ports import MessageWriter
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import APPEND_TIME
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.session import spark_session, sql_table
from message_lifecycle.stores.iceberg.table_files import list_files
from tests.spark.lake import Lake, Rows


class Agent:
    """What the tests ask for, by name."""

    def __init__(self) -> None:
        self.session: SparkSession = spark_session("tests")
        self.lake = Lake(self.session, stream="e2e")
        self.services = wired()

    def renew(self) -> None:
        """A session keeps on disk what it has shuffled, keys and all, until it ends: end it, and begin another."""
        self.session.stop()
        self.__init__()  # type: ignore[misc]  # everything that held the old session is made anew

    def create(self, topic: str, **settings: Any) -> None:
        create_topic(self.services, TopicName.parse(topic), partitions=1, settings=settings)

    def append(self, topic: str, segments: list[dict[str, Any]]) -> None:
        """Segments of messages: `base` offset, `times` in seconds since 1970."""
        name = TopicName.parse(topic)
        made = [
            {"partition": 0, "offset": segment["base"] + at, "append_time": datetime.fromtimestamp(time, UTC)}
            | {"key": b"k%d" % at, "value": b"v" * 20, "headers": [], "size_bytes": 22}
            | {"segment": segment["base"]}
            for segment in segments
            for at, time in enumerate(segment["times"])
        ]
        schema = self.session.table(sql_table(name)).schema
        frame = self.session.createDataFrame([tuple(row.get(field) for field in schema.fieldNames()) for row in made], schema)
        writer = frame.coalesce(1).writeTo(sql_table(name)).option("use-table-distribution-and-ordering", "false")
        rows = [Rows(base=segment["base"], times=tuple(segment["times"])) for segment in segments]
        for key, value in self.lake._state_with(name, rows).to_properties().items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.option("fanout-enabled", "true").append()
        engine_of_process().forget(name)

    def fill(self, topic: str, count: int) -> None:
        """Messages in a topic of the backend."""
        name = TopicName.parse(topic)
        services = OpenedBackend(self.services, backends_file()[0]).services_for(name)
        writer: MessageWriter = services.stores.log  # type: ignore[assignment]  # a record log is one store for all
        writer.append(name, [NewMessage(append_time=None, key=b"k", value=b"v")] * count, policy_of(services, name))

    def offsets(self, topic: str) -> list[int]:
        return [message.offset for message in self.services.reader.messages(TopicName.parse(topic))]

    def ingest(self, topic: str, folder: str) -> dict[str, Any]:
        """The files of a folder, with the fields `k`, `v`, `h` and `at`; which rows were refused, by code."""
        taken = ingest(topic, landing_place(Path(folder)), key="k", value="v", headers="h", append_time="at")
        engine_of_process().forget(TopicName.parse(topic))
        return {"rows": taken.rows, "quarantined": taken.quarantined}

    def copy(self, topic: str) -> int:
        """How many messages the mirror or source has taken from its origin."""
        return copy_topic(self.services, TopicName.parse(topic)).messages

    def compact(self, topic: str) -> str:
        return self._run(topic, "compaction")

    def remove(self, topic: str, offsets: list[int]) -> str:
        """Single messages of partition 0; how the request ended."""
        return self._run(topic, RemoveMessages(positions=tuple((0, offset) for offset in offsets)))

    def _run(self, topic: str, work: Work) -> str:
        s = self.services
        return steps.run(s, TopicName.parse(topic), as_of=s.ledger.now(), approver=lambda *_: (True, "ada", "as asked"), work=work).name

    def look_for_markers(self, topic: str) -> bool:
        """As each run does: what other writers remove from now on is owed a marker. Whether any is owed now."""
        s = self.services
        (found,) = due(s, [TopicName.parse(topic)], as_of=s.ledger.now(), work="marker_generation", named=True)
        return found.due

    def delete_by_sql(self, topic: str, offset: int) -> None:
        """As another writer."""
        self.lake.delete(TopicName.parse(topic), f"offset = {offset}")

    def misstate(self, topic: str, segment: int, time: int) -> None:
        """Let the metadata of a segment's file say that its messages are of `time` (seconds since 1970), whatever they are.

        As a writer with a fault would: planning believes metadata, and it is the gate that must not.
        """
        table = engine_of_process().table(TopicName.parse(topic))
        jvm: Java = engine_of_process().jvm
        iceberg = jvm.org.apache.iceberg
        expressions = iceberg.expressions.Expressions
        found = table.newScan().includeColumnStats().filter(expressions.equal("segment", segment)).planFiles().iterator()
        file = found.next().file()
        bound = iceberg.types.Conversions.toByteBuffer(iceberg.types.Types.LongType.get(), time * 1_000_000)
        bounds = []
        for stated in (file.lowerBounds(), file.upperBounds()):
            changed = jvm.java.util.HashMap(stated)
            changed.put(APPEND_TIME, bound)
            bounds.append(changed)
        counts = file.recordCount(), file.columnSizes(), file.valueCounts(), file.nullValueCounts(), file.nanValueCounts()
        stated = iceberg.DataFiles.builder(table.spec()).copy(file).withMetrics(iceberg.Metrics(*counts, *bounds)).build()
        table.newOverwrite().deleteFile(file).addFile(stated).commit()
        engine_of_process().forget(TopicName.parse(topic))

    def look(self, topic: str) -> dict[str, Any]:
        """What a reader sees, by PyIceberg; `digest`: over the bytes of every file that the table's newest state names."""
        name = TopicName.parse(topic)
        table = Tables().load(name)
        paths = sorted(task.file.file_path for task in table.scan().plan_files())
        digest = hashlib.sha256()
        for path in paths:
            with table.io.new_input(path).open() as file:
                digest.update(file.read())
        snapshot = table.current_snapshot()
        return {
            "offsets": self.lake.offsets(name),
            "end_offset": self.services.reader.log(name).end_offsets.get(0),
            "snapshot": None if snapshot is None else snapshot.snapshot_id,
            "files": [path.rsplit("/", 1)[-1] for path in paths],
            "digest": digest.hexdigest(),
            "branches": sorted(table.refs()),
        }

    def files(self, topic: str) -> dict[str, int]:
        """All that its table has, and their bytes."""
        table = Tables().load(TopicName.parse(topic))
        return {file.name: file.size_bytes for file in list_files(table.io, table.location())}

    def history(self, topic: str) -> list[dict[str, Any]]:
        return [run for run in tasks.runs(limit=200) if str(run.topic) == topic]

    def outcomes(self, run: str) -> list[dict[str, Any]]:
        return tasks.outcomes_of_run(run=run)

    def idle(self, run: str) -> dict[str, Any] | None:
        """What was recorded of a run that found nothing due."""
        found = next((r for r in self.services.ledger.runs(limit=200) if r.run_id == run), None)
        return None if found is None else {"as_of": found.as_of, "detail": found.detail, "entries": len(found.entries)}

    def plan(self, plan_id: str) -> dict[str, Any]:
        return tasks.plan_page(plan_id)


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever else prints must not end up among the answers
    agent = Agent()
    print(json.dumps({"answer": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = {"answer": getattr(agent, asked["do"])(*asked["with"], **asked["and"])}
        except Exception as error:  # noqa: BLE001 - the asking test fails with it
            told = {"error": f"{code_of(error)}: {error}"}
        print(json.dumps(told, default=as_json), file=answers, flush=True)


if __name__ == "__main__":
    main()
