"""What one snapshot and purge does, per bucket, and what came of it: values that cross between driver and tasks."""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.stores.iceberg.compaction.job import NewFile, NewVector
from message_lifecycle.stores.iceberg.documents.inputs import DocumentFile


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What changes in one bucket of one table (`compaction.commit.Written`)."""

    partition: int
    files: tuple[NewFile, ...] = ()
    vectors: tuple[NewVector, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.files or self.vectors or self.dropped)


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
