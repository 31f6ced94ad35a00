"""The erasure of a key from a topic's tables, as a plan (DEL-7, DEL-8, CMP-8).

Everything that holds the key in its bytes goes: rows that readers see, rows that are marked as removed, and what history alone still
names, so history ends with it. The plan names rows by (partition, offset) and files; the key stands nowhere in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.change import EraseRows, Rewrite
from message_lifecycle.model.erasure import TABLE_KINDS, ErasureOf, KeyInTable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Expected, Plan, Requirements, Selection, ViewRequirements
from message_lifecycle.model.settings import Policy


def plan(
    topic: TopicName, requirements: Requirements, policy: Policy, request: ErasureOf, found: Sequence[KeyInTable], *, as_of: Instant
) -> Plan:
    """`found`: of every table of the topic, the log first. Empty where the key is nowhere, and then history stays as well."""
    log = found[0]
    view = {table.table: table for table in found}.get("view")
    concerned = [table for table in found if not table.clean]
    # The log's commit carries the plan, also where the key is left in the view alone.
    chosen = [table for table in found if table is log or table in concerned] if concerned else []
    live = sum(file.live for file in log.files)
    return Plan(
        operation="erasure",
        topic=topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=requirements,
        bounds=(),
        # In the order of their commits: the view first (PRG-1).
        changes=tuple(_change(table) for table in reversed(chosen)),
        selection=Selection(),
        expected=Expected(
            rows_in=log.rows,
            removed=(("erased", live),) if live else (),
            removed_bytes=None,
            bytes_in=log.size_bytes,
            segments=0,
        ),
        held=(),
        warnings=() if concerned else ("no file of the topic's tables holds the key; keys are compared byte by byte",),
        asks=tuple(_question(table) for table in chosen),
        more=False,
        due_since=None,
        next_due_at=None,
        view=None
        if view is None or view not in chosen
        else ViewRequirements(table_uuid=view.table_uuid, snapshot_id=view.snapshot_id, rows=view.rows),
        erasure=request,
    )


def _change(table: KeyInTable) -> Rewrite:
    return Rewrite(
        table=table.table,
        table_uuid=table.table_uuid,
        rows=tuple(
            EraseRows(
                partition=file.partition, base_offset=file.base_offset, file=file.name, offsets=file.offsets, rows=file.rows, live=file.live
            )
            for file in table.files
            if file.needed
        ),
        refs=table.refs,
        undo=table.undo,
        snapshots=table.snapshots,
        files=tuple(file.name for file in table.files if not file.needed),
    )


def _question(table: KeyInTable) -> str:
    rewritten, rows = sum(file.needed for file in table.files), sum(file.rows for file in table.files)
    return (
        f"erasure from {TABLE_KINDS[table.table].words}: {rows} rows of the key in {len(table.files)} files, of which {rewritten} are written again; its "
        f"{len(table.snapshots)} snapshots end now, and with them time travel and every reader of an older snapshot. What can be undone "
        "today still can be, without these rows"
    )
