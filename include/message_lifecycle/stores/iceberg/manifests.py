"""Manifests, read without a JVM: only the fields that a question needs, so that a log of many segments is read in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.avro import reader as avro
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, BooleanType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from message_lifecycle.model.errors import file_listed_twice, message_without_place
from message_lifecycle.stores.iceberg.columns import APPEND_TIME, EXPIRES_AT, NEVER, OFFSET
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.table_folder import location_prefix, reading

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# The fields of the specification that questions need, and its maps and lists, which PyIceberg's Avro reader cannot leave out. PyIceberg's own
# reader of manifests lacks the data file that a deletion vector belongs to, and its import takes a tenth of a short command's time.


class ManifestContent(IntEnum):
    """The kind of files that a manifest lists."""

    DATA = 0
    DELETES = 1


class DataFileContent(IntEnum):
    """The content of a file in a manifest."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class Manifest(NamedTuple):
    """A manifest, as a snapshot's list names it."""

    manifest_path: str
    partition_spec_id: int
    content: int
    sequence_number: int
    added_snapshot_id: int | None
    deleted_files_count: int


_SUMMARY = StructType(NestedField(509, "contains_null", BooleanType(), required=True))
LIST = Schema(
    NestedField(500, "manifest_path", StringType(), required=True),
    NestedField(502, "partition_spec_id", IntegerType(), required=True),
    NestedField(517, "content", IntegerType(), required=True, initial_default=ManifestContent.DATA.value),
    NestedField(515, "sequence_number", LongType(), required=True, initial_default=0),
    NestedField(503, "added_snapshot_id", LongType(), required=True),
    NestedField(506, "deleted_files_count", IntegerType(), required=True),
    NestedField(507, "partitions", ListType(508, _SUMMARY, element_required=True), required=False),
)
_PARTITION = StructType(
    NestedField(1000, "partition", IntegerType(), required=False), NestedField(1001, "segment", LongType(), required=False)
)
FILE = StructType(
    NestedField(134, "content", IntegerType(), required=True, initial_default=DataFileContent.DATA.value),
    NestedField(100, "file_path", StringType(), required=True),
    NestedField(101, "file_format", StringType(), required=True),
    NestedField(102, "partition", _PARTITION, required=True),
    NestedField(103, "record_count", LongType(), required=True),
    NestedField(104, "file_size_in_bytes", LongType(), required=True),
    NestedField(108, "column_sizes", MapType(117, IntegerType(), 118, LongType()), required=False),
    NestedField(109, "value_counts", MapType(119, IntegerType(), 120, LongType()), required=False),
    NestedField(110, "null_value_counts", MapType(121, IntegerType(), 122, LongType()), required=False),
    NestedField(137, "nan_value_counts", MapType(138, IntegerType(), 139, LongType()), required=False),
    NestedField(125, "lower_bounds", MapType(126, IntegerType(), 127, BinaryType()), required=False),
    NestedField(128, "upper_bounds", MapType(129, IntegerType(), 130, BinaryType()), required=False),
    NestedField(132, "split_offsets", ListType(133, LongType(), element_required=True), required=False),
    NestedField(135, "equality_ids", ListType(136, LongType(), element_required=True), required=False),
    NestedField(140, "sort_order_id", IntegerType(), required=False),
    NestedField(143, "referenced_data_file", StringType(), required=False),
    NestedField(144, "content_offset", LongType(), required=False),
    NestedField(145, "content_size_in_bytes", LongType(), required=False),
)
_ENTRY = Schema(
    NestedField(0, "status", IntegerType(), required=True),
    NestedField(1, "snapshot_id", LongType(), required=False),
    NestedField(2, "data_file", FILE, required=True),
)
Row = tuple[Any, ...]
Pick = tuple[int, ...]
"""Positions of fields of a struct."""

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
    """Return the positions of two or more fields of a file, named as in the specification."""
    return tuple([field.name for field in FILE.fields].index(name) for name in names)


_pick = picking(*_FIELDS)
_PATH = [field.name for field in FILE.fields].index("file_path")
VECTORS = picking("content", "file_path", "file_format", "referenced_data_file", "content_offset", "content_size_in_bytes")
_NONE: Mapping[int, Any] = {}
_SCHEMA_KEY = "avro.schema"
DELETED = 2
"""The status of an entry whose file the manifest's snapshot removed."""


