"""Compacted views in memory: the reference, by the fold itself (CMP-1 to CMP-9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from message_lifecycle.model.errors import PlanConflict, topic_without_keys, undo_source_gone
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import ViewReason, offsets_of
from message_lifecycle.model.rules import holds_from
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import ReturningView
from message_lifecycle.model.view import NOTHING, Outlived, StagedView, Tail, ViewRow, ViewState
from message_lifecycle.operations.compaction import settings_hash_after
from message_lifecycle.operations.compaction_fold import Folded, FoldRules, fold, rules_of
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.memory.log import Position
from message_lifecycle.stores.memory.past_horizon import outlived
from message_lifecycle.stores.memory.store import MemoryStore
from message_lifecycle.stores.memory.view_evidence import outlived_evidence, removal_evidence, view_evidence
from message_lifecycle.stores.memory.view_log import View, ViewCommit
from message_lifecycle.stores.memory.view_undo import restored, return_evidence, returning, source_of


class MemoryViews(ChangeStore):
    """`ports.ViewReader` and `ports.ViewStore` beside a `MemoryStore`, which keeps them."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._views = store.views

    # ViewReader

    def view(self, name: TopicName) -> ViewState | None:
        view = self._views.get(name)
        if view is None or not view.commits:
            return None
        head = view.commits[-1]
        messages = [row.message for row in head.rows.values() if not row.remembered]
        return ViewState(
            table_uuid=view.uuid,
            snapshot_id=len(view.commits) - 1,
            horizons=dict(head.horizons),
            rows=len(messages),
            hidden_rows=0,
            size_bytes=sum(message.size_bytes for message in messages),
            due_at=head.due_at,
            settings_hash=head.settings_hash,
        )

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant) -> Sequence[Tail]:
        return [self._tail(log, partition, after.get(partition, NOTHING), as_of) for partition in sorted(log.end_offsets)]

    def _tail(self, log: LogState, partition: int, after: int, as_of: Instant) -> Tail:
        past = [m for m in self._log(log) if m.partition == partition and m.offset > after]
        late = min((m.offset for m in past if m.append_time is not None and m.append_time > as_of), default=None)
        through = max(after, log.end_offsets[partition] - 1 if late is None else late - 1)
        mine = [message for message in past if message.offset <= through]
        size = sum(message.size_bytes for message in mine)
        return Tail(partition=partition, after=after, through=through, rows=len(mine), size_bytes=size)

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        oldest: dict[int, Instant] = {}
        for message in self._store.messages(log.topic, after=view.horizons, at=log):
            if message.append_time is not None:
                oldest[message.partition] = min(message.append_time, oldest.get(message.partition, message.append_time))
        return oldest

    def outlived(self, view: ViewState, plan: Plan) -> Outlived:
        assert plan.requirements.snapshot_id is not None
        log = self._store.version(plan.topic, plan.requirements.snapshot_id).messages
        past = [message for _, message in sorted(log.items()) if message.offset > view.horizon(message.partition)]
        return outlived(past, self.view_rows(plan.topic, view), plan)

    def returning(self, view: ViewState, plan: Plan) -> ReturningView:
        commits = self._views[plan.topic].commits
        commit = next((at for at, made in enumerate(commits) if made.plan_id == plan.plan_id), None)
        if commit is None:
            raise undo_source_gone(plan.plan_id, "its commit is not in the view's history")
        return returning(commits[commit - 1].rows, commits[view.snapshot_id].rows, plan, source_id=commit - 1)

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        rows = self._views[name].commits[view.snapshot_id].rows
        for position in sorted(rows):
            if position[1] >= start and partition in (None, position[0]):
                yield rows[position]

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        return [
            (partition, offset, row.message.key)
            for (partition, offset), row in sorted(self._views[name].commits[view.snapshot_id].rows.items())
            if not row.remembered and (offset in offsets.get(partition, ()) or row.message.key in keys)
        ]

    def published(self, plan: Plan) -> Published | None:
        commits = self._views[plan.topic].commits if plan.topic in self._views else []
        for snapshot_id, commit in enumerate(commits):
            if commit.plan_id == plan.plan_id:
                return Published(plan_id=plan.plan_id, snapshot_id=snapshot_id, removed=commit.removed)
        return None

    # ViewStore

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        view = self._required(plan)
        if plan.is_empty:
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        before = list(self._before(plan).values())
        tail = self._tail_of(plan)
        if plan.view is not None and plan.view.table_uuid is None and tail and all(message.key is None for message in tail):
            raise topic_without_keys(str(plan.topic))
        if plan.on_view.mark:
            made = _without(before, plan)
        elif plan.on_view.back:
            made = Folded(rows=restored(self._views[plan.topic].commits, before, plan))
        else:
            made = fold(before, tail, _rules(plan))
        folded = view.staged.setdefault(plan.plan_id, made)
        staged = StagedView(
            view_rows=sum(not row.remembered for row in before),
            tail_rows=len(tail) + plan.restored_view_rows,
            rows=sum(not row.remembered for row in folded.rows),
            removed=_counts(folded.removed),
            bytes_read=sum(row.message.size_bytes for row in before) + sum(message.size_bytes for message in tail),
            bytes_written=sum(row.message.size_bytes for row in folded.rows),
            engine="memory",
            snapshot_id=len(view.commits),
        )
        if not plan.on_view.compact:
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id, view=staged)
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=len(view.commits), view=staged)

    def evidence(self, plan: Plan, _staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        before = list(self._before(plan).values())
        folded = self._views[plan.topic].staged.get(plan.plan_id)
        after = before if folded is None else folded.rows
        if plan.on_view.compact or plan.is_empty:
            return view_evidence(before, self._tail_of(plan), after, plan, policy)
        frames: dict[str, object] = {"view": removal_evidence(before, after, plan)} if plan.on_view.mark else {}
        if plan.on_view.back:
            commits = self._views[plan.topic].commits
            frames["view_returns"] = return_evidence(before, after, source_of(commits, plan).rows, plan)
        if plan.past_horizon:
            assert plan.requirements.snapshot_id is not None
            log = self._store.version(plan.topic, plan.requirements.snapshot_id).messages.values()
            frames["outlived"] = outlived_evidence(log, self._views[plan.topic].horizons, after, plan)
        return frames

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan = verdict.plan
        done = self.published(plan)
        if done is not None:
            return done
        view = self._required(plan)
        if plan.plan_id not in view.staged:
            raise PlanConflict(plan.plan_id, "nothing is staged for it")
        folded = view.staged[plan.plan_id]
        horizons = dict(view.commits[-1].horizons) if view.commits else {}
        horizons |= {action.partition: action.through for action in plan.on_view.compact}
        made = ViewCommit(
            rows={(row.message.partition, row.message.offset): row for row in folded.rows},
            horizons=horizons,
            due_at=_due_at(folded.rows, plan),
            settings_hash=settings_hash_after(plan, _judged(view.commits, plan)),
            plan_id=plan.plan_id,
            removed=_counts(folded.removed),
        )
        view.commits.append(made)
        self._store.touch(plan.topic, given.ledger())
        return Published(plan_id=plan.plan_id, snapshot_id=len(view.commits) - 1, removed=made.removed)

    def discard(self, plan: Plan) -> None:
        if plan.topic in self._views:
            self._views[plan.topic].staged.pop(plan.plan_id, None)

    def keep_sql_view(self, name: TopicName, policy: Policy) -> str | None:  # noqa: ARG002  # nobody reads it but through us
        return None

    # What a plan is about

    def _required(self, plan: Plan) -> View:
        view, wanted = self._views.setdefault(plan.topic, View()), plan.view
        assert wanted is not None, "a compaction says what view it builds on"
        newest = len(view.commits) - 1 if view.commits else None
        if wanted.snapshot_id != newest or wanted.table_uuid not in (None, view.uuid):
            raise PlanConflict(plan.plan_id, "the compacted view has changed since it was planned")
        return view

    def _before(self, plan: Plan) -> Mapping[Position, ViewRow]:
        assert plan.view is not None
        return {} if plan.view.snapshot_id is None else self._views[plan.topic].commits[plan.view.snapshot_id].rows

    def _tail_of(self, plan: Plan) -> list[Message]:
        span = {action.partition: action for action in plan.on_view.compact}
        assert plan.requirements.snapshot_id is not None
        log = self._store.version(plan.topic, plan.requirements.snapshot_id).messages.values()
        return [m for m in log if m.partition in span and span[m.partition].after < m.offset <= span[m.partition].through]

    def _log(self, log: LogState) -> list[Message]:
        assert log.snapshot_id is not None
        messages = self._store.version(log.topic, log.snapshot_id).messages
        return [messages[position] for position in sorted(messages)]


def _without(before: Iterable[ViewRow], plan: Plan) -> Folded:
    """The view without what a person's request names."""
    named = {(action.partition, offset): action.reason for action in plan.on_view.mark for offset in offsets_of(action.offsets)}
    folded = Folded()
    for row in before:
        reason = named.get((row.message.partition, row.message.offset))
        if reason is None or row.remembered:
            folded.rows.append(row)
        else:
            folded.removed[cast(ViewReason, reason)] += 1
    return folded


def _rules(plan: Plan) -> FoldRules:
    assert plan.view is not None
    return rules_of(Policy.of_values(plan.policy), as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)


def _counts(removed: Counter[ViewReason]) -> tuple[tuple[ViewReason, int], ...]:
    return tuple(sorted((reason, count) for reason, count in removed.items() if count))


def _judged(commits: Sequence[ViewCommit], plan: Plan) -> Iterator[str]:
    """Hashes of settings, as `settings_hash_after` asks for them."""
    yield from (commit.settings_hash for commit in commits[-1:])
    if plan.on_view.back:
        yield source_of(commits, plan).settings_hash


def _due_at(rows: list[ViewRow], plan: Plan) -> Instant | None:
    """When the first of the rows may go by its age, or by its delete horizon."""
    rules = _rules(plan)
    times = [holds_from(rule, row.message) for row in rows if not row.remembered for _, rule in rules.ages]
    times += [row.delete_horizon for row in rows if row.delete_horizon is not None]
    return min((time for time in times if time is not None), default=None)
