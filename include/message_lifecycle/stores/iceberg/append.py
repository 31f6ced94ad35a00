"""Batches put on a table exactly once: messages of a topic, and rows of the quarantine beside it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LifecycleError, TableBusy
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.branches import head_of, set_refs
from message_lifecycle.stores.iceberg.catalog import beside, ledger_text
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Ancestor, Walk, expired_batch, fenced_commit, main_ancestors, newest_state
from message_lifecycle.stores.iceberg.incoming import CutRules, count_opened, number
from message_lifecycle.stores.iceberg.java import Java, each, entries
from message_lifecycle.stores.iceberg.layout import INGEST_ID, LEDGER, PARTITIONS_PROPERTY, QUARANTINE, ROW_GROUPS, SPAN_SECONDS, LogSummary
from message_lifecycle.stores.iceberg.session import sql_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A batch written to a branch, where no reader sees it, and put on main by one commit that is made at most once.
#
# The batch id stands in the commit's summary. After a crash, or a commit whose result is unknown, it is looked for on main; and
# inside every attempt the fence asks whether another run of the batch was first, and whether it may still be committed at all.


# A branch that a dead run left ends by itself.
_BRANCH_AGE_MS = 86_400_000
MayCommit = Callable[[], None]
"""Raises a LifecycleError where the batch may no longer be committed; asked inside every attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A batch on main, as its commit tells; `state` is the log's after it. `span_seconds`: what the span of its segments was doubled to,
    because it would have opened too many; None: it is as set (EXP-3)."""

    batch_id: str
    snapshot_id: int
    rows: int
    segments: int
    state: LogSummary
    span_seconds: int | None = None
    ranges: tuple[tuple[int, int, int], ...] | None = None
    """Its messages, as (partition, first offset, last offset); None: the table's history does not say any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A batch in files that main does not name yet. `segments`: rows of each (partition, segment) that got any."""

    files: Sequence[Java]
    rows: int
    segments: Mapping[tuple[int, int], int]

    def opens_too_many(self, base: LogSummary, rules: CutRules) -> bool:
        """Whether the batch, which follows the log in `base`, is to be numbered again by a longer span."""
        opened = sum(segment >= base.end_offsets.get(partition, 0) for partition, segment in self.segments)
        return rules.max_us > 0 and opened > rules.most_opened


class AlreadyThere(LifecycleError):
    """Another run of this batch was first: look for it."""


def find_appended(table: Java, batch_id: str) -> Appended | None:
    """Return the batch's commit on main: from its snapshot or, after another engine's expiry, from the table's witness.

    Raises:
        LogStateLost, LogRolledBack: The snapshot is not on main, and nobody can say whether the batch still is.
    """
    ancestors = main_ancestors(table)
    for ancestor in ancestors:
        if ancestor.get(INGEST_ID) == batch_id:
            found = _appended(batch_id, ancestor.snapshot_id, ancestor.summary)
            return replace(found, ranges=_ranges(found, ancestor.parent_id is not None, ancestors))
    batch = expired_batch(table)
    return _appended(batch_id, int(batch["snapshot-id"]), batch) if batch.get(INGEST_ID) == batch_id else None


def _ranges(found: Appended, has_parent: bool, before: Iterator[Ancestor]) -> tuple[tuple[int, int, int], ...] | None:
    """What lies between the ends of the log before the batch and after it: a batch numbers its messages without gaps (MSG-4)."""
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


