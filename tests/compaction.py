"""A compaction in plain Python, which the kernel is compared with, and the files that the kernel reads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.rules import rule_holds
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction import PartitionJob, PartitionResult
from message_lifecycle.stores.iceberg.compaction.kernel import compact
from message_lifecycle.stores.iceberg.puffin import marked, puffin_file
from message_lifecycle.stores.iceberg.shares import Resources
from message_lifecycle.stores.iceberg.tasks import InputFile, Vector

Row = dict[str, Any]
_TIMES = ("append_time", "event_time", "expires_at", "delete_horizon")


@dataclass(frozen=True, slots=True)
class Times:
    """The fields that rules read."""

    append_time: Instant | None
    expires_at: Instant | None
    never: bool


def why_dead(row: Row, rules: CompactionRules) -> str | None:
    times = Times(row["append_time"], row["expires_at"], bool(row["never"]))
    return next((reason for reason, rule in rules.ages if rule_holds(rule, times, rules.as_of)), None)


def is_tombstone(row: Row, rules: CompactionRules) -> bool:
    marker = any(header["name"] == "Nats-Marker-Reason" for header in row["headers"] or ())
    return row["value"] is None or (not rules.empty_is_value and (row["value"] == b"" or marker))


def compacted(view: Sequence[Row], tail: Sequence[Row], rules: CompactionRules) -> tuple[list[Row], Counter[str]]:
    """The new view in the order of offsets, and what was removed by reason."""
    rows = sorted([*view, *({**row, "delete_horizon": None, "remembered": None, "new": True} for row in tail)], key=lambda r: r["offset"])
    latest = {row["key"]: row["offset"] for row in rows}
    kept, removed = [], Counter[str]()
    for row in rows:
        new, key = row.pop("new", False) if "new" in row else False, row["key"]
        dead = why_dead(row, rules)
        if key is not None and latest[key] != row["offset"]:
            removed["superseded"] += 1
        elif dead is not None:
            removed[dead] += 1
        elif key is None and not rules.retain_null_key:
            removed["null_key"] += 1
        elif not new and row["delete_horizon"] is not None and row["delete_horizon"] <= rules.as_of:
            removed["tombstoned"] += 1
        elif new and key is not None and is_tombstone(row, rules):
            if rules.tombstones_until is None:
                removed["tombstoned"] += 1
            else:
                kept.append({**row, "delete_horizon": rules.tombstones_until})
        else:
            kept.append(row)
    return kept, removed


def messages(chance: random.Random, count: int, *, first: int = 0, keys: int = 8) -> list[Row]:
    """Messages with gaps, null and empty keys and values, markers, headers, times that are unknown, ended or saturated."""
    offset, rows = first, []
    for _ in range(count):
        headers = chance.choice((None, [], [("h", b"x")], [("h", None), ("h", b"")], [("Nats-Marker-Reason", b"MaxAge")]))
        rows.append(
            {
                "partition": 0,
                "offset": offset,
                "append_time": chance.choice((None, 0, INT64_MIN, -5, *range(1, 40))),
                "event_time": chance.choice((None, 7)),
                "key": chance.choice((None, b"", *(b"k%d" % key for key in range(keys)))),
                "value": chance.choice((None, b"", b"v", b"v%d" % offset)),
                "headers": None if headers is None else [{"name": name, "value": value} for name, value in headers],
                "size_bytes": chance.randrange(100),
                "segment": first,
                "expires_at": chance.choice((None, None, INT64_MAX, INT64_MIN, *range(40))),
                "never": chance.choice((None, None, None, False, True)),
                "origin_offset": chance.choice((None, offset + 1)),
            }
        )
        offset += chance.choice((1, 1, 2, 30))
    return rows


@dataclass(slots=True)
class Table:
    """One partition of a compacted table after its commits. `rows` reads the rows of the files, in their order."""

    folder: Path
    files: list[InputFile] = field(default_factory=list)

    def apply(self, result: PartitionResult) -> None:
        marks = {vector.data_file: Vector(path=vector.puffin.path, offset=vector.offset, length=vector.length) for vector in result.vectors}
        kept = [file for file in self.files if file.path not in result.dropped]
        self.files = [InputFile(path=file.path, vector=marks.get(file.path, file.vector)) for file in kept]
        self.files += [InputFile(path=file.path) for file in result.files]

    def rows(self) -> list[Row]:
        return [row for file in self.files for row in rows_in(file)]


def run(
    table: Table,
    tail: Sequence[InputFile],
    rules: CompactionRules,
    *,
    after: int = -1,
    through: int = 1 << 40,
    rewrite: bool = False,
    threads: int = 1,
) -> PartitionResult:
    """Compact the tail into the table's files, and take the result for its new state."""
    job = PartitionJob(partition=0, after=after, through=through, view=tuple(table.files), tail=tuple(tail), rewrite=rewrite)
    table.folder.mkdir(parents=True, exist_ok=True)
    resources = Resources(spill_folder=str(table.folder), threads=threads)
    result = compact(job, rules, resources, data_folder=str(table.folder / "data"), run=uuid4().hex)
    assert result.view_rows + result.tail_rows == result.rows_out + sum(result.removed.values())
    table.apply(result)
    return result


def rows_in(file: InputFile) -> list[Row]:
    found = pq.ParquetFile(file.path).read()
    for name in set(_TIMES) & set(found.column_names):
        at = found.column_names.index(name)
        found = found.set_column(at, name, found[name].cast(pa.int64()))
    gone = set() if file.vector is None else set(marked(file.vector).tolist())
    return [row for at, row in enumerate(found.to_pylist()) if at not in gone]


def log_file(folder: Path, rows: Sequence[Row], *, gone: Iterable[int] = ()) -> InputFile:
    """A file of a topic, and marks on the rows at these positions."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid4().hex}.parquet"
    schema = TOPIC_SCHEMA.as_arrow()
    plain = pa.schema([pa.field(f.name, pa.int64() if f.name in _TIMES else f.type, metadata=f.metadata) for f in schema])
    pq.write_table(pa.Table.from_pylist(list(rows), schema=plain).cast(schema, safe=False), path)
    return InputFile(path=str(path), vector=vector(folder, str(path), sorted(gone)))


def vector(folder: Path, data_file: str, positions: Sequence[int]) -> Vector | None:
    if not positions:
        return None
    content, (blob,) = puffin_file([(data_file, np.array(positions, np.int64))])
    path = folder / f"{uuid4().hex}.puffin"
    path.write_bytes(content)
    return Vector(path=str(path), offset=blob.offset, length=blob.length)


def counted(removed: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in removed.items() if count}
