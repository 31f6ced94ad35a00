"""Snapshots taken out of a table's metadata: exactly those named, in one compare-and-swap, and no file is removed by it (DEL-7).

Iceberg's own `expireSnapshots().commit()` removes files by walking what each snapshot changed, and takes live ones where a path came
back to life; which files may go is decided here by reachability alone (see `history`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import SnapshotInUse
from message_lifecycle.stores.iceberg.table_file import Document, change_document

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.typedef import Identifier

_NO_SNAPSHOT = -1


def expire(
    catalog: Catalog,
    identifier: Identifier,
    snapshot_ids: Collection[int],
    *,
    properties: Mapping[str, str | None],
    refs: Collection[str] = (),
    metadata_files: Collection[str] = (),
    check: Callable[[Document], None] | None = None,
) -> str:
    """Take these snapshots and refs out, and `metadata_files` (paths as written) out of the log of earlier metadata; set `properties`,
    None removes one. What is gone already is no error. Where the metadata lies then.

    `check` sees the metadata that each attempt builds on, and raises to leave all as it is. Raises SnapshotInUse where another ref
    points at one of the snapshots, TableBusy."""

    def change(document: Document) -> Document:
        if check is not None:
            check(document)
        return without(document, ".".join(identifier), snapshot_ids, properties=properties, refs=refs, metadata_files=metadata_files)

    return change_document(catalog, identifier, change)


def without(
    document: Document,
    table: str,
    snapshot_ids: Collection[int],
    *,
    properties: Mapping[str, str | None],
    refs: Collection[str] = (),
    metadata_files: Collection[str] = (),
) -> Document:
    """The metadata without these. Raises as `expire`."""
    gone = frozenset(snapshot_ids)
    left = {name: ref for name, ref in document.get("refs", {}).items() if name not in refs}
    for name, ref in (*left.items(), ("main", {"snapshot-id": document.get("current-snapshot-id", _NO_SNAPSHOT)})):
        if ref["snapshot-id"] in gone:
            raise SnapshotInUse(table, ref["snapshot-id"], name)
    kept = {key: value for key, value in {**document.get("properties", {}), **properties}.items() if value is not None}
    changed = {
        **document,
        "properties": kept,
        "refs": left,
        "snapshots": [snapshot for snapshot in document.get("snapshots", []) if snapshot["snapshot-id"] not in gone],
        "metadata-log": [entry for entry in document.get("metadata-log", []) if entry["metadata-file"] not in metadata_files],
    }
    log = document.get("snapshot-log", [])
    # Whoever asks what was current at a time must not be told of an older snapshot than was: the log begins after the newest that went.
    cut = max((at for at, entry in enumerate(log) if entry["snapshot-id"] in gone), default=-1)
    changed["snapshot-log"] = log[cut + 1 :]
    for key in ("statistics", "partition-statistics"):
        if document.get(key):
            changed[key] = [entry for entry in document[key] if entry["snapshot-id"] not in gone]
    # A part that was not there stays away: an unchanged document is no new version.
    return {key: value for key, value in changed.items() if value or key in document}
