"""Documents of a topic on two tables: their changes, and beside them their snapshots (SNP-1 to SNP-10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.stores.iceberg.columns import DOCUMENT, SERVER_SEQ
from message_lifecycle.stores.iceberg.compaction.view_table import vectors_by_file
from message_lifecycle.stores.iceberg.manifests import listed, picking
from message_lifecycle.stores.iceberg.tasks import HERE, InputFile, Store, Written

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# From the metadata of a document topic's tables to the files that a question needs: no data is read, and no JVM is needed.


_FIELDS = picking("file_path", "partition", "record_count", "lower_bounds", "upper_bounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFile:
    """A data file of one bucket, with the documents and server_seqs between its bounds; None: the metadata do not say."""

    file: InputFile
    bucket: int
    rows: int
    first_document: bytes | None
    last_document: bytes | None
    last_seq: int | None

    def may_hold(self, document: bytes, *, after: int = 0) -> bool:
        """Whether the bounds leave it possible that the document has a row past `after` in it."""
        if self.first_document is None or self.last_document is None or self.last_seq is None:
            return True
        return self.first_document <= document <= self.last_document and self.last_seq > after


def files_at(table: Table, snapshot: Snapshot | None) -> list[DocumentFile]:
    """All data files of a snapshot. Raises UnreadableDeletes."""
    return [] if snapshot is None else list(_each(table, snapshot))


def of_buckets(files: Iterable[DocumentFile]) -> dict[int, list[DocumentFile]]:
    found: dict[int, list[DocumentFile]] = {}
    for file in files:
        found.setdefault(file.bucket, []).append(file)
    return found


def holding(files: Sequence[DocumentFile], document: str, bucket: int, *, after: int = 0) -> list[DocumentFile]:
    """Those that may hold rows of the document past `after`."""
    name = document.encode()
    return [file for file in files if file.bucket == bucket and file.may_hold(name, after=after)]


def _each(table: Table, snapshot: Snapshot) -> Iterator[DocumentFile]:
    vectors, store = vectors_by_file(table, snapshot), Store.of(table)
    for path, place, rows, lower, upper in listed(table, snapshot, _FIELDS):
        low, high = lower or {}, upper or {}
        last_seq = high.get(SERVER_SEQ)
        yield DocumentFile(
            file=InputFile(path=path, vector=vectors.get(path), store=store),
            bucket=place[0],
            rows=rows,
            first_document=low.get(DOCUMENT),
            last_document=high.get(DOCUMENT),
            last_seq=None if last_seq is None else int.from_bytes(last_seq, "little", signed=True),
        )


# What one snapshot and purge does, per bucket, and what came of it: values that cross between driver and tasks.


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """How documents are folded: the setting `fold`, and the roots of the fold `yjs`."""

    fold: str
    yjs_roots: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldBucket:
    """Documents of a bucket, by name, and the files that hold their changes and snapshots at the plan's snapshots."""

    bucket: int
    documents: tuple[SnapshotDocument, ...]
    changes: tuple[DocumentFile, ...]
    snapshots: tuple[DocumentFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldJob:
    """`run`: begins the names of new files, which lie in the tables' folders of data."""

    run: str
    folder: Folder
    changes_folder: str
    snapshots_folder: str
    buckets: tuple[FoldBucket, ...]
    changes_store: Store = HERE
    snapshots_store: Store = HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedBucket:
    """As `model.document.StagedDocuments`, of one bucket."""

    changes: Written
    snapshots: Written
    made: int
    dropped: int
    purged: int
    state_bytes: int
    blocked: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofBucket:
    """A bucket before and after: files of both tables at the plan's snapshots, and as they are staged. `documents`: those that the
    staging has not blocked."""

    bucket: int
    documents: tuple[SnapshotDocument, ...]
    changes: tuple[DocumentFile, ...]
    staged_changes: tuple[DocumentFile, ...]
    snapshots: tuple[DocumentFile, ...]
    staged_snapshots: tuple[DocumentFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """What the gate is told of one bucket: totals (see `evidence`), and the documents whose proof fails."""

    totals: tuple[tuple[str, int], ...]
    unproved: tuple[tuple[str, str], ...]
