"""Find the data files that hold a key, and decide which snapshots an erasure keeps readable.

An erasure keeps the head of every ref, and the table before each plan that can still be undone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.change import Rewrite
from message_lifecycle.model.erasure import HeldFile, KeySearchResult, TableKind
from message_lifecycle.model.errors import unsupported_erasure
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import ranges_text
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.data_rows import Positions, vectors_in
from message_lifecycle.stores.iceberg.erasure.looking import Looks, RowFinder
from message_lifecycle.stores.iceberg.erasure.rewrite import (
    POSITION_DELETES,
    Entry,
    Manifest,
    Manifests,
    names_of,
    opened,
    tells_of_gone,
)
from message_lifecycle.stores.iceberg.layout import OPERATION, PLAN_ID, STAGED_PLAN_ID, of_plan
from message_lifecycle.stores.iceberg.table_files import list_files
from message_lifecycle.stores.iceberg.table_folder import Metadata, Within, is_absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


MAIN = "main"
# Branches of plans and batches that died; after an erasure they are gone. Such a branch has a maximum age. Another user's branch with a
# similar name has none, and stays.
_STAGES = re.compile(r"lc_[0-9a-f]{16}|in_[0-9A-Za-z_-]+_[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoWindow:
    """Decides which undo is still open at `at_ms`.

    The topic's settings decide: the table's own property may be older. An undo counts from the plan's outcome, which may come long after
    its commit.

    Attributes:
        undoable: Plans with an open undo, counted from their outcome.
        operations: Operations whose plans can be undone.
    """

    at_ms: int
    length_ms: int
    operations: Collection[str]
    undoable: Collection[str] = ()

    @classmethod
    def of(cls, policy: Policy, as_of: Instant, undoable: Collection[str], operations: Collection[str]) -> UndoWindow:
        return cls(at_ms=as_of // 1000, length_ms=policy.undo_window_us // 1000, operations=operations, undoable=undoable)

    @classmethod
    def planned(cls, plan: Plan, action: Rewrite, operations: Collection[str]) -> UndoWindow:
        """Return the window of a planned erasure. The plan names the plans with an open undo."""
        return cls.of(Policy.from_values(plan.policy), plan.as_of, {plan_id for plan_id, _ in action.undo}, operations)

    def end(self, plan_id: str, committed_ms: int) -> int:
        """Return when the plan's undo ends at the latest.

        A known outcome happened no later than `at_ms`, so the window ends no later than one window length after `at_ms`.
        """
        return max(committed_ms, self.at_ms if plan_id in self.undoable else committed_ms) + self.length_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The snapshots that an erasure keeps readable.

    Attributes:
        refs: Every branch and tag except stages.
        stages: The branches of staged plans and batches. An erasure does not keep them.
        undo: By plan id, the snapshot just before the plan.
        undo_until: By plan id, the end of its undo, in milliseconds since 1970.
    """

    main: int | None
    refs: Mapping[str, int]
    stages: tuple[str, ...]
    undo: Mapping[str, int]
    undo_until: Mapping[str, int]

    @property
    def needed(self) -> frozenset[int]:
        return frozenset((*self.refs.values(), *self.undo.values()))

    @staticmethod
    def snapshot(document: Metadata, snapshot_id: int | None) -> Metadata | None:
        return next((one for one in document["snapshots"] if one["snapshot-id"] == snapshot_id), None)

    @classmethod
    def of(cls, document: Metadata, window: UndoWindow) -> Heads:
        refs = {name: int(ref["snapshot-id"]) for name, ref in document.get("refs", {}).items()}
        stages = tuple(
            sorted(name for name, ref in document.get("refs", {}).items() if _STAGES.fullmatch(name) and "max-ref-age-ms" in ref)
        )
        kept = {name: snapshot_id for name, snapshot_id in refs.items() if name not in stages}
        undo, until = dict[str, int](), dict[str, int]()
        for snapshot in ancestors(document, refs.get(MAIN)):
            summary = snapshot.get("summary", {})
            plan_id = summary.get(PLAN_ID)
            if plan_id is None and summary.get(STAGED_PLAN_ID) in window.undoable:
                # The plan was published. Another engine then rolled main back to the staged snapshot, which lacks the commit's properties.
                plan_id = summary[STAGED_PLAN_ID]
            elif plan_id is None or summary.get(OPERATION) not in window.operations:
                continue
            if plan_id in undo:
                continue
            ends = window.end(plan_id, int(snapshot["timestamp-ms"]))
            if ends < window.at_ms:
                continue
            before, _ = of_plan(int(snapshot["snapshot-id"]), snapshot.get("parent-snapshot-id"), summary)
            if before is not None and undo_ref(plan_id) not in refs and cls.snapshot(document, before) is not None:
                undo[plan_id], until[plan_id] = int(before), ends
        return cls(main=refs.get(MAIN), refs=kept, stages=stages, undo=undo, undo_until=until)


