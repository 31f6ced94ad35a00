"""Read and write manifests, find the rows of a key in a data file, and rewrite data files without them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_LIST_FILE_SCHEMAS, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StructType

from message_lifecycle.model.erasure import TABLE_KINDS, KeyMatch, TableKind
from message_lifecycle.model.errors import FileUnreadable, unsupported_erasure
from message_lifecycle.operations.erasure import tells_key
from message_lifecycle.stores.iceberg.data_rows import Longs, Positions, vectors_in
from message_lifecycle.stores.iceberg.key_mask import distinct_keys, key_mask, matching
from message_lifecycle.stores.iceberg.puffin import puffin_file
from message_lifecycle.stores.iceberg.shares import MEBIBYTE
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path, reading

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.io import FileIO

# Read and write manifests and manifest lists by Iceberg's specification of format 3, without a JVM.
#
# PyIceberg cannot write either for format 3. Iceberg's own library keeps entries of removed files, with bounds that show keys. Its writer
# also takes one file at a time, with a dozen calls to Java each.
#
# A rewritten manifest keeps every field. The code finds fields by their ids, so files from any writer work.


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
    """A file in a manifest.

    Sequence numbers and row ids are explicit, even where the manifest leaves them to be inherited.

    Attributes:
        file: The file's fields, named as in the specification.
    """

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
    """A manifest.

    Attributes:
        listed: The manifest's fields in the manifest list.
        header: The header of the manifest's file.
        entry_schema: The schema of the manifest's entries.
    """

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
    """A reader of manifests that reads a manifest once, however many snapshots list it."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._read: dict[str, Manifest] = {}

    def of(self, manifest_list: str) -> list[Manifest]:
        """Return the manifests of one snapshot."""
        with reading(manifest_list), AvroFile[Record](self._io.new_input(manifest_list), _LIST) as reader:
            listed = [dict(zip(_LISTED, record._data, strict=True)) for record in reader]
        return [self._manifest(fields) for fields in listed]

    def _manifest(self, listed: Fields) -> Manifest:
        path = str(listed["manifest_path"])
        if path not in self._read:
            self._read[path] = read_manifest(self._io, listed)
        return self._read[path]


def read_manifest(io: FileIO, listed: Fields) -> Manifest:
    path = listed["manifest_path"]
    with reading(path), AvroFile[Record](io.new_input(path)) as own:
        written, header = own.schema, dict(own.header.meta)
    # Take the type of the partitions from the manifest.
    partition = written.find_field("data_file.partition").field_type
    schema = entry_schema(partition)
    entries = []
    with reading(path), AvroFile[Record](io.new_input(path), schema) as reader:
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


def entry_schema(partition: IcebergType) -> Schema:
    """Return the schema of a manifest's entries in format 3.

    Args:
        partition: The type of the table's partitions.
    """
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
    """Write a manifest that replaces `like`, and return its fields for the manifest list. The caller sets the first row id."""
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


# Find the rows of one data file that hold a key. A plan names rows by offset, or by position in the file if they have no offset of their
# own.


_KEYS = ("key", "document")
"""Columns that contain the key: of a message, and of a row that belongs to a document."""
_TEXTS = ("reason", "raw")
"""Columns that may contain a key. A refused row is text, and the reason for its refusal may quote the key."""
_NONE = np.empty(0, np.int64)
KEYS_AT_ONCE = 32 * MEBIBYTE
"""About how many bytes of keys one question about several files compares."""