_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def _rows(file: InputFile, reader_of: Callable[[str, type[BinaryDecoder]], _Tuples]) -> Iterator[Row]:
    """Yield the rows of an Avro file.

    PyIceberg's `AvroFile` makes a reader for each file. That takes longer than to read a file of few rows.

    Args:
        file: The file.
        reader_of: Returns the reader for a schema and a kind of decoder.

    Raises:
        ValueError, EOFError: The file is damaged.
    """
    with file.open() as stream:
        decoder = new_decoder(stream.read())
    header = _HEADER.read(decoder)
    if _SCHEMA_KEY not in header.meta:
        header.get_schema()  # PyIceberg says what is wrong
    reader = reader_of(header.meta[_SCHEMA_KEY], type(decoder))
    # The header's own `compression_codec` imports all of `pyiceberg.table` to name a default.
    name = header.meta.get(AVRO_CODEC_KEY, "null")
    if name not in KNOWN_CODECS:
        raise ValueError(f"unknown codec {name!r}")
    codec = KNOWN_CODECS[name]
    while (count := _next_count(decoder)) is not None:
        content = decoder.read_bytes()
        block = new_decoder(content if codec is None else codec.decompress(content))
        for _ in range(count):
            yield reader.read(block)
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end with the file's sync marker")


def _next_count(decoder: BinaryDecoder) -> int | None:
    """Return how many rows the next block has, or None at the end of the file."""
    try:
        return decoder.read_int()
    except EOFError:
        return None


@lru_cache(maxsize=64)
def _entries_by(schema: str, decoder: type[BinaryDecoder], pick: Pick) -> _Tuples:
    found = resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(schema)), _ENTRY)
    return _Tuples(found, decoder, (0, 1, 2), pick)


@lru_cache(maxsize=64)
def _manifests_by(schema: str, decoder: type[BinaryDecoder]) -> _Tuples:
    found = resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(schema)), LIST)
    return _Tuples(found, decoder, tuple(range(len(Manifest._fields))))


def entries(io: FileIO, manifest: Manifest, pick: Pick = _pick) -> Iterator[tuple[int, int, Row]]:
    """Yield the status, the snapshot id and the fields of `pick` of each entry in a manifest, also of removed files."""
    added_by = manifest.added_snapshot_id or 0
    with reading(manifest.manifest_path):
        for status, snapshot_id, picked in _rows(io.new_input(manifest.manifest_path), partial(_entries_by, pick=pick)):
            yield status, added_by if snapshot_id is None else snapshot_id, picked


def manifests_of(table: Table, snapshot: Snapshot) -> Sequence[Manifest]:
    """Return the manifests that the snapshot's list names. Raises FileLost, FileUnreadable."""
    return _manifests_in(table.io, snapshot.manifest_list)


def _manifests_in(io: FileIO, manifest_list: str) -> Sequence[Manifest]:
    with reading(manifest_list):
        return [Manifest(*row) for row in _rows(io.new_input(manifest_list), _manifests_by)]


def listed(table: Table, snapshot: Snapshot, pick: Pick, *, content: ManifestContent = ManifestContent.DATA) -> Iterator[Row]:
    """Yield the fields of `pick` of every data file that the snapshot has, or of its delete files.

    Raises:
        Refused: A data file is listed more than once (`FileListedTwice`).
    """
    seen: set[str] = set()
    # One file may hold the deletion vectors of many data files.
    path_at = pick.index(_PATH) if content == ManifestContent.DATA else None
    for manifest in manifests_of(table, snapshot):
        if manifest.content == content:
            for status, _, file in entries(table.io, manifest, pick):
                if status == DELETED:
                    continue
                if path_at is not None:
                    if file[path_at] in seen:
                        raise file_listed_twice(file[path_at])
                    seen.add(file[path_at])
                yield file


class _Tuples(avro.StructReader):
    """Reads a struct as a tuple of the fields of `pick`, and a struct in it as one of `inner`, empty for all.

    PyIceberg's own reader makes an object of each struct, and maps that are filled when they are asked: it takes twice as long.
    """

    __slots__ = ("_fields", "_read_int", "_take")

    def __init__(self, struct: avro.Reader, decoder: type[BinaryDecoder], pick: Pick, inner: Pick = ()) -> None:
        assert isinstance(struct, avro.StructReader)
        super().__init__(struct.field_readers, struct.create_struct, struct.struct)
        places = [place for place, _ in struct.field_readers]
        wanted = pick or tuple(sorted(place for place in places if place is not None))
        self._take: Callable[[list[object]], Row] = itemgetter(*map(places.index, wanted))
        self._fields = tuple(_reading(field, decoder, inner, passed_over=place not in wanted) for place, field in struct.field_readers)
        self._read_int = decoder.read_int

    def read(self, decoder: BinaryDecoder) -> Any:
        # The file has a number before each optional field, which says whether the field is present.
        has = self._read_int
        return self._take([read(decoder) if not optional or has(decoder) > 0 else None for optional, read in self._fields])


