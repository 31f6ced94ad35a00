"""Manifests and lists of manifests as they stand, and written again: by Iceberg's specification of format 3, without a JVM.

PyIceberg writes neither for format 3. Iceberg's own library writes them as it takes files out, and then keeps entries of what went, with
bounds that tell keys; its writer takes files one by one, each by a dozen calls from here. What a record holds is carried over field by
field; fields are found by their ids, so that it does not matter which writer wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_LIST_FILE_SCHEMAS, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StructType

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

EXISTING: int = ManifestEntryStatus.EXISTING.value
ADDED: int = ManifestEntryStatus.ADDED.value
DELETED: int = ManifestEntryStatus.DELETED.value
DATA = DataFileContent.DATA.value
POSITION_DELETES = DataFileContent.POSITION_DELETES.value
OF_DATA: int = ManifestContent.DATA.value
_LIST = Schema(*MANIFEST_LIST_FILE_SCHEMAS[2].fields, NestedField(520, "first_row_id", LongType(), required=False))
_LISTED = [field.name for field in _LIST.fields]
_FILE = [field.name for field in DATA_FILE_TYPE[3].fields]
_HEADER = ("schema", "schema-id", "partition-spec", "partition-spec-id", "content")
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file in a manifest. `file`: its fields by the specification's names. Sequence numbers and row ids are told outright, also where
    the manifest leaves them to be inherited."""

    status: int
    snapshot_id: int
    sequence_number: int | None
    file_sequence_number: int | None
    file: Fields

    @property
    def path(self) -> str:
        return str(self.file["file_path"])

    @property
    def live(self) -> bool:
        return self.status != DELETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`listed`: its fields in the list; `header` and `entry_schema`: as it was written."""

    listed: Fields
    header: Mapping[str, str]
    entry_schema: Schema
    entries: tuple[Entry, ...]

    @property
    def path(self) -> str:
        return str(self.listed["manifest_path"])

    @property
    def of_data(self) -> bool:
        return bool(self.listed["content"] == OF_DATA)


class Manifests:
    """Each manifest is read once, however many snapshots list it."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._read: dict[str, Manifest] = {}

    def of(self, manifest_list: str) -> list[Manifest]:
        """The manifests of one snapshot."""
        with AvroFile[Record](self._io.new_input(manifest_list), _LIST) as reader:
            listed = [dict(zip(_LISTED, record._data, strict=True)) for record in reader]
        return [self._manifest(fields) for fields in listed]

    def _manifest(self, listed: Fields) -> Manifest:
        path = str(listed["manifest_path"])
        if path not in self._read:
            self._read[path] = read_manifest(self._io, listed)
        return self._read[path]


def read_manifest(io: FileIO, listed: Fields) -> Manifest:
    path = listed["manifest_path"]
    with AvroFile[Record](io.new_input(path)) as own:
        written, header = own.schema, dict(own.header.meta)
    # Partitions are as the table's own: what the manifest says.
    partition = written.find_field("data_file.partition").field_type
    schema = entry_schema(partition)
    entries = []
    with AvroFile[Record](io.new_input(path), schema) as reader:
        next_row_id = listed["first_row_id"]
        for record in reader:
            status, snapshot_id, sequence_number, file_sequence_number, file = record._data
            fields = dict(zip(_FILE, file._data, strict=True))
            inherits = status == ADDED
            if listed["content"] == OF_DATA:
                if next_row_id is None:
                    fields["first_row_id"] = None
                elif status != DELETED and fields["first_row_id"] is None:
                    fields["first_row_id"] = next_row_id
                    next_row_id += fields["record_count"]
            entries.append(
                Entry(
                    status=status,
                    snapshot_id=listed["added_snapshot_id"] if snapshot_id is None else snapshot_id,
                    sequence_number=listed["sequence_number"] if sequence_number is None and inherits else sequence_number,
                    file_sequence_number=listed["sequence_number"] if file_sequence_number is None and inherits else file_sequence_number,
                    file=fields,
                )
            )
    return Manifest(listed=listed, header=header, entry_schema=schema, entries=tuple(entries))


def entry_schema(partition: Any) -> Schema:
    """Of format 3; `partition`: the type of the table's partitions."""
    file = StructType(
        *(NestedField(102, "partition", partition, required=True) if f.name == "partition" else f for f in DATA_FILE_TYPE[3].fields)
    )
    return Schema(
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(1, "snapshot_id", LongType(), required=False),
        NestedField(3, "sequence_number", LongType(), required=False),
        NestedField(4, "file_sequence_number", LongType(), required=False),
        NestedField(2, "data_file", file, required=True),
    )


def write_manifest(io: FileIO, path: str, like: Manifest, entries: Sequence[Entry], *, snapshot_id: int, sequence_number: int) -> Fields:
    """Write a manifest that takes the place of `like`; what the list is to say of it, but for row ids."""
    header = {name: like.header[name] for name in _HEADER if name in like.header} | {"format-version": "3"}
    output = io.new_output(path)
    with AvroOutputFile[Record](output, like.entry_schema, "manifest_entry", metadata=header) as writer:
        writer.write_block([_record(entry) for entry in entries])
    added = [entry for entry in entries if entry.status == ADDED]
    kept = [entry for entry in entries if entry.status == EXISTING]
    numbers = [entry.sequence_number for entry in entries if entry.sequence_number is not None]
    return {
        **like.listed,
        "manifest_path": path,
        "manifest_length": len(io.new_input(path)),
        "sequence_number": sequence_number,
        "min_sequence_number": min(numbers, default=sequence_number),
        "added_snapshot_id": snapshot_id,
        "added_files_count": len(added),
        "existing_files_count": len(kept),
        "deleted_files_count": 0,
        "added_rows_count": sum(entry.file["record_count"] for entry in added),
        "existing_rows_count": sum(entry.file["record_count"] for entry in kept),
        "deleted_rows_count": 0,
        "first_row_id": None,
    }


def _record(entry: Entry) -> Record:
    file = Record(*(entry.file[name] for name in _FILE))
    return Record(entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number, file)


def write_list(io: FileIO, path: str, manifests: Iterable[Fields], *, snapshot_id: int, sequence_number: int, first_row_id: int) -> None:
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": str(sequence_number),
        "first-row-id": str(first_row_id),
        "format-version": "3",
    }
    with AvroOutputFile[Record](io.new_output(path), _LIST, "manifest_file", metadata=header) as writer:
        records = [Record(*(fields[name] for name in _LISTED)) for fields in manifests]
        if records:
            writer.write_block(records)
