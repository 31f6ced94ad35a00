"""The topics that a compaction is measured on: each with its log as links to generated files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.compaction_data import START, Log
from message_lifecycle.app import seals, steps
from message_lifecycle.app.services import Services
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, GateReport
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg import view_file
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, LATEST, LIVE, LogSummary
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_files import delete_files, list_files
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path
from message_lifecycle.stores.iceberg.tasks import Store

AS_OF = Instant(START + 43_200_000_000)
"""After every message of the logs, and before the end of any message's own lifetime."""


@dataclass(slots=True)
class Topic:
    """One topic."""

    session: SparkSession
    services: Services
    name: TopicName
    partitions: int

    @classmethod
    def make(cls, session: SparkSession, services: Services, name: TopicName, partitions: int) -> Topic:
        settings: dict[str, Value] = {"message_expiry": 0, "cleanup_policy": "compact,delete"}
        services.topics.create(name, partitions=partitions, settings=settings, ledger=services.ledger.next_identity(name))
        return cls(session, services, name, partitions)

    def append(self, log: Log, folder: Path) -> None:
        """Links to the log's files, or in a store copies of them, in one commit that carries the log's state."""
        table, store = engine_of_process().table(self.name), Store.of(Tables().load(self.name))
        jvm: Java = engine_of_process().jvm
        iceberg = jvm.org.apache.iceberg
        metrics, update = iceberg.MetricsConfig.forTable(table), table.newAppend()
        for file in sorted(folder.glob("*/*.parquet")):
            place = f"partition={file.parent.name}/segment={file.stem}"
            to = f"{table.location()}/data/{place}/{file.name}"
            if is_local(to):
                local_path(to).parent.mkdir(parents=True)
                local_path(to).hardlink_to(file)
            else:
                with store.create(to) as target:
                    target.write(file.read_bytes())
            found = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(to), metrics)
            described = iceberg.DataFiles.builder(table.spec()).withPath(to).withFormat("parquet").withFileSizeInBytes(file.stat().st_size)
            update.appendFile(described.withPartitionPath(place).withMetrics(found).build())
        each = range(self.partitions)
        state = LogSummary(
            end_offsets=dict.fromkeys(each, log.first + log.rows), active=dict.fromkeys(each, ActiveSegment(base_offset=log.first))
        )
        for key, value in state.to_properties().items():
            update.set(key, value)
        update.commit()

    def compact(self) -> None:
        """Compact the present messages in this process. The plan counts as passed by the gate."""
        record = steps.plan(self.services, self.name, as_of=Instant(AS_OF - 1), work="compaction")
        steps.stage(self.services, record.plan.plan_id)
        self._pass_plan(record.plan.plan_id)
        steps.publish(self.services, record.plan.plan_id)
        outcome = steps.verify(self.services, record.plan.plan_id)
        assert outcome.name == "published", outcome

    def compacted(self) -> list[int]:
        """Return the count and the sum of the view's offsets."""
        return list(self.session.sql(f"SELECT count(*), sum(offset) FROM {sql_table(self.name, kind=COMPACTED)}").collect()[0])

    def drop(self) -> None:
        for kind in ("", COMPACTED):
            self._drop(kind)
        for kind in (LIVE, LATEST):
            view_file.drop((self.name.namespace, self.name.table(kind)))

    def _pass_plan(self, plan_id: str) -> None:
        record = self.services.ledger.record(plan_id)
        staged = record.staged
        assert staged is not None
        passed = Check(id="measured", says="judged in the measured runs", kind="rule", evaluated=True, passed=True, found="")
        report = GateReport(plan_id=plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(passed,))
        self.services.ledger.record_report(staged, seals.sealed_report(self.services, record, staged, report))

    def _drop(self, kind: str) -> None:
        tables = Tables()
        place = self.name.namespace, self.name.table(kind)
        location = tables.pointers.one(place)
        if location is not None:
            table = tables.at(place, location)
            folder = str(table.content["location"])
            io = tables.catalog.load_table(place).io
            tables.catalog.drop_table(place)
            delete_files(io, folder, [file.name for file in list_files(io, folder)])