def ancestors(document: Metadata, snapshot_id: int | None) -> Iterator[Metadata]:
    """Yield the snapshot and its ancestors, newest first, as far back as the table remembers them."""
    by_id = {int(snapshot["snapshot-id"]): snapshot for snapshot in document["snapshots"]}
    snapshot = None if snapshot_id is None else by_id.get(snapshot_id)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id"))


# Find the data files that hold a key in their bytes, including rows that a deletion vector marks as removed.
#
# A plan knows only a keyed hash of the key, so the search hashes each distinct key of a file; statistics cannot help. The search covers
# every file that any snapshot reads. A file that only history names needs no rewrite, but it makes an erasure necessary.


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search.

    Attributes:
        positions: The positions of the rows with the key, by path of the data file.
        vectors: The places, as (file, offset), of every vector that a kept snapshot needs, by path of the data file.
        on_main: Paths that main reads.
        loose: Data files with the key that no snapshot names.
    """

    summary: KeySearchResult
    positions: Mapping[str, Positions]
    vectors: Mapping[str, frozenset[tuple[str, int]]]
    on_main: frozenset[str]
    loose: tuple[LooseFile, ...]


def search(
    looks: Looks,
    document: Metadata,
    window: UndoWindow,
    *,
    among: Container[str] | None = None,
    going: Collection[str] = (),
    with_left: bool = True,
) -> Found:
    """Search a table for the rows of a key.

    Args:
        looks: Searches the table's files.
        document: The table's current metadata.
        window: Decides which undo is still open.
        among: Search only these paths, and no loose files. None: all files.
        going: Names of files that an erasure will still delete; they do not count as loose.
        with_left: Search files that no snapshot names as well.

    Raises:
        UnsupportedErasure: The table has deletes other than deletion vectors, or a file with the key is outside the table's location.
        FileLost: A file that a ref or an open undo needs is missing. The table is damaged, so the search cannot call it clean.
        FileUnreadable: A file of any snapshot cannot be read.
    """
    io, kind = looks.io, looks.kind
    heads, manifests = Heads.of(document, window), Manifests(io)
    needed, files, clean = set[str](), dict[str, Entry](), True
    on_main, of_needed = dict[str, str | None](), dict[str, set[tuple[str, int]]]()
    for snapshot in document["snapshots"]:
        snapshot_id = int(snapshot["snapshot-id"])
        listed = manifests.of(snapshot["manifest-list"])
        clean = clean and not any(tells_of_gone(manifest) for manifest in listed)
        vectors = _vectors(listed, str(document["location"]))
        for path, place in vectors.items() if snapshot_id in heads.needed else ():
            of_needed.setdefault(path, set()).add(place)
        for entry in _live_data(listed):
            files.setdefault(entry.path, entry)
            if snapshot_id in heads.needed:
                needed.add(entry.path)
            if snapshot_id == heads.main:
                on_main[entry.path] = vectors[entry.path][0] if entry.path in vectors else None
    prefix, positions, held = location_prefix(str(document["location"])), dict[str, Positions](), []
    marked: dict[str, Mapping[str, Positions]] = {}
    within = Within(str(document["location"]))
    asked = {path: entry for path, entry in sorted(files.items()) if among is None or path in among}
    looks.ahead({path: entry.file["record_count"] for path, entry in asked.items()})
    for path, entry in asked.items():
        try:
            rows = looks.rows(path)
        except FileNotFoundError:
            if path in needed:
                raise
            continue  # history names the file, which was deleted earlier
        if not len(rows):
            continue
        if is_absolute(within.name(path)):
            # A rewrite would leave the old file there with the key.
            raise unsupported_erasure(str(document["location"]), f"{path}, which holds it, lies outside, where no file is deleted")
        positions[path] = rows
        held.append(_held(io, entry, kind, rows, prefix, path in needed, _live_count(io, path, rows, on_main, marked)))
    main_rows = [files[path].file for path in on_main]
    return Found(
        summary=KeySearchResult(
            table=kind,
            table_uuid=str(document["table-uuid"]),
            snapshot_id=heads.main,
            files=tuple(held),
            refs=tuple(sorted(heads.refs.items())),
            undo=tuple(sorted(heads.undo.items())),
            snapshots=tuple(sorted(int(snapshot["snapshot-id"]) for snapshot in document["snapshots"])),
            rows=sum(file["record_count"] for file in main_rows) - _hidden(document, heads, manifests),
            size_bytes=sum(file["file_size_in_bytes"] for file in main_rows),
            searched=len(files),
            clean=clean and not held,
        ),
        positions=positions,
        vectors={path: frozenset(places) for path, places in of_needed.items()},
        on_main=frozenset(on_main),
        loose=loose_with(io, document, files.keys(), looks.rows_of, kind, going=going) if among is None and with_left else (),
    )


def _live_data(manifests: Iterable[Manifest]) -> Iterable[Entry]:
    return (entry for manifest in manifests if manifest.of_data for entry in manifest.entries if entry.live)


def _vectors(manifests: Iterable[Manifest], table: str) -> dict[str, tuple[str, int]]:
    """Return the place of each data file's deletion vector. Raises UnsupportedErasure."""
    found = {}
    for entry in (entry for manifest in manifests if not manifest.of_data for entry in manifest.entries if entry.live):
        file = entry.file
        if file["content"] != POSITION_DELETES or file["file_format"].upper() != "PUFFIN":
            raise unsupported_erasure(
                table, f"{file['file_path']} holds deletes of an older kind than deletion vectors; rewrite them first"
            )
        found[file["referenced_data_file"]] = file["file_path"], file["content_offset"]
    return found


