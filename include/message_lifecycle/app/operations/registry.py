"""The interface of an operation, and the operations by name. A new operation is a module in this package and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from message_lifecycle.app.known import all_topics
from message_lifecycle.app.operations.questions import Removed, lines_of_messages, question_of_space
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import update_views
from message_lifecycle.gates.suite import Suite, holds_suite
from message_lifecycle.model import plan as plans
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, Outcome, PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount, size
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import DeleteTopic, EraseKey, ReclaimDeleted, Request, UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import RECORD_LOGS, check_operation
from message_lifecycle.ports import ChangeStore, CommitContext, Topic

if TYPE_CHECKING:
    from message_lifecycle.app.due import Due, DueContext
    from message_lifecycle.model.hold import Hold
    from message_lifecycle.model.obligation import Look, Owed
    from message_lifecycle.operations.verdict import Verdict

# The interface that the verbs use, with the answers that most operations give.
#
# A plan changes its tables one after the other, each in one commit (`model.change`). The verbs walk the plan's changes (`app.changes`) and
# never ask for the operation's name. An operation adds the rest: when it is due, how it is planned, and the comparison and records
# afterwards.


Scheduled = Literal[
    "message_cleaner", "retention", "marker_generation", "compaction", "purge_compacted", "snapshot_with_purge", "reclaim", "quarantine"
]
Work = Request | UndoPlan | EraseKey | DeleteTopic | ReclaimDeleted | Scheduled
"""The purpose of a plan: a person's request, or a scheduled operation."""
Frames = Mapping[str, object]


