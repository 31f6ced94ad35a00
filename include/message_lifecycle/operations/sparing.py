"""Single messages that a legal hold or an undone plan keeps, taken out of what a store was asked for (DEL-7, DEL-8)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from message_lifecycle.model.errors import HeldByLegalHold
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.hold import Spared, SparedOffsets, spared_text
from message_lifecycle.model.rows import DueRows, RowAnswer, offsets_of, ranges_of, ranges_text
from message_lifecycle.model.settings import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SparedRows:
    """`rows` messages of what was due of one file, which stay because of `by`."""

    entry: DueRows
    by: Spared
    rows: int


def spare(answer: RowAnswer, spared: SparedOffsets) -> tuple[RowAnswer, tuple[SparedRows, ...]]:
    """The answer without what is spared, which it only counts; and that."""
    if not spared:
        return answer, ()
    due: list[DueRows] = []
    kept: list[SparedRows] = []
    for entry in answer.due:
        free, held = spared.split(entry.partition, entry.taken)
        mine = [SparedRows(entry=entry, by=by, rows=_count(text)) for by, text in held]
        rows = sum(found.rows for found in mine)
        left = replace(entry, taken=free, rows=entry.rows - rows, spared=rows, since=entry.free_since or entry.since)
        due.append(left if mine else entry)
        kept += mine
    return replace(answer, due=tuple(due)), tuple(kept)


def refuse_held(facts: Facts, found: RowAnswer, of_view: Mapping[int, Collection[int]]) -> None:
    """A request that names a held message among others is refused whole, in the log as in the compacted view (`of_view`: offsets); what an
    undone plan keeps may go by a person's word. Raises HeldByLegalHold (DEL-8)."""
    holds = SparedOffsets(spared for spared in facts.spared if spared.holder == "hold")
    texts = [(entry.partition, entry.taken) for entry in found.due]
    texts += [(partition, ranges_text(sorted(offsets))) for partition, offsets in of_view.items()]
    held: set[tuple[int, int]] = set()
    told: set[str] = set()
    for partition, text in texts:
        for by, kept in holds.split(partition, text)[1]:
            told.add(by.detail)
            held.update((partition, offset) for offset in offsets_of(kept))
    if held:
        raise HeldByLegalHold(str(facts.log.topic), len(held), sorted(told))


def markers_spare(facts: Facts, policy: Policy) -> tuple[tuple[int, str], ...]:
    """`Plan.spared`: only who makes markers replaces older ones."""
    return () if policy.marker_ttl_us is None else spared_text(facts.spared, facts.log.end_offsets)


def _count(text: str) -> int:
    return sum(len(run) for run in ranges_of(text))
