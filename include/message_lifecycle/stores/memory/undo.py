"""Taking a plan back in memory: what it took is in the version before its commit, row by row, and comes back as a copy (DEL-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from message_lifecycle.model.change import RemoveRows, RestoreRows, Rows
from message_lifecycle.model.document import Change
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import offsets_of, ranges_text
from message_lifecycle.model.undo import Effect, Range, Returning, ReturningView, lies_in
from message_lifecycle.model.view import ViewRow
from message_lifecycle.stores.memory.log import Position, Version, by_segment, file_of, segment_of
from message_lifecycle.stores.memory.rows import removed_rows
from message_lifecycle.stores.memory.table import Changes, SnapshotRow, Snapshots, ViewVersion, difference, epoch_of

DocumentRow = TypeVar("DocumentRow", Change, SnapshotRow)
DocumentPlace = tuple[str, int, bool]
"""Document, server_seq, and whether it is a row that only raises an epoch."""


def named_by(actions: Iterable[Rows]) -> set[Position]:
    return {(action.partition, offset) for action in actions for offset in offsets_of(action.offsets)}


# Of the log


def given(before: Version, after: Version) -> tuple[Range, ...]:
    """Offsets that a commit of ours has given: those of its markers."""
    starts = {partition: before.end_offsets.get(partition, 0) for partition in after.end_offsets}
    return tuple((partition, starts[partition], end - 1) for partition, end in sorted(after.end_offsets.items()) if end > starts[partition])


def returning(
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
    older = named_by(superseded)
    taken = {position: m for position, m in sorted(before.messages.items()) if plan.taking(*position) is not None or position in older}
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


def returned(head: Version, plan: Plan) -> Effect:
    back, marked = (len(named_by(actions) & head.messages.keys()) for actions in (plan.on_log.back, plan.on_log.mark))
    return Effect(rows=back, twice=0, markers=marked)


def log_evidence(before: Version, after: Version, source: Version | None, plan: Plan, own: tuple[Range, ...]) -> Mapping[str, object]:
    """The frames of `undo_suite`, message by message. `source`: what comes back, where anything does."""
    found, named, marks = difference(before.messages, after.messages), named_by(plan.on_log.back), named_by(plan.on_log.mark)
    restored = []
    for action in plan.on_log.back:
        wanted, of_segment = named_by([action]), (action.partition, action.base_offset)
        restored.append(
            {
                "rows": len(wanted & found.came.keys()),
                "missing": len(wanted - found.came.keys()),
                "unnamed": sum(segment_of(m) == of_segment and position not in named for position, m in found.came.items()),
                "same": source is not None and all(found.came.get(position) == source.messages.get(position) for position in wanted),
            }
        )
    places = {(action.partition, action.base_offset) for action in plan.on_log.back}
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


# Of the compacted view


def placed(rows: Iterable[ViewRow]) -> dict[Position, ViewRow]:
    return {(row.message.partition, row.message.offset): row for row in rows}


def returning_view(before: ViewVersion, head: ViewVersion, plan: Plan, *, source_id: int | None) -> ReturningView:
    """See `ports.ViewReader`. `before`: the view before the plan's commit."""
    taken, then = named_by(plan.on_view.mark), placed(before.rows)
    known = sorted(taken & then.keys())
    away = [position for position in known if position not in placed(head.rows)]
    newest = {(partition, key): offset for partition, offset in away if (key := then[partition, offset].message.key) is not None}
    rows = []
    for partition, group in groupby(away, key=lambda position: position[0]):
        offsets = [offset for _, offset in group]
        rows.append(RestoreRows(partition=partition, offsets=ranges_text(offsets), rows=len(offsets)))
    return ReturningView(source_id=source_id, rows=tuple(rows), newest=newest, gone=len(taken) - len(known))


def view_evidence(before: ViewVersion, after: ViewVersion, source: ViewVersion, plan: Plan) -> list[dict[str, object]]:
    """The frame `view_returns` of `undo_suite`, message by message: one row per partition of the view that differs."""
    now, then, named = placed(after.rows), placed(source.rows), named_by(plan.on_view.back)
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


# Of documents


def documents_evidence(
    plan: Plan, changes: tuple[Changes, Changes, Changes], snapshots: tuple[Snapshots, Snapshots, Snapshots]
) -> Mapping[str, object]:
    """The frames of `gates.documents`, row by row. Each table: before, after, and as it was when it still had what comes back."""
    named = {(one.document, seq, False) for one in plan.on_changes.documents_back for seq in range(one.changes_from, one.changes_before)}
    of_snapshots = {(one.document, seq, False) for one in plan.on_snapshots.documents_back for seq in one.snapshots}
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
        # Two rows that only raise an epoch may stand at one place, from before.
        f"{table}_twice": len(placed_after) - len(now) - (len(placed_before) - len(was)),
    }


def _documents_placed(table: Mapping[str, tuple[DocumentRow, ...]]) -> list[tuple[DocumentPlace, DocumentRow]]:
    return [
        ((document, row.server_seq, isinstance(row, SnapshotRow) and row.state is None), row)
        for document, rows in table.items()
        for row in rows
    ]


def _has_hole(before: tuple[Change, ...], after: tuple[Change, ...]) -> bool:
    """What is there reaches without a gap up to where the document was."""
    seqs = [change.server_seq for change in after]
    return seqs != list(range(seqs[0], seqs[0] + len(seqs))) or seqs[-1:] != [change.server_seq for change in before[-1:]]
