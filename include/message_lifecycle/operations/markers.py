"""The keys that get a marker when messages leave (MRK-1 to MRK-5)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from message_lifecycle.model.change import CommitLog, non_empty_commits
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Marker, Message, causes_none
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import MarkerReason, RemovalReason, marker_of
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.planning import empty_plan_of_log


def make_markers(
    gone: Iterable[tuple[Message, RemovalReason]],
    live_keys: Container[bytes],
    *,
    as_of: Instant,
    marker_ttl_us: int,
    newest: Mapping[int, Instant],
) -> tuple[Marker, ...]:
    """Return one marker for each key that keeps no live message and loses one to an age rule or a request.

    The newest of its removed messages, by whatever rule, decides whether the key gets a marker.

    Args:
        gone: The removed messages, each with its reason.
        live_keys: Keys of the remaining messages, markers left out.
        as_of: The instant of the plan. No marker has an older append time.
        marker_ttl_us: The lifetime of a marker, in microseconds.
        newest: The newest known append_time of each partition.
    """
    last: dict[bytes, Message] = {}
    causes: dict[bytes, tuple[Message, MarkerReason]] = {}
    for message, reason in gone:
        if message.key is None or message.key in live_keys:
            continue
        if message.key not in last or _place(message) > _place(last[message.key]):
            last[message.key] = message
        if (marker := marker_of(reason)) is not None and (message.key not in causes or _place(message) > _place(causes[message.key][0])):
            causes[message.key] = message, marker
    return tuple(
        Marker(
            partition=message.partition,
            replaces=message.offset,
            key=key,
            reason=causes[key][1],
            append_time=max(as_of, newest.get(message.partition, as_of)),
            ttl_us=marker_ttl_us,
        )
        for key, message in sorted(last.items(), key=lambda entry: _place(entry[1]))
        if key in causes and not causes_none(message.headers)
    )


def _place(message: Message) -> tuple[int, int]:
    return message.partition, message.offset


# The sweep makes missing markers: for keys that another writer's deletes have emptied since the last sweep (MRK-2).


def plan(facts: Facts, policy: Policy, removals: tuple[int, ...] | None, *, as_of: Instant) -> Plan:
    """Plan a sweep. It removes only older markers of the keys that it marks. Making the markers shows which keys need one.

    Args:
        facts: The facts of the topic.
        policy: The topic's policy.
        removals: Snapshots in which another writer removed messages since the last sweep, oldest first. None: unknown.
        as_of: The instant of the sweep.
    """
    owed = removals if removals and policy.marker_ttl_us is not None and policy.cleaner_enabled else ()
    return replace(
        empty_plan_of_log("marker_generation", facts, policy, as_of=as_of),
        changes=non_empty_commits(CommitLog(sweep=owed)),
        warnings=()
        if removals is not None
        else ("the history since the last sweep is gone from the table: markers owed for it, if any, are not made",),
    )
