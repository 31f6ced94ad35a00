"""Single messages in memory: removal by the rules, and return by an undo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar, get_args

from message_lifecycle.model.change import RemoveRows, RestoreRows, Rows
from message_lifecycle.model.document import Change
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import (
    DueRows,
    LimitQuestion,
    Marker,
    Message,
    Reason,
    RowAnswer,
    RowQuestion,
    ViewRow,
    is_marker,
    offsets_of,
    ranges_text,
)
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import LimitReason, RemovalReason
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, RemoveRanges, Request, TruncateLog, requested_offsets
from message_lifecycle.model.rules import rule_holds, rule_holds_from
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import Range, Returning, ReturningView, UndoEffect, lies_in
from message_lifecycle.operations.limits import GroupCuts, RankedRow, find_cuts
from message_lifecycle.operations.markers import make_markers
from message_lifecycle.stores.memory.tables import (
    Changes,
    Position,
    SnapshotRow,
    Snapshots,
    Table,
    Version,
    ViewVersion,
    by_segment,
    difference,
    epoch_of,
    file_of,
    in_order,
    segment_of,
)

# Single messages that the rules remove (TTL-7), and the markers of emptied keys (MRK-1 to MRK-5).


Gone = list[tuple[Message, RemovalReason]]
_LIMITS: tuple[LimitReason, ...] = get_args(LimitReason)


def due_rows(version: Version, question: RowQuestion) -> RowAnswer:
    """See `ports.MessageReader.rows`."""
    looked_at = [message for message in in_order(version.messages) if segment_of(message) not in question.going]
    reasons: dict[Position, Reason] = {}
    later: list[Instant] = []
    for message in looked_at:
        for reason in question.reasons:
            if reason.segments is not None and segment_of(message) not in reason.segments:
                continue
            begins = rule_holds_from(reason.rule, message)
            if begins is not None and begins <= question.as_of:
                reasons[message.partition, message.offset] = reason
                break
            if begins is not None:
                later.append(begins)
    left = [message for message in looked_at if (message.partition, message.offset) not in reasons]
    beyond, found = ({}, None) if question.beyond is None else _beyond(left, question.beyond, question.as_of)
    due, whole, spared = [], {}, SparedOffsets(question.spared)
    for place, messages in by_segment(looked_at):
        by_reason: dict[int, list[Message]] = {}
        for message in messages:
            reason_of = reasons.get((message.partition, message.offset)) or beyond.get((message.partition, message.offset))
            if reason_of is not None:
                at = (
                    question.reasons.index(reason_of) if isinstance(reason_of, Reason) else len(question.reasons) + _LIMITS.index(reason_of)
                )
                by_reason.setdefault(at, []).append(message)
        of_place = [_due(file_of(place), question, at, of_reason, spared) for at, of_reason in sorted(by_reason.items())]
        due += of_place
        if sum(entry.rows for entry in of_place) == len(messages):
            whole[file_of(place)] = sum(message.size_bytes for message in messages)
    return RowAnswer(
        due=tuple(due),
        whole=whole,
        next_at=min(later, default=None),
        emptied=0 if found is None else found.emptied,
        oversized=0 if found is None else found.oversized,
        unknown_times=sum(message.append_time is None for message in looked_at),
    )


def _beyond(left: list[Message], beyond: LimitQuestion, as_of: Instant) -> tuple[dict[Position, LimitReason], GroupCuts]:
    """Return the limit that each message exceeds, for messages that no rule of age removes."""
    rows = [
        RankedRow(
            partition=message.partition,
            offset=message.offset,
            append_time=message.append_time,
            size_bytes=message.size_bytes,
            key=message.key,
            lapsed=beyond.lapsed is not None and rule_holds(beyond.lapsed, message, as_of),
        )
        for message in left
        if segment_of(message) not in beyond.dead
    ]
    found = find_cuts(rows, beyond.limits)
    return {(row.partition, row.offset): reason for row in rows if (reason := found.reason(row)) is not None}, found


def _due(file: str, question: RowQuestion, at: int, messages: list[Message], spared: SparedOffsets) -> DueRows:
    """Return the due messages of one reason. The question's reasons have the first places, then come the limits."""
    name: RemovalReason
    if at < len(question.reasons):
        reason = question.reasons[at]
        name, bounds = reason.name, reason.below
        begun = {message.offset: begins for message in messages if (begins := rule_holds_from(reason.rule, message)) is not None}
    else:
        assert question.beyond is not None
        # No instant makes a log too long, only a message does. So the check itself is the instant.
        name, bounds, begun = (
            _LIMITS[at - len(question.reasons)],
            question.beyond.below,
            dict.fromkeys((m.offset for m in messages), question.as_of),
        )
    below = bounds.get(messages[0].partition, INT64_MAX)
    taken = [message for message in messages if message.offset < below]
    since = min(begun.values())
    free_since = min((begun[m.offset] for m in taken if not spared.find_spared(m.partition, m.offset, m.offset)), default=since)
    return DueRows(
        partition=messages[0].partition,
        base_offset=messages[0].segment,
        file=file,
        reason=name,
        taken=ranges_text(message.offset for message in taken),
        rows=len(taken),
        first_offset=messages[0].offset,
        last_offset=messages[-1].offset,
        held=len(messages) - len(taken),
        since=since,
        free_since=None if free_since == since else free_since,
    )


