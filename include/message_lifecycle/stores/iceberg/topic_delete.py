"""Whole topics deleted and brought back, without a JVM: the tables' rows in the catalog get other names, all in one transaction (DEL-7).

A table is its metadata document; its files stay where they are, and so does its history. What the document says of the deletion, and its
new name, become true in the same commit, so a run that dies leaves a topic whole or gone. Each row is compared before it is swapped: a
commit of anybody's that came first makes the plan out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFileContent, ManifestContent
from sqlalchemy import CursorResult, delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from message_lifecycle.model.change import MovedTable
from message_lifecycle.model.errors import PlanConflict, storage_refused
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import DeletedTopic, Deletion, Remnant, TopicTable
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg import table_file
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_of
from message_lifecycle.stores.iceberg.document import TableDocument
from message_lifecycle.stores.iceberg.layout import (
    DELETED,
    DELETED_AT,
    DELETED_BY,
    DELETED_GATE,
    DELETED_KIND,
    KINDS,
    LATEST,
    LIVE,
    RETURNED_BY,
    SCRATCH_PROPERTY,
    STREAM_PROPERTY,
    TOPIC_PROPERTY,
    settings_of,
)
from message_lifecycle.stores.iceberg.manifests import DELETED as DELETED_ENTRY
from message_lifecycle.stores.iceberg.manifests import entries, picking
from message_lifecycle.stores.iceberg.new_table import make_namespace
from message_lifecycle.stores.iceberg.pointers import Place, reaching_catalog
from message_lifecycle.stores.iceberg.table_file import Written
from message_lifecycle.stores.iceberg.topic_tables import documents

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


_ON_DELETED = (DELETED_BY, DELETED_AT, DELETED_GATE, DELETED_KIND)


class IcebergDeleter(ChangeStore):
    """`ports.TopicDeleter`. `scratch`: of a scenario's topics, as `IcebergTopics` has it. `steps` is told the name of each step of a
    move as it is reached: `written`, `inside_commit` after each row, `before_commit`, `after_commit`."""

    def __init__(self, tables: Tables | None = None, *, scratch: bool = False, steps: Callable[[str], None] | None = None) -> None:
        self._tables, self._scratch, self._steps = tables or Tables(), scratch, steps or (lambda _: None)

    def tables_of(self, name: TopicName) -> Sequence[TopicTable]:
        return [self._table(kind, (name.namespace, name.table(kind)), found) for kind, found in documents(self._tables, name)]

    def deletions(self) -> Sequence[Deletion]:
        # One whose log was dropped by hand is no topic any more, but a remnant.
        logs = [found for _, found in self._all_deleted() if not found.properties[DELETED_KIND]]
        return sorted((Deletion(**_told_of(log)) for log in logs), key=lambda deletion: deletion.deleted_at, reverse=True)

    def remnants(self) -> Sequence[Remnant]:
        beside: dict[str, list[tuple[Place, TableDocument]]] = {}
        for place, found in self._all_deleted():
            beside.setdefault(found.properties[DELETED_BY], []).append((place, found))
        return [
            Remnant(plan_id=plan_id, topic=_topic_of(tables[0][1]), tables=tuple(sorted(".".join(place) for place, _ in tables)))
            for plan_id, tables in sorted(beside.items())
            if all(found.properties[DELETED_KIND] for _, found in tables)
        ]

    def deleted(self, plan_id: str) -> DeletedTopic | None:
        mine = [(place, found) for place, found in self._all_deleted() if found.properties[DELETED_BY] == plan_id]
        ordered = sorted(mine, key=lambda entry: KINDS.index(entry[1].properties[DELETED_KIND]))
        if not ordered or ordered[0][1].properties[DELETED_KIND]:
            return None
        try:
            tables = tuple(self._table(found.properties[DELETED_KIND], place, found) for place, found in ordered)
        except FileNotFoundError as gone:
            raise storage_refused(str(gone.filename or plan_id), "it is not there, and a deleted topic is read through it") from gone
        return DeletedTopic(**_told_of(ordered[0][1]), tables=tables)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        import pyarrow as pa

        planned = {action.table: action for action in plan.moved()}
        rows = []
        for kind in planned.keys() | (set() if plan.moved("back") else self._kinds_there(plan.topic)):
            place = _from(plan, planned[kind]) if kind in planned else (plan.topic.namespace, plan.topic.table(kind))
            location = self._tables.pointers.one(place)
            if location is not None:
                found = self._tables.at(place, location)
                same = kind in planned and (found.uuid, found.current_id) == (planned[kind].table_uuid, planned[kind].snapshot_id)
                # One that another run of the plan moves just then is not there.
                with reaching_catalog(), suppress(NoSuchTableError):
                    rows.append({"same": same, "rows": rows_by_pyiceberg(self._tables.catalog.load_table(place))})
        taken = [".".join(place) for action in plan.moved() if self._tables.pointers.one(place := _to(plan, action)) is not None]
        return {"tables": pa.Table.from_pylist(rows), "taken": pa.table({"name": pa.array(taken, pa.string())})}

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan = verdict.plan
        done = self.published(plan)
        if done is not None:
            return done
        properties = {RETURNED_BY: plan.plan_id} if plan.moved("back") else _told(plan, verdict.gate_id, given.now())
        unplanned = set() if plan.moved("back") else self._kinds_there(plan.topic) - {action.table for action in plan.moved()}
        if unplanned:
            raise PlanConflict(plan.plan_id, f"the topic has got a table beside it since it was planned: {', '.join(sorted(unplanned))}")
        make_namespace(DELETED if plan.moved("away") else plan.topic.namespace)
        with reaching_catalog():
            # The log last, as its row carries the plan.
            moves = [self._written(plan, action, properties) for action in sorted(plan.moved(), key=lambda a: a.table, reverse=True)]
            self._steps("written")
            views = [] if plan.moved("back") else [(plan.topic.namespace, plan.topic.table(kind)) for kind in (LIVE, LATEST)]
            try:
                renamed = rename(self._tables.catalog, moves, views, steps=self._steps)
            except IntegrityError:
                _forget(moves)
                raise PlanConflict(plan.plan_id, "another table has the name of one that would move") from None
            if not renamed:
                _forget(moves)
                raise PlanConflict(plan.plan_id, "another commit came first")
        self._steps("after_commit")
        return _published(plan)

    def published(self, plan: Plan) -> Published | None:
        log = next((action for action in plan.moved() if not action.table), None)
        if log is None:
            return None
        place = _to(plan, log)
        location = self._tables.pointers.one(place)
        carried = (
            None if location is None else self._tables.at(place, location).properties.get(DELETED_BY if plan.moved("away") else RETURNED_BY)
        )
        return _published(plan) if carried == plan.plan_id else None

    def _written(self, plan: Plan, action: MovedTable, properties: Mapping[str, str]) -> Moved:
        def change(document: table_file.Document) -> table_file.Document:
            if document["table-uuid"] != action.table_uuid:
                raise PlanConflict(plan.plan_id, f"the {action.table or 'log'} is another table than was planned for")
            current = document.get("current-snapshot-id")
            if (None if current == -1 else current) != action.snapshot_id:
                raise PlanConflict(
                    plan.plan_id, f"the {action.table or 'log'} has changed since it was planned", rival=f"snapshot {current}"
                )
            kept = {key: value for key, value in document.get("properties", {}).items() if key not in _ON_DELETED}
            return {**document, "properties": {**kept, **properties, **({DELETED_KIND: action.table} if plan.moved("away") else {})}}

        try:
            written = table_file.write_changed(self._tables.catalog, _from(plan, action), change)
        except NoSuchTableError:
            raise PlanConflict(plan.plan_id, f"the {action.table or 'log'} is not there any more") from None
        return Moved(written=written, to=_to(plan, action))

    def _kinds_there(self, name: TopicName) -> set[str]:
        return {kind for kind in KINDS if self._tables.pointers.one((name.namespace, name.table(kind))) is not None}

    def _all_deleted(self) -> Iterator[tuple[Place, TableDocument]]:
        for place, location in self._tables.pointers.all(DELETED):
            try:
                found = self._tables.at(place, location)
            except FileNotFoundError as gone:
                if self._tables.pointers.one(place) != location:
                    continue  # reclaimed, or brought back, since it was listed
                # Whose it was is not known, and an erasure must not pass it over.
                raise storage_refused(location, f"it is not there, and {'.'.join(place)} of a deleted topic is read through it") from gone
            if DELETED_BY in found.properties and (SCRATCH_PROPERTY in found.properties) is self._scratch:
                yield place, found

    def _table(self, kind: str, place: Place, found: TableDocument) -> TopicTable:
        with reaching_catalog():
            rows, size_bytes = rows_by_manifests(self._tables.catalog.load_table(place), found.current_id)
        return TopicTable(table=kind, table_uuid=found.uuid, snapshot_id=found.current_id, rows=rows, size_bytes=size_bytes)


def _told_of(log: TableDocument) -> dict[str, Any]:
    """What a deleted topic's own table tells of it, as `Deletion` has it."""
    of = log.properties
    return {
        "plan_id": of[DELETED_BY],
        "topic": _topic_of(log),
        "table_uuid": log.uuid,
        "deleted_at": Instant(int(of[DELETED_AT])),
        "settings": settings_of(of, where=f"the deleted topic {of[STREAM_PROPERTY]}/{of[TOPIC_PROPERTY]}"),
        "ledger": ledger_of(log),
    }


