"""The removal of old rows from a topic's quarantine, in whole files, and its undo, which brings back copies (QUA-1, DEL-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from message_lifecycle.app.due import Due, DueContext
from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.operations.registry import Frames, Operation, Work, is_undone, record_accepted_setting
from message_lifecycle.app.operations.undo import Undo, check, record_restored_messages
from message_lifecycle.app.refused import quarantine_of
from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import undone_detail
from message_lifecycle.gates.suite import Suite
from message_lifecycle.gates.tables import quarantine_suite, quarantine_undo_suite
from message_lifecycle.model.errors import undo_source_gone
from message_lifecycle.model.hold import Hold
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Look, Owed
from message_lifecycle.model.outcome import PlanRecord, Published, RefusedBatch, Staged
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import QuarantineState, RestoredQuarantineRows
from message_lifecycle.model.undo import QUARANTINE
from message_lifecycle.operations import quarantine

_NOTHING = QuarantineState(table_uuid="", snapshot_id=None, files=())
_THERE = "what it took is there again already"
_GONE = "no row that it took is in any file any more"


class QuarantineOperation(Operation):
    """The common part of the removal by age and its undo."""

    judged = "quarantine"
    held_rows = "rows of the quarantine"


class Quarantine(QuarantineOperation):
    """Removes files whose rows have all reached their age, or came in again by a replay. Planning reads metadata only."""

    name = "quarantine"
    command = "quarantine"
    takes_messages, undoable = False, True

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        if s.stores.quarantine is None or s.stores.quarantine.quarantine(name) is None:
            return ()
        rows = made().expected.removed_rows
        return [Owed(kind="quarantine", amount=rows, unit="rows", since=made().due_since, exact=True, held=made().held, by_setting=False)]

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if made.is_empty:
            held = "; ".join(entry.detail for entry in made.held)
            later = "" if made.next_due_at is None else f"; the next rows go at {format_to_second(made.next_due_at)}"
            return Due(topic=name, due=False, reason=held or f"no quarantine row has reached its age{later}", waits=bool(held))
        why = "have reached their age" + (" or were replayed" if "quarantine_replayed" in dict(made.expected.removed) else "")
        reason = f"{made.expected.removed_rows} quarantine rows in {len(made.selection.files)} files {why}"
        return asked.due_unless_blocked(made, reason)

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        state = quarantine_of(s, name).quarantine(name) or _NOTHING
        holds, undone = ids_of(holds_of(s, name)), tuple(_find_restored_rows(s, name))
        replayed = _replayed_batches(s, name)
        return quarantine.plan(name, state, policy, s.ledger.accepted(name), holds, undone, replayed, as_of=as_of)

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        """Return the store's frames. For each file that goes before its age, add whether the ledger knows its batch as replayed."""
        frames = super().evidence(s, plan, staged, policy)
        if "replayed" not in frames:
            return frames
        import pyarrow as pa

        found, batches = cast(pa.Table, frames["replayed"]), {batch.batch_id for batch in _replayed_batches(s, plan.topic)}
        settled = pa.array([batch in batches for batch in found["batch"].to_pylist()], pa.bool_())
        return {**frames, "replayed": found.drop_columns(["batch"]).append_column("settled", settled)}

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return quarantine_suite(plan, policy)

    def question(self, plan: Plan, going: int) -> str:
        return f"remove {going:,} of {plan.expected.rows_in:,} rows of the quarantine?"

    def where(self, plan: Plan) -> str:
        return f"{amount(len(plan.selection.files), 'whole files')} of the quarantine"

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Record the quarantine's age as accepted. A plan that removes only replayed rows accepts no age."""
        if dict(plan.expected.removed).get("quarantine_replayed") != plan.expected.removed_rows or not plan.expected.removed_rows:
            record_accepted_setting(s, plan, quarantine.SETTING)


class UndoOfQuarantine(Undo, QuarantineOperation):
    """Brings back rows that the age took, if none of them has come back yet."""

    judged = "quarantine_return"

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        record = s.ledger.record(cast(UndoPlan, work).plan_id)
        undone, store = record.plan, quarantine_of(s, name)
        state, uuid = store.quarantine(name) or _NOTHING, undone.requirements.table_uuid
        heeded = ids_of(holds_of(s, name))
        if is_undone(s, undone):
            return quarantine.plan_undo(state, None, policy, undone, as_of=as_of, heeded=heeded)
        check(s, record, policy, uuid, lambda: store.has_begun(undone))
        if state.table_uuid != uuid:
            raise undo_source_gone(undone.plan_id, "the quarantine that it took rows from is not there any more")
        found = store.find_returning(undone)
        if not found.files:
            raise undo_source_gone(undone.plan_id, _THERE if found.present else _GONE)
        return quarantine.plan_undo(state, found, policy, undone, as_of=as_of, heeded=heeded)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return quarantine_undo_suite(plan, policy)

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return 0  # a hold never prevents rows from coming back

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan = record.plan
        # Record first that the rows came back, even if a check fails later: the next run must not remove them again.
        record_restored_messages(s, plan)
        if published.restored == plan.restored_rows:
            return []
        return [f"{plan.restored_rows} rows should be back in the quarantine: the commit says {published.restored}"]


def _replayed_batches(s: Services, name: TopicName) -> list[RefusedBatch]:
    return [batch for batch in s.ledger.refused_batches(name) if batch.settled_as == "replayed"]


def _find_restored_rows(s: Services, name: TopicName) -> Iterator[RestoredQuarantineRows]:
    for known in s.ledger.undone(name):
        times = tuple((first, last) for partition, first, last in known.ranges if partition == QUARANTINE)
        if times and known.released_at is None:
            yield RestoredQuarantineRows(times=times, detail=undone_detail(known))
