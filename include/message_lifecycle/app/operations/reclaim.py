"""Space given back: of old snapshots and orphans, and of a deleted topic, for good (DEL-7)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from message_lifecycle.app.archiving import add_figures
from message_lifecycle.app.due import Due, DueContext
from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.operations import questions
from message_lifecycle.app.operations.registry import (
    Frames,
    SpaceOperation,
    Work,
    operation_of_plan,
    record_accepted_setting,
    undoable_operations,
)
from message_lifecycle.app.operations.topics import deleted_by, policy_of_deleted, undo_until
from message_lifecycle.app.services import Services
from message_lifecycle.gates.suite import Suite
from message_lifecycle.gates.tables import deleted_reclaim_suite, reclaim_suite
from message_lifecycle.model import plan as plans
from message_lifecycle.model.errors import (
    NothingDeleted,
    PartlyUnavailable,
    PlanConflict,
    UnknownPlan,
    UnknownTopic,
    files_left,
    not_deletable,
)
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Look, Owed
from message_lifecycle.model.outcome import Check, Outcome, PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount, size
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.request import ReclaimDeleted
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import BegunReclaim, DeletedFacts, DeletedTopic, ReclaimFacts
from message_lifecycle.operations import reclaim
from message_lifecycle.ports import DeletedReclaimer, Topic

# Free the space of a deleted topic for good (DEL-7).
#
# The deleted topic has no name in the catalog any more, so this code reads the deletion's record instead. After the catalog forgets the
# tables there is no way back. Any later run then finishes the plan, even if a person refused or placed a hold since.


log = logging.getLogger("lifecycle")
_DELETION: tuple[plans.Operation, ...] = ("topic_delete",)


class DeletedReclaim(SpaceOperation):
    """Gives back the space of a topic that was deleted and cannot be brought back any more."""

    judged = "drop_tables"
    interval = "reclaim_interval"
    gives_way = True

    def is_plan_for(self, plan: Plan, work: Work) -> bool:
        return isinstance(work, ReclaimDeleted) and plan.operation == self.name and plan.parent == work.plan_id

    def topic(self, s: Services, name: TopicName) -> Topic | None:
        return None

    def prepare(self, s: Services, name: TopicName) -> None:
        pass  # its views went when it was deleted

    def preview(self, s: Services, name: TopicName, work: Work, *, as_of: Instant) -> Plan:
        """Plan the reclaim. Raises UnknownPlan, NothingDeleted, UndoWindowOpen, LedgerMismatch, and errors from listing the folders."""
        deletion = find_deletion(s, cast(ReclaimDeleted, work).plan_id)
        found = _deleted_topic(s, deletion)
        policy, name = policy_of_deleted(s, found), deletion.topic
        s.ledger.check_as_of(as_of, policy.clock_skew_us)
        s.ledger.check(name, found.ledger)
        reclaim.check(deletion.plan_id, str(name), until=undo_until(s, found), now=s.ledger.now())
        holds = holds_of(s, name)
        facts = DeletedFacts(
            topic=found,
            tables=tuple(reclaimer_of(s, name).files_of(found, orphans_before=Instant(as_of - policy.orphan_age_us))),
            held=tuple(hold.description for hold in holds),
            heeded=ids_of(holds),
            readers=tuple(_readers(s, name)),
        )
        return reclaim.plan_deleted(facts, policy, as_of=as_of)

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        """Return the store's frames, with the number of current holds and whether an undo is still possible."""
        frames = super().evidence(s, plan, staged, policy)
        undoable = s.ledger.now() < undo_until(s, _deleted_topic_of_plan(s, plan))
        return add_figures(frames, {"holds": len(holds_of(s, plan.topic)), "undoable": int(undoable)})

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return deleted_reclaim_suite(plan, policy)

    def lines(self, plan: Plan, going: questions.Removed, failed: Sequence[Check]) -> list[str]:
        return questions.lines_of_space(plan, "The deleted topic cannot come back afterwards", failed)

    def settings_now(self, s: Services, plan: Plan) -> Policy:
        """Return the deleted topic's settings. Raises PlanConflict if its tables are gone."""
        return policy_of_deleted(s, _deleted_topic_of_plan(s, plan))

    def with_counts(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        return replace(outcome, reclaimed_files=published.reclaimed_files, reclaimed_bytes=published.reclaimed_bytes)


def reclaimer_of(s: Services, name: TopicName) -> DeletedReclaimer:
    """Raises NotDeletable."""
    if s.stores.drop_tables is None:
        raise not_deletable(str(name))
    return s.stores.drop_tables


def find_deletion(s: Services, plan_id: str) -> Plan:
    """The plan that deleted a topic. Raises UnknownPlan, NothingDeleted."""
    deletion = s.ledger.record(plan_id).plan
    if not deletion.deleted_tables:
        raise NothingDeleted(deletion.plan_id, f"is of the operation {deletion.operation}")
    return deletion


def find_final_removal(s: Services, deletion: Plan) -> PlanRecord | None:
    """Return the record of the plan that removed the deleted topic for good, or None."""
    later = s.ledger.published_after(deletion.topic, deletion.plan_id, "reclaim")
    return next((record for record in later if record.plan.parent == deletion.plan_id), None)


def is_gone(s: Services, name: TopicName) -> bool:
    """Return True if no topic has the name, and the last deleted topic of the name was removed for good."""
    try:
        s.topics.describe(name)
    except UnknownTopic:
        deletions = (outcome.plan_id for _, outcome in s.ledger.history(name, operations=_DELETION) if outcome.name == "published")
        last = next(deletions, None)
        return last is not None and find_final_removal(s, find_deletion(s, last)) is not None
    except PartlyUnavailable:
        pass  # the topic exists
    return False


def begun_plan(s: Services, name: TopicName) -> Plan | None:
    """Return the plan for a deleted topic of that name that a run left half done."""
    open_ = s.ledger.open_plan(name)
    of_deleted = open_ is not None and open_.plan.dropped_tables
    return open_.plan if open_ is not None and of_deleted and reclaimer_of(s, name).has_begun(open_.plan) else None


def due_by_name(s: Services) -> dict[TopicName, ReclaimDeleted]:
    """Return one deleted topic for each name: the one whose reclaim has begun, otherwise the oldest that cannot come back any more."""
    if s.stores.delete_tables is None or s.stores.drop_tables is None:
        return {}
    now = s.ledger.now()
    passed = {topic.topic: topic.plan_id for topic in s.stores.delete_tables.deletions() if now >= undo_until(s, topic)}  # the newest first
    half_done = (begun_plan(s, name) for name in {begun.topic for begun in s.stores.drop_tables.unfinished().values()})
    begun = {plan.topic: plan.parent or "" for plan in half_done if plan is not None}
    return {name: ReclaimDeleted(plan_id=plan_id) for name, plan_id in {**passed, **begun}.items()}


def find_lost_reclaims(s: Services) -> dict[str, BegunReclaim]:
    """Return, by plan, the begun reclaims that no open plan of the ledger will finish.

    Either the ledger was restored from a time before the reclaim, or a run died when only the reclaim's note was left.
    """
    begun = {} if s.stores.drop_tables is None else s.stores.drop_tables.unfinished()
    return {plan_id: one for plan_id, one in begun.items() if not _is_open(s, plan_id)}


def end_lost(s: Services, plan_id: str) -> Outcome:
    """End a lost reclaim without removing files, because no plan names its files. Raises FilesLeft."""
    topic = find_lost_reclaims(s)[plan_id].topic
    left = reclaimer_of(s, topic).remaining_files(plan_id)
    if left:
        raise files_left(plan_id, str(topic), left)
    reclaimer_of(s, topic).forget(plan_id)
    detail = f"plan {plan_id}, which is not open in the ledger, had begun to remove the deleted topic for good; no file of it is left"
    return s.ledger.record_run_outcome(None, Outcome(name="no_op", operation="reclaim", topic=topic, as_of=s.ledger.now(), detail=detail))


def forget_ended(s: Services) -> None:
    """Drop the notes of lost reclaims whose files are gone. Log the other lost reclaims, which wait for a person."""
    for plan_id, begun in find_lost_reclaims(s).items():
        if begun.removed:
            reclaimer_of(s, begun.topic).forget(plan_id)
        else:
            log.warning("files of the deleted topic %s are left: `lifecycle reclaim run --deleted %s` says which", begun.topic, plan_id)


def _is_open(s: Services, plan_id: str) -> bool:
    try:
        return s.ledger.record(plan_id).outcome is None
    except UnknownPlan:
        return False


def _deleted_topic(s: Services, deletion: Plan) -> DeletedTopic:
    found = deleted_by(s, deletion)
    if found is not None:
        return found
    done = find_final_removal(s, deletion)
    if done is not None:
        raise NothingDeleted(deletion.plan_id, f"deleted a topic that plan {done.plan.plan_id} has taken for good")
    if s.ledger.undone_by(deletion.plan_id) is not None:
        raise NothingDeleted(deletion.plan_id, "deleted a topic that has come back")
    raise NothingDeleted(deletion.plan_id, "has left no tables: it was never published, or somebody dropped them")


def _deleted_topic_of_plan(s: Services, plan: Plan) -> DeletedTopic:
    found = deleted_by(s, s.ledger.record(plan.parent or "").plan)
    if found is None:
        raise PlanConflict(plan.plan_id, "the deleted topic is not there any more")
    return found


def _readers(s: Services, name: TopicName) -> Iterable[str]:
    """Yield the readers of the deleted topic, if no new topic has its name. The ledger's entries are about a new topic otherwise."""
    try:
        s.topics.describe(name)
    except UnknownTopic:
        texts = {"consumer": "consumer {} reads it", "replica": "replica {} copies it"}
        readers = {(reader.kind, reader.consumer) for reader in s.ledger.consumers(name)}
        yield from (texts[kind].format(consumer) for kind, consumer in sorted(readers) if kind in texts)


# Free space after the undo window: old snapshots, and files that no snapshot names (DEL-7).
#
# A name may belong to several deleted topics and to an existing one. A run reclaims one of them. Deleted topics come first, because they
# are rare.


_RECLAIM: tuple[plans.Operation, ...] = ("reclaim",)
_COMPACTION: tuple[plans.Operation, ...] = ("compaction",)
"""Compaction removes nothing from the log, but leaves the files of the former view to reclaim."""


class Reclaim(SpaceOperation):
    """Gives back the space of a topic that stands."""

    judged = "forget"
    interval = "reclaim_interval"
    gives_way = True

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        """Return the owed space, from the ledger and the hidden bytes, because making a plan would read the whole history."""
        if name in s.backends:
            return ()
        now, window = s.ledger.now(), policy.undo_window_us
        since_then = Instant((look.settled_at or 0) - window)
        first = s.ledger.planned_since(name, (*undoable_operations(), *_COMPACTION), published_after=since_then)
        hidden = s.stores.forget.hidden_bytes(name) if first is not None and first + window <= now else None
        found = Owed(kind="reclaim", unit="bytes", by_setting=False)
        if not hidden or first is None:
            return [found]
        since = Instant(first + window)
        held = tuple(
            Held(partition=0, first_base=0, last_offset=0, rows=hidden, overdue_since=since, holder="hold", detail=hold.description)
            for hold in holds_of(s, name)
        )
        return [replace(found, amount=0 if held else hidden, since=since, held=held[:1])]

    def topics_to_check(self, s: Services, given: Sequence[TopicName]) -> Sequence[TopicName]:
        """Return the topics to check, with the names of deleted topics."""
        names = super().topics_to_check(s, given)
        return names if given else [*names, *sorted(set(due_by_name(s)) - set(names))]

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        """Return all names. First drop the notes of ended lost reclaims, for every topic."""
        forget_ended(s)
        return names

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        """Judge the topic. The judgement reads the topic's whole history, once an interval."""
        if (waiting := asked.question(name)) is not None:
            return waiting
        deleted = asked.cached(due_by_name).get(name)
        begun = None if deleted is None else begun_plan(s, name)
        if begun is not None:
            return Due(topic=name, due=True, reason=f"plan {begun.plan_id} has begun and is to be brought to its end")
        if deleted is not None:
            hindered = _find_hindrance(s, name, deleted, as_of=asked.as_of)
            if hindered is None:
                made = DeletedReclaim().preview(s, name, deleted, as_of=asked.as_of)
                return _due_answer(made, f"the topic that plan {deleted.plan_id} deleted cannot come back, and {_size(made)} can go", asked)
            if not _topic_exists(s, name):
                return Due(topic=name, due=False, reason=hindered)
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        snapshots = sum(len(action.snapshots) for action in made.forgets)
        return _due_answer(made, f"{_size(made)} can go, with {snapshots} snapshots", asked)

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return reclaim.plan(_facts(s, name, policy), policy, as_of=as_of, ask=partial(s.stores.forget.loose, name))

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return reclaim_suite(plan, policy)

    def lines(self, plan: Plan, going: questions.Removed, failed: Sequence[Check]) -> list[str]:
        return questions.lines_of_space(plan, "Removals from before the undo window cannot be undone afterwards", failed)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """Return an error if more files were removed than the plan lists."""
        listed = sum(len(removal.files) for removal in record.plan.file_removals)
        return [f"{published.reclaimed_files} files went, the plan lists {listed}"] if published.reclaimed_files > listed else []

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Record the length of the undo window as accepted."""
        record_accepted_setting(s, plan, reclaim.WINDOW)

    def with_counts(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        return replace(outcome, reclaimed_files=published.reclaimed_files, reclaimed_bytes=published.reclaimed_bytes)


def _facts(s: Services, name: TopicName, policy: Policy) -> ReclaimFacts:
    tables, holds = tuple(s.stores.forget.histories(name)), holds_of(s, name)
    main = (ref.snapshot_id for table in tables if not table.table for ref in table.refs if ref.name == reclaim.MAIN)
    return ReclaimFacts(
        topic=name,
        tables=tables,
        snapshot_id=next(main, None),
        needed_since=_needed_since(s, name),
        undoable_since=s.ledger.planned_since(name, undoable_operations(), published_after=Instant(s.ledger.now() - policy.undo_window_us)),
        # Old files may contain held messages, and a reclaim does not read these files, so every hold counts (DEL-8).
        held=tuple(hold.description for hold in holds),
        heeded=ids_of(holds),
        accepted=s.ledger.accepted(name),
    )


def find_staying_snapshots(s: Services, made: Plan) -> list[tuple[str, str, int]]:
    """Return the snapshots of the tables that lose nothing by the reclaim `made`: (kind of the table, reason, number of snapshots).

    If a table loses something, the plan itself has the reasons. Under a legal hold the list is empty: the plan's warnings name the hold.
    """
    policy, leaving = Policy.from_values(made.policy), {forget.table for forget in made.forgets}
    kept = reclaim.kept_histories(_facts(s, made.topic, policy), policy, as_of=made.as_of)
    return [
        (table.table, reason, number)
        for table, history in kept
        if table.table not in leaving
        for reason, number in Counter(history.reasons.values()).most_common()
    ]


def work_on(s: Services, name: TopicName, *, as_of: Instant) -> Work:
    """Return the reclaim of a deleted topic if one is due and unhindered, otherwise the reclaim of the existing topic."""
    deleted = due_by_name(s).get(name)
    if deleted is None or (begun_plan(s, name) is None and _find_hindrance(s, name, deleted, as_of=as_of) is not None):
        return Reclaim.name
    return deleted


def _find_hindrance(s: Services, name: TopicName, deleted: ReclaimDeleted, *, as_of: Instant) -> str | None:
    """Return why the deleted topic cannot be reclaimed now, or None. An existing topic of the same name then need not wait for it."""
    holds = holds_of(s, name)
    if holds:
        return f"nothing is reclaimed: {holds[0].description}"
    for _, outcome in s.ledger.history(name, operations=_RECLAIM):
        plan = None if outcome.name != "refused" or outcome.plan_id is None else s.ledger.record(outcome.plan_id).plan
        if plan is not None and plan.parent == deleted.plan_id:
            until = Instant(outcome.as_of + Policy.from_values(plan.policy).approval_ttl_us)
            return f"a person refused; asked again after {format_to_second(until)}" if as_of < until else None
    return None


def _due_answer(made: Plan, reason: str, asked: DueContext) -> Due:
    if made.is_empty:
        until = "" if made.next_due_at is None else f" before {format_to_second(made.next_due_at)}"
        waits = "; ".join(made.warnings)
        return Due(topic=made.topic, due=False, reason=waits or f"no space can come back{until}", waits=bool(waits))
    return asked.due_unless_blocked(made, reason)


def _size(made: Plan) -> str:
    files = sum(len(removal.files) for removal in made.file_removals)
    return f"{amount(files, 'files')} of {size(made.expected.removed_bytes)}"


def _topic_exists(s: Services, name: TopicName) -> bool:
    try:
        s.topics.describe(name)
    except UnknownTopic:
        return False
    return True


def _needed_since(s: Services, name: TopicName) -> Instant | None:
    """Return when the topic's oldest open ingest or plan began. No snapshot may name its new files yet."""
    batches = [batch.begun_at for batch in s.ledger.open_batches(name)]
    plan = s.ledger.open_plan(name)
    # A reclaim writes no files itself.
    open_plans = [plan.recorded_at] if plan is not None and operation_of_plan(plan.plan).counts_messages else []
    return min([*batches, *open_plans], default=None)
