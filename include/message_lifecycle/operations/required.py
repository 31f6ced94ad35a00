"""What must still be true of a topic where a plan made from this log is applied."""

from __future__ import annotations

from message_lifecycle import __version__
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.plan import Requirements
from message_lifecycle.model.settings import Policy


def required(log: LogState, policy: Policy) -> Requirements:
    """The table, its snapshot and its ends, and the settings."""
    return Requirements(
        table_uuid=log.table_uuid,
        snapshot_id=log.snapshot_id,
        end_offsets=tuple(sorted(log.end_offsets.items())),
        policy_hash=policy.hash,
        code_version=__version__,
    )
