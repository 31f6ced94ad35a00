"""The gate's evidence about a change in memory: the two versions, compared message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from message_lifecycle.model.instants import INT64_MAX, TTL_HEADER, Instant, newest_known
from message_lifecycle.model.message import (
    NOTHING,
    REASON_HEADER,
    ROLLUP_HEADER,
    Marker,
    Message,
    causes_none,
    digest,
    go_duration,
    is_marker,
    offsets_of,
)
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import LimitReason, RemovalReason, is_request, marker_of
from message_lifecycle.model.rules import Limits, rule_holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.stores.memory.rows import Gone, keys_with_markers
from message_lifecycle.stores.memory.tables import (
    Position,
    Version,
    by_segment,
    difference,
    file_of,
    in_order,
    position_of,
    segment_of,
    segments,
)

_LIMITS: tuple[LimitReason, ...] = get_args(LimitReason)


def evidence_of(
    before: Version, after: Version, plan: Plan, policy: Policy, staged: Staged, owed: Gone, horizons: Mapping[int, int]
) -> Mapping[str, object]:
    """Return the gate's frames from the two versions, message by message.

    Args:
        before: The version that the plan builds on.
        after: The staged version.
        plan: The plan that made the stage.
        policy: The topic's policy.
        staged: The staged change.
        owed: Removals of other writers that get markers now.
        horizons: The horizons of the compacted view.
    """
    look = _Look(before, after, plan, policy)
    return {
        "going": look.going(horizons),
        "rows": look.rows(staged),
        "purged": look.purged(),
        "difference": look.difference(),
        **look.marks(staged, owed),
        "order": look.order(),
        "sample": look.sample(),
        "left": look.left(),
        "limits": look.limits(),
        "figures": look.figures(),
    }


class _Look:
    """A change, seen through the two versions and the settings. One method for each frame."""

    def __init__(self, before: Version, after: Version, plan: Plan, policy: Policy) -> None:
        self._before, self._after, self._plan, self._policy = before, after, plan, policy
        found = difference(before.messages, after.messages)
        self._gone = in_order(found.gone)
        self._went: dict[Position, list[Message]] = {}
        for message in self._gone:
            self._went.setdefault(segment_of(message), []).append(message)
        self._stayed = [message for message in in_order(after.messages) if position_of(message) in before.messages]
        self._made = [m for m in in_order(found.came) if m.offset >= before.end_offsets[m.partition] and is_marker(m.headers)]
        self._marked = Counter(marker.key for marker in self._made)
        self._differs = [*found.came, *found.changed]
        self._rules = expiry.age_rules(policy)
        # A request removes only named messages. No rule acts.
        self._acts = "retention_age" in plan.reasons
        self._ages = [reason for reason in self._rules if reason in plan.reasons]
        self._late = policy.latest_allowed_time(plan.as_of)
        of_before = list(segments(before, self._late))
        self._expired = {
            (segment.partition, segment.base_offset)
            for segment in of_before
            if policy.cleaner_enabled and policy.message_expiry_us and segment.is_expired(policy.message_expiry_us, plan.as_of)
        }
        self._ahead = {(segment.partition, segment.base_offset) for segment in of_before if segment.is_in_future}
        self._ranked: list[_Ranked] = []
        self._beyond: dict[Position, LimitReason] = {}
        if self._acts and policy.limits is not None:
            of_no_age = [m for m in in_order(before.messages) if not any(self._is_due(m, reason) for reason in self._ages)]
            self._ranked = _ranked(of_no_age, policy.limits, self._has_lapsed)
            self._beyond = _beyond(self._ranked, policy.limits)

    def _holds(self, reason: str, message: Message) -> bool:
        rule = self._rules.get(reason)
        return rule is not None and rule_holds(rule, message, self._plan.as_of)

    def _has_lapsed(self, message: Message) -> bool:
        return self._holds("expiry", message) or self._holds("ttl", message)

    def _is_due(self, message: Message, reason: str) -> bool:
        """Return True if the reason removes the message, by a direct reading of the rule."""
        if is_request(reason):
            return reason in self._plan.reasons  # a person named it
        if reason == "superseded":
            return is_marker(message.headers) and message.key in self._marked
        if reason in _LIMITS:
            return self._beyond.get(position_of(message)) == reason
        acts = self._acts and reason in self._ages and self._holds(reason, message)
        return acts and (reason != "expiry" or segment_of(message) in self._expired)

    def _is_kept(self, message: Message) -> bool:
        """Return True if the message's own TTL keeps it longer than its segment."""
        rule = expiry.kept_by_own_ttl(self._policy)
        return rule is not None and rule_holds(rule, message, self._plan.as_of)

    def _is_active(self, place: Position) -> bool:
        sealed_by_plan = {(seal.partition, seal.base_offset) for seal in self._plan.log_commit.seal}
        return self._before.active[place[0]].base_offset <= place[1] and place not in sealed_by_plan

    def going(self, horizons: Mapping[int, int]) -> list[dict[str, object]]:
        """Segments that leave whole."""
        return [
            {
                "partition": place[0],
                "segment": place[1],
                "rows": len(messages),
                "first_offset": messages[0].offset,
                "last_offset": messages[-1].offset,
                "newest_at": newest_known(message.append_time for message in messages),
                "any_kept": any(self._is_kept(message) for message in messages),
                "active": self._is_active(place),
                "compacted": messages[-1].offset <= horizons.get(place[0], NOTHING),
                "planned": file_of(place) in self._plan.selection.files,
            }
            for place, messages in self._went.items()
            if self._plan.drops(*place)
        ]

    def rows(self, staged: Staged) -> list[dict[str, object]]:
        """Segments that lose single messages."""
        superseded = {(rows.partition, offset): rows for rows in staged.superseded for offset in offsets_of(rows.offsets)}
        found: list[dict[str, object]] = []
        for place, messages in self._went.items():
            if self._plan.drops(*place):
                continue
            named = [
                (message, self._plan.removal_at(*position_of(message)) or superseded.get(position_of(message))) for message in messages
            ]
            found.append(
                {
                    "partition": place[0],
                    "segment": place[1],
                    "rows": len(messages),
                    "unnamed": sum(action is None for _, action in named),
                    "unjustified": sum(action is not None and not self._is_due(message, action.reason) for message, action in named),
                    "active": any(action is not None and action.reason == "expiry" and self._is_active(place) for _, action in named),
                }
            )
        return found

    def purged(self) -> list[dict[str, int]]:
        named = [(message, self._plan.removal_at(*position_of(message))) for message in self._gone]
        purged = [message for message, action in named if action is not None and action.reason == "purged"]
        keys = {message.key for message in purged if message.key is not None}
        return [{"keys": len(keys), "keyless": len({segment_of(m) for m in purged if m.key is None})}] if purged else []

    def difference(self) -> list[dict[str, object]]:
        return [
            {"name": str(position), "how": "appeared or changed"}
            for position in self._differs
            if self._after.messages[position] not in self._made
        ]

    def order(self) -> list[dict[str, object]]:
        """Segments that expire although a segment before them stays.

        A message that its own TTL keeps, or that has a future time, does not hold the segments behind it (EXP-5, CLK-4).
        """
        standing: dict[int, int] = {}
        for message in self._stayed:
            if segment_of(message) in self._ahead:
                continue
            exempt = (message.append_time is not None and message.append_time > self._late) or self._is_kept(message)
            if segment_of(message) not in self._expired or not (exempt or self._plan.skips(message.partition, message.segment)):
                standing.setdefault(message.partition, message.segment)
        whole = {place for place in self._went if self._plan.drops(*place)}
        return [
            {"partition": partition, "segment": segment}
            for partition, segment in sorted(whole | self._plan.expiring_by_row)
            if segment > standing.get(partition, INT64_MAX)
        ]

    def sample(self) -> list[dict[str, object]]:
        """Some of the messages that leave with their segment."""
        with_segment = [message for message in self._gone if self._plan.drops(message.partition, message.segment)]
        return [
            {
                "partition": message.partition,
                "segment": message.segment,
                "offset": message.offset,
                "append_time": message.append_time,
                "too_young": not self._is_due(message, "expiry"),
                "outside_bounds": False,
            }
            for message in with_segment[:: max(1, len(with_segment) // 100)]
        ]

    def left(self) -> list[dict[str, object]]:
        """Due messages that stay, by segment. `named`: the plan names their holder."""
        due = [m for m in self._stayed if self._acts and any(self._is_due(m, reason) for reason in (*self._ages, *_LIMITS))]
        return [
            {
                "partition": place[0],
                "base_offset": place[1],
                "last_offset": messages[-1].offset,
                "rows": len(messages),
                "named": any(h.partition == place[0] and h.first_base <= place[1] <= h.last_offset for h in self._plan.held),
            }
            for place, messages in by_segment(due)
        ]

    def limits(self) -> list[dict[str, object]]:
        if not self._acts or self._policy.limits is None:
            return []
        return [_limits_row(self._ranked, self._beyond, self._policy.limits, self._plan, set(self._after.messages))]

    def figures(self) -> list[dict[str, object]]:
        rows_in, bytes_in = len(self._before.messages), sum(message.size_bytes for message in self._before.messages.values())
        bytes_removed = sum(message.size_bytes for message in self._gone)
        return [
            {
                "rows_in": rows_in,
                "rows_removed": len(self._gone),
                "rows_kept": len(self._stayed),
                "bytes_in": bytes_in,
                "bytes_removed": bytes_removed,
                "fraction_rows": len(self._gone) / rows_in if rows_in else 0.0,
                "fraction_bytes": bytes_removed / bytes_in if bytes_in else 0.0,
                "asks": len(self._plan.asks),
            }
        ]

    def marks(self, staged: Staged, owed: Gone) -> dict[str, list[dict[str, object]]]:
        """Judge markers key by key, by a direct reading of MRK-1 and MRK-3."""
        if staged.markers is None:
            return {"markers": [], "unmarked": [], "marked": []}
        live = {message.key for message in self._after.messages.values() if not is_marker(message.headers)}
        if self._plan.log_commit.sweep:
            live |= keys_with_markers(owed, self._before)
        newest: dict[bytes, Message] = {}
        why: dict[bytes, RemovalReason] = {}
        # Without the older markers that new markers replace.
        taken = [(m, action.reason) for m in self._gone if (action := self._plan.removal_at(*position_of(m))) is not None]
        for message, reason in sorted(taken + owed, key=lambda entry: position_of(entry[0])):
            if message.key is not None:
                newest[message.key] = message
                # A removal by number or size makes no marker (DEL-9).
                if marker_of(reason):
                    why[message.key] = reason
        emptied = {key: marker_of(why[key]) for key, m in newest.items() if key in why and key not in live and not causes_none(m.headers)}
        newest_at: dict[int, Instant] = {}
        for message in self._before.messages.values():
            if message.append_time is not None:
                newest_at[message.partition] = max(message.append_time, newest_at.get(message.partition, message.append_time))
        return {
            "markers": [
                {
                    "emptied": marker.key in emptied,
                    "single": self._marked[marker.key] == 1,
                    "caused": marker.key in emptied and _reason_of(marker) == emptied[marker.key],
                    "formed": self._is_formed(marker, max(newest_at.get(marker.partition, self._plan.as_of), self._plan.as_of)),
                }
                for marker in self._made
            ],
            "unmarked": [{"partition": newest[key].partition} for key in emptied if key not in self._marked],
            "marked": [{"rows": len(self._made), "as_made": _digest(self._made, self._policy) == staged.markers.digest}],
        }

    def _is_formed(self, marker: Message, at: Instant) -> bool:
        """Return True if the marker has the form of NATS (MRK-1). `at`: not before any message of its partition."""
        assert self._policy.marker_ttl_us is not None
        headers = dict(marker.headers)
        return (
            marker.value == b""
            and [name for name, _ in marker.headers] == [REASON_HEADER, TTL_HEADER, ROLLUP_HEADER]
            and headers[ROLLUP_HEADER] == b"sub"
            and headers[TTL_HEADER] == go_duration(self._policy.marker_ttl_us).encode()
            and marker.append_time == at
        )


def _reason_of(marker: Message) -> str:
    return dict(marker.headers)[REASON_HEADER].decode()


def _digest(made: list[Message], policy: Policy) -> str:
    assert policy.marker_ttl_us is not None
    return digest(
        Marker(
            partition=message.partition,
            replaces=message.offset,
            key=message.key or b"",
            reason=_reason_of(message),  # type: ignore[arg-type]  # any text in the header
            append_time=message.append_time or Instant(0),
            ttl_us=policy.marker_ttl_us,
        )
        for message in made
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A message in its group, with the count and the bytes of the messages from it to the newest, both included."""

    message: Message
    group: object
    rows: int
    size_bytes: int

    @property
    def position(self) -> Position:
        return self.message.partition, self.message.offset


def _ranked(counted: Iterable[Message], limits: Limits, lapsed: Callable[[Message], bool]) -> list[_Ranked]:
    """Rank the messages that no rule of age removes (RET-1, RET-4). The input is in order of (partition, offset)."""
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
    """Return the limit that each message beyond the limits exceeds."""
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
    """Return the frame `limits` for the messages that the staged change leaves."""
    kept: dict[object, list[_Ranked]] = {}
    within = 0
    for row in rows:
        if row.position in stays:
            if not (row.position in why and _is_held(row.message, plan)):
                kept.setdefault(row.group, []).append(row)
        elif (action := plan.removal_at(*row.position)) is not None and action.reason in _LIMITS:
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
