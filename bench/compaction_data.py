"""Data of the compaction benchmark: logs with Zipf keys or unique keys, and tails of new messages, as files of a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from message_lifecycle.stores.iceberg.columns import SCHEMA

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
VALUE_BYTES = 48
TOMBSTONE_EVERY = 20
"""One message in so many has no value; one in ten has a lifetime of its own."""
FILE_ROWS = 625_000
_ROW_GROUP = 125_000
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """`messages` in equal parts over `partitions`. `keys` in all; None: each message has its own. `first`: the first offset of each
    partition; where that is not 0 and keys are unique, this is a tail, with keys of the messages before it."""

    messages: int
    partitions: int
    keys: int | None
    first: int = 0

    @property
    def rows(self) -> int:
        """In each partition."""
        return self.messages // self.partitions

    def write(self, to: Path) -> None:
        """`<partition>/<base offset>.parquet`."""
        for partition in range(self.partitions):
            self._write(to / str(partition), partition)

    def _write(self, to: Path, partition: int) -> None:
        to.mkdir(parents=True, exist_ok=True)
        schema = SCHEMA.as_arrow()
        chance = np.random.default_rng((partition, self.first))
        draw = self._keys(chance)
        for base in range(0, self.rows, FILE_ROWS):
            with pq.ParquetWriter(to / f"{self.first + base}.parquet", schema, compression="zstd") as writer:
                for at in range(base, min(base + FILE_ROWS, self.rows), _ROW_GROUP):
                    some = draw(min(_ROW_GROUP, base + FILE_ROWS - at, self.rows - at))
                    writer.write_table(_table(some, partition, self.first + at, self.first + base, chance, schema))

    def _keys(self, chance: np.random.Generator) -> Callable[[int], Longs]:
        at = self.first
        weights = None if self.keys is None else np.cumsum(1.0 / np.arange(1, self.keys // self.partitions + 1))

        def draw(rows: int) -> Longs:
            nonlocal at
            if weights is not None:
                ranks = np.searchsorted(weights, chance.random(rows) * weights[-1])
                return np.asarray(ranks * 7_919 % len(weights), np.int64)
            # An odd factor permutes all numbers: unique, and in no order. A tail has keys of the messages before it.
            numbers = chance.integers(0, self.first, rows) if self.first else np.arange(at, at + rows)
            at += rows
            return np.asarray((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1), np.int64)

        return draw


def _table(keys: Longs, partition: int, at: int, segment: int, chance: np.random.Generator, schema: pa.Schema) -> pa.Table:
    rows = len(keys)
    kinds = {field.name: field.type for field in schema}
    offsets = np.arange(at, at + rows)
    empty, own = chance.random(rows) < 1 / TOMBSTONE_EVERY, chance.random(rows) < 0.1
    appended = START + offsets * 1_000 + chance.integers(0, 1_000, rows)
    values = pa.Array.from_buffers(pa.binary(VALUE_BYTES), rows, [None, pa.py_buffer(chance.bytes(rows * VALUE_BYTES))])
    ttl = [{"name": "Nats-TTL", "value": b"24h"}]
    columns = {
        "partition": pa.array(np.full(rows, partition), pa.int32()),
        "offset": pa.array(offsets),
        "append_time": pa.array(appended).cast(kinds["append_time"]),
        "event_time": pa.nulls(rows, kinds["event_time"]),
        "key": pc.binary_join_element_wise("user-", pa.array(keys).cast(pa.string()), "").cast(kinds["key"]),
        "value": pc.if_else(pa.array(empty), pa.scalar(None, kinds["value"]), values.cast(kinds["value"])),
        "headers": pa.array([ttl if one else [] for one in own.tolist()], kinds["headers"]),
        "size_bytes": pa.array(np.where(empty, 12, 12 + VALUE_BYTES)),
        "segment": pa.array(np.full(rows, segment)),
        "expires_at": pa.array(appended + 86_400 * SECOND, mask=~own).cast(kinds["expires_at"]),
        "never": pa.nulls(rows, pa.bool_()),
        "origin_offset": pa.nulls(rows, pa.int64()),
    }
    return pa.table([columns[field.name] for field in schema], schema=schema)
