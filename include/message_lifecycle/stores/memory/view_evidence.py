"""What the gate judges of a compacted view in memory: each key looked at by itself, by the rules as they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from message_lifecycle.model.change import CompactPartition
from message_lifecycle.model.instants import INT64_MIN, Instant
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rules import Rule, holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import NOTHING, ViewRow
from message_lifecycle.operations import age_rules
from message_lifecycle.stores.memory.table import difference
from message_lifecycle.stores.memory.undo import named_by, placed


def view_evidence(
    before: Sequence[ViewRow], tail: Sequence[Message], after: Sequence[ViewRow], plan: Plan, policy: Policy
) -> Mapping[str, object]:
    """The frames of `gates.compaction`. `after`: the staged view as it will be read."""
    parts = [_Part(action, before, tail, after, plan, policy).row() for action in plan.on_view.compact]
    view_rows = sum(not row.remembered for row in before)
    shown = placed(row for row in after if not row.remembered)
    # What a newer message of its key took the place of is no loss (DEL-2).
    replaced = {(message.partition, message.key) for message in tail}
    lost = [
        row
        for place, row in placed(before).items()
        if not row.remembered and place not in shown and (row.message.partition, row.message.key) not in replaced
    ]
    rows, rows_in = sum(not row.remembered for row in after), view_rows + len(tail)
    return {
        "partitions": parts,
        "figures": [
            {
                "rows_in": rows_in,
                "rows_removed": rows_in - rows,
                "rows_kept": rows,
                "fraction_lost": len(lost) / view_rows if view_rows else 0.0,
                "asks": len(plan.asks),
            }
        ],
    }


def removal_evidence(before: Iterable[ViewRow], after: Iterable[ViewRow], plan: Plan) -> list[dict[str, object]]:
    """The frame `view` of a request, one row per partition that loses messages: how many, and how many of them are not named."""
    found, named = difference(placed(before), placed(after)), named_by(plan.on_view.mark)
    came, gone = found.came.keys(), found.gone.keys()
    return [
        {
            "partition": partition,
            "rows": sum(place[0] == partition for place in gone),
            "unnamed": sum(place[0] == partition for place in gone - named),
            "added": sum(place[0] == partition for place in came),
        }
        for partition in sorted({place[0] for place in gone | came})
    ]


def outlived_evidence(log: Iterable[Message], horizons: Mapping[int, int], after: Iterable[ViewRow], plan: Plan) -> list[dict[str, object]]:
    """The frame `outlived`, one row: of what the plan takes from past the horizons, what is older of its keys and would be left, in the
    staged view and past the horizons."""
    past = [message for message in log if message.offset > horizons.get(message.partition, NOTHING)]
    stays = [message for message in past if plan.taking(message.partition, message.offset) is None]
    shown = [row.message for row in after if not row.remembered]
    going = [message for message in past if message not in stays]
    return [
        {"in_view": sum(_any_older(shown, message) for message in going), "in_log": sum(_any_older(stays, message) for message in going)}
    ]


def _any_older(messages: Iterable[Message], than: Message) -> bool:
    return than.key is not None and any(
        (other.partition, other.key) == (than.partition, than.key) and other.offset < than.offset for other in messages
    )


class _Part:
    """One partition of the staged view beside what it was made from."""

    def __init__(
        self,
        action: CompactPartition,
        before: Iterable[ViewRow],
        tail: Iterable[Message],
        after: Iterable[ViewRow],
        plan: Plan,
        policy: Policy,
    ) -> None:
        self._action, self._plan, self._policy = action, plan, policy
        self._before = list(before)
        self._source = [
            row for row in (*self._before, *(ViewRow(message=message) for message in tail)) if row.message.partition == action.partition
        ]
        self._after = [row for row in after if row.message.partition == action.partition and not row.remembered]
        self._offsets = [row.message.offset for row in after if row.message.partition == action.partition]

    def row(self) -> dict[str, object]:
        wanted = {row.message.offset for row in self._source if self._belongs(row)}
        found = [row.message.offset for row in self._after]
        source = {row.message.offset: row.message for row in self._source}
        keys = [row.message.key for row in self._after if row.message.key is not None]
        null_keys = {row.message.offset for row in self._source if row.message.key is None}
        return {
            "partition": self._action.partition,
            "rows": len(found),
            "repeated_keys": len(keys) - len(set(keys)),
            "unwanted": len(set(found) - wanted),
            "missing": len(wanted - null_keys - set(found)),
            "null_keys_missing": len((wanted & null_keys) - set(found)),
            "changed": sum(source.get(row.message.offset) != row.message for row in self._after),
            "disordered": sum(first >= second for first, second in zip(self._offsets, self._offsets[1:], strict=False)),
            "beyond": sum(offset > self._action.through for offset in found),
        }

    def _belongs(self, row: ViewRow) -> bool:
        """Whether the message is to be in the view: the latest of its key, alive, and no deletion that need not be kept any more."""
        message, as_of = row.message, self._plan.as_of
        if row.remembered or (message.key is not None and self._latest(message.key) is not row):
            return False
        if any(rule is not None and holds(rule, message, as_of) for rule in _ages(self._policy)):
            return False
        if message.key is None:
            return self._policy.retain_null_key
        if row in self._before and row.delete_horizon is None:
            return True  # judged when it was taken up
        deletes = (
            row.delete_horizon is not None
            or message.value is None
            or (not self._policy.empty_is_value and (not message.value or is_marker(message.headers)))
        )
        if not deletes:
            return True
        assert self._plan.view is not None
        until = self._plan.view.tombstones_until if row.delete_horizon is None else row.delete_horizon
        return until is not None and as_of < until

    def _latest(self, key: bytes) -> ViewRow:
        mine = [row for row in self._source if row.message.key == key]

        def order(row: ViewRow) -> tuple[Instant, int]:
            time = row.message.event_time if self._policy.by_event_time else None
            return Instant(INT64_MIN) if time is None else time, row.message.offset

        return max(mine, key=order)


def _ages(policy: Policy) -> tuple[Rule | None, ...]:
    return age_rules.expiry(policy), age_rules.ttl(policy), age_rules.retention_age(policy)
