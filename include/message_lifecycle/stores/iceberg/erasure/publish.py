"""Stage an erasure, and commit it once per table."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from message_lifecycle.model.change import Rewrite
from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import PlanConflict, TableUnreadable
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.erasure.looking import Looks
from message_lifecycle.stores.iceberg.erasure.metadata import MetadataRewrite, read_unreachable_list
from message_lifecycle.stores.iceberg.erasure.rewrite import KeyRowFinder, Manifests, NewFile, from_json, opened, rewrite, to_json
from message_lifecycle.stores.iceberg.erasure.search import MAIN, Heads, UndoWindow, ancestors, search
from message_lifecycle.stores.iceberg.fence import witness_of
from message_lifecycle.stores.iceberg.history import reachable, snapshot_ids
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import ERASING, PLAN_ID
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.table_files import Deleted, delete_files, list_files, owner_of, with_checksums
from message_lifecycle.stores.iceberg.table_folder import ID_IN_NAMES, Within, absolute, erased_copy, is_absolute, location_prefix, reading
from message_lifecycle.stores.iceberg.table_metadata import (
    Document,
    TableGone,
    change_metadata,
    changed_metadata,
    current_metadata,
    document_of,
    set_properties,
)
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.data_rows import Positions

# One erasure makes one commit per table, then deletes the files that nothing names any more.
#
# The commit replaces the table's metadata. In the new metadata every ref reads a table without the key, and the older history reads no
# file. Readers see the whole change or nothing.
#
# Before the commit, the erasure writes a list of all files that the commit makes unreachable. The commit names that list in a table
# property, so a later run can finish the work of a run that died.
#
# The erasure searches messages that were appended since the plan. If they hold the key, the commit fails and the caller must plan again.


Steps = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErasure:
    """One table's part of a plan.

    Attributes:
        files: The files that staging wrote, by the path of the old file.
        held: All paths that held the key, including paths that only history names.
        memories: How many removed rows are remembered keys, not messages (CMP-12).
    """

    catalog: Catalog
    place: Place
    io: FileIO
    plan_id: str
    window: UndoWindow
    action: Rewrite
    files: Mapping[str, NewFile]
    held: frozenset[str]
    memories: int
    steps: Steps

    def metadata_rewrite(self, summary: Mapping[str, str]) -> MetadataRewrite:
        return MetadataRewrite(
            io=self.io,
            plan_id=self.plan_id,
            attempt=f"{self.plan_id[:ID_IN_NAMES]}-{secrets.token_hex(8)}",
            files=self.files,
            held=self.held,
            summary=summary,
            window=self.window,
            now_ms=time.time_ns() // 1_000_000,
            memories=self.memories,
        )

    def commit(self, summary: Mapping[str, str], matches: KeyMatch) -> None:
        """Commit the erasure, unless an earlier run has committed it.

        Raises:
            PlanConflict: The table is missing, has changed since the plan, or got messages of the key.
            TableBusy: Other commits kept coming first.
            CommitUnknown: The catalog's answer is missing.
        """

        def change(base: Java, builder: Java) -> None:
            before = document_of(base)
            if is_done(before, self.plan_id):
                return
            self.check(before, matches)
            self.metadata_rewrite(summary).change(base, builder)
            name = unreachable_list_name(self.plan_id)
            going = sorted(self._unreachable_files(before, document_of(builder.build()), str(base.metadataFileLocation())))
            with self.io.new_output(f"{before['location']}/{name}").create(overwrite=True) as stream:
                stream.write(json.dumps(going).encode())
            set_properties(base, builder, {ERASING: name, **witness_of(builder.build(), base)})
            self.steps("inside_commit")

        self.steps("before_commit")
        try:
            change_metadata(self.place, change, what=f"erasing by plan {self.plan_id}")
        except TableGone:
            raise PlanConflict(self.plan_id, "the table is not there any more") from None
        self.steps("after_commit")

    def _unreachable_files(self, before: Document, after: Document, metadata_location: str) -> set[str]:
        within = Within(str(before["location"]))
        old = {file.name for file in reachable(self.io, before, snapshot_ids(before))}
        new = {file.name for file in reachable(self.io, after, snapshot_ids(after))}
        # The metadata log also names files that were deleted long ago.
        logged = (str(entry["metadata-file"]) for entry in before.get("metadata-log") or ())
        there = [path for path in logged if self.io.new_input(path).exists()]
        gone = (old - new) | {within.name(path) for path in (*there, metadata_location)}
        # Include files of the plan that no snapshot ever named.
        return {name for name in gone | (set(self.action.files) - new) if not is_absolute(name)}

    def check(self, document: Document, matches: KeyMatch) -> None:
        """Check that main got only appends without the key since the plan, and that no other ref and no open undo changed.

        Raises:
            PlanConflict: Something else changed, or an appended message has the key.
        """
        if str(document["table-uuid"]) != self.action.table_uuid:
            raise PlanConflict(self.plan_id, "the table is another one now")
        heads = Heads.of(document, self.window)
        planned = dict(self.action.refs)
        if {name: at for name, at in heads.refs.items() if name != MAIN} != {name: at for name, at in planned.items() if name != MAIN}:
            raise PlanConflict(self.plan_id, "branches or tags of the table have changed since it was planned")
        if dict(heads.undo) != dict(self.action.undo):
            raise PlanConflict(self.plan_id, "which plans can be undone has changed since it was planned")
        base = planned.get(MAIN)
        came = []
        for snapshot in ancestors(document, heads.main):
            if snapshot["snapshot-id"] == base:
                break
            rival = snapshot["summary"].get(PLAN_ID)
            if snapshot["summary"].get("operation") != "append" or rival is not None:
                raise PlanConflict(
                    self.plan_id,
                    f"a conflicting {snapshot['summary'].get('operation')} came first",
                    rival=rival or f"snapshot {snapshot['snapshot-id']}",
                )
            came.append(snapshot)
        else:
            if base is not None:
                raise PlanConflict(self.plan_id, f"its snapshot {base} is not among the ancestors of main")
        self._search_new(document, matches)

    def _search_new(self, document: Document, matches: KeyMatch) -> None:
        """Search all new data files, including files on branches of batches that died."""
        manifests, known, rows_of = Manifests(self.io), set[str](), KeyRowFinder(matches)
        planned = set(self.action.snapshots)
        for old in (True, False):
            for snapshot in document["snapshots"]:
                if (snapshot["snapshot-id"] in planned) is not old:
                    continue
                for manifest in manifests.of(snapshot["manifest-list"]):
                    for entry in manifest.entries if manifest.of_data else ():
                        if entry.path in known or not entry.live:
                            continue
                        known.add(entry.path)
                        if not old and len(rows_of(self.io, entry.path, self.action.table)):
                            raise PlanConflict(self.plan_id, "messages of a requested key were appended since it was planned")

    def finish(self) -> Deleted:
        """Delete the files that the commit made unreachable. A file that is already missing counts as success."""
        document, going = load_with_unreachable_files(self.catalog, self.place, self.io)
        if ERASING not in document["properties"]:
            return Deleted()
        self.steps("before_delete")
        if going:
            half = len(going) // 2
            delete_files(self.io, str(document["location"]), with_checksums(going[:half]))
            self.steps("inside_delete")
            deleted = delete_files(self.io, str(document["location"]), with_checksums(going[half:]))
        self.steps("after_delete")
        return deleted if going else Deleted()


def unreachable_list_name(plan_id: str) -> str:
    """Return the name of the list of unreachable files.

    The attempts of a plan share this name: a later attempt overwrites the list, and the plan's end deletes it.
    """
    return f"metadata/erasure-{plan_id}.going.json"


def is_done(document: Document, plan_id: str) -> bool:
    """Return whether the plan's commit is on main."""
    head = document.get("refs", {}).get(MAIN)
    return head is not None and any(one["summary"].get(PLAN_ID) == plan_id for one in ancestors(document, int(head["snapshot-id"])))


