"""The compaction of topic partitions, one task each. DuckDB in the task's process reads and writes Parquet files and deletion vectors.

No other engine compacts.

Pass one reads keys and offsets of the tail and finds the latest offset per key. The tail comes after the view, so a key in the tail
supersedes its row in the view. Pass two copies the winners, unchanged and in the order of offsets.

The kernel first chooses a winner over all rows, and judges it then (CMP-8). A dead winner or a tombstone removes its key; an older value
never returns.

By event time a message of the tail may lose to one of the view. Pass one then reads both. Pass two rewrites the whole partition, with a
memory of each dropped key (CMP-12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.instants import INT64_MIN
from message_lifecycle.model.message import REASON_HEADER
from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg import relations
from message_lifecycle.stores.iceberg.compaction import CompactionJob, PartitionJob, PartitionResult
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.puffin import Positions, marked, write_vector_file
from message_lifecycle.stores.iceberg.relations import (
    FIELD_IDS,
    NO_MESSAGES,
    OFFSET,
    TOPIC_COLUMNS,
    Names,
    literal,
    live_rows,
    name_list,
    offset_spans,
    opened,
)
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.table_folder import folder_at, is_local
from message_lifecycle.stores.iceberg.tasks import HERE, InputFile, NewFile, NewVector, Store

if TYPE_CHECKING:
    import duckdb


def compaction_failed(partition: int, kind: str, reason: str) -> Unavailable:
    """Return the error for a task that could not compact its partition. The view has not changed."""
    return Unavailable(
        f"compacting partition {partition} failed ({kind}): {reason} The view is as it was; mend that and run again.",
        code="CompactionFailed",
    )


def run(engine: Engine, job: CompactionJob) -> list[PartitionResult]:
    """Write the new files of every partition. A later commit adds them to the view.

    Raises:
        CompactionFailed: A partition failed; the run's new files are deleted again.
    """
    # Local names: a task receives only these values, not the other partitions.
    rules, data_folder, run, store = job.rules, job.data_folder, job.run, job.store

    def of_partition(partition: PartitionJob, share: Resources) -> PartitionResult:
        return compact(partition, rules, share, data_folder=data_folder, run=run, store=store)

    try:
        found = engine.run(job.partitions, of_partition, description=job.description, rates=job.rates)
    except BaseException:  # no commit will follow, so delete the new files
        discard(job)
        raise
    for partition, failed in zip(job.partitions, found, strict=True):
        if isinstance(failed, Failed):
            discard(job)
            raise compaction_failed(partition.partition, failed.kind, failed.reason)
    return [one for one in found if isinstance(one, PartitionResult)]


def discard(job: CompactionJob) -> None:
    """Delete the files of a run that no commit will use."""
    job.store.remove_named(job.data_folder, lambda file: file.startswith(f"{job.run}-"))


def sum_counts(results: Sequence[PartitionResult]) -> dict[ViewReason, int]:
    """Return the counts by reason over all partitions, for reasons that occurred."""
    found: dict[ViewReason, int] = {}
    for result in results:
        for reason, count in result.removed.items():
            found[reason] = found.get(reason, 0) + count
    return found


def compact(
    job: PartitionJob, rules: CompactionRules, resources: Resources, *, data_folder: str, run: str, store: Store = HERE
) -> PartitionResult:
    """Write the partition's new files to `store`. Existing files stay untouched.

    Args:
        job: The messages to compact, and the view's files.
        rules: The rules of the fold.
        resources: The task's share of the machine.
        data_folder: The folder of the new files.
        run: A unique beginning of the names of the new files.
        store: The store of the new files.

    Raises:
        CorruptVector: A deletion vector is damaged.
        duckdb.Error: A file cannot be read.
    """
    with opened(resources) as (connection, names):
        kernel = _Kernel(connection, names, job, rules, resources, f"{folder_at(data_folder)}/partition={job.partition}", run, store)
        return kernel.compact_by_event_time() if rules.by_event_time else kernel.compact_by_offset()


@dataclass(slots=True)
class _RemovedViewRows:
    """Rows of the old view that the new view leaves out.

    Args:
        before: Rows that earlier vectors mark.
        now: Rows that this run removes.
        memories: How many rows of the old view are memories, not messages (CMP-12). `counts` leaves them out.
    """

    before: dict[int, Positions] = field(default_factory=dict)
    now: dict[int, list[Positions]] = field(default_factory=dict)
    counts: dict[ViewReason, int] = field(default_factory=dict)
    memories: int = 0

    def all(self, file: int) -> Positions:
        parts = [*([self.before[file]] if file in self.before else []), *self.now.get(file, [])]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


_OFFSETS = 1 << 63
"""A number above the highest offset."""


@dataclass(slots=True)
class _Kernel:
    connection: duckdb.DuckDBPyConnection
    names: Names
    job: PartitionJob
    rules: CompactionRules
    resources: Resources
    folder: str
    run: str
    store: Store

    def compact_by_offset(self) -> PartitionResult:
        """Compact by offset: the latest message of a key has the highest offset."""
        job = self.job
        self._know_vectors("tail_gone", job.tail)
        winners, tail_rows, keys, removed = self._winners()
        marks = self._marks() if job.view else _RemovedViewRows()
        rows = self._rows_of(job.view)
        live = sum(rows) - sum(map(len, marks.before.values())) - marks.memories
        kept = live - sum(marks.counts.values())
        files: list[NewFile] = []
        vectors: list[NewVector] = []
        dropped: list[str] = []
        if job.rewrite:
            self._register("view_gone", {file: marks.all(file) for file in range(len(job.view))})
            alive = live_rows(job.view, "view_gone", self.names)
            if staying := sum(rows) - sum(len(marks.all(file)) for file in range(len(job.view))):
                files += self._write_files(
                    f"SELECT {TOPIC_COLUMNS}, delete_horizon, remembered FROM {alive}", alive, job.view, staying, "view"
                )
            dropped += [file.path for file in job.view]
        else:
            left = [file for file in marks.now if len(marks.all(file)) < rows[file]]
            dropped += [job.view[file].path for file in marks.now if file not in left]
            path = f"{self.folder}/{self.run}-deletes.puffin"
            vectors += write_vector_file(path, ((job.view[file].path, marks.all(file)) for file in left), self.store.write)
        written = self._write_files(self._winning_rows(), "winners", job.tail, winners, "tail") if winners else []
        written_rows = sum(file.rows for file in written)
        removed["tombstoned"] = winners - written_rows
        for reason, count in marks.counts.items():
            removed[reason] = removed.get(reason, 0) + count
        return PartitionResult(
            partition=job.partition,
            through=job.through,
            files=(*files, *written),
            vectors=tuple(vectors),
            dropped=tuple(dropped),
            view_rows=live,
            tail_rows=tail_rows,
            keys=keys,
            rows_out=kept + written_rows,
            removed={reason: count for reason, count in removed.items() if count},
        )

    def compact_by_event_time(self) -> PartitionResult:
        """Compact by event time: the latest message of a key has the greatest (event time, offset), in the view or in the tail (CMP-12)."""
        job, rules = self.job, self.rules
        assert rules.remember_until is not None and rules.tombstones_until is not None, "by event time, deletions are kept for a time"
        if not (job.view or job.tail):
            return PartitionResult(partition=job.partition, through=job.through, view_rows=0, tail_rows=0, keys=0, rows_out=0)
        self._relate_entries()
        removed: dict[ViewReason, int] = {}
        # Combine time and offset in one number: an aggregate of numbers spills to disk, an aggregate of structs does not.
        order = f"({relations.micros('event_time')} - {INT64_MIN}::HUGEINT) * {_OFFSETS} + {OFFSET}"
        self._run(
            f"CREATE TEMP TABLE latest AS SELECT (max({order}) % {_OFFSETS})::BIGINT AS {OFFSET} FROM entries WHERE key IS NOT NULL GROUP BY key"
        )
        reasons: list[ViewReason] = [*(reason for reason, _ in rules.ages), "null_key", "tombstoned"]
        gone = f"coalesce({relations.due('delete_horizon', rules.as_of)}, false)"
        ages = " ".join(f"WHEN {relations.rule_condition(rule, rules.as_of)} THEN {at}" for at, (_, rule) in enumerate(rules.ages, 1))
        no_key = 0 if rules.retain_null_key else len(reasons) - 1
        why = f"CASE WHEN memory THEN {gone}::INT * {len(reasons)} {ages} WHEN key IS NULL THEN {no_key} ELSE {gone}::INT * {len(reasons)} END"
        judged = (
            f"SELECT {OFFSET}, of_view, NOT memory AS message, ({why})::TINYINT AS why, key IS NOT NULL AND NOT memory AS remembered FROM"
        )
        (keys,) = self._one("SELECT count(*) FROM latest")
        self._run(
            f"CREATE TEMP TABLE winners AS {judged} entries SEMI JOIN latest USING ({OFFSET}) UNION ALL {judged} entries WHERE key IS NULL;"
            f"DROP TABLE latest; CREATE TEMP TABLE kept AS SELECT {OFFSET}, of_view, why FROM winners WHERE why = 0 OR remembered"
        )
        view_rows, tail_rows = self._one("SELECT count_if(of_view AND NOT memory), count_if(NOT of_view) FROM entries")
        rows_out = 0
        for at, rows in self._run("SELECT why, count(*) FROM winners WHERE message GROUP BY why").fetchall():
            if at:
                removed[reasons[at - 1]] = rows
            else:
                rows_out = rows
        self._run("DROP TABLE winners")  # the copy needs this memory
        if superseded := view_rows + tail_rows - rows_out - sum(removed.values()):
            removed["superseded"] = superseded
        files: list[NewFile] = []
        # Copy the view first, because its offsets are lower. Copy one after the other, because both together take twice the memory.
        for part, condition, read in (("view", "of_view", job.view), ("tail", "NOT of_view", job.tail)):
            (kept,) = self._one(f"SELECT count(*) FROM kept WHERE {condition}")
            if kept:
                files += self._write_files(self._kept_rows(condition), f"(FROM kept WHERE {condition})", read, kept, part)
        return PartitionResult(
            partition=job.partition,
            through=job.through,
            files=tuple(files),
            dropped=tuple(file.path for file in job.view),
            view_rows=view_rows,
            tail_rows=tail_rows,
            keys=keys,
            rows_out=rows_out,
            removed=removed,
        )

    def _relate_entries(self) -> None:
        """Create the relation `entries`: rows of the view and of the tail."""
        parts = []
        if self.job.tail:
            self._know_vectors("tail_gone", self.job.tail)
            parts.append(f"SELECT {TOPIC_COLUMNS}, NULL::TIMESTAMPTZ, false, false FROM {self._tail()} WHERE {self._in_tail()}")
        if self.job.view:
            before = self._know_vectors("view_gone", self.job.view)
            alive = live_rows(self.job.view, "view_gone" if before else None, self.names)
            parts.append(f"SELECT {TOPIC_COLUMNS}, delete_horizon, coalesce(remembered, false), true FROM {alive}")
        columns = f"({TOPIC_COLUMNS}, delete_horizon, memory, of_view)"
        self._run(f"CREATE TEMP VIEW entries {columns} AS {' UNION ALL '.join(parts)}")

    def _kept_rows(self, condition: str) -> str:
        """Return the query of the rows to write: messages that stay, and memories of dropped messages (key, event time and offset only)."""
        forgotten = {**dict.fromkeys(("value", "append_time", "expires_at", "never"), "NULL"), "headers": "[]"}
        columns = ", ".join(
            f"CASE WHEN why > 0 THEN {forgotten[name]} ELSE {name} END AS {name}" if name in forgotten else name
            for name in TOPIC_COLUMNS.split(", ")
        )
        deletes = f"NOT of_view AND key IS NOT NULL AND {self._tombstone()}"
        until, horizon = (relations.instant(at or 0) for at in (self.rules.remember_until, self.rules.tombstones_until))
        return (
            f"SELECT {columns}, CASE WHEN why > 0 THEN {until} WHEN {deletes} THEN {horizon} ELSE delete_horizon END AS delete_horizon, "
            f"CASE WHEN why > 0 OR memory THEN true END AS remembered "
            f"FROM (FROM entries WHERE {condition}) JOIN (SELECT {OFFSET}, why FROM kept WHERE {condition}) USING ({OFFSET})"
        )

    # Pass one.

    def _winners(self) -> tuple[int, int, int, dict[ViewReason, int]]:
        """Create the tables `latest` (key if there is a view, offset, reason of death) and `winners` (offset, keyed): the rows to copy.

        Returns:
            The number of winners, of rows and of keys in the tail, and the removed rows by reason so far.
        """
        job, rules = self.job, self.rules
        ages = rules.ages if any(file.may_be_due for file in job.tail) else ()
        # The reason why a row is dead, as its number in the list of reasons from 1 on. 0: the row is alive.
        cases = " ".join(f"WHEN {relations.rule_condition(rule, rules.as_of)} THEN {at}" for at, (_, rule) in enumerate(ages, 1))
        why = f"CASE {cases} ELSE 0 END" if ages else "0"
        # Combine offset and reason in one number: DuckDB finds one maximum faster than another column at the row of the maximum.
        wide, base = ("HUGEINT" if job.through >= 1 << 60 else "BIGINT"), len(ages) + 1
        latest = f"max({base} * {OFFSET}::{wide} + ({why})::{wide})" if ages else f"max({OFFSET})"
        of_key = ", key" if job.view else ""
        tail = f"{self._tail()} WHERE {self._in_tail()}" if job.tail else f"{NO_MESSAGES} WHERE false"
        self._run(
            f"CREATE TEMP TABLE latest AS SELECT {latest} AS latest, count(*) AS rows{of_key} FROM {tail} AND key IS NOT NULL GROUP BY key"
        )
        offset, of_latest = (f"(latest // {base})::BIGINT", f"latest % {base}") if ages else ("latest", "0")
        self._run(f"CREATE TEMP TABLE winners AS SELECT {offset} AS {OFFSET}, true AS keyed FROM latest WHERE {of_latest} = 0")
        keys, keyed_rows = self._one("SELECT count(*), coalesce(sum(rows), 0)::BIGINT FROM latest")
        (alive,) = self._one("SELECT count(*) FROM winners")
        unkeyed, kept, removed = 0, 0, dict[ViewReason, int]()
        for at, rows in self._run(f"SELECT {why} AS why, count(*) FROM {tail} AND key IS NULL GROUP BY why").fetchall():
            unkeyed += rows
            if at:
                removed[ages[at - 1][0]] = rows
            elif rules.retain_null_key:
                self._run(f"INSERT INTO winners SELECT {OFFSET}, false FROM {tail} AND key IS NULL AND {why} = 0")
                kept = rows
            else:
                removed["null_key"] = rows
        for at, rows in self._run(f"SELECT {of_latest} AS why, count(*) FROM latest WHERE why > 0 GROUP BY why").fetchall():
            reason = ages[at - 1][0]
            removed[reason] = removed.get(reason, 0) + rows
        removed["superseded"] = keyed_rows - keys
        return alive + kept, keyed_rows + unkeyed, keys, removed

    def _marks(self) -> _RemovedViewRows:
        view, rules = self.job.view, self.rules
        marks = _RemovedViewRows(before=self._know_vectors("view_gone", view))
        alive = live_rows(view, "view_gone" if marks.before else None, self.names)
        (marks.memories,) = self._one(f"SELECT count(*) FROM {alive} WHERE remembered")
        self._mark(marks, "superseded", range(len(view)), f"FROM {alive} SEMI JOIN latest USING (key)")
        suspects = [file for file in range(len(view)) if view[file].may_be_due]
        if suspects:
            chosen = [view[file] for file in suspects]
            self._register("suspect_gone", {at: marks.all(file) for at, file in enumerate(suspects)})
            due = f"FROM {live_rows(chosen, 'suspect_gone', self.names)} WHERE"
            past = relations.due("delete_horizon", rules.as_of)
            earlier = "false"
            for reason, rule in rules.ages:
                holds = relations.rule_condition(rule, rules.as_of)
                self._mark(marks, reason, suspects, f"{due} {holds} AND NOT {earlier}")
                earlier = f"({earlier} OR {holds})"
            self._mark(marks, "tombstoned", suspects, f"{due} coalesce({past}, false) AND NOT {earlier}")
        if not rules.retain_null_key:
            self._register("known_gone", {file: marks.all(file) for file in range(len(view))})
            self._mark(marks, "null_key", range(len(view)), f"FROM {live_rows(view, 'known_gone', self.names)} WHERE key IS NULL")
        return marks

    def _mark(self, marks: _RemovedViewRows, reason: ViewReason, files: Sequence[int], chosen: str) -> None:
        memory = "coalesce(remembered, false)" if marks.memories else "false"
        found = self._run(f"SELECT file_index::BIGINT AS file, file_row_number AS row, {memory} AS memory {chosen}").fetchnumpy()
        of_file, positions = cast(NDArray[np.int64], found["file"]), cast(NDArray[np.int64], found["row"])
        for at in np.unique(of_file).tolist():
            marks.now.setdefault(files[at], []).append(positions[of_file == at])
        marks.counts[reason] = marks.counts.get(reason, 0) + int(np.count_nonzero(~cast(NDArray[np.bool_], found["memory"])))

    # Pass two.

    def _winning_rows(self) -> str:
        # Test for tombstones after the join, on winners only. The test needs their flag, and before the join it would run on every row.
        until, tombstone = self.rules.tombstones_until, f"(keyed AND {self._tombstone()})"
        stamp = "NULL" if until is None else f"CASE WHEN {tombstone} THEN {relations.instant(until)} END"
        return (
            f"SELECT {TOPIC_COLUMNS}, {stamp}::TIMESTAMPTZ AS delete_horizon, NULL::BOOLEAN AS remembered "
            f"FROM {self._tail()} JOIN winners USING ({OFFSET}) WHERE {self._in_tail()}"
            + (f" AND NOT {tombstone}" if until is None else "")
        )

    def _tombstone(self) -> str:
        """Return the condition of a tombstone: no value, an empty value, or a marker (CMP-2)."""
        if self.rules.empty_is_value:
            return "(value IS NULL)"
        return f"(value IS NULL OR octet_length(value) = 0 OR coalesce(len(headers) > 0 AND list_contains(list_transform(headers, lambda h: h.name), '{REASON_HEADER}'), false))"

    def _write_files(self, select: str, offsets: str, files: Sequence[InputFile], rows: int, part: str) -> list[NewFile]:
        """Write the rows in ascending order of their offsets, in as many files as their size requires.

        Every COPY sorts for itself, because DuckDB promises no order for the result of a join.

        Args:
            select: The query of the rows.
            offsets: A relation of (about) their offsets.
            files: The files that the query reads.
            rows: How many rows the query returns, at most.
            part: The content of the new files, as a part of their names.
        """
        if is_local(self.folder):
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        written = []
        for number, span in enumerate(self._spans(offsets, files, rows)):
            path = f"{self.folder}/{self.run}-{part}-{number:05}.parquet"
            (count,) = self._one(
                f"COPY (SELECT * FROM ({select}) WHERE {span} ORDER BY {OFFSET}) TO {literal(self.names.of(path, self.store))} (FORMAT parquet, COMPRESSION zstd, FIELD_IDS {FIELD_IDS})"
            )
            if count:
                written.append(NewFile(path=path, rows=count, bytes=self.store.size(path)))
            else:
                self.store.remove(path)
        return written

    def _spans(self, offsets: str, files: Sequence[InputFile], rows: int) -> list[str]:
        """Conditions on offsets, one for each new file."""
        found = self._run(
            f"SELECT sum(num_rows)::BIGINT, sum(file_size_bytes)::BIGINT FROM parquet_file_metadata({name_list(files, self.names)})"
        ).fetchall()
        ((read_rows, read_bytes),) = found
        count = -(-rows * read_bytes // (read_rows * self.resources.file_bytes))
        # Sample the same offsets each time, so that a repeated attempt writes the same files.
        some = f"hash({OFFSET}) % {max(1, rows // self.resources.sampled_offsets)} = 0"
        return offset_spans(self.connection, f"FROM {offsets} WHERE {some}", count)

    # Shared by both passes.

    def _tail(self) -> str:
        return live_rows(self.job.tail, "tail_gone" if any(file.vector for file in self.job.tail) else None, self.names)

    def _in_tail(self) -> str:
        if self.job.whole_tail:
            return "true"
        return f"{OFFSET} > {self.job.after} AND {OFFSET} <= {self.job.through}"

    def _know_vectors(self, table: str, files: Sequence[InputFile]) -> dict[int, Positions]:
        """Create the table of rows that earlier vectors mark: (file, row), by place in `files`."""
        found = {at: marked(file.vector) for at, file in enumerate(files) if file.vector is not None}
        self._register(table, found)
        return found

    def _register(self, table: str, positions: dict[int, Positions]) -> None:
        of_file = [np.full(len(rows), at, np.int64) for at, rows in positions.items()]
        none = np.empty(0, np.int64)
        columns = {"file": np.concatenate([none, *of_file]), "row": np.concatenate([none, *positions.values()])}
        self.connection.register(table, columns)

    def _rows_of(self, files: Sequence[InputFile]) -> list[int]:
        return [self._rows(self.names.of(file.path, file.store)) for file in files]

    def _rows(self, path: str) -> int:
        return self._one(f"SELECT num_rows FROM parquet_file_metadata({literal(path)})")[0]

    def _one(self, query: str) -> tuple[int, ...]:
        (row,) = self._run(query).fetchall()
        return cast(tuple[int, ...], row)

    def _run(self, query: str) -> duckdb.DuckDBPyConnection:
        return self.connection.execute(query)
