"""What must still be true of a topic where a plan made from its tables is applied."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from message_lifecycle import __version__
from message_lifecycle.model.document import DocumentTables
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.plan import Requirements
from message_lifecycle.model.settings import Policy


def required(log: LogState, policy: Policy, heeded: tuple[str, ...] = ()) -> Requirements:
    """The table, its snapshot and its ends, the settings, and the legal holds that the plan heeds."""
    return required_of_table(log.table_uuid, log.snapshot_id, policy, heeded, end_offsets=log.end_offsets)


def required_of_documents(tables: DocumentTables, policy: Policy, heeded: tuple[str, ...] = ()) -> Requirements:
    """The table of changes, its snapshot, the settings, and the legal holds that the plan heeds."""
    return required_of_table(tables.changes_uuid, tables.changes_id, policy, heeded)


def required_of_table(
    table_uuid: str,
    snapshot_id: int | None,
    policy: Policy,
    heeded: tuple[str, ...] = (),
    *,
    end_offsets: Mapping[int, int] = MappingProxyType({}),
) -> Requirements:
    """The same of any table. `end_offsets` by partition; empty: its rows have none."""
    return Requirements(
        table_uuid=table_uuid,
        snapshot_id=snapshot_id,
        end_offsets=tuple(sorted(end_offsets.items())),
        policy_hash=policy.hash,
        code_version=__version__,
        heeded=heeded,
    )