class Operation:
    """An operation, with default answers. See the comment above."""

    name: ClassVar[plans.Operation]
    by_request: ClassVar[bool] = False
    """A person requests it, and no run plans it again by itself."""
    gives_back: ClassVar[bool] = False
    """The operation only brings rows back, so after its first commit no hold and no setting stops the other commits."""
    gives_way: ClassVar[bool] = False
    """The operation waits while a person is asked about the log."""
    marks: ClassVar[bool] = False
    """The operation may remove the last live message of a key, and then makes the key's marker (MRK-1, MRK-2)."""
    removes: ClassVar[bool] = True
    """Its last outcome shows the state of the topic's removals. Compaction removes no message of the log (CMP-9), and a reclaim removes
    files of messages that left it before."""
    takes_messages: ClassVar[bool] = True
    """Its plan counts removals from the log: messages, or changes of documents."""
    counts_messages: ClassVar[bool] = True
    """Its outcome reports the number of messages before and after."""
    held_rows: ClassVar[str] = "messages of partition {}"
    """The words for rows that a holder keeps, with {} for the partition."""
    moves_tables: ClassVar[bool] = False
    """Its tables move one after the other. A run that died has moved some of them."""
    resumes: ClassVar[bool] = False
    """A later run continues a commit after a run died inside it. Some snapshots and files are gone then."""
    judged: ClassVar[str] = "log"
    """The store (a field of `Stores`) that the gate judges even if the plan is empty."""
    of_documents: ClassVar[bool] = False
    """Its plans name documents."""
    on_records: ClassVar[bool] = False
    """Logs of single records support it (RET-5)."""
    undoable: ClassVar[bool] = False
    """An undo can take its plans back (DEL-7)."""
    not_undone: ClassVar[str] = ""
    """The reason why its plans cannot be undone, if there is a special one."""
    stops_when_disabled: ClassVar[bool] = False
    """The operation does nothing while the message cleaner is disabled (EXP-2)."""
    interval: ClassVar[str] = "interval"
    """The server's setting with the interval of its schedule."""
    command: ClassVar[str] = ""
    """The command that runs all steps on one topic, or continues with an approved plan. Empty: only `publish` does."""

    # Purpose

    def is_plan_for(self, plan: Plan, work: Work) -> bool:
        """Return True if the plan was made for this work."""
        return plan.operation == work and plan.parent is None

    def why_not_undone(self) -> str | None:
        """Return why its plans cannot be undone. None: they can."""
        return None if self.undoable else self.not_undone or f"the operation {self.name} has no undo"

    def replan_work(self, plan: Plan) -> Work:
        """Return the work to plan again if the plan no longer fits."""
        assert not self.by_request, "requests are carried out where they are asked"
        if plan.parent is not None:
            return ReclaimDeleted(plan_id=plan.parent)
        return plan.operation  # type: ignore[return-value]  # one that is scheduled

    def topic(self, s: Services, name: TopicName) -> Topic | None:
        """Return the topic. None: the work is about a deleted topic. Raises UnknownTopic."""
        return s.topics.describe(name)

    # When it is due

    def topics_to_check(self, s: Services, given: Sequence[TopicName]) -> Sequence[TopicName]:
        """Return the topics that a schedule checks: the topics that a person named, otherwise all. Raises NotInABackend."""
        return given or [name for name in all_topics(s) if name not in s.backends]

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        """Return the topics that the operation applies to. `named`: a person named them."""
        return names

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        """Return whether a plan made now would change something, with the reason."""
        raise NotImplementedError(self.name)

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        """Return the obligations of the topic's settings, even if nothing is due (OBL-1).

        Args:
            s: The stores, the ledger and the settings.
            name: The topic.
            policy: The topic's policy.
            made: Returns the plan that the operation would make now.
            look: When a run last checked the topic, and when nothing was due.
        """
        return ()

    # Planning

    def prepare(self, s: Services, name: TopicName) -> None:
        """Prepare the topic before the facts are read. The caller holds the topic's lock."""
        # `topic alter` keeps the view, too, but the server's settings change without it.
        update_views(s, name)

    def preview(self, s: Services, name: TopicName, work: Work, *, as_of: Instant) -> Plan:
        """Return the plan without recording it."""
        self.wait(s, name)
        with s.topics.look():
            policy = policy_of(s, name)
            s.ledger.check_as_of(as_of, policy.clock_skew_us)
            return self.plan(s, name, policy, work, as_of=as_of)

    def wait(self, s: Services, name: TopicName) -> None:
        """Wait for work that the plan must see. Raises TopicBusy."""

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        """Read the facts and apply the operation's rules."""
        raise NotImplementedError(self.name)

    def summary(self, plan: Plan) -> str:
        """Return one line for the log."""
        expected = plan.expected
        return f"{expected.removed_rows} of {expected.rows_in} messages in {expected.segments} segments go"

    # The way from stage to publish

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        """Return the frames that the gate judges: of the store `judged`, and of the other stores that apply the plan's changes."""
        first, given = s.stores.store_for(self.judged), self.commit_context(s, plan, staged)
        found = dict(first.evidence(plan, staged, policy, given))
        for store in stores_of(s, plan):
            if store is not first:
                found.update(store.evidence(plan, staged, policy, given))
        return found

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        """Return the checks of the staged changes (DEL-2)."""
        raise NotImplementedError(self.name)

    # The question to a person

    def question(self, plan: Plan, going: int) -> str:
        """Return the question in one line. `going`: the number of removed rows."""
        return f"remove {going:,} of {plan.expected.rows_in:,} {plan.things}?"

    def where(self, plan: Plan) -> str:
        """Return the part of the topic that the removal concerns."""
        segments = plan.expected.segments
        return amount(segments, "whole segments") if segments else "single messages"

    def lines(self, plan: Plan, going: Removed, failed: Sequence[Check]) -> list[str]:
        """Return the details for a person's decision, as Markdown. `failed`: failed checks of the gate."""
        return lines_of_messages(plan, self.where(plan), going, failed, self.held_rows)

    # The way to publish

    def settings_now(self, s: Services, plan: Plan) -> Policy:
        """Return the settings that must equal the plan's settings."""
        return policy_of(s, plan.topic)

    def respects_horizon(self, s: Services, plan: Plan) -> bool:
        """Return True if no compaction since the plan bounds it further."""
        return True

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        """Return the number of removed rows that a legal hold may name. By default every hold counts, because rows are not read (DEL-8)."""
        return len(holds)

    def commit_context(self, s: Services, plan: Plan, staged: Staged) -> CommitContext:
        """Return the values that a store may ask for."""
        return CommitContext(ledger=lambda: s.ledger.next_identity(plan.topic), now=s.ledger.now, staged=staged)

    def writer_lock(self, s: Services, plan: Plan) -> AbstractContextManager[None]:
        """Lock out other writers during the commit. Raises TopicBusy."""
        return nullcontext()

    def needs_separate_commits(self, plan: Plan) -> bool:
        """Return True if two of its commits cannot be made at once, because `check_before_commit` must act between them."""
        return False

    def check_before_commit(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        """Check the conditions for the store's commit, and act, just before it.

        Earlier commits of the plan exist, or come together with this one. Raises PlanConflict.
        """

    def combine_published(self, plan: Plan, done: Sequence[Published]) -> Published:
        """Return the commit that the outcome counts."""
        return done[0]

    # Verifying

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """Describe the differences from the plan and the judgement, except for rows that should be gone (DEL-6)."""
        return []

    def check_again(self, s: Services, plan: Plan) -> tuple[Plan | None, list[str]]:
        """Return a new plan at the same `as_of`, and descriptions of overdue messages without a holder (DEL-6)."""
        return None, []

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Record in the ledger, before the outcome, the effects of a plan that succeeded."""

    def after_outcome(self, s: Services, plan: Plan, after: Plan) -> None:
        """Record the effects after the outcome, with the new plan of `look_again`."""

    def on_close(self, s: Services, plan: Plan) -> str:
        """Record the necessary state of a closed plan, however it ended, and return a message for people."""
        return ""

    def success_text(self, rows: int, restored: int, things: str) -> str:
        """Describe a success.

        Args:
            rows: The number of removed rows.
            restored: The number of restored rows.
            things: The plural word for these rows.
        """
        return f"removed {amount(rows, things) if rows else 'nothing'}"

    def detail_text(self, plan: Plan) -> str:
        """Return details that the outcome does not count."""
        return ""

    def with_counts(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        """Return the outcome with the operation's own counts."""
        return outcome

    def earlier_plan_id(self, s: Services, plan: Plan) -> str | None:
        """Return the earlier plan that had already done this work (DEL-5)."""
        found = s.ledger.find_published(plan.topic, plan.operation, plan.as_of)
        return None if found is None or found.plan.parent != plan.parent else found.plan.plan_id


class SpaceOperation(Operation):
    """An operation that reclaims space: it removes files of messages that left before, and counts no messages."""

    name = "reclaim"
    removes, takes_messages, counts_messages = False, False, False
    resumes = True

    def summary(self, plan: Plan) -> str:
        return f"{size(plan.expected.removed_bytes)} of {size(plan.expected.bytes_in)} come back"

    def question(self, plan: Plan, going: int) -> str:
        return question_of_space(plan)


def record_accepted_setting(s: Services, plan: Plan, setting: str) -> None:
    """Record that a person accepted this one setting (DEL-3)."""
    accepted = s.ledger.accepted(plan.topic)
    if not plan.is_empty and accepted is not None:
        s.ledger.set_accepted(plan.topic, {**accepted, setting: dict(plan.policy)[setting]})


# The operations by name. A module is imported when its operation is first used.


OPERATIONS = {
    "message_cleaner": "messages.MessageCleaner",
    "retention": "messages.RetentionCleaner",
    "message_request": "messages.MessageRequest",
    "marker_generation": "messages.MarkerGeneration",
    "compaction": "compaction.Compaction",
    "purge_compacted": "compaction.PurgeCompacted",
    "snapshot_with_purge": "documents.SnapshotWithPurge",
    "erasure": "erasure.Erasure",
    "erasure of a document": "erasure.ErasureOfDocument",
    "reclaim": "reclaim.Reclaim",
    "quarantine": "quarantine.Quarantine",
    "topic_delete": "topics.TopicDelete",
    "reclaim of topic_delete": "reclaim.DeletedReclaim",
    "undo": "undo.UndoOfMessages",
    "undo of snapshot_with_purge": "documents.UndoOfDocuments",
    "undo of quarantine": "quarantine.UndoOfQuarantine",
    "undo of topic_delete": "topics.UndoOfTopicDelete",
}


@cache
def operation_named(name: str) -> Operation:
    """Return the operation of this name, a key of `OPERATIONS`."""
    return cast(Operation, _load_object(OPERATIONS[name])())


def stores_of(s: Services, plan: Plan) -> list[ChangeStore]:
    """Return the stores that apply the plan's changes, in order.

    Rewrites of several tables share one store, and so do tables whose history ends.
    """
    names = (name for change in plan.changes for name in (change.kind, *change.later_stores))
    return [s.stores.store_for(name) for name in dict.fromkeys(names)]


def is_undone(s: Services, plan: Plan) -> bool:
    """Return True if an undo has taken back the whole plan, and the tables still have the restored rows.

    Tables that were rolled back to a time before the undo have lost these rows again. The ledger also knows undos that committed on the log
    only: see `operations.undo.record_restored_messages`.
    """
    undone_by = s.ledger.undone_by(plan.plan_id)
    if undone_by is None:
        return False
    by = s.ledger.record(undone_by)
    return by.outcome is not None and by.outcome.name in ("published", "failed") and not is_lost(s, by.plan)


def is_lost(s: Services, plan: Plan) -> bool:
    """Return True if all commits of a published plan have certainly disappeared."""
    found = stores_of(s, plan)
    return bool(found) and all(store.is_lost(plan) for store in found)


def _load_object(place: str) -> Any:
    module, name = place.split(".")
    return getattr(import_module(f"message_lifecycle.app.operations.{module}"), name)


def names_of(matches: Callable[[Operation], bool]) -> tuple[plans.Operation, ...]:
    """Return the names of the operations that satisfy `so`."""
    return tuple(dict.fromkeys(operation.name for operation in map(operation_named, OPERATIONS) if matches(operation)))


def undoable_operations() -> tuple[plans.Operation, ...]:
    """Return the operations whose plans can be undone (DEL-7)."""
    return names_of(lambda one: one.undoable)


def operations_on_records() -> tuple[plans.Operation, ...]:
    """Return the operations that logs of single records support (RET-5)."""
    return names_of(lambda one: one.on_records)


def topics_to_check(s: Services, work: Scheduled, given: Sequence[TopicName]) -> Sequence[TopicName]:
    """Return the topics that a schedule checks; see `Operation.looked_at`. Raises UnsupportedLimit for a named topic without support."""
    for name in given:
        _check_backend_supports(s, name, work)
    return operation_named(work).topics_to_check(s, given)


def operation_of_plan(plan: Plan) -> Operation:
    """Return the operation of the plan. For an undo, the operation of the undone plan decides."""
    if plan.operation == "erasure" and Policy.from_values(plan.policy).has_documents:
        return operation_named("erasure of a document")
    of_parent = f"{plan.operation} of {plan.parent_operation}"
    return operation_named(of_parent if of_parent in OPERATIONS else plan.operation)


def why_not_undone(s: Services, operation: Operation, name: TopicName) -> str | None:
    """Return why a plan of the operation on the topic cannot be undone. None: it can. A log of single records keeps no history (RET-6)."""
    backend = s.backend_of(name)
    of_records = f"a {backend} log keeps nothing of what it removed" if backend in RECORD_LOGS else None
    return operation.why_not_undone() or of_records


def suite_of(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of the plan's operation and of the legal holds that it heeds."""
    return (*operation_of_plan(plan).checks(plan, staged, policy), *holds_suite(plan))


def operation_of_work(s: Services, name: TopicName, work: Work) -> Operation:
    """Return the operation for this work. Raises UnknownPlan, UnknownTopic, and UnsupportedLimit if the backend lacks it (RET-6)."""
    if isinstance(work, UndoPlan):
        return _undo_of(s, name, work)
    if isinstance(work, EraseKey):
        return operation_named("erasure of a document" if policy_of(s, name).has_documents else "erasure")
    if isinstance(work, DeleteTopic):
        return operation_named("topic_delete")
    if isinstance(work, ReclaimDeleted):
        return operation_named("reclaim of topic_delete")
    if isinstance(work, Request):
        return operation_named("message_request")
    _check_backend_supports(s, name, work)
    return operation_named(work)


def _check_backend_supports(s: Services, name: TopicName, work: Scheduled) -> None:
    backend = s.backend_of(name)
    if backend in RECORD_LOGS:  # else `on_records` would import every operation for nothing
        check_operation(backend, work, operations_on_records(), where=f"topic {name}")


def work_on(s: Services, name: TopicName, work: Scheduled, *, as_of: Instant) -> Work:
    """Return the work of a scheduled run on the topic. A reclaim may concern a deleted topic of the name."""
    return cast(Work, _load_object("reclaim.work_on")(s, name, as_of=as_of)) if work == "reclaim" else work


def _undo_of(s: Services, name: TopicName, work: UndoPlan) -> Operation:
    undo_of = f"undo of {s.ledger.record(work.plan_id).plan.operation}"
    if undo_of in OPERATIONS:
        return operation_named(undo_of)
    return operation_named("undo of snapshot_with_purge" if policy_of(s, name).has_documents else "undo")


def preview(s: Services, name: TopicName, *, as_of: Instant, work: Work = "message_cleaner") -> Plan:
    """Return the plan without recording it."""
    return operation_of_work(s, name, work).preview(s, name, work, as_of=as_of)


__all__ = [
    "Operation",
    "Scheduled",
    "Work",
    "names_of",
    "operation_named",
    "operation_of_plan",
    "operation_of_work",
    "operations_on_records",
    "preview",
    "stores_of",
    "suite_of",
    "topics_to_check",
    "undoable_operations",
    "why_not_undone",
    "work_on",
]
