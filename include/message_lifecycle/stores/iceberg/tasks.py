"""Work in tasks, one value in and one out, each within its share of the machine that it runs on; and what those values name: the files and
deletion vectors that a task reads, and those that it writes.

Where Spark's master is a cluster, its executors do it. Where it is this machine (`local[2]`), this process does, on as many threads as that
master has cores: what the tasks run is DuckDB, which needs neither a context of Spark nor a worker beside it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar, cast

from message_lifecycle.model.errors import LifecycleError, code_of
from message_lifecycle.stores.iceberg.cluster_watch import STANDALONE
from message_lifecycle.stores.iceberg.executors import registered
from message_lifecycle.stores.iceberg.java import Jvm
from message_lifecycle.stores.iceberg.session import local_cores
from message_lifecycle.stores.iceberg.table_files import delete_files, listed, size_there
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

MEBIBYTE = 1 << 20
MEMORY_BYTES = 1024 * MEBIBYTE
"""Of all tasks of one machine together. Beyond it they spill, so more is quicker only where values are many."""

# Beginnings of the names of settings that open files, as PyIceberg has them.
_OF_FILES = ("s3.", "client.", "gcs.", "adls.")

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The way to files by the scheme of their paths, which a task takes along. `settings`: of the table's own I/O; none are needed on this
    machine's disk."""

    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # there are secrets among them

    @classmethod
    def of(cls, table: Table) -> Store:
        return cls.of_io(table.io, table.location())

    @classmethod
    def of_io(cls, io: FileIO, location: str) -> Store:
        """As the table there opens its files."""
        if is_local(location):
            return HERE
        return cls(settings=tuple(sorted((key, value) for key, value in io.properties.items() if isinstance(value, str))))

    @classmethod
    def of_catalog(cls, catalog: Catalog) -> Store:
        """By the keys that its configuration has, for files of no table; what opens the catalog itself stays here."""
        return cls(settings=tuple(sorted((key, str(value)) for key, value in catalog.properties.items() if key.startswith(_OF_FILES))))

    @property
    def io(self) -> FileIO:
        from message_lifecycle.stores.iceberg.lake_io import io_of

        return io_of(self.settings)

    def open(self, path: str) -> IO[bytes]:
        """For reading here and there: a local file is not read whole."""
        return local_path(path).open("rb") if is_local(path) else cast("IO[bytes]", self.io.new_input(path).open())

    def create(self, path: str) -> IO[bytes]:
        """For writing; what is there is written anew."""
        if is_local(path):
            local_path(path).parent.mkdir(parents=True, exist_ok=True)
            return local_path(path).open("wb")
        return cast("IO[bytes]", self.io.new_output(path).create(overwrite=True))

    def write(self, path: str, content: bytes) -> None:
        with self.create(path) as file:
            file.write(content)

    def size(self, path: str) -> int:
        return local_path(path).stat().st_size if is_local(path) else len(self.io.new_input(path))

    def listed(self, place: str) -> list[tuple[str, int]]:
        """Names of the files below it with their sizes; of a file, one without name. Raises StorageRefused."""
        size = size_there(self.io, place)
        return [(file.name, file.size_bytes) for file in listed(self.io, place)] if size is None else [("", size)]

    def remove(self, path: str) -> None:
        """It is no error where it is not there."""
        if is_local(path):
            local_path(path).unlink(missing_ok=True)
        else:
            with suppress(FileNotFoundError):
                self.io.delete(path)

    def remove_all(self, folder: str, name: str) -> None:
        """Files in the folders below whose names begin so."""
        if is_local(folder):
            for path in local_path(folder).glob(f"*/{name}*"):
                path.unlink(missing_ok=True)
        else:
            delete_files(self.io, folder, [file.name for file in listed(self.io, folder) if file.name.rpartition("/")[2].startswith(name)])


