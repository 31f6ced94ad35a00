"""Reclaim the space of deleted topics (DEL-7).

A reclaim has three steps, and each step can be repeated. First, the reclaimer records the plan on the namespace, with its tables and their
locations. Second, the catalog forgets the tables one by one; each must be as planned. Third, the reclaimer deletes exactly the listed
files.

A plan has begun once one of its tables is gone. The record then shows a later run the unfinished work, because no table can show it any
more. A record whose tables all exist has begun nothing.

Some catalogs give out storage keys for each table. The keys of a forgotten table are lost with the run that had them. A later run registers
the table again by the metadata that the plan names, receives the keys, and lets the catalog forget the table again. So the run deletes the
metadata last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from message_lifecycle.model.change import MovedTable
from message_lifecycle.model.errors import PlanConflict, Unavailable, UnsafePath, storage_refused
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import BegunReclaim, DeletedTopic, TableFiles, TopicTable
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.iceberg import catalog
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.history import NamedFile, all_named, inventory
from message_lifecycle.stores.iceberg.java import Java, Jvm, identifier, java_class, result_unknown, texts, thrown
from message_lifecycle.stores.iceberg.layout import DELETED
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.new_table import uuid_at
from message_lifecycle.stores.iceberg.pointers import Place, reaching_catalog
from message_lifecycle.stores.iceberg.reclaim_evidence import find_named_files, lies_below
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.table_files import Deleted, delete_files, kept_of_removed, list_files
from message_lifecycle.stores.iceberg.table_folder import TableDocument, Within, is_absolute, location_prefix
from message_lifecycle.stores.iceberg.topic_delete import deleted_table_place

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO


_WORD = "lifecycle.reclaiming."
_FROM = "lifecycle.reclaiming_from."
"""The first part of a property's name; the plan, a number and the table's uuid follow. Older properties have no uuid.

