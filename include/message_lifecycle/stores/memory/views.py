"""Compacted views in memory: the reference, by the fold itself (CMP-1 to CMP-9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from message_lifecycle.model.change import CompactPartition
from message_lifecycle.model.errors import PlanConflict, topic_without_keys
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import INT64_MIN, Instant
from message_lifecycle.model.message import NOTHING, Message, OlderRows, StagedView, Tail, ViewRow, ViewState, is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.model.rules import Rule, rule_holds, rule_holds_from
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import ReturningView
from message_lifecycle.operations import expiry
from message_lifecycle.operations.compaction import CompactionRules, fold, rules_of, settings_hash_after
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.memory import MemoryStore
from message_lifecycle.stores.memory.rows import find_returning_view_rows, named_positions, placed
from message_lifecycle.stores.memory.rows import view_evidence as undo_evidence
from message_lifecycle.stores.memory.tables import StagedVersion, Table, ViewVersion, difference, in_order

# The gate's evidence about a compacted view in memory: each key by itself, by a direct reading of the rules.


def view_evidence(
    before: Sequence[ViewRow], tail: Sequence[Message], after: Sequence[ViewRow], plan: Plan, policy: Policy
) -> Mapping[str, object]:
    """Return the frames of `gates.messages`. `after`: the staged view as readers will see it."""
    parts = [_Part(action, before, tail, after, plan, policy).row() for action in plan.view_commit.compact]
    view_rows = sum(not row.remembered for row in before)
    shown = placed(row for row in after if not row.remembered)
    # A message that a newer message of its key replaces is no loss (DEL-2).
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
    """Return the frame `view_removals`: for each partition the number of removed messages, and how many the plan does not name."""
    found, named = difference(placed(before), placed(after)), named_positions(plan.view_removal.mark)
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


def older_rows_evidence(
    log: Iterable[Message], horizons: Mapping[int, int], after: Iterable[ViewRow], plan: Plan
) -> list[dict[str, object]]:
    """Return the frame `outlived`, one row.

    The plan removes messages past the horizons. The frame counts older messages of their keys that would stay, in the staged view and past
    the horizons.
    """
    past = [message for message in log if message.offset > horizons.get(message.partition, NOTHING)]
    stays = [message for message in past if plan.removal_at(message.partition, message.offset) is None]
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
    """One partition of the staged view next to its sources."""

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
        """Return True if the view should have the message: the latest of its key, alive, and not a deletion that may leave."""
        message, as_of = row.message, self._plan.as_of
        if row.remembered or (message.key is not None and self._latest(message.key) is not row):
            return False
        if any(rule is not None and rule_holds(rule, message, as_of) for rule in _ages(self._policy)):
            return False
        if message.key is None:
            return self._policy.retain_null_key
        if row in self._before and row.delete_horizon is None:
            return True  # an earlier compaction has judged it
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
    return expiry.expiry_rule(policy), expiry.ttl_rule(policy), expiry.retention_age(policy)


def _view_after_change(
    before: ViewVersion,
    plan: Plan,
    rows: tuple[ViewRow, ...],
    *,
    removed: Counter[ViewReason] | None = None,
    judged: Iterable[ViewVersion] = (),
    horizons: Mapping[int, int] | None = None,
) -> StagedVersion[ViewVersion]:
    """Return the view after the plan's change.

    Args:
        before: The view before the change.
        plan: The plan that changes the view.
        rows: The rows after the change.
        removed: The number of removed messages by reason.
        judged: The versions whose settings judged the rows. Empty for a compaction, which judges every row itself.
        horizons: The horizons that the change moves.
    """
    earlier = [version.settings_hash for version in judged if version.settings_hash is not None]
    after = ViewVersion(
        rows=rows,
        horizons={**before.horizons, **(horizons or {})},
        due_at=_due_at(rows, plan),
        settings_hash=settings_hash_after(plan, earlier),
    )
    return StagedVersion(version=after, removed=removed or Counter())


class _ViewChanges(ChangeStore):
    """A change of views of a `MemoryStore`, which has the tables. `_make` makes the version after the change."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def find_published(self, plan: Plan) -> Published | None:
        return self._view(plan.topic).find_published(plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        return plan.view is not None and self._view(plan.topic).has_lost(plan, plan.view.snapshot_id)

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        table, before = self._required(plan), self._view_before(plan)
        made = table.staged.setdefault(plan.plan_id, self._make(before, plan))
        tail = self._tail_of(plan)
        staged = StagedView(
            view_rows=sum(not row.remembered for row in before.rows),
            tail_rows=len(tail) + plan.restored_view_rows,
            rows=sum(not row.remembered for row in made.version.rows),
            removed=_counts(made.removed),
            bytes_read=sum(row.message.size_bytes for row in before.rows) + sum(message.size_bytes for message in tail),
            bytes_written=sum(row.message.size_bytes for row in made.version.rows),
            engine="memory",
            snapshot_id=table.next_id,
        )
        return self._staged_as(plan, staged)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, table = verdict.plan, self._view(verdict.plan.topic)
        done = table.find_published(plan.plan_id)
        if done is not None:
            return done
        self._required(plan)
        made = table.staged_by(plan)
        self._store.of(plan.topic).touch(given.ledger())
        done = Published(plan_id=plan.plan_id, snapshot_id=table.next_id, removed=_counts(made.removed))
        return table.publish(made.version, done)

    def discard(self, plan: Plan) -> None:
        if plan.topic in self._store.tables:
            self._view(plan.topic).staged.pop(plan.plan_id, None)

    def _make(self, before: ViewVersion, plan: Plan, /) -> StagedVersion[ViewVersion]:
        raise NotImplementedError

    def _staged_as(self, plan: Plan, staged: StagedView) -> Staged:
        """Return the stage. Unless the plan is a compaction, the stage of the log is the plan's."""
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id, view=staged)

    # The tables and messages of a plan

    def _view(self, name: TopicName) -> Table[ViewVersion]:
        return self._store.of(name).view

    def _required(self, plan: Plan) -> Table[ViewVersion]:
        """Return the view's table.

        Raises:
            PlanConflict: The view has changed since the plan. The stage builds on its newest version (CMP-4).
        """
        table, wanted = self._view(plan.topic), plan.view
        assert wanted is not None, "the plan says what view it builds on"
        if wanted.snapshot_id != table.snapshot_id or wanted.table_uuid not in (None, table.uuid):
            raise PlanConflict(plan.plan_id, "the compacted view has changed since it was planned")
        return table

    def _view_before(self, plan: Plan) -> ViewVersion:
        assert plan.view is not None
        return self._view(plan.topic).at(plan.view.snapshot_id)

    def _staged_view(self, plan: Plan) -> ViewVersion:
        """Return the staged view; the view before the plan if nothing is staged."""
        made = self._view(plan.topic).staged.get(plan.plan_id)
        return self._view_before(plan) if made is None else made.version

    def _tail_of(self, _plan: Plan, /) -> Sequence[Message]:
        """Return the messages of the log that the change folds in."""
        return ()

    def _log(self, name: TopicName, snapshot_id: int | None) -> list[Message]:
        return in_order(self._store.of(name).log.at(snapshot_id).messages)


