"""Erasure of a key from a topic in memory: the reference. Every state of the log, of its view and of documents that can be read back loses
the key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType

from message_lifecycle.model.erasure import ErasedTable, KeyInTable, Matches
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy, Value
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.archive.erasing import archive_of, erase_archive, key_in_archive, told_in_archive
from message_lifecycle.stores.archive.parquet import ParquetArchive
from message_lifecycle.stores.memory import erased_documents, erased_rows
from message_lifecycle.stores.memory.document_log import DocumentLog
from message_lifecycle.stores.memory.documents import MemoryDocuments
from message_lifecycle.stores.memory.erased_rows import held_files, named, of_key
from message_lifecycle.stores.memory.log import Position
from message_lifecycle.stores.memory.store import MemoryStore

Messages = dict[Position, Message]


class MemoryEraser(ChangeStore):
    """`ports.Eraser` beside a `MemoryStore` and its documents. `server`: the settings below the topics' own, of which one names an archive."""

    def __init__(self, store: MemoryStore, documents: MemoryDocuments, *, server: Mapping[str, Value]) -> None:
        self._store, self._documents, self._server = store, documents, server

    def find_key(
        self,
        name: TopicName,
        matches: Matches,
        policy: Policy,  # noqa: ARG002  # no undo ends here
        *,
        as_of: Instant,  # noqa: ARG002  # as above
        undoable: Collection[str] = (),  # noqa: ARG002  # as above
    ) -> Sequence[KeyInTable]:
        table = self._store._table(name)
        if (documents := self._documents_of(name)) is not None:
            return erased_documents.key_in_documents(documents, matches)
        found, head = of_key(self._all(name), matches), table.head.messages
        log = KeyInTable(
            table="log",
            table_uuid=table.topic.uuid,
            snapshot_id=table.snapshot_id,
            files=held_files(found, head),
            refs=(("main", table.snapshot_id),),
            undo=(),
            snapshots=tuple(table.versions),
            rows=len(head),
            size_bytes=sum(message.size_bytes for message in head.values()),
            clean=not found,
        )
        view, archive = self._store.views.get(name), self._archive(name)
        tables = [log]
        if view is not None and view.commits:
            shown = {position: row.message for position, row in view.commits[-1].rows.items() if not row.remembered}
            of_view = of_key(self._all_of_view(name), matches)
            tables.append(
                KeyInTable(
                    table="view",
                    table_uuid=view.uuid,
                    snapshot_id=len(view.commits) - 1,
                    files=held_files(of_view, shown),
                    refs=(("main", len(view.commits) - 1),),
                    undo=(),
                    snapshots=tuple(range(len(view.commits))),
                    rows=len(shown),
                    size_bytes=0,
                    clean=not of_view,
                )
            )
        if archive is not None:
            tables.append(key_in_archive(archive, name, table.topic.uuid, matches))
        return tables

    def erased_tables(
        self, plan: Plan, matches: Matches, _went: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Sequence[ErasedTable]:
        now = {table.table: table for table in self.find_key(plan.topic, matches, Policy.of_values(plan.policy), as_of=plan.as_of)}
        return [
            ErasedTable(
                table=action.table,
                table_uuid=now[action.table].table_uuid,
                # States keep their numbers when they lose the key: none that the plan names is as it was.
                snapshots=tuple(set(now[action.table].snapshots) - set(action.snapshots)),
                files_searched=max(1, len(now[action.table].snapshots)),
                files_found=max(len(now[action.table].files), int(not now[action.table].clean)),
                gone=(),
                committed_at=None,
            )
            for action in plan.rewrites
            if action.table in now
        ]

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        if (documents := self._documents_of(plan.topic)) is not None:
            erased_documents.check(documents, plan)
        else:
            self._store._require(plan, self._store._table(plan.topic))
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        matches = given.matches()
        if (documents := self._documents_of(plan.topic)) is not None:
            return erased_documents.evidence(documents, plan, matches)
        assert plan.requirements.snapshot_id is not None
        before = self._store.version(plan.topic, plan.requirements.snapshot_id).messages
        of_table = {"log": self._all(plan.topic), "view": self._all_of_view(plan.topic)}
        archive = self._archive(plan.topic)
        rows, tables = [], []
        for kind, erased in plan.erased:
            if kind in of_table:
                rows.append(erased_rows.rewritten(erased, of_table[kind], matches))
            elif archive is not None:
                rows.append(erased_rows.beside(told_in_archive(archive, plan, erased.file, matches)))
        for table in plan.rewrites:
            messages = of_table.get(table.table, {})
            left = of_key(messages, matches).keys() - named(plan, table.table)
            tables.append(erased_rows.table_row(len(left), len(messages)))
        gone = sum(position in before for position in named(plan, "log"))
        return {"rewritten": rows, "tables": tables, "figures": erased_rows.figures(plan, before.values(), gone)}

    def published(self, plan: Plan) -> Published | None:
        return self._store.published(plan)

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan, table, matches, ledger = verdict.plan, self._store._table(verdict.plan.topic), given.matches(), given.ledger()
        done, documents = self._store.published(plan), self._documents_of(plan.topic)
        if done is None and documents is not None:
            erased_documents.erase(documents, plan, matches)
            self._of_log(plan, ledger)
            done = self._store.published(plan)
        if done is None:
            self._store._require(plan, table)
            rivals = [commit for commit in table.commits if commit.snapshot_id > (plan.requirements.snapshot_id or 0)]
            for commit in rivals:
                if commit.operation != "append" or commit.plan_id:
                    raise PlanConflict(
                        plan.plan_id, f"conflicting {commit.operation}", rival=commit.plan_id or f"snapshot {commit.snapshot_id}"
                    )
            if of_key(table.head.messages, matches).keys() - named(plan, "log"):
                raise PlanConflict(plan.plan_id, "messages of the key came since it was planned")
            archive = self._archive(plan.topic)
            if archive is not None and plan.rewrites_of("archive"):
                erase_archive(archive, plan.topic, matches)
            self._of_view(plan)
            self._of_log(plan, ledger)
            done = self._store.published(plan)
        assert done is not None, "it was just committed"
        return done

    def _of_log(self, plan: Plan, ledger: tuple[str, int]) -> None:
        table, gone = self._store._table(plan.topic), named(plan, "log")
        version = deepcopy(table.head)
        for state in (version, *table.versions.values()):
            for position in gone & state.messages.keys():
                del state.messages[position]
        table.commit(version, operation="delete", plan_id=plan.plan_id, counts=plan.expected.removed)
        table.topic = replace(table.topic, ledger=ledger)

    def _of_view(self, plan: Plan) -> None:
        view, gone = self._store.views.get(plan.topic), named(plan, "view")
        if view is None or not gone:
            return
        kept = [
            replace(commit, rows={position: row for position, row in commit.rows.items() if position not in gone})
            for commit in view.commits
        ]
        view.commits[:] = [*kept, replace(kept[-1], plan_id=plan.plan_id, removed=())]
        view.staged.clear()

    def _all(self, name: TopicName) -> Messages:
        """Messages of every state that can be read back."""
        table, found = self._store._table(name), Messages()
        for version in (*table.versions.values(), table.head):
            found |= version.messages
        return found

    def _all_of_view(self, name: TopicName) -> Messages:
        view, found = self._store.views.get(name), Messages()
        for commit in () if view is None else view.commits:
            found |= {position: row.message for position, row in commit.rows.items()}
        return found

    def _documents_of(self, name: TopicName) -> DocumentLog | None:
        return self._documents.log(name) if "fold" in self._store.describe(name).settings else None

    def _archive(self, name: TopicName) -> ParquetArchive | None:
        return archive_of(self._store._table(name).topic.settings, self._server)
