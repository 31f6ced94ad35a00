"""Append batches to a table exactly once: messages of a topic, and rows of the quarantine next to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from message_lifecycle.model.errors import LifecycleError, TableBusy, Unavailable
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import scratch
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.columns import DICTIONARY_COLUMNS, SCHEMA
from message_lifecycle.stores.iceberg.data_files import data_file
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Walk, fenced_commit, main_ancestors, newest_state, read_witness_batch
from message_lifecycle.stores.iceberg.incoming import CutRules, Numbering, count_opened, with_places
from message_lifecycle.stores.iceberg.java import Java, each
from message_lifecycle.stores.iceberg.layout import INGEST_ID, LEDGER, SPAN_SECONDS, LogSummary
from message_lifecycle.stores.iceberg.scratch import Part, RowsFile
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.shares import Failed, Made, Resources
from message_lifecycle.stores.iceberg.tasks import NewFile, Store
from message_lifecycle.stores.iceberg.witness import Known

# A batch is written to files that no reader sees. One commit, made at most once, adds them to main.
#
# The commit's summary contains the batch id. After a crash, or a commit with an unknown result, a run searches main for the id. Inside
# every attempt the fence checks two things: whether another run of the batch was first, and whether the batch may still be committed.


MayCommit = Callable[[], None]
"""Raises a LifecycleError if the batch may no longer be committed. Every attempt calls this function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommit:
    """A batch on main, from the summary of its commit.

    Attributes:
        state: The log's state after the batch.
        span_seconds: The doubled span of its segments, because the set span would have opened too many; None: the set span (EXP-3).
    """

    batch_id: str
    snapshot_id: int
    rows: int
    segments: int
    state: LogSummary
    span_seconds: int | None = None
    ranges: tuple[tuple[int, int, int], ...] | None = None
    """The batch's messages, as (partition, first offset, last offset); None: the table's history no longer records them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A batch in files that main does not name yet.

    Attributes:
        state: The log's state of the partitions that got messages.
        span_seconds: As `BatchCommit.span_seconds`.
        left_out: Messages that did not come in, because of their keys.
    """

    files: Sequence[Java]
    rows: int
    state: LogSummary = field(default_factory=LogSummary)
    span_seconds: int | None = None
    left_out: int = 0


class AlreadyThere(LifecycleError):
    """Another run of this batch was first. Search main for its commit."""


def find_batch_commit(table: Java, batch_id: str) -> BatchCommit | None:
    """Return the batch's commit on main: from its snapshot or, after another engine's expiry, from the table's witness.

    Raises:
        LogStateLost, LogRolledBack: The batch's snapshot is not on main, and nothing proves whether the batch still is.
    """
    ancestors = main_ancestors(table)
    for ancestor in ancestors:
        if ancestor.get(INGEST_ID) == batch_id:
            found = _to_batch_commit(batch_id, ancestor.snapshot_id, ancestor.summary)
            return replace(found, ranges=_ranges(found, ancestor.parent_id is not None, ancestors))
    batch = read_witness_batch(table)
    return _to_batch_commit(batch_id, int(batch["snapshot-id"]), batch) if batch.get(INGEST_ID) == batch_id else None


def _ranges(found: BatchCommit, has_parent: bool, before: Iterator[Known]) -> tuple[tuple[int, int, int], ...] | None:
    """Return the offsets between the log's ends before and after the batch: a batch numbers its messages without gaps (MSG-4)."""
    earlier, is_last = None, not has_parent
    for ancestor in before:
        earlier = LogSummary.from_properties(ancestor.summary)
        is_last = ancestor.parent_id is None
        if earlier is not None:
            break
    if earlier is None and not is_last:
        return None
    ends = {} if earlier is None else earlier.end_offsets
    now = sorted(found.state.end_offsets.items())
    ranges = tuple((partition, ends.get(partition, 0), end - 1) for partition, end in now if end > ends.get(partition, 0))
    return ranges if sum(last - first + 1 for _, first, last in ranges) == found.rows else None


