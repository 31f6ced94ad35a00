"""Set-up, start, stop and state of the whole embedded default, in this order and no other; every verb may be repeated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event

from lifecycle_local import airflow, cluster, postgres, processes, redis, spark_cluster
from lifecycle_local.airflow import logins_file
from lifecycle_local.environment import environment, merge_environment, read_environment, write_environment
from lifecycle_local.java import STORE_JARS, Java, ensure_jars, find_java
from lifecycle_local.layout import PRIVATE_FOLDER, Layout, find_layout, unusable_place, venv_python
from lifecycle_local.processes import choose_port, hold_file_lock, last_port
from lifecycle_local.progress import QUIET, Progress
from lifecycle_local.spark_settings import (
    Lake,
    archive_path,
    find_archive,
    lake_on_disk,
    record_archive,
    write_pyiceberg_conf,
    write_spark_conf,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The running parts. `address`: of the UI, None unless all of Airflow runs. `cluster`: the other parts of the embedded cluster."""

    state: Path
    postgres: bool
    redis: bool
    cluster: Mapping[str, bool]
    components: Mapping[str, bool]
    address: str | None
    logins: Path
    class_archive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    java: Java
    jars: tuple[Path, ...]
    store_jars: tuple[Path, ...]
    """Additional jars for a lake in an object store."""

    @property
    def archived(self) -> tuple[Java, tuple[Path, ...], tuple[Path, ...]]:
        """The parts that a class archive depends on."""
        return self.java, self.jars, self.store_jars


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    tools: _Tools
    address: postgres.Address
    lake: Lake
    settings: Mapping[str, str]


def _tools(layout: Layout, progress: Progress) -> _Tools:
    with progress.step("Java"):
        java = find_java(layout)
    with progress.step("Jars, checked against their pinned hashes"), hold_file_lock(layout.jars / "lock"):
        jars = ensure_jars(layout, java)
        store_jars = ensure_jars(layout, java, jars=STORE_JARS) if layout.is_cluster else ()
    return _Tools(java=java, jars=jars, store_jars=store_jars)


def _airflow_port(layout: Layout) -> int:
    # A running api-server holds its port, so the one on file is not free, and right.
    if airflow.any_running(layout) and (port := last_port(layout.ports_file, airflow.SERVICE)):
        return port
    return choose_port(layout.ports_file, airflow.SERVICE)


def _start_database(layout: Layout, progress: Progress) -> _Started:
    """Start the database, and the cluster's services for tables and tasks. Write every configuration file for the running services."""
    tools = _tools(layout, progress)
    with progress.step("PostgreSQL"):
        address = postgres.start(layout)
    port = _airflow_port(layout)
    settings_of = partial(environment, layout, java=tools.java, address=address, airflow_port=port, last=tools.store_jars)
    settings = settings_of()
    lake = _lake(layout, tools, address, settings, progress)
    if layout.is_cluster:
        settings = settings_of(master=lake.java["spark.master"])
    write_spark_conf(layout, lake, tools.jars, find_archive(layout, *tools.archived))
    write_pyiceberg_conf(layout, lake)
    write_environment(layout, settings)
    return _Started(tools=tools, address=address, lake=lake, settings=settings)


def _lake(layout: Layout, tools: _Tools, address: postgres.Address, settings: Mapping[str, str], progress: Progress) -> Lake:
    if not layout.is_cluster:
        return lake_on_disk(layout, address)
    with progress.step("Object store, REST catalog, Spark's master and workers"):
        return cluster.start(layout, tools.java, tools.jars, tools.store_jars, settings)


def _record_archive(layout: Layout, started: _Started, cancelled: Event) -> None:
    """Make the class archive and put it into Spark's configuration; does nothing when it is there, or cannot be made."""
    tools, lake = started.tools, started.lake
    if not archive_path(layout, *tools.archived).is_file() and (
        made := record_archive(layout, *tools.archived, lake, merge_environment(started.settings), cancelled)
    ):
        write_spark_conf(layout, lake, tools.jars, made)


# The process that makes the class archive in the background. `down` ends it.
_RECORDER = "class-archive"
_RECORDER_SECONDS = 2.0


def _launch_recorder(layout: Layout, started: _Started, _cancelled: Event) -> None:
    """Leave the class archive to a process of its own; does nothing when the archive, or that process, is there."""
    tools = started.tools
    if not archive_path(layout, *tools.archived).is_file() and processes.find_component(layout, _RECORDER) is None:
        command: list[str | Path] = [venv_python(), "-m", "lifecycle_local", _RECORDER]
        environ = {**merge_environment(started.settings), "JAVA_HOME": str(tools.java.runtime)}
        processes.launch(layout, _RECORDER, command, environ, identity="")


