"""Which offsets a plan's actions take, so that `explain` finds the plan of an offset by an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, assert_never

from message_lifecycle.model.plan import (
    CompactPartition,
    DropSegments,
    Plan,
    RemoveRows,
    RemoveViewRows,
    SealSegment,
    SnapshotDocument,
    SweepMarkers,
)


class Covered(NamedTuple):
    """Both ends included. Which single messages of it an action names is told by the action, not here."""

    partition: int
    first_offset: int
    last_offset: int


def ranges_of(plan: Plan) -> Iterator[Covered]:
    for action in plan.actions:
        match action:
            case DropSegments(partition=partition, first_base=first, last_offset=last):
                yield Covered(partition, first, last)
            case RemoveRows(partition=partition, first_offset=first, last_offset=last):
                yield Covered(partition, first, last)
            case SealSegment() | SweepMarkers() | CompactPartition() | RemoveViewRows() | SnapshotDocument():
                pass  # takes nothing that has an offset in the log
            case _:
                assert_never(action)
