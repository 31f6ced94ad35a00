"""Whole topics deleted and brought back: the tables get other names in the catalog (DEL-7).

A table's files and its history stay where they are. A catalog renames one table in one step, but never two. So a topic's log moves last
when the topic is deleted, and first when it is brought back. If a run dies in between, the topic still has its messages, and some of its
other tables have moved.

- Deleted: each table gets the plan's id as a property (`DELETED_BY`) before it moves. The log moves last. So if the log is among the
  deleted tables and names the plan, all tables are.
- Brought back: each table loses that property once all are back. The log is the last to lose it, and gets the undo's id (`RETURNED_BY`).

Until then the move is not complete. The next run of any process completes it. If another writer has committed to one of the tables
meanwhile, the next run undoes the move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyiceberg.exceptions import NoSuchTableError

from message_lifecycle.model.change import MovedTable
from message_lifecycle.model.errors import CommitUnknown, PlanConflict, TableUnreadable, UnknownTopic, storage_refused
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import DeletedTopic, Deletion, Remnant, TopicTable
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.iceberg import parsed, view_file
from message_lifecycle.stores.iceberg.catalog import Tables, documents, ledger_of, write_ledger_mark
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import ALREADY_THERE, NOT_THERE, Java, identifier, java_class, result_unknown, thrown
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
from message_lifecycle.stores.iceberg.manifests import DataFileContent, ManifestContent, entries, manifests_of, picking
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.new_table import make_namespace, uuid_at
from message_lifecycle.stores.iceberg.pointers import Place, reaching_catalog
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.table_folder import TableDocument, reading
from message_lifecycle.stores.iceberg.table_metadata import TableGone, change_metadata, current_metadata, set_properties

if TYPE_CHECKING:
    from pyiceberg.table import Table


_ON_DELETED = (DELETED_BY, DELETED_AT, DELETED_GATE, DELETED_KIND)


class _Mover(WithNamedErrors, ChangeStore):
    """Shared by both directions: all tables of a topic get other names, one after another.

    Args:
        scratch: Work on a scenario's topics, as `IcebergTopics` does.
        steps: Gets the name of each step when it is reached: `written` before the first table, `inside_commit` after each,
            `before_commit` before the step that completes the move, `after_commit`.
    """

    arrived: ClassVar[str]
    """The property of the log that names the plan once all tables have moved."""

    def __init__(self, tables: Tables | None = None, *, scratch: bool = False, steps: Callable[[str], None] | None = None) -> None:
        self._tables, self._scratch, self._steps = tables or Tables(), scratch, steps or (lambda _: None)

    def _from(self, plan: Plan, action: MovedTable) -> Place:
        raise NotImplementedError

    def _to(self, plan: Plan, action: MovedTable) -> Place:
        raise NotImplementedError

    def _deletion(self, plan: Plan) -> str | None:
        """Return the plan that deletes the topic."""
        raise NotImplementedError

    def _has_moved(self, plan: Plan, action: MovedTable) -> bool:
        raise NotImplementedError

    def _unplanned(self, plan: Plan, planned: Collection[str]) -> set[str]:  # noqa: ARG002  # a restored topic has no table but the plan's
        """Return the kinds of tables that the topic has got since it was planned."""
        return set()

    def _move_all(self, verdict: Verdict, given: CommitContext) -> None:
        raise NotImplementedError

    def _return_properties(self, plan: Plan) -> Mapping[str, str]:  # noqa: ARG002  # only a plan that restores the topic leaves its id
        """Return the properties that a table gets when it has its own name again."""
        return {}

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        import pyarrow as pa

        planned = {action.table: action for action in plan.moved_tables}
        rows = []
        for kind in planned.keys() | self._unplanned(plan, planned.keys()):
            place = self._from(plan, planned[kind]) if kind in planned else (plan.topic.namespace, plan.topic.table(kind))
            found = self._tables.find(place)
            if found is not None:
                same = kind in planned and (found.uuid, found.current_id) == (planned[kind].table_uuid, planned[kind].snapshot_id)
                # A table that another run of the plan moves at this moment is missing here.
                with reaching_catalog(), suppress(NoSuchTableError):
                    rows.append({"same": same, "rows": rows_by_pyiceberg(self._tables.catalog.load_table(place))})
        taken = [".".join(place) for action in plan.moved_tables if self._tables.find(place := self._to(plan, action)) is not None]
        return {"tables": pa.Table.from_pylist(rows), "taken": pa.table({"name": pa.array(taken, pa.string())})}

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan = verdict.plan
        done = self.find_published(plan)
        if done is not None:
            return done
        unplanned = self._unplanned(plan, {action.table for action in plan.moved_tables if not self._is_away(plan, action)})
        if unplanned:
            raise PlanConflict(plan.plan_id, f"the topic has got a table beside it since it was planned: {', '.join(sorted(unplanned))}")
        self._move_all(verdict, given)
        self._steps("after_commit")
        return _published(plan)

    def find_published(self, plan: Plan) -> Published | None:
        log = next((action for action in plan.moved_tables if not action.table), None)
        found = None if log is None else self._tables.find(self._to(plan, log))
        return _published(plan) if found is not None and found.properties.get(self.arrived) == plan.plan_id else None

    def has_begun(self, plan: Plan) -> bool:
        return self.find_published(plan) is not None or any(self._has_moved(plan, action) for action in plan.moved_tables)

    def discard(self, plan: Plan) -> None:
        """Bring home what a run that died has moved, or has left away. The tables follow their log."""
        if any(not action.table and self._is_home(plan, action) for action in plan.moved_tables):
            self._move_back(plan)

    def _move_back(self, plan: Plan) -> None:
        """Move back the tables that the deletion has moved so far, the log first. A table whose name is taken stays away, as a remnant."""
        actions = sorted(plan.moved_tables, key=_kind)
        for action in actions:
            with suppress(PlanConflict):  # another table has its name by now, or another writer has changed it
                if self._is_away(plan, action):
                    _rename(plan, action, deleted_table_place(action.table_uuid), _own_place(plan, action))
        for action in reversed(actions):
            with suppress(PlanConflict):  # the table is gone, and its properties with it
                self._clear_deletion(plan, action)

    def _clear_deletion(self, plan: Plan, action: MovedTable) -> None:
        """Remove the deletion's properties from a table that is back. After an undo, set the undo's own. The log's table comes last."""
        if self._deletion_of(_own_place(plan, action), action) != self._deletion(plan):
            return
        returned = self._return_properties(plan)
        if returned and not action.table:
            self._steps("before_commit")
        self._set_plan_properties(plan, action, {**dict.fromkeys(_ON_DELETED), **returned})

    def _set_plan_properties(self, plan: Plan, action: MovedTable, changes: Mapping[str, str | None], *, as_planned: bool = False) -> None:
        """Word of the plan in the properties of a table that has its own name. `as_planned`: only while it is as the plan has it."""

        def change(base: Java, builder: Java) -> None:
            if as_planned:
                _require(plan, action, base)
            set_properties(base, builder, changes)

        with _not_gone(plan, action):
            change_metadata(_own_place(plan, action), change, what=f"moving the table {'.'.join(_own_place(plan, action))}")

    def _is_away(self, plan: Plan, action: MovedTable) -> bool:
        return self._deletion_of(deleted_table_place(action.table_uuid), action) == self._deletion(plan)

    def _is_home(self, plan: Plan, action: MovedTable) -> bool:
        return self._deletion_of(_own_place(plan, action), action) is not None

    def _deletion_of(self, place: Place, action: MovedTable) -> str | None:
        """Return the id of the plan that the table there names as its deletion, "" for no plan. None: the table is not there."""
        found = self._tables.find(place)
        return None if found is None or found.uuid != action.table_uuid else found.properties.get(DELETED_BY, "")