def _appended(batch_id: str, snapshot_id: int, summary: Mapping[str, str]) -> Appended:
    return Appended(
        batch_id=batch_id,
        snapshot_id=snapshot_id,
        rows=int(summary.get("added-records", 0)),
        segments=int(summary.get("changed-partition-count", 0)),
        state=LogSummary.from_properties(summary) or LogSummary(),
        span_seconds=None if (doubled := summary.get(SPAN_SECONDS)) is None else int(doubled),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A table as it is when a batch is numbered: `base_id` is main's newest snapshot; None: there is none."""

    table: Java
    base_id: int | None

    def found(self, batch_id: str) -> Appended | None:
        """The batch where it was on main before that; whatever came later, the fence sees."""
        return find_appended(self.table, batch_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Base):
    """A branch of the table, made at `base_id`: an empty snapshot of its own where main had none."""

    engine: Engine
    branch: str

    def written(self) -> Written:
        """What was written to the branch."""
        self.table.refresh()
        head = self.table.snapshot(self.branch)
        jvm: Java = self.engine.jvm
        changes = jvm.org.apache.iceberg.SnapshotChanges.builderFor(self.table).snapshot(head).build()
        files = [] if head.snapshotId() == self.base_id else list(each(changes.addedDataFiles()))
        segments: dict[tuple[int, int], int] = {}
        for file in files:
            place = file.partition()
            if place.size() == 2:
                key = int(_value(place, 0)), int(_value(place, 1))
                segments[key] = segments.get(key, 0) + int(file.recordCount())
        return Written(files=files, rows=sum(int(file.recordCount()) for file in files), segments=segments)


@contextmanager
def staging(engine: Engine, name: TopicName, batch_id: str, *, kind: str = "") -> Iterator[Stage]:
    """A new branch for the batch; afterwards it is gone, and so are those that dead runs of the batch left."""
    table = engine.table(name, kind=kind)
    branch = f"in_{batch_id}_{secrets.token_hex(4)}"
    # On whatever is newest in the attempt that holds; a table without snapshots gets an empty one, on the branch alone.
    set_refs(
        table,
        lambda refs: refs.createBranch(branch).setMaxRefAgeMs(branch, _BRANCH_AGE_MS),
        done=lambda: head_of(table, branch) is not None,
        what=f"staging batch {batch_id}",
    )
    table.refresh()
    base_id = int(table.snapshot(branch).snapshotId())
    engine.forget(name, kind=kind)
    try:
        yield Stage(engine=engine, table=table, branch=branch, base_id=base_id)
    finally:
        remove_branches(table, batch_id)


def end_of_batch(engine: Engine, name: TopicName, batch_id: str) -> Appended | None:
    """What a dead run left: its commit, if it got so far; its branches are taken away."""
    table = engine.table(name)
    remove_branches(table, batch_id)
    return find_appended(table, batch_id)


def remove_branches(table: Java, batch_id: str) -> None:
    """Take away the batch's branches; files that main names stay."""
    table.refresh()

    def left() -> list[str]:
        return [str(ref) for ref in table.refs() if str(ref).startswith(f"in_{batch_id}_")]

    # Named anew in each attempt: another run of the batch may have taken some away.
    if left():
        set_refs(
            table,
            lambda refs: reduce(lambda change, branch: change.removeBranch(branch), left(), refs),
            done=lambda: not left(),
            what=f"ending batch {batch_id}",
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
    """Put the files on main in one fenced commit. `state`: the log's new state, given that of the real base.

    Raises AlreadyThere where the batch is on main, whatever `state` and `may_commit` raise, TableBusy, CommitUnknown.
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


def _value(place: Java, position: int) -> Java:
    return place.get(position, place.getClass().getClassLoader().loadClass("java.lang.Object"))


# Appending a batch of messages, numbered without a lock (MSG-4).
#
# The batch is numbered on from the state of a base snapshot and written to a branch. The commit holds only if the partitions
# that it touches still end where the base ended, and their active segments are still open; else it is numbered and written
# again. Partitions that it does not touch are carried over from what the commit really builds on.


TRIES = 5
# One file per segment and append: the segment's size is the limit.
_NO_FILE_LIMIT = str(2**50)
WRITE_OPTIONS: Mapping[str, str] = {
    # The rows come clustered by segment and sorted: another shuffle and sort would give the same.
    "use-table-distribution-and-ordering": "false",
    "fanout-enabled": "false",
    "target-file-size-bytes": _NO_FILE_LIMIT,
}
_MESSAGE = ("partition", "append_time", "event_time", "key", "value", "headers", "size_bytes")
_MESSAGE_TYPES = (
    "partition int not null, append_time timestamp, event_time timestamp, key binary, value binary, "
    "headers array<struct<name: string, value: binary>>, size_bytes bigint not null"
)
# Of messages without headers not even a column of nulls goes through the workers.
_LIFETIME = {"expires_at": "timestamp", "never": "boolean"}
_NUMBERS = "offset bigint not null, segment bigint not null"


class MovedOn(LifecycleError):
    """Another writer was first in one of our partitions: number again. Never leaves this module."""


def append_batch(
    engine: Engine,
    name: TopicName,
    messages: Callable[[], DataFrame],
    *,
    batch_id: str,
    rules: CutRules,
    ledger: tuple[str, int],
    may_commit: MayCommit,
    staged: Callable[[int], None],
) -> Appended | None:
    """Append the messages in order of (`partition`, `log_order`), once; None: there are none.

    `messages` gives, for each try, a frame with the columns that a message brings, and `log_order`; `expires_at` and `never` where
    messages can have lifetimes of their own. `staged` is called with
    the number of rows when they are written and before they are committed; what it raises leaves the log as it was. A batch
    that is on main already is found, not repeated. Raises TableBusy when other writers came first every time, CommitUnknown.
    """
    for _ in range(TRIES):
        with staging(engine, name, batch_id) as stage:
            if (found := stage.found(batch_id)) is not None:
                return found
            base = newest_state(stage.table)
            partitions = int(stage.table.properties()[PARTITIONS_PROPERTY])
            _numbered(messages(), base, rules, partitions).writeTo(sql_table(name, branch=stage.branch)).options(**WRITE_OPTIONS).append()
            written = stage.written()
            if written.opens_too_many(base, rules):
                rules = fitting(_in_order(messages(), partitions), base, rules)
                continue
            staged(written.rows)
            if not written.files:
                return None
            ours = state_after(engine, name, stage.branch, base, written, late_after=rules.late_after)
            doubled = rules.doubled_seconds
            with suppress(MovedOn, AlreadyThere):
                commit_staged(
                    stage,
                    written,
                    batch_id=batch_id,
                    properties={LEDGER: ledger_text(ledger)} | ({SPAN_SECONDS: str(doubled)} if doubled is not None else {}),
                    may_commit=may_commit,
                    state=partial(merged, base, ours),
                )
        engine.forget(name)
    raise TableBusy(f"batch {batch_id} of topic {name}", TRIES)


def _numbered(messages: DataFrame, base: LogSummary, rules: CutRules, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    own = {name: kind for name, kind in _LIFETIME.items() if name in messages.columns}
    types = ", ".join((_MESSAGE_TYPES, *(f"{name} {kind}" for name, kind in own.items()), _NUMBERS))
    # A copy of another log brings the offset there (MSG-5).
    absent = {name: kind for name, kind in {**_LIFETIME, "origin_offset": "bigint"}.items() if name not in own}
    return (
        _in_order(messages, partitions, *own)
        .mapInArrow(partial(number, base=base, rules=rules), types)
        .withColumns({name: F.lit(None).cast(kind) for name, kind in absent.items()})
    )


def _in_order(messages: DataFrame, partitions: int, *own: str) -> DataFrame:
    return messages.repartitionById(partitions, "partition").sortWithinPartitions("log_order").select(*_MESSAGE, *own)


def fitting(in_order: DataFrame, base: LogSummary, rules: CutRules) -> CutRules:
    """The rules with the first span by which these messages, read once more, do not open too many segments (EXP-3)."""
    from pyspark.sql import functions as F

    counted = in_order.select("partition", "append_time", "size_bytes").mapInArrow(
        partial(count_opened, base=base, rules=rules), "span int not null, opened bigint not null"
    )
    totals = counted.groupBy("span").agg(F.sum("opened").alias("opened")).orderBy("span")
    return rules.fitting([row["opened"] for row in totals.collect()])


def state_after(engine: Engine, name: TopicName, branch: str, base: LogSummary, written: Written, *, late_after: int) -> LogSummary:
    """The log's state of the partitions that got messages, from what was written: right however often a task was run."""
    rows: dict[int, int] = {}
    for (partition, _), count in written.segments.items():
        rows[partition] = rows.get(partition, 0) + count
    ends = {partition: base.end_offsets.get(partition, 0) + count for partition, count in rows.items()}
    return LogSummary(end_offsets=ends, active=active_after(engine, name, branch, base, written, late_after=late_after))


def active_after(
    engine: Engine, name: TopicName, branch: str, base: LogSummary, written: Written, *, late_after: int
) -> dict[int, ActiveSegment]:
    """The last segment of each partition that got messages, with its earlier messages and those on the branch.

    `late_after` is the clock of the batch with the skew: later times count for no segment (CLK-4)."""
    from pyspark.sql import functions as F

    if not written.segments:
        return {}
    last: dict[int, int] = {}
    for partition, segment in written.segments:
        last[partition] = max(segment, last.get(partition, segment))
    # Only the segments that still take messages, only what is new in them, only narrow columns.
    wanted = reduce(
        or_,
        (
            (F.col("partition") == partition) & (F.col("segment") == segment) & (F.col("offset") >= base.end_offsets.get(partition, 0))
            for partition, segment in last.items()
        ),
    )
    at = F.unix_micros("append_time")
    newest = F.max(F.when(at <= late_after, at))
    first = F.min(F.when(at <= late_after, F.struct("offset", at.alias("at"))))["at"]
    unknown = F.count_if(F.col("append_time").isNull())
    found = (
        engine.session.table(sql_table(name, branch=branch))
        .where(wanted)
        .groupBy("partition", "segment")
        .agg(F.sum("size_bytes"), F.count(F.lit(1)), newest, first, unknown)
        .collect()
    )
    active = {}
    for partition, segment, size, count, newest_at, first_at, unknown_times in found:
        before = base.active.get(partition)
        state = replace(before) if before is not None and before.base_offset == segment else ActiveSegment(base_offset=segment)
        state.join(size=size, rows=count, newest_at=newest_at, any_unknown=unknown_times > 0, first_at=first_at)
        active[partition] = state
    return active


def merged(base: LogSummary, ours: LogSummary, now: LogSummary) -> LogSummary:
    """Ours in our partitions, what the commit builds on in the others. Raises MovedOn where that is not our base."""
    for partition in ours.end_offsets:
        if now.end_offsets.get(partition) != base.end_offsets.get(partition):
            raise MovedOn
        if now.active.get(partition) != base.active.get(partition):
            raise MovedOn  # sealed meanwhile: our first messages would join a segment that is closed
    return replace(now, end_offsets={**now.end_offsets, **ours.end_offsets}, active={**now.active, **ours.active})


# The quarantine beside a topic: rows that broke a rule, with where they stood, why they were refused, and their raw text.
#
# Made when the first row is refused. All rows of a batch carry the same `at`, so that they go together when their age comes
# (QUA-1): a file is then dropped whole.


_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    **ROW_GROUPS,
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # The age of what a file holds is all that is ever asked of it.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.at": "full",
}


def quarantine(engine: Engine, name: TopicName, refused: DataFrame, *, batch_id: str, at: Instant, may_commit: MayCommit) -> None:
    """Keep the refused rows of a batch, once: a batch that has been here changes nothing.

    `refused` has the columns file, position, code, reason, raw.
    """
    from pyspark.sql import functions as F

    _create(engine, name)
    rows = refused.select(
        F.timestamp_micros(F.lit(at)).alias("at"), F.lit(batch_id).alias("batch"), "file", "position", "code", "reason", "raw"
    )
    with staging(engine, name, batch_id, kind=QUARANTINE) as stage:
        if stage.found(batch_id) is not None:
            return
        # Whether a column may hold nothing is known here, not to Spark's planner.
        rows.coalesce(1).writeTo(sql_table(name, kind=QUARANTINE, branch=stage.branch)).option("check-nullability", "false").append()
        try:
            commit_staged(stage, stage.written(), batch_id=batch_id, properties={}, may_commit=may_commit)
        except AlreadyThere:
            return
        finally:
            engine.forget(name, kind=QUARANTINE)


def quarantined(engine: Engine, name: TopicName, batch_id: str) -> dict[str, int]:
    """How many rows of the batch are in quarantine, by code."""
    return _quarantined_by(engine, name, batch_id, "code")


def quarantined_files(engine: Engine, name: TopicName, batch_id: str) -> dict[str, int]:
    """How many rows of the batch are in quarantine, by file."""
    return _quarantined_by(engine, name, batch_id, "file")


def files_with_messages(read: DataFrame, *, at_bits: int) -> frozenset[int]:
    """Return the numbers of the files that give at least one message.

    Args:
        read: Records with `code` (null: a message) and `log_order`, which is the file's number above `at_bits` bits.
    """
    from pyspark.sql import functions as F

    good = read.where(F.col("code").isNull()).select(F.shiftright("log_order", at_bits).alias("number")).distinct()
    return frozenset(row["number"] for row in good.collect())


def _quarantined_by(engine: Engine, name: TopicName, batch_id: str, column: str) -> dict[str, int]:
    from pyspark.sql import functions as F

    if not engine.session.catalog.tableExists(sql_table(name, kind=QUARANTINE)):
        return {}
    counts = engine.session.table(sql_table(name, kind=QUARANTINE)).where(F.col("batch") == batch_id).groupBy(column).count()
    return {row[column]: row["count"] for row in counts.orderBy(column).collect()}


def _create(engine: Engine, name: TopicName) -> None:
    """Where there is none. Raises CommitUnknown where nobody knows whether it was made."""
    from message_lifecycle.stores.iceberg import columns, new_table

    if engine.session.catalog.tableExists(sql_table(name, kind=QUARANTINE)):
        return
    properties = {**_PROPERTIES, **beside(name, entries(engine.table(name).properties()))}
    # False: another process made it meanwhile
    new_table.create((name.namespace, name.table(QUARANTINE)), columns.QUARANTINE_SHAPE, properties=properties, summary={})