The property's text is the location of a table, because the record has no room for it.
"""
_BEGUN = "begun"
_SHOWN = 3
_ROOM = 300
_ALL = 2**62


class IcebergDeletedReclaimer(WithNamedErrors, ChangeStore):
    """Implements `ports.DeletedReclaimer`.

    Args:
        scratch: See `IcebergDeleter`.
        steps: Called with the name of each step: `before_commit` after the record is written, `inside_commit` after each table,
            `after_commit`, `while_deleting`, `after_delete`, `before_close`.
    """

    def __init__(self, tables: Tables | None = None, *, scratch: bool = False, steps: Callable[[str], None] | None = None) -> None:
        self._tables, self._scratch, self._steps = tables or Tables(), scratch, steps or (lambda _: None)
        self._ways: dict[str, FileIO] = {}

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:
        found = {table.table: self._document(table.table_uuid) for table in topic.tables}
        gone = [kind or "log" for kind, document in found.items() if document is None]
        if gone:
            raise storage_refused(", ".join(gone), f"the catalog has no such table of the topic {topic.topic} any more")
        there = {kind: document for kind, document in found.items() if document is not None}
        self._check_alone({document.uuid: str(document.content["location"]) for document in there.values()})
        return [self._files(table, there[table.table], orphans_before) for table in topic.tables]

    def evidence(self, plan: Plan, _staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        return drop_evidence(self._tables, plan, policy)

    def publish(self, verdict: Verdict, _given: CommitContext) -> Published:
        plan = verdict.plan
        if not self.has_begun(plan):
            for action in plan.dropped_tables:
                self._check_as_planned(plan, action)
            # The approval may have taken a day. Another user may have made a table of these files meanwhile.
            self._check_alone({action.table_uuid: action.location for action in plan.dropped_tables})
            places = {f"{_FROM}{plan.plan_id}.{at}.{action.table_uuid}": action.location for at, action in enumerate(plan.dropped_tables)}
            set_namespace_properties({_WORD + plan.plan_id: _text({"topic": str(plan.topic), "scratch": self._scratch}), **places})
            self._steps("before_commit")
        return self.finish(plan)

    def has_begun(self, plan: Plan) -> bool:
        return self._has_begun(plan.plan_id, namespace_properties(self._tables.catalog))

    def _has_begun(self, plan_id: str, there: Mapping[str, str]) -> bool:
        if _WORD + plan_id not in there:
            return False
        if json.loads(there[_WORD + plan_id]).get(_BEGUN):
            return True  # even with a table in the catalog: a later run may have registered it again
        uuids = [name.removeprefix(f"{_FROM}{plan_id}.").partition(".")[2] for name in there if name.startswith(f"{_FROM}{plan_id}.")]
        return any(not uuid or self._location(deleted_table_place(uuid)) is None for uuid in uuids) or not uuids

    def finish(self, plan: Plan) -> Published:
        done = self.find_published(plan)
        if done is not None:
            return done
        standing = [action for action in plan.dropped_tables if self._location(deleted_table_place(action.table_uuid)) is not None]
        locations = {action.table_uuid: action.location for action in plan.dropped_tables}
        # Check every table before the first one is forgotten: one changed table keeps the others.
        for action in standing:
            self._check_as_planned(plan, action)
        self._check_alone(locations)
        for action in standing:
            place = deleted_table_place(action.table_uuid)
            found = self._location(place)
            if found is not None:  # only the table's own I/O may reach its files, so keep it now
                self._ways[action.location] = self._tables.pointers.file_io(place, found)
            forget(place)
            self._steps("inside_commit")
        for action in plan.dropped_tables:
            if action not in standing:
                self._reach(plan, action)
        self._steps("after_commit")
        # A missing table may not be forgotten by us: another user may have renamed it, and it lives.
        self._check_alone(locations)
        gone = Deleted()
        newest = {action.location: action.metadata for action in plan.dropped_tables}
        removals = [(locations[change.table_uuid], removal.files) for change in plan.forgets for removal in change.files]
        first = [(location, [name for name in names if name != newest[location]]) for location, names in removals]
        last = [(location, [name for name in names if name == newest[location]]) for location, names in removals]
        for at, (location, names) in enumerate(group for group in (*first, *last) if group[1]):
            if at:
                self._steps("while_deleting")
            gone += delete_files(self._io(location), location, names)
        self._steps("after_delete")
        kept = "; ".join(kept_of_removed((self._io(location), location) for location in locations.values()))
        word = {"topic": str(plan.topic), "scratch": self._scratch, "files": gone.files, "bytes": gone.size_bytes, "kept": _cut(kept)}
        if self._begun_record(plan) is not None:
            set_namespace_properties({_WORD + plan.plan_id: _text(word)})
        return _published(plan, word)

    def find_published(self, plan: Plan) -> Published | None:
        word = self._begun_record(plan)
        return None if word is None or "files" not in word else _published(plan, word)

    def find_unapplied(self, plan: Plan) -> Sequence[str]:
        files: list[str] = []
        for action in plan.dropped_tables:
            try:
                files += (
                    f"{file.name} below {action.location} is still there" for file in list_files(self._io(action.location), action.location)
                )
            except Unavailable:
                # The keys are lost with the table. The run that deleted the files has already checked that they are gone.
                if self.find_published(plan) is None:
                    raise
        return [
            *(
                f"the table {'.'.join(place)} is still there"
                for action in plan.dropped_tables
                if self._location(place := deleted_table_place(action.table_uuid))
            ),
            *files,
        ]

    def discard(self, plan: Plan) -> None:
        if self.find_published(plan) is not None:
            self._steps("before_close")
            self.forget(plan.plan_id)
        elif not self.has_begun(plan):
            self.forget(plan.plan_id)

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        there = namespace_properties(self._tables.catalog)
        found = {name.removeprefix(_WORD): json.loads(text) for name, text in there.items() if name.startswith(_WORD)}
        mine = {plan_id: word for plan_id, word in found.items() if word["scratch"] is self._scratch and self._has_begun(plan_id, there)}
        return {
            plan_id: BegunReclaim(
                topic=TopicName.parse(word["topic"]),
                locations=tuple(text for name, text in sorted(there.items()) if name.startswith(f"{_FROM}{plan_id}.")),
                removed="files" in word,
            )
            for plan_id, word in mine.items()
        }

    def remaining_files(self, plan_id: str) -> Sequence[str]:
        mine = [location for location in self.unfinished()[plan_id].locations if self._is_nobodys(location)]
        return [f"{at}/{name}" for at in mine for name in nsmallest(_SHOWN, (file.name for file in list_files(self._io(at), at)))]

    def forget(self, plan_id: str) -> None:
        places = {name for name in namespace_properties(self._tables.catalog) if name.startswith(f"{_FROM}{plan_id}.")}
        remove_namespace_properties(self._tables.catalog, {_WORD + plan_id, *places})

    def _is_nobodys(self, location: str) -> bool:
        try:
            catalog.check_places_not_shared(self._tables, {(DELETED, ""): Within(location)})
        except UnsafePath:
            return False
        return True

    def _files(self, table: TopicTable, document: TableDocument, orphans_before: Instant) -> TableFiles:
        location = str(document.content["location"])
        within, io = Within(location), self._tables.pointers.file_io(deleted_table_place(table.table_uuid), document.location)
        metadata = within.name(document.location)
        with inventory() as found:
            try:
                found.add_named(all_named(io, document.content, kept=()))
            except FileNotFoundError as gone:
                # The files that it named are unknown, and may lie outside the location.
                raise storage_refused(str(gone.filename or location), "it is not there, and a snapshot is read through it") from gone
            outside = next((name for name, _ in found.unneeded() if is_absolute(name)), None)
            if outside is not None:
                raise UnsafePath(
                    outside, f"a file of the deleted table {'.'.join(deleted_table_place(table.table_uuid))} outside of its location"
                )
            log = [within.name(entry["metadata-file"]) for entry in document.content.get("metadata-log") or ()]
            found.add_named(NamedFile(name, "metadata", kept=False) for name in (metadata, *log))
            found.add_listed(list_files(io, location))
            young = found.orphans(before_ms=_ALL, limit=_ALL)
            old = {file.name for file in found.orphans(before_ms=orphans_before // 1_000, limit=_ALL)}
            files = [*found.going(_ALL), *young, *found.going(_ALL, metadata=True)]
        if metadata not in {file.name for file in files}:
            raise UnsafePath(location, "no metadata of the table, where its newest should lie")
        return TableFiles(
            table=table,
            location=location,
            metadata=metadata,
            files=tuple(sorted((file.name, file.kind, file.size_bytes) for file in files)),
            young=next((file.name for file in young if file.name not in old), None),
        )

    def _check_as_planned(self, plan: Plan, action: MovedTable) -> None:
        what, document = action.table or "log", self._document(action.table_uuid)
        if document is None:
            raise PlanConflict(plan.plan_id, f"the {what} is not there any more")
        location = str(document.content["location"])
        if (document.uuid, location, Within(location).name(document.location)) != (action.table_uuid, action.location, action.metadata):
            raise PlanConflict(plan.plan_id, f"the {what} has changed since it was planned")

    def _check_alone(self, locations: Mapping[str, str]) -> None:
        catalog.check_places_not_shared(self._tables, {deleted_table_place(uuid): Within(location) for uuid, location in locations.items()})

    def _document(self, table_uuid: str) -> TableDocument | None:
        return self._tables.find(deleted_table_place(table_uuid))

    def _location(self, place: Place) -> str | None:
        return self._tables.pointers.one(place)

    def _io(self, location: str) -> FileIO:
        """Return the table's own I/O if this run remembers it, else the catalog's."""
        return self._ways.get(location) or self._tables.file_io(location)

    def _reach(self, plan: Plan, action: MovedTable) -> None:
        """Get access to the files of a table that the catalog has forgotten. Raises StorageRefused if there is none."""
        try:
            next(iter(list_files(self._io(action.location), action.location)), None)
        except Unavailable:
            place = deleted_table_place(action.table_uuid)
            set_namespace_properties({_WORD + plan.plan_id: _text({"topic": str(plan.topic), "scratch": self._scratch, _BEGUN: True})})
            if not register_again(place, location_prefix(action.location) + action.metadata):
                raise
            found = self._location(place)
            if found is not None:
                self._ways[action.location] = self._tables.pointers.file_io(place, found)
            forget(place)

    def _begun_record(self, plan: Plan) -> dict[str, Any] | None:
        text = namespace_properties(self._tables.catalog).get(_WORD + plan.plan_id)
        return None if text is None else dict(json.loads(text))


def _text(word: Mapping[str, object]) -> str:
    """Return the record as text, with names unescaped: a namespace's property has room for 1,000 characters."""
    return json.dumps(word, ensure_ascii=False)


