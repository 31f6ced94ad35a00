"""Erasure of a key from a topic in memory: the reference.

The key leaves every readable version of every table. The key names messages of the log and its view, or a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from message_lifecycle.model.change import EraseRows
from message_lifecycle.model.document import Change
from message_lifecycle.model.erasure import ErasedTable, HeldFile, KeySearchResult, Matches, TableKind
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.in_values import MOST_NAMES, Needle, ValuePlace, places_of_messages
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, offsets_of, ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.archive import ParquetArchive, archive_of, erase_archive, key_in_archive, told_in_archive
from message_lifecycle.stores.memory import MemoryStore
from message_lifecycle.stores.memory.rows import placed
from message_lifecycle.stores.memory.tables import (
    Changes,
    Position,
    Row,
    SnapshotRow,
    Snapshots,
    Table,
    TopicTables,
    by_segment,
    file_of,
    segment_of,
)

# Erasure for stores that inspect messages one by one: the memory store, and logs of records.


Messages = Mapping[Position, Message]
Frame = list[dict[str, int]]


def of_key(messages: Messages, matches: Matches) -> dict[Position, Message]:
    """Return the messages of the key. A null key never matches."""
    return {position: message for position, message in messages.items() if message.key is not None and matches(message.key)}


def held_files(found: Messages, live: Messages) -> tuple[HeldFile, ...]:
    """Return the messages by segment, which stands for a file here. `live`: the messages that readers see."""
    return tuple(
        HeldFile(
            name=file_of((partition, base)),
            partition=partition,
            base_offset=base,
            offsets=ranges_text(message.offset for message in messages),
            rows=len(messages),
            live=sum((partition, message.offset) in live for message in messages),
            size_bytes=sum(message.size_bytes for message in messages),
            needed=True,
        )
        for (partition, base), messages in by_segment(found[position] for position in sorted(found))
    )


def named(plan: Plan, table: TableKind) -> set[Position]:
    """Return the positions that the plan erases from this table."""
    return {(rows.partition, offset) for rows in plan.erased_of(table) for offset in offsets_of(rows.offsets)}


def rewritten(action: EraseRows, messages: Messages, matches: Matches) -> dict[str, int]:
    """Return one row of the frame `rewritten`, from a second search of the segment.

    Args:
        action: The plan's action on the segment.
        messages: The messages of all readable versions of the table.
        matches: Returns True for the key.
    """
    gone = {(action.partition, offset) for offset in offsets_of(action.offsets)}
    there = {position for position, message in messages.items() if segment_of(message) == (action.partition, action.base_offset)}
    sought = {position for position in there if position in of_key({position: messages[position]}, matches)}
    return {"rows": len(gone & there), "unnamed": len((gone & there) - sought), "left": len(sought - gone), "changed": 0, "found": 0}


def beside(rows: int) -> dict[str, int]:
    """Return one row of the frame `rewritten` about a file next to the log.

    The search that finds the key also removes it, so no row is left.
    """
    return {"rows": rows, "unnamed": 0, "left": 0, "changed": 0, "found": 0}


def table_row(found: int, searched: int) -> dict[str, int]:
    """Return one row of the frame `tables`. `found`: messages of the key that would stay."""
    return {"found": found, "files_differ": 0, "marks_differ": 0, "refs_differ": 0, "history": 0, "searched": searched}


def figures(plan: Plan, before: Iterable[Message], gone: int) -> Frame:
    """Return the figures of the log. `before`: its messages at planning time. `gone`: the number of messages that leave."""
    sizes = [message.size_bytes for message in before]
    return [{"rows_in": len(sizes), "rows_removed": gone, "rows_kept": len(sizes) - gone, "bytes_in": sum(sizes), "asks": len(plan.asks)}]


Found = dict[Position, Message]


class MemoryEraser(ChangeStore):
    """`ports.Eraser` for a `MemoryStore`. `server`: settings below the topics' own, which may name an archive."""

    def __init__(self, store: MemoryStore, *, server: Mapping[str, Value]) -> None:
        self._store, self._server = store, server

    def find_key(
        self,
        name: TopicName,
        matches: Matches,
        policy: Policy,  # noqa: ARG002  # no undo ends here
        *,
        as_of: Instant,  # noqa: ARG002  # as above
        undoable: Collection[str] = (),  # noqa: ARG002  # as above
    ) -> Sequence[KeySearchResult]:
        tables = self._store.of(name)
        if tables.topic.has_documents:
            snapshots = [_key_in_documents(tables.snapshots, matches)] if tables.snapshots.commits else []
            return [_key_in_documents(tables.changes, matches), *snapshots]
        head = tables.log.head.messages
        files = held_files(of_key(_ever_in_log(tables), matches), head)
        found = [_key_in(tables.log, files, rows=len(head), size_bytes=sum(message.size_bytes for message in head.values()))]
        if tables.view.commits:
            shown = {position: row.message for position, row in placed(tables.view.head.rows).items() if not row.remembered}
            files = held_files(of_key(_ever_in_view(tables), matches), shown)
            found.append(_key_in(tables.view, files, rows=len(shown), size_bytes=0))
        archive = self._archive(tables)
        if archive is not None:
            found.append(key_in_archive(archive, name, tables.topic.uuid, matches))
        return found

    def find_in_values(
        self,
        name: TopicName,
        needle: Needle,
        policy: Policy,  # noqa: ARG002  # as above
        *,
        as_of: Instant,  # noqa: ARG002  # as above
        undoable: Collection[str] = (),  # noqa: ARG002  # as above
    ) -> Sequence[ValuePlace]:
        tables = self._store.of(name)
        if tables.topic.has_documents:
            changes = {(document, row.server_seq): row.payload for document, row in _rows_of_all_versions(tables.changes)}
            states = {(document, row.server_seq): row.state for document, row in _rows_of_all_versions(tables.snapshots)}
            return [
                *_in_documents("log", changes, tables.changes.head, needle),
                *_in_documents("snapshots", states, tables.snapshots.head, needle),
            ]
        shown = {position: row.message for position, row in placed(tables.view.head.rows).items()} if tables.view.commits else {}
        return [
            *_in_messages("log", _ever_in_log(tables), tables.log.head.messages, needle),
            *_in_messages("view", _ever_in_view(tables), shown, needle),
        ]

    def erased_tables(
        self, plan: Plan, matches: Matches, _went: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Sequence[ErasedTable]:
        now = {table.table: table for table in self.find_key(plan.topic, matches, Policy.from_values(plan.policy), as_of=plan.as_of)}
        return [
            ErasedTable(
                table=action.table,
                table_uuid=now[action.table].table_uuid,
                # Rewritten versions keep their numbers, so the snapshots that the plan names count as gone.
                snapshots=tuple(set(now[action.table].snapshots) - set(action.snapshots)),
                files_searched=now[action.table].searched,
                files_found=max(len(now[action.table].files), int(not now[action.table].clean)),
                gone=(),
                committed_at=None,
            )
            for action in plan.rewrites
            if action.table in now
        ]

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:  # noqa: ARG002  # there is nothing beneath
        return ()

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        given.matches()
        self._store.of(plan.topic).main.require(plan)
        return super().stage(plan)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        tables, matches = self._store.of(plan.topic), given.matches()
        if tables.topic.has_documents:
            return _documents_evidence(tables, plan, matches)
        before = tables.log.at(plan.requirements.snapshot_id).messages
        of_table = {tables.log.kind: _ever_in_log(tables), tables.view.kind: _ever_in_view(tables)}
        archive = self._archive(tables)
        rows, searched = [], []
        for kind, erased in plan.erased:
            if kind in of_table:
                rows.append(rewritten(erased, of_table[kind], matches))
            elif archive is not None:
                rows.append(beside(told_in_archive(archive, plan, erased.file, matches)))
        for table in plan.rewrites:
            messages = of_table.get(table.table, {})
            left = of_key(messages, matches).keys() - named(plan, table.table)
            searched.append(table_row(len(left), len(messages)))
        gone = len(named(plan, "log") & before.keys())
        return {"rewritten": rows, "tables": searched, "figures": figures(plan, before.values(), gone)}

    def find_published(self, plan: Plan) -> Published | None:
        return self._store.find_published(plan)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, tables, matches, ledger = verdict.plan, self._store.of(verdict.plan.topic), given.matches(), given.ledger()
        done = tables.main.find_published(plan.plan_id)
        if done is not None:
            return done
        tables.main.require(plan)
        tables.main.refuse_removals(plan)
        if _came_since(tables, plan, matches):
            raise PlanConflict(plan.plan_id, "rows of a requested key came since it was planned")
        archive = self._archive(tables)
        if archive is not None and plan.rewrites_of("archive"):
            erase_archive(archive, plan.topic, matches)
        done = Published(plan_id=plan.plan_id, snapshot_id=tables.main.next_id, removed=plan.expected.removed)
        if tables.topic.has_documents:
            for table in (tables.changes, tables.snapshots):
                table.rewrite(lambda version: {document: rows for document, rows in version.items() if not matches(document.encode())})
            tables.changes.publish(tables.changes.head, done)
        else:
            _rewrite_view(tables, plan)
            gone = named(plan, "log")
            tables.log.rewrite(lambda version: version.without(gone))
            tables.log.publish(tables.log.head, done)
        tables.touch(ledger)
        return done

    def _archive(self, tables: TopicTables) -> ParquetArchive | None:
        return archive_of(tables.topic.settings, self._server)


def _came_since(tables: TopicTables, plan: Plan, matches: Matches) -> bool:
    """Return True if the topic has more rows of the key than the plan names."""
    if tables.topic.has_documents:
        seqs = _seqs(tables.changes, matches)
        return _named_of(plan, "log", seqs) < len(seqs)
    return bool(of_key(tables.log.head.messages, matches).keys() - named(plan, "log"))


def _rewrite_view(tables: TopicTables, plan: Plan) -> None:
    gone = named(plan, "view")
    tables.view.staged.clear()  # the stage comes from a log that had the key
    if tables.view.commits and gone:
        tables.view.rewrite(lambda version: replace(version, rows=tuple(row for at, row in placed(version.rows).items() if at not in gone)))
        tables.view.publish(tables.view.head, Published(plan_id=plan.plan_id, snapshot_id=tables.view.next_id, removed=()))


def _ever_in_log(tables: TopicTables) -> Found:
    """Return the messages of every readable version."""
    return {position: message for commit in tables.log.commits for position, message in commit.version.messages.items()}


def _ever_in_view(tables: TopicTables) -> Found:
    return {position: row.message for commit in tables.view.commits for position, row in placed(commit.version.rows).items()}


def _key_in(table: Table[Any], files: tuple[HeldFile, ...], *, rows: int, size_bytes: int) -> KeySearchResult:
    return KeySearchResult(
        table=table.kind,
        table_uuid=table.uuid,
        snapshot_id=table.snapshot_id,
        files=files,
        refs=() if table.snapshot_id is None else (("main", table.snapshot_id),),
        undo=(),
        snapshots=tuple(commit.snapshot_id for commit in table.commits),
        rows=rows,
        size_bytes=size_bytes,
        searched=max(1, len(table.commits)),
        clean=not files,
    )


def _in_messages(kind: TableKind, ever: Found, head: Messages, needle: Needle) -> list[ValuePlace]:
    found = {position: message for position, message in ever.items() if needle.is_in_message(message)}
    live = Counter(partition for partition, _ in found.keys() & head.keys())
    places = places_of_messages(kind, found.values())
    return [replace(place, live=live[place.partition or 0]) for place in places]


# Documents


def _rows_of_all_versions(table: Table[Mapping[str, tuple[Row, ...]]]) -> set[tuple[str, Row]]:
    """Return the rows of every readable version."""
    return {(document, row) for commit in table.commits for document, rows in commit.version.items() for row in rows}


def _in_documents(
    kind: TableKind, rows: Mapping[tuple[str, int], bytes | None], head: Changes | Snapshots, needle: Needle
) -> list[ValuePlace]:
    found = sorted(at for at, content in rows.items() if at[0].encode() not in needle.keys and needle.is_found_in(content))
    now = {(document, row.server_seq) for document, of in head.items() for row in of}
    names = tuple(f"{document}:{seq}" for document, seq in found[:MOST_NAMES])
    place = ValuePlace(table=kind, rows=len(found), live=len(now.intersection(found)), names=names, is_cut=len(found) > MOST_NAMES)
    return [place] if found else []


def _key_in_documents(table: Table[Changes] | Table[Snapshots], matches: Matches) -> KeySearchResult:
    found = _seqs(table, matches)
    live = sum(len(rows) for document, rows in table.head.items() if matches(document.encode()))
    file = HeldFile(
        name=table.kind,
        partition=0,
        base_offset=0,
        offsets=ranges_text(sorted(set(found))),
        rows=len(found),
        live=live,
        size_bytes=0,
        needed=True,
    )
    return _key_in(table, (file,) if found else (), rows=sum(map(len, table.head.values())), size_bytes=0)


def _documents_evidence(tables: TopicTables, plan: Plan, matches: Matches) -> Mapping[str, object]:
    """Return the frames of `gates.tables`, from a second search."""
    both: tuple[Table[Changes] | Table[Snapshots], ...] = (tables.changes, tables.snapshots)
    of_table = {table.kind: table for table in both}
    found = {kind: _seqs(table, matches) for kind, table in of_table.items()}
    unnamed = {kind: len(seqs) - _named_of(plan, kind, seqs) for kind, seqs in found.items()}
    before = tables.changes.at(plan.requirements.snapshot_id)
    rows_in = sum(map(len, before.values()))
    gone = sum(len(rows) for document, rows in before.items() if matches(document.encode()))
    return {
        "rewritten": [{"rows": len(found[kind]), "unnamed": 0, "left": unnamed[kind], "changed": 0, "found": 0} for kind, _ in plan.erased],
        "tables": [table_row(unnamed[action.table], len(of_table[action.table].commits)) for action in plan.rewrites],
        "figures": [{"rows_in": rows_in, "rows_removed": gone, "rows_kept": rows_in - gone, "bytes_in": 0, "asks": len(plan.asks)}],
    }


def _seqs(table: Table[Changes] | Table[Snapshots], matches: Matches) -> list[int]:
    """Return the server_seq of each row of the document in every readable version."""
    rows: set[Change | SnapshotRow] = set()
    for commit in table.commits:
        rows |= {row for document, of in commit.version.items() if matches(document.encode()) for row in of}
    return [row.server_seq for row in rows]


def _named_of(plan: Plan, table: TableKind, seqs: Collection[int]) -> int:
    """Return how many of these rows the plan names. The rows belong to one document."""
    wanted = {seq for rows in plan.erased_of(table) for seq in offsets_of(rows.offsets)}
    return sum(seq in wanted for seq in seqs)
