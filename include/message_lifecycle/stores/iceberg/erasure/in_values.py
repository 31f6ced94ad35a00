"""Find rows that hold keys inside their values, headers or documents, one batch at a time, and report their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.erasure import BASE64, TABLE_KINDS, HeldFile, TableKind
from message_lifecycle.model.in_values import MOST_NAMES, Needle, ValuePlace, value_place
from message_lifecycle.model.message import offsets_of
from message_lifecycle.operations.erasure import is_only_inside
from message_lifecycle.stores.iceberg.data_rows import Positions
from message_lifecycle.stores.iceberg.erasure.rewrite import by_position, opened
from message_lifecycle.stores.iceberg.erasure.search import Found
from message_lifecycle.stores.iceberg.table_folder import Metadata, location_prefix

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_CONTENTS = ("value", "headers", "payload", "state", "reason", "raw")
_KEYS = ("key", "document")
_NAMES: Mapping[bool, tuple[str, str]] = {True: ("file", "position"), False: ("document", "server_seq")}
"""Columns that identify a row without an offset. True: refused rows."""
_ROWS = 2_000
"""How many rows one batch holds: their values may be large."""


@dataclass(frozen=True, slots=True)
class ValueRowFinder:
    """Find the rows of one file that hold a key in their contents.

    Tasks receive this object, like the search of an erasure. Its text never shows a key.
    """

    needle: Needle = field(repr=False)

    def __call__(self, io: FileIO, path: str, kind: TableKind) -> Positions:
        found, before = [], 0
        with opened(io, path) as file:
            there = file.schema_arrow.names
            columns = [name for name in (*_CONTENTS, *_KEYS) if name in there]
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                rows = self._rows(batch, of_text=TABLE_KINDS[kind].of_text)
                found.append(np.asarray(rows, np.int64) + before)
                before += batch.num_rows
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def suspects(self, _io: FileIO, paths: Sequence[str], _kind: TableKind) -> frozenset[str]:
        """Return all files: only reading their contents shows whether they hold a key."""
        return frozenset(paths)

    def _rows(self, batch: pa.RecordBatch, *, of_text: bool) -> list[int]:
        hits = set[int]()
        for name in batch.schema.names:
            if name not in _CONTENTS:
                continue
            column = batch.column(name)
            if name == "headers":
                parents = pc.list_parent_indices(column)
                pairs = column.flatten()
                for part in ("name", "value"):
                    at = self._holding(pairs.field(part).filter(pairs.is_valid()))
                    of = parents.filter(pairs.is_valid())
                    hits.update(of.take(pa.array(at, pa.int64())).to_pylist())
            elif of_text:
                texts = column.to_pylist() if self._may_contain_key(column) else ()
                hits.update(
                    row
                    for row, text in enumerate(texts)
                    if text is not None and is_only_inside(text.encode("utf-8", "surrogateescape"), self.needle)
                )
            else:
                hits.update(self._holding(column))
        own = self._own(batch)
        return sorted(row for row in hits if row not in own)

    def _holding(self, column: pa.Array) -> list[int]:
        """Return the positions of the contents that hold a key. A fast search of the whole column for each form of each key comes first."""
        contents = column.cast(pa.binary())
        rows = set[int]()
        for form in self.needle.forms:
            rows.update(pc.indices_nonzero(pc.fill_null(pc.match_substring(contents, form), False)).to_pylist())
        return sorted(row for row in rows if self.needle.is_found_in(contents[row].as_py()))

    def _may_contain_key(self, column: pa.Array) -> bool:
        contents = column.cast(pa.binary())
        patterns = (BASE64.encode(), *self.needle.forms)
        return any(pc.any(pc.match_substring(contents, pattern)).as_py() for pattern in patterns)

    def _own(self, batch: pa.RecordBatch) -> set[int]:
        """Return the rows whose own key is one of the keys: an erasure removes these rows anyway."""
        name = next((name for name in _KEYS if name in batch.schema.names), None)
        if name is None:
            return set()
        keys = batch.column(name).cast(pa.binary())
        return set(pc.indices_nonzero(pc.is_in(keys, value_set=pa.array(sorted(self.needle.keys), pa.binary()))).to_pylist())


def places_of(io: FileIO, document: Metadata, kind: TableKind, found: Found) -> list[ValuePlace]:
    """Return the places of the rows that were found in one table, by partition."""
    prefix, files = location_prefix(str(document["location"])), found.summary.files
    if not files:
        return []
    if _is_by_position(io, prefix + files[0].name, kind):
        rows, live = sum(file.rows for file in files), sum(file.live for file in files)
        names = _names(io, prefix, files, kind)
        return [ValuePlace(table=kind, rows=rows, live=live, names=names, is_cut=rows > len(names))]
    offsets: dict[int, set[int]] = {}
    live_in: dict[int, int] = {}
    for file in files:
        offsets.setdefault(file.partition, set()).update(offsets_of(file.offsets))
        live_in[file.partition] = live_in.get(file.partition, 0) + file.live
    return [value_place(kind, partition, offsets[partition], live=live_in[partition]) for partition in sorted(offsets)]


def _is_by_position(io: FileIO, path: str, kind: TableKind) -> bool:
    with opened(io, path) as file:
        return by_position(file, kind)


def _names(io: FileIO, prefix: str, files: tuple[HeldFile, ...], kind: TableKind) -> tuple[str, ...]:
    names: list[str] = []
    for held in files:
        if len(names) >= MOST_NAMES:
            break
        with opened(io, prefix + held.name) as file:
            columns = [name for name in _NAMES[TABLE_KINDS[kind].of_text] if name in file.schema_arrow.names]
            rows = file.read(columns=columns)
        wanted = list(offsets_of(held.offsets))[:MOST_NAMES]
        names += [":".join(str(rows[name][row].as_py()) for name in columns) for row in wanted]
    return tuple(dict.fromkeys(names))[:MOST_NAMES]