def delete_unreachable_list(catalog: Catalog, place: Place, io: FileIO) -> None:
    """Delete the list of unreachable files: the erasure has ended and its receipt is stored."""
    document = load(catalog, place, io)
    name = document["properties"].get(ERASING)
    if name is None:
        return

    def end(base: Java, builder: Java) -> None:
        if base.properties().get(ERASING) == name:  # else another erasure has put its own list there
            set_properties(base, builder, {ERASING: None})

    change_metadata(place, end, what="ending an erasure")
    delete_files(io, str(document["location"]), with_checksums([name]))


def load(catalog: Catalog, place: Place, io: FileIO) -> Document:
    return document_at(io, catalog.load_table(place).metadata_location)


def document_at(io: FileIO, metadata_location: str) -> Document:
    with reading(metadata_location), io.new_input(metadata_location).open() as stream:
        found: Document = json.loads(stream.read())
    return found


def load_with_unreachable_files(catalog: Catalog, place: Place, io: FileIO) -> tuple[Document, list[str]]:
    """Return the table's metadata and the files that its erasure's commit made unreachable (see `read_unreachable_list`).

    Another run of the same plan may end the erasure between the two reads and delete the list; the function then reads again.

    Raises:
        TableUnreadable: The table names the list, but the list is missing. A copy of the table, for example, has the name and no list.
    """
    document = load(catalog, place, io)
    try:
        return document, read_unreachable_list(io, document)
    except FileNotFoundError as gone:
        again, name = load(catalog, place, io), document["properties"][ERASING]
        if again["properties"].get(ERASING) == name:
            raise TableUnreadable(".".join(place), f"{again['location']}/{name}", "no such file") from gone
        return again, read_unreachable_list(io, again)


