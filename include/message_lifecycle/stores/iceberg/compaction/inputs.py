"""From the metadata of the log and of its view to what a compaction reads: no data is read, and no JVM is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import Refused, Unavailable
from message_lifecycle.stores.iceberg import rule_bounds
from message_lifecycle.stores.iceberg.compaction.job import InputFile, PartitionJob, Rules, Vector
from message_lifecycle.stores.iceberg.compaction.view_table import DELETE_HORIZON
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_BOUNDS = ("file_path", "record_count", "null_value_counts", "lower_bounds")


class UnreadableDeletes(Refused):
    """Deletes of a kind that this engine does not apply; passing them over would bring messages back."""

    def __init__(self, table: str, kind: str) -> None:
        self.table, self.kind = table, kind
        super().__init__(
            f"table {table} holds {kind}, which compaction does not apply, so nothing was compacted. Rewrite the files that they "
            "concern first (Iceberg's `rewrite_data_files` with `delete-file-threshold` 1)."
        )


def unreadable_file(table: str, file: str, reason: str) -> Unavailable:
    """A data file of the log is gone or damaged."""
    return Unavailable(
        f"table {table}: its data file {file} cannot be read ({reason}), so nothing was compacted; the view is as it was. "
        "Bring the file back from a copy and run again.",
        code="UnreadableFile",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file with the offsets that its bounds name; None: the metadata do not say."""

    file: InputFile
    first_offset: int | None
    last_offset: int | None


def sources(table: Table, snapshot: Snapshot | None, rules: Rules) -> dict[int, list[Source]]:
    """The data files of a snapshot by partition, in the order of their offsets. Raises UnreadableDeletes."""
    from message_lifecycle.stores.iceberg.manifests import files_of

    if snapshot is None:
        return {}
    prefix, vectors, horizons = location_prefix(table.location()), vectors_by_file(table, snapshot), _past_horizon(table, snapshot, rules)
    found: dict[int, list[Source]] = {}
    for metrics in files_of(table, snapshot):
        path = absolute(prefix, metrics.name)
        due = rule_bounds.begins(rules.dead, metrics).some <= rules.as_of
        file = InputFile(path=path, vector=vectors.get(path), may_be_due=due or horizons.get(path, False))
        if metrics.deleted < metrics.rows:
            found.setdefault(metrics.partition, []).append(
                Source(file=file, first_offset=metrics.first_offset, last_offset=metrics.last_offset)
            )
    for files in found.values():
        files.sort(key=lambda source: (source.first_offset is None, source.first_offset))
    return found


def partition_job(
    partition: int, log: Mapping[int, list[Source]], view: Mapping[int, list[Source]], *, after: int, through: int, rewrite: bool
) -> PartitionJob:
    """The work of one partition: the whole view, and of the log the files that may hold a message after `after` up to `through`."""
    tail = [
        source
        for source in log.get(partition, ())
        if (source.last_offset is None or source.last_offset > after) and (source.first_offset is None or source.first_offset <= through)
    ]
    whole = all(
        source.first_offset is not None and source.last_offset is not None and source.first_offset > after and source.last_offset <= through
        for source in tail
    )
    old = tuple(source.file for source in view.get(partition, ()))
    files = tuple(source.file for source in tail)
    return PartitionJob(partition=partition, after=after, through=through, view=old, tail=files, rewrite=rewrite, whole_tail=whole)


def files_by_partition(table: Table, snapshot: Snapshot | None) -> dict[int, list[InputFile]]:
    """The data files of a snapshot with their deletion vectors. Raises UnreadableDeletes."""
    from message_lifecycle.stores.iceberg.manifests import files_of

    found: dict[int, list[InputFile]] = {}
    if snapshot is not None:
        prefix, vectors = location_prefix(table.location()), vectors_by_file(table, snapshot)
        for metrics in files_of(table, snapshot):
            path = absolute(prefix, metrics.name)
            found.setdefault(metrics.partition, []).append(InputFile(path=path, vector=vectors.get(path)))
    return found


def columns_of(io: FileIO, file: InputFile, columns: Sequence[str]) -> pa.Table:
    """These columns of a file's live rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from message_lifecycle.stores.iceberg.puffin import marked

    with io.new_input(file.path).open() as stream:
        rows = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read(columns=list(columns))
    alive = np.ones(len(rows), np.bool_)
    if file.vector is not None:
        alive[marked(file.vector)] = False
    return rows.filter(pa.array(alive))


def vectors_by_file(table: Table, snapshot: Snapshot) -> dict[str, Vector]:
    """The deletion vectors of a snapshot, by the path of their data file. Raises UnreadableDeletes."""
    return dict(_each_vector(table, snapshot))


def _each_vector(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, Vector]]:
    from pyiceberg.manifest import DataFileContent, ManifestContent

    from message_lifecycle.stores.iceberg.manifests import VECTORS, listed

    name = ".".join(table.name())
    for content, path, form, referenced, offset, length in listed(table, snapshot, VECTORS, content=ManifestContent.DELETES):
        if content == DataFileContent.EQUALITY_DELETES.value:
            raise UnreadableDeletes(name, "equality deletes")
        if str(form).upper().rpartition(".")[2] != "PUFFIN" or referenced is None:
            raise UnreadableDeletes(name, "position deletes of an older kind")
        yield referenced, Vector(path=path, offset=offset, length=length)


def _past_horizon(table: Table, snapshot: Snapshot, rules: Rules) -> dict[str, bool]:
    """Which files of a view may hold a tombstone whose time has come (CMP-7)."""
    return {path: horizon is None or horizon <= rules.as_of for path, horizon in delete_horizons(table, snapshot)}


def delete_horizons(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, int | None]]:
    """The earliest delete horizon of each file of a view that may have one; None: the metadata do not say."""
    from message_lifecycle.stores.iceberg.manifests import listed, picking

    if DELETE_HORIZON not in {field.field_id for field in table.schema().fields}:
        return
    for path, rows, nulls, lower in listed(table, snapshot, picking(*_BOUNDS)):
        if (nulls or {}).get(DELETE_HORIZON) != rows:
            bound = (lower or {}).get(DELETE_HORIZON)
            yield path, None if bound is None else int.from_bytes(bound, "little", signed=True)