HERE = Store()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A deletion vector: a blob of `length` bytes at `offset` of a Puffin file."""

    path: str
    offset: int
    length: int
    store: Store = HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A Parquet file of the log or of the view, by absolute path or URI.

    `may_be_due`: whether its bounds leave it possible that a row is dead, or past its delete horizon, at the rules' `as_of`; False
    saves reading the columns of times."""

    path: str
    size_bytes: int = 0
    vector: Vector | None = None
    may_be_due: bool = True
    store: Store = HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A task's share of the machine.

    Attributes:
        threads: Threads of its database.
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
class NewFile:
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVector:
    """Takes the place of the data file's earlier vector: its `rows` marks include those."""

    data_file: str
    puffin: NewFile
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What changes in one partition of a table. `dropped`: paths of data files that go whole; `unmarked`: of those that lose their vector and
    get none. `rows`: how many go or come, where that is the question."""

    partition: int
    files: tuple[NewFile, ...] = ()
    vectors: tuple[NewVector, ...] = ()
    dropped: tuple[str, ...] = ()
    unmarked: tuple[str, ...] = ()
    rows: int = 0

    @property
    def is_nothing(self) -> bool:
        return not (self.files or self.vectors or self.dropped or self.unmarked)


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
    """What each item has come to, in order. Rates (0: none) are those of all tasks together (CMP-11), memory is that of the tasks of this
    machine, or of one executor."""
    if not items:
        return []
    settings = session._settings if isinstance(session, Jvm) else dict(session.sparkContext.getConf().getAll())
    here = local_cores(settings)
    cores_of_task = 1 if here is not None else int(settings.get("spark.task.cpus", "1"))
    beside = here if here is not None else _beside(session.sparkContext, settings, cores_of_task) or len(items)
    share_of = min(beside, len(items))
    # On a cluster executors may come later: a rate is kept by as many tasks as there may ever be.
    at_once = share_of if here is not None else min(_most(settings, beside, cores_of_task) or len(items), len(items))
    share = Resources(
        threads=cores_of_task * max(1, beside // share_of),
        memory_bytes=memory_bytes // share_of,
        spill_folder=_spill_folder(settings.get("spark.local.dir")),
        # Of a rate below a byte for each task nobody makes anything; it must not become none.
        read_bytes_per_second=-(-read_bytes_per_second // at_once),
        write_bytes_per_second=-(-write_bytes_per_second // at_once),
    )
    if here is None:
        # No data frame: there is nothing for Spark's planner to plan, and it costs more than the tasks' start.
        return session.sparkContext.parallelize(items, len(items)).map(partial(_done_there, work, share)).collect()
    Path(share.spill_folder).mkdir(parents=True, exist_ok=True)  # Spark's own context makes it; there may be none
    threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="task")
    try:
        return list(threads.map(partial(_done, work, share), items))
    finally:
        # Also where one has failed or a person breaks this off: what still writes would write on after the caller has tidied up.
        threads.shutdown(wait=True, cancel_futures=True)


def _beside(context: SparkContext, settings: Mapping[str, str], cores_of_task: int) -> int | None:
    """How many tasks run at once on one executor, the largest; None: none has come yet."""
    of_each = settings.get("spark.executor.cores")
    return max(registered(context), default=None) if of_each is None else max(1, int(of_each) // cores_of_task)


def _most(settings: Mapping[str, str], beside: int, cores_of_task: int) -> int | None:
    """How many run at once on all executors that there may be; None: nothing says."""
    if settings.get("spark.master", "").startswith(STANDALONE):  # it takes no number of executors
        cores = settings.get("spark.cores.max")
        return None if cores is None else max(1, int(cores) // cores_of_task)
    dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    executors = settings.get("spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances")
    return None if executors is None else int(executors) * beside


def _spill_folder(folders: str | None) -> str:
    """The first of a list, as Spark takes it."""
    return (folders or "").split(",")[0] or tempfile.gettempdir()


def _done_there(work: Callable[[Item, Resources], Made], share: Resources, item: Item) -> Made | Failed:
    """On an executor, whose disks are its own. Spark tells its workers of them."""
    return _done(work, replace(share, spill_folder=_spill_folder(os.environ.get("SPARK_LOCAL_DIRS"))), item)


def _done(work: Callable[[Item, Resources], Made], share: Resources, item: Item) -> Made | Failed:
    import duckdb

    try:
        return work(item, share)
    except (LifecycleError, duckdb.Error, OSError) as error:
        return Failed(kind=code_of(error), reason=str(error))