def requested_rows(version: Version, request: Request, as_of: Instant) -> RowAnswer:
    """Return the messages that a person named and that the log has."""
    match request:
        case RemoveMessages(positions=positions):
            wanted = [version.messages[position] for position in sorted(set(positions)) if position in version.messages]
        case RemoveRanges():
            wanted = [m for m in in_order(version.messages) if any(m.offset in span for span in request.of(m.partition))]
        case PurgeKey(key=key, before=before, keep=keep):
            of_key = [message for message in in_order(version.messages) if message.key == key]
            wanted = [message for message in of_key if before is None or message.offset < before]
            if keep is not None:
                kept = {partition: [m.offset for m in of_key if m.partition == partition][-keep:] for partition in version.end_offsets}
                wanted = [message for message in of_key if message.offset not in kept[message.partition]]
        case TruncateLog(partition=partition) | RemoveNullKeys(partition=partition):
            span = requested_offsets(request)
            there = [m for m in in_order(version.messages) if m.partition == partition and m.offset in span]
            wanted = [message for message in there if isinstance(request, TruncateLog) or message.key is None]
    due, whole = [], {}
    for place, messages in by_segment(wanted):
        due.append(
            DueRows(
                partition=place[0],
                base_offset=place[1],
                file=file_of(place),
                reason="purged" if isinstance(request, PurgeKey) else "removed",
                taken=ranges_text(message.offset for message in messages),
                rows=len(messages),
                first_offset=messages[0].offset,
                last_offset=messages[-1].offset,
                since=as_of,
            )
        )
        if sum(segment_of(message) == place for message in version.messages.values()) == len(messages):
            whole[file_of(place)] = sum(message.size_bytes for message in messages)
    return RowAnswer(due=tuple(due), whole=whole)


def removed_rows(messages: Iterable[Message], reason: RemovalReason) -> tuple[RemoveRows, ...]:
    """Return names for the messages, which are in order of (partition, offset)."""
    return tuple(
        RemoveRows(
            partition=place[0],
            base_offset=place[1],
            file=file_of(place),
            offsets=ranges_text(message.offset for message in of_segment),
            rows=len(of_segment),
            reason=reason,
        )
        for place, of_segment in by_segment(messages)
    )


def rows_removed_by(before: Version, after: Version, plan: Plan) -> Gone:
    """Return the messages that the staged change removes, with the reasons."""
    gone = difference(before.messages, after.messages).gone
    return [(message, action.reason) for position, message in gone.items() if (action := plan.removal_at(*position)) is not None]