def _cut(text: str) -> str:
    """Shorten the text, so that it fits next to the longest name."""
    return text if len(text) <= _ROOM else f"{text[: _ROOM - 1]}…"


def _published(plan: Plan, word: Mapping[str, Any]) -> Published:
    return Published(
        plan_id=plan.plan_id,
        snapshot_id=plan.requirements.snapshot_id or 0,
        removed=(),
        reclaimed_files=int(word["files"]),
        reclaimed_bytes=int(word["bytes"]),
        kept_beneath=(word["kept"],) if word.get("kept") else (),
    )


# Evidence for the gate about a reclaim: a second inspection, by PyIceberg's own readers.


_LISTED = 100
_WRONG = ("outside", "unlisted", "fresh")


def drop_evidence(tables: Tables, plan: Plan, policy: Policy) -> Mapping[str, object]:
    """Return the frames `tables`, `figures`, and one frame for each kind of error."""
    import pyarrow as pa

    wrong: dict[str, list[str]] = {frame: [] for frame in _WRONG}
    figures = {"files": 0, "bytes": 0, "asks": len(plan.asks)}
    same = [_look(tables, plan, policy, action, wrong, figures) for action in plan.dropped_tables]
    return {
        **{frame: pa.table({"name": pa.array(names[:_LISTED], pa.string())}) for frame, names in wrong.items()},
        "tables": pa.table({"same": pa.array(same, pa.bool_())}),
        "figures": pa.Table.from_pylist([figures]),
    }


