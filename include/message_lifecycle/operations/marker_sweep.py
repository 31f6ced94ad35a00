"""The sweep for markers still owed: keys that another writer's deletes have emptied since the last sweep (MRK-2)."""

from __future__ import annotations

from message_lifecycle.model.change import Commit, that_change
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Expected, Plan, Selection
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.required import required
from message_lifecycle.operations.sparing import markers_spare


def plan(facts: Facts, policy: Policy, removals: tuple[int, ...] | None, *, as_of: Instant) -> Plan:
    """`removals`: snapshots in which another writer removed messages since the last sweep, oldest first; None: not known any more.

    Such a plan removes nothing but older markers of the keys it marks. Whether a key is owed one is found out with the markers.
    """
    log = facts.log
    owed = removals if removals and policy.marker_ttl_us is not None and policy.cleaner_enabled else ()
    return Plan(
        operation="marker_generation",
        topic=log.topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=required(log, policy, facts.heeded),
        bounds=(),
        changes=that_change(Commit(table="log", sweep=owed)),
        selection=Selection(),
        expected=Expected(
            rows_in=sum(segment.rows for segment in log.segments),
            removed=(),
            removed_bytes=0,
            bytes_in=sum(segment.size_bytes for segment in log.segments),
            segments=0,
        ),
        held=(),
        warnings=()
        if removals is not None
        else ("the history since the last sweep is gone from the table: markers owed for it, if any, are not made",),
        asks=(),
        more=False,
        due_since=None,
        next_due_at=None,
        spared=markers_spare(facts, policy),
    )
