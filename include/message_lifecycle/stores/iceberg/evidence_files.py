"""The file lists of two snapshots for the gate, from their manifests alone.

Java staged the change and PyIceberg reads it here, so an error in one implementation would show. The planner and the gate share the
decoding of Avro, but not the interpretation of a file's bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.errors import PlanConflict, Unavailable
from message_lifecycle.model.message import NOTHING, Place
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.columns import APPEND_TIME, EXPIRES_AT, NEVER, OFFSET
from message_lifecycle.stores.iceberg.manifests import DELETED, Manifest, Row, entries, manifests_of, picking

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


FILES = pa.schema(
    {
        "content": pa.int32(),
        "name": pa.string(),
        "partition": pa.int32(),
        "segment": pa.int64(),
        "written": pa.int64(),
        "size_bytes": pa.int64(),
        "spec_id": pa.int32(),
        "content_offset": pa.int64(),
        "content_size": pa.int64(),
        "belongs_to": pa.string(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "oldest_at": pa.int64(),
        "newest_at": pa.int64(),
        "unknown_times": pa.int64(),
        "never": pa.bool_(),
        "without_never": pa.int64(),
        "expires_from": pa.int64(),
        "without_expiry": pa.int64(),
    }
)
"""The schema of a table with one row per data or delete file.

`content` is Iceberg's number of the content. `belongs_to` is the data file of a deletion vector. Times are in microseconds.
`unknown_times`, `without_never` and `without_expiry` count messages without such a value. Null: the metadata do not record the value.
"""

_pick = picking(
    "content",
    "file_path",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "content_offset",
    "content_size_in_bytes",
    "referenced_data_file",
    "null_value_counts",
    "lower_bounds",
    "upper_bounds",
)
_CHUNK = 10_000
"""How many files are Python objects at a time: a log may have a hundred thousand."""
_NONE: Mapping[int, Any] = {}


def judging_failed(kind: str, reason: str) -> Unavailable:
    """Return the error for a task that could not judge its files. The gate then passes nothing."""
    return Unavailable(
        f"judging single messages failed ({kind}): {reason} Nothing was changed; mend that and run again.", code="JudgingFailed"
    )


def both_snapshots(table: Table, plan: Plan, staged: Staged) -> tuple[Snapshot, Snapshot]:
    """Return the plan's snapshot and the staged one. Raises PlanConflict if one is missing."""
    before_id, after_id = plan.requirements.snapshot_id, staged.snapshot_id
    was, now = (None if id_ is None else table.snapshot_by_id(id_) for id_ in (before_id, after_id))
    if was is None or now is None:
        raise PlanConflict(staged.plan_id, f"its snapshot {before_id} or what was staged for it ({after_id}) is gone")
    return was, now


def files_of_both(table: Table, was: Snapshot, now: Snapshot) -> tuple[pa.Table, pa.Table]:
    """Return the files of both snapshots as tables with the schema `FILES`. A shared manifest is read once."""
    lists = [manifests_of(table, snapshot) for snapshot in (was, now)]
    read = {manifest.manifest_path: manifest for manifests in lists for manifest in manifests}
    found = {path: _files(table.io, manifest) for path, manifest in read.items()}
    before, after = (pa.concat_tables([FILES.empty_table(), *(found[manifest.manifest_path] for manifest in each)]) for each in lists)
    return before, after


def _files(io: FileIO, manifest: Manifest) -> pa.Table:
    live = (_row(file, manifest.partition_spec_id) for status, _, file in entries(io, manifest, _pick) if status != DELETED)
    return pa.Table.from_batches(_batches(live), schema=FILES)


def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, _CHUNK)):
        columns = zip(*chunk, strict=True)
        yield pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, FILES, strict=True)], schema=FILES)


