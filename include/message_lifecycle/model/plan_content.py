"""What a plan does to what a topic holds, whatever store has it.

A plan's id is a hash of all of it, with ids of tables and snapshots and names of files. Its content is what people mean by "the same plan":
for equal input it is equal in memory, on a disk and behind a catalog.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from message_lifecycle.model.change import ByKind, Commit, Rewrite
from message_lifecycle.model.message import ranges_of, runs_text
from message_lifecycle.model.plan import Plan

Deed = tuple[str, int, str]
"""Table, partition, and why a message goes, or that it comes back."""
Part = tuple[str, object]


def content_digest(plan: Plan) -> str:
    """Over `content`, as canonical JSON."""
    return hashlib.sha256(json.dumps(content(plan), sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def content(plan: Plan) -> Mapping[str, object]:
    """Operation, as-of, settings, partition and offset of all that goes or comes back with the reason, documents, and counts of messages.
    Neither ids, snapshots and names of files, nor bytes, which stores count each in its own way."""
    found: dict[str, list[object]] = {}
    rows: Counter[str] = Counter()
    moved: dict[Deed, list[range]] = {}
    kinds: ByKind[None] = ByKind(
        commit=lambda commit: _take(commit, found, moved, rows),
        rewrite=lambda rewrite: _erase(rewrite, moved, rows),
        forget=lambda forget: found.setdefault("forgets", []).append(forget.table),
        move=lambda move: found.setdefault("moves", []).extend([move.to, table.table, table.rows] for table in move.tables),
    )
    for change in plan.changes:
        change.told(kinds)
    return {
        "operation": plan.operation,
        "as_of": plan.as_of,
        "settings": dict(plan.policy),
        "tombstones_until": None if plan.view is None else plan.view.tombstones_until,
        "rows_in": plan.expected.rows_in,
        "removed": sorted(plan.expected.removed),
        "held": sorted([held.holder, held.partition, held.first_base, held.last_offset, held.rows] for held in plan.held),
        "offsets": [[*deed, runs_text(_joined(runs))] for deed, runs in sorted(moved.items())],
        "rows": rows,
        **{name: sorted(values, key=str) for name, values in found.items()},
    }


def _take(commit: Commit, found: dict[str, list[object]], moved: dict[Deed, list[range]], rows: Counter[str]) -> None:
    for run in commit.drop:
        moved.setdefault((commit.table, run.partition, run.reason), []).append(range(run.first_base, run.last_offset + 1))
    for marked in commit.mark:
        moved.setdefault((commit.table, marked.partition, marked.reason), []).extend(ranges_of(marked.offsets))
    for back in commit.back:
        moved.setdefault((commit.table, back.partition, "back"), []).extend(ranges_of(back.offsets))
    rows["refused, that go"] += sum(file.rows for file in commit.files)
    rows["refused, that come back"] += sum(file.rows for file in commit.files_back)
    for name, values in _parts(commit):
        found.setdefault(f"{commit.table}: {name}", []).append(values)


def _parts(commit: Commit) -> Iterator[Part]:
    yield from (("seals", [one.partition, one.base_offset, one.next_offset]) for one in commit.seal)
    yield from (("compacts", [one.partition, one.after, one.through, one.rows]) for one in commit.compact)
    yield from (
        (
            "documents",
            [one.document, one.seq, one.after, one.snapshot, one.epoch, one.dropped, one.purge_from, one.purge_before, one.reason],
        )
        for one in commit.documents
    )
    yield from (("documents back", [one.document, one.changes_from, one.changes_before, one.snapshots]) for one in commit.documents_back)
    yield from (("keeps", commit.keep) for _ in range(commit.keep is not None))


def _erase(rewrite: Rewrite, moved: dict[Deed, list[range]], rows: Counter[str]) -> None:
    for erased in rewrite.rows:
        moved.setdefault((rewrite.table, erased.partition, erased.reason), []).extend(ranges_of(erased.offsets))
        # Rows that are no messages have no offsets, and their number is all that tells of them.
        rows[f"erased from the {rewrite.table}"] += 0 if erased.offsets else erased.rows


def _joined(runs: Iterable[range]) -> Iterator[range]:
    """In order, none meeting the next."""
    first = last = None
    for run in sorted(runs, key=lambda run: run.start):
        if last is not None and run.start <= last:
            last = max(last, run.stop)
            continue
        if first is not None and last is not None:
            yield range(first, last)
        first, last = run.start, run.stop
    if first is not None and last is not None:
        yield range(first, last)