def archive(layout: Layout | None = None) -> None:
    """Make the class archive next to a running database, and put it into Spark's configuration. Without a database, do nothing."""
    layout = layout or find_layout()
    address, settings = postgres.find_running(layout), read_environment(layout)
    if address is None or settings is None or (layout.is_cluster and not cluster.is_serving(layout)):
        return
    tools = _tools(layout, QUIET)
    lake = _lake(layout, tools, address, settings, QUIET)
    recorded = record_archive(layout, *tools.archived, lake, merge_environment(settings), Event())
    if recorded is not None:
        with hold_file_lock(layout.lock_file):
            write_spark_conf(layout, _lake(layout, tools, address, settings, QUIET), tools.jars, recorded)


@contextmanager
def _run_in_background(work: Callable[[Event], None]) -> Iterator[Future[None]]:
    """Work on the machine's other core during the block: recording takes one core half a minute, once. Cancelled when the block fails."""
    cancelled = Event()
    with ThreadPoolExecutor(max_workers=1) as beside:
        try:
            yield beside.submit(work, cancelled)
        except BaseException:
            cancelled.set()
            raise


def setup(layout: Layout | None = None, *, progress: Progress = QUIET) -> None:
    """Everything that is done once: Java, jars, database cluster, class archive. Leaves running what ran and nothing else."""
    layout = layout or find_layout()
    layout.prepare()
    with hold_file_lock(layout.lock_file):
        _check_store(layout)
        ran = postgres.find_running(layout) is not None
        try:
            started = _start_database(layout, progress)
            with progress.step("Class archive for quick starts of Spark"):
                _record_archive(layout, started, Event())
        finally:
            if not ran:
                cluster.stop(layout)
                postgres.stop(layout)


def up(
    layout: Layout | None = None,
    *,
    with_airflow: bool = True,
    with_redis: bool = False,
    archive_later: bool = False,
    once_database_runs: Callable[[], None] | None = None,
    progress: Progress = QUIET,
) -> Status:
    """Start the missing parts and wait until they are healthy. If that fails or is interrupted, stop what this call started.

    Args:
        layout: The paths of the project and of its state. None: find them.
        with_airflow: Start Airflow, too.
        with_redis: A configured backend uses the embedded Redis.
        archive_later: Make the class archive in the background. On a busy machine that takes minutes, and Spark starts more slowly until
            then.
        once_database_runs: Called when the databases and every configuration file are there, before Airflow starts. Migrate there what
            Airflow's tasks will use.
        progress: Shows each step as it begins.
    """
    layout = layout or find_layout()
    layout.prepare()
    with hold_file_lock(layout.lock_file):
        _check_store(layout)
        ran = postgres.find_running(layout) is not None
        redis_ran = redis.find_running(layout) is not None
        airflow_ran = airflow.any_running(layout)
        try:
            started = _start_database(layout, progress)
            if with_redis:
                with progress.step("Redis"):
                    found = redis.start(layout)
                started = replace(started, settings={**started.settings, **redis.environment(layout, found)})
                write_environment(layout, started.settings)
            record, remark = (_launch_recorder, ", made in the background") if archive_later else (_record_archive, "")
            with _run_in_background(lambda cancelled: record(layout, started, cancelled)) as recorded:
                if once_database_runs:
                    once_database_runs()
                if with_airflow:
                    airflow.start(layout, merge_environment(started.settings), progress)
                with progress.step(f"Class archive for quick starts of Spark{remark}"):
                    recorded.result()
        except BaseException:
            if not airflow_ran:
                airflow.stop(layout)
            if not redis_ran:
                redis.stop(layout)
            if not ran:
                processes.stop(layout, [_RECORDER], polite_seconds=_RECORDER_SECONDS)
                cluster.stop(layout)
                postgres.stop(layout)
            raise
    return status(layout)


def _check_kind(layout: Layout) -> None:
    """Refuse the folder of the other stack: a new cluster would remove the folder's database."""
    machines = layout.state / spark_cluster.MACHINES
    if machines.is_dir() != layout.is_cluster and any(map(Path.exists, (machines, layout.postgres, layout.state / postgres.PLACE))):
        other = "without STACK=cluster" if layout.is_cluster else "with STACK=cluster"
        raise unusable_place(layout.state, f"it was made {other}", "Name another folder by LIFECYCLE_HOME, or none")
    if layout.is_cluster:
        machines.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def _check_store(layout: Layout) -> None:
    """Before anything is started: a store that comes up empty under a catalog that names its objects would be believed."""
    _check_kind(layout)
    if layout.is_cluster and not cluster.is_serving(layout):
        _reset_store(layout)