class IcebergDeleter(_Mover):
    """`ports.TopicDeleter`: the tables lose their names, the log last."""

    arrived = DELETED_BY

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

    def record_ledger(self, plan_id: str, ledger: tuple[str, int]) -> None:
        for place, found in self._all_deleted():
            if found.properties[DELETED_BY] == plan_id and not found.properties[DELETED_KIND]:
                with suppress(TableGone):  # gone since it was listed: nothing of it can be deleted
                    write_ledger_mark(place, ledger)

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

    def _all_deleted(self) -> Iterator[tuple[Place, TableDocument]]:
        for place, location in self._tables.pointers.all(DELETED):
            try:
                found = self._tables.at(place, location)
            except UnknownTopic:
                continue  # reclaimed, or brought back, since it was listed
            except TableUnreadable as error:
                # Whose it was is not known, and an erasure must not pass it over.
                raise storage_refused(
                    location, f"it cannot be read, and {'.'.join(place)} of a deleted topic is read through it"
                ) from error
            if DELETED_BY in found.properties:
                parsed.one_of(found.properties.get(DELETED_KIND), KINDS, f"{DELETED_KIND} of {'.'.join(place)}")
            if DELETED_BY in found.properties and (SCRATCH_PROPERTY in found.properties) is self._scratch:
                yield place, found

    def _table(self, kind: str, place: Place, found: TableDocument) -> TopicTable:
        with reaching_catalog():
            rows, size_bytes = rows_by_manifests(self._tables.catalog.load_table(place), found.current_id)
        return TopicTable(table=kind, table_uuid=found.uuid, snapshot_id=found.current_id, rows=rows, size_bytes=size_bytes)

    def _from(self, plan: Plan, action: MovedTable) -> Place:
        return _own_place(plan, action)

    def _to(self, plan: Plan, action: MovedTable) -> Place:  # noqa: ARG002  # a deleted table is found by its uuid alone
        return deleted_table_place(action.table_uuid)

    def _deletion(self, plan: Plan) -> str | None:
        return plan.plan_id

    def _has_moved(self, plan: Plan, action: MovedTable) -> bool:
        return self._is_away(plan, action)

    def _unplanned(self, plan: Plan, planned: Collection[str]) -> set[str]:
        there = {kind for kind in KINDS if self._tables.pointers.one((plan.topic.namespace, plan.topic.table(kind))) is not None}
        return there - set(planned)

    def _move_all(self, verdict: Verdict, given: CommitContext) -> None:
        plan = verdict.plan
        make_namespace(DELETED)
        here = [action for action in sorted(plan.moved_tables, key=_kind, reverse=True) if not self._is_away(plan, action)]
        properties = {**dict.fromkeys(_ON_DELETED), **_deletion_properties(plan, verdict.gate_id, given.now())}
        try:
            for action in here:
                self._set_plan_properties(plan, action, {**properties, DELETED_KIND: action.table}, as_planned=True)
            self._steps("written")
            for action in here:
                if not action.table:
                    for kind in (LIVE, LATEST):
                        view_file.drop((plan.topic.namespace, plan.topic.table(kind)))
                    self._steps("before_commit")
                _move(plan, action, _own_place(plan, action), deleted_table_place(action.table_uuid))
                self._steps("inside_commit")
        except PlanConflict:
            self._move_back(plan)
            raise


