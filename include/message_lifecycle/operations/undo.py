"""Taking a published plan back: exactly what it took comes back, and its own markers go (DEL-7).

Not what the log was, but what that plan did is undone: messages that came since stay, other plans' removals stay, and end offsets and
active segments are as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from message_lifecycle.model.change import ReturnToLog, ReturnToView, non_empty_commits
from message_lifecycle.model.errors import later_plan, not_published, not_undoable, undo_window_passed
from message_lifecycle.model.facts import Facts, LogState
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.message import Message, parse_ranges_text
from message_lifecycle.model.outcome import OutcomeName
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import REASONS, is_age
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import Range, Returning, ReturningView, ranges_in
from message_lifecycle.operations.planning import empty_plan_of_log, not_restored_texts

_OF_AGES = ("message_expiry", "max_age_seconds", "allow_msg_ttl", "ttl_overrides_age", "zero_ttl")


def check(
    plan: Plan,
    *,
    why_not: str | None,
    outcome: OutcomeName | None,
    published_at: Instant | None,
    now: Instant,
    undo_window_us: int,
    table_uuid: str,
) -> None:
    """Check that the plan may be taken back at all. Raises the reason why not.

    `why_not` is the reason of the plan's operation. `published_at` is by the ledger's clock. None: the plan has changed nothing.
    """
    if outcome not in ("published", "failed") or published_at is None:
        raise not_published(plan.plan_id, outcome or "open")
    if why_not is not None:
        raise not_undoable(plan.plan_id, why_not)
    if plan.requirements.table_uuid != table_uuid:
        raise not_undoable(plan.plan_id, "its table is another one now: the topic was made anew")
    ended_at = Instant(published_at + undo_window_us)
    if now >= ended_at:
        raise undo_window_passed(
            plan.plan_id, published_at=format_to_second(published_at), ended_at=format_to_second(ended_at), now=format_to_second(now)
        )


def check_later(plan: Plan, found: Returning, later: Iterable[Plan], policy: Policy) -> None:
    """Check that no later compaction stands against the undo. Raises LaterPlan.

    `later` are the plans published since, oldest first. A compaction that passed the removed messages has built a view without them. After
    the undo the messages would be in the log and not in the view.

    Two kinds of messages do no harm. No view shows messages that an age removed, while the ages of `policy` are the same as then. And the
    view has the messages that left because they are compacted. But a plan may have removed older messages from the view together with
    messages from the log. Such messages may come back only before such a compaction, which would have hidden them for ever (P3).
    """
    then = dict(plan.policy)
    same_ages = all(then.get(name) == policy.values.get(name) for name in _OF_AGES)
    in_no_view = all(not REASONS[reason].in_view and (same_ages or not is_age(reason)) for reason, _ in plan.expected.removed)
    if in_no_view and not plan.view_removal.mark:
        return
    marked = [(action.partition, run.start, run.stop - 1) for action in found.markers for run in parse_ranges_text(action.offsets)]
    places = (*ranges_in(found.rows), *marked, *(_removed_ranges(plan) if plan.view_removal.mark else ()))
    for other in later:
        for part in other.view_commit.compact:
            if any(_overlaps(place, part.partition, part.after, part.through) for place in places):
                raise later_plan(plan.plan_id, other.plan_id, "compacted the place of what it removed, so that the view is without it")


def _removed_ranges(plan: Plan) -> Iterator[Range]:
    """Where it took messages from the log, those included that do not come back."""
    return ((partition, run.start, run.stop - 1) for partition, run in plan.log_commit.removed_runs())


def offsets_passed_over(plan: Plan, partition: int) -> Range | None:
    """Between which offsets the plan took up messages, or took them away; None: nowhere in the partition."""
    spans = [(part.after + 1, part.through) for part in plan.view_commit.compact if part.partition == partition]
    spans += [(first, last) for of, first, last in _removed_ranges(plan) if of == partition]
    return (partition, min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def is_passed_over(plan: Plan, message: Message, undone: Plan, newest: Mapping[tuple[int, bytes], int]) -> bool:
    """Whether the later plan is in the way of `undone` because of this message of `offsets_passed_over`. `newest`: as `ReturningView`.

    It took up, or took away, a newer message of a key of which one is to come back to the view: the key would show a value that is older
    than what the view has, or than what was removed (P3). Or a person had that very one removed, which the log alone had by then: it would
    be shown again (PRG-1).
    """
    back = None if message.key is None else newest.get((message.partition, message.key))
    if back is None or message.offset < back:
        return False
    if message.offset == back:
        in_log_alone = "removed" in plan.reasons and undone.removal_at(message.partition, back) is None
        return in_log_alone and plan.removal_at(message.partition, back) is not None
    return bool(plan.view_commit.compact) or plan.removal_at(message.partition, message.offset) is not None


def _overlaps(place: Range, partition: int, after: int, through: int) -> bool:
    of, first, last = place
    return of == partition and first <= through and last > after


def plan(
    log: LogState,
    policy: Policy,
    undone: Plan,
    found: Returning | None,
    *,
    as_of: Instant,
    taken: int,
    heeded: tuple[str, ...] = (),
    of_view: ReturningView | None = None,
) -> Plan:
    """Plan the undo of `undone`.

    If `found` is None, `undone` was taken back before, and the plan is empty. `taken` are the messages that `undone` removed from the log.
    `of_view` are the messages that come back to the compacted view.
    """
    of_view = of_view or ReturningView()
    # The log first: were the view first and the run to die, a key would show what a newer message, not back yet, hides (P3).
    changes = (
        ()
        if found is None
        else non_empty_commits(
            ReturnToLog(back=found.rows, mark=found.markers, source_id=found.source_id),
            ReturnToView(back=of_view.rows, source_id=of_view.source_id),
        )
    )
    to_view = sum(action.rows for action in of_view.rows)
    restored = 0 if found is None else sum(action.rows for action in found.rows)
    markers = 0 if found is None else sum(action.rows for action in found.markers)
    made = empty_plan_of_log("undo", Facts(log=log, heeded=heeded), policy, as_of=as_of)
    return replace(
        made,
        changes=changes,
        expected=replace(made.expected, removed=(("undone", markers),) if markers else ()),
        warnings=() if found is None else tuple(_warnings(found, restored, taken, of_view.gone)),
        asks=(
            f"undoes plan {short(undone.plan_id)} ({undone.operation}): brings back {amount(restored, 'messages')}"
            + (f" and {to_view:,} in the compacted view" if to_view else ""),
        )
        if changes
        else (),
        parent=undone.plan_id,
        parent_operation=undone.operation,
    )


def _warnings(found: Returning, restored: int, taken: int, gone_of_view: int) -> Iterable[str]:
    yield from not_restored_texts("messages", taken=taken, back=restored, present=found.present)
    if gone_of_view:
        yield f"{amount(gone_of_view, 'messages')} of the compacted view cannot come back: no file has them"
