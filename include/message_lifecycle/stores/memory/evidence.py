"""What the gate judges of a change in memory: the two versions compared message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.marker import REASON_HEADER, ROLLUP_HEADER, Marker, causes_none, digest, go_duration, is_marker
from message_lifecycle.model.marker import REASONS as MARKER_REASONS
from message_lifecycle.model.message import Message
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import LimitReason, RemovalReason, offsets_of
from message_lifecycle.model.rules import Limits, holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.ttl import TTL_HEADER
from message_lifecycle.model.view import NOTHING
from message_lifecycle.operations import age_rules
from message_lifecycle.stores.memory.log import Position, Version, by_segment, file_of, in_order, segment_of, segments
from message_lifecycle.stores.memory.rows import Gone, told_already
from message_lifecycle.stores.memory.table import difference

_LIMITS: tuple[LimitReason, ...] = get_args(LimitReason)


def evidence_of(
    before: Version, after: Version, plan: Plan, policy: Policy, staged: Staged, owed: Gone, horizons: Mapping[int, int]
) -> Mapping[str, object]:
    """The frames that the gate judges, from the two versions, message by message."""
    sealed_by_plan = {(seal.partition, seal.base_offset) for seal in plan.on_log.seal}
    late = Instant(plan.as_of + policy.clock_skew_us)
    expired = {
        (segment.partition, segment.base_offset)
        for segment in segments(before, late)
        if policy.cleaner_enabled and policy.message_expiry_us and segment.is_expired(policy.message_expiry_us, plan.as_of)
    }
    overdue_by = {"expiry": age_rules.expiry(policy), "ttl": age_rules.ttl(policy), "retention_age": age_rules.retention_age(policy)}
    acting, ages = "retention_age" in plan.reasons, tuple(reason for reason in overdue_by if reason in plan.reasons)
    kept = age_rules.kept_by_own_ttl(policy)

    found = difference(before.messages, after.messages)
    made = [m for _, m in sorted(found.came.items()) if m.offset >= before.end_offsets[m.partition] and is_marker(m.headers)]
    renewed = {message.key for message in made}

    def is_due(message: Message, reason: str) -> bool:
        if reason in ("removed", "purged"):
            return reason in plan.reasons  # a person named it
        if reason == "superseded":
            return is_marker(message.headers) and message.key in renewed
        if reason in _LIMITS:
            return why.get((message.partition, message.offset)) == reason
        rule = overdue_by[reason]
        if rule is None or not acting or reason not in ages or not holds(rule, message, plan.as_of):
            return False
        return reason != "expiry" or segment_of(message) in expired

    def lapsed(message: Message) -> bool:
        return any((rule := overdue_by[reason]) is not None and holds(rule, message, plan.as_of) for reason in ("expiry", "ttl"))

    limits = policy.limits if acting else None
    why: dict[Position, LimitReason] = {}
    counted: list[_Ranked] = []
    if limits is not None:
        of_no_age = [m for m in in_order(before.messages) if not any(is_due(m, reason) for reason in ages)]
        counted = _ranked(of_no_age, limits, lapsed)
        why = _beyond(counted, limits)

    def active(place: Position) -> bool:
        return before.active[place[0]].base_offset <= place[1] and place not in sealed_by_plan

    gone = [found.gone[position] for position in sorted(found.gone)]
    going, rows = [], []
    for place, messages in by_segment(gone):
        if plan.drops(*place):
            times = [message.append_time for message in messages]
            known = [time for time in times if time is not None]
            going.append(
                {
                    "partition": place[0],
                    "segment": place[1],
                    "rows": len(messages),
                    "first_offset": messages[0].offset,
                    "last_offset": messages[-1].offset,
                    "newest_at": max(known) if len(known) == len(times) else None,
                    "any_kept": any(kept is not None and holds(kept, message, plan.as_of) for message in messages),
                    "active": active(place),
                    "compacted": messages[-1].offset <= horizons.get(place[0], NOTHING),
                    "planned": file_of(place) in plan.selection.files,
                }
            )
            continue
        named = [(message, plan.taking(message.partition, message.offset) or _superseding(staged, message)) for message in messages]
        rows.append(
            {
                "partition": place[0],
                "segment": place[1],
                "rows": len(messages),
                "unnamed": sum(action is None for _, action in named),
                "unjustified": sum(action is not None and not is_due(message, action.reason) for message, action in named),
                "active": any(action is not None and action.reason == "expiry" and active(place) for _, action in named),
            }
        )
    purged = [m for m in gone if (action := plan.taking(m.partition, m.offset)) is not None and action.reason == "purged"]
    left = []
    stayed = [message for position, message in sorted(after.messages.items()) if position in before.messages]
    for place, messages in by_segment(stayed):
        due = [message for message in messages if acting and any(is_due(message, reason) for reason in (*ages, *_LIMITS))]
        if due:
            left.append(
                {
                    "partition": place[0],
                    "base_offset": place[1],
                    "last_offset": due[-1].offset,
                    "rows": len(due),
                    "named": any(h.partition == place[0] and h.first_base <= place[1] <= h.last_offset for h in plan.held),
                }
            )
    # What its own TTL keeps, or a time in the future, does not stand before the segments that follow (EXP-5, CLK-4).
    standing: dict[int, int] = {}
    for message in stayed:
        exempt = (message.append_time is not None and message.append_time > late) or (kept is not None and holds(kept, message, plan.as_of))
        if segment_of(message) not in expired or not (exempt or plan.skips(message.partition, message.segment)):
            standing.setdefault(message.partition, message.segment)
    with_segment = [message for message in gone if plan.drops(message.partition, message.segment)]
    bytes_in = sum(message.size_bytes for message in before.messages.values())
    bytes_removed = sum(message.size_bytes for message in gone)
    return {
        "going": going,
        "rows": rows,
        "purged": [
            {
                "keys": len({m.key for m in purged if m.key is not None}),
                "keyless": len({segment_of(m) for m in purged if m.key is None}),
            }
        ]
        if purged
        else [],
        "difference": [
            {"name": str(position), "how": "appeared or changed"}
            for position in (*found.came, *found.changed)
            if after.messages[position] not in made
        ],
        **_marks(before, after, made, gone, plan, policy, staged, owed),
        "order": [
            {"partition": partition, "segment": segment}
            for partition, segment in sorted({segment_of(m) for m in with_segment} | plan.expiring_by_row)
            if segment > standing.get(partition, INT64_MAX)
        ],
        "sample": [
            {
                "partition": message.partition,
                "segment": message.segment,
                "offset": message.offset,
                "append_time": message.append_time,
                "too_young": not is_due(message, "expiry"),
                "outside_bounds": False,
            }
            for message in with_segment[:: max(1, len(with_segment) // 100)]
        ],
        "left": left,
        "limits": [] if limits is None else [_limits_row(counted, why, limits, plan, set(after.messages))],
        "figures": [
            {
                "rows_in": len(before.messages),
                "rows_removed": len(gone),
                "rows_kept": len(stayed),
                "bytes_in": bytes_in,
                "bytes_removed": bytes_removed,
                "fraction_rows": len(gone) / len(before.messages) if before.messages else 0.0,
                "fraction_bytes": bytes_removed / bytes_in if bytes_in else 0.0,
                "asks": len(plan.asks),
            }
        ],
    }


def _superseding(staged: Staged, message: Message) -> RemoveRows | None:
    for action in staged.superseded:
        if action.partition == message.partition and message.offset in offsets_of(action.offsets):
            return action
    return None


def _marks(
    before: Version,
    after: Version,
    made: list[Message],
    gone: list[Message],
    plan: Plan,
    policy: Policy,
    staged: Staged,
    owed: Gone,
) -> Mapping[str, list[dict[str, object]]]:
    """Judged by MRK-1 and MRK-3 as they read, key by key."""
    if staged.markers is None:
        return {"markers": [], "unmarked": [], "marked": []}
    live = {message.key for message in after.messages.values() if not is_marker(message.headers)}
    newest: dict[bytes, Message] = {}
    why: dict[bytes, RemovalReason] = {}
    # Not what a marker itself takes, the older one of its key.
    taken = [(m, action.reason) for m in gone if (action := plan.taking(m.partition, m.offset)) is not None]
    for message, reason in sorted(taken + owed, key=lambda entry: (entry[0].partition, entry[0].offset)):
        if message.key is not None:
            newest[message.key] = message
            # What goes by number or size makes none (DEL-9).
            if reason in MARKER_REASONS:
                why[message.key] = reason
    if plan.on_log.sweep:
        live |= told_already(owed, before)
    emptied = {key: m for key, m in newest.items() if key in why and key not in live and not causes_none(m.headers)}
    times: dict[int, Instant] = {}
    for message in before.messages.values():
        times[message.partition] = max(message.append_time or plan.as_of, times.get(message.partition, plan.as_of))

    def caused(marker: Message) -> bool:
        reason = why[marker.key] if marker.key is not None and marker.key in emptied else None
        return reason is not None and dict(marker.headers)[REASON_HEADER].decode() == MARKER_REASONS[reason]

    def formed(marker: Message) -> bool:
        assert policy.marker_ttl_us is not None
        headers = dict(marker.headers)
        return (
            marker.value == b""
            and [name for name, _ in marker.headers] == [REASON_HEADER, TTL_HEADER, ROLLUP_HEADER]
            and headers[ROLLUP_HEADER] == b"sub"
            and headers[TTL_HEADER] == go_duration(policy.marker_ttl_us).encode()
            and marker.append_time == times[marker.partition]
        )

    return {
        "markers": [
            {
                "emptied": marker.key in emptied,
                "single": sum(other.key == marker.key for other in made) == 1,
                "caused": caused(marker),
                "formed": formed(marker),
            }
            for marker in made
        ],
        "unmarked": [{"partition": m.partition} for key, m in emptied.items() if all(marker.key != key for marker in made)],
        "marked": [{"rows": len(made), "as_made": _digest(made, policy) == staged.markers.digest}],
    }


def _digest(made: list[Message], policy: Policy) -> str:
    assert policy.marker_ttl_us is not None
    return digest(
        Marker(
            partition=message.partition,
            replaces=message.offset,
            key=message.key or b"",
            reason=dict(message.headers)[REASON_HEADER].decode(),  # type: ignore[arg-type]  # whatever stands there
            append_time=message.append_time or Instant(0),
            ttl_us=policy.marker_ttl_us,
        )
        for message in made
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A message in its group: how many there are from it to the newest, itself included, and how many bytes."""

    message: Message
    group: object
    rows: int
    size_bytes: int

    @property
    def position(self) -> Position:
        return self.message.partition, self.message.offset


