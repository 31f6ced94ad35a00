"""The table metadata that an erasure commits: every ref points at a snapshot without the key, and the older history reads no file.

An erasure makes one change of Iceberg's metadata. The change adds snapshots, moves the refs to them and removes the old snapshots.

The manifests and manifest lists of the new snapshots are written first; nothing points at them until the commit. If another writer commits
first, the erasure repeats the change on the newer metadata. A repeat costs only the manifests that change.

A manifest must change if it names a file that held the key, or if it keeps bounds of keys of removed files. The new manifest has no entries
of removed files.

The first snapshot of a new history names, as its parent, the removed snapshot that it replaces. A catalog server that applies the change to
newer metadata can then check that this snapshot was still the newest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.erasure.rewrite import (
    ADDED,
    EXISTING,
    Entry,
    Fields,
    Manifest,
    Manifests,
    NewFile,
    NewVector,
    Replacements,
    opened,
    tells_of_gone,
    write_list,
    write_manifest,
)
from message_lifecycle.stores.iceberg.erasure.search import MAIN, Heads, UndoWindow, ancestors
from message_lifecycle.stores.iceberg.history import progress_records, snapshot_ids
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, ERASING, HORIZONS, LEDGER, MEMORIES, STATE_KEYS, VIEW_KEYS
from message_lifecycle.stores.iceberg.table_folder import Metadata
from message_lifecycle.stores.iceberg.table_metadata import Document, document_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


_TOTALS = (
    "total-records",
    "total-files-size",
    "total-data-files",
    "total-delete-files",
    "total-position-deletes",
    "total-equality-deletes",
)


Snapshot = Document


# An erasure ends a branch's history but keeps the progress of other writers.
#
# An exactly-once writer (Flink, Kafka Connect, a Spark stream) reads its progress from its newest snapshot in the branch's history. Without
# that progress it would write the same messages again, and the erased key with them.
#
# A summary has room for one progress entry of each kind. Entries that do not fit into the head's summary go to carriers: earlier snapshots
# that read no file, so no erased row returns.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The new snapshots and refs of a table.

    Attributes:
        snapshots: All snapshots that the table keeps, in the order of their sequence numbers.
        new: The new or changed snapshots of the table, main's head last.
        refs: All refs of the table.
    """

    snapshots: Sequence[Snapshot]
    new: Sequence[Snapshot]
    refs: Mapping[str, Metadata]


