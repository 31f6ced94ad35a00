"""Files and snapshots that may not go."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors.kinds import BadInput, Refused


class OutsideTable(Refused):
    """A file is to be removed that does not lie below its table's location."""

    def __init__(self, location: str, name: str) -> None:
        self.location, self.name = location, name
        super().__init__(
            f"{name!r} is no file below {location}. Allowed: names relative to the table's location, without '.', '..' or empty steps. "
            "Nothing was removed."
        )


class SnapshotInUse(Refused):
    """A snapshot is to be expired that a branch or a tag still names."""

    def __init__(self, table: str, snapshot_id: int, ref: str) -> None:
        self.table, self.snapshot_id, self.ref = table, snapshot_id, ref
        super().__init__(
            f"table {table}: snapshot {snapshot_id} is where {ref!r} points. Nothing was expired; remove that branch or tag first."
        )


class NothingDeleted(BadInput):
    """A plan by which no topic is deleted now."""

    def __init__(self, plan_id: str, found: str) -> None:
        self.plan_id, self.found = plan_id, found
        super().__init__(
            f"plan {plan_id} {found}: there is no deleted topic of it to reclaim. `lifecycle topic list --deleted` names those that there are."
        )


class FilesLeft(Refused):
    """What a reclaim has begun that the ledger does not know cannot be ended while files are there: no plan names them."""

    def __init__(self, plan_id: str, topic: str, files: Sequence[str]) -> None:
        self.plan_id, self.topic, self.files = plan_id, topic, tuple(files)
        super().__init__(
            f"plan {plan_id} has begun to remove the deleted topic {topic} for good, and this ledger does not know it (was it restored from "
            f"before?), so nothing is removed by it. There still: {', '.join(files)}. Nothing reads these files any more: remove what lies "
            "in their folders by hand, and run this again."
        )


class UndoWindowOpen(Refused):
    """A deleted topic that can still be brought back, by the ledger's clock."""

    def __init__(self, plan_id: str, topic: str, *, until: str, now: str) -> None:
        self.plan_id, self.topic, self.until, self.now = plan_id, topic, until, now
        super().__init__(
            f"topic {topic}, deleted by plan {plan_id}, can be brought back until {until}; it is {now} now. Nothing of it goes before."
        )
