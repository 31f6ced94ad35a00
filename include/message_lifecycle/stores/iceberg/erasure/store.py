"""Erasure of a key out of a topic's tables: `ports.Eraser`, and what the gate judges of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from message_lifecycle.model.change import EraseRows, Rewrite
from message_lifecycle.model.erasure import TABLE_KINDS, ErasedTable, KeyInTable, Matches, TableKind
from message_lifecycle.model.errors import PlanConflict, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg import catalog
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.data_files import within
from message_lifecycle.stores.iceberg.data_rows import Vectors
from message_lifecycle.stores.iceberg.erasure import MAIN, Heads, UndoWindow, ancestors, search, with_loose
from message_lifecycle.stores.iceberg.erasure.metadata import snapshot_id_of
from message_lifecycle.stores.iceberg.erasure.publish import (
    TableErasure,
    document_at,
    drop_stage,
    forget,
    is_done,
    load,
    load_with_going,
    metadata_name,
    read_stage,
    stage_table,
)
from message_lifecycle.stores.iceberg.erasure.rewrite import by_position, names_of, opened, rows_with
from message_lifecycle.stores.iceberg.fence import properties
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from message_lifecycle.stores.iceberg.pointers import Place, reaching_catalog
from message_lifecycle.stores.iceberg.read import published_by
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

# What the gate judges of a staged erasure, read as any reader would: PyIceberg plans the staged metadata's files, and each is searched
# and compared again, with the table as it was when it was staged. What has come since is looked into by whoever publishes.
#
# Frames: `rewritten`, one row per file that is written again; `tables`, one row per table; `figures`, one row.


Row = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvidence:
    rewritten: tuple[Row, ...]
    table: Row
    rows_in: int
    bytes_in: int


def of_table(
    catalog: Catalog, place: Place, io: FileIO, plan: Plan, action: Rewrite, window: UndoWindow, matches: Matches
) -> TableEvidence:
    """Raises PlanConflict where what was staged, or what it was staged on, is not there (any more)."""
    document = load(catalog, place, io)
    staged = read_stage(io, document, plan.plan_id)
    if staged is None or not io.new_input(staged.base).exists():
        raise PlanConflict(plan.plan_id, "what was staged is gone")
    before = _table(catalog, staged.base, io)
    after = _table(catalog, f"{document['location']}/{metadata_name(plan.plan_id)}", io)
    prefix = location_prefix(str(document["location"]))
    named = {absolute(prefix, row.file): row for row in action.rows}
    written = {file.old: file.path for file in staged.files}
    rewritten = tuple(_rewritten(io, path, written.get(path), action.table, row) for path, row in named.items())
    heads = Heads.of(document_at(io, staged.base), window)
    # Counted where it was planned: an append may have come before it was staged (DEL-4).
    planned = dict(action.refs).get(MAIN)
    base = before.snapshot_by_id(planned) if planned is not None else None
    tasks = [] if base is None else list(before.scan(snapshot_id=base.snapshot_id).plan_files())
    return TableEvidence(
        rewritten=rewritten,
        table=_differences(io, before, after, heads, named, written, matches, plan, action.table),
        rows_in=sum(task.file.record_count for task in tasks)
        - (0 if base is None else sum(len(Vectors(before, base)[task.file.file_path]) for task in tasks)),
        bytes_in=sum(task.file.file_size_in_bytes for task in tasks),
    )


def joined(plan: Plan, found: Iterable[TableEvidence]) -> Mapping[str, object]:
    """The frames, of all tables. Figures are of the log alone, which comes last."""
    parts = list(found)
    log = parts[-1] if parts else None
    rows_in = plan.expected.rows_in if log is None else log.rows_in
    removed = plan.expected.removed_rows
    bytes_in = 0 if log is None else log.bytes_in
    figures = {
        "rows_in": rows_in,
        "rows_removed": removed,
        "rows_kept": rows_in - removed,
        "bytes_in": bytes_in,
        "asks": len(plan.asks),
    }
    return {
        "rewritten": _frame([row for part in parts for row in part.rewritten], ("rows", "unnamed", "left", "changed", "found")),
        "tables": _frame([part.table for part in parts], ("found", "files_differ", "marks_differ", "refs_differ", "history", "searched")),
        "figures": pa.table({name: pa.array([value], pa.int64()) for name, value in figures.items()}),
    }


def _frame(rows: list[Row], columns: tuple[str, ...]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], pa.int64()) for name in columns})


def _table(catalog: Catalog, metadata_location: str, io: FileIO) -> Table:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import StaticTable

    return StaticTable(
        identifier=("static", metadata_location),
        metadata_location=metadata_location,
        metadata=FromInputFile.table_metadata(io.new_input(metadata_location)),
        io=io,
        catalog=NoopCatalog(catalog.name),
    )


def _rewritten(io: FileIO, old: str, new: str | None, kind: TableKind, row: EraseRows) -> Row:
    """Compared by the offsets that the plan names: another way than that by which it was written."""
    with opened(io, old) as file:
        before, names, moves = file.read(), names_of(file, kind), by_position(file, kind)
    gone = within(names, row.offsets)
    kept = before.filter(pa.array(~gone))
    if new is None:
        return {"rows": len(before), "unnamed": len(kept), "left": 0, "changed": 0, "found": 0}
    with opened(io, new) as file:
        after, left = file.read(), names_of(file, kind)
    if moves:
        # Positions are not the same any more: how many there are is what can be compared, and whether they are the same rows.
        unnamed, still = max(0, len(kept) - len(after)), max(0, len(after) - len(kept))
    else:
        unnamed, still = int((~np.isin(names[~gone], left)).sum()), int(np.isin(names[gone], left).sum())
    return {"rows": len(before) - len(after), "unnamed": unnamed, "left": still, "changed": int(not _same(kept, after)), "found": 0}


def _same(kept: pa.Table, after: pa.Table) -> bool:
    """Column by column, in order; nulls apart from empty values, and NaN as itself."""
    return bool(kept.schema.equals(after.schema) and all(_text(kept[name]) == _text(after[name]) for name in kept.column_names))


def _text(column: pa.ChunkedArray) -> list[str] | list[Any]:
    if pa.types.is_floating(column.type):
        return [repr(value) for value in column.to_pylist()]
    return list(column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist())


def _differences(
    io: FileIO,
    before: Table,
    after: Table,
    heads: Heads,
    named: Mapping[str, EraseRows],
    written: Mapping[str, str | None],
    matches: Matches,
    plan: Plan,
    kind: TableKind,
) -> Row:
    expected = {**heads.refs, **{undo_ref(plan_id): at for plan_id, at in heads.undo.items()}}
    refs = after.metadata.refs
    files_differ = marks_differ = 0
    strays = set(refs) ^ set(expected)
    searched: dict[str, bool] = {}
    for ref, snapshot_id in expected.items():
        old = before.snapshot_by_id(snapshot_id)
        new = after.snapshot_by_id(refs[ref].snapshot_id) if ref in refs else None
        if old is None or new is None:
            strays.add(ref)  # nothing of it was looked at, so it passes for nothing (DEL-2)
            continue
        had = {task.file.file_path for task in before.scan(snapshot_id=old.snapshot_id).plan_files()}
        has = {task.file.file_path for task in after.scan(snapshot_id=new.snapshot_id).plan_files()}
        wanted = {path for file in had if (path := written.get(file, file)) is not None}
        files_differ += len(wanted ^ has)
        was, now = Vectors(before, old), Vectors(after, new)
        for path in had:
            if path not in named:
                marks_differ += int(not np.array_equal(was[path], now[path]))
            elif (moved := written.get(path)) is not None:
                marks_differ += int(_marked(io, path, was, kind, named[path].offsets) != _marked(io, moved, now, kind, ""))
        for path in has - searched.keys():
            searched[path] = bool(len(rows_with(io, path, matches, kind)))
    return {
        "found": sum(searched.values()),
        "files_differ": files_differ,
        "marks_differ": marks_differ,
        "refs_differ": len(strays) + int(refs[MAIN].snapshot_id != snapshot_id_of(plan.plan_id, MAIN)),
        "history": history_left(after),
        "searched": len(searched),
    }


def history_left(table: Table) -> int:
    """Snapshots beside those of branches and tags, but for what carries the words of other writers, and names no file."""
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return sum(snapshot.snapshot_id not in heads and bool(snapshot.manifests(table.io)) for snapshot in table.snapshots())


def _marked(io: FileIO, path: str, vectors: Vectors, kind: TableKind, without: str) -> list[int]:
    """Names of the rows that a vector marks, but for those that go; of rows named by position, where they lie when those have gone."""
    marked = vectors[path]
    if not len(marked):
        return []
    with opened(io, path) as file:
        names, moves = names_of(file, kind), by_position(file, kind)
    gone = within(names, without) if without else np.zeros(len(names), np.bool_)
    left = marked[~gone[marked]]
    return sorted((left - np.cumsum(gone)[left] if moves else names[left]).tolist())


# Erasure of a key out of a topic's tables: `ports.Eraser`. The metadata are staged and committed by Iceberg's library; all else needs no JVM.
#
# The log (of a topic of documents: the changes) and what lies beside it are tables of their own, with one commit each. The view's comes
# first (PRG-1); the log's comes last and carries the plan, so that a plan is published when all are done.


_KINDS = sorted((kind for kind, traits in TABLE_KINDS.items() if not traits.by_setting), key=lambda kind: not TABLE_KINDS[kind].beside)
"""What lies beside the topic's own table, and that; in the order of their commits."""


