"""The kernel in tasks: one per topic partition, values in and values out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.stores.iceberg.compaction.job import CompactionJob, PartitionJob, PartitionResult, Resources
from message_lifecycle.stores.iceberg.document import local_path
from message_lifecycle.stores.iceberg.tasks import MEMORY_BYTES, Failed, in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
