"""Removal of quarantine rows that have reached their age or were replayed, file by file (QUA-1, QUA-2).

All rows of a batch carry the same time and lie in one file. If another writer has merged batches, a file stays until all its rows have
reached their age. A legal hold on any part of the topic keeps its whole quarantine, because nobody knows which message a refused row would
have been.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

from message_lifecycle.model.change import CommitQuarantine, QuarantinedFile, ReturnToQuarantine, non_empty_commits
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant, deadline, is_dead, seconds
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import RefusedBatch
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Held, Operation, Plan, Selection
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import QuarantineFile, QuarantineReturning, QuarantineState, RestoredQuarantineRows
from message_lifecycle.operations.planning import asks_where_shorter, empty_plan, not_restored_texts, required_of_table

SETTING = "quarantine_max_age"

Since = Callable[[QuarantineFile], Instant]


def plan(
    topic: TopicName,
    state: QuarantineState,
    policy: Policy,
    accepted: Mapping[str, Value | None] | None,
    holds: Collection[str],
    undone: Collection[RestoredQuarantineRows] = (),
    replayed: Collection[RefusedBatch] = (),
    *,
    as_of: Instant,
) -> Plan:
    """Plan which files may go at `as_of`.

    Args:
        topic: The topic next to the quarantine.
        state: The files of the quarantine.
        policy: The topic's policy.
        accepted: The settings under which removals were last accepted.
        holds: The legal holds on the topic.
        undone: Rows that came back with undos, and that nobody has released (DEL-7).
        replayed: Batches whose refused rows came in again. Their files go at once.
        as_of: Judge ages at this instant.
    """
    aged = [file for file in state.files if _may_leave_at(file, policy) is not None and is_dead(_due_at(file, policy), as_of)]
    due = [*aged, *(file for file in state.files if file not in aged and _replayed_by(file, replayed) is not None)]
    kept_by = {file.name: back for file in due if (back := next((one for one in undone if one.may_be(file)), None)) is not None}
    going = [] if holds else [file for file in due if file.name not in kept_by]
    rows = {
        "quarantine_age": sum(file.rows for file in going if file in aged),
        "quarantine_replayed": sum(file.rows for file in going if file not in aged),
    }
    later = [at for file in state.files if file not in due and (at := _may_leave_at(file, policy)) is not None and not is_dead(at, as_of)]
    since = partial(_due_since, policy=policy, replayed=replayed)
    made = _empty_plan("quarantine", topic, state, policy, tuple(sorted(holds)), as_of=as_of)
    return replace(
        made,
        changes=non_empty_commits(
            CommitQuarantine(
                files=tuple(_file_with_times(file, (_known_or_zero(file.oldest_at), _known_or_zero(file.newest_at))) for file in going),
            )
        ),
        selection=Selection(files=tuple(sorted(file.name for file in going))),
        expected=replace(
            made.expected,
            removed=tuple((reason, count) for reason, count in rows.items() if count),
            removed_bytes=sum(file.size_bytes for file in going),
        ),
        held=tuple(_held(due, "hold", _holds_text(holds), since) if holds else _held_by_undo(due, kept_by, since)),
        warnings=_warn_about_unknown_ages(state),
        asks=asks_where_shorter(SETTING, policy, accepted) if rows["quarantine_age"] else (),
        due_since=min(map(since, due), default=None),
        next_due_at=min(later, default=None),
    )


def _empty_plan(
    operation: Operation, topic: TopicName, state: QuarantineState, policy: Policy, heeded: tuple[str, ...], *, as_of: Instant
) -> Plan:
    """Return an empty plan on the quarantine, which has its own history."""
    made = empty_plan(operation, topic, policy, required_of_table(state.table_uuid, state.snapshot_id, policy, heeded), as_of=as_of)
    rows, size = sum(file.rows for file in state.files), sum(file.size_bytes for file in state.files)
    return replace(made, expected=replace(made.expected, rows_in=rows, bytes_in=size))


def _file_with_times(file: QuarantineFile, times: tuple[Instant, Instant]) -> QuarantinedFile:
    """Return the file with the oldest and the newest time of its rows."""
    return QuarantinedFile(file=file.name, rows=file.rows, size_bytes=file.size_bytes, oldest_at=times[0], newest_at=times[1])


def _known_or_zero(at: Instant | None) -> Instant:
    assert at is not None, "a file of unknown age does not go"
    return at


def _may_leave_at(file: QuarantineFile, policy: Policy) -> Instant | None:
    """Return when the file may leave. None: never, because its age is unknown."""
    return None if file.oldest_at is None or file.newest_at is None else deadline(file.newest_at, seconds(_age(policy)))


def _due_at(file: QuarantineFile, policy: Policy) -> Instant:
    return deadline(_known_or_zero(file.newest_at), seconds(_age(policy)))


def _due_since(file: QuarantineFile, policy: Policy, replayed: Collection[RefusedBatch]) -> Instant:
    batch = _replayed_by(file, replayed)
    settled = None if batch is None else batch.settled_at
    return _due_at(file, policy) if settled is None else min(settled, _due_at(file, policy))


def _replayed_by(file: QuarantineFile, replayed: Collection[RefusedBatch]) -> RefusedBatch | None:
    """Return the replayed batch of all rows of the file: rows of a batch carry one time, and no two batches run at once."""
    if file.oldest_at is None or file.oldest_at != file.newest_at:
        return None
    return next((batch for batch in replayed if batch.settled_as == "replayed" and batch.may_contain(file.oldest_at, file.newest_at)), None)


def files_before_their_age(plan: Plan, policy: Policy) -> tuple[QuarantinedFile, ...]:
    """Return the files of the plan that leave before their age because their rows were replayed."""
    files = plan.quarantine_commit.files
    return tuple(file for file in files if not is_dead(deadline(file.newest_at, seconds(_age(policy))), plan.as_of))


def _age(policy: Policy) -> int:
    found = policy[SETTING]
    assert isinstance(found, int), "the setting has a default"
    return found


def _held(due: Collection[QuarantineFile], holder: SparedBy, detail: str, since_of: Since) -> list[Held]:
    """Return one entry for all files, because quarantined rows have no offsets."""
    if not due:
        return []
    since = min(map(since_of, due))
    rows = sum(file.rows for file in due)
    return [Held(partition=0, first_base=0, last_offset=0, rows=rows, overdue_since=since, holder=holder, detail=detail)]


def _holds_text(holds: Collection[str]) -> str:
    return f"legal holds of the topic may concern its quarantine: {', '.join(sorted(holds))}"


def _held_by_undo(due: Collection[QuarantineFile], kept_by: Mapping[str, RestoredQuarantineRows], since: Since) -> Iterator[Held]:
    for detail in sorted({back.detail for back in kept_by.values()}):
        files = [file for file in due if file.name in kept_by and kept_by[file.name].detail == detail]
        yield from _held(files, "undone_plan", detail, since)


def _warn_about_unknown_ages(state: QuarantineState) -> tuple[str, ...]:
    files = [file for file in state.files if file.newest_at is None]
    return (f"{amount(len(files), 'files')} of the quarantine kept: the age of their rows is unknown",) if files else ()


# The undo of a quarantine removal: the files return as copies and stay until a person releases them (DEL-7, QUA-1).


def plan_undo(
    state: QuarantineState, found: QuarantineReturning | None, policy: Policy, undone: Plan, *, as_of: Instant, heeded: tuple[str, ...]
) -> Plan:
    """Plan the undo of `undone`. `found`: the rows to restore. None: `undone` was taken back before, and the plan is empty."""
    made = replace(
        _empty_plan("undo", undone.topic, state, policy, heeded, as_of=as_of),
        parent=undone.plan_id,
        parent_operation=undone.operation,
    )
    if found is None:
        return made
    files = tuple(_file_with_times(file, times) for file, times in found.files)
    rows = sum(file.rows for file in files)
    return replace(
        made,
        changes=non_empty_commits(ReturnToQuarantine(files=files, source_id=found.source_id)),
        warnings=tuple(not_restored_texts("rows", taken=undone.expected.removed_rows, back=rows, present=found.present)),
        asks=(f"undoes plan {short(undone.plan_id)} (quarantine): brings back {amount(rows, 'rows')}",),
    )
