"""Changes of plans for tests: from single parts, whatever table each is of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from message_lifecycle.model.change import (
    Change,
    Commit,
    DropSegments,
    QuarantinedFile,
    RemoveRows,
    RestoreRows,
    SealSegment,
    SnapshotDocument,
    that_change,
)

Part = SealSegment | DropSegments | RemoveRows | RestoreRows | SnapshotDocument | QuarantinedFile


Kind = TypeVar("Kind")


def _of(kind: type[Kind], parts: Iterable[object]) -> tuple[Kind, ...]:
    return tuple(part for part in parts if isinstance(part, kind))


def named(*parts: Part, source_id: int | None = None) -> tuple[Change, ...]:
    """Rows without a file are the view's."""
    marks, backs = _of(RemoveRows, parts), _of(RestoreRows, parts)
    return that_change(
        Commit(table="view", mark=tuple(p for p in marks if not p.file), back=tuple(p for p in backs if not p.file), source_id=source_id),
        Commit(
            table="log",
            seal=_of(SealSegment, parts),
            drop=_of(DropSegments, parts),
            mark=tuple(part for part in marks if part.file),
            back=tuple(part for part in backs if part.file),
            source_id=source_id,
        ),
        Commit(table="snapshots", documents=_of(SnapshotDocument, parts)),
        Commit(table="quarantine", files=_of(QuarantinedFile, parts)),
    )
