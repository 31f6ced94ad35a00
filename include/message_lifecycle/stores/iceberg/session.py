"""The one place where a Spark session is made, and where names become SQL identifiers.

Everything about catalogs, class paths and the JVM comes from the folder that SPARK_CONF_DIR names, so the same code runs on
the embedded default and on a cluster.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import (
    CatalogUnavailable,
    FileLost,
    FileUnreadable,
    LifecycleError,
    SparkUnavailable,
    cluster_lost,
    java_ended,
    storage_failure,
    storage_full,
    storage_refused,
    table_ahead,
)
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.java import PROPERTIES, Java, call_if_present, is_connection_broken, java_exception, remember_process
from message_lifecycle.stores.iceberg.layout import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from message_lifecycle.stores.iceberg.cluster_watch import Watch

# spark-submit sets the first variable for the process that it starts. The second one has settings that no file has.
SUBMITTED, ARGUMENTS = "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"

_of_process: SparkSession | None = None
_watch: Watch | None = None  # of the newest session on a Standalone cluster
_making = threading.Lock()


def running_session() -> SparkSession | None:
    """Return the session that this process has started, unless it was stopped or its cluster was lost."""
    if _of_process is None or _is_lost():
        return None
    from pyspark import SparkContext

    return _of_process if _of_process.sparkContext is SparkContext._active_spark_context else None


def spark_session(app_name: str) -> SparkSession:
    """Return the session of this process. The first call starts it. Raises SparkUnavailable if it does not start, or has no catalog `lake`."""
    global _of_process
    from pyspark.errors import PySparkRuntimeError

    with _making:
        session = running_session()
        if session is None:
            try:
                session = _of_process = _start_session(app_name)
            except (PySparkRuntimeError, OSError) as error:
                raise SparkUnavailable(f"the Java process did not start: {error}") from error
    return session


def _start_session(app_name: str) -> SparkSession:
    """Start a session. If its tasks run on other machines, they get our package. Raises SparkUnavailable, and then there is no session."""
    global _watch
    from pyspark.sql import SparkSession

    from message_lifecycle.stores.iceberg.cluster_watch import Watch
    from message_lifecycle.stores.iceberg.executors import give_package
    from message_lifecycle.stores.iceberg.shares import STANDALONE, local_cores

    if _of_process is not None and _is_lost():
        _of_process.stop()  # Java's part has ended; another cluster may be at the address by now
    with _keep_interrupt_handler():
        _start_java()
        session = SparkSession.builder.appName(app_name).getOrCreate()
    context = session.sparkContext
    given = dict(context.getConf().getAll())
    if PROPERTIES not in given:
        raise SparkUnavailable(f"its configuration names no catalog {CATALOG!r} ({PROPERTIES})")
    if local_cores(given) is None:
        try:
            give_package(context, given, submitted=SUBMITTED in os.environ)
        except Exception as error:  # of a disk or of Java: the next caller must not find half a session
            session.stop()
            raise SparkUnavailable(f"its executors cannot be given this package: {error}") from error
    _watch = Watch(context, given) if given["spark.master"].startswith(STANDALONE) else None
    return session


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Keep this process's handler of SIGINT.

    PySpark's handler asks Java to cancel all jobs, over the connection where the interrupted call still waits for its answer.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _start_java() -> None:
    """Start Spark's JVM unless it runs.

    A SIGINT waits until the process is known: PySpark removes the folder that Java is about to write to, and such a Java process never
    ends.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return
    in_main = threading.current_thread() is threading.main_thread()
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number)) if in_main else None
    try:
        SparkContext._ensure_initialized()
    finally:
        process = getattr(SparkContext._gateway, "proc", None)  # none where spark-submit has started this process
        if process is not None:
            remember_process(process)
        if in_main:
            signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _is_lost() -> bool:
    """True if the cluster of this process's context is lost."""
    return _watch is not None and _watch.lost


def end_session() -> None:
    """Stop the session of this process, if it was started. Call this before the files of its tables are removed."""
    global _of_process
    if _of_process is not None:
        _of_process.stop()
        _of_process = None


