"""What must still be true of a topic where a plan made from its tables is applied."""

from __future__ import annotations

from message_lifecycle import __version__
from message_lifecycle.model.document import DocumentTables
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.plan import Requirements
from message_lifecycle.model.settings import Policy


def required(log: LogState, policy: Policy, heeded: tuple[str, ...] = ()) -> Requirements:
    """The table, its snapshot and its ends, the settings, and the legal holds that the plan heeds."""
    return Requirements(
        table_uuid=log.table_uuid,
        snapshot_id=log.snapshot_id,
        end_offsets=tuple(sorted(log.end_offsets.items())),
        policy_hash=policy.hash,
        code_version=__version__,
        heeded=heeded,
    )


def required_of_documents(tables: DocumentTables, policy: Policy, heeded: tuple[str, ...] = ()) -> Requirements:
    """The table of changes, its snapshot, the settings, and the legal holds that the plan heeds; documents have no offsets."""
    return Requirements(
        table_uuid=tables.changes_uuid,
        snapshot_id=tables.changes_id,
        end_offsets=(),
        policy_hash=policy.hash,
        code_version=__version__,
        heeded=heeded,
    )
