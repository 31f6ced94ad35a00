"""A lake of real tables without Java, in states that another program can bring a topic into."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import update

from message_lifecycle.app.services import Services, Stores
from message_lifecycle.ledger import Ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg import layout, shapes
from message_lifecycle.stores.iceberg.catalog import UNDO_PROPERTY, IcebergTopics, Tables, ledger_text
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewRemovals, IcebergViewReturns, IcebergViewStore
from message_lifecycle.stores.iceberg.compaction.view_table import DUE_AT, HORIZONS, MEMORIES, RAW_PROPERTY, SCHEMA
from message_lifecycle.stores.iceberg.copying import IcebergCopier
from message_lifecycle.stores.iceberg.deleted_reclaim import IcebergDeletedReclaimer
from message_lifecycle.stores.iceberg.documents.store import (
    IcebergChangeReturns,
    IcebergChanges,
    IcebergDocuments,
    IcebergSnapshotReturns,
    IcebergSnapshots,
)
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.layout import LogSummary, own_properties
from message_lifecycle.stores.iceberg.pointers import SqlPointers
from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine, IcebergQuarantineReturns
from message_lifecycle.stores.iceberg.read import IcebergReader
from message_lifecycle.stores.iceberg.reclaiming import RECLAIMED, IcebergReclaimer
from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.topic_delete import IcebergDeleter, IcebergRestorer
from tests.judges import PlainGateOfTables

SECOND = 1_000_000
Document = dict[str, Any]
Change = Callable[[Document], Document]


def no_engine() -> NoReturn:
    raise AssertionError("a look needs no Java and no Spark")


@dataclass(slots=True)
class Lake:
    """Topics that PyIceberg wrote into a catalog of this machine."""

    catalog: SqlCatalog
    services: Services

    def topic(self, name: TopicName, *, rows: int = 3, **settings: Value) -> Table:
        """A topic of one partition with messages of ours."""
        properties = {
            **own_properties(settings),
            layout.STREAM_PROPERTY: name.stream,
            layout.TOPIC_PROPERTY: name.topic,
            layout.PARTITIONS_PROPERTY: "1",
            layout.SCRATCH_PROPERTY: "true",
            UNDO_PROPERTY: "604800000",
        }
        self.catalog.create_namespace_if_not_exists(name.namespace)
        shape = shapes.MESSAGES_SHAPE
        place = name.namespace, name.table()
        table = self.catalog.create_table(place, schema=shape.schema, partition_spec=shape.spec, properties=properties)
        state = LogSummary(end_offsets={0: rows}, active={0: layout.ActiveSegment(base_offset=0, rows=rows)})
        self.append(name, *range(rows), **state.to_properties(), **{layout.LEDGER: ledger_text(self.services.ledger.next_identity(name))})
        self.services.ledger.set_accepted(name, {})
        return table.refresh()

    def view(self, name: TopicName, raw: Table) -> Table:
        """Its compacted view, which has seen nothing yet."""
        place = name.namespace, name.table(layout.COMPACTED)
        properties = {
            layout.STREAM_PROPERTY: name.stream,
            layout.TOPIC_PROPERTY: name.topic,
            layout.SCRATCH_PROPERTY: "true",
            RAW_PROPERTY: str(raw.metadata.table_uuid),
        }
        table = self.catalog.create_table(place, schema=SCHEMA, properties=properties)
        said = {HORIZONS: '{"0": 0}', DUE_AT: "5", MEMORIES: "0", layout.COUNTS: "{}"}
        table.append(_rows(table.schema().as_arrow(), 0), snapshot_properties=said)
        return table.refresh()

    def append(self, name: TopicName, *offsets: int, kind: str = "", **summary: str) -> None:
        table = self.catalog.load_table((name.namespace, name.table(kind)))
        table.append(_rows(table.schema().as_arrow(), *offsets), snapshot_properties=summary)

    def table(self, name: TopicName, kind: str = "") -> Table:
        return self.catalog.load_table((name.namespace, name.table(kind)))

    def rewrite(self, name: TopicName, change: Change, *, kind: str = "") -> None:
        """Put what `change` makes of the table's metadata in their place."""
        table = self.table(name, kind)
        content = change(json.loads(local_path(table.metadata_location).read_text()))
        new = f"{table.location()}/metadata/00099-{uuid.uuid4()}.metadata.json"
        local_path(new).write_text(json.dumps(content))
        with self.catalog.engine.begin() as connection:
            statement = update(IcebergTables).where(IcebergTables.metadata_location == table.metadata_location)
            assert connection.execute(statement.values(metadata_location=new)).rowcount == 1


