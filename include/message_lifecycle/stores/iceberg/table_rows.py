"""How many rows a table has, by its manifests: read twice, by two readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFileContent, ManifestContent

from message_lifecycle.stores.iceberg.manifests import DELETED, entries, picking

if TYPE_CHECKING:
    from pyiceberg.table import Table

_PICK = picking("content", "file_path", "record_count", "file_size_in_bytes", "referenced_data_file")


def rows_by_manifests(table: Table, snapshot_id: int | None) -> tuple[int, int]:
    """Rows that no vector marks, and bytes of the data files, at the snapshot. None: nothing was ever written."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    rows, sizes, marked = dict[str, int](), dict[str, int](), dict[str, int]()
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        for status, _, (content, path, count, size, referenced) in entries(table.io, manifest, _PICK):
            if status == DELETED:
                continue
            if manifest.content == ManifestContent.DATA:
                rows[path], sizes[path] = count, size
            elif content == DataFileContent.POSITION_DELETES.value and referenced:
                marked[referenced] = count
    return sum(count - marked.get(path, 0) for path, count in rows.items()), sum(sizes.values())


def rows_by_pyiceberg(table: Table) -> int:
    """The same of the newest snapshot, by PyIceberg's own reading of manifests, which cannot tell whose marks a vector holds."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    found = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    data = sum(file.record_count for file in found if file.content == DataFileContent.DATA)
    return data - sum(file.record_count for file in found if file.content == DataFileContent.POSITION_DELETES)