def _live_count(io: FileIO, path: str, rows: Positions, on_main: Mapping[str, str | None], read: dict[str, Mapping[str, Positions]]) -> int:
    if path not in on_main:
        return 0
    vector = on_main[path]
    if vector is None:
        return len(rows)
    if vector not in read:
        read[vector] = vectors_in(io, vector)
    return int((~np.isin(rows, read[vector][path])).sum())


def _hidden(document: Metadata, heads: Heads, manifests: Manifests) -> int:
    main = heads.snapshot(document, heads.main)
    if main is None:
        return 0
    deletes = (manifest for manifest in manifests.of(main["manifest-list"]) if not manifest.of_data)
    return sum(entry.file["record_count"] for manifest in deletes for entry in manifest.entries if entry.live)


def _held(io: FileIO, entry: Entry, kind: TableKind, rows: Positions, prefix: str, needed: bool, live: int) -> HeldFile:
    place = dict(zip(("partition", "segment"), entry.file["partition"]._data, strict=False))
    with opened(io, entry.path) as file:
        offsets = names_of(file, kind)[rows].tolist()
    return HeldFile(
        name=entry.path.removeprefix(prefix),
        partition=place.get("partition", 0),
        base_offset=place.get("segment", 0),
        offsets=ranges_text(sorted(set(offsets))),
        rows=len(rows),
        live=live,
        size_bytes=entry.file["file_size_in_bytes"],
        needed=needed,
    )


# Find data files with the key that no snapshot names. Writers that died before their commit leave such files.


LEFT_AFTER_MS = 259_200_000
"""Three days: longer than any task may take to commit what it has written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFile:
    """A data file that no snapshot names.

    Attributes:
        changed_at_ms: Milliseconds since 1970, by the file system's clock.
    """

    file: HeldFile
    changed_at_ms: int


def loose_with(
    io: FileIO, document: Metadata, named: Collection[str], rows_of: RowFinder, kind: TableKind, *, going: Collection[str] = ()
) -> tuple[LooseFile, ...]:
    """Return the files in the table's folder that hold the key and that no snapshot names.

    Args:
        io: Lists and reads the table's files.
        document: The table's current metadata.
        named: Paths of all data files that any snapshot names.
        rows_of: Returns the positions of the key's rows in a file.
        kind: The kind of the table.
        going: Names of files that an erasure will still delete.
    """
    location = str(document["location"])
    within, found = Within(location), []
    known = {*(within.name(path) for path in named), *going}
    for file in list_files(io, location):
        if not file.name.endswith(".parquet") or file.name in known:
            continue
        path = f"{location_prefix(location)}{file.name}"
        try:
            rows, offsets = _holding(io, path, rows_of, kind)
        except FileNotFoundError:
            continue  # its writer has deleted it
        if rows == 0:
            continue
        held = HeldFile(
            name=file.name, partition=0, base_offset=0, offsets=offsets, rows=rows or 0, live=0, size_bytes=file.size_bytes, needed=False
        )
        found.append(LooseFile(file=held, changed_at_ms=file.changed_at_ms))
    return tuple(found)


def _holding(io: FileIO, path: str, rows_of: RowFinder, kind: TableKind) -> tuple[int | None, str]:
    """Return how many rows of the file hold the key, and their names. None: the file is torn and may hold the key.

    A writer that died, or is still writing, leaves a torn file. A torn file cannot be searched, so it counts as a file with the key.
    """
    import pyarrow as pa

    try:
        rows = rows_of(io, path, kind)
        if not len(rows):
            return 0, ""
        with opened(io, path) as parquet:
            return len(rows), ranges_text(sorted(set(names_of(parquet, kind)[rows].tolist())))
    except pa.ArrowInvalid:
        return None, ""
    except OSError as error:
        # Arrow reports a torn file as an OSError without a number; an error of the operating system has one.
        if error.errno is not None:
            raise
        return None, ""


def with_loose(table: KeySearchResult, loose: Iterable[LooseFile], *, now_ms: int) -> KeySearchResult:
    """Return the table's findings together with its loose files.

    Raises:
        UnsupportedErasure: A loose file is so young that its writer may still commit it; the table would then miss a deleted file.
    """
    found = tuple(loose)
    for file in found:
        if file.changed_at_ms > now_ms - LEFT_AFTER_MS:
            raise unsupported_erasure(
                f"the {table.table} ({table.table_uuid})",
                f"{file.file.name}, which no snapshot names yet, holds it or is torn, and is younger than three days: a writer may be about to commit "
                "it. Let the writer end, or come back when the file is older",
            )
    return replace(table, files=(*table.files, *(file.file for file in found)), clean=table.clean and not found)
