"""A batch of an ingest taken again under a corrected mapping: its messages are removed by a plan, then its files come in again.

There are two steps, each done once. First, a plan removes the messages of the batches: gated, approved, published and undoable like every
deletion. Then one transaction of the ledger releases the files of the batches and begins the batch that takes them again. If a run dies in
between, the ledger knows the plan of each batch, and the same command continues. A batch with the same mapping does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from message_lifecycle.app import steps
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions, Intake, find_open_batch, lock_for_ingest, messages_in, take_files
from message_lifecycle.app.operations.registry import is_undone
from message_lifecycle.app.places import files_at
from message_lifecycle.app.services import Services
from message_lifecycle.ledger.intake import InsteadOf, ledger_path_of_replay
from message_lifecycle.model.errors import PlanConflict, Refused, UnknownPlan
from message_lifecycle.model.names import TopicName, safe
from message_lifecycle.model.outcome import Outcome, PlanRecord, SourceFile, TakenBatch
from message_lifecycle.model.request import RemoveRanges

if TYPE_CHECKING:
    from message_lifecycle.app.steps import Approver

_GONE = ("published", "no_op")
_SHOWN = 5


def remap_incomplete(topic: TopicName, batch_id: str, missing: Sequence[str]) -> Refused:
    """A batch is removed whole, so all its files must be there to come in again."""
    shown = ", ".join(map(safe, missing[:_SHOWN])) + ("" if len(missing) <= _SHOWN else f" and {len(missing) - _SHOWN:,} more")
    return Refused(
        f"topic {topic}: batch {batch_id} took files that are not there as they were: {shown}. Nothing was changed. A remap removes all "
        "messages of a batch: give the folder with all its files, each with its earlier content.",
        code="RemapIncomplete",
    )


def remap_unknown(topic: TopicName, batch_id: str) -> Refused:
    """Neither the ledger nor the table's history says which offsets the batch has."""
    return Refused(
        f"topic {topic}: which messages batch {batch_id} brought is not known any more. Nothing was changed. Remove its messages with "
        "`lifecycle message delete`, and ingest its files under other names.",
        code="RemapUnknown",
    )


def remap_empty(topic: TopicName) -> Refused:
    """Return the error for a new mapping that would bring in no message. The remap then removes nothing either."""
    return Refused(
        f"topic {topic}: no record of the files is a message by this mapping. Nothing was changed. Correct the options that name fields and times.",
        code="RemapEmpty",
    )