def _reset_store(layout: Layout) -> None:
    """Its store kept objects in memory, and they are gone: nothing that names one may stay, neither catalog nor ledger."""
    airflow.stop(layout)
    redis.stop(layout)
    cluster.stop(layout)
    _remove_database(layout)
    for folder in (layout.postgres, layout.redis, layout.results, layout.scratch):
        shutil.rmtree(folder, ignore_errors=True)
    layout.prepare()


def _remove_database(layout: Layout) -> None:
    """Stop and remove the database. For root, the database may be in a folder of another user."""
    postgres.stop(layout)
    if (layout.state / postgres.PLACE).is_file():  # else no other place was ever chosen
        shutil.rmtree(postgres.find_place(layout).folder, ignore_errors=True)


def start_scratch(layout: Layout, *, base: Layout | None = None, progress: Progress = QUIET) -> dict[str, str]:
    """Start a database and a lake for one process alone, in a state folder of their own, and return the environment to work in.

    Java, jars and class archive come from `base`, by default the clone's own folder; nothing in `base` needs to run. `remove_scratch`
    removes database and lake, also after this function has failed.
    """
    base = base or find_layout()
    base.prepare()
    with hold_file_lock(base.lock_file):
        tools = _tools(base, progress)
    layout.prepare()
    java = find_java(layout, {**os.environ, "JAVA_HOME": str(tools.java.runtime)})
    with progress.step("PostgreSQL"):
        address = postgres.start(layout)
    lake = lake_on_disk(layout, address)
    write_spark_conf(layout, lake, tools.jars, find_archive(base, java, tools.jars))
    write_pyiceberg_conf(layout, lake)
    return environment(layout, java=java, address=address, airflow_port=0)


def remove_scratch(layout: Layout) -> None:
    """Stop what `start_scratch` has started, and leave nothing of it."""
    _remove_database(layout)
    shutil.rmtree(layout.state)


def down(layout: Layout | None = None, *, progress: Progress = QUIET) -> None:
    """Stop everything that was started, also Spark drivers of running tasks. Data stays, except a cluster's, which is in memory."""
    layout = layout or find_layout()
    if not layout.state.is_dir():
        return
    layout.prepare()
    with hold_file_lock(layout.lock_file):
        with progress.step("Stopping Airflow"):
            airflow.stop(layout)
        with progress.step("Stopping Redis"):
            redis.stop(layout)
        if (layout.state / spark_cluster.MACHINES).is_dir():  # the caller of `down` may not know that this stack is a cluster
            with progress.step("Stopping Spark's machines, REST catalog and object store"):
                cluster.stop(layout)
        with progress.step("Stopping PostgreSQL"):
            processes.stop(layout, [_RECORDER], polite_seconds=_RECORDER_SECONDS)
            postgres.stop(layout)
        # Files that killed drivers have left. A driver that is still ending removes its own folder there at the same time.
        shutil.rmtree(layout.scratch, onerror=_raise_unless_gone)


def _raise_unless_gone(_function: object, _path: str, raised: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def status(layout: Layout | None = None) -> Status:
    """Return the parts that run. The answer comes from the processes themselves."""
    layout = layout or find_layout()
    components = airflow.components_running(layout)
    port = last_port(layout.ports_file, airflow.SERVICE)
    return Status(
        state=layout.state,
        postgres=postgres.find_running(layout) is not None,
        redis=redis.find_running(layout) is not None,
        cluster=cluster.components_running(layout) if layout.is_cluster else {},
        components=components,
        address=f"http://127.0.0.1:{port}" if port and components and all(components.values()) else None,
        logins=logins_file(layout),
        class_archive=any(layout.class_archives.glob("*.jsa")) if layout.class_archives.is_dir() else False,
    )


def landing_place(folder: Path, layout: Layout | None = None) -> str:
    """Return the place where an ingest finds the folder's files: the folder, or the cluster's store after an upload."""
    layout = layout or find_layout()
    return cluster.land(layout, folder) if layout.is_cluster else str(folder)


def bytes_of_tables(layout: Layout) -> int:
    """Return the bytes of all files below the tables' folders."""
    if layout.is_cluster:
        return cluster.bytes_of_tables(layout)
    return sum(path.stat().st_size for path in layout.warehouse.rglob("*") if path.is_file())
