"""Changes of plans for tests: from single parts, whatever table each is of, and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

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
from message_lifecycle.model.plan import Plan

Part = SealSegment | DropSegments | RemoveRows | RestoreRows | SnapshotDocument | QuarantinedFile


def named(*parts: Part, source_id: int | None = None) -> tuple[Change, ...]:
    """Rows without a file are the view's."""
    of = {
        kind: tuple(part for part in parts if isinstance(part, kind))
        for kind in (SealSegment, DropSegments, RemoveRows, RestoreRows, SnapshotDocument, QuarantinedFile)
    }
    marks, backs = of[RemoveRows], of[RestoreRows]
    return that_change(
        Commit(table="view", mark=tuple(p for p in marks if not p.file), back=tuple(p for p in backs if not p.file), source_id=source_id),
        Commit(
            table="log",
            seal=of[SealSegment],
            drop=of[DropSegments],
            mark=tuple(part for part in marks if part.file),
            back=tuple(part for part in backs if part.file),
            source_id=source_id,
        ),
        Commit(table="snapshots", documents=of[SnapshotDocument]),
        Commit(table="quarantine", files=of[QuarantinedFile]),
    )


def parts(plan: Plan) -> Iterator[Part]:
    """Of its commits, one by one."""
    for change in plan.changes:
        assert isinstance(change, Commit), "asked of plans that commit"
        yield from (part for field in fields(change) if isinstance(found := getattr(change, field.name), tuple) for part in found)