def _row(file: Row, spec_id: int) -> Row:
    """Return a file's values in the order of `FILES`."""
    content, path, place, written, size_bytes, content_offset, content_size, belongs_to, nulls, lowest, highest = file
    partition, segment = place
    low, high, without = lowest or _NONE, highest or _NONE, nulls or _NONE
    never = high.get(NEVER)
    return (
        content,
        path,
        partition,
        segment,
        written,
        size_bytes,
        spec_id,
        content_offset,
        content_size,
        belongs_to,
        _number(low.get(OFFSET)),
        _number(high.get(OFFSET)),
        _number(low.get(APPEND_TIME)),
        _number(high.get(APPEND_TIME)),
        without.get(APPEND_TIME),
        any(never) if never else None,
        without.get(NEVER),
        _number(low.get(EXPIRES_AT)),
        without.get(EXPIRES_AT),
    )


def _number(bound: bytes | None) -> int | None:
    """Return a whole number or a time from a manifest's bound: two's complement, the lowest byte first."""
    return None if not bound else int.from_bytes(bound, "little", signed=True)


def schema(*longs: str, **others: pa.DataType) -> pa.Schema:
    """Return the schema of a frame: columns of whole numbers, and others."""
    return pa.schema({**dict.fromkeys(longs, pa.int64()), **others})


def longs(rows: Sequence[Mapping[str, int]], names: Iterable[str] | None = None) -> pa.Table:
    """Return a frame of whole numbers.

    Args:
        rows: The rows of the frame.
        names: The names of the columns; needed if there may be no row.
    """
    return pa.Table.from_pylist(list(rows), schema=schema(*(names or rows[0])))


