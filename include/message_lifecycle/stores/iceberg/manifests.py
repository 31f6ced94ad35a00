"""Manifests, read without a JVM: only the fields that a question needs, so that a log of many segments is read in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.manifest import DATA_FILE_TYPE, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from message_lifecycle.stores.iceberg.columns import APPEND_TIME, EXPIRES_AT, NEVER, OFFSET
from message_lifecycle.stores.iceberg.file_names import location_prefix
from message_lifecycle.stores.iceberg.segments import FileMetrics

if TYPE_CHECKING:
    from pyiceberg.avro.reader import Reader
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# PyIceberg reads manifests by version 2, which lacks the data file that a deletion vector belongs to. Of maps and lists its
# reader can leave out none.
_PARTITION = StructType(
    NestedField(1000, "partition", IntegerType(), required=False), NestedField(1001, "segment", LongType(), required=False)
)
_FILE = StructType(
    *(
        NestedField(102, "partition", _PARTITION, required=True) if field.name == "partition" else field
        for field in DATA_FILE_TYPE[3].fields
    )
)
_ENTRY = Schema(
    NestedField(0, "status", IntegerType(), required=True),
    NestedField(1, "snapshot_id", LongType(), required=False),
    NestedField(2, "data_file", _FILE, required=True),
)
Row = tuple[Any, ...]
Pick = Callable[[Row], Row]

_FIELDS = (
    "content",
    "file_path",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "null_value_counts",
    "lower_bounds",
    "upper_bounds",
    "referenced_data_file",
)


def picking(*names: str) -> Pick:
    """Takes these fields of a file, by the specification's names, out of all."""
    return itemgetter(*([field.name for field in _FILE.fields].index(name) for name in names))


_pick = picking(*_FIELDS)
VECTORS = picking("content", "file_path", "file_format", "referenced_data_file", "content_offset", "content_size_in_bytes")
_NONE: Mapping[int, Any] = {}
_SCHEMA_KEY = "avro.schema"
DELETED = ManifestEntryStatus.DELETED.value


class _Entries(AvroFile[Record]):
    """A manifest of few files takes longer to get its reader than to be read: one reader is made for each schema that manifests have."""

    def __enter__(self) -> _Entries:
        with self.input_file.open() as file:
            self.decoder = new_decoder(file.read())
        self.header = self._read_header()
        schema = self.header.meta.get(_SCHEMA_KEY)
        # Where there is none, PyIceberg says so.
        self.reader = resolve_reader(self.header.get_schema(), _ENTRY) if schema is None else _reader(schema)
        return self


@lru_cache(maxsize=64)
def _reader(schema: str) -> Reader:
    return resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(schema)), _ENTRY)


def entries(io: FileIO, manifest: ManifestFile, pick: Pick = _pick) -> Iterator[tuple[int, int, Row]]:
    """All entries of a manifest, those of removed files included: status, snapshot id, and the file's fields that `pick` takes."""
    added_by = manifest.added_snapshot_id or 0
    with _Entries(io.new_input(manifest.manifest_path)) as reader:
        for record in reader:
            status, snapshot_id, file = record._data
            yield status, added_by if snapshot_id is None else snapshot_id, pick(file._data)


def files_of(table: Table, snapshot: Snapshot) -> Iterator[FileMetrics]:
    """The data files of a snapshot with their metrics; nothing but manifests is read."""
    manifests = snapshot.manifests(table.io)
    deleted: dict[str, int] = {}
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            for status, _, (content, _, _, rows, _, _, _, _, referenced) in entries(table.io, manifest):
                # A deletion vector names its data file. Other kinds of delete files come from other writers, and only lower
                # the count of what is left.
                if status != DELETED and content == DataFileContent.POSITION_DELETES.value and referenced:
                    deleted[referenced] = rows
    prefix = location_prefix(table.location())
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            for status, _, (_, path, place, rows, size, nulls, lower, upper, _) in entries(table.io, manifest):
                if status != DELETED:
                    partition, segment = place._data
                    low, high, without = lower or _NONE, upper or _NONE, nulls or _NONE
                    never = high.get(NEVER)
                    yield FileMetrics(
                        partition,
                        segment,
                        path.removeprefix(prefix),
                        rows,
                        deleted.get(path, 0),
                        size,
                        _number(low.get(OFFSET)),
                        _number(high.get(OFFSET)),
                        _number(low.get(APPEND_TIME)),
                        _number(high.get(APPEND_TIME)),
                        without.get(APPEND_TIME),
                        _number(low.get(EXPIRES_AT)),
                        _number(high.get(EXPIRES_AT)),
                        without.get(EXPIRES_AT),
                        None if never is None else never != b"\x00",
                        without.get(NEVER),
                    )


def _number(bound: bytes | None) -> int | None:
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def vector_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The path of each data file that has a deletion vector, and the path of the file that holds it."""
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DELETES:
            for status, _, (content, path, *_, referenced) in entries(table.io, manifest):
                if status != DELETED and content == DataFileContent.POSITION_DELETES.value and referenced:
                    yield referenced, path


def removed_by(table: Table, snapshot: Snapshot) -> list[str]:
    """Names of the data files that this snapshot took out of the table."""
    prefix = location_prefix(table.location())
    return sorted(
        file[1].removeprefix(prefix)
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        and manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.deleted_files_count != 0
        for status, snapshot_id, file in entries(table.io, manifest)
        if status == DELETED and snapshot_id == snapshot.snapshot_id
    )