class IcebergEraser(ChangeStore):
    """`undoable`: operations whose plans can be taken back. `steps` is told the name of each step as it is reached (`after_stage`, `before_commit`, `inside_commit`, `after_commit`,
    `before_delete`, `inside_delete`, `after_delete`), for each table."""

    def __init__(
        self, tables: Tables | None = None, *, undoable: Callable[[], Collection[str]], steps: Callable[[str], None] | None = None
    ) -> None:
        self._tables, self._undoable = tables or Tables(), undoable
        self._steps = steps or (lambda _: None)

    def find_key(
        self, name: TopicName, matches: Matches, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[KeyInTable]:
        window = UndoWindow.of(policy, as_of, undoable, self._undoable())
        with reaching_catalog():
            # Files of another table in there would look like what dead writers left.
            catalog.check_alone(self._tables, name)
            found = [
                with_loose(searched.summary, searched.loose, now_ms=time.time_ns() // 1_000_000)
                for kind, io, document, going in self._documents(name)
                for searched in (search(io, document, kind, matches, window, going=going),)
            ]
        return tuple(reversed(found))

    def erased_tables(
        self, plan: Plan, matches: Matches, went: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Sequence[ErasedTable]:
        found = []
        with reaching_catalog():
            for action in plan.rewrites:
                try:
                    part = self._part(plan, action)
                except UnknownTopic:
                    if not TABLE_KINDS[action.table].beside:
                        raise
                    continue  # dropped since; what else the topic has is looked into all the same
                part.finish()
                document, going = load_with_going(part.catalog, part.place, part.io)
                after = search(part.io, document, action.table, matches, part.window, going=going)
                done = next((one for one in document["snapshots"] if one["summary"].get(PLAN_ID) == plan.plan_id), None)
                committed_ms = None if done is None else int(done["timestamp-ms"])
                # What a writer has written since and not committed yet, is no part of what was there.
                left = [file for file in after.loose if committed_ms is None or file.changed_at_ms <= committed_ms]
                found.append(
                    ErasedTable(
                        table=action.table,
                        table_uuid=action.table_uuid,
                        snapshots=after.summary.snapshots,
                        files_searched=after.searched,
                        files_found=max(len(after.summary.files) + len(left), int(not after.summary.clean)),
                        gone=tuple(going),
                        committed_at=None if committed_ms is None else committed_ms * 1000,
                        there=tuple(
                            name for name in went.get(action.table, ()) if part.io.new_input(f"{document['location']}/{name}").exists()
                        ),
                    )
                )
        return found

    def stage(self, plan: Plan, given: Given = NOTHING_GIVEN) -> Staged:
        matches = given.matches()
        with reaching_catalog():
            for action in plan.rewrites:
                place, io = self._place(plan.topic, action.table)
                stage_table(self._tables.catalog, place, io, plan, action, self._window(plan, action), matches)
        self._steps("after_stage")
        # The snapshot that the log's commit will make: the same whoever makes it.
        made = snapshot_id_of(plan.plan_id, MAIN) if plan.changes else plan.requirements.snapshot_id
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=made)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        frames, matches = [], given.matches()
        with reaching_catalog():
            for action in plan.rewrites:
                place, io = self._place(plan.topic, action.table)
                frames.append(of_table(self._tables.catalog, place, io, plan, action, self._window(plan, action), matches))
        return joined(plan, frames)

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan, matches, ledger = verdict.plan, given.matches(), given.ledger()
        with reaching_catalog():
            parts = [self._part(plan, action) for action in plan.rewrites]
            for part in parts:
                document = load(part.catalog, part.place, part.io)
                if not is_done(document, plan.plan_id):
                    # One that died before it had ended comes first: its list makes room for ours.
                    part.finish()
                    forget(part.catalog, part.place, part.io)
                part.commit(properties(verdict, ledger), matches)
            for part in parts:
                part.finish()
        done = self.published(plan)
        if done is None:
            raise PlanConflict(plan.plan_id, "its commit was taken back by another")
        return done

    def has_begun(self, plan: Plan) -> bool:
        with reaching_catalog():
            places = (self._place(plan.topic, action.table) for action in plan.rewrites)
            return any(is_done(load(self._tables.catalog, *place), plan.plan_id) for place in places)

    def published(self, plan: Plan) -> Published | None:
        with reaching_catalog():
            place, io = self._place(plan.topic, "log")
            document = load(self._tables.catalog, place, io)
        for snapshot in ancestors(document, document["refs"][MAIN]["snapshot-id"]) if MAIN in document.get("refs", {}) else ():
            if snapshot["summary"].get(PLAN_ID) == plan.plan_id:
                return published_by(plan.plan_id, int(snapshot["snapshot-id"]), snapshot["summary"])
        return None

    def discard(self, plan: Plan) -> None:
        with reaching_catalog():
            for action in plan.rewrites:
                try:
                    place, io = self._place(plan.topic, action.table)
                except UnknownTopic:
                    continue  # the table was dropped meanwhile, and all that lay in it
                document = load(self._tables.catalog, place, io)
                published = is_done(document, plan.plan_id)
                if published:
                    self._part(plan, action).finish()
                    forget(self._tables.catalog, place, io)
                    document = load(self._tables.catalog, place, io)
                drop_stage(io, document, plan.plan_id, keep_files=published)

    def _documents(self, name: TopicName) -> Iterator[tuple[TableKind, FileIO, Mapping[str, Any], Collection[str]]]:
        for kind in _KINDS:
            try:
                place, io = self._place(name, kind)
            except UnknownTopic:
                if not TABLE_KINDS[kind].beside:
                    raise
                continue
            yield kind, io, *load_with_going(self._tables.catalog, place, io)

    def _place(self, name: TopicName, kind: TableKind) -> tuple[Place, FileIO]:
        beside = TABLE_KINDS[kind].beside
        return (name.namespace, name.table(beside)), self._tables.load(name, kind=beside).io

    def _window(self, plan: Plan, action: Rewrite) -> UndoWindow:
        return UndoWindow.planned(plan, action, self._undoable())

    def _part(self, plan: Plan, action: Rewrite) -> TableErasure:
        place, io = self._place(plan.topic, action.table)
        document = load(self._tables.catalog, place, io)
        prefix = location_prefix(str(document["location"]))
        staged = read_stage(io, document, plan.plan_id)
        held = {absolute(prefix, row.file) for row in action.rows}
        return TableErasure(
            catalog=self._tables.catalog,
            place=place,
            io=io,
            plan_id=plan.plan_id,
            window=self._window(plan, action),
            action=action,
            files={} if staged is None else {file.old: file for file in staged.files},
            held=frozenset(held | {absolute(prefix, name) for name in action.files}),
            memories=0 if staged is None else staged.memories,
            steps=self._steps,
        )