def _reading(
    field: avro.Reader, decoder: type[BinaryDecoder], inner: Pick, *, passed_over: bool
) -> tuple[bool, Callable[[BinaryDecoder], object]]:
    """Return whether the field is optional, and the function that reads the field's value."""
    match field:
        case avro.OptionReader():
            return True, _reading(field.option, decoder, inner, passed_over=passed_over)[1]
        case avro.StructReader():
            return False, _Tuples(field, decoder, inner).read
        case avro.MapReader(key=avro.IntegerReader(), value=avro.IntegerReader()) if not passed_over:
            return False, _map_of_numbers
        case avro.IntegerReader():
            return False, decoder.read_int
        case avro.StringReader():
            return False, decoder.read_utf8
    return False, field.read


def _map_of_numbers(decoder: BinaryDecoder) -> dict[int, int]:
    found: dict[int, int] = {}
    while count := decoder.read_int():
        if count < 0:
            count = -count
            decoder.skip_int()  # how long it is
        numbers = decoder.read_ints(2 * count)
        found.update(zip(numbers[::2], numbers[1::2], strict=True))
    return found


def files_of(table: Table, snapshot: Snapshot) -> Iterator[FileMetrics]:
    """Yield the data files of a snapshot, as `files_in` does."""
    return files_in(table.io, table.location(), snapshot.manifest_list)


def files_in(io: FileIO, location: str, manifest_list: str) -> Iterator[FileMetrics]:
    """Yield the data files that a manifest list leads to, with their metrics. Only manifests are read. Raises MessageWithoutPlace.

    Args:
        io: The way to the table's files.
        location: The location of the table.
        manifest_list: The manifest list of one snapshot.
    """
    manifests = _manifests_in(io, manifest_list)
    deleted: dict[str, int] = {}
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            for status, _, (content, _, _, rows, _, _, _, _, referenced) in entries(io, manifest):
                # A deletion vector names its data file. Other kinds of delete files come from other writers, and only lower
                # the count of what is left.
                if status != DELETED and content == DataFileContent.POSITION_DELETES and referenced:
                    deleted[referenced] = rows
    prefix = location_prefix(location)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            for status, _, (_, path, place, rows, size, nulls, lower, upper, _) in entries(io, manifest):
                if status != DELETED:
                    partition, segment = place
                    low, high, without = lower or _NONE, upper or _NONE, nulls or _NONE
                    if (without.get(OFFSET) or 0) > deleted.get(path, 0):
                        raise message_without_place(path, "an offset")
                    never = high.get(NEVER)
                    yield FileMetrics(
                        partition,
                        segment,
                        path.removeprefix(prefix),
                        rows,
                        deleted.get(path, 0),
                        size,
                        number(low.get(OFFSET)),
                        number(high.get(OFFSET)),
                        number(low.get(APPEND_TIME)),
                        number(high.get(APPEND_TIME)),
                        without.get(APPEND_TIME),
                        number(low.get(EXPIRES_AT)),
                        number(high.get(EXPIRES_AT)),
                        without.get(EXPIRES_AT),
                        None if never is None else never != b"\x00",
                        without.get(NEVER),
                    )


def number(bound: bytes | None) -> int | None:
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def vector_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The path of each data file that has a deletion vector, and the path of the file that holds it."""
    for manifest in manifests_of(table, snapshot):
        if manifest.content == ManifestContent.DELETES:
            for status, _, (content, path, *_, referenced) in entries(table.io, manifest):
                if status != DELETED and content == DataFileContent.POSITION_DELETES and referenced:
                    yield referenced, path


def files_removed_by(table: Table, snapshot: Snapshot, by: Collection[int]) -> list[str]:
    """Names of the data files that snapshots of these ids took out of the table; `snapshot`: the last of them, which lists them still."""
    prefix = location_prefix(table.location())
    return sorted(
        file[1].removeprefix(prefix)
        for manifest in manifests_of(table, snapshot)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id in by and manifest.deleted_files_count != 0
        for status, snapshot_id, file in entries(table.io, manifest, picking("content", "file_path"))
        if status == DELETED and snapshot_id in by
    )
