"""Changes of plans for tests: from single parts, whatever table each is of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from message_lifecycle.model.change import (
    Change,
    CommitLog,
    CommitQuarantine,
    CommitSnapshots,
    DropSegments,
    QuarantinedFile,
    RemoveFromView,
    RemoveRows,
    RestoreRows,
    ReturnToLog,
    ReturnToView,
    SealSegment,
    SnapshotDocument,
    non_empty_commits,
)

Part = SealSegment | DropSegments | RemoveRows | RestoreRows | SnapshotDocument | QuarantinedFile


Kind = TypeVar("Kind")


def _of(kind: type[Kind], parts: Iterable[object]) -> tuple[Kind, ...]:
    return tuple(part for part in parts if isinstance(part, kind))


def named(*parts: Part, source_id: int | None = None) -> tuple[Change, ...]:
    """Rows without a file are the view's."""
    marks, backs = _of(RemoveRows, parts), _of(RestoreRows, parts)
    return non_empty_commits(
        RemoveFromView(mark=tuple(p for p in marks if not p.file)),
        ReturnToView(back=tuple(p for p in backs if not p.file), source_id=source_id),
        ReturnToLog(back=tuple(part for part in backs if part.file), source_id=source_id),
        CommitLog(seal=_of(SealSegment, parts), drop=_of(DropSegments, parts), mark=tuple(part for part in marks if part.file)),
        CommitSnapshots(documents=_of(SnapshotDocument, parts)),
        CommitQuarantine(files=_of(QuarantinedFile, parts)),
    )
