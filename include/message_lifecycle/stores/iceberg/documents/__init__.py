"""The documents of a topic in two tables: their changes and their snapshots (SNP-1 to SNP-10)."""

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

# Find the files that a question needs from the metadata of a document topic's tables, without reading data and without a JVM.


_FIELDS = picking("file_path", "partition", "record_count", "lower_bounds", "upper_bounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFile:
    """A data file of one bucket, with the bounds of its documents and server_seqs; None: the metadata have no bounds."""

    file: InputFile
    bucket: int
    rows: int
    first_document: bytes | None
    last_document: bytes | None
    last_seq: int | None

    def may_contain(self, document: bytes, *, after: int = 0) -> bool:
        """Return whether the file may have a row of the document past `after`, by its bounds."""
        if self.first_document is None or self.last_document is None or self.last_seq is None:
            return True
        return self.first_document <= document <= self.last_document and self.last_seq > after


def files_at(table: Table, snapshot: Snapshot | None) -> list[DocumentFile]:
    """Return the data files of a snapshot. Raises UnreadableDeletes."""
    return [] if snapshot is None else list(_each_file(table, snapshot))


def group_by_bucket(files: Iterable[DocumentFile]) -> dict[int, list[DocumentFile]]:
    found: dict[int, list[DocumentFile]] = {}
    for file in files:
        found.setdefault(file.bucket, []).append(file)
    return found


def files_that_may_hold(files: Sequence[DocumentFile], document: str, bucket: int, *, after: int = 0) -> list[DocumentFile]:
    """Return the files that may hold rows of the document past `after`."""
    name = document.encode()
    return [file for file in files if file.bucket == bucket and file.may_contain(name, after=after)]


def _each_file(table: Table, snapshot: Snapshot) -> Iterator[DocumentFile]:
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


# The work of one snapshot and purge, and its results, per bucket. The driver and the tasks exchange them.


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSettings:
    """How to fold documents: the setting `fold`, and the roots of the fold `yjs`."""

    fold: str
    yjs_roots: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldBucket:
    """The plan's documents of one bucket, with the files of their changes and snapshots at the plan's snapshots."""

    bucket: int
    documents: tuple[SnapshotDocument, ...]
    changes: tuple[DocumentFile, ...]
    snapshots: tuple[DocumentFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldJob:
    """One run of folding.

    Attributes:
        run: The beginning of the names of new files, in the data folders of the tables.
    """

    run: str
    folder: FoldSettings
    changes_folder: str
    snapshots_folder: str
    buckets: tuple[FoldBucket, ...]
    changes_store: Store = HERE
    snapshots_store: Store = HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFoldResult:
    """The results of one bucket; see `model.document.StagedDocuments`."""

    changes: Written
    snapshots: Written
    made: int
    dropped: int
    purged: int
    state_bytes: int
    blocked: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofBucket:
    """One bucket before and after the plan: the files of both tables at the plan's snapshots, and the staged files.

    Attributes:
        documents: The plan's documents except for documents that staging has blocked.
    """

    bucket: int
    documents: tuple[SnapshotDocument, ...]
    changes: tuple[DocumentFile, ...]
    staged_changes: tuple[DocumentFile, ...]
    snapshots: tuple[DocumentFile, ...]
    staged_snapshots: tuple[DocumentFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketProof:
    """Evidence about one bucket: totals (see `evidence`), and the documents with a failed proof."""

    totals: tuple[tuple[str, int], ...]
    unproved: tuple[tuple[str, str], ...]
