"""Work in tasks, one value in and one out, each within its share of the machine that it runs on.

Where Spark's master is a cluster, its executors do it. Where it is this machine (`local[2]`), this process does, on as many threads as that
master has cores: what the tasks run is DuckDB, which needs neither a context of Spark nor a worker beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from message_lifecycle.model.errors import LifecycleError, Unavailable, code_of
from message_lifecycle.model.message import ViewReason
from message_lifecycle.stores.iceberg.compaction import MEBIBYTE, CompactionJob, PartitionJob, PartitionResult, Resources
from message_lifecycle.stores.iceberg.java import Jvm
from message_lifecycle.stores.iceberg.session import local_cores
from message_lifecycle.stores.iceberg.table_folder import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_BYTES = 1024 * MEBIBYTE
"""Of all tasks of one machine together. Beyond it they spill, so more is quicker only where values are many."""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What a task could not do. Errors do not all survive the way back from an executor."""

    kind: str
    reason: str


def in_tasks(
    session: SparkSession,
    items: Sequence[Item],
    work: Callable[[Item, Resources], Made],
    *,
    memory_bytes: int = MEMORY_BYTES,
    read_bytes_per_second: int = 0,
    write_bytes_per_second: int = 0,
) -> list[Made | Failed]:
    """What each item has come to, in order. Memory and rates (0: none) are those of all tasks together (CMP-11)."""
    if not items:
        return []
    settings = session._settings if isinstance(session, Jvm) else dict(session.sparkContext.getConf().getAll())
    here = local_cores(settings)
    cores = session.sparkContext.defaultParallelism if here is None else here
    at_once = min(cores, len(items))
    share = Resources(
        threads=max(1, cores // at_once),
        memory_bytes=memory_bytes // at_once,
        spill_folder=settings.get("spark.local.dir", "").split(",")[0] or tempfile.gettempdir(),
        # Of a rate below a byte for each task nobody makes anything; it must not become none.
        read_bytes_per_second=-(-read_bytes_per_second // at_once),
        write_bytes_per_second=-(-write_bytes_per_second // at_once),
    )
    task = partial(_done, work, share)
    if here is None:
        # No data frame: there is nothing for Spark's planner to plan, and it costs more than the tasks' start.
        return session.sparkContext.parallelize(items, len(items)).map(task).collect()
    Path(share.spill_folder).mkdir(parents=True, exist_ok=True)  # Spark's own context makes it; there may be none
    threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="task")
    try:
        return list(threads.map(task, items))
    finally:
        # Also where one has failed or a person breaks this off: what still writes would write on after the caller has tidied up.
        threads.shutdown(wait=True, cancel_futures=True)


def _done(work: Callable[[Item, Resources], Made], share: Resources, item: Item) -> Made | Failed:
    import duckdb

    try:
        return work(item, share)
    except (LifecycleError, duckdb.Error, OSError) as error:
        return Failed(kind=code_of(error), reason=str(error))


# The kernel in tasks: one per topic partition, values in and values out.


def compaction_failed(partition: int, kind: str, reason: str) -> Unavailable:
    """A task could not do its partition; the view is as it was."""
    return Unavailable(
        f"compacting partition {partition} failed ({kind}): {reason} The view is as it was; mend that and run again.",
        code="CompactionFailed",
    )


def run(session: SparkSession, job: CompactionJob, *, memory_bytes: int = MEMORY_BYTES) -> list[PartitionResult]:
    """Write the new files of every partition; a commit makes them the view. Raises CompactionFailed, and then leaves no file behind."""
    # In names of their own: a task takes these with it, and no other partition.
    rules, data_folder, run = job.rules, job.data_folder, job.run

    def compact(partition: PartitionJob, share: Resources) -> PartitionResult:
        from message_lifecycle.stores.iceberg.compaction.kernel import compact

        return compact(partition, rules, share, data_folder=data_folder, run=run)

    try:
        found = in_tasks(
            session,
            job.partitions,
            compact,
            memory_bytes=memory_bytes,
            read_bytes_per_second=job.read_bytes_per_second,
            write_bytes_per_second=job.write_bytes_per_second,
        )
    except BaseException:  # whatever broke it off, nobody will commit what it wrote
        discard(job)
        raise
    for partition, failed in zip(job.partitions, found, strict=True):
        if isinstance(failed, Failed):
            discard(job)
            raise compaction_failed(partition.partition, failed.kind, failed.reason)
    return [one for one in found if isinstance(one, PartitionResult)]


def discard(job: CompactionJob) -> None:
    """Take away what a run has written that will not be committed."""
    for path in local_path(job.data_folder).glob(f"partition=*/{job.run}-*"):
        path.unlink(missing_ok=True)


def totals(results: Sequence[PartitionResult]) -> dict[ViewReason, int]:
    """Counts by reason over all partitions; only reasons that occurred."""
    found: dict[ViewReason, int] = {}
    for result in results:
        for reason, count in result.removed.items():
            found[reason] = found.get(reason, 0) + count
    return found