def _topic_of(table: TableDocument) -> TopicName:
    of = table.properties
    return TopicName(stream=normalise_name(of[STREAM_PROPERTY]), topic=normalise_name(of[TOPIC_PROPERTY]))


def _from(plan: Plan, action: MovedTable) -> Place:
    return place_of(action.table_uuid) if plan.moved("back") else _own(plan, action)


def _to(plan: Plan, action: MovedTable) -> Place:
    return _own(plan, action) if plan.moved("back") else place_of(action.table_uuid)


def _own(plan: Plan, action: MovedTable) -> Place:
    return plan.topic.namespace, plan.topic.table(action.table)


def place_of(table_uuid: str) -> Place:
    """Where a deleted topic's table is in the catalog."""
    return DELETED, f"t{table_uuid.replace('-', '')}"


def _told(plan: Plan, gate_id: str, at: Instant) -> dict[str, str]:
    return {DELETED_BY: plan.plan_id, DELETED_AT: str(at), DELETED_GATE: gate_id}


def _forget(moves: Iterable[Moved]) -> None:
    for move in moves:
        move.written.forget()


def _published(plan: Plan) -> Published:
    assert plan.requirements.snapshot_id is not None, "a topic's table is made with a snapshot"
    return Published(
        plan_id=plan.plan_id, snapshot_id=plan.requirements.snapshot_id, removed=plan.expected.removed, restored=plan.restored_rows
    )