def _to_batch_commit(batch_id: str, snapshot_id: int, summary: Mapping[str, str]) -> BatchCommit:
    return BatchCommit(
        batch_id=batch_id,
        snapshot_id=snapshot_id,
        rows=int(summary.get("added-records", 0)),
        segments=int(summary.get("changed-partition-count", 0)),
        state=LogSummary.from_properties(summary) or LogSummary(),
        span_seconds=None if (doubled := summary.get(SPAN_SECONDS)) is None else int(doubled),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A table when a batch is numbered.

    Attributes:
        base_id: Main's newest snapshot; None for an empty table.
    """

    table: Java
    base_id: int | None

    def found(self, batch_id: str) -> BatchCommit | None:
        """Return the batch if it was on main before the numbering. The fence finds a later commit."""
        return find_batch_commit(self.table, batch_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where tasks write new files of a table. The names of all files of a batch begin with its id.

    Attributes:
        store: The way to the files.
        folder: The folder of the data files.
        run: The beginning of the names of one run's files.
    """

    store: Store
    folder: str
    run: str

    def path(self, name: str) -> str:
        return f"{self.folder}/{self.run}-{name}"


def new_files_place(table: Java, store: Store, batch_id: str) -> Place:
    """Return a place for files of the table that a new run of the batch writes."""
    run = f"{batch_id}-{secrets.token_hex(4)}"
    return Place(store=store, folder=str(table.locationProvider().newDataLocation(run)).removesuffix(f"/{run}"), run=run)


def store_of(name: TopicName, *, kind: str = "") -> Store:
    """Return the way to the files of a topic's table."""
    return Store.of(Tables().load(name, kind=kind))


def end_of_batch(engine: Engine, name: TopicName, batch_id: str) -> BatchCommit | None:
    """Return the commit of a batch whose run died, if the run got so far. Then remove the files that it left."""
    appended = find_batch_commit(engine.table(name), batch_id)
    if appended is not None:
        remove_leftovers(engine, name, appended)
    return appended


def remove_leftovers(engine: Engine, name: TopicName, appended: BatchCommit, *, kind: str = "") -> None:
    """Remove files of the batch that its commit does not name: scratch files, and data files of other attempts.

    No run can commit them any more, because the fence finds the batch's commit.
    """
    table = engine.table(name, kind=kind)
    snapshot = table.snapshot(appended.snapshot_id)
    kept = None if snapshot is None else {str(file.location()).rpartition("/")[2] for file in added_files(engine, table, snapshot)}

    def is_leftover(file: str) -> bool:
        return file.startswith(f"{appended.batch_id}-") and (file.endswith(scratch.SUFFIX) or (kept is not None and file not in kept))

    store_of(name, kind=kind).remove_named(str(table.location()), is_leftover)


def added_files(engine: Engine, table: Java, snapshot: Java) -> Iterator[Java]:
    """Return the data files that the snapshot added."""
    jvm: Java = engine.jvm
    yield from each(jvm.org.apache.iceberg.SnapshotChanges.builderFor(table).snapshot(snapshot).build().addedDataFiles())


def results_of(found: Sequence[Made | Failed]) -> list[Made]:
    """Return what the tasks returned. Raises the error of the first task that failed, or IngestFailed."""
    for one in found:
        if isinstance(one, Failed):
            raise one.error(ingest_failed)
    return [one for one in found if not isinstance(one, Failed)]


def ingest_failed(kind: str, reason: str) -> Unavailable:
    """A task failed, so nothing of the batch came in."""
    return Unavailable(
        f"reading or writing the batch failed ({kind}): {reason} Nothing was taken; mend that and run again.", code="IngestFailed"
    )


def commit_staged(
    stage: Base,
    written: Written,
    *,
    batch_id: str,
    properties: Mapping[str, str],
    may_commit: MayCommit,
    state: Callable[[LogSummary], LogSummary] | None = None,
) -> None:
    """Add the files to main in one fenced commit.

    Args:
        stage: The table when the batch was numbered.
        written: The written files.
        batch_id: The batch's id.
        properties: Properties of the snapshot's summary.
        may_commit: Raises an error if the batch may no longer be committed.
        state: Returns the log's new state, given the state that the commit really builds on.

    Raises:
        AlreadyThere: The batch is on main.
        TableBusy: Other commits kept coming first.
        CommitUnknown: The catalog's answer is missing.
        Exception: Any error of `state` and `may_commit`.
    """

    def judge(walk: Walk) -> None:
        for ancestor in walk():
            if ancestor.snapshot_id == stage.base_id:
                break
            if ancestor.get(INGEST_ID) == batch_id:
                raise AlreadyThere
        may_commit()

    def make(on: Java, walk: Walk) -> Iterator[Java]:
        now = {} if state is None else state(walk.log_state()).to_properties()
        update = on.newAppend()
        for file in written.files:
            update = update.appendFile(file)
        for key, value in {**properties, INGEST_ID: batch_id, **now}.items():
            update = update.set(key, value)
        yield update

    fenced_commit(stage.table, judge, make, what=f"batch {batch_id}")


# Append a batch of messages, numbered without a lock (MSG-4).
#
# Tasks number the batch from the state of a base snapshot on, and write its files. The commit succeeds only under two conditions. The
# partitions of the batch must still end where the base ended, and their active segments must still be open. Otherwise tasks number and
# write the batch again. The state of all other partitions comes from the snapshot that the commit really builds on.


TRIES = 5
_SCHEMA = SCHEMA.as_arrow()
_TASK_BYTES = 32 << 20
"""Messages that one task writes, unless a partition has more."""


class MovedOn(LifecycleError):
    """Another writer was first in one of our partitions, so number again. Never leaves this module."""


class Source(Protocol):
    """Messages of some partitions, for one task."""

    left_out: int
    """Messages that `read` has left out so far."""

    @property
    def partitions(self) -> Collection[int]: ...

    def read(self, partition: int, share: Resources) -> Iterator[pa.RecordBatch]:
        """Yield the partition's messages in the order of the log, with the columns of a topic's table."""


@dataclass(slots=True, kw_only=True)
class ScratchSource:
    """Messages in scratch files."""

    store: Store
    parts: Mapping[int, Sequence[Part]]
    left_out: int = 0

    @property
    def partitions(self) -> Collection[int]:
        return self.parts

    def read(self, partition: int, _share: Resources) -> Iterator[pa.RecordBatch]:
        return scratch.read(self.store, self.parts[partition])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """The work of one task.

    Attributes:
        base: The state of the log that the batch follows.
        places: Gives the messages their places.
    """

    place: Place
    source: Source
    base: LogSummary
    rules: CutRules
    places: type[Numbering]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """The new files of a partition by segment, and the partition's end and active segment after them."""

    partition: int
    files: Sequence[tuple[int, NewFile]]
    end_offset: int
    active: ActiveSegment


def append_batch(
    engine: Engine,
    name: TopicName,
    parts: Mapping[int, Sequence[Part]],
    *,
    store: Store,
    batch_id: str,
    rules: CutRules,
    ledger: tuple[str, int],
    may_commit: MayCommit,
    again: bool = False,
) -> BatchCommit | None:
    """Append the messages of scratch files, once. Return None if there are none.

    A batch that is already on main is returned, not repeated.

    Args:
        engine: Runs the work in the JVM.
        name: The topic.
        parts: The messages of each partition, in the order of the log.
        store: The store of the scratch files and of the table's new files.
        batch_id: The batch's id.
        rules: The rules for the end of a segment.
        ledger: The ledger's (uuid, sequence).
        may_commit: Raises an error if the batch may no longer be committed.
        again: An earlier run of the batch may have left files.

    Raises:
        TableBusy: Other writers came first every time.
        CommitUnknown: The catalog's answer is missing, so the commit may exist.
    """
    for number in range(TRIES):
        engine.forget(name)
        table = engine.table(name)
        base = base_of(table)
        if (found := base.found(batch_id)) is not None:
            if again or number > 1:
                remove_leftovers(engine, name, found)
            return found
        if not parts:
            return None
        before = newest_state(table)
        sources = [ScratchSource(store=store, parts=group) for group in _groups(parts)]
        description = f"ingest of {name}, batch {batch_id[:8]}"
        written = write_batch(engine, table, new_files_place(table, store, batch_id), sources, before, rules, description=description)
        with suppress(MovedOn, AlreadyThere):
            commit_staged(
                base,
                written,
                batch_id=batch_id,
                properties={LEDGER: ledger_text(ledger)} | span_property(written),
                may_commit=may_commit,
                state=partial(merge_states, before, written.state),
            )
    raise TableBusy(f"batch {batch_id} of topic {name}", TRIES)


def span_property(written: Written) -> dict[str, str]:
    """Return the property of a commit whose span of segments was doubled (EXP-3)."""
    return {} if written.span_seconds is None else {SPAN_SECONDS: str(written.span_seconds)}


def base_of(table: Java) -> Base:
    snapshot = table.currentSnapshot()
    return Base(table=table, base_id=None if snapshot is None else int(snapshot.snapshotId()))


def _groups(parts: Mapping[int, Sequence[Part]]) -> list[dict[int, Sequence[Part]]]:
    """Give each task about `_TASK_BYTES` of messages: a large partition alone, or several small ones."""
    groups: list[dict[int, Sequence[Part]]] = []
    filled = _TASK_BYTES
    for partition, of_partition in sorted(parts.items()):
        size = sum(part.batches.size_bytes for part in of_partition)
        if filled + size > _TASK_BYTES:
            groups.append({})
            filled = 0
        groups[-1][partition] = of_partition
        filled += size
    return groups


def write_batch(
    engine: Engine,
    table: Java,
    place: Place,
    sources: Sequence[Source],
    base: LogSummary,
    rules: CutRules,
    *,
    description: str,
    places: type[Numbering] = Numbering,
) -> Written:
    """Write messages in tasks, one file per segment, after the log of `base`.

    If the messages would open too many segments, tasks write them again with the first span that fits (EXP-3).

    Args:
        engine: Runs the tasks.
        table: The log's table.
        place: The folder of the new files.
        sources: The messages to write.
        base: The log's state before the batch.
        rules: The rules for the end of a segment.
        description: The name of the work, as the engine shows it.
        places: Gives the messages their places.
    """
    partitions = [partition for source in sources for partition in source.partitions]
    done = _written(engine, _items(place, sources, base, rules, places), f"{description}: writing {len(partitions)} partitions")
    made = [one for some, _ in done for one in some]
    opened = sum(segment >= base.end_offsets.get(one.partition, 0) for one in made for segment, _ in one.files)
    if rules.max_us > 0 and opened > rules.most_opened:
        place.store.remove_named(place.folder, lambda file: file.startswith(place.run) and file.endswith(".parquet"))
        items = _items(place, sources, base, rules, places)
        counts = results_of(engine.run(items, _count, description=f"{description}: counting segments of {len(partitions)} partitions"))
        return write_batch(
            engine,
            table,
            place,
            sources,
            base,
            rules.fitting([sum(of_span) for of_span in zip(*counts, strict=True)]),
            description=description,
            places=places,
        )
    files = [(f"partition={one.partition}/segment={segment}", new) for one in made for segment, new in one.files]
    return Written(
        files=[data_file(engine, table, folder, new) for folder, new in files],
        rows=sum(new.rows for _, new in files),
        state=LogSummary(end_offsets={one.partition: one.end_offset for one in made}, active={one.partition: one.active for one in made}),
        span_seconds=rules.doubled_seconds,
        left_out=sum(left_out for _, left_out in done),
    )


def _items(place: Place, sources: Sequence[Source], base: LogSummary, rules: CutRules, places: type[Numbering]) -> list[_Item]:
    items = []
    for source in sources:
        ends = {partition: base.end_offsets.get(partition, 0) for partition in source.partitions}
        mine = LogSummary(end_offsets=ends, active={one: base.active[one] for one in ends if one in base.active})
        items.append(_Item(place=place, source=source, base=mine, rules=rules, places=places))
    return items


def _written(engine: Engine, items: Sequence[_Item], description: str) -> list[tuple[list[_Partition], int]]:
    try:
        return results_of(engine.run(items, _write, description=description))
    except BaseException:  # an interrupt, too: no commit will name these files, so delete them
        if items:
            place = items[0].place
            place.store.remove_named(place.folder, lambda file: file.startswith(place.run) and file.endswith(".parquet"))
        raise


def _write(item: _Item, share: Resources) -> tuple[list[_Partition], int]:
    """Place the messages in a task, write one file per segment, and return the partitions and the number of messages left out."""
    places, before = item.places(item.base, item.rules), item.source.left_out
    with engine_failures():
        made = [done for partition in item.source.partitions if (done := _partition(item, partition, places, share)) is not None]
    return made, item.source.left_out - before


def _partition(item: _Item, partition: int, places: Numbering, share: Resources) -> _Partition | None:
    files: list[tuple[int, NewFile]] = []
    once = secrets.token_hex(4)  # two attempts of a task never write the same file
    writing: RowsFile | None = None
    segment = -1
    for batch in item.source.read(partition, share):
        offsets, segments = places.places(batch)
        rows = with_places(batch, offsets, segments).select(_SCHEMA.names).cast(_SCHEMA)
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(segments)]):
            if writing is None or segments[start] != segment:
                if writing is not None:
                    files.append((segment, writing.close()))
                segment = int(segments[start])
                folder = f"{item.place.folder}/partition={partition}/segment={segment}"
                path = f"{folder}/{item.place.run}-{once}-{len(files)}.parquet"
                writing = RowsFile(item.place.store, path, _SCHEMA, dictionary=DICTIONARY_COLUMNS)
            writing.add(rows.slice(start, end - start))
    if writing is None:
        return None
    files.append((segment, writing.close()))
    end_offset, active = places.state(partition)
    return _Partition(partition=partition, files=files, end_offset=end_offset, active=active)


def _count(item: _Item, share: Resources) -> list[int]:
    """Count in a task the segments that the messages would open with each span (EXP-3)."""
    batches = (batch for partition in item.source.partitions for batch in item.source.read(partition, share))
    return count_opened(batches, item.base, item.rules)


def merge_states(base: LogSummary, ours: LogSummary, now: LogSummary) -> LogSummary:
    """Return our state for our partitions, and the state that the commit builds on for the others.

    Raises:
        MovedOn: The state of our partitions differs from our base.
    """
    for partition in ours.end_offsets:
        if now.end_offsets.get(partition) != base.end_offsets.get(partition):
            raise MovedOn
        if now.active.get(partition) != base.active.get(partition):
            raise MovedOn  # sealed meanwhile: our first messages would join a closed segment
    return replace(now, end_offsets={**now.end_offsets, **ours.end_offsets}, active={**now.active, **ours.active})
