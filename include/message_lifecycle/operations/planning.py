"""The common parts of plans: the empty plan, the requirements, and messages that holds and undone plans keep (DEL-7, DEL-8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from message_lifecycle import __version__
from message_lifecycle.model.change import DropSegments, RemoveRows
from message_lifecycle.model.document import DocumentTables
from message_lifecycle.model.erasure import KeySearchResult
from message_lifecycle.model.facts import Facts, LogState, Segment
from message_lifecycle.model.hold import Spared, SparedOffsets, spared_text
from message_lifecycle.model.instants import Instant, newest_known
from message_lifecycle.model.message import DueRows, RowAnswer, ViewState, parse_ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Expected, Operation, Plan, Requirements, Selection, ViewRequirements
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, changed_setting_text


def empty_plan(operation: Operation, topic: TopicName, policy: Policy, requirements: Requirements, *, as_of: Instant) -> Plan:
    """Return a plan without changes and counts. Each planner replaces its own parts."""
    return Plan(
        operation=operation,
        topic=topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=requirements,
        bounds=(),
        changes=(),
        selection=Selection(),
        expected=Expected(rows_in=0, removed=(), removed_bytes=0, bytes_in=0, segments=0),
        held=(),
        warnings=(),
        asks=(),
        more=False,
        due_since=None,
        next_due_at=None,
    )


def empty_plan_of_log(operation: Operation, facts: Facts, policy: Policy, *, as_of: Instant) -> Plan:
    """Return an empty plan with the counts of a log. It lists spared offsets if the topic makes markers, which replace older ones."""
    log = facts.log
    made = empty_plan(operation, log.topic, policy, requirements_of(log, policy, facts.heeded), as_of=as_of)
    rows, size = sum(segment.rows for segment in log.segments), sum(segment.size_bytes for segment in log.segments)
    spared = () if policy.marker_ttl_us is None else spared_text(facts.spared, log.end_offsets)
    return replace(made, expected=replace(made.expected, rows_in=rows, bytes_in=size), spared=spared)


def tightened_text(name: str, before: Mapping[str, Value | None], policy: Policy) -> str:
    """Describe the change of a setting since the last accepted removal."""
    return f"stricter than the last approved value: {changed_setting_text(name, before, policy.values)}"


def asks_where_shorter(name: str, policy: Policy, accepted: Mapping[str, Value | None] | None) -> tuple[str, ...]:
    """Return a question if the setting is shorter than the accepted one, because that breaks an earlier promise (DEL-3)."""
    before, now = (accepted or {}).get(name), policy[name]
    shorter = isinstance(before, int) and isinstance(now, int) and now < before
    return (tightened_text(name, accepted or {}, policy),) if shorter else ()


def not_restored_texts(what: str, *, taken: int, back: int, present: int) -> Iterator[str]:
    """Return warnings about rows that an undo does not restore.

    Args:
        what: The plural name of them: rows, messages.
        taken: Rows that the plan removed.
        back: Rows that the undo restores.
        present: Rows that the table has again already.
    """
    if present:
        yield f"{amount(present, what)} of the plan are back already"
    if taken > back + present:
        yield f"{amount(taken - back - present, what)} of the plan cannot come back: no file has them"


def removal_of(entry: DueRows) -> RemoveRows:
    return RemoveRows(
        partition=entry.partition,
        base_offset=entry.base_offset,
        file=entry.file,
        offsets=entry.taken,
        rows=entry.rows,
        reason=entry.reason,
    )


def drop(run: Sequence[Segment], reason: Literal["expiry", "compacted"]) -> DropSegments:
    """Return the change that drops neighbouring segments of a partition."""
    return DropSegments(
        partition=run[0].partition,
        first_base=run[0].base_offset,
        last_base=run[-1].base_offset,
        last_offset=max(segment.last_offset for segment in run),
        segments=len(run),
        rows=sum(segment.rows for segment in run),
        size_bytes=sum(segment.size_bytes for segment in run),
        newest_at=newest_known(segment.newest_at for segment in run),
        reason=reason,
    )


def view_requirements(view: ViewState | KeySearchResult) -> ViewRequirements:
    """Return the requirements of a plan that builds on the view without rewriting it."""
    return ViewRequirements(table_uuid=view.table_uuid, snapshot_id=view.snapshot_id, rows=view.rows)


def requirements_of(log: LogState, policy: Policy, heeded: tuple[str, ...] = ()) -> Requirements:
    """Return the requirements of a plan on a log: table, snapshot, end offsets, settings, and heeded legal holds."""
    return required_of_table(log.table_uuid, log.snapshot_id, policy, heeded, end_offsets=log.end_offsets)


def required_of_documents(tables: DocumentTables, policy: Policy, heeded: tuple[str, ...] = ()) -> Requirements:
    """Return the requirements of a plan on documents: table of changes, snapshot, settings, and heeded legal holds."""
    return required_of_table(tables.changes_uuid, tables.changes_id, policy, heeded)


def required_of_table(
    table_uuid: str,
    snapshot_id: int | None,
    policy: Policy,
    heeded: tuple[str, ...] = (),
    *,
    end_offsets: Mapping[int, int] = MappingProxyType({}),
) -> Requirements:
    """Return the requirements of a plan on any table. Empty `end_offsets`: its rows have no offsets."""
    return Requirements(
        table_uuid=table_uuid,
        snapshot_id=snapshot_id,
        end_offsets=tuple(sorted(end_offsets.items())),
        policy_hash=policy.hash,
        code_version=__version__,
        heeded=heeded,
    )


# Spared messages leave the answer of a store.


@dataclass(frozen=True, slots=True, kw_only=True)
class SparedRows:
    """Due messages of one file that stay because of `by`."""

    entry: DueRows
    by: Spared
    rows: int


def split_spared(answer: RowAnswer, spared: SparedOffsets) -> tuple[RowAnswer, tuple[SparedRows, ...]]:
    """Return the answer without spared messages, which it only counts, and the spared messages."""
    if not spared:
        return answer, ()
    due: list[DueRows] = []
    kept: list[SparedRows] = []
    for entry in answer.due:
        free, held = spared.split(entry.partition, entry.taken)
        mine = [SparedRows(entry=entry, by=by, rows=sum(len(run) for run in parse_ranges_text(text))) for by, text in held]
        rows = sum(found.rows for found in mine)
        left = replace(entry, taken=free, rows=entry.rows - rows, spared=rows, since=entry.free_since or entry.since)
        due.append(left if mine else entry)
        kept += mine
    return replace(answer, due=tuple(due)), tuple(kept)