def owed(log: Table[Version], removals: Iterable[int]) -> Gone:
    """Return messages that other writers removed, of keys without a live message afterwards (MRK-2)."""
    found: Gone = []
    for snapshot_id in removals:
        became = log.at(snapshot_id).messages
        live = {message.key for message in became.values() if not is_marker(message.headers)}
        gone = difference(log.at(snapshot_id - 1).messages, became).gone
        found += [(message, "removed") for message in gone.values() if message.key not in live]
    return found


def markers_of(before: Version, after: Version, gone: Gone, plan: Plan, policy: Policy) -> tuple[Marker, ...]:
    assert policy.marker_ttl_us is not None
    live = {message.key for message in after.messages.values() if message.key is not None and not is_marker(message.headers)}
    if plan.log_commit.sweep:
        live |= keys_with_markers(gone, after)
    newest: dict[int, Instant] = {}
    for message in before.messages.values():
        if message.append_time is not None:
            newest[message.partition] = max(message.append_time, newest.get(message.partition, message.append_time))
    return make_markers(gone, live, as_of=plan.as_of, marker_ttl_us=policy.marker_ttl_us, newest=newest)


def keys_with_markers(gone: Gone, log: Version) -> set[bytes]:
    """Return keys that got a marker after the removal, for another reason."""
    newest: dict[bytes, int] = {}
    for message, _ in gone:
        if message.key is not None:
            newest[message.key] = max(message.offset, newest.get(message.key, 0))
    return {m.key for m in log.messages.values() if m.key is not None and is_marker(m.headers) and m.offset > newest.get(m.key, m.offset)}


def superseded_by(made: tuple[Marker, ...], after: Version, plan: Plan) -> tuple[RemoveRows, ...]:
    """Return older markers of the same keys, which leave (MRK-5)."""
    keys = {marker.key for marker in made}
    older = [m for at, m in sorted(after.messages.items()) if m.key in keys and is_marker(m.headers) and not plan.keeps_marker(*at)]
    return removed_rows(older, "superseded")


# Undo in memory (DEL-7). The version before the plan's commit has the removed rows, and the undo copies them.


DocumentRow = TypeVar("DocumentRow", Change, SnapshotRow)
DocumentPlace = tuple[str, int, bool]
"""Document, server_seq, and True for a row that only raises an epoch."""


def named_positions(actions: Iterable[Rows]) -> set[Position]:
    return {(action.partition, offset) for action in actions for offset in offsets_of(action.offsets)}


# The log


def marker_ranges(before: Version, after: Version) -> tuple[Range, ...]:
    """Return the offsets of the markers that a commit of ours made."""
    starts = {partition: before.end_offsets.get(partition, 0) for partition in after.end_offsets}
    return tuple((partition, starts[partition], end - 1) for partition, end in sorted(after.end_offsets.items()) if end > starts[partition])


def find_returning_messages(
    before: Version,
    head: Version,
    plan: Plan,
    superseded: Sequence[RemoveRows],
    *,
    source_id: int,
    own: tuple[Range, ...],
    without: tuple[Range, ...],
) -> Returning:
    """See `ports.HistoryReader`. `before`: the version before the plan's commit."""
    older = named_positions(superseded)
    taken = {position: m for position, m in sorted(before.messages.items()) if plan.removal_at(*position) is not None or position in older}
    taken = {position: m for position, m in taken.items() if not lies_in(without, *position)}
    away = difference(taken, head.messages).gone
    standing = {segment_of(message) for message in head.messages.values()}
    rows = tuple(
        RestoreRows(
            partition=place[0],
            base_offset=place[1],
            file=file_of(place),
            offsets=ranges_text(message.offset for message in messages),
            rows=len(messages),
            size_bytes=sum(message.size_bytes for message in messages),
            standing=place in standing,
        )
        for place, messages in by_segment(away.values())
    )
    markers = removed_rows(_markers_in(head, own), "undone")
    return Returning(source_id=source_id, rows=rows, markers=markers, present=len(taken) - len(away))


