"""A few rows that this process holds, as data files of a topic's table: written by PyArrow and described by Iceberg, without a job of
Spark's."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.stores.iceberg.compaction.commit import data_file
from message_lifecycle.stores.iceberg.compaction.job import MEBIBYTE, NewFile
from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_rows(session: SparkSession, table: Java, rows: pa.Table) -> list[Java]:
    """Write rows of a topic's columns, a file for each segment in the order of offsets. Iceberg's descriptions of the files, which nothing
    names yet."""
    import pyarrow.parquet as pq

    files = []
    for place in rows.group_by(["partition", "segment"], use_threads=False).aggregate([]).to_pylist():
        partition, segment = place["partition"], place["segment"]
        mine = rows.filter(pc.and_(pc.equal(rows["partition"], partition), pc.equal(rows["segment"], segment))).sort_by("offset")
        content = pa.BufferOutputStream()
        pq.write_table(mine, content, compression="zstd")
        folder = f"partition={partition}/segment={segment}"
        path = str(table.locationProvider().newDataLocation(f"{folder}/{uuid.uuid4()}.parquet"))
        size = _write(table, path, content.getvalue())
        files.append(data_file(session, table, folder, NewFile(path=path, rows=len(mine), bytes=size)))
    return files


def _write(table: Java, path: str, content: pa.Buffer) -> int:
    stream = table.io().newOutputFile(path).create()
    for at in range(0, content.size, MEBIBYTE):
        stream.write(bytes(content.slice(at, min(MEBIBYTE, content.size - at))))
    stream.close()
    return int(content.size)