# Tables renamed in a SQL catalog, many in one transaction.


_VIEW = "VIEW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A table with its new metadata, and the name it is to have."""

    written: Written
    to: Place


def at_place(catalog: SqlCatalog, place: Place) -> tuple[Any, ...]:
    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == place[0],
        IcebergTables.table_name == place[1],
    )


def rename(catalog: Catalog, moves: Sequence[Moved], views: Iterable[Place], *, steps: Callable[[str], None]) -> bool:
    """Give all of them their names and metadata, and drop the views, or change nothing; False: a table has moved on.

    Raises IntegrityError where a name is taken; nothing was changed then."""
    assert isinstance(catalog, SqlCatalog)
    with Session(catalog.engine) as session:
        for place in views:
            session.execute(delete(IcebergTables).where(*at_place(catalog, place), IcebergTables.iceberg_type == _VIEW))
        for move in moves:
            place = (".".join(move.written.identifier[:-1]), move.written.identifier[-1])
            done = session.execute(
                update(IcebergTables)
                .where(*at_place(catalog, place), IcebergTables.metadata_location == move.written.old)
                .values(
                    table_namespace=move.to[0],
                    table_name=move.to[1],
                    metadata_location=move.written.new,
                    previous_metadata_location=move.written.old,
                )
            )
            assert isinstance(done, CursorResult)
            if done.rowcount != 1:
                session.rollback()
                return False
            steps("inside_commit")
        steps("before_commit")
        session.commit()
    return True


# How many rows a table has, by its manifests: read twice, by two readers.


_PICK = picking("content", "file_path", "record_count", "file_size_in_bytes", "referenced_data_file")


def rows_by_manifests(table: Table, snapshot_id: int | None) -> tuple[int, int]:
    """Rows that no vector marks, and bytes of the data files, at the snapshot. None: nothing was ever written."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    rows, sizes, marked = dict[str, int](), dict[str, int](), dict[str, int]()
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        for status, _, (content, path, count, size, referenced) in entries(table.io, manifest, _PICK):
            if status == DELETED_ENTRY:
                continue
            if manifest.content == ManifestContent.DATA:
                rows[path], sizes[path] = count, size
            elif content == DataFileContent.POSITION_DELETES.value and referenced:
                marked[referenced] = count
    return sum(count - marked.get(path, 0) for path, count in rows.items()), sum(sizes.values())


def rows_by_pyiceberg(table: Table) -> int:
    """The same of the newest snapshot, by PyIceberg's own reading of manifests, which cannot tell whose marks a vector holds."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    found = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    data = sum(file.record_count for file in found if file.content == DataFileContent.DATA)
    return data - sum(file.record_count for file in found if file.content == DataFileContent.POSITION_DELETES)
