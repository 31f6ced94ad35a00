"""Changes coming in: each the next one of its document, whoever else writes at the same time (SNP-1).

They are numbered by their writers, so a commit holds only if no other changes came since the numbers were looked at; else they are
looked at again. What a purge takes meanwhile changes no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import CommitUnknown, LifecycleError, TableBusy, invalid_server_seq
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.compaction.commit import data_file
from message_lifecycle.stores.iceberg.compaction.job import NewFile
from message_lifecycle.stores.iceberg.documents.columns import BUCKET, CHANGES, bucket_of
from message_lifecycle.stores.iceberg.documents.read import IcebergDocumentReader
from message_lifecycle.stores.iceberg.documents.tables import tables_of
from message_lifecycle.stores.iceberg.fence import Ancestor, fenced_commit, main_ancestors
from message_lifecycle.stores.iceberg.layout import INGEST_ID, LEDGER, PLAN_ID
from message_lifecycle.stores.iceberg.session import forget_cached, java_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

TRIES = 20


class _MovedOn(LifecycleError):
    """Other changes came first: look again. Never leaves this module."""


def add(
    session: Callable[[], SparkSession],
    tables: Tables,
    name: TopicName,
    changes: Sequence[Change],
    *,
    ledger: tuple[str, int],
    steps: Callable[[str], None] = lambda _: None,
) -> None:
    """Store the changes, all or none; what is refused for its number needs no session. Raises InvalidServerSeq, NotADocumentTopic, TableBusy, CommitUnknown."""
    if not changes:
        tables.of_documents(name)
        return
    batch_id = token_hex(8)
    for _ in range(TRIES):
        base = tables_of(tables, name)
        reader = IcebergDocumentReader(tables)
        ends = {state.document: state.seq for state in reader.states(name, base, only={change.document for change in changes})}
        check_next(changes, ends)
        steps("numbered")
        table = tables.load(name)
        written = list(_written(table.io, f"{table.location()}/data", batch_id, changes))
        try:
            _commit(session(), name, written, batch_id=batch_id, base_id=base.changes_id, ledger=ledger)
        except _MovedOn:
            for _, file in written:
                table.io.delete(file.path)
            continue
        return
    raise TableBusy(f"adding {len(changes)} changes to topic {name}", TRIES)


def check_next(changes: Sequence[Change], ends: Mapping[str, int]) -> None:
    """Each is its document's next one, in the order given. `ends`: server_seqs reached. Raises InvalidServerSeq."""
    reached = dict(ends)
    for change in changes:
        due = reached.get(change.document, 0) + 1
        if change.server_seq != due:
            raise invalid_server_seq(change.document, change.server_seq, f"{due}, the next one")
        reached[change.document] = due


def _commit(
    session: SparkSession,
    name: TopicName,
    written: Sequence[tuple[int, NewFile]],
    *,
    batch_id: str,
    base_id: int | None,
    ledger: tuple[str, int],
) -> None:
    table = java_table(session, name)
    update = table.newAppend()
    for bucket, file in written:
        update.appendFile(data_file(session, table, f"{BUCKET}={bucket}", file))
    for key, value in {INGEST_ID: batch_id, LEDGER: ledger_text(ledger)}.items():
        update.set(key, value)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        for ancestor in walk():
            if ancestor.snapshot_id == base_id:
                return
            if ancestor.get(PLAN_ID) is None:
                raise _MovedOn
        raise _MovedOn

    try:
        fenced_commit(session, [(update, judge)], what=f"adding changes to topic {name}")
    except CommitUnknown:
        table.refresh()
        if all(ancestor.get(INGEST_ID) != batch_id for ancestor in main_ancestors(table)):
            raise
    forget_cached(session, name)


def _written(io: FileIO, folder: str, batch_id: str, changes: Sequence[Change]) -> Iterator[tuple[int, NewFile]]:
    """One file for each bucket, in the table's order."""
    buckets: dict[str, int] = {document: bucket_of(document) for document in {change.document for change in changes}}
    mine: dict[int, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (change.document, change.server_seq)):
        mine.setdefault(buckets[change.document], []).append(change)
    for bucket, group in mine.items():
        path = f"{folder}/{BUCKET}={bucket}/{batch_id}-{token_hex(4)}.parquet"
        yield bucket, write_changes(io, path, group)


def write_changes(io: FileIO, path: str, changes: Sequence[Change]) -> NewFile:
    """A data file of these changes, which are in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema = CHANGES.schema.as_arrow()
    columns = {
        "document": [change.document for change in changes],
        "server_seq": [change.server_seq for change in changes],
        "at": [None if change.at is None else int(change.at) for change in changes],
        "client": [change.client for change in changes],
        "payload": [change.payload for change in changes],
    }
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type) if field.name == "at" else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    with io.new_output(path).create() as stream:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), pa.PythonFile(stream, mode="w"), compression="zstd")
    return NewFile(path=path, rows=len(changes), bytes=len(io.new_input(path)))