@dataclass(slots=True)
class _Written:
    """Counts of the files and rows that one new snapshot removes and adds, for its summary."""

    manifests: list[Fields] = field(default_factory=list)
    deleted_files: int = 0
    deleted_records: int = 0
    deleted_bytes: int = 0
    added_files: int = 0
    added_records: int = 0
    added_bytes: int = 0
    removed_vectors: int = 0
    removed_marks: int = 0
    added_vectors: int = 0
    added_marks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRewrite:
    """Builds the change of one table's metadata.

    Attributes:
        plan_id: The plan's id. The ids of the new snapshots derive from it.
        attempt: A part of the names of the new manifests and lists.
        files: The new data files.
        held: All paths that held the key, including paths that only history names.
        summary: Properties of main's new snapshot.
        window: Decides which undo is still open.
        memories: How many removed rows of the view are remembered keys, not messages (CMP-12).
    """

    io: FileIO
    plan_id: str
    attempt: str
    files: Replacements
    held: Collection[str]
    summary: Mapping[str, str]
    window: UndoWindow
    now_ms: int
    memories: int = 0

    def change(self, base: Java, builder: Java) -> None:
        """Apply the erasure to a builder of new metadata (see `change_metadata`). New files go to the table's folder `metadata`."""
        before, iceberg = self._with_state(document_of(base)), engine_of_process().jvm.org.apache.iceberg
        made = self._made(before)
        for key, remove in (("statistics", builder.removeStatistics), ("partition-statistics", builder.removePartitionStatistics)):
            for entry in before.get(key) or ():
                remove(entry["snapshot-id"])
        there, stay = set(snapshot_ids(before)), {int(one["snapshot-id"]) for one in made.snapshots}
        again = {int(one["snapshot-id"]) for one in made.new} & there
        _remove(base, builder, again)
        for snapshot in made.new:
            builder.addSnapshot(iceberg.SnapshotParser.fromJson(json.dumps(snapshot)))
        # Set main last: the timestamp of the metadata is the timestamp of the last ref set.
        for name, ref in sorted(made.refs.items(), key=lambda one: one[0] == MAIN):
            builder.setRef(name, iceberg.SnapshotRefParser.fromJson(json.dumps(ref)))
        for name in before["refs"].keys() - made.refs.keys():
            builder.removeRef(name)
        _remove(base, builder, there - stay)

    def _with_state(self, before: Document) -> Document:
        """Return the metadata with the log's or view's state in the head's summary. Another engine may have left the state out (MSG-4)."""
        from message_lifecycle.stores.iceberg.other_writers import state_of_metadata

        state, head = state_of_metadata(before, self.io), before.get("current-snapshot-id")
        for snapshot in before["snapshots"] if state else ():
            if snapshot["snapshot-id"] == head:
                snapshot["summary"] = {**snapshot["summary"], **state}
        return before

    def _made(self, before: Document) -> _Made:
        heads = Heads.of(before, self.window)
        document = {**before, "last-updated-ms": max(self.now_ms, int(before["last-updated-ms"]))}
        branches = {int(ref["snapshot-id"]) for ref in before["refs"].values() if ref["type"] == "branch"}
        heads_of, snapshots, manifests = dict[int, Snapshot](), list[Snapshot](), Manifests(self.io)
        for snapshot_id in sorted(heads.needed, key=lambda found: (found == heads.main, found)):
            words = progress_records(one.get("summary", {}) for one in ancestors(before, snapshot_id)) if snapshot_id in branches else []
            snapshots += self._snapshots(document, heads, snapshot_id, words, manifests)
            heads_of[snapshot_id] = snapshots[-1]
        refs = {
            name: _moved(ref, Heads.snapshot(before, int(ref["snapshot-id"])), heads_of[int(ref["snapshot-id"])])
            for name, ref in before["refs"].items()
            if name not in heads.stages
        }
        for plan_id, snapshot_id in heads.undo.items():
            head = heads_of[snapshot_id]
            age_ms = max(1, heads.undo_until[plan_id] - int(head["timestamp-ms"]))
            refs[undo_ref(plan_id)] = {"snapshot-id": head["snapshot-id"], "type": "branch", "max-ref-age-ms": age_ms}
        return _Made(snapshots=snapshots, new=[one for one in snapshots if one not in before["snapshots"]], refs=refs)

    def _snapshots(
        self, document: Document, heads: Heads, snapshot_id: int, words: Sequence[Mapping[str, str]], manifests: Manifests
    ) -> list[Snapshot]:
        """Return the snapshot that replaces this one, after its carriers.

        A snapshot without any trace of the key stays as it is. Carriers hold the entries of `words` that do not fit into the summary of the
        new snapshot.

        Args:
            document: The table's metadata; its sequence numbers advance.
            heads: The snapshots that stay readable.
            snapshot_id: The snapshot to replace.
            words: Progress of other writers, newest first.
            manifests: Reads manifests.
        """
        old = Heads.snapshot(document, snapshot_id)
        assert old is not None, "every head is a snapshot of the table"
        listed = manifests.of(old["manifest-list"])
        if snapshot_id == heads.main or any(self._touches(manifest) for manifest in listed):
            left = [word for word in words[1:] if not word.items() <= words[0].items()]
            carriers = self._carriers(document, old, left, timestamp_ms=document["last-updated-ms"], before=snapshot_id)
            parent = carriers[-1]["snapshot-id"] if carriers else snapshot_id
            return [*carriers, self._written(document, old, listed, parent, of_main=snapshot_id == heads.main)]
        left = [word for word in words if not word.items() <= old["summary"].items()]
        if not left:
            return [dict(old)]
        gone = (int(one["snapshot-id"]) for one in ancestors(document, snapshot_id))
        before = next((found for found in gone if found not in heads.needed), None)
        carriers = self._carriers(document, old, left, timestamp_ms=old["timestamp-ms"], before=before)
        return [*carriers, {**old, **_next(document, carriers[-1]["snapshot-id"])}]

    def _written(self, document: Document, old: Metadata, listed: Sequence[Manifest], parent: int, *, of_main: bool) -> Snapshot:
        snapshot_id = int(old["snapshot-id"])
        new_id = snapshot_id_of(self.plan_id, MAIN if of_main else str(snapshot_id))
        numbers = _next(document, parent)
        sequence_number, first_row_id = numbers["sequence-number"], numbers["first-row-id"]
        written = self._manifests(listed, document, new_id, sequence_number)
        next_row_id = first_row_id
        for fields in written.manifests:
            # New rows get unused row ids. Kept rows already carry explicit ids.
            if fields["content"] == 0 and fields["first_row_id"] is None:
                fields["first_row_id"] = next_row_id
                next_row_id += fields["added_rows_count"] + fields["existing_rows_count"]
        path = f"{document['location']}/metadata/snap-{new_id}-{self.attempt}.avro"
        write_list(self.io, path, written.manifests, snapshot_id=new_id, sequence_number=sequence_number, first_row_id=first_row_id)
        document["next-row-id"] = next_row_id
        return {
            **numbers,
            "snapshot-id": new_id,
            "timestamp-ms": document["last-updated-ms"],
            "summary": self._summary(document, snapshot_id, written, of_main=of_main),
            "manifest-list": path,
            "schema-id": old.get("schema-id", document["current-schema-id"]),
            "added-rows": next_row_id - first_row_id,
        }

    def _carriers(
        self, document: Document, old: Metadata, words: Sequence[Mapping[str, str]], *, timestamp_ms: int, before: int | None
    ) -> list[Snapshot]:
        """Write the carriers and return them, oldest first. Carriers share the head's timestamp, so they expire with the head.

        Args:
            document: The table's metadata; its sequence numbers advance.
            old: The replaced snapshot.
            words: The entries to carry, newest first.
            timestamp_ms: The time of the carriers.
            before: The removed snapshot that becomes the parent of the first carrier.
        """
        made: list[Snapshot] = []
        for number, word in enumerate(reversed(words)):
            new_id = snapshot_id_of(self.plan_id, f"{old['snapshot-id']} words {number}")
            path = f"{document['location']}/metadata/snap-{new_id}-{self.attempt}.avro"
            numbers = _next(document, made[-1]["snapshot-id"] if made else before)
            write_list(
                self.io, path, (), snapshot_id=new_id, sequence_number=numbers["sequence-number"], first_row_id=numbers["first-row-id"]
            )
            made.append(
                {
                    **numbers,
                    "snapshot-id": new_id,
                    "timestamp-ms": timestamp_ms,
                    # Readers of changes skip a snapshot with the operation "replace".
                    "summary": {"operation": "replace", **word},
                    "manifest-list": path,
                    **({"schema-id": old["schema-id"]} if "schema-id" in old else {}),
                }
            )
        return made

    def _touches(self, manifest: Manifest) -> bool:
        return tells_of_gone(manifest) or any(self._concerned(entry) for entry in manifest.entries)

    def _concerned(self, entry: Entry) -> bool:
        return entry.path in self.held or entry.file["referenced_data_file"] in self.held

    def _manifests(self, listed: Sequence[Manifest], document: Document, snapshot_id: int, sequence_number: int) -> _Written:
        written = _Written()
        for number, manifest in enumerate(listed):
            if not self._touches(manifest):
                written.manifests.append(dict(manifest.listed))
                continue
            entries = [
                new
                for entry in manifest.entries
                if entry.live and (new := self._entry(entry, document, snapshot_id, sequence_number, written)) is not None
            ]
            if entries:
                path = f"{document['location']}/metadata/{snapshot_id}-{self.attempt}-m{number}.avro"
                fields = write_manifest(self.io, path, manifest, entries, snapshot_id=snapshot_id, sequence_number=sequence_number)
                written.manifests.append(fields)
        return written

    def _entry(self, entry: Entry, document: Document, snapshot_id: int, sequence_number: int, written: _Written) -> Entry | None:
        if not self._concerned(entry):
            return replace(entry, status=EXISTING)
        new = Entry(
            status=ADDED, snapshot_id=snapshot_id, sequence_number=sequence_number, file_sequence_number=sequence_number, file=entry.file
        )
        if entry.file["content"] != 0:
            return self._vector(entry, new, written)
        file = self.files[entry.path]
        written.deleted_files += 1
        written.deleted_records += entry.file["record_count"]
        written.deleted_bytes += entry.file["file_size_in_bytes"]
        if file.path is None:
            return None
        written.added_files += 1
        written.added_records += file.rows
        written.added_bytes += file.bytes
        fields = {**entry.file, **metrics_of(self.io, document, file.path), "file_path": file.path, "record_count": file.rows}
        return replace(new, file={**fields, "file_size_in_bytes": file.bytes, "first_row_id": None, "key_metadata": None})

    def _vector(self, entry: Entry, new: Entry, written: _Written) -> Entry | None:
        file = self.files[entry.file["referenced_data_file"]]
        vector = vector_for(file, entry)
        written.removed_vectors += 1
        written.removed_marks += entry.file["record_count"]
        written.deleted_bytes += entry.file["content_size_in_bytes"] or 0
        if vector.puffin is None:
            return None
        written.added_vectors += 1
        written.added_marks += vector.rows
        written.added_bytes += vector.length
        fields = {
            **entry.file,
            "file_path": vector.puffin,
            "record_count": vector.rows,
            "file_size_in_bytes": vector.puffin_bytes,
            "referenced_data_file": file.path,
            "content_offset": vector.offset,
            "content_size_in_bytes": vector.length,
        }
        # The bounds of a vector's file describe paths, and here the path of a removed file.
        for name in ("lower_bounds", "upper_bounds", "column_sizes", "value_counts", "null_value_counts", "nan_value_counts"):
            fields[name] = None
        return replace(new, file=fields)

    def _summary(self, document: Document, snapshot_id: int, written: _Written, *, of_main: bool) -> dict[str, str]:
        before = [one.get("summary", {}) for one in ancestors(document, snapshot_id)]
        carried = _group(before, END_OFFSETS, STATE_KEYS) | _group(before, HORIZONS, VIEW_KEYS) | _group(before, LEDGER, (LEDGER,))
        if MEMORIES in carried:
            carried[MEMORIES] = str(max(0, int(carried[MEMORIES]) - self.memories))
        carried |= next(iter(progress_records(before)), {})
        changes = {
            "deleted-data-files": written.deleted_files,
            "deleted-records": written.deleted_records,
            "removed-files-size": written.deleted_bytes,
            "added-data-files": written.added_files,
            "added-records": written.added_records,
            "added-files-size": written.added_bytes,
            "removed-delete-files": written.removed_vectors,
            "removed-dvs": written.removed_vectors,
            "removed-position-deletes": written.removed_marks,
            "added-delete-files": written.added_vectors,
            "added-dvs": written.added_vectors,
            "added-position-deletes": written.added_marks,
        }
        moved = {
            "total-records": written.added_records - written.deleted_records,
            "total-files-size": written.added_bytes - written.deleted_bytes,
            "total-data-files": written.added_files - written.deleted_files,
            "total-delete-files": written.added_vectors - written.removed_vectors,
            "total-position-deletes": written.added_marks - written.removed_marks,
        }
        totals = {key: str(int(before[0][key]) + moved.get(key, 0)) for key in _TOTALS if key in before[0]}
        counted = {key: str(count) for key, count in changes.items() if count}
        return {"operation": "overwrite", **counted, **totals, **carried, **(self.summary if of_main else {})}