def _rows(schema: pa.Schema, *offsets: int) -> pa.Table:
    values: dict[str, object] = {
        "partition": 0,
        "segment": 0,
        "append_time": SECOND,
        "key": b"k",
        "value": b"v",
        "size_bytes": 2,
        "headers": [],
    }
    made = {
        field.name: pa.array([offset if field.name == "offset" else values.get(field.name) for offset in offsets], field.type)
        for field in schema
    }
    return pa.table(made, schema=schema)


def lake_in(folder: Path, ledger: Ledger) -> Lake:
    uri, warehouse = f"sqlite:///{folder}/catalog.db", str(folder / "warehouse")
    own = {"uri": uri, "warehouse": warehouse}
    io = {"py-io-impl": f"{LakeFileIO.__module__}.{LakeFileIO.__name__}"}
    tables = Tables()
    tables.__dict__["catalog"] = SqlCatalog("lake", **own, **io)
    tables.__dict__["pointers"] = SqlPointers(own, {**own, **io})
    services = Services(
        topics=IcebergTopics(tables, scratch=True),
        reader=IcebergReader(tables),
        stores=Stores(
            backend="iceberg",
            log=IcebergStore(no_engine, tables=tables),
            log_return=IcebergLogReturns(no_engine, tables=tables),
            view=IcebergViewStore(no_engine, tables=tables),
            view_removal=IcebergViewRemovals(no_engine, tables=tables),
            view_return=IcebergViewReturns(no_engine, tables=tables),
            snapshots=IcebergSnapshots(no_engine, tables=tables),
            snapshots_return=IcebergSnapshotReturns(no_engine, tables=tables),
            changes=IcebergChanges(no_engine, tables=tables),
            changes_return=IcebergChangeReturns(no_engine, tables=tables),
            quarantine=IcebergQuarantine(no_engine, tables=tables),
            quarantine_return=IcebergQuarantineReturns(no_engine, tables=tables),
            rewrite=IcebergEraser(tables, undoable=lambda *_: False, engine=no_engine),
            forget=IcebergReclaimer(tables),
            delete_tables=IcebergDeleter(tables, scratch=True),
            restore_tables=IcebergRestorer(tables, scratch=True),
            drop_tables=IcebergDeletedReclaimer(tables, scratch=True),
        ),
        copier=IcebergCopier(no_engine, own_lifetimes=lambda messages: messages, tables=tables),
        documents=IcebergDocuments(no_engine, tables=tables),
        gate=PlainGateOfTables(),
        ledger=ledger,
        server={},
    )
    return Lake(SqlCatalog("lake", **own), services)


# States, by name. A state is written to the topic's newest metadata, or to its files.


BROKEN = ("{", "", "null", "[]", '"x"', "-5", '{"0": "many"}', '{"0": 1.5}', '{"0": -7}', '{"0": 1e400}', '{"0": 1180591620717411303424}',
          '{"x": 1}', '{"-1": 1}', '{"99999999999": 1}', '{"0": null}', '{"0": []}', '{"0": {"rows": 1}}', "[" * 5_000)  # fmt: skip
"""Values that no key of ours ever has. In keys with counts, any text is a valid name."""
OFFSET_KEYS = (layout.END_OFFSETS, layout.ACTIVE_SEGMENTS, layout.COPIED, layout.PURGED_THROUGH)
NO_NUMBERS = ("", "x", "1.5", "-1", "1180591620717411303424", "{}", "null", "true")
PROPERTIES = (layout.PARTITIONS_PROPERTY, layout.ROLE_PROPERTY, layout.STREAM_PROPERTY, layout.TOPIC_PROPERTY, UNDO_PROPERTY, RECLAIMED,
              layout.DELETED_BY, layout.ERASING, "lifecycle.message_expiry", "lifecycle.max_records", "lifecycle.cleanup_policy")  # fmt: skip
"""Of the topic's table."""


def summary_with(key: str, value: str | None) -> Change:
    """In the newest snapshot; None takes the key away."""

    def change(document: Document) -> Document:
        for snapshot in document["snapshots"]:
            if snapshot["snapshot-id"] == document["current-snapshot-id"]:
                snapshot["summary"].pop(key, None)
                snapshot["summary"] |= {} if value is None else {key: value}
        return document

    return change