# Staging rewrites every file that holds the key, and writes the metadata that would publish these files.
#
# Staged files are unreachable for readers. The last staged file lists the others. If that list is missing, a run died before its end, and
# staging writes all files again under the same names. The staged metadata describes a whole table, which the gate reads as any reader
# would.


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """The stage of one table.

    Attributes:
        base: The location of the metadata that the stage was built on.
        memories: How many removed rows are remembered keys, not messages (CMP-12).
    """

    base: str
    files: tuple[NewFile, ...]
    memories: int


def stage_name(plan_id: str) -> str:
    return f"metadata/erasure-{plan_id}.staged.json"


def metadata_name(plan_id: str) -> str:
    return f"metadata/erasure-{plan_id}.metadata.json"


def read_stage(io: FileIO, document: Document, plan_id: str) -> StagedTable | None:
    """Return the stage of a plan; None if there is no complete stage."""
    try:
        with io.new_input(f"{document['location']}/{stage_name(plan_id)}").open() as stream:
            content = json.loads(stream.read())
    except FileNotFoundError:
        return None
    return StagedTable(base=content["base"], files=from_json(json.dumps(content["files"]).encode()), memories=content["memories"])


def stage_table(catalog: Catalog, place: Place, io: FileIO, plan: Plan, action: Rewrite, window: UndoWindow, matches: KeyMatch) -> None:
    """Stage one table, unless its stage is complete or its commit is published.

    Raises:
        PlanConflict: The table is missing or has changed since the plan, or the key is in other places than planned.
    """
    try:
        metadata = current_metadata(place)
    except TableGone:
        raise PlanConflict(plan.plan_id, "the table is not there any more") from None
    base, document = str(metadata.metadataFileLocation()), document_of(metadata)
    if read_stage(io, document, plan.plan_id) is not None or is_done(document, plan.plan_id):
        return
    prefix = location_prefix(str(document["location"]))
    named = {absolute(prefix, row.file) for row in action.rows}
    erasure = TableErasure(
        catalog=catalog,
        place=place,
        io=io,
        plan_id=plan.plan_id,
        window=window,
        action=action,
        files={},
        held=frozenset(named | {absolute(prefix, name) for name in action.files}),
        memories=0,
        steps=lambda _: None,
    )
    # Files never change. The plan knows which of its files hold the key, this check searches newer files, and the gate searches all files.
    erasure.check(dict(document), matches)
    looks = Looks(io=io, store=Store.of_io(io, str(document["location"])), kind=action.table, rows_of=KeyRowFinder(matches))
    found = search(looks, document, window, among=named)
    planned = {row.file: (row.offsets, row.rows, row.live) for row in action.rows}
    if {file.name: (file.offsets, file.rows, file.live) for file in found.summary.files if file.needed} != planned:
        raise PlanConflict(plan.plan_id, "the requested keys lie elsewhere than when it was planned")
    files, memories = [], 0
    for number, row in enumerate(action.rows):
        old = absolute(prefix, row.file)
        folder, _, _ = old.rpartition("/")
        name = erased_copy(plan.plan_id, number)
        memories += _memories(io, old, found.positions[old]) if old in found.on_main else 0
        files.append(
            rewrite(
                io,
                old,
                found.positions[old],
                f"{folder}/{name}.parquet",
                found.vectors.get(old, ()),
                new_puffin=f"{document['location']}/data/{name}",
                within=".".join(place),
            )
        )
    erasure = replace(erasure, files={file.old: file for file in files}, memories=memories)
    after = changed_metadata(metadata, erasure.metadata_rewrite({}).change)
    _write(io, f"{document['location']}/{metadata_name(plan.plan_id)}", json.dumps(document_of(after)).encode())
    content = {"base": base, "files": json.loads(to_json(files)), "memories": memories}
    _write(io, f"{document['location']}/{stage_name(plan.plan_id)}", json.dumps(content).encode())


def drop_stage(io: FileIO, document: Document, plan_id: str) -> None:
    """Delete the plan's leftover files: files that carry its id and that no snapshot reads.

    The work may be complete or broken off, and it is no error if it left no file. Files of a published plan stay, because snapshots read
    them.

    Raises:
        UnsafePath: A link, or something else that is no plain file, is in the way.
        StorageRefused: The storage refused to list, read or delete a file.
    """
    location = str(document["location"])
    own = [file.name for file in list_files(io, location) if plan_id[:ID_IN_NAMES] in file.name.rpartition("/")[2]]
    if own:
        read = {file.name for file in reachable(io, document, snapshot_ids(document))} | {str(document["properties"].get(ERASING))}
        delete_files(io, location, (name for name in own if owner_of(name) not in read))


def _memories(io: FileIO, path: str, positions: Positions) -> int:
    import pyarrow as pa

    with opened(io, path) as file:
        if "remembered" not in file.schema_arrow.names:
            return 0
        found = file.read(columns=["remembered"])["remembered"].take(pa.array(positions))
        return sum(value is True for value in found.to_pylist())


def _write(io: FileIO, path: str, content: bytes) -> None:
    with io.new_output(path).create(overwrite=True) as stream:
        stream.write(content)
