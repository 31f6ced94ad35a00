"""Work on documents in Spark: one task per bucket, values in and values out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from message_lifecycle.model.errors import LifecycleError, code_of
from message_lifecycle.stores.iceberg.compaction.engine import MEMORY_BYTES
from message_lifecycle.stores.iceberg.compaction.job import Resources
from message_lifecycle.stores.iceberg.documents.failures import FoldingFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Bucket(Protocol):
    @property
    def bucket(self) -> int: ...


Given = TypeVar("Given", bound=_Bucket)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """Errors do not all survive the way back from a task."""

    bucket: int
    kind: str
    reason: str


def each_bucket(session: SparkSession, buckets: Sequence[Given], work: Callable[[Given, Resources], Made]) -> list[Made]:
    """The work of every bucket, each within its share of the machine. Raises FoldingFailed."""
    if not buckets:
        return []
    context = session.sparkContext
    cores = context.defaultParallelism
    at_once = min(cores, len(buckets))
    resources = Resources(
        threads=max(1, cores // at_once),
        memory_bytes=MEMORY_BYTES // at_once,
        spill_folder=context.getConf().get("spark.local.dir") or tempfile.gettempdir(),
    )

    def task(bucket: Given) -> Made | _Failed:
        import duckdb

        try:
            return work(bucket, resources)
        except (LifecycleError, duckdb.Error, OSError) as error:
            return _Failed(bucket=bucket.bucket, kind=code_of(error), reason=str(error))

    # No data frame: files are read where they lie, and there is nothing for Spark's planner to plan.
    found = context.parallelize(buckets, len(buckets)).map(task).collect()
    failed = next((one for one in found if isinstance(one, _Failed)), None)
    if failed is not None:
        raise FoldingFailed(failed.bucket, failed.kind, failed.reason)
    return [one for one in found if not isinstance(one, _Failed)]