def rows_of(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of the columns, row by row."""
    return zip(*(table[name].to_pylist() for name in names), strict=True)


# The gate's frames from the files of two snapshots: set differences and sums over columns, without an engine.
#
# `before` and `after` are tables with the schema `FILES`. The gate uses no code of the planner, so that one mistake cannot repeat. None
# always means "unknown", and unknown values count against the plan.


_INT64_MAX = 2**63 - 1
_LIKE_BEFORE = ("written", "size_bytes", "spec_id", "partition", "segment")
_VECTOR = ("content", "name", "content_offset", "content_size", "belongs_to", "written")

GOING = pa.schema(
    {
        "name": pa.string(),
        "partition": pa.int32(),
        "segment": pa.int64(),
        "rows": pa.int64(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "newest_at": pa.int64(),
        "any_kept": pa.bool_(),
        "active": pa.bool_(),
        "planned": pa.bool_(),
    }
)
DIFFERENCE = pa.schema({"name": pa.string(), "how": pa.string()})
ORDER = pa.schema({"partition": pa.int32(), "segment": pa.int64()})
LEFT = pa.schema({"partition": pa.int32(), "base_offset": pa.int64(), "last_offset": pa.int64(), "rows": pa.int64(), "named": pa.bool_()})


def live(files: pa.Table) -> pa.Table:
    """Return the data files with two more columns: `rows`, the messages that no deletion vector marks, and `known_newest_at` (CLK-4)."""
    data = files.filter(pc.equal(files["content"], 0))
    vectors = files.filter(pc.and_(pc.equal(files["content"], 1), pc.is_valid(files["belongs_to"])))
    rows = data["written"]
    if len(vectors):
        marked = dict(rows_of(vectors, "belongs_to", "written"))
        rows = pc.subtract(rows, pa.array([marked.get(name, 0) for name in data["name"].to_pylist()], pa.int64()))
    known = pc.and_kleene(
        pc.and_kleene(pc.equal(data["unknown_times"], 0), pc.is_valid(data["last_offset"])),
        pc.and_kleene(pc.not_equal(data["newest_at"], 0), pc.not_equal(data["oldest_at"], 0)),
    )
    newest = pc.if_else(pc.fill_null(known, False), data["newest_at"], pa.scalar(None, pa.int64()))
    return data.append_column("rows", rows).append_column("known_newest_at", newest)


def gone(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return the files of `before` that `after` lacks."""
    return before.filter(pc.invert(pc.is_in(before["name"], value_set=after["name"].combine_chunks())))


def may_keep(files: pa.Table, policy: Policy) -> pa.Array:
    """Return per file whether some message's own lifetime may keep the message. The answer is False only if the metadata prove it."""
    if not policy.allow_msg_ttl:
        return pa.array([False] * len(files), pa.bool_())
    none_never = pc.fill_null(pc.or_kleene(pc.equal(files["without_never"], files["written"]), pc.equal(files["never"], False)), False)
    none_own = pc.fill_null(pc.equal(files["without_expiry"], files["written"]), False)
    return pc.invert(pc.and_(none_never, none_own) if policy.ttl_overrides_age else none_never)


def going(files: pa.Table, kept: pa.Array, planned: set[str], active: Mapping[int, int]) -> pa.Table:
    """Return the files of segments that are removed whole.

    Args:
        files: The files of the plan's snapshot.
        kept: The result of `may_keep`.
        planned: Files that the plan removes.
        active: The base offset of each partition's active segment, after the plan's seals.
    """
    facts = (files[name] for name in ("name", "partition", "segment", "rows", "first_offset", "last_offset", "known_newest_at"))
    # A partition with an unknown active segment has no segment that is surely sealed.
    is_active = [partition not in active or segment >= active[partition] for partition, segment in rows_of(files, "partition", "segment")]
    is_planned = [name in planned for name in files["name"].to_pylist()]
    return pa.table([*facts, kept, pa.array(is_active, pa.bool_()), pa.array(is_planned, pa.bool_())], schema=GOING)


def with_compacted(going: pa.Table, horizons: Mapping[int, int]) -> pa.Table:
    """Add the column `compacted`: whether the whole file lies at or below its partition's horizon; null for an unknown last offset."""
    places = rows_of(going, "partition", "last_offset")
    found = [None if last is None else last <= horizons.get(partition, NOTHING) for partition, last in places]
    return going.append_column("compacted", pa.array(found, pa.bool_()))


def shrunk(before: pa.Table, after: pa.Table) -> dict[str, Place]:
    """Return the files that are in both tables and have fewer messages now."""
    rows = dict(rows_of(before, "name", "rows"))
    found = rows_of(after, "name", "partition", "segment", "rows")
    return {name: (partition, segment) for name, partition, segment, count in found if rows.get(name, count) != count}


def difference(before: pa.Table, after: pa.Table, planned: set[str], by_row: set[str]) -> pa.Table:
    """Return every file and every mark of removed messages that differs between the two tables without the plan's doing.

    Args:
        before: The files before the change.
        after: The files after the change.
        planned: Files that the plan removes.
        by_row: Files that lose single messages.
    """
    was, now = _identities(before, _LIKE_BEFORE, data=True), _identities(after, _LIKE_BEFORE, data=True)
    ours = planned | by_row
    found = [(name, "a data file that the plan does not name is gone") for name in was.keys() - now.keys() - planned]
    found += [(name, "a data file that was not there") for name in now.keys() - was.keys()]
    found += [(name, "a data file is described otherwise") for name in was.keys() & now.keys() if was[name] != now[name]]
    found += [(name, "a data file that the plan names is still there") for name in planned & now.keys()]
    found += [(name, "a data file that the plan names was not there") for name in planned - was.keys()]
    old, new = set(_identities(before, _VECTOR, data=False).values()), set(_identities(after, _VECTOR, data=False).values())
    found += [(vector[1], "a mark of removed messages is gone") for vector in old - new if vector[4] not in ours]
    found += [(vector[1], "messages are marked as removed that the plan does not name") for vector in new - old if vector[4] not in ours]
    return pa.Table.from_pylist([{"name": name, "how": how} for name, how in sorted(found)], schema=DIFFERENCE)


def _identities(files: pa.Table, columns: Iterable[str], *, data: bool) -> dict[object, Row]:
    chosen = files.filter(pc.equal(files["content"], 0) if data else pc.not_equal(files["content"], 0))
    # A Puffin file has many vectors, so its name is no key for them.
    keys: Iterable[object] = chosen["name"].to_pylist() if data else range(len(chosen))
    return dict(zip(keys, rows_of(chosen, *columns), strict=True))


def places(files: pa.Table) -> dict[str, Place]:
    """Return (partition, segment) by path."""
    return {name: (partition, segment) for name, partition, segment in rows_of(files, "name", "partition", "segment")}


def segments(files: pa.Table, latest_allowed_time: int) -> pa.Table:
    """Group the files by segment.

    Returns:
        A table. `newest_at` None: unknown. `late`: the segment has times beyond `latest_allowed_time`, so its data must be read.
    """
    grouped = files.group_by(["partition", "segment"]).aggregate(
        [
            ("last_offset", "max"),
            ("rows", "sum"),
            ("written", "sum"),
            ("known_newest_at", "max"),
            ("known_newest_at", "count"),
            ("name", "count"),
        ]
    )
    known = pc.equal(grouped["known_newest_at_count"], grouped["name_count"])
    newest = pc.if_else(known, grouped["known_newest_at_max"], pa.scalar(None, pa.int64()))
    late = pc.fill_null(pc.greater(newest, latest_allowed_time), False)
    names = ("partition", "segment", "last_offset_max", "rows_sum", "written_sum")
    return pa.table(
        [*(grouped[name] for name in names), newest, late],
        names=["partition", "segment", "last_offset", "rows", "written", "newest_at", "late"],
    )


def late_places(found: pa.Table) -> Iterator[Place]:
    """Yield the segments with late times from the result of `segments`."""
    yield from rows_of(found.filter(found["late"]), "partition", "segment")


def order(going: pa.Table, by_row: Iterable[Place], standing: Iterable[Place]) -> pa.Table:
    """Return the segments that lose messages although an earlier segment of their partition stays (EXP-5).

    Args:
        going: Segments that are removed whole.
        by_row: Segments that lose only some messages.
        standing: Segments that stay because of their own age, not because of single messages that no age removes.
    """
    first: dict[int, int] = {}
    for partition, segment in standing:
        first[partition] = min(segment, first.get(partition, segment))
    places = {*rows_of(going, "partition", "segment"), *by_row}
    above = sorted(place for place in places if place[1] > first.get(place[0], _INT64_MAX))
    return pa.Table.from_pylist([{"partition": partition, "segment": segment} for partition, segment in above], schema=ORDER)


def left(overdue: Iterable[tuple[Place, int | None, int]], held: Iterable[Held]) -> pa.Table:
    """Return the segments that stay with overdue messages, as (place, last offset, messages), and whether the plan names their holder."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for entry in held:
        ranges.setdefault(entry.partition, []).append((entry.first_base, entry.last_offset))
    rows = [
        {
            "partition": partition,
            "base_offset": base,
            "last_offset": last,
            "rows": count,
            "named": any(first <= base <= end for first, end in ranges.get(partition, ())),
        }
        for (partition, base), last, count in sorted(overdue, key=lambda found: found[0])
    ]
    return pa.Table.from_pylist(rows, schema=LEFT)


def sampled(going: pa.Table) -> pa.Table:
    """Return the files with the oldest, the middle and the newest messages, among removed files with any messages left."""
    ranked = going.filter(pc.greater(going["rows"], 0)).sort_by(
        [("newest_at", "ascending"), ("partition", "ascending"), ("segment", "ascending"), ("name", "ascending")]
    )
    return ranked.take(sorted({0, (len(ranked) - 1) // 2, len(ranked) - 1})) if len(ranked) else ranked


def figures(before: pa.Table, after: pa.Table, removed: int, *, asks: int) -> pa.Table:
    def total(table: pa.Table, column: str) -> int:
        return pc.sum(table[column]).as_py() or 0

    rows_in = total(before, "rows")
    bytes_in, bytes_kept = total(before, "size_bytes"), total(after, "size_bytes")
    row = {
        "rows_in": rows_in,
        "rows_removed": removed,
        "rows_kept": total(after, "rows"),
        "bytes_in": bytes_in,
        "bytes_removed": bytes_in - bytes_kept,
        "fraction_rows": removed / rows_in if rows_in else 0.0,
        "fraction_bytes": (bytes_in - bytes_kept) / bytes_in if bytes_in else 0.0,
        "asks": asks,
    }
    types = {"fraction_rows": pa.float64(), "fraction_bytes": pa.float64(), "asks": pa.int32()}
    return pa.Table.from_pylist([row], schema=schema(*row, **types))
