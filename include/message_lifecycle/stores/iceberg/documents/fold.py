"""Fold documents in tasks, and prove the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from message_lifecycle.folds import Fold, Folded, find_fold_difference, fold_document, fold_of
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.stores.iceberg.columns import BUCKET
from message_lifecycle.stores.iceberg.documents import (
    BucketFoldResult,
    BucketProof,
    DocumentFile,
    FoldBucket,
    FoldJob,
    FoldSettings,
    ProofBucket,
    relations,
)
from message_lifecycle.stores.iceberg.documents.relations import Marking, Stored, relate_changes, relate_snapshots, streamed_in_order
from message_lifecycle.stores.iceberg.documents.tables import digest_of
from message_lifecycle.stores.iceberg.puffin import Positions, marked
from message_lifecycle.stores.iceberg.relations import Names, all_rows, opened
from message_lifecycle.stores.iceberg.shapes import SNAPSHOTS_SHAPE
from message_lifecycle.stores.iceberg.shares import MEBIBYTE, Resources
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path
from message_lifecycle.stores.iceberg.tasks import HERE, NewFile, Store, Written

if TYPE_CHECKING:
    import duckdb

# The task of staging: fold a bucket's documents one after the other, write their new snapshots, and mark removed rows (SNP-4, SNP-10).
#
# DuckDB streams states and changes in the order of (document, server_seq), a few documents at a time, and spills to disk. The task folds
# one document's state at a time. So memory does not grow with the number of documents or changes.


# A text bound compares by its bytes, here as in Python.
_STREAM = """
SELECT document, 0::TINYINT AS kind, server_seq, state AS content, digest FROM snapshots JOIN todo USING (document)
WHERE digest IS NOT NULL AND (server_seq = after OR server_seq = newest)
UNION ALL
SELECT document, 1::TINYINT, server_seq, payload, NULL FROM changes JOIN todo USING (document) WHERE server_seq > after AND server_seq <= seq
"""


def fold_of_folder(folder: FoldSettings) -> Fold:
    return fold_of(folder.fold, yjs_roots=dict(folder.yjs_roots))


def fold_bucket(job: FoldJob, bucket: FoldBucket, resources: Resources) -> BucketFoldResult:
    """Fold one bucket.

    Raises:
        duckdb.Error, OSError: A file cannot be read or written.
        CorruptVector: A deletion vector is damaged.
    """
    with opened(resources) as (connection, _):
        relate_changes(connection, "changes", bucket.changes)
        relate_snapshots(connection, "snapshots", bucket.snapshots)
        relations.register(connection, bucket.documents)
        return _BucketFold(connection, job, bucket).done()


class _BucketFold:
    def __init__(self, connection: duckdb.DuckDBPyConnection, job: FoldJob, bucket: FoldBucket) -> None:
        self._connection, self._job, self._bucket = connection, job, bucket
        self._fold = fold_of_folder(job.folder)
        self._newest = dict(relations.newest_of(connection, "snapshots"))

    def done(self) -> BucketFoldResult:
        job, number = self._job, self._bucket.bucket
        made = SnapshotFile(f"{job.snapshots_folder}/{BUCKET}={number}/{job.run}-{number:05}.parquet", job.snapshots_store)
        blocked: dict[str, str] = {}
        with made:
            for action, folded in self._each():
                if folded.blocked is not None:
                    blocked[action.document] = folded.blocked
                elif action.snapshot is not None and folded.state is not None:
                    made.add(action.document, action.snapshot, action.epoch, folded.state)
                elif action.purged:
                    made.raise_epoch(action.document, self._newest[action.document], action.epoch)
        going = [action for action in self._bucket.documents if action.document not in blocked]
        marking = Marking(self._connection, job.run, number)
        purged, changes = marking.marked(
            "changes",
            self._bucket.changes,
            (job.changes_folder, job.changes_store),
            [(a.document, a.purge_from, a.purge_before) for a in going if a.purged],
        )
        dropped, snapshots = marking.marked(
            "(FROM snapshots WHERE digest IS NOT NULL) AS snapshots",
            self._bucket.snapshots,
            (job.snapshots_folder, job.snapshots_store),
            [(a.document, seq, seq + 1) for a in going for seq in a.dropped],
            also=("(FROM snapshots WHERE digest IS NULL) AS snapshots", made.documents),
        )
        return BucketFoldResult(
            changes=changes,
            snapshots=Written(partition=number, files=made.files, vectors=snapshots.vectors, dropped=snapshots.dropped),
            made=made.states,
            dropped=dropped,
            purged=purged,
            state_bytes=made.state_bytes,
            blocked=tuple(sorted(blocked.items())),
        )

    def _each(self) -> Iterator[tuple[SnapshotDocument, Folded]]:
        """Yield every document of the plan. Documents with stored rows come first, in order."""
        documents = {action.document: action for action in self._bucket.documents}
        self._connection.execute(
            "CREATE TEMP VIEW todo AS SELECT plan.document, plan.seq, plan.after, newest FROM plan LEFT JOIN "
            "(SELECT document, max(server_seq) AS newest FROM snapshots WHERE digest IS NOT NULL GROUP BY document) USING (document)"
        )
        for document, rows in streamed_in_order(self._connection, _STREAM):
            action = documents.pop(document)
            yield action, self._folded(action, rows)
        for action in documents.values():
            yield action, Folded(blocked="none of what is to be folded is stored")

    def _folded(self, action: SnapshotDocument, rows: Iterator[Stored]) -> Folded:
        stored: dict[int, bytes] = {}
        first: list[Stored] = []
        for row in rows:
            if row.kind:
                first.append(row)
                break
            if row.payload is None or digest_of(row.payload) != row.digest:
                return Folded(blocked=f"the stored snapshot at server_seq {row.server_seq} does not match its digest")
            stored[row.server_seq] = row.payload
        newest = self._newest.get(action.document, 0)
        if action.snapshot is not None:
            if action.snapshot <= newest:
                return Folded(blocked=f"there is a snapshot at server_seq {newest} already")
            newest = action.snapshot
        folded = fold_document(action, self._fold, newest=newest, stored=stored, changes=chain(first, rows))
        if folded.blocked is None and action.snapshot is not None and folded.state is None:
            return Folded(blocked=f"its changes do not reach server_seq {action.snapshot}")
        return folded


# Write a data file of the table of snapshots while folding documents, with a few megabytes of states in memory at a time.


_GROUP_BYTES, _GROUP_ROWS = 8 * MEBIBYTE, 100_000
_SCHEMA: pa.Schema = SNAPSHOTS_SHAPE.schema.as_arrow()


class SnapshotFile:
    """A data file of snapshots. Add rows in the order of (document, server_seq). Without rows there is no file."""

    def __init__(self, path: str, store: Store = HERE) -> None:
        self._path, self._store = path, store
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[tuple[str, int, int, bytes | None, str | None]] = []
        self._bytes = 0
        self.documents: list[str] = []
        self.states = self.state_bytes = 0

    def __enter__(self) -> SnapshotFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        if kind is not None:
            self._store.remove(self._path)

    def add(self, document: str, server_seq: int, epoch: int, state: bytes) -> None:
        self.states += 1
        self.state_bytes += len(state)
        self._add(document, server_seq, epoch, state)

    def raise_epoch(self, document: str, server_seq: int, epoch: int) -> None:
        """Add a row that raises the epoch of a document without a new snapshot. A server_seq never has two snapshots (SNP-1)."""
        self._add(document, server_seq, epoch, None)

    @property
    def files(self) -> tuple[NewFile, ...]:
        """Return the new file. Call this after the file is closed."""
        if self._writer is None:
            return ()
        return (NewFile(path=self._path, rows=len(self.documents), bytes=self._store.size(self._path)),)

    def _add(self, document: str, server_seq: int, epoch: int, state: bytes | None) -> None:
        self.documents.append(document)
        self._rows.append((document, server_seq, epoch, state, None if state is None else digest_of(state)))
        self._bytes += 0 if state is None else len(state)
        if self._bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            if is_local(self._path):
                local_path(self._path).parent.mkdir(parents=True, exist_ok=True)
            else:
                self._file = self._store.create(self._path)
            self._writer = pq.ParquetWriter(self._file or self._path, _SCHEMA, compression="zstd")
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))
        self._rows, self._bytes = [], 0


# The task of the gate: prove the staged rows of a bucket again, from the tables alone and not from the results of staging (SNP-6).
#
# The proof folds every document again, from the last snapshot below its newest one, over the changes before the plan. Then the proof folds
# the staged newest snapshot with the changes that are left. Places of rows, file by file, count the differences between the tables before
# and after.


BASE, NEWEST, BEFORE, LEFT = range(4)
"""The kinds of rows in the stream, in its order: the starting state, the staged newest state, changes before, changes left."""
_NONE = np.empty(0, np.int64)


def prove_bucket(folder: FoldSettings, bucket: ProofBucket, resources: Resources) -> BucketProof:
    """Prove the staged rows of one bucket.

    Raises:
        duckdb.Error, OSError: A file cannot be read.
        CorruptVector: A deletion vector is damaged.
    """
    with opened(resources) as (connection, _):
        relate_changes(connection, "changes", bucket.changes)
        relate_changes(connection, "staged_changes", bucket.staged_changes)
        relate_snapshots(connection, "snapshots", bucket.snapshots)
        relate_snapshots(connection, "staged_snapshots", bucket.staged_snapshots)
        relations.register(connection, bucket.documents)
        relate_differences(connection, "changes_differ", bucket.changes, bucket.staged_changes, "document, server_seq")
        columns = "document, server_seq, epoch, digest"
        relate_differences(connection, "snapshots_differ", bucket.snapshots, bucket.staged_snapshots, columns)
        connection.execute(HEADS)
        totals = {name: connection.execute(query).fetchall()[0][0] for name, query in TOTALS.items()}
        unproved = tuple(_failed_proofs(connection, folder, bucket))
    return BucketProof(totals=(("planned", len(bucket.documents)), *totals.items()), unproved=unproved)


def _failed_proofs(connection: duckdb.DuckDBPyConnection, folder: FoldSettings, bucket: ProofBucket) -> Iterator[tuple[str, str]]:
    """Yield the documents with a failed proof, and the reason."""
    fold, documents = fold_of_folder(folder), {action.document: action for action in bucket.documents}
    newest = dict(relations.newest_of(connection, "staged_snapshots"))
    for document, rows in streamed_in_order(connection, STREAM):
        action = documents.pop(document)
        parts = _Parts(rows)
        base, snapshot = parts.state(BASE), parts.state(NEWEST)
        if action.after and base is None:
            yield document, f"the snapshot at server_seq {action.after} is not stored as it was made"
            continue
        reason = find_fold_difference(
            action,
            fold,
            newest=newest.get(document, 0),
            base=base,
            snapshot=snapshot,
            changes=parts.of(BEFORE),
            left=parts.of(LEFT),
        )
        if reason is not None:
            yield document, reason
    for document in documents:
        yield document, "nothing of it is stored"


class _Parts:
    """One document's rows in the order of their kind. The proof reads them once, kind by kind."""

    def __init__(self, rows: Iterator[Stored]) -> None:
        self._rows = rows
        self._next: Stored | None = next(rows, None)

    def state(self, kind: int) -> bytes | None:
        """Return the state of this kind; None: missing, or different from its digest."""
        found: bytes | None = None
        for row in self.of(kind):
            found = row.payload if row.payload is not None and digest_of(row.payload) == row.digest else None
        return found

    def of(self, kind: int) -> Iterator[Stored]:
        # Skip rows of earlier kinds that the proof did not read.
        while self._next is not None and self._next.kind <= kind:
            row, self._next = self._next, next(self._rows, None)
            if row.kind == kind:
                yield row