class RemovalOpen(Exception):
    """The removal waits for a person, or was refused or blocked, so nothing came in. For callers that must return an ingest's result."""

    def __init__(self, remapped: RemapResult) -> None:
        super().__init__(remapped)
        self.remapped = remapped


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapResult:
    """The result of a remap.

    Args:
        batches: The batches that were taken by another mapping.
        removal: The outcome of the plan that removes their messages. None: there was nothing to remove.
        result: The result of the new ingest. None: the removal waits, or was refused.
    """

    batches: tuple[str, ...]
    removal: Outcome | None
    result: IngestResult | None
    refused: int = 0
    """The number of rows that the batches had refused, and that came in again with their files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapRequest:
    """The requester of a remap, and the reason."""

    by: str
    why: str

    @property
    def approver(self) -> Approver:
        return lambda _plan, _report: (True, self.by, self.why)


Bring = Callable[[Intake, TopicName, str, IngestOptions], IngestResult]


def remap(
    s: Services, intake: Intake, name: TopicName, path: str, options: IngestOptions, word: RemapRequest, *, bring: Bring = take_files
) -> RemapResult:
    """Replace messages of the files at `path` that batches took by another mapping, and take new files, too.

    The remap reads all files once before it removes a message.

    Raises:
        RemapIncomplete: A file of one of the batches is missing, or has changed.
        RemapUnknown: The offsets of a batch are not known.
        RemapEmpty: The mapping does not fit the files. Errors from reading are raised, too.
        HeldByLegalHold: A hold keeps one of the messages, so no message is removed (DEL-8).
    """
    batches = batches_to_remap(intake, name, path, options)
    if not batches:
        return RemapResult(batches=(), removal=None, result=bring(intake, name, path, options))
    ids = tuple(batch.batch_id for batch in batches)
    removal, plan_id = _remove_messages(s, name, batches, word)
    if removal is not None and removal.name not in _GONE:
        return RemapResult(batches=ids, removal=removal, result=None)
    instead = InsteadOf(batch_ids=ids, plan_id=plan_id, by=word.by, why=word.why)
    result = bring(intake, name, path, replace(options, instead_of=instead))
    return RemapResult(batches=ids, removal=removal, result=result, refused=sum(batch.refused for batch in batches))


def batches_to_remap(intake: Intake, name: TopicName, path: str, options: IngestOptions) -> list[TakenBatch]:
    """Return the batches that took files at `path` by another mapping, after the batch that a dead run left was ended."""
    with lock_for_ingest(intake, name) as policy:
        found = files_at(path, options.patterns)
        known = [SourceFile(path=file.name, size_bytes=file.size_bytes, sha256=file.sha256()) for file in found]
        find_open_batch(intake, name, known)
        taken = intake.ledger.taken_batches(name, [file.path for file in known])
        batches = [batch for batch in taken if not batch.is_open and batch.mapping != options.mapping_text]
        batches = check_batches(intake, name, known, batches)
        if batches and not messages_in(intake, name, list(found), policy, options):
            raise remap_empty(name)
        return batches


def check_batches(intake: Intake, name: TopicName, known: Sequence[SourceFile], batches: Sequence[TakenBatch]) -> list[TakenBatch]:
    """Return the batches with the ranges of their messages. Raises RemapIncomplete, RemapUnknown."""
    there = {file.path: file.sha256 for file in known}
    replayed = tuple(ledger_path_of_replay(batch.batch_id, "") for batch in batches)
    for batch in batches:
        missing = [file.path for file in batch.files if there.get(file.path) != file.sha256 and not file.path.startswith(replayed)]
        if missing:
            raise remap_incomplete(name, batch.batch_id, missing)
    return [_with_ranges(intake, name, batch) for batch in batches]


def _with_ranges(intake: Intake, name: TopicName, batch: TakenBatch) -> TakenBatch:
    if batch.ranges is not None:
        return batch
    from message_lifecycle.stores.iceberg.append import end_of_batch

    appended = end_of_batch(intake.engine(), name, batch.batch_id)
    if appended is None or appended.ranges is None:
        raise remap_unknown(name, batch.batch_id)
    return replace(batch, ranges=appended.ranges)


def _remove_messages(s: Services, name: TopicName, batches: Sequence[TakenBatch], word: RemapRequest) -> tuple[Outcome | None, str]:
    """Remove the batches' messages, and return the plan's outcome and id. A plan of an earlier call continues."""
    records = {batch.batch_id: _record(s, batch.remap_plan) for batch in batches}
    left = [batch for batch in batches if not _is_gone(s, records[batch.batch_id])]
    if not left:
        gone = next(record for record in records.values() if record is not None)
        return gone.outcome, gone.plan.plan_id
    begun = {record.plan.plan_id: record for batch in left if (record := records[batch.batch_id]) is not None and record.outcome is None}
    for record in begun.values():
        try:
            outcome = steps.carry_out(s, record, word.approver)
        except PlanConflict:
            break  # planned again below
        if outcome.name == "needs_approval":
            return outcome, record.plan.plan_id
        if outcome.name in _GONE:
            return _remove_messages(s, name, batches, word)
    ranges = tuple(sorted(one for batch in left for one in batch.ranges or ()))
    if not ranges:
        return None, ""
    plan_ids: list[str] = []

    def remember(record: PlanRecord) -> None:
        plan_ids.append(record.plan.plan_id)
        s.ledger.record_remap(name, [batch.batch_id for batch in left], record.plan.plan_id)

    work, asked_at = RemoveRanges(ranges=ranges), s.ledger.now()
    outcome = steps.run(s, name, as_of=asked_at, approver=word.approver, work=work, requested_by=word.by, planned=remember)
    return outcome, plan_ids[-1]


def _record(s: Services, plan_id: str | None) -> PlanRecord | None:
    try:
        return None if plan_id is None else s.ledger.record(plan_id)
    except UnknownPlan:
        return None


def _is_gone(s: Services, record: PlanRecord | None) -> bool:
    """True if the plan has removed the messages, and nobody has taken it back."""
    return record is not None and record.outcome is not None and record.outcome.name in _GONE and not is_undone(s, record.plan)
