"""Quarantine rows that have reached their age go, file by file (QUA-1): all rows of a batch carry the same time and lie in one file.

A file of which only some rows have reached it stays until all have: another writer has put batches together, and what is unknown of it
keeps data. A legal hold on any part of the topic keeps its whole quarantine: which message a refused row would have been, nobody knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from message_lifecycle.model.change import Commit, QuarantinedFile, that_change
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant, deadline, is_dead, seconds
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Held, Operation, Plan, Selection
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import CameBack, QuarantineFile, QuarantineReturning, QuarantineState
from message_lifecycle.operations.planning import asks_where_shorter, empty_plan, not_back, required_of_table

SETTING = "quarantine_max_age"


def plan(
    topic: TopicName,
    state: QuarantineState,
    policy: Policy,
    accepted: Mapping[str, Value | None] | None,
    holds: Collection[str],
    undone: Collection[CameBack] = (),
    *,
    as_of: Instant,
) -> Plan:
    """What may go at `as_of`. `accepted`: the settings under which removals were last accepted; `holds`: what stands on the topic;
    `undone`: what came back with undos, and nobody has released (DEL-7)."""
    due = [file for file in state.files if _goes_at(file, policy) is not None and is_dead(_due_at(file, policy), as_of)]
    kept_by = {file.name: back for file in due if (back := next((one for one in undone if one.may_be(file)), None)) is not None}
    going = [] if holds else [file for file in due if file.name not in kept_by]
    rows = sum(file.rows for file in going)
    later = [at for file in state.files if (at := _goes_at(file, policy)) is not None and not is_dead(at, as_of)]
    made = _empty_plan("quarantine", topic, state, policy, tuple(sorted(holds)), as_of=as_of)
    return replace(
        made,
        changes=that_change(
            Commit(
                table="quarantine",
                files=tuple(_named(file, (_known(file.oldest_at), _known(file.newest_at))) for file in going),
            )
        ),
        selection=Selection(files=tuple(sorted(file.name for file in going))),
        expected=replace(
            made.expected,
            removed=(("quarantine_age", rows),) if rows else (),
            removed_bytes=sum(file.size_bytes for file in going),
        ),
        held=tuple(_held(due, "hold", _of_holds(holds), policy) if holds else _held_by_undo(due, kept_by, policy)),
        warnings=_unknown(state),
        asks=asks_where_shorter(SETTING, policy, accepted) if going else (),
        due_since=min((_due_at(file, policy) for file in due), default=None),
        next_due_at=min(later, default=None),
    )


def _empty_plan(
    operation: Operation, topic: TopicName, state: QuarantineState, policy: Policy, heeded: tuple[str, ...], *, as_of: Instant
) -> Plan:
    """Of the quarantine, which has a history of its own: the log's has nothing to do with it."""
    made = empty_plan(operation, topic, policy, required_of_table(state.table_uuid, state.snapshot_id, policy, heeded), as_of=as_of)
    rows, size = sum(file.rows for file in state.files), sum(file.size_bytes for file in state.files)
    return replace(made, expected=replace(made.expected, rows_in=rows, bytes_in=size))


def _named(file: QuarantineFile, times: tuple[Instant, Instant]) -> QuarantinedFile:
    """`times`: the oldest and the newest of its rows."""
    return QuarantinedFile(file=file.name, rows=file.rows, size_bytes=file.size_bytes, oldest_at=times[0], newest_at=times[1])


def _known(at: Instant | None) -> Instant:
    assert at is not None, "a file of unknown age does not go"
    return at


def _goes_at(file: QuarantineFile, policy: Policy) -> Instant | None:
    """None: never, for its age is not known."""
    return None if file.oldest_at is None or file.newest_at is None else deadline(file.newest_at, seconds(_age(policy)))


def _due_at(file: QuarantineFile, policy: Policy) -> Instant:
    return deadline(_known(file.newest_at), seconds(_age(policy)))


def _age(policy: Policy) -> int:
    found = policy[SETTING]
    assert isinstance(found, int), "the setting has a default"
    return found


def _held(due: Collection[QuarantineFile], holder: SparedBy, detail: str, policy: Policy) -> list[Held]:
    """One entry for all: quarantined rows have no offsets."""
    if not due:
        return []
    since = min(_due_at(file, policy) for file in due)
    rows = sum(file.rows for file in due)
    return [Held(partition=0, first_base=0, last_offset=0, rows=rows, overdue_since=since, holder=holder, detail=detail)]


def _of_holds(holds: Collection[str]) -> str:
    return f"the topic has legal holds ({', '.join(sorted(holds))}), which may touch its quarantine"


def _held_by_undo(due: Collection[QuarantineFile], kept_by: Mapping[str, CameBack], policy: Policy) -> Iterator[Held]:
    for detail in sorted({back.detail for back in kept_by.values()}):
        files = [file for file in due if file.name in kept_by and kept_by[file.name].detail == detail]
        yield from _held(files, "undone_plan", detail, policy)


def _unknown(state: QuarantineState) -> tuple[str, ...]:
    files = [file for file in state.files if file.newest_at is None]
    return (f"{len(files)} files of the quarantine do not tell the age of their rows, and stay",) if files else ()


# Taking back what an age took out of the quarantine: the files that it took come back as copies, and stay until a person releases them
# (DEL-7, QUA-1).


def plan_undo(
    state: QuarantineState, found: QuarantineReturning, policy: Policy, undone: Plan, *, as_of: Instant, heeded: tuple[str, ...]
) -> Plan:
    """The plan that takes `undone` back, of which there is something to bring back."""
    files = tuple(_named(file, times) for file, times in found.files)
    rows = sum(file.rows for file in files)
    return replace(
        _empty_plan("undo", undone.topic, state, policy, heeded, as_of=as_of),
        changes=that_change(Commit(table="quarantine", files_back=files, source_id=found.source_id)),
        warnings=tuple(not_back("row", taken=undone.expected.removed_rows, back=rows, present=found.present)),
        asks=(f"plan {undone.plan_id} of operation quarantine is taken back: {rows} row(s) come back to the quarantine",),
        parent=undone.plan_id,
    )
