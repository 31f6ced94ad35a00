"""The undo of a published plan (DEL-7): its conditions, the messages that return to log and view, its record, and its release."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import cast

from message_lifecycle.app import changes, sparing
from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.operations.messages import MessageOperation, is_view_unchanged
from message_lifecycle.app.operations.registry import Operation, Work, is_lost, is_undone, operation_of_plan, stores_of
from message_lifecycle.app.services import Services
from message_lifecycle.gates.documents import undo_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model import plan as plans
from message_lifecycle.model.errors import HeldByLegalHold, PlanConflict, commit_not_on_main, later_plan, undo_source_gone
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, ViewState, offsets_of, parse_ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import Range, Returning, ReturningView, Undone, ranges_in
from message_lifecycle.operations import undo
from message_lifecycle.operations.planning import view_requirements
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore


class Undo(Operation):
    """The common part of all undos. After an undo's first commit, no hold and no setting can stop it."""

    name = "undo"
    by_request, gives_back, takes_messages = True, True, False
    not_undone = (
        "it is an undo itself. To let the rules remove its messages again: `lifecycle undo PLAN --release --by NAME --why WHY`, where PLAN is "
        "the plan that it has undone. A request that names the messages removes them, too"
    )

    def is_plan_for(self, plan: Plan, work: Work) -> bool:
        return isinstance(work, UndoPlan) and plan.operation == self.name and plan.parent == work.plan_id

    def where(self, plan: Plan) -> str:
        return f"while {plan.restored_rows:,} {plan.things} that plan {plan.parent} took come back"

    def success_text(self, rows: int, restored: int, things: str) -> str:
        return f"brought back {amount(restored, things)}" + (f", removed {amount(rows, things)}" if rows else "")

    def on_close(self, s: Services, plan: Plan) -> str:
        """Record a half-committed undo, although another plan will bring back the rest."""
        if len(stores_of(s, plan)) > 1 and changes.has_first(s, plan):
            record_restored_messages(s, plan)
        return ""

    def earlier_plan_id(self, s: Services, plan: Plan) -> str | None:
        return s.ledger.undone_by(_undone_plan_id(plan))