def relate_differences(
    connection: duckdb.DuckDBPyConnection, name: str, before: Sequence[DocumentFile], after: Sequence[DocumentFile], columns: str
) -> None:
    """Create the table `name` of rows that are live only before (`came` false) or only after (`came` true).

    A file's content never changes, so positions identify the rows.
    """
    was, now = {file.file.path: file for file in before}, {file.file.path: file for file in after}
    differing = [path for path in {**was, **now} if path not in was or path not in now or was[path].file.vector != now[path].file.vector]
    files = [was.get(path) or now[path] for path in differing]
    rows: list[tuple[int, bool, Positions]] = []
    for at, path in enumerate(differing):
        live_before, live_after = _live_positions(was.get(path)), _live_positions(now.get(path))
        rows.append((at, False, np.setdiff1d(live_before, live_after)))
        rows.append((at, True, np.setdiff1d(live_after, live_before)))
    if not files:
        connection.execute(f"CREATE TEMP TABLE {name} AS SELECT {columns}, true AS came FROM {_like_pattern(name)} WHERE false")
        return
    places = {
        "file": np.concatenate([np.full(len(positions), at, np.int64) for at, _, positions in rows]),
        "row": np.concatenate([_NONE, *(positions for _, _, positions in rows)]),
        "came": np.concatenate([np.full(len(positions), came) for _, came, positions in rows]),
    }
    connection.register("places", pa.table(places))
    connection.execute(
        f"CREATE TEMP TABLE {name} AS SELECT {columns}, came FROM {all_rows([file.file for file in files], Names(connection))} AS f "
        "JOIN places ON f.file_index = places.file AND f.file_row_number = places.row"
    )
    connection.unregister("places")


