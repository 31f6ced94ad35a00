"""The Iceberg implementation of `ports.Eraser`. Iceberg's library stages and commits the metadata; everything else needs no JVM.

The log (for a topic of documents: the changes) and the tables next to it get one commit each. The view's commit comes first (PRG-1). The
log's commit comes last and carries the plan, so a plan counts as published only when all tables are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from message_lifecycle.model.change import Rewrite
from message_lifecycle.model.erasure import TABLE_KINDS, ErasedTable, KeyMatch, KeySearchResult, TableKind
from message_lifecycle.model.errors import PlanConflict, UnknownTopic
from message_lifecycle.model.in_values import Needle, ValuePlace
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.iceberg import catalog
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import Engine, engine_of_process
from message_lifecycle.stores.iceberg.erasure.evidence import joined, of_table
from message_lifecycle.stores.iceberg.erasure.in_values import ValueRowFinder, places_of
from message_lifecycle.stores.iceberg.erasure.looking import Looks, RowFinder
from message_lifecycle.stores.iceberg.erasure.metadata import snapshot_id_of
from message_lifecycle.stores.iceberg.erasure.publish import (
    TableErasure,
    delete_unreachable_list,
    drop_stage,
    is_done,
    load,
    load_with_unreachable_files,
    read_stage,
    stage_table,
)
from message_lifecycle.stores.iceberg.erasure.rewrite import KeyRowFinder
from message_lifecycle.stores.iceberg.erasure.search import MAIN, UndoWindow, ancestors, search, with_loose
from message_lifecycle.stores.iceberg.fence import properties
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.read import published_from_summary
from message_lifecycle.stores.iceberg.table_files import CLOCKS_DIFFER_MS, kept_versions
from message_lifecycle.stores.iceberg.table_folder import Metadata, absolute, location_prefix
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_KINDS = sorted((kind for kind, traits in TABLE_KINDS.items() if not traits.by_setting), key=lambda kind: not TABLE_KINDS[kind].beside)
"""The tables next to the topic's own table, then that table: the order of their commits."""