def undo_effect(head: Version, plan: Plan) -> UndoEffect:
    back, marked = (len(named_positions(actions) & head.messages.keys()) for actions in (plan.log_return.back, plan.log_return.mark))
    return UndoEffect(rows=back, twice=0, markers=marked)


def log_evidence(before: Version, after: Version, source: Version, plan: Plan, own: tuple[Range, ...]) -> Mapping[str, object]:
    """Return the frames of `undo_suite`, message by message. `source`: holds the returning messages."""
    found, named, marks = (
        difference(before.messages, after.messages),
        named_positions(plan.log_return.back),
        named_positions(plan.log_return.mark),
    )
    restored = []
    for action in plan.log_return.back:
        wanted, of_segment = named_positions([action]), (action.partition, action.base_offset)
        restored.append(
            {
                "rows": len(wanted & found.came.keys()),
                "missing": len(wanted - found.came.keys()),
                "unnamed": sum(segment_of(m) == of_segment and position not in named for position, m in found.came.items()),
                "same": all(found.came.get(position) == source.messages.get(position) for position in wanted),
            }
        )
    places = {(action.partition, action.base_offset) for action in plan.log_return.back}
    elsewhere = [position for position, m in found.came.items() if segment_of(m) not in places]
    return {
        "restored": restored,
        "rows": [
            {"rows": len(messages), "unnamed": sum((m.partition, m.offset) not in marks for m in messages)}
            for _, messages in by_segment(found.gone[position] for position in sorted(found.gone))
        ],
        "twice": [],  # a version has one message at each place
        "markers_left": [{"partition": m.partition, "offset": m.offset} for m in _markers_in(after, own)],
        "difference": [{"name": f"{partition}:{offset}", "how": "differs"} for partition, offset in [*elsewhere, *found.changed]],
        "figures": [
            {
                "rows_in": len(before.messages),
                "rows_restored": len(found.came),
                "rows_removed": len(found.gone),
                "rows_kept": len(after.messages),
                "asks": len(plan.asks),
            }
        ],
    }


def _markers_in(version: Version, own: tuple[Range, ...]) -> list[Message]:
    return [m for position, m in sorted(version.messages.items()) if lies_in(own, *position) and is_marker(m.headers)]


# The compacted view


def placed(rows: Iterable[ViewRow]) -> dict[Position, ViewRow]:
    return {(row.message.partition, row.message.offset): row for row in rows}


def find_returning_view_rows(before: ViewVersion, head: ViewVersion, plan: Plan, *, source_id: int | None) -> ReturningView:
    """See `ports.ViewReader`. `before`: the view before the plan's commit."""
    taken, then = named_positions(plan.view_removal.mark), placed(before.rows)
    known = sorted(taken & then.keys())
    away = [position for position in known if position not in placed(head.rows)]
    newest = {(partition, key): offset for partition, offset in away if (key := then[partition, offset].message.key) is not None}
    rows = []
    for partition, group in groupby(away, key=lambda position: position[0]):
        offsets = [offset for _, offset in group]
        rows.append(RestoreRows(partition=partition, offsets=ranges_text(offsets), rows=len(offsets)))
    return ReturningView(source_id=source_id, rows=tuple(rows), newest=newest, gone=len(taken) - len(known))