class MemoryViews(_ViewChanges):
    """`ports.ViewReader` and `ports.ViewStore`: reads and compacts views."""

    # ViewReader

    def view(self, name: TopicName) -> ViewState | None:
        table = self._view(name)
        if table.snapshot_id is None:
            return None
        messages = [row.message for row in table.head.rows if not row.remembered]
        return ViewState(
            table_uuid=table.uuid,
            snapshot_id=table.snapshot_id,
            horizons=dict(table.head.horizons),
            rows=len(messages),
            hidden_rows=0,
            size_bytes=sum(message.size_bytes for message in messages),
            due_at=table.head.due_at,
            settings_hash=table.head.settings_hash or "",
        )

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant, latest_allowed_time: Instant) -> Sequence[Tail]:
        return [
            self._tail(log, partition, after.get(partition, NOTHING), as_of, latest_allowed_time) for partition in sorted(log.end_offsets)
        ]

    def _tail(self, log: LogState, partition: int, after: int, as_of: Instant, latest_allowed_time: Instant) -> Tail:
        past = list(self._store.messages(log.topic, after={partition: after}, at=log, partition=partition))
        known = [(m.offset, m.append_time) for m in past if m.append_time is not None]
        end = min((offset for offset, time in known if as_of < time <= latest_allowed_time), default=log.end_offsets[partition])
        in_time = max((offset for offset, time in known if time <= as_of and offset < end), default=NOTHING)
        ahead = min((offset for offset, time in known if time > latest_allowed_time and in_time < offset < end), default=end)
        through = max(after, ahead - 1)
        mine = [message for message in past if message.offset <= through]
        size = sum(message.size_bytes for message in mine)
        return Tail(partition=partition, after=after, through=through, rows=len(mine), size_bytes=size)

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        oldest: dict[int, Instant] = {}
        for message in self._store.messages(log.topic, after=view.horizons, at=log):
            if message.append_time is not None:
                oldest[message.partition] = min(message.append_time, oldest.get(message.partition, message.append_time))
        return oldest

    def find_older_rows(self, view: ViewState, plan: Plan) -> OlderRows:
        going: set[tuple[int, bytes]] = set()
        staying: set[tuple[int, bytes]] = set()
        in_log: dict[int, list[int]] = {}
        for message in self._log(plan.topic, plan.requirements.snapshot_id):
            if message.key is None or message.offset <= view.horizon(message.partition):
                continue
            place = message.partition, message.key
            if plan.removal_at(message.partition, message.offset) is None:
                staying.add(place)
                continue
            going.add(place)
            if place in staying:
                in_log.setdefault(message.partition, []).append(message.offset)
        of_view: dict[int, list[int]] = {}
        for row in self.view_rows(plan.topic, view):
            if row.message.key is not None and not row.remembered and (row.message.partition, row.message.key) in going:
                of_view.setdefault(row.message.partition, []).append(row.message.offset)
        return OlderRows(of_view=of_view, in_log=in_log)

    def find_returning(self, view: ViewState, plan: Plan) -> ReturningView:
        table = self._view(plan.topic)
        source_id = table.source_of(plan.plan_id)
        return find_returning_view_rows(table.at(source_id), table.at(view.snapshot_id), plan, source_id=source_id)

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        for row in self._view(name).at(view.snapshot_id).rows:
            if row.message.offset >= start and partition in (None, row.message.partition):
                yield row

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        return [
            (message.partition, message.offset, message.key)
            for message in (row.message for row in self.view_rows(name, view) if not row.remembered)
            if message.offset in offsets.get(message.partition, ()) or message.key in keys
        ]

    # ViewStore

    def older_rows_frame(self, plan: Plan, _staged: Staged) -> object:
        log = self._log(plan.topic, plan.requirements.snapshot_id)
        return older_rows_evidence(log, self._view(plan.topic).head.horizons, self._staged_view(plan).rows, plan)

    def evidence(self, plan: Plan, _staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        before, after = self._view_before(plan), self._staged_view(plan)
        return view_evidence(before.rows, self._tail_of(plan), after.rows, plan, policy)

    def update_sql_view(self, name: TopicName, policy: Policy) -> str | None:  # noqa: ARG002  # nobody reads it but through us
        return None

    def _staged_as(self, plan: Plan, staged: StagedView) -> Staged:
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=staged.snapshot_id, view=staged)

    def _make(self, before: ViewVersion, plan: Plan) -> StagedVersion[ViewVersion]:
        tail = self._tail_of(plan)
        first = all(horizon == NOTHING for horizon in before.horizons.values())
        if first and tail and all(message.key is None for message in tail):
            raise topic_without_keys(str(plan.topic))
        folded = fold(before.rows, tail, _rules(plan))
        horizons = {action.partition: action.through for action in plan.view_commit.compact}
        return _view_after_change(before, plan, tuple(folded.rows), removed=folded.removed, horizons=horizons)

    def _tail_of(self, plan: Plan) -> list[Message]:
        span = {action.partition: range(action.after + 1, action.through + 1) for action in plan.view_commit.compact}
        return [m for m in self._log(plan.topic, plan.requirements.snapshot_id) if m.offset in span.get(m.partition, ())]


