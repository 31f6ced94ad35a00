"""The engine of this process: it runs tasks, and has Iceberg's Java library, which commits.

There are two engines. `SparkEngine`: each task is part of a Spark job, on `local[2]` as on a cluster. `ThreadEngine`: tasks run in threads of this
process, and the JVM starts without Spark, because a user waits. Only `engine_of_process` decides, by who started the process.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import SparkUnavailable, UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg import java
from message_lifecycle.stores.iceberg import session as sessions
from message_lifecycle.stores.iceberg.java import NOT_THERE, Connection, Java, Jvm, identifier, java_class, thrown
from message_lifecycle.stores.iceberg.session import ARGUMENTS, SUBMITTED, spark_session, sql_table
from message_lifecycle.stores.iceberg.shares import (
    NO_LIMITS,
    Failed,
    Item,
    Made,
    ResourceLimits,
    Resources,
    done,
    done_by_worker,
    local_cores,
    share_here,
    share_of_executors,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Only Spark finds jars by this setting.
_RESOLVED = "spark.jars.packages"


class Engine(Jvm, ABC):
    """A JVM that knows Iceberg, and a way to run tasks."""

    def table(self, name: TopicName, *, kind: str = "") -> Java:
        """Return the topic's Iceberg table of the kind, at its newest state. Raises UnknownTopic."""
        try:
            return self.lake.loadTable(identifier(self, (name.namespace, name.table(kind))))
        except thrown() as error:
            if java_class(error) in NOT_THERE:
                raise UnknownTopic(str(name)) from None
            raise

    @abstractmethod
    def run(
        self, items: Sequence[Item], work: Callable[[Item, Resources], Made], *, description: str, rates: ResourceLimits = NO_LIMITS
    ) -> list[Made | Failed]:
        """Run the work on each item, and return the results in the order of the items.

        Args:
            items: The input of each task.
            work: The work of a task, within its share of a machine.
            description: A text that identifies the job for a user.
            rates: Limits of all these tasks together.
        """

    def forget(self, name: TopicName, *, kind: str = "") -> None:
        """Let SQL in this process read the table again.

        Spark caches tables that SQL has read, and does not see commits by Iceberg's own calls. An application runs no SQL.
        """


class ThreadEngine(Engine):
    """Runs tasks in threads of this process. If this process already has Spark for SQL, the JVM is Spark's; else a JVM without Spark."""

    def run(
        self, items: Sequence[Item], work: Callable[[Item, Resources], Made], *, description: str, rates: ResourceLimits = NO_LIMITS
    ) -> list[Made | Failed]:
        if not items:
            return []
        share, at_once = share_here(self.settings, len(items), rates)
        Path(share.spill_folder).mkdir(parents=True, exist_ok=True)
        threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix=f"task of {description}")
        try:
            return list(threads.map(partial(done, work, share), items))
        finally:
            # Wait after a failure or an interrupt, too: a task must not write after the caller has cleaned up.
            threads.shutdown(wait=True, cancel_futures=True)

    def forget(self, name: TopicName, *, kind: str = "") -> None:
        session = sessions.running_session()
        if session is not None:
            session.catalog.refreshTable(sql_table(name, kind=kind))


class SparkEngine(Engine):
    """Runs tasks as Spark jobs, with Spark's JVM."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__(settings_of(session.sparkContext), partial(_spark_java, session))
        self._session = session

    @cached_property
    def hadoop(self) -> Java:
        return self._session.sparkContext._jsc.hadoopConfiguration()

    def run(
        self, items: Sequence[Item], work: Callable[[Item, Resources], Made], *, description: str, rates: ResourceLimits = NO_LIMITS
    ) -> list[Made | Failed]:
        return _run_by_spark(self._session.sparkContext, items, work, description, rates)


def _run_by_spark(
    context: SparkContext, items: Sequence[Item], work: Callable[[Item, Resources], Made], description: str, rates: ResourceLimits
) -> list[Made | Failed]:
    if not items:
        return []
    settings = settings_of(context)
    if local_cores(settings) is not None:
        share, _ = share_here(settings, len(items), rates)
    else:
        share = share_of_executors(context, settings, len(items), rates)
    with _described(context, description):
        # No data frame: Spark's planner would plan nothing, and planning costs more than the tasks' start.
        return context.parallelize(items, len(items)).map(partial(done_by_worker, work, share)).collect()


def settings_of(context: SparkContext) -> dict[str, str]:
    return dict(context.getConf().getAll())


@contextmanager
def _described(context: SparkContext, description: str) -> Iterator[None]:
    """Describe the jobs of this thread in Spark's pages and event log."""
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]  # PySpark's type says str; None removes it


def _spark_java(session: SparkSession, _settings: Mapping[str, str]) -> Connection:
    return session.sparkContext._gateway, None


_application: str | None = None
_of_process: tuple[tuple[object, ...], Engine] | None = None
_making = threading.Lock()


def start_application(name: str) -> None:
    """Start Spark, and let it run all tasks of this process. For applications of Spark alone."""
    global _application
    _application = name
    spark_session(name)


def end_application() -> None:
    """Stop Spark, which completes its event log. Does nothing unless `start_application` started it."""
    if _application is not None:
        end_engine()


def engine_of_process() -> Engine:
    """Return the engine of this process. The first call starts it.

    An application uses Spark. The command and tests use a JVM without Spark, and run tasks in their own threads. The command and tests
    use Spark as well if Spark's master is a cluster, or if only Spark can read its settings.

    Raises:
        SparkUnavailable: Spark cannot start, or its settings name no catalog `lake`.
    """
    running = sessions.running_session()
    if _application is not None or _needs_spark():
        session = running or spark_session(_application or "lifecycle")
        return _engine_for_key((session,), lambda: SparkEngine(session))
    settings = java.settings()
    # A fork has no JVM, and another configuration names another lake.
    key = os.getpid(), settings, running
    return _engine_for_key(key, lambda: ThreadEngine(settings, None if running is None else partial(_spark_java, running)))


def engine_at_hand() -> Engine | None:
    """Return the engine of this process. None: it would have to start Spark first, or Spark has no settings here.

    A search of many files must not start Spark. Otherwise each check of a plan in a Python task of Airflow would start it.
    """
    if _application is None and sessions.running_session() is None:
        try:
            if _needs_spark():
                return None
        except SparkUnavailable:
            return None  # Python's own configuration is enough to read
    return engine_of_process()


def _engine_for_key(key: tuple[object, ...], make: Callable[[], Engine]) -> Engine:
    """Return the engine of the key, or make it.

    An earlier engine of this process stays alive if a session has started since: work that began with it still has its objects.
    """
    global _of_process
    with _making:
        if _of_process is None or _of_process[0] != key:
            if sessions.running_session() is None:
                _end_java()
            _of_process = key, make()
        return _of_process[1]


def _needs_spark() -> bool:
    if ARGUMENTS in os.environ or SUBMITTED in os.environ:
        return True  # they may name the master, and the catalog
    settings = java.settings()
    return _RESOLVED in settings or local_cores(settings) is None


def job_text(plan: Plan, tasks: str) -> str:
    """Describe a job of a plan, for a person: "compaction of demo/flights: 4 partitions, plan 1a2b3c4d"."""
    return f"{plan.operation.replace('_', ' ')} of {plan.topic}: {tasks}, plan {plan.plan_id[:8]}"


def end_engine() -> None:
    """End the JVM and the Spark session that this process has started. Call this before the files of its tables are removed."""
    _end_java()
    sessions.end_session()


def _end_java() -> None:
    global _of_process
    if _of_process is not None:
        _of_process[1].end()
        _of_process = None
