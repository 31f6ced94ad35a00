"""The kernel in Spark: one task per topic partition, values in and values out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LifecycleError, Unavailable, code_of
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.stores.iceberg.compaction.job import MEBIBYTE, CompactionJob, PartitionJob, PartitionResult, Resources
from message_lifecycle.stores.iceberg.document import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_BYTES = 1024 * MEBIBYTE
"""Of all tasks of one machine together. Beyond it they spill, so more is quicker only where keys are many."""


def compaction_failed(partition: int, kind: str, reason: str) -> Unavailable:
    """A task could not do its partition; the view is as it was."""
    return Unavailable(
        f"compacting partition {partition} failed ({kind}): {reason} The view is as it was; mend that and run again.",
        code="CompactionFailed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """Errors do not all survive the way back from a task."""

    partition: int
    kind: str
    reason: str


def run(session: SparkSession, job: CompactionJob, *, memory_bytes: int = MEMORY_BYTES) -> list[PartitionResult]:
    """Write the new files of every partition; a commit makes them the view. Raises CompactionFailed, and then leaves no file behind."""
    if not job.partitions:
        return []
    context = session.sparkContext
    cores = context.defaultParallelism
    at_once = min(cores, len(job.partitions))
    resources = Resources(
        threads=max(1, cores // at_once),
        memory_bytes=memory_bytes // at_once,
        spill_folder=context.getConf().get("spark.local.dir") or tempfile.gettempdir(),
        # Of a rate below a byte for each task nobody makes anything; it must not become none.
        read_bytes_per_second=-(-job.read_bytes_per_second // at_once),
        write_bytes_per_second=-(-job.write_bytes_per_second // at_once),
    )
    whole = job

    def task(partition: PartitionJob) -> PartitionResult | _Failed:
        return _done(whole, partition, resources)

    # No data frame: there is nothing for Spark's planner to plan, and it costs more than the tasks' start.
    found = context.parallelize(job.partitions, len(job.partitions)).map(task).collect()
    failed = next((one for one in found if isinstance(one, _Failed)), None)
    if failed is not None:
        discard(job)
        raise compaction_failed(failed.partition, failed.kind, failed.reason)
    return [one for one in found if isinstance(one, PartitionResult)]


def discard(job: CompactionJob) -> None:
    """Take away what a run has written that will not be committed."""
    for path in local_path(job.data_folder).glob(f"partition=*/{job.run}-*"):
        path.unlink(missing_ok=True)


def _done(job: CompactionJob, partition: PartitionJob, resources: Resources) -> PartitionResult | _Failed:
    import duckdb

    from message_lifecycle.stores.iceberg.compaction.kernel import compact

    try:
        return compact(partition, job.rules, resources, data_folder=job.data_folder, run=job.run)
    except (LifecycleError, duckdb.Error, OSError) as error:
        return _Failed(partition=partition.partition, kind=code_of(error), reason=str(error))


def totals(results: Sequence[PartitionResult]) -> dict[ViewReason, int]:
    """Counts by reason over all partitions; only reasons that occurred."""
    found: dict[ViewReason, int] = {}
    for result in results:
        for reason, count in result.removed.items():
            found[reason] = found.get(reason, 0) + count
    return found
