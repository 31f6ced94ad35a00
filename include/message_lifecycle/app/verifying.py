"""What the published change is compared with: the plan, and what the gate judged (DEL-6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from message_lifecycle.app import (
    deleted_reclaiming,
    document_deeds,
    document_undoing,
    erasing,
    quarantine,
    quarantine_undoing,
    reclaiming,
    topic_deleting,
    undoing,
)
from message_lifecycle.model.actions import DropSegments, RemoveRows
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import LimitReason
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import PlanRecord

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_LIMITS = get_args(LimitReason)


def accept(s: Services, plan: Plan, staged: Staged | None) -> None:
    """What the operation has done is accepted with its settings; of the cleaner see `accept_removal`, which comes later."""
    match plan.operation:
        case "compaction":
            accept_compaction(s, plan)
        case "purge_compacted":
            accept_purge(s, plan)
        case "snapshot_with_purge":
            document_deeds.accept(s, plan, staged)
        case "erasure":
            erasing.accept(s, plan)
        case "reclaim" if plan.parent is None:
            reclaiming.accept(s, plan)
        case "quarantine":
            quarantine.accept(s, plan)
        case "undo":
            topic_deleting.accept(s, plan)
        case _:
            pass


def accept_removal(s: Services, plan: Plan) -> None:
    """What was removed under these settings was accepted with them; with nothing removed, only a loosening needs no word (DEL-3)."""
    accepted = s.ledger.accepted(plan.topic)
    if not plan.is_empty or (accepted is not None and not Policy.of_values(plan.policy).tightened_since(accepted)):
        s.ledger.set_accepted(plan.topic, dict(plan.policy))


def accept_purge(s: Services, plan: Plan) -> None:
    """That the view may stand for the log was accepted; of other settings a purge says nothing."""
    accepted = s.ledger.accepted(plan.topic)
    if not plan.is_empty and accepted is not None:
        s.ledger.set_accepted(plan.topic, {**accepted, "cleanup_policy": dict(plan.policy)["cleanup_policy"]})


def differences(s: Services, record: PlanRecord, published: Published | None) -> list[str]:
    plan, staged = record.plan, record.staged
    if published is None or staged is None:
        return []
    if plan.operation == "snapshot_with_purge":
        return document_deeds.differences(s, plan, staged, published)
    if plan.moved_tables:
        return topic_deleting.differences(s, plan)
    if plan.document_returns:
        return document_undoing.differences(s, plan, published)
    if plan.of_quarantine:
        undone = plan.operation == "undo"
        return quarantine_undoing.differences(s, plan, published) if undone else quarantine.differences(s, plan)
    if plan.operation == "undo":
        return undoing.differences(s, plan, staged, published)
    if deleted_reclaiming.is_of_deleted(plan):
        return deleted_reclaiming.differences(s, plan)
    if plan.operation == "reclaim":
        return reclaiming.differences(s, plan, published)
    if plan.operation == "compaction":
        return view_differences(s, plan, staged, published)
    if plan.operation == "erasure":
        return erasing.differences(s, plan, published)
    wrong = removal_differences(s, plan, staged)
    gone = set(s.reader.effect(plan.topic, plan.plan_id))
    if gone != set(plan.selection.files):
        wrong.append(
            f"the commit took {len(gone)} files out, the plan names {len(plan.selection.files)}, {len(gone ^ set(plan.selection.files))} differ"
        )
    if dict(published.removed) != dict(staged.removed(plan)):
        wrong.append(f"the commit removed {dict(published.removed)}, the plan says {dict(staged.removed(plan))}")
    judged = 0 if staged.markers is None else staged.markers.count
    if published.markers + published.cancelled_markers != judged:
        wrong.append(f"the commit made {published.markers} markers and cancelled {published.cancelled_markers}, the gate judged {judged}")
    return wrong


def overdue_without_holder(plan: Plan, after: Plan) -> list[str]:
    """What a new plan at the same `as_of` would still take, of what was there when the first was made and had no holder then: a
    reader may have moved on since, or the segment that stood before may have lost its last message to a rule of its own in this very
    run, and what they held waits for the next. So does what messages that came since, the run's own markers among
    them, have pushed beyond a limit by number or size; and what a held message has, which stays beyond a limit: by the times of those that
    went it may have ranked behind, and before by those that are left (RET-4)."""
    ends = dict(plan.requirements.end_offsets)
    ranks_anew = dict(after.requirements.end_offsets) != ends or any(held.holder in get_args(SparedBy) for held in plan.held)
    left = [
        action
        for action in after.actions
        if isinstance(action, DropSegments | RemoveRows)
        and action.last_offset < ends.get(action.partition, 0)
        and not _was_held(plan, action)
        and not (ranks_anew and action.reason in _LIMITS)
    ]
    if not left or plan.more:
        return []
    return [
        f"partition {action.partition}: messages up to offset {action.last_offset} are still overdue and nothing named holds them"
        for action in left
    ]


def _was_held(plan: Plan, action: DropSegments | RemoveRows) -> bool:
    first = action.first_base if isinstance(action, DropSegments) else action.base_offset
    held = [entry for entry in plan.held if entry.partition == action.partition]
    return all(any(entry.first_base <= offset <= entry.last_offset for entry in held) for offset in (first, action.last_offset))


def view_differences(s: Services, plan: Plan, staged: Staged, published: Published) -> list[str]:
    """What the published view does not have as the gate has judged it (DEL-6)."""
    wrong, view = [], s.views.view(plan.topic)
    if dict(published.removed) != dict(staged.removed(plan)):
        wrong.append(f"the commit left out {dict(published.removed)}, the gate judged {dict(staged.removed(plan))}")
    if view is None:
        return [*wrong, "the compacted view is not there"]
    wrong += [
        f"partition {action.partition}: the horizon is {view.horizon(action.partition)}, the plan says {action.through}"
        for action in plan.compactions
        if view.horizon(action.partition) < action.through
    ]
    if staged.view is not None and view.snapshot_id == published.snapshot_id and view.rows != staged.view.rows:
        wrong.append(f"the view has {view.rows} messages, the gate judged {staged.view.rows}")
    return wrong


def removal_differences(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """What a request's commit on the view did not do as it was judged."""
    done = s.views.published(plan.topic, plan.plan_id) if plan.view_removals else None
    if not plan.view_removals or (done is not None and staged.view is not None and dict(done.removed) == dict(staged.view.removed)):
        return []
    return [f"the commit took {None if done is None else dict(done.removed)} from the compacted view, not what the gate judged"]


def accept_compaction(s: Services, plan: Plan) -> None:
    """The settings under which the view is what it is (DEL-3); that they are known says that there is a view."""
    if not plan.is_empty:
        s.ledger.set_accepted_view(plan.topic, dict(plan.policy))
