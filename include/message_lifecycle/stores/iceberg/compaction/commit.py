"""What tasks wrote, as one commit on a branch of their table (of the compacted one: table and horizon change together, CMP-4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CommitUnknown, PlanConflict, TableBusy
from message_lifecycle.stores.iceberg.compaction.job import NewFile, NewVector, Written
from message_lifecycle.stores.iceberg.data_files import files_named, vectors_of
from message_lifecycle.stores.iceberg.java import Java, java_class, java_message, result_unknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def commit(
    session: SparkSession,
    table: Java,
    results: Sequence[Written],
    branch: str,
    *,
    properties: Mapping[str, str],
    partitioned_by: str = "partition",
) -> int:
    """Add new files and vectors, take out what they replace; the new snapshot's id. `properties` go to its summary. `partitioned_by`: name of
    the table's one partition field.

    Raises PlanConflict where a file to be replaced is not there any more, TableBusy, CommitUnknown."""
    from py4j.protocol import Py4JError

    head = table.snapshot(branch)
    update = table.newRowDelta().toBranch(branch)
    replaced = {
        path for result in results for path in (*result.dropped, *result.unmarked, *(vector.data_file for vector in result.vectors))
    }
    if head is not None:
        update.validateFromSnapshot(head.snapshotId())
    if replaced:
        for vector in vectors_of(session, table, head, replaced):
            update.removeDeletes(vector)
    dropped = {path for result in results for path in result.dropped}
    if dropped:
        old = files_named(session, table, head, dropped)
        if len(old) != len(dropped):
            raise PlanConflict("staged", f"{len(dropped) - len(old)} of its files are not in the table any more")
        for file in old:
            update.removeRows(file)
    for result in results:
        for new in result.files:
            update.addRows(data_file(session, table, f"{partitioned_by}={result.partition}", new))
    places = {vector.data_file: f"{partitioned_by}={result.partition}" for result in results for vector in result.vectors}
    for _, described in vector_files(session, table, (vector for result in results for vector in result.vectors), places):
        update.addDeletes(described)
    for key, value in properties.items():
        update.set(key, value)
    what = f"committing {sum(len(result.files) for result in results)} files to branch {branch}"
    try:
        update.commit()
    except Py4JError as error:
        if result_unknown(error):
            raise CommitUnknown(what) from error
        kind = java_class(error)
        if kind == "CommitFailedException":
            raise TableBusy(what, 1) from error
        if kind == "ValidationException":
            raise PlanConflict("staged", java_message(error)) from error
        raise
    table.refresh()
    return int(table.snapshot(branch).snapshotId())


def data_file(session: SparkSession, table: Java, place: str, new: NewFile) -> Java:
    """A file as Iceberg describes it. `place`: its partition, as `name=value`."""
    jvm: Java = session._jvm
    iceberg = jvm.org.apache.iceberg
    # Its footer gives counts and bounds in the units of the table's own settings.
    metrics = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(new.path), iceberg.MetricsConfig.forTable(table))
    described = iceberg.DataFiles.builder(table.spec()).withPath(new.path).withFormat("parquet").withFileSizeInBytes(new.bytes)
    return described.withPartitionPath(place).withMetrics(metrics).withSortOrder(table.sortOrder()).build()


def vector_files(session: SparkSession, table: Java, vectors: Iterable[NewVector], places: Mapping[str, str]) -> Iterator[tuple[str, Java]]:
    """The path of each data file, and its vector as Iceberg describes it. `places`: the partition of each data file, as a path."""
    jvm: Java = session._jvm
    build = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder
    for puffin, group in groupby(vectors, key=lambda vector: vector.puffin):
        file = build(table.spec()).ofPositionDeletes().withFormat("puffin").withPath(puffin.path).withFileSizeInBytes(puffin.bytes)
        for new in group:
            file = file.withPartitionPath(places[new.data_file]).withReferencedDataFile(new.data_file)
            file = file.withContentOffset(new.offset).withContentSizeInBytes(new.length).withRecordCount(new.rows)
            yield new.data_file, file.build()


def written_paths(results: Sequence[Written]) -> list[Path]:
    """Every file that the tasks wrote, data and vectors."""
    return [
        Path(path)
        for result in results
        for path in (*(file.path for file in result.files), *{vector.puffin.path for vector in result.vectors})
    ]
