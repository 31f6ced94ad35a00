"""What the verbs ask of every operation, and the operations by name. A new operation is a module beside this one and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from message_lifecycle.app.known import all_topics
from message_lifecycle.app.operations.questions import Removed, of_messages, question_of_space
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import keep_view
from message_lifecycle.gates.suite import Suite, holds_suite
from message_lifecycle.model import plan as plans
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, Outcome, PlanRecord, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import DeleteTopic, EraseKey, ReclaimDeleted, Request, UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import check_operation
from message_lifecycle.ports import ChangeStore, Given, Topic

if TYPE_CHECKING:
    from message_lifecycle.app.due import Asked, Due
    from message_lifecycle.model.hold import Hold
    from message_lifecycle.model.obligation import Look, Owed
    from message_lifecycle.operations.verdict import Verdict

# What the verbs ask of every operation, and what every operation answers unless it says otherwise.
#
# A plan changes its tables one after the other, each in one commit (`model.change`). The verbs walk this list (`app.changes`) and never
# ask which operation it is. An operation says the rest: when it is due, how it is planned, what is compared afterwards, what is kept.


Scheduled = Literal[
    "message_cleaner", "retention", "marker_generation", "compaction", "purge_compacted", "snapshot_with_purge", "reclaim", "quarantine"
]
Work = Request | UndoPlan | EraseKey | DeleteTopic | ReclaimDeleted | Scheduled
"""What a plan is made for: what a person asks to have removed or brought back, or a scheduled operation."""
Frames = Mapping[str, object]


class Operation:
    """An operation with the answers that most give. See the module."""

    name: ClassVar[plans.Operation]
    by_request: ClassVar[bool] = False
    """A person asks for it, and it is not made again by itself."""
    gives_back: ClassVar[bool] = False
    """It takes nothing: once its first commit is there, nothing stops the others."""
    gives_way: ClassVar[bool] = False
    """It waits while a person is asked about the log as it stands."""
    marks: ClassVar[bool] = False
    """It may leave a key without a live message, and then makes the key's marker (MRK-1, MRK-2)."""
    removes: ClassVar[bool] = True
    """Its last outcome shows the state of the topic's removals. Compaction takes nothing from the log (CMP-9), and what is reclaimed has left
    it before."""
    takes_messages: ClassVar[bool] = True
    """What its plan counts goes from the log: messages, or changes of documents."""
    counts_messages: ClassVar[bool] = True
    """Its outcome tells how many messages there were, and how many stay."""
    of_documents: ClassVar[bool] = False
    """Its plans name documents."""
    on_records: ClassVar[bool] = False
    """Logs of single records can do it (RET-5)."""
    undoable: ClassVar[bool] = False
    """A plan of it can be taken back (DEL-7)."""
    not_undone: ClassVar[str] = ""
    """Why not, where more is to say than that it is not."""
    rests: ClassVar[bool] = False
    """It does nothing while the message cleaner is disabled (EXP-2)."""
    interval: ClassVar[str] = "interval"
    """The server's setting that says how often a schedule looks."""
    command: ClassVar[str] = ""
    """The command that runs all steps on one topic, or goes on with an approved plan. Empty: `publish` alone does."""

    # What it is for

    def is_of(self, plan: Plan, work: Work) -> bool:
        """Whether the plan was made for this very work."""
        return plan.operation == work and plan.parent is None

    def why_not_undone(self) -> str | None:
        """Why a plan of it is not taken back; None: it can be."""
        return None if self.undoable else self.not_undone or f"what the operation {self.name} does is not taken back"

    def again(self, plan: Plan) -> Work:
        """What to plan again for, where the plan no longer fits."""
        assert not self.by_request, "requests are carried out where they are asked"
        if plan.parent is not None:
            return ReclaimDeleted(plan_id=plan.parent)
        return plan.operation  # type: ignore[return-value]  # one that is scheduled

    def topic(self, s: Services, name: TopicName) -> Topic | None:
        """The topic that is to be there; None: it was deleted, and that is what the work is about. Raises UnknownTopic."""
        return s.topics.describe(name)

    # When it is due

    def looked_at(self, s: Services, given: Sequence[TopicName]) -> Sequence[TopicName]:
        """Where a schedule looks: at the topics that a person named, else at all. Raises NotInABackend."""
        return given or [name for name in all_topics(s) if name not in s.backends]

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        """Those of the topics that the operation is for. `named`: a person named them."""
        return names

    def due(self, s: Services, name: TopicName, asked: Asked) -> Due:
        """Whether a plan made now would change something, and why (not)."""
        raise NotImplementedError(self.name)

    def owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        """What the topic's settings oblige it to do, each kind that is in force, also where nothing is due (OBL-1). `made`: the plan that it
        would make now; `look`: when a run last looked, and when nothing was due."""
        return ()

    # Planning

    def prepare(self, s: Services, name: TopicName) -> None:
        """Before the facts are gathered, under the topic's lock."""
        # Altering a topic has done it; the server's settings change without us.
        keep_view(s, name)

    def preview(self, s: Services, name: TopicName, work: Work, *, as_of: Instant) -> Plan:
        """The plan as it would be, recorded nowhere."""
        self.wait(s, name)
        with s.topics.look():
            policy = policy_of(s, name)
            s.ledger.check_as_of(as_of, policy.clock_skew_us)
            return self.plan(s, name, policy, work, as_of=as_of)

    def wait(self, s: Services, name: TopicName) -> None:
        """Until what must be seen by the plan has ended. Raises TopicBusy."""

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        """Gather the facts, and ask the operation's rules."""
        raise NotImplementedError(self.name)

    def summary(self, plan: Plan) -> str:
        """One line for the log."""
        expected = plan.expected
        return f"{expected.removed_rows} of {expected.rows_in} messages in {expected.segments} segments go"

    # The way from stage to publish

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        """What the gate judges."""
        raise NotImplementedError(self.name)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        """What the staged changes are held to (DEL-2)."""
        raise NotImplementedError(self.name)

    # What a person is asked

    def question(self, plan: Plan, going: int) -> str:
        """In a line. `going`: how many of what the plan counts."""
        return f"remove {going:,} of {plan.expected.rows_in:,} {plan.things}?"

    def where(self, plan: Plan) -> str:
        """Of what that is a part."""
        segments = plan.expected.segments
        return "message by message" if not segments else f"{segments:,} whole segments" if segments > 1 else "1 whole segment"

    def lines(self, plan: Plan, going: Removed, failed: Sequence[Check]) -> list[str]:
        """What a person should know to decide, as Markdown. `failed`: checks of the gate that did not hold."""
        return of_messages(plan, self.where(plan), going, failed)

    # The way to publish

    def settings_now(self, s: Services, plan: Plan) -> Policy:
        """What must not have changed since it was planned."""
        return policy_of(s, plan.topic)

    def heeds_horizon(self, s: Services, plan: Plan) -> bool:
        """Whether the plan still knows all that binds it: a compaction may have come after it."""
        return True

    def touched(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        """How much of what goes a legal hold may name. Here whatever goes, for nobody can look into it (DEL-8)."""
        return len(holds)

    def given(self, s: Services, plan: Plan, staged: Staged) -> Given:
        """What a store may ask that carries it out."""
        return Given(ledger=lambda: s.ledger.next_identity(plan.topic), now=s.ledger.now, staged=staged)

    def alone(self, s: Services, plan: Plan) -> AbstractContextManager[None]:
        """Who is kept out while it commits. Raises TopicBusy."""
        return nullcontext()

    def comes_between(self, plan: Plan) -> bool:
        """Whether two of its commits cannot be one, as `before` has to do something between them that is no table's commit."""
        return False

    def before(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        """What must be true, or be done, just before the store's commit, which is not there yet; those before it are, or come with it in one
        commit. Raises PlanConflict."""

    def published(self, plan: Plan, done: Sequence[Published]) -> Published:
        """Of all commits the one that the outcome counts."""
        return done[0]

    # Verifying

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """What is not as it was planned and judged, in words (DEL-6), beside what should have gone and is still there."""
        return []

    def look_again(self, s: Services, plan: Plan) -> tuple[Plan | None, list[str]]:
        """A new plan at the same `as_of`, and what is still overdue without a holder, in words (DEL-6)."""
        return None, []

    def settle(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """What the ledger keeps of a plan that has done what it said, before its outcome."""

    def closed(self, s: Services, plan: Plan, after: Plan) -> None:
        """The same after its outcome, of an operation that looks again."""

    def leave(self, s: Services, plan: Plan) -> str:
        """Of a plan that is closed, however it ended: what must not be forgotten is kept; what a person must know is told."""
        return ""

    def did(self, gone: str, rows: int, restored: int, things: str) -> str:
        """What a success has done, in words. `gone`: what went, by reason; `rows`: how many; `restored`: how many came back."""
        return f"removed {gone or 'nothing'}"

    def told(self, plan: Plan) -> str:
        """What the outcome does not count."""
        return ""

    def counted(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        """The outcome with counts beyond those that each has."""
        return outcome

    def first(self, s: Services, plan: Plan) -> str | None:
        """The plan that had done before what this one found done (DEL-5)."""
        found = s.ledger.find_published(plan.topic, plan.operation, plan.as_of)
        return None if found is None or found.plan.parent != plan.parent else found.plan.plan_id


class OfSpace(Operation):
    """What gives back the space of what has left the topic before: what it takes are files, and no messages are counted."""

    name = "reclaim"
    removes, takes_messages, counts_messages = False, False, False

    def summary(self, plan: Plan) -> str:
        return f"{plan.expected.removed_bytes} of {plan.expected.bytes_in} bytes come back"

    def question(self, plan: Plan, going: int) -> str:
        return question_of_space(plan)


def accept_one(s: Services, plan: Plan, setting: str) -> None:
    """That the operation works by this setting was accepted; of other settings it says nothing (DEL-3)."""
    accepted = s.ledger.accepted(plan.topic)
    if not plan.is_empty and accepted is not None:
        s.ledger.set_accepted(plan.topic, {**accepted, setting: dict(plan.policy)[setting]})


# The operations by name, and what a plan is made for. Each module is loaded when its operation is first met.


OPERATIONS = {
    "message_cleaner": "messages.MessageCleaner",
    "retention": "messages.Retention",
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
    "reclaim of a deleted topic": "reclaim.DeletedReclaim",
    "undo": "undo.UndoOfMessages",
    "undo of snapshot_with_purge": "documents.UndoOfDocuments",
    "undo of quarantine": "quarantine.UndoOfQuarantine",
    "undo of topic_delete": "topics.UndoOfTopicDelete",
}


@cache
def named(name: str) -> Operation:
    """The operation of this name; see `OPERATIONS`."""
    return cast(Operation, _loaded(OPERATIONS[name])())


def stores(s: Services, plan: Plan) -> list[ChangeStore]:
    """Those that carry out its changes, in their order. Tables that are written again, or whose past is forgotten, go
    together; the changes of documents that new snapshots cover go in a commit behind theirs."""
    names = ["drop_tables"] if plan.dropped_tables else [change.kind for change in plan.changes]
    if plan.on_snapshots.documents:
        names.append("changes")
    return [s.stores.of(name) for name in dict.fromkeys(names)]


def is_undone(s: Services, plan: Plan) -> bool:
    """Whether all of it was taken back, and is back still: tables that were put back to a time before have lost it again. Of an undo that
    came to its commit on the log alone the ledger knows, too: see `operations.undo.remember`."""
    undone_by = s.ledger.undone_by(plan.plan_id)
    if undone_by is None:
        return False
    by = s.ledger.record(undone_by)
    return by.outcome is not None and by.outcome.name in ("published", "failed") and not is_lost(s, by.plan)


def is_lost(s: Services, plan: Plan) -> bool:
    """Of a plan that was published: whether it is sure that nothing of it is there any more."""
    found = stores(s, plan)
    return bool(found) and all(store.is_lost(plan) for store in found)


def _loaded(place: str) -> Any:
    module, name = place.split(".")
    return getattr(import_module(f"message_lifecycle.app.operations.{module}"), name)


def names_of(so: Callable[[Operation], bool]) -> tuple[plans.Operation, ...]:
    """The operations of which it is so, as plans and outcomes name them."""
    return tuple(dict.fromkeys(operation.name for operation in map(named, OPERATIONS) if so(operation)))


def undoable() -> tuple[plans.Operation, ...]:
    """Those whose plans can be taken back (DEL-7)."""
    return names_of(lambda one: one.undoable)


def on_records() -> tuple[plans.Operation, ...]:
    """Those that logs of single records can do (RET-5)."""
    return names_of(lambda one: one.on_records)


def looked_at(s: Services, work: Scheduled, given: Sequence[TopicName]) -> Sequence[TopicName]:
    """Where a schedule looks; see `Operation.looked_at`. Raises UnsupportedLimit where it cannot work on a topic that a person named."""
    for name in given:
        if name in s.backends:
            check_operation(s.backends[name], work, on_records(), where=f"topic {name}")
    return named(work).looked_at(s, given)


def of_plan(s: Services, plan: Plan) -> Operation:
    """The operation that has made the plan. An undo with nothing left to do is told by its parent."""
    of_nothing = plan.operation == "undo" and plan.is_empty and plan.parent is not None
    if of_nothing and s.ledger.record(str(plan.parent)).plan.operation == "topic_delete":
        return named("undo of topic_delete")
    return kind_of(plan)


def kind_of(plan: Plan) -> Operation:
    """By the plan alone. What an undo gives back says which undo it is; an empty one counts as one of messages."""
    if plan.operation == "reclaim" and plan.parent is not None:
        return named("reclaim of a deleted topic")
    if plan.operation == "erasure" and Policy.of_values(plan.policy).of_documents:
        return named("erasure of a document")
    if plan.operation != "undo" or plan.parent is None:
        return named(plan.operation)
    if plan.on_quarantine.files_back:
        return named("undo of quarantine")
    if plan.of_documents:
        return named("undo of snapshot_with_purge")
    return named("undo of topic_delete" if plan.restored_tables else "undo")


def suite_of(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """What the plan's staged changes are held to: by its operation, and by the legal holds that it heeds."""
    return (*kind_of(plan).checks(plan, staged, policy), *holds_suite(plan))


def of_work(s: Services, name: TopicName, work: Work) -> Operation:
    """The operation that plans for this. Raises UnknownPlan, UnknownTopic."""
    if isinstance(work, UndoPlan):
        return _undo_of(s, name, work)
    if isinstance(work, EraseKey):
        return named("erasure of a document" if policy_of(s, name).of_documents else "erasure")
    if isinstance(work, DeleteTopic):
        return named("topic_delete")
    if isinstance(work, ReclaimDeleted):
        return named("reclaim of a deleted topic")
    return named("message_request" if isinstance(work, Request) else work)


def work_on(s: Services, name: TopicName, work: Scheduled, *, as_of: Instant) -> Work:
    """What a scheduled run plans for the topic. Where space is given back the name may stand for a topic that was deleted."""
    return cast(Work, _loaded("reclaim.work_on")(s, name, as_of=as_of)) if work == "reclaim" else work


def _undo_of(s: Services, name: TopicName, work: UndoPlan) -> Operation:
    undone = s.ledger.record(work.plan_id).plan
    if undone.operation == "topic_delete":
        return named("undo of topic_delete")
    if undone.operation == "quarantine" and not is_undone(s, undone):
        return named("undo of quarantine")
    return named("undo of snapshot_with_purge" if policy_of(s, name).of_documents else "undo")


def preview(s: Services, name: TopicName, *, as_of: Instant, work: Work = "message_cleaner") -> Plan:
    """The plan as it would be, recorded nowhere."""
    return of_work(s, name, work).preview(s, name, work, as_of=as_of)


def again(s: Services, plan: Plan) -> Work:
    """What to plan again for where a plan no longer fits; a person's request is not made again by itself."""
    return of_plan(s, plan).again(plan)


__all__ = [
    "Operation",
    "Scheduled",
    "Work",
    "again",
    "kind_of",
    "looked_at",
    "named",
    "names_of",
    "of_plan",
    "of_work",
    "on_records",
    "preview",
    "stores",
    "suite_of",
    "undoable",
    "work_on",
]
