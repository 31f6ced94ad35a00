"""Staging an erasure: every file that holds the key written again, and the metadata that would make them the table's, beside it.

Nothing points at what is staged. Its last file tells what was written; where it is missing, a run died on the way, and all is written
again under the same names. The staged metadata is a whole table by itself, which the gate reads as any reader would.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from message_lifecycle.model.change import Rewrite
from message_lifecycle.model.erasure import Matches
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.erasure.heads import UndoWindow
from message_lifecycle.stores.iceberg.erasure.held_rows import opened
from message_lifecycle.stores.iceberg.erasure.metadata import ERASING
from message_lifecycle.stores.iceberg.erasure.publish import TableErasure, going_name, is_done
from message_lifecycle.stores.iceberg.erasure.rewrite import NewFile, from_json, remove, rewrite, to_json
from message_lifecycle.stores.iceberg.erasure.search import search
from message_lifecycle.stores.iceberg.history import reachable, snapshot_ids
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.table_folder import absolute, delete_files, erased_copy, location_prefix, with_checksums
from message_lifecycle.stores.iceberg.table_metadata import TableGone, changed_metadata, current_metadata, document_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.data_rows import Positions

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """`base`: the metadata that it was staged on; `memories`: rows that go and are no messages (CMP-12)."""

    base: str
    files: tuple[NewFile, ...]
    memories: int


def stage_name(plan_id: str) -> str:
    return f"metadata/erasure-{plan_id}.staged.json"


def metadata_name(plan_id: str) -> str:
    return f"metadata/erasure-{plan_id}.metadata.json"


def read_stage(io: FileIO, document: Document, plan_id: str) -> StagedTable | None:
    """None: nothing whole is staged."""
    try:
        with io.new_input(f"{document['location']}/{stage_name(plan_id)}").open() as stream:
            told = json.loads(stream.read())
    except FileNotFoundError:
        return None
    return StagedTable(base=told["base"], files=from_json(json.dumps(told["files"]).encode()), memories=told["memories"])


def stage_table(catalog: Catalog, place: Place, io: FileIO, plan: Plan, action: Rewrite, window: UndoWindow, matches: Matches) -> None:
    """Done before, it is found. Raises PlanConflict where the table is not as it was planned for."""
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
    # Files never change: the plan knows which of its time hold the key, this looks into those that came since, the gate into all.
    erasure.check(dict(document), matches)
    found = search(io, document, action.table, matches, window, among=named)
    planned = {row.file: (row.offsets, row.rows, row.live) for row in action.rows}
    if {file.name: (file.offsets, file.rows, file.live) for file in found.summary.files if file.needed} != planned:
        raise PlanConflict(plan.plan_id, "the key lies elsewhere than when it was planned")
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
    after = changed_metadata(metadata, erasure.rewriting({}).change)
    _write(io, f"{document['location']}/{metadata_name(plan.plan_id)}", json.dumps(document_of(after)).encode())
    told = {"base": base, "files": json.loads(to_json(files)), "memories": memories}
    _write(io, f"{document['location']}/{stage_name(plan.plan_id)}", json.dumps(told).encode())


def drop_stage(io: FileIO, document: Document, plan_id: str, *, keep_files: bool) -> None:
    """Take away what staging left; `keep_files`: the data files are the table's now. Nothing there is success."""
    location = str(document["location"])
    staged = read_stage(io, document, plan_id)
    # What is not there was never staged, or another run that ends the same plan takes it away just now.
    only, kinds = set[str](), ("list", "manifest")
    with suppress(FileNotFoundError):
        with io.new_input(f"{location}/{metadata_name(plan_id)}").open() as stream:
            as_staged = json.loads(stream.read())
        only = {file.name for file in reachable(io, as_staged, snapshot_ids(as_staged)) if file.kind in kinds}
    if only:
        only -= {file.name for file in reachable(io, document, snapshot_ids(document))}
        delete_files(io, location, with_checksums(sorted(only)))
    if staged is not None and not keep_files:
        remove(io, staged.files)
    left = [metadata_name(plan_id), stage_name(plan_id)]
    if document["properties"].get(ERASING) != going_name(plan_id):
        left.append(going_name(plan_id))
    delete_files(io, location, with_checksums(left))


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
