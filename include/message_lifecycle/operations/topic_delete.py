"""A whole topic deleted, with all that lies beside its log, and brought back (DEL-3, DEL-7).

Nothing of it is removed: its tables lose their names, in one commit, and get them back by an undo. Messages that come after the plan make
it plan again: they would go unseen (DEL-4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from message_lifecycle.model.change import DeleteTables, MovedTable, RestoreTables
from message_lifecycle.model.errors import later_plan
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Expected, Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import DeletedTopic, TopicTable
from message_lifecycle.operations.planning import empty_plan, required_of_table


def plan(
    name: TopicName,
    policy: Policy,
    tables: Sequence[TopicTable],
    *,
    end_offsets: Mapping[int, int],
    consumers: Iterable[str],
    replicas: Iterable[str],
    undone: Iterable[str],
    as_of: Instant,
) -> Plan:
    """Plan the deletion of the topic. The caller has refused the deletion if a legal hold is active (DEL-8).

    `tables` has the log first. `undone` names plans whose messages came back and that nobody released.
    """
    log = tables[0]
    size = sum(table.size_bytes for table in tables)
    beside = "".join(f", {table.table} ({table.rows} rows)" for table in tables[1:])
    requirements = required_of_table(log.table_uuid, log.snapshot_id, policy, end_offsets=end_offsets)
    made = empty_plan("topic_delete", name, policy, requirements, as_of=as_of)
    return replace(
        made,
        changes=(DeleteTables(tables=_moved(tables)),),
        expected=Expected(
            rows_in=log.rows, removed=(("removed", log.rows),) if log.rows else (), removed_bytes=size, bytes_in=size, segments=0
        ),
        asks=(
            f"deletes the whole topic {name}: its log of {amount(log.rows, made.things)}{beside}",
            *(f"consumer {consumer} reads it" for consumer in consumers),
            *(f"replica {replica} copies it, and would stop" for replica in replicas),
            *(f"it has messages that the undo of plan {short(plan_id)} brought back" for plan_id in undone),
        ),
    )


def check_return(deletion: Plan, later: Iterable[Plan]) -> None:
    """`later`: deletions of a topic of the same name that were published since. Raises LaterPlan."""
    for other in later:
        if other.requirements.table_uuid != deletion.requirements.table_uuid:
            raise later_plan(
                deletion.plan_id, other.plan_id, "deleted another topic of the name: what is known of its readers is about that one"
            )


def plan_return(
    deletion: Plan, policy: Policy, found: DeletedTopic | None, *, heeded: tuple[str, ...], erasures: Iterable[str] = (), as_of: Instant
) -> Plan:
    """Plan the return of the topic.

    If `found` is None, the topic came back before, and the plan is empty. `erasures` are open requests that concern the topic.
    """
    was = deletion.requirements
    requirements = required_of_table(was.table_uuid, was.snapshot_id, policy, heeded, end_offsets=dict(was.end_offsets))
    return replace(
        empty_plan("undo", deletion.topic, policy, requirements, as_of=as_of),
        changes=() if found is None else (RestoreTables(tables=_moved(found.tables)),),
        asks=()
        if found is None
        else (
            f"brings back topic {deletion.topic}, deleted by plan {short(deletion.plan_id)}: {amount(found.rows, 'messages')}",
            *(
                f"it may hold the key of open erasure request {short(request)}. Next: `lifecycle erase run {short(request)} --by NAME --why WHY`"
                for request in erasures
            ),
        ),
        parent=deletion.plan_id,
        parent_operation=deletion.operation,
    )


def _moved(tables: Sequence[TopicTable]) -> tuple[MovedTable, ...]:
    return tuple(
        MovedTable(table=t.table, table_uuid=t.table_uuid, snapshot_id=t.snapshot_id, rows=t.rows, size_bytes=t.size_bytes) for t in tables
    )