class UndoOfMessages(Undo, MessageOperation):
    """Brings messages back to the log and to the compacted view, and takes the plan's markers away."""

    judged = "log_return"

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return _plan(s, name, policy, cast(UndoPlan, work), as_of=as_of)

    def where(self, plan: Plan) -> str:
        return super().where(plan) + (f", and {plan.restored_view_rows:,} to the compacted view" if plan.view_return.back else "")

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return undo_suite(plan, staged, policy)

    def check_before_commit(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        pass  # the checks of `OfMessages` concern removals only

    def respects_horizon(self, s: Services, plan: Plan) -> bool:
        return is_view_unchanged(s, plan)

    def combine_published(self, plan: Plan, done: Sequence[Published]) -> Published:
        return super().combine_published(plan, done[:1])

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan, staged = record.plan, record.staged
        assert staged is not None, "what is published was staged"
        # Record first that the messages came back, even if a check fails later: the next run must not remove them again.
        record_restored_messages(s, plan)
        wrong, found = _view_differences(s, plan), s.stores.log_return.effect(plan)
        if (published.restored, found.rows) != (plan.restored_rows, plan.restored_rows):
            wrong.append(f"{plan.restored_rows} messages should be back: the commit says {published.restored}, {found.rows} are there")
        if found.twice:
            wrong.append(f"{found.twice} messages are there more than once")
        if found.markers:
            wrong.append(f"{found.markers} markers of the plan are still there")
        if dict(published.removed) != dict(staged.removed(plan)):
            wrong.append(f"the commit removed {dict(published.removed)}, the plan says {dict(staged.removed(plan))}")
        return wrong

    def detail_text(self, plan: Plan) -> str:
        return f"brought back {amount(plan.restored_view_rows, 'messages')} to the compacted view" if plan.view_return.back else ""


def _plan(s: Services, name: TopicName, policy: Policy, work: UndoPlan, *, as_of: Instant) -> Plan:
    """Return the plan that undoes `work`'s plan, empty if it was undone before. Raises UnknownPlan, or why it cannot be undone."""
    record = s.ledger.record(work.plan_id)
    taken_back = record.plan
    if is_undone(s, taken_back):
        heeded = ids_of(holds_of(s, name))
        return undo.plan(s.reader.log(name), policy, taken_back, None, as_of=as_of, taken=0, heeded=heeded)
    if record.outcome is not None and record.outcome.name == "published" and is_lost(s, taken_back):
        raise commit_not_on_main(taken_back.plan_id, record.outcome.snapshot_id)
    of_log = taken_back.changes_log and not stopped_at_log(s, record)
    store: ChangeStore = s.stores.log if of_log else s.stores.view_removal
    check(s, record, policy, s.topics.describe(name).uuid, lambda: store.has_begun(taken_back))
    log = s.reader.log(name)
    assert record.staged is not None and record.outcome is not None, "a published plan was staged, and has its outcome"
    found = Returning(source_id=None)
    if of_log:
        undone = [(s.ledger.record(known.plan_id), known.undone_by) for known in s.ledger.undone(name)]
        without = [span for other, undone_by in undone for span in markers_of(s, other, undone_by)]
        found = s.reader.find_returning(log, taken_back, record.staged, own=markers_of(s, record), without=without)
    view = s.view_of(name)
    of_view = _find_returning_in_view(s, view, taken_back)
    if of_log:
        undo.check_later(taken_back, found, later_plans(s, taken_back, "compaction"), policy)
    _check_no_later_plan(s, log, taken_back, of_view)
    holds = holds_of(s, name)
    kept = SparedOffsets(sparing.spared_of(s, log, holds) if found.markers else ())
    # A marker is a message. A held marker cannot go, and the messages that it marks as gone must not come back next to it (DEL-8).
    held = [by for mark in found.markers for by, _ in kept.split(mark.partition, mark.offsets)[1]]
    if held:
        raise HeldByLegalHold(str(name), len(held), sorted({by.detail for by in held}))
    taken, heeded = record.outcome.removed_rows, ids_of(holds)
    made = undo.plan(log, policy, taken_back, found, as_of=as_of, taken=taken, heeded=heeded, of_view=of_view)
    if brought := s.ledger.batches_ingested_instead(name, taken_back.plan_id):
        made = replace(made, warnings=(*made.warnings, _ingested_again_text(name, brought)))
    return made if view is None else replace(made, view=view_requirements(view))


def _ingested_again_text(name: TopicName, brought: Sequence[str]) -> str:
    """Return the warning that the plan's messages were ingested again under another mapping. The log then has both versions."""
    commands = " and ".join(f"`lifecycle message delete {name} --batch {batch_id} --by NAME --why WHY`" for batch_id in brought)
    return (
        f"the messages that come back were brought again since, under another mapping, by batch {', '.join(brought)}: both are in the log then. "
        f"To keep only those that come back: {commands}"
    )


def markers_of(s: Services, record: PlanRecord, undone_by: str | None = None) -> Sequence[Range]:
    """Return the offsets of a plan's markers.

    Outcomes of versions before undo do not record the offsets. The offsets then come from the log's history, or from the undo that removed
    the markers.

    Raises:
        UndoSourceGone: Some offsets are unknown. A marker that stays in the log would hide the returning messages.
    """
    outcome = record.outcome
    if outcome is None:
        return ()
    if outcome.marker_offsets is not None:
        return outcome.marker_offsets
    found = list(s.reader.marker_offsets(record.plan.topic, record.plan.plan_id))
    if _rows_in(found) == outcome.markers:
        return found
    taken = () if undone_by is None else s.ledger.record(undone_by).plan.log_return.mark
    found = [(action.partition, run.start, run.stop - 1) for action in taken for run in parse_ranges_text(action.offsets)]
    if _rows_in(found) == outcome.markers:
        return found
    raise undo_source_gone(record.plan.plan_id, f"nothing tells any more which messages are the {outcome.markers} markers that it made")


def _rows_in(spans: Sequence[Range]) -> int:
    return sum(last - first + 1 for _, first, last in spans)


def check(s: Services, record: PlanRecord, policy: Policy, table_uuid: str, has_committed: Callable[[], bool]) -> None:
    """Check that the plan may be undone. Raises the reason why not.

    Args:
        s: The stores, the ledger and the settings.
        record: The record of the plan to undo.
        policy: The topic's policy.
        table_uuid: The table that the messages would return to.
        has_committed: Return whether any commit of the plan exists.
    """
    plan, outcome = record.plan, None if record.outcome is None else record.outcome.name
    # A plan that failed verification still changed the table.
    committed = outcome != "failed" or has_committed()
    published_at = s.ledger.published_at(plan.plan_id) if committed else None
    if stopped_at_log(s, record):
        # Count the undo window from the gate's report. The commit came later, so the tables keep the messages for at least that long.
        outcome, published_at = "published", record.reported_at
    undo.check(
        plan,
        why_not=operation_of_plan(plan).why_not_undone(),
        outcome=outcome,
        published_at=published_at,
        now=s.ledger.now(),
        undo_window_us=policy.undo_window_us,
        table_uuid=table_uuid,
    )


def stopped_at_log(s: Services, record: PlanRecord) -> bool:
    """Return whether a removal was closed between its two commits, by a hold, a changed setting or another writer.

    The first commit removed the messages from the view, but the log still has them.
    """
    plan, outcome = record.plan, record.outcome
    if outcome is None or outcome.name in ("published", "failed") or not operation_of_plan(plan).needs_separate_commits(plan):
        return False
    return s.stores.view_removal.has_begun(plan)


def later_plans(s: Services, plan: Plan, *operations: plans.Operation) -> list[Plan]:
    """Return the later plans that still have an effect, in order within each operation.

    Plans that were undone, or lost with an older catalog, are left out. A plan that failed verification still changed the table. Only a
    failed compaction may have done nothing: it was never judged, or the view's history shows that it has not begun.
    """
    found = (
        other
        for operation in operations
        for other in s.ledger.published_after(plan.topic, plan.plan_id, operation, or_failed=True)
        if not is_undone(s, other.plan) and not is_lost(s, other.plan)
    )
    return [
        other.plan
        for other in found
        if not other.plan.view_commit.compact
        or (other.outcome is not None and other.outcome.name == "published")
        or (other.report is not None and s.stores.view.has_begun(other.plan))
    ]


def _find_returning_in_view(s: Services, view: ViewState | None, plan: Plan) -> ReturningView:
    if not plan.view_removal.mark:
        return ReturningView()
    if view is None or plan.view is None or view.table_uuid != plan.view.table_uuid:
        raise undo_source_gone(plan.plan_id, "the compacted view that it took messages from is not there any more")
    return s.stores.view.find_returning(view, plan)


def _check_no_later_plan(s: Services, log: LogState, plan: Plan, of_view: ReturningView) -> None:
    """Check that no later plan builds on the removal from the view, with the log as the later plan found it.

    Raises:
        LaterPlan: A later plan builds on the removal.
        UndoSourceGone: The log's state of that time is no longer known.
    """
    partitions = {partition for partition, _ in of_view.newest}
    for other in later_plans(s, plan, "compaction", "message_request", "message_cleaner") if partitions else ():
        spans = [span for partition in sorted(partitions) if (span := undo.offsets_passed_over(other, partition)) is not None]
        then = replace(log, snapshot_id=other.requirements.snapshot_id)
        try:
            if any(
                undo.is_passed_over(other, message, plan, of_view.newest) for span in spans for message in _messages_within(s, then, span)
            ):
                reason = "compacted, or removed, a newer message of a key that it took from the view, or removed what it took from there"
                raise later_plan(plan.plan_id, other.plan_id, reason)
        except PlanConflict as gone:
            reason = f"whether plan {other.plan_id}, which came later, builds on it cannot be told: {gone.reason}"
            raise undo_source_gone(plan.plan_id, reason) from gone


def _messages_within(s: Services, log: LogState, span: Range) -> Iterator[Message]:
    partition, first, last = span
    return takewhile(lambda message: message.offset <= last, s.reader.messages(log.topic, at=log, partition=partition, start=first))


def record_restored_messages(s: Services, plan: Plan) -> None:
    """Record that the plan's messages are back, so that the rules do not remove them again.

    The record is due after the first commit already, the log's, because another plan may bring back the rest. An empty plan brought nothing
    back.
    """
    if plan.is_empty:
        return
    before = s.ledger.undone_by(_undone_plan_id(plan))
    instead_of = None if before == plan.plan_id else before
    ranges = ranges_in((*plan.log_return.back, *plan.view_return.back), plan.quarantine_return.files)
    s.ledger.set_undone(plan.topic, _undone_plan_id(plan), plan.plan_id, ranges, instead_of=instead_of)


def _undone_plan_id(plan: Plan) -> str:
    """The plan that an undo takes back."""
    assert plan.parent is not None, "an undo names what it takes back"
    return plan.parent


def _view_differences(s: Services, plan: Plan) -> list[str]:
    if not plan.view_return.back:
        return []
    view, done = s.view_of(plan.topic), s.stores.view_return.find_published(plan)
    if view is None or done is None:
        return ["nothing came back to the compacted view"]
    # Read the view's state as published, because a compaction may have changed the view since.
    offsets = {action.partition: list(offsets_of(action.offsets)) for action in plan.view_return.back}
    back = s.stores.view.places_of(plan.topic, replace(view, snapshot_id=done.snapshot_id), offsets=offsets, keys=())
    if len(back) == plan.restored_view_rows:
        return []
    return [f"{plan.restored_view_rows} messages should be back in the compacted view, {len(back)} are there"]


def release(s: Services, plan_id: str, *, by: str, text: str) -> Undone:
    """Let the rules remove the messages again that the plan's undo brought back.

    Raises:
        UnknownPlan, NotUndone, UnnamedPerson, MixedScripts: Nothing was released.
    """
    plan = s.ledger.record(plan_id).plan
    return s.ledger.release_undone(plan.plan_id, by=by, text=text)
