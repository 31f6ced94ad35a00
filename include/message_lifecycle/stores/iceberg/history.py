"""What a table's history names: every file that a set of its snapshots can be read through, without a JVM (DEL-7).

`document` is a table's metadata as JSON. Files are named relative to the table's location (see `file_names`). Each manifest is read
once, however many snapshots list it, and nothing is held of it but its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_LIST_FILE_SCHEMAS, DataFileContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, PrimitiveType, StructType

from message_lifecycle.stores.iceberg.file_names import Within

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

FileKind = Literal["data", "vector", "manifest", "list", "statistics", "metadata"]
"""`vector`: deletion vectors and every other kind of delete file. `metadata`: the documents themselves."""
Document = Mapping[str, Any]

_DELETED = ManifestEntryStatus.DELETED.value
_DATA = DataFileContent.DATA.value
# PyIceberg's reader can leave out no field that has fields of its own; all else that is not asked for it skips.
_OF_FILE = [
    NestedField(102, "partition", StructType(), required=True) if field.name == "partition" else field
    for field in DATA_FILE_TYPE[2].fields
    if field.name in ("content", "file_path", "partition") or not isinstance(field.field_type, PrimitiveType)
]
_ENTRY = Schema(NestedField(0, "status", IntegerType(), required=True), NestedField(2, "data_file", StructType(*_OF_FILE), required=True))
_CONTENT, _PATH = ([field.name for field in _OF_FILE].index(name) for name in ("content", "file_path"))
_LISTED = Schema(*(field for field in MANIFEST_LIST_FILE_SCHEMAS[2].fields if field.name in ("manifest_path", "partitions")))


class NamedFile(NamedTuple):
    """A file that history names. One may be named more than once; `kept` where one of the snapshots to keep names it."""

    name: str
    kind: FileKind
    kept: bool = True


def snapshot_ids(document: Document) -> tuple[int, ...]:
    """All snapshots that the table remembers, oldest first as they stand."""
    return tuple(int(snapshot["snapshot-id"]) for snapshot in document.get("snapshots") or ())


def reachable(io: FileIO, document: Document, snapshots: Collection[int]) -> Iterator[NamedFile]:
    """Every file that these snapshots are read through: data, delete files, manifests, their lists, statistics.

    A manifest or list that is not there raises what reading it raises: what cannot be read is not known, and nothing may go by it."""
    return _walk(io, document, [(snapshot, True) for snapshot in _snapshots(document) if snapshot["snapshot-id"] in snapshots])


def all_named(io: FileIO, document: Document, *, kept: Collection[int]) -> Iterator[NamedFile]:
    """As `reachable`, of every snapshot that the table remembers, `kept` or not. A file that both kinds name comes up as kept and may
    come up as not kept too: it stays."""
    return _walk(io, document, [(snapshot, snapshot["snapshot-id"] in kept) for snapshot in _snapshots(document)])


def _walk(io: FileIO, document: Document, snapshots: Iterable[tuple[Mapping[str, Any], bool]]) -> Iterator[NamedFile]:
    within = Within(str(document["location"]))
    manifests: dict[str, bool] = {}
    stays = dict[int, bool]()
    for snapshot, kept in snapshots:
        stays[int(snapshot["snapshot-id"])] = kept
        # Tables of format 1 may name their manifests in place of a list.
        listed = snapshot.get("manifest-list")
        for path in _manifests(io, listed) if listed else snapshot.get("manifests") or ():
            manifests[path] = manifests.get(path, False) or kept
        if listed:
            yield NamedFile(within.name(listed), "list", kept)
    for path, kept in manifests.items():
        yield NamedFile(within.name(path), "manifest", kept)
        for content, file in _live(io, path):
            yield NamedFile(within.name(file), "data" if content == _DATA else "vector", kept)
    for key in ("statistics", "partition-statistics"):
        for entry in document.get(key) or ():
            snapshot_id = int(entry["snapshot-id"])
            if snapshot_id in stays:
                yield NamedFile(within.name(entry["statistics-path"]), "statistics", stays[snapshot_id])


def _snapshots(document: Document) -> list[Mapping[str, Any]]:
    return list(document.get("snapshots") or ())


def _manifests(io: FileIO, manifest_list: str) -> Iterator[str]:
    with AvroFile[Record](io.new_input(manifest_list), _LISTED) as reader:
        for record in reader:
            yield record._data[0]


def _live(io: FileIO, manifest: str) -> Iterator[tuple[int, str]]:
    """Content and path of the files that a manifest holds; of those it says are gone, another manifest decides."""
    with AvroFile[Record](io.new_input(manifest), _ENTRY) as reader:
        for record in reader:
            status, file = record._data
            if status != _DELETED:
                yield file._data[_CONTENT], file._data[_PATH]
