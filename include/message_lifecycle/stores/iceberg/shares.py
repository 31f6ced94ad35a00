"""A task's share of the machine that it runs on, and how a task ends."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from zipimport import zipimporter

from message_lifecycle.model.errors import BadInput, LifecycleError, PartlyUnavailable, Refused, Unavailable, code_of
from message_lifecycle.stores.iceberg.executors import registered

if TYPE_CHECKING:
    from pyspark import SparkContext

MEBIBYTE = 1 << 20
STANDALONE = "spark://"
"""The beginning of the address of a standalone cluster's master."""
MEMORY_BYTES = 1024 * MEBIBYTE
"""Of all tasks of one machine together. Beyond it they spill, so more is quicker only where values are many."""
THREAD_BYTES = 48 * MEBIBYTE
"""Memory that a thread of DuckDB needs to spill the rest. With 40 MiB each, two threads ran out of it in 2 of 8 runs on a busy machine."""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A task's share of the machine.

    Attributes:
        threads: Threads of its database, if each has THREAD_BYTES of the memory.
        memory_bytes: Memory of its database. Beyond it, the database spills.
        spill_folder: The folder that it spills to.
        file_bytes: About the greatest size of a new data file.
        sampled_offsets: About how many offsets decide where one new file ends and the next begins.
            The offsets of a large partition do not fit into memory.
        read_bytes_per_second: A rate (CMP-11). 0: no limit.
        write_bytes_per_second: The same for writes.
    """

    threads: int = 1
    memory_bytes: int = 512 * MEBIBYTE
    spill_folder: str
    file_bytes: int = 256 * MEBIBYTE
    sampled_offsets: int = 1_000_000
    read_bytes_per_second: int = 0
    write_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Limits of all tasks of one call together. Rates are in bytes a second (CMP-11); 0: no limit. Memory is that of one machine's tasks."""

    memory_bytes: int = MEMORY_BYTES
    read_bytes_per_second: int = 0
    write_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The error of a task. Errors do not all survive the way back from an executor.

    Attributes:
        family: The class of the error if it is one of ours: BadInput, Refused, PartlyUnavailable or Unavailable.
    """

    kind: str
    reason: str
    family: type[LifecycleError] | None = None

    def error(self, otherwise: Callable[[str, str], LifecycleError]) -> LifecycleError:
        """Return the error of the task. `otherwise` makes one from `kind` and `reason` if the error was none of ours."""
        return self.family(self.reason, code=self.kind) if self.family else otherwise(self.kind, self.reason)


NO_LIMITS = ResourceLimits()
_FAMILIES = (BadInput, Refused, PartlyUnavailable, Unavailable)


def local_cores(settings: Mapping[str, str]) -> int | None:
    """Return how many tasks a local master of Spark runs at once. None: the master is a cluster, or missing."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", settings.get("spark.master", ""))
    if found is None:
        return None
    return len(os.sched_getaffinity(0)) if found[1] == "*" else max(1, int(found[1] or 1))


def share_here(settings: Mapping[str, str], items: int, rates: ResourceLimits) -> tuple[Resources, int]:
    """Return the share of each of `items` tasks on this machine, and how many of them run at once."""
    cores = local_cores(settings) or 1
    at_once = min(cores, items)
    return _share(settings, rates, threads=max(1, cores // at_once), of_machine=at_once, at_once=at_once), at_once


def share_of_executors(context: SparkContext, settings: Mapping[str, str], items: int, rates: ResourceLimits) -> Resources:
    """Return the share of each of `items` tasks on a cluster's executors."""
    cores_of_task = int(settings.get("spark.task.cpus", "1"))
    of_executor = _of_executor(context, settings, cores_of_task) or items
    of_machine = min(of_executor, items)
    # Executors may come later: a rate is kept by as many tasks as there may ever be.
    at_once = min(_most(settings, of_executor, cores_of_task) or items, items)
    return _share(settings, rates, threads=cores_of_task * max(1, of_executor // of_machine), of_machine=of_machine, at_once=at_once)


def _share(settings: Mapping[str, str], rates: ResourceLimits, *, threads: int, of_machine: int, at_once: int) -> Resources:
    return Resources(
        threads=threads,
        memory_bytes=rates.memory_bytes // of_machine,
        spill_folder=_first_folder(settings.get("spark.local.dir")),
        # A rate below a byte for each task must not become no limit.
        read_bytes_per_second=-(-rates.read_bytes_per_second // at_once),
        write_bytes_per_second=-(-rates.write_bytes_per_second // at_once),
    )


def _of_executor(context: SparkContext, settings: Mapping[str, str], cores_of_task: int) -> int | None:
    """Return how many tasks the largest executor runs at once. None: no executor has come yet."""
    of_each = settings.get("spark.executor.cores")
    return max(registered(context), default=None) if of_each is None else max(1, int(of_each) // cores_of_task)


def _most(settings: Mapping[str, str], of_executor: int, cores_of_task: int) -> int | None:
    """Return how many tasks run at once on all executors that may come. None: no setting says it."""
    if settings.get("spark.master", "").startswith(STANDALONE):  # it takes no number of executors
        cores = settings.get("spark.cores.max")
        return None if cores is None else max(1, int(cores) // cores_of_task)
    dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    executors = settings.get("spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances")
    return None if executors is None else int(executors) * of_executor


def _first_folder(folders: str | None) -> str:
    """Return the first folder of a list, as Spark reads it."""
    return (folders or "").split(",")[0] or tempfile.gettempdir()


def done_by_worker(work: Callable[[Item, Resources], Made], share: Resources, item: Item) -> Made | Failed:
    """Do a task in one of Spark's Python workers. Spark passes the folders of the worker's machine in an environment variable."""
    try:
        return done(work, replace(share, spill_folder=_first_folder(os.environ.get("SPARK_LOCAL_DIRS"))), item)
    finally:
        _forget_finders_of_archives()


def _forget_finders_of_archives() -> None:
    """Drop the import finders of zip files, because PySpark invalidates all finders before each task.

    On a cluster, PySpark and this package lie in zip files. Python up to 3.12 reads the directory of a zip file again for each invalid finder,
    and there is one for each package: 0.1 CPU seconds. An import that needs a finder makes a new one. The new one does not see a file that
    replaced the zip file under the same name, but the name of our zip file contains a hash.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)


def done(work: Callable[[Item, Resources], Made], share: Resources, item: Item) -> Made | Failed:
    try:
        return work(item, share)
    except _task_errors() as error:
        family = next((one for one in _FAMILIES if isinstance(error, one)), None)
        return Failed(kind=code_of(error), reason=str(error), family=family)


def _task_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a task may end with. DuckDB has errors only if a task uses it; its import takes 0.1 CPU seconds."""
    duckdb = sys.modules.get("duckdb")
    return (LifecycleError, OSError) if duckdb is None else (LifecycleError, OSError, duckdb.Error)