@dataclass(frozen=True, slots=True)
class KeyRowFinder:
    """Find the rows of one file that hold the key. Tasks receive this object; its text never shows the key."""

    matches: KeyMatch = field(repr=False)

    def __call__(self, io: FileIO, path: str, kind: TableKind) -> Positions:
        """Return the positions of the rows. The search reads one row group at a time, and only columns that may hold the key."""
        found, before = [], 0
        text = TABLE_KINDS[kind].of_text
        names = _TEXTS if text else _KEYS
        # Parquet's dictionary already lists the distinct keys of a row group.
        with opened(io, path, dictionaries=() if text else names) as file:
            columns = [name for name in names if name in file.schema_arrow.names]
            for group in range(file.num_row_groups) if columns else ():
                rows = file.read_row_group(group, columns=columns)
                masks = [(self._telling if text else self._holding)(rows[name]) for name in columns]
                found.append(np.flatnonzero(np.logical_or.reduce(masks)).astype(np.int64) + before)
                before += len(rows)
        return np.concatenate(found) if found else _NONE

    def suspects(self, io: FileIO, paths: Sequence[str], kind: TableKind) -> frozenset[str]:
        """Return the files that may hold the key: files with a matching key, and files that cannot be read.

        One question hashes the distinct keys of many files. Most keys are in several files, and most files do not hold the searched key.
        """
        if TABLE_KINDS[kind].of_text:
            return frozenset(paths)
        suspects, batch, size = set[str](), list[tuple[str, pa.Array]](), 0
        for path in paths:
            try:
                for keys in _distinct_keys(io, path):
                    batch.append((path, keys))
                    size += keys.nbytes
                    if size >= KEYS_AT_ONCE:
                        suspects |= self._with_match(batch)
                        batch, size = [], 0
            except FileUnreadable:
                suspects.add(path)
        return frozenset(suspects | self._with_match(batch))

    def _with_match(self, batch: Sequence[tuple[str, pa.Array]]) -> set[str]:
        if not batch:
            return set()
        found = matching(pc.unique(pa.chunked_array([keys for _, keys in batch], pa.large_binary())), self.matches)
        wanted = pa.array(found, pa.large_binary())
        return {path for path, keys in batch if found and pc.any(pc.is_in(keys, value_set=wanted)).as_py()}

    def _holding(self, keys: pa.ChunkedArray) -> np.ndarray:
        return np.asarray(key_mask(keys, self.matches).to_numpy(zero_copy_only=False), np.bool_)

    def _telling(self, texts: pa.ChunkedArray) -> np.ndarray:
        distinct = pc.drop_null(pc.unique(texts))
        telling = pa.array([tells_key(text, self.matches) for text in distinct.cast(pa.binary()).to_pylist()], pa.bool_())
        return np.asarray(pc.is_in(texts, value_set=distinct.filter(telling), skip_nulls=True).to_numpy(zero_copy_only=False), np.bool_)


def _distinct_keys(io: FileIO, path: str) -> Iterator[pa.Array]:
    """Yield the distinct keys of each row group and key column. Raises FileLost, FileUnreadable."""
    with reading(path), opened(io, path, dictionaries=_KEYS) as file:
        columns = [name for name in _KEYS if name in file.schema_arrow.names]
        for group in range(file.num_row_groups) if columns else ():
            yield from (distinct_keys(keys).cast(pa.large_binary()) for keys in file.read_row_group(group, columns=columns).columns)


def names_of(file: pq.ParquetFile, kind: TableKind) -> Longs:
    """Return the plan's names for the rows: their offsets or positions (see `by_position`)."""
    if by_position(file, kind):
        return np.arange(file.metadata.num_rows, dtype=np.int64)
    return np.asarray(file.read(columns=["offset"])["offset"].to_numpy(), np.int64)


def by_position(file: pq.ParquetFile, kind: TableKind) -> bool:
    """Return whether a plan names rows by position: a refused row has no offset, and a server_seq is unique within its document only."""
    return TABLE_KINDS[kind].of_text or "offset" not in file.schema_arrow.names


class opened:  # a context manager with the name of a function
    """An open Parquet file. A local file is read only as far as the caller asks."""

    def __init__(self, io: FileIO, path: str, *, dictionaries: Sequence[str] = ()) -> None:
        """Set the columns to return as dictionaries, if the file has them."""
        self._io, self._path, self._stack, self._dictionaries = io, path, ExitStack(), list(dictionaries)

    def __enter__(self) -> pq.ParquetFile:
        source: Path | pa.PythonFile
        if is_local(self._path):
            source = local_path(self._path)
        else:
            source = pa.PythonFile(self._stack.enter_context(self._io.new_input(self._path).open()), mode="r")
        footer = pq.read_metadata(source) if self._dictionaries else None
        there = [name for name in self._dictionaries if footer is not None and name in footer.schema.names]
        return self._stack.enter_context(pq.ParquetFile(source, metadata=footer, read_dictionary=there))

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def tells_of_gone(manifest: Manifest) -> bool:
    """Return whether a manifest keeps bounds of key columns for removed files.

    The bounds may show a key, and the removed files cannot be searched any more.
    """
    columns = {
        field
        for entry in manifest.entries
        if not entry.live
        for bounds in ("lower_bounds", "upper_bounds")
        for field in entry.file[bounds] or ()
    }
    return bool(columns) and not columns.isdisjoint(_field_ids(manifest, (*_KEYS, *_TEXTS)))


def _field_ids(manifest: Manifest, names: tuple[str, ...]) -> set[int]:
    """Return the field ids of columns, from the manifest's own schema."""
    from pyiceberg.schema import Schema

    schema = Schema.model_validate_json(manifest.header["schema"])
    return {field.field_id for field in schema.fields if field.name in names}


# Rewrite data files without the rows of an erased key. The other rows keep their order and all their columns.
#
# Rows that a deletion vector marks as removed stay in the file, because an undo may restore them. The new file gets a new vector for the
# new positions. If no row is left, there is no new file.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVector:
    """A deletion vector of the new file, which replaces the vector at `old_puffin` and `old_offset`.

    Attributes:
        puffin: The path of the new vector; None if it would mark no row.
    """

    old_puffin: str
    old_offset: int
    puffin: str | None
    offset: int
    length: int
    rows: int
    puffin_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """The replacement of the data file at `old`.

    Attributes:
        path: The path of the new file; None if no row is left.
    """

    old: str
    path: str | None
    rows: int
    bytes: int
    vectors: tuple[NewVector, ...]