def _next(document: Document, parent: int | None) -> Snapshot:
    """Return the numbers of the table's next snapshot, for a snapshot without new rows."""
    document["last-sequence-number"] = int(document["last-sequence-number"]) + 1
    numbers = {"sequence-number": document["last-sequence-number"], "first-row-id": int(document.get("next-row-id", 0)), "added-rows": 0}
    return numbers if parent is None else {**numbers, "parent-snapshot-id": parent}


def _remove(base: Java, builder: Java, snapshots: Collection[int]) -> None:
    if snapshots:
        builder.removeSnapshots([base.snapshot(snapshot_id) for snapshot_id in sorted(snapshots)])


def _moved(ref: Metadata, old: Metadata | None, new: Metadata) -> Document:
    """Return the ref on its new snapshot. Ages count from the snapshot's timestamp, so the remaining age is smaller."""
    found = {**ref, "snapshot-id": new["snapshot-id"]}
    if old is not None and "max-ref-age-ms" in ref:
        found["max-ref-age-ms"] = max(1, int(ref["max-ref-age-ms"]) - int(new["timestamp-ms"]) + int(old["timestamp-ms"]))
    return found


def read_unreachable_list(io: FileIO, document: Metadata) -> list[str]:
    """Return the names of the files that an erasure's commit made unreachable; empty if no erasure is under way."""
    name = document["properties"].get(ERASING)
    if name is None:
        return []
    with io.new_input(f"{document['location']}/{name}").open() as stream:
        found: list[str] = json.loads(stream.read())
    return found