class IcebergEraser(WithNamedErrors, ChangeStore):
    """Erases keys from Iceberg tables.

    Args:
        undoable: Operations whose plans can be undone.
        engine: Runs the tasks that search the tables.
        steps: Called for each table with the name of each step: `after_stage`, `before_commit`, `inside_commit`, `after_commit`,
            `before_delete`, `inside_delete`, `after_delete`.
    """

    def __init__(
        self,
        tables: Tables | None = None,
        *,
        undoable: Callable[[], Collection[str]],
        engine: Callable[[], Engine] = engine_of_process,
        steps: Callable[[str], None] | None = None,
    ) -> None:
        self._tables, self._undoable, self._engine = tables or Tables(), undoable, engine
        self._steps = steps or (lambda _: None)

    def find_key(
        self, name: TopicName, matches: KeyMatch, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[KeySearchResult]:
        window = UndoWindow.of(policy, as_of, undoable, self._undoable())
        # Files of another table in the same folder would look like leftovers of dead writers.
        catalog.check_no_shared_folders(self._tables, name, by_names=True)
        found = [
            with_loose(searched.summary, searched.loose, now_ms=time.time_ns() // 1_000_000)
            for kind, io, document, going in self._documents(name)
            for searched in (search(self._looks(name, io, document, kind, KeyRowFinder(matches)), document, window, going=going),)
        ]
        return tuple(reversed(found))

    def find_in_values(
        self, name: TopicName, needle: Needle, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[ValuePlace]:
        window = UndoWindow.of(policy, as_of, undoable, self._undoable())
        places: list[ValuePlace] = []
        for kind, io, document, going in self._documents(name):
            looks = self._looks(name, io, document, kind, ValueRowFinder(needle))
            found = search(looks, document, window, going=going, with_left=False)
            places = [*places_of(io, document, kind, found), *places]
        return places

    def erased_tables(
        self, plan: Plan, matches: KeyMatch, went: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Sequence[ErasedTable]:
        found = []
        for action in plan.rewrites:
            try:
                part = self._part(plan, action)
            except UnknownTopic:
                if not TABLE_KINDS[action.table].beside:
                    raise
                continue  # the table was dropped since the plan; search the topic's other tables
            part.finish()
            document, going = load_with_unreachable_files(part.catalog, part.place, part.io)
            after = search(
                self._looks(plan.topic, part.io, document, action.table, KeyRowFinder(matches)), document, part.window, going=going
            )
            done = next((one for one in document["snapshots"] if one["summary"].get(PLAN_ID) == plan.plan_id), None)
            committed_ms = None if done is None else int(done["timestamp-ms"])
            # Ignore uncommitted files that are newer than the commit: the erasure could not know them.
            left = [file for file in after.loose if committed_ms is None or file.changed_at_ms <= committed_ms]
            found.append(
                ErasedTable(
                    table=action.table,
                    table_uuid=action.table_uuid,
                    snapshots=after.summary.snapshots,
                    files_searched=after.summary.searched,
                    files_found=max(len(after.summary.files) + len(left), int(not after.summary.clean)),
                    gone=tuple(going),
                    committed_at=None if committed_ms is None else committed_ms * 1000,
                    there=tuple(
                        name for name in went.get(action.table, ()) if part.io.new_input(f"{document['location']}/{name}").exists()
                    ),
                )
            )
        return found

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:
        until_ms = until // 1000 + CLOCKS_DIFFER_MS
        return kept_versions(((io, str(document["location"])) for _, io, document, _ in self._documents(name)), until_ms=until_ms)

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        matches = given.matches()
        for action in plan.rewrites:
            place, io = self._place(plan.topic, action.table)
            stage_table(self._tables.catalog, place, io, plan, action, self._window(plan, action), matches)
        self._steps("after_stage")
        # The id of the snapshot that the log's commit will make; every run computes the same id.
        made = snapshot_id_of(plan.plan_id, MAIN) if plan.changes else plan.requirements.snapshot_id
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=made)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        frames, rows_of = [], KeyRowFinder(given.matches())
        for action in plan.rewrites:
            place, io = self._place(plan.topic, action.table)
            document = load(self._tables.catalog, place, io)
            looks = self._looks(plan.topic, io, document, action.table, rows_of)
            try:
                frames.append(of_table(self._tables.catalog, document, plan, action, self._window(plan, action), looks))
            except FileNotFoundError as lost:  # another engine has expired the snapshot under the stage
                raise PlanConflict(plan.plan_id, f"a file of the table as it was staged is gone: {lost.filename or lost}") from lost
        return joined(plan, frames)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, matches, ledger = verdict.plan, given.matches(), given.ledger()
        parts = [self._part(plan, action) for action in plan.rewrites]
        for part in parts:
            document = load(part.catalog, part.place, part.io)
            if not is_done(document, plan.plan_id):
                # First finish an earlier erasure that died: the table property has room for one list.
                part.finish()
                delete_unreachable_list(part.catalog, part.place, part.io)
            part.commit(properties(verdict, ledger), matches)
        for part in parts:
            part.finish()
        done = self.find_published(plan)
        if done is None:
            raise PlanConflict(plan.plan_id, "its commit was taken back by another")
        return done

    def has_begun(self, plan: Plan) -> bool:
        places = (self._place(plan.topic, action.table) for action in plan.rewrites)
        return any(is_done(load(self._tables.catalog, *place), plan.plan_id) for place in places)

    def find_published(self, plan: Plan) -> Published | None:
        place, io = self._place(plan.topic, "log")
        document = load(self._tables.catalog, place, io)
        for snapshot in ancestors(document, document["refs"][MAIN]["snapshot-id"]) if MAIN in document.get("refs", {}) else ():
            if snapshot["summary"].get(PLAN_ID) == plan.plan_id:
                return published_from_summary(plan.plan_id, int(snapshot["snapshot-id"]), snapshot["summary"])
        return None

    def discard(self, plan: Plan) -> None:
        for action in plan.rewrites:
            try:
                place, io = self._place(plan.topic, action.table)
            except UnknownTopic:
                continue  # the table and its staged files were dropped meanwhile
            document = load(self._tables.catalog, place, io)
            if is_done(document, plan.plan_id):
                self._part(plan, action).finish()
                delete_unreachable_list(self._tables.catalog, place, io)
                document = load(self._tables.catalog, place, io)
            drop_stage(io, document, plan.plan_id)

    def _documents(self, name: TopicName) -> Iterator[tuple[TableKind, FileIO, Metadata, Collection[str]]]:
        for kind in _KINDS:
            try:
                place, io = self._place(name, kind)
            except UnknownTopic:
                if not TABLE_KINDS[kind].beside:
                    raise
                continue
            yield kind, io, *load_with_unreachable_files(self._tables.catalog, place, io)

    def _place(self, name: TopicName, kind: TableKind) -> tuple[Place, FileIO]:
        beside = TABLE_KINDS[kind].beside
        return (name.namespace, name.table(beside)), self._tables.load(name, kind=beside).io

    def _looks(self, name: TopicName, io: FileIO, document: Metadata, kind: TableKind, rows_of: RowFinder) -> Looks:
        return Looks(
            io=io,
            store=Store.of_io(io, str(document["location"])),
            kind=kind,
            rows_of=rows_of,
            engine=self._engine,
            description=f"erasure of {name}",
        )

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