def _like_pattern(name: str) -> str:
    return name.removesuffix("_differ")


def _live_positions(file: DocumentFile | None) -> Positions:
    if file is None:
        return _NONE
    every = np.arange(file.rows, dtype=np.int64)
    return every if file.file.vector is None else np.setdiff1d(every, marked(file.file.vector))


# The queries of the proof, over `changes` and `snapshots` before the plan, both after it (`staged_`), their differences, and `plan`.


HEADS = """
CREATE TEMP TABLE heads AS
SELECT document, max(server_seq) FILTER (WHERE digest IS NOT NULL) AS newest, max(epoch) AS epoch FROM staged_snapshots GROUP BY document;
CREATE TEMP TABLE old_epochs AS SELECT document, max(epoch) AS epoch FROM snapshots GROUP BY document;
CREATE TEMP TABLE ends AS SELECT document, max(server_seq) AS seq FROM changes GROUP BY document;
CREATE TEMP TABLE left_over AS
SELECT document, min(server_seq) AS first, max(server_seq) AS last, count(*) AS stored, count(DISTINCT server_seq) AS each
FROM staged_changes GROUP BY document
"""

STREAM = """
SELECT document, 0::TINYINT AS kind, server_seq, state AS content, digest FROM snapshots JOIN plan USING (document)
WHERE digest IS NOT NULL AND server_seq = after
UNION ALL
SELECT document, 1::TINYINT, server_seq, state, digest FROM staged_snapshots JOIN heads USING (document) SEMI JOIN plan USING (document)
WHERE digest IS NOT NULL AND server_seq = newest
UNION ALL
SELECT document, 2::TINYINT, server_seq, payload, NULL FROM changes JOIN plan USING (document) WHERE server_seq > after
UNION ALL
SELECT document, 3::TINYINT, server_seq, payload, NULL FROM staged_changes JOIN heads USING (document) SEMI JOIN plan USING (document)
WHERE server_seq > coalesce(newest, 0)
"""
"""The rows in the order that `find_fold_difference` reads them."""