def view_evidence(before: ViewVersion, after: ViewVersion, source: ViewVersion, plan: Plan) -> list[dict[str, object]]:
    """Return the frame `view_returns` of `undo_suite`, message by message: one row per partition of the view that differs."""
    now, then, named = placed(after.rows), placed(source.rows), named_positions(plan.view_return.back)
    found = difference(placed(before.rows), now)
    came, gone = found.came.keys(), found.gone.keys()
    changed = {*found.changed, *(place for place in came if now[place] != then.get(place))}
    keys = Counter((row.message.partition, row.message.key) for row in now.values() if not row.remembered)
    again = {place for place in came if now[place].message.key is not None and keys[place[0], now[place].message.key] > 1}

    def rows_of(places: Iterable[Position], partition: int) -> int:
        return sum(place[0] == partition for place in places)

    return [
        {
            "partition": partition,
            "rows": rows_of(came & named, partition),
            "missing": rows_of(named - came, partition),
            "unnamed": rows_of(came - named, partition),
            "changed": rows_of(changed, partition),
            "lost": rows_of(gone, partition),
            "repeated_keys": rows_of(again, partition),
        }
        for partition in sorted({place[0] for place in came | gone | changed | named})
    ]


# Documents


def documents_evidence(
    plan: Plan, changes: tuple[Changes, Changes, Changes], snapshots: tuple[Snapshots, Snapshots, Snapshots]
) -> Mapping[str, object]:
    """Return the frames of `gates.documents`, row by row.

    Args:
        plan: The undo, which names the returning rows.
        changes: The table of changes before, after, and in the version that still had the returning rows.
        snapshots: The same three versions of the table of snapshots.
    """
    named = {(one.document, seq, False) for one in plan.changes_return.documents for seq in range(one.changes_from, one.changes_before)}
    of_snapshots = {(one.document, seq, False) for one in plan.snapshots_return.documents for seq in one.snapshots}
    before, after, _ = changes
    return {
        "documents": [
            {
                **_totals("changes", changes, named),
                **_totals("snapshots", snapshots, of_snapshots),
                "holes": sum(_has_hole(before.get(d, ()), after.get(d, ())) for d in {one.document for one in plan.documents_back}),
                "epochs_wrong": sum(
                    epoch_of(snapshots[0].get(document, ())) != epoch_of(snapshots[1].get(document, ()))
                    for document in snapshots[0].keys() | snapshots[1].keys()
                ),
            }
        ],
        "figures": [
            {
                "rows_in": sum(map(len, before.values())),
                "rows_restored": len(difference(dict(_documents_placed(before)), dict(_documents_placed(after))).came),
                "rows_kept": sum(map(len, after.values())),
                "asks": len(plan.asks),
            }
        ],
    }


def _totals(table: str, versions: Sequence[Mapping[str, tuple[DocumentRow, ...]]], named: set[DocumentPlace]) -> dict[str, int]:
    (placed_before, was), (placed_after, now), (_, then) = ((rows := _documents_placed(version), dict(rows)) for version in versions)
    found = difference(was, now)
    return {
        f"{table}_back": len(found.came.keys() & named),
        f"{table}_missing": len(named - found.came.keys()),
        f"{table}_unnamed": len(found.came.keys() - named),
        f"{table}_changed": sum(row != then.get(place) for place, row in found.came.items()) + len(found.changed),
        f"{table}_lost": len(found.gone),
        # Two rows that only raise an epoch may have the same place, from before.
        f"{table}_twice": len(placed_after) - len(now) - (len(placed_before) - len(was)),
    }


def _documents_placed(table: Mapping[str, tuple[DocumentRow, ...]]) -> list[tuple[DocumentPlace, DocumentRow]]:
    return [
        ((document, row.server_seq, isinstance(row, SnapshotRow) and row.state is None), row)
        for document, rows in table.items()
        for row in rows
    ]


def _has_hole(before: tuple[Change, ...], after: tuple[Change, ...]) -> bool:
    """Return True if the changes have a gap, or do not reach the document's newest change."""
    seqs = [change.server_seq for change in after]
    return seqs != list(range(seqs[0], seqs[0] + len(seqs))) or seqs[-1:] != [change.server_seq for change in before[-1:]]