class MemoryViewRemovals(_ViewChanges):
    """Removes single messages from views."""

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        return {"view_removals": removal_evidence(self._view_before(plan).rows, self._staged_view(plan).rows, plan)}

    def _make(self, before: ViewVersion, plan: Plan) -> StagedVersion[ViewVersion]:
        reasons = {place: action.reason for action in plan.view_removal.mark for place in named_positions([action])}
        rows = placed(before.rows)
        going = {place for place, row in rows.items() if place in reasons and not row.remembered}
        removed = Counter(reasons[place] for place in going)
        stays = tuple(row for place, row in rows.items() if place not in going)
        return _view_after_change(before, plan, stays, removed=removed, judged=(before,))


class MemoryViewReturns(_ViewChanges):
    """Brings single messages back to views."""

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        return {"view_returns": undo_evidence(self._view_before(plan), self._staged_view(plan), self._source(plan), plan)}

    def _make(self, before: ViewVersion, plan: Plan) -> StagedVersion[ViewVersion]:
        source = self._source(plan)
        then = placed(source.rows)
        found = placed(before.rows) | {place: then[place] for place in named_positions(plan.view_return.back)}
        return _view_after_change(before, plan, tuple(found[place] for place in sorted(found)), judged=(before, source))

    def _source(self, plan: Plan) -> ViewVersion:
        return self._view(plan.topic).at(plan.view_return.source_id)


def _rules(plan: Plan) -> CompactionRules:
    assert plan.view is not None
    return rules_of(Policy.from_values(plan.policy), as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)


def _counts(removed: Counter[ViewReason]) -> tuple[tuple[ViewReason, int], ...]:
    return tuple(sorted((reason, count) for reason, count in removed.items() if count))


def _due_at(rows: Iterable[ViewRow], plan: Plan) -> Instant | None:
    """Return when the first of the rows may leave by its age, or by its delete horizon."""
    rules = _rules(plan)
    times = [rule_holds_from(rule, row.message) for row in rows if not row.remembered for _, rule in rules.ages]
    times += [row.delete_horizon for row in rows if row.delete_horizon is not None]
    return min((time for time in times if time is not None), default=None)
