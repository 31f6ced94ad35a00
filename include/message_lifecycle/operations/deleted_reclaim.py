"""A deleted topic that cannot be brought back any more gives its space back: every table of it, and every file (DEL-7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from message_lifecycle import __version__
from message_lifecycle.model.change import Change, Forget, Move, MovedTable
from message_lifecycle.model.errors import undo_window_open
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.plan import Expected, Plan, Requirements, Selection
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import DeletedFacts, TableFiles
from message_lifecycle.operations.reclaim import removals


def check(plan_id: str, topic: str, *, until: Instant, now: Instant) -> None:
    """`until`, as an undo judges it: from then on the topic is not brought back. Raises UndoWindowOpen."""
    if now < until:
        raise undo_window_open(plan_id, topic, until=format_instant(until), now=format_instant(now))


def plan(facts: DeletedFacts, policy: Policy, *, as_of: Instant) -> Plan:
    """All of it or nothing, whatever `max_files` says: once its tables are forgotten, nobody finds what was left."""
    topic, log = facts.topic, facts.tables[0].table
    stays = (*facts.held, *(f"{name} is named by nothing and young: somebody may be about to commit it" for name in _young(facts)))
    changes = () if stays else _changes(facts.tables)
    going = [removal for found in facts.tables for removal in removals(found.files)] if changes else []
    size, files = sum(removal.size_bytes for removal in going), sum(len(removal.files) for removal in going)
    return Plan(
        operation="reclaim",
        topic=topic.topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=Requirements(
            table_uuid=log.table_uuid,
            snapshot_id=log.snapshot_id,
            end_offsets=(),
            policy_hash=policy.hash,
            code_version=__version__,
            heeded=facts.heeded,
        ),
        bounds=(),
        changes=changes,
        selection=Selection(),
        expected=Expected(rows_in=0, removed=(), removed_bytes=size, bytes_in=size, segments=0),
        held=(),
        warnings=tuple(f"nothing is reclaimed: {why}" for why in stays),
        asks=(
            f"topic {topic.topic}, deleted by plan {topic.plan_id}, goes for good: {topic.rows} message(s), {files} file(s)",
            *(f"{reader}, as far as the ledger knows" for reader in facts.readers),
        )
        if changes
        else (),
        more=False,
        due_since=None,
        next_due_at=None,
        parent=topic.plan_id,
    )


def _young(facts: DeletedFacts) -> Iterator[str]:
    return (table.young for table in facts.tables if table.young is not None)


def _changes(found: Sequence[TableFiles]) -> tuple[Change, ...]:
    tables = tuple(
        MovedTable(
            table=one.table.table,
            table_uuid=one.table.table_uuid,
            snapshot_id=one.table.snapshot_id,
            rows=one.table.rows,
            location=one.location,
            metadata=one.metadata,
        )
        for one in found
    )
    files = ((one.table, tuple(removals(one.files))) for one in found)
    return (
        Move(to="gone", tables=tables),
        *(Forget(table=table.table, table_uuid=table.table_uuid, files=mine) for table, mine in files if mine),
    )