def _look(tables: Tables, plan: Plan, policy: Policy, action: MovedTable, wrong: dict[str, list[str]], figures: dict[str, int]) -> bool:
    place = deleted_table_place(action.table_uuid)
    try:
        with reaching_catalog():
            table = tables.catalog.load_table(place)
    except NoSuchTableError:
        return False
    mine = (change for change in plan.forgets if change.table_uuid == action.table_uuid)
    roles = {name: removal.role for change in mine for removal in change.files for name in removal.files}
    outside = wrong["outside"]
    outside += (name for name in roles if not lies_below(table, name))
    try:
        outside += (file.name for file in find_named_files(table, table.metadata.snapshots) if is_absolute(file.name))
        catalog.check_places_not_shared(tables, {place: Within(table.location())})
        for file in list_files(table.io, table.location()):
            if file.name not in roles:
                wrong["unlisted"].append(file.name)
                continue
            figures["files"] += 1
            figures["bytes"] += file.size_bytes
            if roles[file.name] == "orphan" and file.changed_at_ms * 1_000 > plan.as_of - policy.orphan_age_us:
                wrong["fresh"].append(file.name)
    except UnsafePath as unsafe:
        outside.append(str(unsafe))
    found = (str(table.metadata.table_uuid), table.metadata.current_snapshot_id, table.location(), table.metadata_location)
    return found == (action.table_uuid, action.snapshot_id, action.location, location_prefix(action.location) + action.metadata)


# Remove tables from the catalog, and record the plan on their namespace.


def forget(place: Place) -> None:
    """Remove the table from the catalog, without touching its files. A missing table counts as success."""
    jvm = engine_of_process()
    with engine_failures():
        try:
            jvm.lake.dropTable(identifier(jvm, place), False)
        except thrown() as error:
            # The keys to its files are lost with the table: a later run may have none.
            if not result_unknown(error) or uuid_at(jvm, place) is not None:
                raise


def register_again(place: Place, metadata_location: str) -> bool:
    """Register a forgotten table again, and return whether the catalog accepted it.

    Another table with the name stays. A catalog may not support registration, and the metadata may be missing.
    """
    jvm = engine_of_process()
    with engine_failures():
        try:
            jvm.lake.registerTable(identifier(jvm, place), metadata_location)
        except thrown() as error:
            if result_unknown(error) or not java_class(error):
                raise
            return False
    return True


def namespace_properties(catalog: Catalog) -> Mapping[str, str]:
    """Return the properties of the namespace by name, including properties of other origin."""
    with reaching_catalog():
        try:
            return catalog.load_namespace_properties(DELETED)
        except NoSuchNamespaceError:
            return {}


def set_namespace_properties(words: Mapping[str, str]) -> None:
    """Set properties of the namespace. Existing texts are overwritten."""
    jvm = engine_of_process()
    with engine_failures():
        jvm.lake.setProperties(_namespace(jvm), dict(words))


def remove_namespace_properties(catalog: Catalog, names: Collection[str]) -> None:
    """Remove properties of the namespace. A missing property counts as success."""
    there = namespace_properties(catalog).keys() & set(names)
    if there:
        jvm = engine_of_process()
        with engine_failures():
            jvm.lake.removeProperties(_namespace(jvm), there)


def _namespace(jvm: Jvm) -> Java:
    return jvm.jvm.org.apache.iceberg.catalog.Namespace.of(texts(jvm, DELETED))
