"""Compaction of a topic: what its view has to take up at `as_of` (CMP-1, CMP-4, CMP-5, CMP-7). The log itself stays as it is (CMP-9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from message_lifecycle.model.change import Commit, CompactPartition, that_change
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.plan import Bound, Expected, Held, Plan, Selection, ViewRequirements
from message_lifecycle.model.settings import ACTS_ON_VIEW, Policy, Value
from message_lifecycle.model.view import NOTHING, Tail, ViewState
from message_lifecycle.operations.required import required


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """What planning may look at. `view` None: there is none yet. `lag_us`: age of the oldest message that a consumer has not read.

    `accepted`: the settings under which the view's removals were last accepted; None: unknown."""

    log: LogState
    view: ViewState | None
    tails: tuple[Tail, ...]
    lag_us: int = 0
    accepted: tuple[tuple[str, Value | None], ...] | None = None
    heeded: tuple[str, ...] = ()
    waits: tuple[Held, ...] = ()
    """Messages under a legal hold that only the view has, and that it would lose now (DEL-8)."""


def plan(facts: CompactionFacts, policy: Policy, *, as_of: Instant) -> Plan:
    """Pure: same facts, policy and `as_of`, same plan. Empty where nothing is new and nothing in the view is due (CMP-5)."""
    log, view = facts.log, facts.view
    tightened = () if view is None or not view.rows else _tightened(facts, policy)
    due_since = None if view is None or view.due_at is None or as_of < view.due_at else view.due_at
    due = is_due(view, policy, as_of=as_of)
    tails = () if facts.waits else facts.tails
    parts = tuple(
        CompactPartition(partition=tail.partition, after=tail.after, through=tail.through, rows=tail.rows)
        for tail in sorted(tails, key=lambda tail: tail.partition)
        if tail.through > tail.after or (due and tail.after > NOTHING)
    )
    rows = 0 if view is None else view.rows
    return Plan(
        operation="compaction",
        topic=log.topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=required(log, policy, facts.heeded),
        bounds=tuple(_bounds(facts)),
        changes=that_change(Commit(table="view", compact=parts)),
        selection=Selection(),
        expected=Expected(
            rows_in=rows + sum(tail.rows for tail in tails),
            # Which of them stay is found out by reading them: nothing is known before.
            removed=(),
            removed_bytes=None,
            bytes_in=None,
            segments=0,
        ),
        held=facts.waits,
        warnings=tuple(f"the compacted view waits, for it alone has what {held.detail} keeps" for held in facts.waits),
        asks=tightened if parts else (),
        more=False,
        due_since=due_since,
        next_due_at=None if view is None or due else view.due_at,
        view=ViewRequirements(
            table_uuid=None if view is None else view.table_uuid,
            snapshot_id=None if view is None else view.snapshot_id,
            rows=rows,
            rewrite=_rewrite(facts, policy),
            tombstones_until=_tombstones_until(facts, policy, as_of),
        ),
    )


def is_due(view: ViewState | None, policy: Policy, *, as_of: Instant) -> bool:
    """Whether something in the view may be due at `as_of` (CMP-5). Under other settings than those by which the view was made nobody
    knows what is due until it was looked at."""
    return view is not None and ((view.due_at is not None and as_of >= view.due_at) or view.settings_hash != policy.view_hash)


def settings_hash_after(plan: Plan, judged: Iterable[str]) -> str:
    """Of the settings by which every message in the view has been judged once the plan is published; empty where they are not the same.
    `judged`: by those the view was before it, and by those what comes back was then. Only a compaction judges messages."""
    now = Policy.of_values(plan.policy).view_hash
    return now if plan.on_view.compact or all(earlier == now for earlier in judged) else ""


def _rewrite(facts: CompactionFacts, policy: Policy) -> bool:
    """A view with no more messages than the tail is written anew, as is one whose files hold too much that is superseded."""
    view, new = facts.view, sum(tail.rows for tail in facts.tails)
    if view is None or policy.by_event_time:
        return True
    return view.rows <= new or view.hidden_rows > policy.compaction_rewrite_fraction * (view.rows + view.hidden_rows)


def _tombstones_until(facts: CompactionFacts, policy: Policy, as_of: Instant) -> Instant | None:
    if not policy.delete_retention_us:
        return None
    return Instant(min(as_of + max(policy.delete_retention_us, facts.lag_us), INT64_MAX))


def _tightened(facts: CompactionFacts, policy: Policy) -> tuple[str, ...]:
    """The view may be all that is left of a message, so what removes more of it than before is asked about (DEL-3)."""
    if facts.accepted is None:
        return ("everything: no earlier compaction of this topic is known",)
    names = (name for name in policy.tightened_since(dict(facts.accepted)) if name in ACTS_ON_VIEW)
    return tuple(f"tightened since the last accepted run: {name}" for name in names)


def _bounds(facts: CompactionFacts) -> list[Bound]:
    """Where a later message stops the run (CMP-1)."""
    return [
        Bound(
            name="as_of",
            partition=tail.partition,
            offset=tail.through + 1,
            reason="the next message is later than the run's as_of, and waits for the next run",
        )
        for tail in facts.tails
        if tail.through + 1 < facts.log.end_offsets.get(tail.partition, 0)
    ]
