"""Which offsets a plan's actions take, so that `explain` finds the plan of an offset by an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, assert_never

from message_lifecycle.model.actions import (
    CompactPartition,
    DeleteTable,
    DropQuarantined,
    DropSegments,
    DropTable,
    EraseRows,
    EraseTable,
    ExpireSnapshots,
    RemoveFiles,
    RemoveRows,
    RemoveViewRows,
    RestoreDocument,
    RestoreQuarantined,
    RestoreRows,
    RestoreViewRows,
    ReturnTable,
    SealSegment,
    SnapshotDocument,
    SweepMarkers,
)
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import ranges_of as runs_of


class Covered(NamedTuple):
    """Both ends included. Which single messages of it an action names is told by the action, not here."""

    partition: int
    first_offset: int
    last_offset: int


def ranges_of(plan: Plan) -> Iterator[Covered]:
    """The same ones may come twice: of a message that two files hold, for different branches."""
    of_documents = dict(plan.policy).get("fold") is not None
    for action in plan.actions:
        match action:
            case DropSegments(partition=partition, first_base=first, last_offset=last):
                yield Covered(partition, first, last)
            case RemoveRows(partition=partition, first_offset=first, last_offset=last):
                yield Covered(partition, first, last)
            case EraseRows(table="log", partition=partition, offsets=offsets) if not of_documents:
                runs = list(runs_of(offsets))
                yield Covered(partition, runs[0].start, runs[-1].stop - 1)
            case EraseRows() | EraseTable():
                pass  # of what has no offset in the log, or of no row
            case SealSegment() | SweepMarkers() | CompactPartition() | RemoveViewRows() | SnapshotDocument():
                pass  # takes nothing that has an offset in the log
            case RestoreRows() | RestoreViewRows() | RestoreDocument():
                pass  # takes nothing
            case ExpireSnapshots() | RemoveFiles():
                pass  # what they take has left the log before
            case DropQuarantined() | RestoreQuarantined():
                pass  # was never in it
            case DeleteTable() | ReturnTable() | DropTable():
                pass  # the whole topic's fate, and no offset's
            case _:
                assert_never(action)