class IcebergRestorer(_Mover):
    """The tables of a deleted topic get their names back, the log first."""

    arrived = RETURNED_BY

    def _from(self, plan: Plan, action: MovedTable) -> Place:  # noqa: ARG002  # a deleted table is found by its uuid alone
        return deleted_table_place(action.table_uuid)

    def _to(self, plan: Plan, action: MovedTable) -> Place:
        return _own_place(plan, action)

    def _deletion(self, plan: Plan) -> str | None:
        return plan.parent

    def _has_moved(self, plan: Plan, action: MovedTable) -> bool:
        return self._is_home(plan, action)

    def _return_properties(self, plan: Plan) -> Mapping[str, str]:
        return {RETURNED_BY: plan.plan_id}

    def _move_all(self, verdict: Verdict, _given: CommitContext) -> None:
        plan = verdict.plan
        make_namespace(plan.topic.namespace)
        actions = sorted(plan.moved_tables, key=_kind)
        away = [action for action in actions if not self._is_home(plan, action)]
        for action in away:
            _require(plan, action, _metadata(plan, action, deleted_table_place(action.table_uuid)))
        if any(self._tables.find(_own_place(plan, action)) is not None for action in away):
            raise _name_taken(plan)
        self._steps("written")
        try:
            for action in away:
                _move(plan, action, deleted_table_place(action.table_uuid), _own_place(plan, action))
                self._steps("inside_commit")
        except PlanConflict:
            for action in reversed(actions):
                if self._is_home(plan, action):
                    _rename(plan, action, _own_place(plan, action), deleted_table_place(action.table_uuid))
            raise
        for action in reversed(actions):
            self._clear_deletion(plan, action)


def _told_of(log: TableDocument) -> dict[str, Any]:
    """Return the fields of `Deletion` from the properties of a deleted topic's own table."""
    of = log.properties
    return {
        "plan_id": of[DELETED_BY],
        "topic": _topic_of(log),
        "table_uuid": log.uuid,
        "deleted_at": parsed.instant(of.get(DELETED_AT), DELETED_AT),
        "settings": settings_of(of, where=f"the deleted topic {of[STREAM_PROPERTY]}/{of[TOPIC_PROPERTY]}"),
        "ledger": ledger_of(log),
    }


def _topic_of(table: TableDocument) -> TopicName:
    of = table.properties
    return TopicName(stream=normalise_name(of[STREAM_PROPERTY]), topic=normalise_name(of[TOPIC_PROPERTY]))


def _own_place(plan: Plan, action: MovedTable) -> Place:
    return plan.topic.namespace, plan.topic.table(action.table)


def deleted_table_place(table_uuid: str) -> Place:
    """Return the place of a deleted topic's table in the catalog."""
    return DELETED, f"t{table_uuid.replace('-', '')}"


def _kind(action: MovedTable) -> str:
    """Sorts the log first."""
    return action.table


