"""Messages that another engine has written to a log: the log's state counts them, or a named error stops the topic (MSG-4).

A commit of another engine carries no state of ours. The state at our newest commit is right until such a commit brings messages. From then
on, the next offset is above every offset that later commits have shown on main.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, NoReturn

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from message_lifecycle.model.errors import AppendedBelowEnd, message_without_place, offset_given_twice, offsets_used_up
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.stores.iceberg.columns import OFFSET
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, HORIZONS, ROLE_PROPERTY, VIEW_KEYS, LogSummary
from message_lifecycle.stores.iceberg.manifests import DELETED, Manifest, ManifestContent, entries, files_of, manifests_of, number, picking
from message_lifecycle.stores.iceberg.segments import FileMetrics, require_listed_once
from message_lifecycle.stores.iceberg.table_folder import Metadata, absolute, location_prefix
from message_lifecycle.stores.iceberg.witness import Commit, TableStanding, state_of_table

_PICK = picking("file_path", "partition", "null_value_counts", "lower_bounds", "upper_bounds")


def log_state(table: Table, snapshot: Snapshot | None, standing: TableStanding) -> LogSummary | None:
    """Return the state at a snapshot of main (None: its head); None if our newest commit carries no state of a log.

    The state is that of our newest commit. If other engines have brought messages since, the next offset is above theirs, and the next
    message opens a segment.

    Raises:
        AppendedBelowEnd: Another engine appended messages under offsets that the log has given before, or to a mirror.
        Refused: A message of another engine has no partition, segment or offset, or the last offset there is.
    """
    state = LogSummary.from_properties(standing.state)
    head = snapshot or table.current_snapshot()
    bringing = standing.bringing
    if state is None or head is None or not bringing:
        return state
    files = _brought(table, head, standing, bringing)
    _require_above(table, head, state, standing, bringing, files)
    ends = dict(state.end_offsets)
    for file in files:
        if file.last is not None and file.last >= ends.get(file.partition, 0):
            if file.last >= INT64_MAX:
                raise offsets_used_up(file.path, file.last)
            ends[file.partition] = file.last + 1
    raised = {partition: ActiveSegment(base_offset=end) for partition, end in ends.items() if end != state.end_offsets.get(partition)}
    return replace(state, end_offsets=ends, active={**state.active, **raised})


class _File(NamedTuple):
    """A data file that a commit after our newest one brought. `first`, `last`: offsets; None: unknown."""

    path: str
    snapshot_id: int
    partition: int
    first: int | None
    last: int | None
    on_head: bool


def _brought(table: Table, head: Snapshot, standing: TableStanding, bringing: Sequence[Commit]) -> list[_File]:
    found: dict[str, _File] = {}
    for one in bringing:  # what was on main for a while may have been read
        was = table.snapshot_by_id(one.snapshot_id)
        if was is not None and was.snapshot_id != head.snapshot_id:
            for manifest in _data_manifests(table, was):
                if manifest.added_snapshot_id == was.snapshot_id:
                    found |= {file.path: file for file in _files(table, manifest, on_head=False) if file.snapshot_id == was.snapshot_id}
    for manifest in _data_manifests(table, head):
        if manifest.sequence_number > standing.sequence_number:
            found |= {file.path: file for file in _files(table, manifest, on_head=True)}
    return list(found.values())


def _data_manifests(table: Table, snapshot: Snapshot) -> Iterator[Manifest]:
    return (manifest for manifest in manifests_of(table, snapshot) if manifest.content == ManifestContent.DATA)


def _files(table: Table, manifest: Manifest, *, on_head: bool) -> Iterator[_File]:
    for status, snapshot_id, (path, (partition, _), nulls, lower, upper) in entries(table.io, manifest, _PICK):
        if status == DELETED:
            continue
        first, last = number((lower or {}).get(OFFSET)), number((upper or {}).get(OFFSET))
        if on_head and partition is None:
            raise message_without_place(path, "a partition")
        if on_head and (first is None or last is None) and not (nulls or {}).get(OFFSET):
            first, last = _ends_of(table, path)
        if partition is not None:
            yield _File(path, snapshot_id, partition, first, last, on_head)


def _ends_of(table: Table, path: str) -> tuple[int | None, int | None]:
    """Read the first and the last offset of a file whose metadata do not say them."""
    import pyarrow.compute as pc

    from message_lifecycle.stores.iceberg.data_rows import read_columns

    found = pc.min_max(read_columns(table.io, path, ("offset",)).column("offset")).as_py()
    return found["min"], found["max"]


def _require_above(
    table: Table, head: Snapshot, state: LogSummary, standing: TableStanding, bringing: Iterable[Commit], files: Iterable[_File]
) -> None:
    """Raise AppendedBelowEnd or FileListedTwice. Ignore a file without live messages."""
    appends = {one.snapshot_id for one in bringing if one.operation == "append"}
    is_mirror = table.properties.get(ROLE_PROPERTY) == "mirror"
    late = {
        file.path: file
        for file in files
        if file.on_head
        and file.snapshot_id in appends
        and file.first is not None
        and (is_mirror or file.first < state.end_offsets.get(file.partition, 0))
    }
    if not late:
        return
    prefix, on_head = location_prefix(table.location()), list(files_of(table, head))
    require_listed_once(on_head)
    for found in on_head:
        file = late.get(absolute(prefix, found.name))
        if file is None or found.deleted >= found.rows:
            continue
        end = state.end_offsets.get(file.partition, 0)
        what = "messages to a mirror, which takes its messages from its origin alone" if is_mirror else "messages under offsets of the past"
        raise AppendedBelowEnd(
            ".".join(table.name()),
            file.snapshot_id,
            f"{what}: offsets {file.first} to {file.last} of partition {file.partition}, which ended at {end} in snapshot {standing.snapshot_id}",
        )


def state_of_metadata(content: Metadata, files: FileIO) -> dict[str, str]:
    """Return the state that a new head of main has to carry, by the table's metadata as JSON; empty if the table has none.

    Raises:
        Refused: As `log_state`, LogStateLost, LogRolledBack.
    """
    table = _table((str(content["location"]),), json.dumps(content), files)
    view = state_of_table(table, HORIZONS)
    if view is not None:
        return {key: view.state[key] for key in VIEW_KEYS if key in view.state}
    log = state_of_table(table, END_OFFSETS)
    state = None if log is None else log_state(table, None, log)
    return {} if state is None else state.to_properties()


def _table(name: tuple[str, ...], content: str, files: FileIO) -> Table:
    return Table(name, TableMetadataUtil.parse_raw(content), "", files, NoopCatalog("metadata"))


# Offsets that two messages share.


def require_offsets_once(table: Table, snapshot: Snapshot, suspects: Sequence[FileMetrics]) -> None:
    """Read the offsets of files that may share some. Raises OffsetGivenTwice, MessageWithoutPlace."""
    import numpy as np

    from message_lifecycle.stores.iceberg.data_rows import Vectors, read_rows

    prefix, vectors = location_prefix(table.location()), Vectors(table, snapshot)
    for _, group in groupby(suspects, key=attrgetter("partition")):
        files, offsets = [], []
        for file in group:
            path = absolute(prefix, file.name)
            rows = read_rows(table.io, path, vectors[path], ())
            files.append(file.name)
            offsets.append(rows.offsets[rows.alive])
        distinct, counts = np.unique(np.concatenate(offsets), return_counts=True)
        if (counts > 1).any():
            twice = int(distinct[counts > 1][0])
            raise offset_given_twice(twice, [name for name, those in zip(files, offsets, strict=True) if twice in those])


# A table as Java knows it, read by the same code.


def table_of(java_table: Java, metadata: Java) -> Table:
    """Return the table at these metadata, whose files Java reads."""
    from message_lifecycle.stores.iceberg.table_metadata import document_of

    name = tuple(str(java_table.name()).split(".")[1:])
    return _table(name, json.dumps(document_of(metadata)), _JavaFiles(java_table.io()))


class _JavaFiles(FileIO):
    """Files as Iceberg's own library reads them, whole."""

    def __init__(self, files: Java) -> None:
        super().__init__()
        self._files = files

    def new_input(self, location: str) -> InputFile:
        return _JavaFile(location, self._files)

    def new_output(self, location: str) -> NoReturn:
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> NoReturn:
        raise NotImplementedError(location)


class _JavaFile(InputFile):
    def __init__(self, location: str, files: Java) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return int(self._files.newInputFile(self.location).getLength())

    def exists(self) -> bool:
        return bool(self._files.newInputFile(self.location).exists())

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002  # PyIceberg's signature
        stream = self._files.newInputFile(self.location).newStream()
        try:
            return io.BytesIO(bytes(stream.readAllBytes()))
        finally:
            stream.close()
