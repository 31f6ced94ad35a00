"""A data file of the table of snapshots, written as documents are folded: a few megabytes of states in memory at a time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from message_lifecycle.stores.iceberg.compaction.job import MEBIBYTE, NewFile
from message_lifecycle.stores.iceberg.documents.columns import SNAPSHOTS
from message_lifecycle.stores.iceberg.documents.read import digest_of

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