def _ranked(counted: Iterable[Message], limits: Limits, lapsed: Callable[[Message], bool]) -> list[_Ranked]:
    """Messages in order of (partition, offset), all that no rule of age takes (RET-1, RET-4)."""
    messages = list(counted)
    newest: dict[tuple[int, bool], tuple[bool, int]] = {}
    newness: dict[Position, tuple[object, ...]] = {}
    for message in messages:
        over = lapsed(message)
        known = (False, 0) if message.append_time is None else (True, message.append_time)
        newest[message.partition, over] = found = max(known, newest.get((message.partition, over), known))
        newness[message.partition, message.offset] = (not over, found, message.partition, message.offset)
    groups: dict[object, list[Message]] = {}
    for message in sorted(messages, key=lambda m: newness[m.partition, m.offset], reverse=True):
        if limits.scope != "key" or message.key is not None:
            groups.setdefault({"topic": 0, "partition": message.partition, "key": message.key}[limits.scope], []).append(message)
    return [
        _Ranked(message=message, group=group, rows=rows, size_bytes=size)
        for group, members in groups.items()
        for rows, (message, size) in enumerate(zip(members, accumulate(m.size_bytes for m in members), strict=True), start=1)
    ]


def _beyond(rows: Iterable[_Ranked], limits: Limits) -> dict[Position, LimitReason]:
    """Why each message beyond the limits lies there."""
    found: dict[Position, LimitReason] = {}
    for row in rows:
        if limits.min_keep and row.rows == 1:
            continue
        if limits.max_records is not None and row.rows > limits.max_records:
            found[row.position] = "retention_count"
        elif limits.max_total_bytes is not None and row.size_bytes > limits.max_total_bytes:
            found[row.position] = "retention_bytes"
    return found


def _limits_row(
    rows: list[_Ranked], why: Mapping[Position, LimitReason], limits: Limits, plan: Plan, stays: set[Position]
) -> dict[str, object]:
    """The frame `limits`, of what the staged change really left."""
    kept: dict[object, list[_Ranked]] = {}
    within = 0
    for row in rows:
        if row.position in stays:
            if not (row.position in why and _is_held(row.message, plan)):
                kept.setdefault(row.group, []).append(row)
        elif (action := plan.taking(*row.position)) is not None and action.reason in _LIMITS:
            within += row.position not in why

    def size_of(stay: list[_Ranked]) -> int:
        alone = limits.min_keep and len(stay) == 1
        return 0 if alone or limits.max_total_bytes is None else sum(row.message.size_bytes for row in stay)

    return {
        "most_records": max((len(stay) for stay in kept.values()), default=0),
        "most_bytes": max((size_of(stay) for stay in kept.values()), default=0),
        "within": within,
        "beyond": len(why),
    }


def _is_held(message: Message, plan: Plan) -> bool:
    return any(
        held.partition == message.partition and held.first_base <= message.offset <= held.last_offset
        for held in plan.held
        if held.reason in _LIMITS
    )
