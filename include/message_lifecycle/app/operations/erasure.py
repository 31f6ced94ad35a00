"""The erasure of a request's keys from one topic (DEL-7, DEL-8). The code knows only the digests of the keys, from the request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from message_lifecycle.app import archiving, sparing
from message_lifecycle.app.erasure_secret import match_of
from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.operations.registry import Operation, Work, names_of, undoable_operations
from message_lifecycle.app.receipts import add_to_receipt, eraser_of, rows_erased, search
from message_lifecycle.app.services import find_topic
from message_lifecycle.app.witness import note_searched
from message_lifecycle.gates.tables import erasure_suite
from message_lifecycle.model.erasure import (
    TABLE_KINDS,
    ErasedTable,
    ErasureOf,
    ErasureRequest,
    HeldFile,
    KeyMatch,
    KeySearchResult,
    the_keys,
)
from message_lifecycle.model.errors import HeldByLegalHold, erasure_unfinished, unsupported_erasure
from message_lifecycle.model.hold import HeldKey, Hold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import offsets_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Plan, Requirements
from message_lifecycle.model.request import EraseKey
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import erasure
from message_lifecycle.operations.planning import required_of_documents, requirements_of
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.gates.suite import Suite
    from message_lifecycle.ports import ChangeStore, CommitContext

INTAKE = ("ingest", "copy")
"""Locks of what brings keys in."""
_WRITERS = (*INTAKE, "compaction")
"""Locks of what writes to branches of a topic's tables: none is under way while an erasure is published."""
_WAIT_SECONDS = 600.0
_SHOWN_OF_DIGEST = 12
"""Characters that tell one erased document from another in plans and outcomes; with the colon before them they are no name (NAME-1)."""


