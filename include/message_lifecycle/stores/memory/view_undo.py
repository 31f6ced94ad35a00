"""Taking back in memory what a plan took from a compacted view: it is in the view before that plan's commit (DEL-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from message_lifecycle.model.change import RestoreRows
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import offsets_of, ranges_text
from message_lifecycle.model.undo import ReturningView
from message_lifecycle.model.view import ViewRow
from message_lifecycle.stores.memory.log import Position
from message_lifecycle.stores.memory.view_log import ViewCommit

Rows = Mapping[Position, ViewRow]


def returning(before: Rows, head: Rows, plan: Plan, *, source_id: int) -> ReturningView:
    """See `ports.ViewReader`. `before`: the view before the plan's commit."""
    taken = sorted((action.partition, offset) for action in plan.on_view.mark for offset in offsets_of(action.offsets))
    known = [position for position in taken if position in before]
    away = [position for position in known if position not in head]
    newest: dict[tuple[int, bytes], int] = {}
    for partition, offset in away:
        key = before[partition, offset].message.key
        if key is not None:
            newest[partition, key] = offset
    rows = []
    for partition, group in groupby(away, key=lambda position: position[0]):
        offsets = [offset for _, offset in group]
        rows.append(RestoreRows(partition=partition, offsets=ranges_text(offsets), rows=len(offsets)))
    return ReturningView(source_id=source_id, rows=tuple(rows), newest=newest, gone=len(taken) - len(known))


def source_of(commits: Sequence[ViewCommit], plan: Plan) -> ViewCommit:
    """The version that holds what comes back."""
    assert plan.on_view.source_id is not None, "what comes back to the view says where it lies"
    return commits[plan.on_view.source_id]


def restored(commits: Sequence[ViewCommit], before: Iterable[ViewRow], plan: Plan) -> list[ViewRow]:
    """The view with what the plan names, in order of (partition, offset)."""
    rows, then = {_place(row): row for row in before}, source_of(commits, plan)
    for action in plan.on_view.back:
        for offset in offsets_of(action.offsets):
            rows[action.partition, offset] = then.rows[action.partition, offset]
    return [rows[position] for position in sorted(rows)]


def return_evidence(before: Iterable[ViewRow], after: Iterable[ViewRow], source: Rows, plan: Plan) -> list[dict[str, object]]:
    """The frame `view_returns` of `undo_suite`, message by message: one row per partition of the view that differs."""
    was, now = {_place(row): row for row in before}, {_place(row): row for row in after}
    named = {(action.partition, offset) for action in plan.on_view.back for offset in offsets_of(action.offsets)}
    came, gone = now.keys() - was.keys(), was.keys() - now.keys()
    changed = {place for place in came if now[place] != source.get(place)}
    changed |= {place for place in was.keys() & now.keys() if was[place] != now[place]}
    keys = Counter((row.message.partition, row.message.key) for row in now.values() if not row.remembered)
    again = {place for place in came if now[place].message.key is not None and keys[place[0], now[place].message.key] > 1}
    return [
        {
            "partition": partition,
            "rows": sum(place[0] == partition for place in came & named),
            "missing": sum(place[0] == partition for place in named - came),
            "unnamed": sum(place[0] == partition for place in came - named),
            "changed": sum(place[0] == partition for place in changed),
            "lost": sum(place[0] == partition for place in gone),
            "repeated_keys": sum(place[0] == partition for place in again),
        }
        for partition in sorted({place[0] for place in came | gone | changed | named})
    ]


def _place(row: ViewRow) -> Position:
    return row.message.partition, row.message.offset
