"""Compaction of a topic into its view, and the purge of the log's messages that the view covers (CMP-1, CMP-5, CMP-9, CMP-10).

If the log has nothing new, two metadata documents show that: the log's and the view's. The length of the log does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from message_lifecycle.app import sparing
from message_lifecycle.app.due import Due, DueContext, topics_of_messages
from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.operations.messages import MessageOperation, facts_of
from message_lifecycle.app.operations.registry import Operation, Work, record_accepted_setting
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import find_at_risk, horizons_of
from message_lifecycle.app.topics import update_latest_view, update_views
from message_lifecycle.gates.messages import compaction_suite, purge_compacted_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.errors import CompactedTableMissing, horizon_beyond_log
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.hold import Hold
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Look, Owed
from message_lifecycle.model.outcome import PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount, size
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import check_messages
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import compaction
from message_lifecycle.operations.compaction import CompactionFacts
from message_lifecycle.operations.expiry import topic_readers


class Compaction(Operation):
    """Brings the view up to the log's end."""

    name = "compaction"
    command = "compact"
    judged = "view"
    interval = "compaction_interval"
    removes, takes_messages = False, False
    not_undone = "a compaction takes nothing from the log, which still has what the view leaves out"

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        """Return the topics of messages. Named topics all count, whether or not their settings ask for compaction."""
        return names if named else topics_of_messages(s, names)

    def success_text(self, rows: int, restored: int, things: str) -> str:
        return f"compacted, left out {amount(rows, things) if rows else 'nothing'}"

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        policy = policy_of(s, name)
        check_messages(policy.values, name)
        if not policy.is_compacted and not asked.named:
            return Due(topic=name, due=False, reason=f"cleanup_policy is {policy['cleanup_policy']}: compacted by hand alone")
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        if _is_settled(s, name, policy, as_of=asked.as_of, named=asked.named):
            return Due(topic=name, due=False, reason="nothing is new, and nothing in the view is due")
        facts = compaction_facts(s, name, policy, as_of=asked.as_of)
        made = compaction.plan(facts, policy, as_of=asked.as_of)
        if made.is_empty:
            waits = "; ".join(made.warnings)
            return Due(topic=name, due=False, reason=waits or "nothing new is as old as as_of", waits=bool(made.held))
        new, due = _new_bytes(facts), compaction.is_due(facts.view, policy, as_of=asked.as_of)
        if not due and not asked.named and (few := _too_few(new, policy)):
            return Due(topic=name, due=False, reason=few)
        since = "" if made.due_since is None else f" since {format_to_second(made.due_since)}"
        messages = amount(sum(tail.rows for tail in facts.tails), "messages")
        in_view = f"; in the view messages may be due{since}" if due else ""
        return asked.due_unless_blocked(made, f"{messages}, {size(new)}, are new{in_view}")

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        if policy.has_documents or not policy.is_compacted:
            return ()
        nothing = Owed(kind="compaction")
        as_of = s.ledger.now()
        if _is_settled(s, name, policy, as_of=as_of, named=False):
            return [nothing]
        facts = compaction_facts(s, name, policy, as_of=as_of)
        plan = compaction.plan(facts, policy, as_of=as_of)
        new, due = sum(tail.rows for tail in facts.tails), compaction.is_due(facts.view, policy, as_of=as_of)
        if plan.is_empty or (not due and _too_few(_new_bytes(facts), policy)):
            return [replace(nothing, held=plan.held)]
        # A new message may have come in long after its own time. A run that found nothing has not seen it, so `since` is not `exact`.
        times = [plan.due_since, *_oldest_new(s, facts)]
        since = min((at for at in times if at is not None), default=None)
        # If only the view has due messages, their number is not known before the view is read.
        return [replace(nothing, amount=new or 1, unit="messages" if new else "compacted view", since=since, held=plan.held)]

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return compaction.plan(compaction_facts(s, name, policy, as_of=as_of), policy, as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return compaction_suite(plan, staged, policy)

    def question(self, plan: Plan, going: int) -> str:
        return f"leave {going:,} of {plan.expected.rows_in:,} messages out of the compacted view?"

    def where(self, plan: Plan) -> str:
        return "from the compacted view only (the log keeps them)"

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return sparing.count_view_messages_under_hold(s, plan, holds)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan, staged, view = record.plan, record.staged, s.view_of(record.plan.topic)
        assert staged is not None, "what is published was staged"
        wrong = []
        if dict(published.removed) != dict(staged.removed(plan)):
            wrong.append(f"the commit left out {dict(published.removed)}, the gate judged {dict(staged.removed(plan))}")
        if view is None:
            return [*wrong, "the compacted view is not there"]
        wrong += [
            f"partition {action.partition}: the horizon is {view.horizon(action.partition)}, the plan says {action.through}"
            for action in plan.view_commit.compact
            if view.horizon(action.partition) < action.through
        ]
        if staged.view is not None and view.snapshot_id == published.snapshot_id and view.rows != staged.view.rows:
            wrong.append(f"the view has {view.rows} messages, the gate judged {staged.view.rows}")
        return wrong

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Record the settings that made the view as accepted (DEL-3). Their record also shows that a view exists."""
        if not plan.is_empty:
            s.ledger.set_accepted_view(plan.topic, dict(plan.policy))
        update_views(s, plan.topic)


class PurgeCompacted(MessageOperation):
    """Takes from the log whole segments that the view covers (CMP-9)."""

    name = "purge_compacted"
    interval = "compaction_interval"
    undoable, stops_when_disabled = True, True

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        if policy.has_documents or not policy.purges_compacted:
            return ()
        if s.view_of(name) is None:
            return [Owed(kind="purge", by_setting=False)]
        # The purgeable messages were covered by a compaction that was published after the last run that had nothing to purge.
        first = None if look.settled_at is None else s.ledger.planned_since(name, (Compaction.name,), published_after=look.settled_at)
        return [Owed(kind="purge", amount=made().expected.removed_rows, since=first, held=made().held, by_setting=False)]

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        policy = policy_of(s, name)
        if not policy.purges_compacted:
            return Due(topic=name, due=False, reason=f"cleanup_policy is {policy['cleanup_policy']}: the log keeps what the view covers")
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        if not policy.cleaner_enabled:
            return Due(topic=name, due=False, reason="nothing is removed while [message_cleaner] enabled = false", waits=True)
        if s.view_of(name) is None:
            return Due(topic=name, due=False, reason="nothing was compacted yet")
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if made.is_empty:
            held = "; ".join(sorted({entry.detail for entry in made.held}))
            return Due(topic=name, due=False, reason=held or "no sealed segment is compacted whole", waits=bool(held))
        reason = f"{made.expected.removed_rows} messages in {made.expected.segments} segments are compacted"
        return asked.due_unless_blocked(made, reason)

    def prepare(self, s: Services, name: TopicName) -> None:
        super().prepare(s, name)
        update_latest_view(s, name)  # an older SQL view would read past the horizon that it relied on

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return compaction.plan_purge(facts_of(s, log), policy, horizons_of(s, log.topic), as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return purge_compacted_suite(plan, staged, policy)

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Record as accepted that the view may replace messages of the log."""
        record_accepted_setting(s, plan, "cleanup_policy")


def _is_settled(s: Services, name: TopicName, policy: Policy, *, as_of: Instant, named: bool) -> bool:
    view, ends = s.view_of(name), s.reader.end_offsets(name)
    if view is None:  # a person who names an empty topic gets its empty view; by its schedule it waits for a message
        return not named and not any(ends.values()) and s.ledger.accepted_view(name) is None
    # A view whose horizon is past the log's end is not settled; planning reports the error.
    is_whole = all(view.horizon(partition) == end - 1 for partition, end in ends.items())
    return is_whole and not compaction.is_due(view, policy, as_of=as_of)


def _new_bytes(facts: CompactionFacts) -> int:
    return sum(tail.size_bytes for tail in facts.tails)


def _too_few(new: int, policy: Policy) -> str | None:
    """Return why the new bytes are too few for a scheduled run, or None."""
    threshold = policy.compaction_threshold_bytes
    return f"{size(new)} are new, not more than compaction_threshold_bytes = {threshold}" if 0 < threshold >= new else None


def _oldest_new(s: Services, facts: CompactionFacts) -> Iterable[Instant | None]:
    if facts.view is not None:
        return s.stores.view.oldest_past(facts.log, facts.view).values()
    return [segment.oldest_at for segment in facts.log.segments]


def compaction_facts(s: Services, name: TopicName, policy: Policy, *, as_of: Instant) -> CompactionFacts:
    """Read the facts for a compaction.

    Raises:
        CompactedTableMissing: A view was published, and is gone.
        IsADocumentTopic, HorizonBeyondLog: The topic cannot be compacted.
    """
    log, view = s.reader.log(name), s.view_of(name)
    accepted = s.ledger.accepted_view(name)
    if view is None and accepted is not None:
        raise CompactedTableMissing(str(name), "it was published before, and its table is not there any more")
    horizons = {} if view is None else view.horizons
    for partition, horizon in sorted(horizons.items()):
        end = log.end_offsets.get(partition, 0)
        if horizon >= end:
            raise horizon_beyond_log(str(name), partition, horizon, end)
    tails, holds = (
        tuple(s.stores.view.tails(log, horizons, as_of=as_of, latest_allowed_time=policy.latest_allowed_time(as_of))),
        holds_of(s, name),
    )
    return CompactionFacts(
        log=log,
        view=view,
        tails=tails,
        heeded=ids_of(holds),
        waits=() if view is None else find_at_risk(s, log, view, tails, policy, as_of=as_of, holds=holds),
        lag_us=_lag(s, log, policy, as_of) if policy.delete_retention_us else 0,
        accepted=None if accepted is None else tuple(sorted(accepted.items())),
    )


def _lag(s: Services, log: LogState, policy: Policy, as_of: Instant) -> int:
    """Age of the oldest message that a registered consumer has not read; 0: all is read (CMP-7)."""
    oldest = as_of
    for reader in topic_readers(s.ledger.consumers(log.topic), policy, as_of).readers:
        for partition in log.end_offsets:
            start = reader.bound(partition).offset or 0
            unread = next(iter(s.reader.messages(log.topic, partition=partition, start=start)), None)
            if unread is not None and unread.append_time is not None:
                oldest = min(oldest, unread.append_time)
    return as_of - oldest