class Erasure(Operation):
    """Erases the keys of a person's request from one topic."""

    name = "erasure"
    judged = "rewrite"
    by_request, on_records = True, True
    not_undone = "what is erased never comes back"

    def is_plan_for(self, plan: Plan, work: Work) -> bool:
        return isinstance(work, EraseKey) and plan.erasure is not None and plan.erasure.request_id == work.request_id

    def wait(self, s: Services, name: TopicName) -> None:
        # If the search finds nothing, no commit locks out writers. A writer that began earlier could then bring a key in after the
        # search:
        # an ingest that read the forbidden keys before the request, or a copy that read its origin before the origin's erasure.
        with lock_out_writers(s, name, purposes=INTAKE):
            pass

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        """Plan the erasure. Raises UnknownErasure, ErasureSecretMissing, ErasureSecretChanged, UnsupportedErasure, HeldByLegalHold."""
        request = s.ledger.erasure(cast(EraseKey, work).request_id)
        requirements = self.required(s, name, policy)
        digests = tuple(key.digest for key in request.keys.each)
        of = ErasureOf(request_id=request.request_id, digests=digests, secret=request.keys.secret)
        matches = match_of(s, [request])
        _refuse_lost_archives(s, name)
        open_undo = s.ledger.published_since(name, undoable_operations(), published_after=Instant(s.ledger.now() - policy.undo_window_us))
        found = eraser_of(s, name).find_key(name, matches, policy, as_of=as_of, undoable=open_undo)
        note_searched(s, name, (table.table_uuid for table in found))
        _refuse_former_archives(s, name, policy, matches)
        _refuse_held(s, name, policy, matches, found, as_of=as_of, undoable=open_undo)
        return erasure.plan(name, requirements, policy, of, found, as_of=as_of)

    def required(self, s: Services, name: TopicName, policy: Policy) -> Requirements:
        """Return the conditions that must still hold when the plan is applied."""
        return requirements_of(s.reader.log(name), policy, ids_of(holds_of(s, name)))

    def commit_context(self, s: Services, plan: Plan, staged: Staged) -> CommitContext:
        return replace(super().commit_context(s, plan, staged), matches=lambda: matches_of(s, plan))

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return erasure_suite(plan, policy)

    def writer_lock(self, s: Services, plan: Plan) -> AbstractContextManager[None]:
        return lock_out_writers(s, plan.topic)

    def check_before_commit(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        """Check that no ingest batch is open, because only the history, which the erasure removes, shows whether the table has the batch.

        Raises:
            ErasureUnfinished: A batch has begun and not ended.
        """
        name = verdict.plan.topic
        if batches := s.ledger.open_batches(name):
            raise erasure_unfinished(f"topic {name}", f"ingest batch {batches[0].batch_id} of a run that died is open; ingest first")

    def question(self, plan: Plan, going: int) -> str:
        return f"erase {amount(_number(plan), 'keys')} for good, with {going:,} of {plan.expected.rows_in:,} {plan.things}?"

    def where(self, plan: Plan) -> str:
        return f"with every row of {the_keys(_number(plan))} in the topic's tables and their history"

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return sparing.count_messages_under_hold(s, plan, staged, holds)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """Search the tables again and return the differences. Without a difference, the search result joins the request's receipt."""
        plan = record.plan
        found = tuple(search(s, plan, matches_of(s, plan)))
        wrong = [*_describe_remaining_rows(found), *_describe_differences(plan, published, found)]
        if not wrong:
            add_to_receipt(s, plan, found)
        return wrong

    def success_text(self, rows: int, restored: int, things: str) -> str:
        return f"erased {amount(rows, things)}"

    def detail_text(self, plan: Plan) -> str:
        refused = rows_erased(plan, "quarantine")
        return f"erased {amount(refused, 'refused rows')} of {the_keys(_number(plan))} from the quarantine" if refused else ""

    def check_again(self, s: Services, plan: Plan) -> tuple[Plan | None, list[str]]:
        """Search again if no key was found, and record the search as the receipt. Raises TopicBusy."""
        if plan.changes:
            return None, []
        with lock_out_writers(s, plan.topic, purposes=INTAKE):  # their uncommitted files belong to no table, so a search would miss them
            found = tuple(search(s, plan, matches_of(s, plan)))
        wrong = _describe_remaining_rows(found)
        if not wrong:
            add_to_receipt(s, plan, found)
        return None, wrong


class ErasureOfDocument(Erasure):
    """The keys are documents' names, and the documents go with them."""

    def required(self, s: Services, name: TopicName, policy: Policy) -> Requirements:
        return required_of_documents(s.documents.tables(name), policy, ids_of(holds_of(s, name)))

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return sparing.count_tables_under_hold(plan, holds)

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Remove the documents from the ledger, because the tables have no rows of them any more, or never had any."""
        s.ledger.forget_documents(plan.topic, _substitute(matches_of(s, plan)))


def _refuse_held(
    s: Services,
    name: TopicName,
    policy: Policy,
    matches: KeyMatch,
    found: Sequence[KeySearchResult],
    *,
    as_of: Instant,
    undoable: Collection[str],
) -> None:
    """Refuse the erasure if a hold may cover a row of a key, or a row that only the history still has (DEL-8).

    An erasure ends the table's history. For a hold on another key, a search finds the rows that only the history has, and the refused rows
    and damaged lines that contain such keys, too. For other holds there is no such search, so they always refuse.
    """
    for hold in holds_of(s, name):
        key = hold.what.key if isinstance(hold.what, HeldKey) else None
        if (
            key is None
            or matches(key)
            or _may_remove_other_keys(
                found, eraser_of(s, name).find_key(name, matches.for_key(key), policy, as_of=as_of, undoable=undoable)
            )
        ):
            raise HeldByLegalHold(str(name), sum(file.rows for table in found for file in table.files), [hold.description])


def _may_remove_other_keys(found: Sequence[KeySearchResult], held: Sequence[KeySearchResult]) -> bool:
    """Return whether erasing the `found` rows may remove rows of another key, which are in `held`."""
    refused = {file.name: file.offsets for file in _refused(found)}
    return any(not file.needed for table in held for file in table.files) or any(
        file.name in refused and _may_overlap(refused[file.name], file.offsets) for file in _refused(held)
    )


def _refused(found: Sequence[KeySearchResult]) -> Iterator[HeldFile]:
    """Return the files of rows that are no messages. One such row may contain several keys."""
    return (file for table in found if TABLE_KINDS[table.table].of_text for file in table.files)


def _may_overlap(one: str, other: str) -> bool:
    """Return whether both files' rows overlap. If a store does not name its rows, they may overlap."""
    return not (one and other) or not set(offsets_of(one)).isdisjoint(offsets_of(other))


def _refuse_lost_archives(s: Services, name: TopicName) -> None:
    """Raise UnsupportedErasure for a lost archive, because an archive that was not searched must not count as erased."""
    for folder in archiving.find_lost_archives(s, name):
        raise unsupported_erasure(
            f"topic {name}",
            f"it has archived messages in {folder}, which is not there or not reached: mount or bring back what holds it (a folder of a disk: "
            "or make it, to say that nothing of it is left)",
        )


def _refuse_former_archives(s: Services, name: TopicName, policy: Policy, matches: KeyMatch) -> None:
    """Raise UnsupportedErasure for a former archive with a key, because the erasure would not remove the key there."""
    for folder in archiving.former_holders(s, name, policy, matches):
        raise unsupported_erasure(
            f"topic {name}",
            f"the archive {folder}, which it used before, holds a requested key; set archive_to back to it, erase, and set it as it was",
        )


def matches_of(s: Services, plan: Plan) -> KeyMatch:
    assert plan.erasure is not None, "an erasure's plan names its request"
    return match_of(s, [s.ledger.erasure(plan.erasure.request_id)])


@contextmanager
def lock_out_writers(s: Services, name: TopicName, *, purposes: Sequence[str] = _WRITERS) -> Iterator[None]:
    """Wait for the topic's writers and lock them out meanwhile. Raises TopicBusy."""
    with ExitStack() as held:
        for purpose in purposes:
            held.enter_context(s.ledger.lock(name, wait_seconds=_WAIT_SECONDS, purpose=purpose))
        yield


def _describe_remaining_rows(found: Sequence[ErasedTable]) -> list[str]:
    return [
        f"the {table.table} still holds a requested key, in {table.files_found} of {table.files_searched} data files"
        for table in found
        if table.files_found
    ]


def _describe_differences(plan: Plan, published: Published, found: Sequence[ErasedTable]) -> list[str]:
    """Return the differences between the tables, the commit and the plan."""
    wrong = []
    kept = {(action.table, snapshot) for action in plan.rewrites for snapshot in action.snapshots}
    named = {(action.table, at) for action in plan.rewrites for _, at in (*action.refs, *action.undo)}
    left = sum((table.table, snapshot) in kept - named for table in found for snapshot in table.snapshots)
    if left:
        wrong.append(f"{left} snapshots of before are still there")
    if dict(published.removed) != dict(plan.expected.removed):
        wrong.append(f"the commit removed {dict(published.removed)}, the plan says {dict(plan.expected.removed)}")
    return wrong


def forget_former(s: Services, request: ErasureRequest) -> None:
    """Remove the documents from the ledger for topics that are gone for good, or that now hold messages: no plan covers these topics."""
    for name in s.ledger.document_topics(names_of(lambda one: one.of_documents and not one.gives_back)):
        topic = find_topic(s, name)
        if (not request.topics or name in request.topics) and (topic is None or not topic.has_documents):
            s.ledger.forget_documents(name, _substitute(match_of(s, [request])))


def _substitute(matches: KeyMatch) -> Callable[[bytes], str | None]:
    """Return a function that replaces the name of an erased document by a part of its keyed hash, and returns None for other names."""
    return lambda name: f"erased:{matches.secret.hash(name).hex()[:_SHOWN_OF_DIGEST]}" if matches(name) else None


def _number(plan: Plan) -> int:
    assert plan.erasure is not None, "an erasure's plan names its request"
    return len(plan.erasure.digests)
