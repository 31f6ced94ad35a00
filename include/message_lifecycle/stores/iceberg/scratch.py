"""Messages between the tasks that read them and the tasks that write them: files of Arrow batches, one partition a batch.

A reading task does not know the offsets of its messages, because earlier files have messages of the same partitions. So it leaves its messages
in a scratch file next to the table's data, and reports which batches hold which partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.tasks import NewFile, Store

SUFFIX = ".arrow"
COLUMNS = pa.schema([one for one in SCHEMA.as_arrow() if one.name not in ("offset", "segment")])
_HELD_BYTES = 32 << 20
"""Messages that a task holds before it sorts them by partition and writes them: more make longer batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The messages of one partition in a scratch file.

    Attributes:
        numbers: Their batches, in the order of the log.
        size_bytes: The sum of the messages' sizes.
    """

    numbers: Sequence[int]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Messages of one partition in a file that a reading task wrote."""

    path: str
    batches: Batches


def write(store: Store, path: str, messages: Iterable[pa.RecordBatch]) -> Mapping[int, Batches]:
    """Write messages, which come in the order of the log; by partition, the batches. There is no file if there are no messages."""
    writer = _BatchWriter(store, path)
    for batch in messages:
        writer.add(batch)
    return writer.close()


@dataclass(slots=True)
class _BatchWriter:
    store: Store
    path: str
    held: list[pa.RecordBatch] = field(default_factory=list)
    numbers: dict[int, list[int]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    count: int = 0
    opened: tuple[object, pa.RecordBatchFileWriter] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.held.append(_whole(batch))
            if sum(one.nbytes for one in self.held) > _HELD_BYTES:
                self._flush()

    def close(self) -> Mapping[int, Batches]:
        self._flush()
        if self.opened is not None:
            file, writer = self.opened
            writer.close()
            file.close()  # type: ignore[attr-defined]  # a file of any store
        return {partition: Batches(numbers=numbers, size_bytes=self.sizes[partition]) for partition, numbers in self.numbers.items()}

    def _flush(self) -> None:
        if not self.held:
            return
        if self.opened is None:
            file = self.store.create(self.path)
            self.opened = file, pa.ipc.new_file(file, COLUMNS, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        rows = pa.Table.from_batches(self.held, schema=COLUMNS)
        self.held.clear()
        order = pc.array_sort_indices(rows["partition"])  # stable
        rows = rows.take(order).combine_chunks()
        for batch in rows.to_batches():
            partitions = batch["partition"].to_numpy()
            for start, end in pairwise([0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]):
                mine, partition = batch.slice(start, end - start), int(partitions[start])
                self.opened[1].write_batch(mine)
                self.numbers.setdefault(partition, []).append(self.count)
                self.sizes[partition] = self.sizes.get(partition, 0) + (pc.sum(mine["size_bytes"]).as_py() or 0)
                self.count += 1


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give the messages all columns of a scratch file. A missing column is null."""
    given = batch.schema.names
    columns = [batch[one.name].cast(one.type) if one.name in given else pa.nulls(batch.num_rows, one.type) for one in COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


def read(store: Store, parts: Iterable[Part], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one partition in the order of the log, with these columns; None: with all."""
    included = None if columns is None else [COLUMNS.get_field_index(name) for name in columns]
    for part in parts:
        with store.open(part.path) as file, pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=included)) as batches:
            for number in part.batches.numbers:
                yield batches.get_batch(number)


_ROW_GROUP_BYTES = 64 << 20


class RowsFile:
    """A new Parquet file of a table, in row groups of about 64 MiB.

    Args:
        store: The way to the file.
        path: The path of the file.
        schema: The columns.
        dictionary: The columns that get a dictionary, by their paths in the file. True: all columns.
    """

    def __init__(self, store: Store, path: str, schema: pa.Schema, *, dictionary: Sequence[str] | bool = True) -> None:
        from pyarrow.parquet import ParquetWriter

        self._store, self._path, self._schema = store, path, schema
        self._file = store.create(path)
        self._writer = ParquetWriter(self._file, schema, compression="zstd", use_dictionary=dictionary)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows behind the earlier ones."""
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._held_bytes > _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> NewFile:
        self._flush()
        self._writer.close()
        self._file.close()
        return NewFile(path=self._path, rows=self._rows, bytes=self._store.size(self._path))

    def _flush(self) -> None:
        if self._held:
            rows = pa.Table.from_batches(self._held, schema=self._schema)
            self._writer.write_table(rows, row_group_size=len(rows))
            self._held.clear()
            self._held_bytes = 0
