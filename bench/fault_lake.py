"""The project's own services over a lake with a fixed clock, and the content that a reader of a topic sees, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tests.spark.lake import tables

from message_lifecycle.app.backends import record_log
from message_lifecycle.app.operations.registry import Work, operations_on_records, undoable_operations
from message_lifecycle.app.services import Services, Stores, policy_of
from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.ledger import Ledger
from message_lifecycle.model import request as requests
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.sources.lifetimes import with_own_lifetimes
from message_lifecycle.stores.archive import ParquetArchive
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
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
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.layout import FOLD_PROPERTY, QUARANTINE
from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine, IcebergQuarantineReturns
from message_lifecycle.stores.iceberg.read import IcebergReader
from message_lifecycle.stores.iceberg.reclaiming import IcebergReclaimer
from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.topic_delete import IcebergDeleter, IcebergRestorer
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.record_log.eraser import RecordLogEraser
from message_lifecycle.stores.record_log.store import RecordLogStore

STREAM = "head"
SECOND = 1_000_000
# Only for tests: the digests of erased keys in the fixture were made with this secret.
SECRET = KeySecret(b"the fixture's own and no secret!")
DOCUMENTS = ("one", "two")
_REQUESTS = {
    kind.__name__: kind
    for kind in (
        requests.RemoveMessages,
        requests.PurgeKey,
        requests.EraseKey,
        requests.UndoPlan,
        requests.DeleteTopic,
        requests.ReclaimDeleted,
    )
}


def services(
    engine: Callable[[], Engine], ledger: Ledger, *, of_lake: Tables | None = None, steps: Callable[[str], None] | None = None
) -> Services:
    """Return the services. `steps` gets the name of every step of every store. Steps of the compacted view are named `view:STEP`."""

    def of_view(step: str) -> None:
        if steps is not None:
            steps(f"view:{step}")

    of_lake = of_lake or tables()
    documents = IcebergDocuments(engine, tables=of_lake, steps=steps)
    return Services(
        topics=IcebergTopics(of_lake),
        reader=IcebergReader(of_lake),
        stores=Stores(
            backend="iceberg",
            log=IcebergStore(engine, tables=of_lake, steps=steps),
            log_return=IcebergLogReturns(engine, tables=of_lake, steps=steps),
            view=IcebergViewStore(engine, tables=of_lake, steps=of_view),
            view_removal=IcebergViewRemovals(engine, tables=of_lake, steps=of_view),
            view_return=IcebergViewReturns(engine, tables=of_lake, steps=of_view),
            snapshots=IcebergSnapshots(engine, tables=of_lake, steps=steps),
            snapshots_return=IcebergSnapshotReturns(engine, tables=of_lake, steps=steps),
            changes=IcebergChanges(engine, tables=of_lake, steps=steps),
            changes_return=IcebergChangeReturns(engine, tables=of_lake, steps=steps),
            quarantine=IcebergQuarantine(engine, tables=of_lake, steps=steps),
            quarantine_return=IcebergQuarantineReturns(engine, tables=of_lake, steps=steps),
            rewrite=IcebergEraser(of_lake, undoable=undoable_operations, steps=steps),
            forget=IcebergReclaimer(of_lake, steps=steps),
            delete_tables=IcebergDeleter(of_lake, steps=steps),
            restore_tables=IcebergRestorer(of_lake, steps=steps),
            drop_tables=IcebergDeletedReclaimer(of_lake, steps=steps),
        ),
        copier=IcebergCopier(engine, own_lifetimes=with_own_lifetimes, tables=of_lake),
        documents=documents,
        gate=GreatExpectationsGate(),
        ledger=ledger,
        server={},
        key_secret=lambda _: SECRET,
    )


def record_logs(folder: Path, ledger: Ledger) -> tuple[Services, RecordLogStore]:
    """Services over logs of single records below the folder, and their writer."""
    logs = JsonFiles(folder / "record_logs")
    store = RecordLogStore(logs, server={}, operations=operations_on_records)
    return record_log(store, logs, {}, ledger=ledger, gate=PlainGate(), eraser=RecordLogEraser(logs, server={})), store


def archive_of(folder: Path) -> Path:
    """Return the folder where the topics of record logs archive removed messages."""
    return folder / "archive"


def seen(s: Services, name: TopicName, of_lake: Tables | None = None) -> dict[str, Any]:
    """Return every row of every table of the topic, without the segment column, read without a JVM.

    For a deleted topic, return whether it can still come back."""
    if isinstance(s.stores.log, RecordLogStore):
        return {"log": [value_of(message) for message in s.reader.messages(name)], "archive": _archived(s, name)}
    of_lake = of_lake or tables()
    try:
        properties = of_lake.document(name).properties
    except UnknownTopic:
        return {"deleted": any(one.topic == name for one in s.stores.deletions())}
    found: dict[str, Any] = {}
    if FOLD_PROPERTY in properties:
        found["changes"] = [value_of(row) for document in DOCUMENTS for row in s.documents.changes(name, document)]
        found["snapshots"] = [value_of(row) for document in DOCUMENTS for row in s.documents.snapshots(name, document)]
    else:
        found["log"] = [value_of(message) for message in s.reader.messages(name)]
        view = s.stores.view.view(name)
        if view is not None:
            found["view"] = sorted((value_of(row) for row in s.stores.view.view_rows(name, view)), key=repr)
    if of_lake.pointers.one((name.namespace, name.table(QUARANTINE))) is not None:
        rows = of_lake.load(name, kind=QUARANTINE).scan().to_arrow().to_pylist()
        found["quarantine"] = sorted([row["batch"], row["position"], row["raw"]] for row in rows)
    return found


def _archived(s: Services, name: TopicName) -> list[Any]:
    """Return the archived messages of all plans of the topic."""
    to = policy_of(s, name).archive_to
    assert to is not None
    there = [one.plan_id for one in s.ledger.plans(name) if Path(ParquetArchive(to).file(name, one.plan_id)).exists()]
    return [value_of(message) for plan_id in there for message in ParquetArchive(to).read(name, plan_id)]


def past(name: TopicName, of_lake: Tables | None = None) -> dict[str, list[int]]:
    """Return two numbers for a topic's log: its snapshots, and its data files on disk."""
    document = (of_lake or tables()).document(name)
    files = [path for path in local_path(str(document.content["location"])).rglob("data/**/*") if path.is_file()]
    return {"log": [len(document.content["snapshots"]), len([file for file in files if file.suffix in (".parquet", ".puffin")])]}


def value_of(value: object) -> Any:
    """As JSON has it; bytes as text of one character each."""
    if is_dataclass(value):
        named = [field.name for field in fields(value) if not (isinstance(value, Message) and field.name == "segment")]
        return {name: value_of(getattr(value, name)) for name in named}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, tuple | list):
        return [value_of(one) for one in value]
    return value


def work_text(work: Work) -> Any:
    """A work of the fixture as JSON has it."""
    return work if isinstance(work, str) else {"request": type(work).__name__, **value_of(work)}


def work_of(found: Any) -> Work:
    """As `work_text` wrote it."""
    if isinstance(found, str):
        return found  # type: ignore[return-value]  # a scheduled operation's name
    values: Mapping[str, Any] = {name: _given(name, value) for name, value in found.items() if name != "request"}
    made: Work = _REQUESTS[found["request"]](**values)
    return made


def _given(name: str, value: Any) -> Any:
    if name == "key":
        return value.encode("latin-1")
    return tuple((partition, offset) for partition, offset in value) if name == "positions" else value