_NEW_ROW = (
    "(d.digest IS NOT NULL AND d.server_seq = plan.snapshot OR d.digest IS NULL AND plan.snapshot IS NULL "
    "AND plan.purge_before > plan.purge_from AND d.server_seq = heads.newest)"
)
_GOES = (
    "(d.digest IS NOT NULL AND (d.document, d.server_seq) IN (SELECT (document, server_seq) FROM planned_drops) "
    "OR d.digest IS NULL AND (plan.snapshot IS NOT NULL OR plan.purge_before > plan.purge_from))"
)

TOTALS: Mapping[str, str] = {
    "snapshots_made": "SELECT count(*) FROM snapshots_differ WHERE came AND digest IS NOT NULL",
    "snapshots_dropped": "SELECT count(*) FROM snapshots_differ WHERE NOT came AND digest IS NOT NULL",
    "purged": "SELECT count(*) FROM changes_differ WHERE NOT came",
    "unnamed": "SELECT count(*) FROM changes_differ AS d LEFT JOIN plan ON plan.document = d.document AND d.server_seq >= purge_from "
    "AND d.server_seq < purge_before WHERE came OR plan.document IS NULL",
    "holes": "SELECT count(*) FROM plan LEFT JOIN left_over USING (document) LEFT JOIN heads USING (document) "
    "WHERE CASE WHEN stored IS NULL THEN coalesce(newest, 0) < seq "
    "ELSE last <> seq OR stored <> last - first + 1 OR each <> stored OR first > coalesce(newest, 0) + 1 END",
    "ahead": "SELECT count(*) FROM snapshots_differ AS d LEFT JOIN ends USING (document) "
    "WHERE came AND digest IS NOT NULL AND server_seq > coalesce(seq, 0)",
    "epochs_wrong": "SELECT count(*) FROM plan LEFT JOIN heads USING (document) LEFT JOIN old_epochs USING (document) "
    "WHERE coalesce(heads.epoch, 0) - coalesce(old_epochs.epoch, 0) <> (purge_before > purge_from)::INT",
    "uncovered": "SELECT count(DISTINCT document) FROM changes_differ LEFT JOIN heads USING (document) "
    "WHERE NOT came AND server_seq > coalesce(newest, 0)",
    "snapshots_unnamed": "SELECT count(*) FROM snapshots_differ AS d LEFT JOIN plan USING (document) LEFT JOIN heads USING (document) "
    f"WHERE NOT coalesce(CASE WHEN came THEN d.epoch = plan.epoch AND {_NEW_ROW} ELSE {_GOES} END, false)",
}
"""Queries of one number each; see `evidence`."""
