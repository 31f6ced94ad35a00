"""Topics with a past on a catalog of their own: real tables, written by PyIceberg, whose snapshots are as old as a test says. No Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from message_lifecycle.app import steps
from message_lifecycle.app.requests import delete_topic, reclaim_deleted
from message_lifecycle.app.services import Services, Stores
from message_lifecycle.ledger import Ledger, open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables, ledger_text
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewRemovals, IcebergViewReturns, IcebergViewStore
from message_lifecycle.stores.iceberg.copying import IcebergCopier
from message_lifecycle.stores.iceberg.deleted_reclaim import IcebergDeletedReclaimer
from message_lifecycle.stores.iceberg.documents.store import (
    IcebergChangeReturns,
    IcebergChanges,
    IcebergDocuments,
    IcebergSnapshotReturns,
    IcebergSnapshots,
)
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.layout import LEDGER, PARTITIONS_PROPERTY, STREAM_PROPERTY, TOPIC_PROPERTY, LogSummary, own_properties
from message_lifecycle.stores.iceberg.pointers import SqlPointers
from message_lifecycle.stores.iceberg.read import IcebergReader
from message_lifecycle.stores.iceberg.reclaiming import IcebergReclaimer
from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore
from message_lifecycle.stores.iceberg.topic_delete import IcebergDeleter, IcebergRestorer
from tests.histories import append, catalog_in, document_of, folder_of, names_below, rewrite_document
from tests.judges import PlainGateOfTables
from tests.ledgers import StandingClock

NAME = TopicName(stream="past", topic="t")
DAY = 86_400_000_000
DAY_MS = 86_400_000
# Before the time of day: no metadata are valid that are older than their own snapshots.
NOW = Instant(1_760_000_000_000_000)
_SCHEMA = pa.schema([pa.field("offset", pa.int64(), nullable=False)])


def _no_spark() -> NoReturn:
    raise AssertionError("reclaiming needs no Spark")


@dataclass(slots=True)
class Past:
    """One topic, its services, and the clock of its ledger."""

    catalog: SqlCatalog
    services: Services
    ledger: Ledger
    tables: Tables
    clock: StandingClock
    made: dict[str, Table] = field(default_factory=dict)

    @property
    def log(self) -> Table:
        return self.made[""].refresh()

    def table(self, kind: str = "", *, partitions: int = 1, location: str | None = None, **settings: Value) -> Table:
        """Make the topic's table, or another table of the topic. `location` None: from the table's name, as for the name's next table."""
        properties = {
            **own_properties(settings),
            STREAM_PROPERTY: NAME.stream,
            TOPIC_PROPERTY: NAME.topic,
            PARTITIONS_PROPERTY: str(partitions),
            "lifecycle._scratch": "true",
        }
        place = NAME.namespace, NAME.table(kind)
        self.made[kind] = self.catalog.create_table(place, schema=_SCHEMA, location=location, properties=properties)
        return self.made[kind]

    def append(self, *offsets: int, days_old: float, kind: str = "", **summary: str) -> int:
        """Append a snapshot of ours that is so many days old at NOW."""
        ours = {**LogSummary(end_offsets={0: max(offsets) + 1}).to_properties(), LEDGER: ledger_text(self.ledger.next_identity(NAME))}
        made = append(self.made[kind].refresh(), *offsets, **{**ours, **summary})
        self.age({made: days_old}, kind=kind)
        return made

    def foreign(self, *offsets: int, days_old: float, **summary: str) -> int:
        """Another writer's: it repeats nothing of ours."""
        made = append(self.made[""].refresh(), *offsets, **summary)
        self.age({made: days_old})
        return made

    def delete(self, condition: str, *, days_old: float) -> tuple[int, ...]:
        """Delete rows, and return the new snapshots. The delete rewrites the remaining rows of its files."""
        table = self.made[""].refresh()
        before = {snapshot.snapshot_id for snapshot in table.snapshots()}
        newest = table.current_snapshot()
        assert newest is not None and newest.summary is not None
        ours = {key: value for key, value in newest.summary.additional_properties.items() if key.startswith("lifecycle.")}
        table.delete(condition, snapshot_properties=ours)
        made = tuple(snapshot.snapshot_id for snapshot in table.refresh().snapshots() if snapshot.snapshot_id not in before)
        self.age(dict.fromkeys(made, days_old))
        return made

    def age(self, days: Mapping[int, float], *, kind: str = "") -> None:
        """Give snapshots, and the metadata of their commits, another time."""

        def change(document: dict[str, Any]) -> dict[str, Any]:
            times = {entry["snapshot-id"]: entry["timestamp-ms"] for entry in document["snapshots"]}
            times |= {snapshot_id: NOW // 1_000 - round(old * DAY_MS) for snapshot_id, old in days.items()}

            def timed(entry: dict[str, Any]) -> dict[str, Any]:
                return {**entry, "timestamp-ms": times.get(entry["snapshot-id"], entry["timestamp-ms"])}

            return {
                **document,
                "last-updated-ms": max(times.values()),
                "metadata-log": [{**entry, "timestamp-ms": min(times.values())} for entry in document["metadata-log"]],
                "snapshots": [timed(entry) for entry in document["snapshots"]],
                "snapshot-log": [timed(entry) for entry in document["snapshot-log"]],
            }

        rewrite_document(self.catalog, self.made[kind], change)

    def run(self, *, as_of: Instant = NOW, **options: Any) -> Outcome:
        return steps.run(self.services, NAME, as_of=as_of, work="reclaim", approver=_granting, **options)

    def delete_whole(self) -> Outcome:
        return delete_topic(self.services, NAME, by="ada", text="not needed")

    def undo(self, plan_id: str, *, as_of: Instant = NOW) -> Outcome:
        return steps.run(self.services, NAME, as_of=as_of, work=UndoPlan(plan_id=plan_id), approver=_granting)

    def reclaim_deleted(self, plan_id: str) -> Outcome:
        """The topic that the plan deleted, by the ledger's clock."""
        return reclaim_deleted(self.services, plan_id, as_of=NOW, approver=_granting)

    def snapshot_ids(self, kind: str = "") -> set[int]:
        return {entry["snapshot-id"] for entry in document_of(self.made[kind])["snapshots"]}

    def files(self, kind: str = "") -> set[str]:
        return names_below(folder_of(self.made[kind]))

    def touch_all(self, *, days_old: float) -> None:
        """Files as old as that at NOW."""
        at = (NOW - round(days_old * DAY)) * 1_000
        for table in self.made.values():
            for path in folder_of(table).rglob("*"):
                os.utime(path, ns=(at, at))


def _granting(_plan: object, _report: object) -> tuple[bool, str, str]:
    return True, "ann", "looked at it"


def past_in(folder: Path, *, steps: Callable[[str], None] | None = None, ledger_url: str = "sqlite://") -> Past:
    """Make a lake in the folder. The ledger's clock always says NOW."""
    io = {"py-io-impl": f"{LakeFileIO.__module__}.{LakeFileIO.__name__}"}
    catalog = catalog_in(folder)
    catalog.create_namespace_if_not_exists(NAME.namespace)
    tables = Tables()
    tables.__dict__["catalog"] = catalog_in(folder, **io)
    tables.__dict__["pointers"] = SqlPointers({"uri": str(tables.catalog.properties["uri"])}, tables.catalog.properties)
    clock = StandingClock(NOW)
    ledger = open_ledger(ledger_url, clock=clock)
    documents = IcebergDocuments(_no_spark, tables=tables)
    services = Services(
        topics=IcebergTopics(tables, scratch=True),
        reader=IcebergReader(tables),
        stores=Stores(
            backend="iceberg",
            log=IcebergStore(_no_spark, tables=tables),
            log_return=IcebergLogReturns(_no_spark, tables=tables),
            view=IcebergViewStore(_no_spark, tables=tables),
            view_removal=IcebergViewRemovals(_no_spark, tables=tables),
            view_return=IcebergViewReturns(_no_spark, tables=tables),
            snapshots=IcebergSnapshots(_no_spark, tables=tables),
            snapshots_return=IcebergSnapshotReturns(_no_spark, tables=tables),
            changes=IcebergChanges(_no_spark, tables=tables),
            changes_return=IcebergChangeReturns(_no_spark, tables=tables),
            forget=IcebergReclaimer(tables, steps=steps),
            delete_tables=IcebergDeleter(tables, scratch=True, steps=steps),
            restore_tables=IcebergRestorer(tables, scratch=True, steps=steps),
            drop_tables=IcebergDeletedReclaimer(tables, scratch=True, steps=steps),
        ),
        copier=IcebergCopier(_no_spark, own_lifetimes=lambda messages: messages, tables=tables),
        documents=documents,
        gate=PlainGateOfTables(),
        ledger=ledger,
        server={},
    )
    return Past(catalog, services, ledger, tables, clock)


def aged_past(folder: Path) -> Past:
    """Three appends, a delete that rewrites a file, all past the undo window of seven days; then two appends within it."""
    made = past_in(folder)
    made.table()
    for at, days in enumerate((40, 30, 20)):
        made.append(*range(at * 10, at * 10 + 10), days_old=days)
    made.delete("offset >= 12 and offset < 14", days_old=15)
    made.append(30, days_old=6)
    made.append(31, days_old=1)
    made.touch_all(days_old=10)
    return made