def quote_identifier(*parts: str) -> str:
    """SQL text of an identifier; a back-tick in a part is doubled."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def sql_table(name: TopicName, *, kind: str = "", branch: str | None = None, metadata: str | None = None) -> str:
    """Return the topic's table (or one of its other tables) as an identifier for SQL and DataFrame writers.

    `branch`: a branch of the table, for writing. `metadata`: one of Iceberg's metadata tables for it (`files`).
    """
    parts = [CATALOG, name.namespace, name.table(kind)]
    if branch is not None:
        parts.append(f"branch_{branch}")
    if metadata is not None:
        parts.append(metadata)
    return quote_identifier(*parts)


# Errors for an engine that stops in the middle of its work: the disk is full or read-only, or Java or the catalog's database is gone.


# Iceberg's words for a commit that is more than a minute earlier than the newest one: a machine's clock was ahead.
_AHEAD = re.compile(r"Invalid (?:update|snapshot) timestamp ([0-9]+): before .*?([0-9]{10,})")
_FULL = re.compile(r"No space left on device|File too large|Disk quota exceeded", re.IGNORECASE)
_READ_ONLY = re.compile(r"(/.+) \((Read-only file system|Permission denied)\)|Read-only file system", re.IGNORECASE)
# Hadoop's words for a folder that cannot be made; they do not say why.
_NO_FOLDER = re.compile(r"Mkdirs failed to create (?:file:)?(/.+?)(?: \(exists=|$)")
# A file that a table names, in Iceberg's words: it is not there, or cannot be read.
_LOST = re.compile(
    r"org\.apache\.iceberg\.exceptions\.NotFoundException: "
    r"(?:File does not exist|Failed to open input stream for file|Location does not exist): (.+)"
)
_FILE = re.compile(r"org\.apache\.iceberg\.exceptions\.RuntimeIOException: Failed to (?:open|read) \w+: (.+)")
# SQL states: a connection that cannot be made or broke, a server that shuts down; a server without room.
_GONE, _NO_ROOM = ("08", "57P"), "53100"
# A catalog behind a server that does not answer, or lets us do nothing; an object store that does neither.
_SERVER = re.compile(
    r"org\.apache\.iceberg\.exceptions\.(?:REST|ServiceFailure|ServiceUnavailable|NotAuthorized|Forbidden|UnprocessableEntity)Exception: (.*)"
)
# The catalog's error if another commit came first, in a call that does not check this itself.
_CONFLICT = re.compile(r"org\.apache\.iceberg\.exceptions\.(?:AlreadyExists|CommitFailed)Exception: (.*)")
_STORE = re.compile(r"software\.amazon\.awssdk\.(?:core|services\.s3)\.\S*Exception: (.*)")
# The same in PyArrow's words, which come without a number.
_STORE_OF_ARROW = re.compile(r"AWS Error|google::cloud::|Azure")
# A context that was stopped under a question, or before it.
_STOPPED = re.compile(r"SparkContext was shut down|stopped SparkContext")
_MOST_CAUSES = 10


@contextmanager
def engine_failures() -> Iterator[None]:
    """Raise a named error if the engine stopped for one of the reasons below, and any other exception unchanged.

    The code that commits reports a commit with an unknown result (CommitUnknown) before this function sees the exception. Imports no
    engine, because the wrapped code may need none.

    Raises:
        StorageFull, StorageRefused, CatalogUnavailable, JavaEnded, ClusterLost: The reason why the engine stopped.
    """
    try:
        yield
    except LifecycleError:
        raise  # it has a name, and may be an OSError as well
    except OSError as error:
        refused = storage_failure(error, "a table's files")
        if error.errno is None and (isinstance(error, PermissionError) or _STORE_OF_ARROW.search(str(error))):
            refused = storage_refused("a table's files", str(error).partition("\n")[0])
        if refused is None:
            raise
        raise refused from error
    except Exception as error:  # of any engine: inspect the error, and raise it unchanged if it has none of these reasons
        named = _named(error)
        if named is None:
            raise
        raise named from error


def _named(error: Exception) -> LifecycleError | None:
    if is_connection_broken(error):
        return java_ended()
    texts = []
    for cause in islice(_causes(error), _MOST_CAUSES):
        text = str(cause.toString())
        texts.append(text.partition("\n")[0])
        if _watch is not None and _watch.lost and _STOPPED.search(text):
            return cluster_lost(_watch.master)
        if found := _AHEAD.search(text):
            mine, updated = (format_to_second(Instant(int(ms) * 1_000)) for ms in found.groups())
            return table_ahead(updated=updated, now=mine)
        if found := _FULL.search(text):
            return storage_full(found.group(0))
        if found := _READ_ONLY.search(text):
            return storage_refused(found.group(1) or "a table's folder", found.group(2) or found.group(0))
        if found := _LOST.match(text):
            return FileLost(found.group(1).partition("\n")[0], "it is not there")
        if found := _NO_FOLDER.search(text):
            return storage_refused(found.group(1), "the folder cannot be made")
        if found := _SERVER.match(text):
            return CatalogUnavailable(found.group(1).rstrip("."))
        if found := _STORE.match(text):
            return storage_refused("a table's files", found.group(1))
        state = _sql_state(cause)
        if state.startswith(_GONE):
            return CatalogUnavailable(text.splitlines()[0].rstrip("."))
        if state == _NO_ROOM:
            return storage_full(text.splitlines()[0])
    # An inner cause may say more, or show that the file has no fault.
    if found := next((found for text in texts if (found := _CONFLICT.match(text))), None):
        return CatalogUnavailable(f"it refused, as if another had been first: {found.group(1).rstrip('.')}", advice="Try again.")
    found = next((found for text in texts if (found := _FILE.match(text))), None)
    if found is None or texts[-1].startswith("java.lang."):
        return None
    return FileUnreadable(found[1], texts[-1].rpartition("Exception: ")[2])


def _sql_state(cause: Java) -> str:
    state = call_if_present(cause, "getSQLState")
    return "" if state is None else str(state)  # no error of a database has no such method


def _causes(error: Exception) -> Iterator[Java]:
    """The Java exceptions behind an error of py4j or of Spark; of any other there are none."""
    java = java_exception(error)
    while java is not None:
        yield java
        java = java.getCause()