def vector_for(file: NewFile, entry: Entry) -> NewVector:
    place = entry.path, entry.file["content_offset"]
    return next(vector for vector in file.vectors if (vector.old_puffin, vector.old_offset) == place)


def snapshot_id_of(plan_id: str, what: str) -> int:
    """Return the id of a new snapshot. Staging and publishing compute the same id."""
    digest = hashlib.sha256(f"{plan_id}:{what}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 2) + 1


def _group(summaries: Sequence[Mapping[str, str]], marks: str, keys: Sequence[str]) -> dict[str, str]:
    """Return the state from the newest summary that has the key `marks`."""
    newest = next((summary for summary in summaries if marks in summary), {})
    return {key: newest[key] for key in keys if key in newest}


# Counts and bounds of a data file, from its footer, as the table's properties request them.


def metrics_of(io: FileIO, document: Metadata, path: str) -> Fields:
    """Return the fields of a manifest entry, named as in Iceberg's specification."""
    from pyiceberg.io.pyarrow import compute_statistics_plan, data_file_statistics_from_parquet_metadata, parquet_path_to_id_mapping
    from pyiceberg.schema import Schema

    of_table = next(schema for schema in document["schemas"] if schema["schema-id"] == document["current-schema-id"])
    schema = Schema.model_validate(of_table)
    with opened(io, path) as file:
        found = data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.metadata,
            stats_columns=compute_statistics_plan(schema, dict(document.get("properties", {}))),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        ).to_serialized_dict()
    found.pop("record_count")
    return {**found, "split_offsets": found["split_offsets"] or None}
