"""A task of staging: a bucket's documents folded one after the other, their new snapshots written, and what goes marked (SNP-4, SNP-10).

DuckDB brings states and changes in order of (document, server_seq), a few documents at a time and beyond memory where they must be, and
one document's state is folded at a time: so neither a document of many changes nor many documents need room.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from message_lifecycle.folds import Fold, fold_of
from message_lifecycle.folds.replay import Folded, fold_document
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.stores.iceberg.compaction.connection import opened
from message_lifecycle.stores.iceberg.compaction.job import MEBIBYTE, NewFile, Resources, Written
from message_lifecycle.stores.iceberg.document import local_path
from message_lifecycle.stores.iceberg.documents import relations
from message_lifecycle.stores.iceberg.documents.columns import BUCKET, SNAPSHOTS
from message_lifecycle.stores.iceberg.documents.inputs import FoldBucket, FoldedBucket, Folder, FoldJob
from message_lifecycle.stores.iceberg.documents.marking import Marking
from message_lifecycle.stores.iceberg.documents.read import digest_of
from message_lifecycle.stores.iceberg.documents.relations import Stored, relate_changes, relate_snapshots, streamed_in_order

if TYPE_CHECKING:
    import duckdb


# A bound text compares as its bytes do, here as in Python.
_STREAM = """
SELECT document, 0::TINYINT AS kind, server_seq, state AS content, digest FROM snapshots JOIN todo USING (document)
WHERE digest IS NOT NULL AND (server_seq = after OR server_seq = newest)
UNION ALL
SELECT document, 1::TINYINT, server_seq, payload, NULL FROM changes JOIN todo USING (document) WHERE server_seq > after AND server_seq <= seq
"""


def fold_of_folder(folder: Folder) -> Fold:
    return fold_of(folder.fold, yjs_roots=dict(folder.yjs_roots))


def fold_bucket(job: FoldJob, bucket: FoldBucket, resources: Resources) -> FoldedBucket:
    """Raises what DuckDB and the file system raise, CorruptVector and NotLocal."""
    with opened(resources) as (connection, _):
        relate_changes(connection, "changes", bucket.changes)
        relate_snapshots(connection, "snapshots", bucket.snapshots)
        relations.register(connection, bucket.documents)
        return _Bucket(connection, job, bucket).done()


class _Bucket:
    def __init__(self, connection: duckdb.DuckDBPyConnection, job: FoldJob, bucket: FoldBucket) -> None:
        self._connection, self._job, self._bucket = connection, job, bucket
        self._fold = fold_of_folder(job.folder)
        self._newest = dict(relations.newest_of(connection, "snapshots"))

    def done(self) -> FoldedBucket:
        job, number = self._job, self._bucket.bucket
        made = SnapshotFile(local_path(f"{job.snapshots_folder}/{BUCKET}={number}") / f"{job.run}-{number:05}.parquet")
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
            "changes", self._bucket.changes, job.changes_folder, [(a.document, a.purge_from, a.purge_before) for a in going if a.purged]
        )
        dropped, snapshots = marking.marked(
            "(FROM snapshots WHERE digest IS NOT NULL) AS snapshots",
            self._bucket.snapshots,
            job.snapshots_folder,
            [(a.document, seq, seq + 1) for a in going for seq in a.dropped],
            also=("(FROM snapshots WHERE digest IS NULL) AS snapshots", made.documents),
        )
        return FoldedBucket(
            changes=changes,
            snapshots=Written(partition=number, files=made.files, vectors=snapshots.vectors, dropped=snapshots.dropped),
            made=made.states,
            dropped=dropped,
            purged=purged,
            state_bytes=made.state_bytes,
            blocked=tuple(sorted(blocked.items())),
        )

    def _each(self) -> Iterator[tuple[SnapshotDocument, Folded]]:
        """Every document, in order."""
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


# A data file of the table of snapshots, written as documents are folded: a few megabytes of states in memory at a time.


_GROUP_BYTES, _GROUP_ROWS = 8 * MEBIBYTE, 100_000
_SCHEMA: pa.Schema = SNAPSHOTS.schema.as_arrow()


class SnapshotFile:
    """Rows are added in order of (document, server_seq). Where none is, no file is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def add(self, document: str, server_seq: int, epoch: int, state: bytes) -> None:
        self.states += 1
        self.state_bytes += len(state)
        self._add(document, server_seq, epoch, state)

    def raise_epoch(self, document: str, server_seq: int, epoch: int) -> None:
        """Of a document that gets no new snapshot: there are never two at one server_seq (SNP-1)."""
        self._add(document, server_seq, epoch, None)

    @property
    def files(self) -> tuple[NewFile, ...]:
        """Once it is closed."""
        if self._writer is None:
            return ()
        return (NewFile(path=str(self._path), rows=len(self.documents), bytes=self._path.stat().st_size),)

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
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, _SCHEMA, compression="zstd")
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))
        self._rows, self._bytes = [], 0
