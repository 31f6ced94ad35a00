"""The topic that a compaction is measured on: its log as links to generated files, and its view put back after every run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from bench.compaction_data import START, Log
from bench.process_tree import Cost, cost_of_module
from message_lifecycle.app import seals, steps, witness
from message_lifecycle.app.services import Services
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, GateReport
from message_lifecycle.model.plan import Plan
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

AS_OF = START + 43_200_000_000
"""After every message of the logs, and before the end of any's own lifetime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The costs of one compaction.

    Attributes:
        compaction: From process start to commit, without the gate. The CPU time includes the end of the process.
        gate: The process of the gate.
        made: The count and the sum of the view's offsets.
    """

    compaction: Cost
    gate: Cost
    made: list[int]

    @property
    def whole(self) -> Cost:
        """The cost that a user waits for: the two processes one after the other."""
        run, gate = self.compaction, self.gate
        return replace(run, wall=run.wall + gate.wall, cpu=run.cpu + gate.cpu, memory_mb=max(run.memory_mb, gate.memory_mb))


def judged(run: str) -> Cost:
    """Let the gate judge the run's plan in a process of its own."""
    cost = cost_of_module("bench.compaction_gate", run)
    assert cost.said == 0, cost.said
    return cost


@dataclass(slots=True)
class Measured:
    """One topic. `runs`: made so far; each has an `as_of` of its own, so that each has a plan of its own."""

    session: SparkSession
    services: Services
    name: TopicName
    partitions: int
    runs: int = 0
    ends: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, session: SparkSession, services: Services, name: TopicName, partitions: int) -> Measured:
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
        record = steps.plan(self.services, self.name, as_of=self._next(), work="compaction")
        steps.stage(self.services, record.plan.plan_id)
        self._pass_plan(record.plan.plan_id)
        steps.publish(self.services, record.plan.plan_id)
        outcome = steps.verify(self.services, record.plan.plan_id)
        assert outcome.name == "published", outcome

    def measured(self, scratch: Path) -> Run:
        """Measure a run and its gate, each in a fresh process, and restore the view after them."""
        before = self._head()
        with _answering(scratch) as (asked, answered, judged):
            cost = cost_of_module("bench.compaction_run", str(self.name), format_instant(self._next()), str(asked), str(answered))
        record = self.services.ledger.open_plan(self.name)
        assert record is not None and record.staged is not None and record.staged.view is not None, "nothing was staged"
        after = self._head()
        assert after not in (None, before), "nothing was published"
        engine_of_process().forget(self.name, kind=COMPACTED)
        made = self.session.sql(f"SELECT count(*), sum(offset) FROM {sql_table(self.name, kind=COMPACTED)} VERSION AS OF {after}").collect()
        self._put_back(record.plan, before)
        return Run(compaction=replace(cost, wall=cost.said["until committed"]), gate=judged[0], made=list(made[0]))

    def drop(self) -> None:
        for kind in ("", COMPACTED):
            self._drop(kind)
        for kind in (LIVE, LATEST):
            view_file.drop((self.name.namespace, self.name.table(kind)))

    def _next(self) -> Instant:
        self.runs += 1
        return Instant(AS_OF + self.runs)

    def _pass_plan(self, plan_id: str) -> None:
        record = self.services.ledger.record(plan_id)
        staged = record.staged
        assert staged is not None
        passed = Check(id="measured", says="judged in the measured runs", kind="rule", evaluated=True, passed=True, found="")
        report = GateReport(plan_id=plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(passed,))
        self.services.ledger.record_report(staged, seals.sealed_report(self.services, record, staged, report))

    def _head(self) -> int | None:
        view = self.services.stores.view.view(self.name)
        return None if view is None else view.snapshot_id

    def _put_back(self, plan: Plan, before: int | None) -> None:
        steps.close(self.services, plan, "superseded", "it was measured")
        if before is None:
            self._drop(COMPACTED)
            return
        engine_of_process().table(self.name, kind=COMPACTED).manageSnapshots().setCurrentSnapshot(before).commit()
        # As another engine's rollback it stops the topic until a person accepts it; the next run begins from there.
        witness.repair(self.services, self.name, by="bench", text="it was measured", accept_rollback=True)
        assert self._head() is not None

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


@contextmanager
def _answering(scratch: Path) -> Iterator[tuple[Path, Path, list[Cost]]]:
    """Make two pipes, (asked, answered), and a thread at their other ends that lets the gate judge one run. The list gets its cost."""
    asked, answered, found = scratch / "asked", scratch / "answered", list[Cost]()
    for pipe in (asked, answered):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)

    def answer() -> None:
        run = asked.read_text(encoding="utf-8").strip()
        if run:
            try:
                found.append(judged(run))
            finally:  # or who asked would wait for ever
                answered.write_text("judged" if found else "failed", encoding="utf-8")

    listening = threading.Thread(target=answer)
    listening.start()
    try:
        yield asked, answered, found
    finally:
        if listening.is_alive() and not found:
            asked.write_text("\n", encoding="utf-8")
        listening.join()