Truths = NDArray[np.bool_]
Replacements = Mapping[str, NewFile]
"""By the path of the old file."""


def rewrite(
    io: FileIO, old: str, gone: Positions, new: str, vectors: Iterable[tuple[str, int]], *, new_puffin: str, within: str
) -> NewFile:
    """Write `old` without the rows at `gone` to `new`.

    Args:
        io: Reads and writes the table's files.
        old: The path of the old file.
        gone: The positions of the rows to leave out.
        new: The path of the new file.
        vectors: The places, as (file, offset), of all vectors that mark rows of `old` in any snapshot.
        new_puffin: The beginning of the names of the new vectors.
        within: The table's name; the error message contains it.

    Raises:
        UnsupportedErasure: The new file would have other types or field ids.
    """
    with opened(io, old) as file:
        total = file.metadata.num_rows
        kept = np.ones(total, np.bool_)
        kept[gone] = False
        rows, size = int(kept.sum()), 0
        if rows:
            _write_remaining_rows(io, file, kept, new, old, within)
            size = len(io.new_input(new))
    places = np.cumsum(kept, dtype=np.int64) - 1
    return NewFile(
        old=old,
        path=new if rows else None,
        rows=rows,
        bytes=size,
        vectors=_vectors(io, old, new if rows else None, vectors, kept, places, new_puffin),
    )


def _write_remaining_rows(io: FileIO, file: pq.ParquetFile, kept: Truths, new: str, old: str, within: str) -> None:
    before = 0
    compression = file.metadata.row_group(0).column(0).compression.lower()
    with ExitStack() as stack:
        sink = stack.enter_context(io.new_output(new).create(overwrite=True))
        writer = stack.enter_context(
            pq.ParquetWriter(
                pa.PythonFile(sink, mode="w"), file.schema_arrow, compression="none" if compression == "uncompressed" else compression,
                store_schema=b"ARROW:schema" in (file.metadata.metadata or {}), use_dictionary=_with_dictionary(file.metadata),
            )
        )  # fmt: skip
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            left = rows.filter(pa.array(kept[before : before + len(rows)]))
            before += len(rows)
            if len(left):
                writer.write_table(left)
    with opened(io, new) as written:
        if _shape(written) != _shape(file):
            raise unsupported_erasure(within, f"the columns of {old} are of types that cannot be written as they are")


def _with_dictionary(file: pq.FileMetaData) -> list[str]:
    """Return the names of the columns that have a dictionary in the first row group."""
    group = file.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    return [column.path_in_schema for column in columns if any("DICTIONARY" in encoding for encoding in column.encodings)]


def _shape(file: pq.ParquetFile) -> tuple[pa.Schema, list[str], list[bytes | None]]:
    """Return the types that a reader sees, the types in the file, and Iceberg's field ids. Other properties differ between writers."""
    leaves = [file.schema.column(at).physical_type for at in range(len(file.schema))]
    return file.schema_arrow.remove_metadata(), leaves, [found for field in file.schema_arrow for found in _ids(field)]


def _ids(field: pa.Field) -> Iterator[bytes | None]:
    yield (field.metadata or {}).get(b"PARQUET:field_id")
    for at in range(field.type.num_fields):
        yield from _ids(field.type.field(at))


def _vectors(
    io: FileIO, old: str, new: str | None, vectors: Iterable[tuple[str, int]], kept: Truths, places: Positions, new_puffin: str
) -> tuple[NewVector, ...]:
    """Write the new vectors, one file each. Two vectors of one data file, from different snapshots, would be indistinguishable in one file."""
    made = []
    for number, (puffin, offset) in enumerate(sorted(vectors)):
        before = vectors_in(io, puffin)[old]
        marked = places[before[kept[before]]]
        if new is None or not len(marked):
            made.append(NewVector(old_puffin=puffin, old_offset=offset, puffin=None, offset=0, length=0, rows=0, puffin_bytes=0))
            continue
        content, (blob,) = puffin_file([(new, marked)])
        path = f"{new_puffin}-{number}-deletes.puffin"
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(content)
        made.append(
            NewVector(
                old_puffin=puffin,
                old_offset=offset,
                puffin=path,
                offset=blob.offset,
                length=blob.length,
                rows=blob.rows,
                puffin_bytes=len(content),
            )
        )
    return tuple(made)


def to_json(files: Sequence[NewFile]) -> bytes:
    return json.dumps([asdict(file) for file in files]).encode()


def from_json(text: bytes) -> tuple[NewFile, ...]:
    return tuple(
        NewFile(**{**fields, "vectors": tuple(NewVector(**vector) for vector in fields["vectors"])}) for fields in json.loads(text)
    )