def property_with(key: str, value: object) -> Change:
    def change(document: Document) -> Document:
        kept = {name: text for name, text in document["properties"].items() if name != key}
        return {**document, "properties": kept if value is None else {**kept, key: value}}

    return change


def with_part(name: str, value: object) -> Change:
    return lambda document: {**document, name: value}


def _parents_in_a_ring(document: Document) -> Document:
    for snapshot in document["snapshots"]:
        snapshot["parent-snapshot-id"] = snapshot["snapshot-id"]
    return document


def values() -> Iterator[tuple[str, Change]]:
    """Yield each of our keys with every value that we never write."""
    for key in OFFSET_KEYS:
        for value in BROKEN:
            yield f"{key} {value[:30]}", summary_with(key, value)
    for value in ("", "x", "u:", "u:x", "u:-1", "u:1.5"):
        yield f"{layout.LEDGER} {value}", summary_with(layout.LEDGER, value)
    for value in ("", "7", "7 x", "7 8 9"):
        yield f"{layout.STAGED_AS} {value}", summary_with(layout.STAGED_AS, value)
    for key in PROPERTIES:
        for value in (*NO_NUMBERS, None):
            yield f"{key} {value}", property_with(key, value)


STRUCTURES: dict[str, Change] = {
    "ref of an unknown snapshot": lambda d: {**d, "refs": {**d["refs"], "theirs": {"snapshot-id": 5, "type": "branch"}}},
    "ref without a snapshot": lambda d: {**d, "refs": {**d["refs"], "theirs": {"type": "tag"}}},
    "ref of an unknown type": lambda d: {**d, "refs": {**d["refs"], "theirs": {"snapshot-id": d["current-snapshot-id"], "type": "knot"}}},
    "ref with ages that are none": lambda d: {
        **d, "refs": {**d["refs"], "theirs": {"snapshot-id": d["current-snapshot-id"], "type": "tag", "max-ref-age-ms": "long"}}
    },
    "current snapshot unknown": with_part("current-snapshot-id", 5),
    "current snapshot no number": with_part("current-snapshot-id", "five"),
    "no uuid": with_part("table-uuid", None),
    "properties no object": with_part("properties", ["lifecycle"]),
    "property no text": property_with("lifecycle.message_expiry", {"a": 1}),
    "snapshots no list": with_part("snapshots", {"a": 1}),
    "parents in a ring": _parents_in_a_ring,
    "no schema": with_part("schemas", []),
    "format of the future": with_part("format-version", 77),
}  # fmt: skip


def list_twice(lake: Lake, name: TopicName) -> None:
    """As `add_files` without its check does."""
    table = lake.table(name)
    (task,) = table.scan().plan_files()
    table.add_files([task.file.file_path], check_duplicate_files=False)


def list_twice_without_metrics(lake: Lake, name: TopicName) -> None:
    """The second time without what the first says of the file's columns."""
    table = lake.table(name)
    (task,) = table.scan().plan_files()
    file = task.file
    metrics = (file.null_value_counts, file.lower_bounds, file.upper_bounds)
    file._data = [{} if any(value is one for one in metrics) else value for value in file._data]
    with table.transaction() as changing, changing.update_snapshot().fast_append() as commit:
        commit.append_data_file(file)


def lose(which: str) -> Callable[[Lake, TopicName], None]:
    def change(lake: Lake, name: TopicName) -> None:
        table = lake.table(name)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        path = {
            "manifest list": snapshot.manifest_list,
            "manifest": snapshot.manifests(table.io)[0].manifest_path,
            "metadata": table.metadata_location,
        }
        local_path(path[which]).unlink()

    return change


def no_json(lake: Lake, name: TopicName) -> None:
    local_path(lake.table(name).metadata_location).write_bytes(b"\xff{")


FILES: dict[str, Callable[[Lake, TopicName], None]] = {
    "a file listed twice": list_twice,
    "a file listed twice, once without metrics": list_twice_without_metrics,
    "a manifest lost": lose("manifest"),
    "a manifest list lost": lose("manifest list"),
    "metadata lost": lose("metadata"),
    "metadata no JSON": no_json,
}
NOW = Instant(4_000_000_000 * SECOND)
"""After the tables are written: a table whose last update lies ahead of the ledger is not ok."""