def _deletion_properties(plan: Plan, gate_id: str, at: Instant) -> dict[str, str]:
    return {DELETED_BY: plan.plan_id, DELETED_AT: str(at), DELETED_GATE: gate_id}


def _published(plan: Plan) -> Published:
    assert plan.requirements.snapshot_id is not None, "a topic's table is made with a snapshot"
    return Published(
        plan_id=plan.plan_id, snapshot_id=plan.requirements.snapshot_id, removed=plan.expected.removed, restored=plan.restored_rows
    )


# One table that gets another name.


def _move(plan: Plan, action: MovedTable, place: Place, to: Place) -> None:
    """Rename the table. Raises PlanConflict, also if another writer's commit came first and the table moved with it."""
    _rename(plan, action, place, to)
    metadata = _metadata(plan, action, to)
    if (str(metadata.uuid()), _snapshot(metadata)) != (action.table_uuid, action.snapshot_id):
        raise PlanConflict(plan.plan_id, "another commit came first", rival=f"snapshot {_snapshot(metadata)}")


def _rename(plan: Plan, action: MovedTable, place: Place, to: Place) -> None:
    """Raises PlanConflict, CommitUnknown, CatalogUnavailable."""
    jvm, what = engine_of_process(), f"moving the table {'.'.join(place)}"
    with engine_failures():
        try:
            jvm.lake.renameTable(identifier(jvm, place), identifier(jvm, to))
        except thrown() as error:
            # Whatever it says: a look does no harm, and a refusal may be of what the catalog was asked again whose first answer was lost.
            refused = java_class(error) in (ALREADY_THERE, *NOT_THERE)
            unknown = refused or result_unknown(error)
            try:
                there = uuid_at(jvm, to)
            except thrown():
                if not unknown:
                    raise error from None
                raise CommitUnknown(what) from error
            if there == action.table_uuid:
                return
            if not unknown:
                raise
            if not refused:
                raise CommitUnknown(what) from error
            raise (_name_taken if java_class(error) == ALREADY_THERE else partial(_gone, action=action))(plan) from None


def _metadata(plan: Plan, action: MovedTable, place: Place) -> Java:
    with _not_gone(plan, action):
        return current_metadata(place)


def _require(plan: Plan, action: MovedTable, metadata: Java) -> None:
    """Raise PlanConflict if the table has changed since the plan."""
    if str(metadata.uuid()) != action.table_uuid:
        raise PlanConflict(plan.plan_id, f"the {action.table or 'log'} is another table than was planned for")
    current = _snapshot(metadata)
    if current != action.snapshot_id:
        raise PlanConflict(plan.plan_id, f"the {action.table or 'log'} has changed since it was planned", rival=f"snapshot {current}")


def _snapshot(metadata: Java) -> int | None:
    current = metadata.currentSnapshot()
    return None if current is None else int(current.snapshotId())


@contextmanager
def _not_gone(plan: Plan, action: MovedTable) -> Iterator[None]:
    try:
        yield
    except TableGone:
        raise _gone(plan, action) from None


def _gone(plan: Plan, action: MovedTable) -> PlanConflict:
    return PlanConflict(plan.plan_id, f"the {action.table or 'log'} is not there any more")


def _name_taken(plan: Plan) -> PlanConflict:
    return PlanConflict(plan.plan_id, "another table has the name of one that would move")


# The number of a table's rows by its manifests, counted twice by two readers.


_PICK = picking("content", "file_path", "record_count", "file_size_in_bytes", "referenced_data_file")


def rows_by_manifests(table: Table, snapshot_id: int | None) -> tuple[int, int]:
    """Rows that no vector marks, and bytes of the data files, at the snapshot. None: nothing was ever written."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    rows, sizes, marked = dict[str, int](), dict[str, int](), dict[str, int]()
    for manifest in () if snapshot is None else manifests_of(table, snapshot):
        for status, _, (content, path, count, size, referenced) in entries(table.io, manifest, _PICK):
            if status == DELETED_ENTRY:
                continue
            if manifest.content == ManifestContent.DATA:
                rows[path], sizes[path] = count, size
            elif content == DataFileContent.POSITION_DELETES and referenced:
                marked[referenced] = count
    return sum(count - marked.get(path, 0) for path, count in rows.items()), sum(sizes.values())


def rows_by_pyiceberg(table: Table) -> int:
    """Count the live rows of the newest snapshot. PyIceberg's own reader of manifests cannot say which file a vector belongs to."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    with reading(snapshot.manifest_list):
        manifests = snapshot.manifests(table.io)
    found = [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
    data = sum(file.record_count for file in found if int(file.content) == DataFileContent.DATA)
    return data - sum(file.record_count for file in found if int(file.content) == DataFileContent.POSITION_DELETES)
