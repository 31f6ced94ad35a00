"""The one place where a Spark session is made, and where names become SQL identifiers and Java tables.

Everything about catalogs, class paths and the JVM comes from the folder that SPARK_CONF_DIR names, so the same code runs on
the embedded default and on a cluster.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from message_lifecycle.model.errors import (
    CatalogUnavailable,
    FileLost,
    FileUnreadable,
    LifecycleError,
    SparkUnavailable,
    UnknownTopic,
    cluster_lost,
    java_ended,
    storage_failure,
    storage_full,
    storage_refused,
    table_ahead,
)
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.cluster_watch import STANDALONE, Watch
from message_lifecycle.stores.iceberg.executors import give_package
from message_lifecycle.stores.iceberg.java import (
    NOT_THERE,
    PROPERTIES,
    Jvm,
    end,
    identifier,
    java_class,
    java_exception,
    jvm_of_process,
    launched,
    line_broke,
    said,
    settings,
    thrown,
)
from message_lifecycle.stores.iceberg.java import Java as Java
from message_lifecycle.stores.iceberg.layout import CATALOG

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

# Set where spark-submit has started this process: its JVM is there.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Settings that no file has, and names by which Spark alone finds jars.
_ARGUMENTS, _RESOLVED = "PYSPARK_SUBMIT_ARGS", "spark.jars.packages"


class LazySession(Jvm):
    """A Spark session of which the part that knows SQL is made by the first question in SQL: a run that only starts tasks and commits
    by Iceberg's own calls does without, and that is a quarter of what starting costs."""

    def __init__(self, context: SparkContext) -> None:
        super().__init__(context._gateway, dict(context.getConf().getAll()))
        # PySpark's own questions as well: of an ingest, a thousand are for names that it has asked for before.
        type(context)._jvm = self._jvm
        self.sparkContext = context
        self._made: SparkSession | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sql(), name)

    def _sql(self) -> SparkSession:
        from pyspark.sql import SparkSession

        if self._made is None:
            self._made = SparkSession.builder.getOrCreate()
        return self._made

    @property
    def knows_sql(self) -> bool:
        return self._made is not None

    @cached_property
    def hadoop(self) -> Java:
        return self.sparkContext._jsc.hadoopConfiguration()


_of_process: LazySession | None = None
_watch: Watch | None = None  # of the newest context on a Standalone cluster
_making = threading.Lock()


def spark_session(app_name: str) -> SparkSession:
    """The session of this process; made on the first call. Raises SparkUnavailable where it cannot be, or knows no catalog `lake`."""
    global _of_process
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError

    if _of_process is not None and _of_process.sparkContext is SparkContext._active_spark_context and not _is_lost():
        return cast("SparkSession", _of_process)
    try:
        context = _context(app_name)
    except (PySparkRuntimeError, OSError) as error:
        raise SparkUnavailable(f"the Java process did not start: {error}") from error
    if context.getConf().get(PROPERTIES) is None:
        raise SparkUnavailable(f"its configuration names no catalog {CATALOG!r} ({PROPERTIES})")
    _of_process = LazySession(context)
    return cast("SparkSession", _of_process)


def _context(app_name: str) -> SparkContext:
    """Of this process; where its tasks run on other machines, they have our package. Raises SparkUnavailable, and then there is none."""
    global _watch
    from pyspark import SparkConf, SparkContext

    _pass_no_arrays()
    with _making:
        there = SparkContext._active_spark_context
        if there is not None and _is_lost():
            there.stop()  # of Java's part that is done; another cluster may stand at the address by now
            there = None
        # Even where there is one, this asks Java a dozen questions, and its configuration comes over as a whole.
        with _own_answer_to_interrupts():
            conf = SparkConf().setAppName(app_name)
            _start_java(conf)
            context = SparkContext.getOrCreate(conf)
        if context is not there:
            given = dict(context.getConf().getAll())
            if local_cores(given) is None:
                try:
                    give_package(context, given, submitted=_SUBMITTED in os.environ)
                except Exception as error:  # of a disk, or of Java: whoever asks next finds no context half made
                    context.stop()
                    raise SparkUnavailable(f"its executors cannot be given this package: {error}") from error
            _watch = Watch(context, given) if given["spark.master"].startswith(STANDALONE) else None
        return context


@contextmanager
def _own_answer_to_interrupts() -> Iterator[None]:
    """Keep this process's handler of SIGINT. PySpark's asks Java to cancel all jobs, on the line by which the interrupted call still waits for
    its answer."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _start_java(conf: SparkConf) -> None:
    """Start Spark's JVM unless it runs. A SIGINT waits until the process is known: PySpark removes the folder that Java is about to write to,
    and such a Java process never ends."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return
    in_main = threading.current_thread() is threading.main_thread()
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number)) if in_main else None
    try:
        SparkContext._ensure_initialized(conf=conf)
    finally:
        process = getattr(SparkContext._gateway, "proc", None)  # none where spark-submit has started this process
        if process is not None:
            launched(process)
        if in_main:
            signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _is_lost() -> bool:
    """Whether the cluster of this process's context has gone."""
    return _watch is not None and _watch.lost


def engine(session: Callable[[], SparkSession] | None = None, *, tasks: bool = False) -> SparkSession:
    """Iceberg's Java library for a deed that asks no SQL: Spark's JVM where this process has one or was started by it; else one without
    Spark, which costs a quarter. `tasks`: the deed has work for them, and where they run on a cluster, a session alone will do.

    It is typed as a session, which would do as well. Raises SparkUnavailable."""
    if _of_process is None and (not tasks or tasks_here()):
        if _SUBMITTED in os.environ:
            return cast("SparkSession", _submitted())
        if _ARGUMENTS not in os.environ and _RESOLVED not in settings():
            return cast("SparkSession", jvm_of_process())
    return spark_session("lifecycle") if session is None else session()


def tasks_here() -> bool:
    """Whether tasks run in this process, and not on a cluster's executors."""
    if _ARGUMENTS in os.environ and _SUBMITTED not in os.environ:
        return False  # they may name a master, and the catalog; a session alone knows
    return local_cores(_submitted()._settings if _SUBMITTED in os.environ else settings()) is not None


def local_cores(settings: Mapping[str, str]) -> int | None:
    """How many tasks run at once where Spark's master is this machine; None: it is a cluster, or none is named."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", settings.get("spark.master", ""))
    if found is None:
        return None
    return len(os.sched_getaffinity(0)) if found[1] == "*" else max(1, int(found[1] or 1))


@cache
def _submitted() -> Jvm:
    """The JVM that has started this process, without the part of Spark that runs tasks."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return Jvm(SparkContext._gateway, dict(SparkConf().getAll()))


def end_session() -> None:
    """Stop the session of this process, and the JVM without one, where they were made: who takes their files away must come after."""
    global _of_process
    end()
    if _of_process is not None:
        _of_process.sparkContext.stop()
        _of_process = None


def start_ahead(app_name: str) -> threading.Thread:
    """Start what a deed with tasks will need, Java and a cluster's Python workers, while the caller does something else.

    What goes wrong here, `engine` and `spark_session` meet again, and raise.
    """

    def start() -> None:
        with suppress(Exception):  # the deed meets it again, and names it
            if tasks_here():
                _ = cast(Jvm, engine(partial(spark_session, app_name))).lake
                return
            # Not the session: it belongs to the thread that makes it.
            context = _context(app_name)
            cores = context.defaultParallelism
            context.parallelize(range(cores), cores).foreach(_nothing)

    thread = threading.Thread(target=start, name="java-start", daemon=True)
    thread.start()
    return thread


def _nothing(_: int) -> None:
    pass


def _pass_no_arrays() -> None:
    """We give Java no NumPy arrays; to tell whether an argument is one, PySpark 4.1 loads its test helpers, and pandas with them."""
    from py4j import protocol
    from pyspark.sql.types import NumpyArrayConverter

    protocol.INPUT_CONVERTER[:] = [one for one in protocol.INPUT_CONVERTER if not isinstance(one, NumpyArrayConverter)]


def quoted(*parts: str) -> str:
    """SQL text of an identifier; a back-tick in a part is doubled."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def sql_table(name: TopicName, *, kind: str = "", branch: str | None = None, metadata: str | None = None) -> str:
    """The topic's table (or one beside it) as an identifier for SQL and DataFrame writers.

    `branch`: one branch of it, for writing; `metadata`: one of Iceberg's metadata tables of it (`files`).
    """
    parts = [CATALOG, name.namespace, name.table(kind)]
    if branch is not None:
        parts.append(f"branch_{branch}")
    if metadata is not None:
        parts.append(metadata)
    return quoted(*parts)


def java_table(session: SparkSession, name: TopicName, *, kind: str = "") -> Java:
    """The Iceberg table behind the name, at its newest state. Raises UnknownTopic."""
    if isinstance(session, Jvm) and not session.knows_sql:
        try:
            return session.lake.loadTable(identifier(session, (name.namespace, name.table(kind))))
        except thrown() as error:
            if java_class(error) in NOT_THERE:
                raise UnknownTopic(str(name)) from None
            raise
    from pyspark.errors import AnalysisException  # a third of a second by what comes with it, pandas too, and for Spark alone

    jvm: Java = session._jvm
    # Spark knows catalogs by the session of Java's thread, and a thread answers one line: another one, or the next where one broke, has none.
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)

    def load() -> Java:
        try:
            return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, sql_table(name, kind=kind))
        except AnalysisException as error:
            if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                raise UnknownTopic(str(name)) from None
            raise

    table = load()
    known = str(table.uuid())
    # Spark keeps tables of this session in a cache; the deed must see what others have committed.
    try:
        table.refresh()
    except thrown() as error:
        # Another engine may have dropped the table, and made another one under the name.
        cached = jvm.org.apache.iceberg.spark.Spark3Util.catalogAndIdentifier(session._jsparkSession, sql_table(name, kind=kind))
        cached.catalog().invalidateTable(cached.identifier())
        table = load()
        if java_class(error) not in NOT_THERE and str(table.uuid()) == known:
            raise
    return table


def forget_cached(session: SparkSession, name: TopicName, *, kind: str = "") -> None:
    """Make SQL of this session see commits that were made past it."""
    if isinstance(session, Jvm) and not session.knows_sql:
        return
    session.catalog.refreshTable(sql_table(name, kind=kind))


# What it means when the engine stops in the middle of a deed: the disk is full or may be read alone, or Java or the catalog's database has gone.


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
# How it refuses what another has done first, of a deed that does not look whether it was so.
_CONFLICT = re.compile(r"org\.apache\.iceberg\.exceptions\.(?:AlreadyExists|CommitFailed)Exception: (.*)")
_STORE = re.compile(r"software\.amazon\.awssdk\.(?:core|services\.s3)\.\S*Exception: (.*)")
# The same in PyArrow's words, which come without a number.
_STORE_OF_ARROW = re.compile(r"AWS Error|google::cloud::|Azure")
# A context that was stopped under a question, or before it.
_STOPPED = re.compile(r"SparkContext was shut down|stopped SparkContext")
_MOST_CAUSES = 10


@contextmanager
def engine_failures() -> Iterator[None]:
    """Raises StorageFull, StorageRefused, CatalogUnavailable, JavaEnded or ClusterLost where that is why the engine stopped; anything else as it is.

    A commit that may have been made is told before, where it is made (CommitUnknown). Imports no engine: what it is put around may
    need none.
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
    except Exception as error:  # of any engine: it is looked at, and raised again where it says nothing of the kind
        named = _named(error)
        if named is None:
            raise
        raise named from error


def _named(error: Exception) -> LifecycleError | None:
    if line_broke(error):
        return java_ended()
    texts = []
    for cause in islice(_causes(error), _MOST_CAUSES):
        text = str(cause.toString())
        texts.append(text.partition("\n")[0])
        if _watch is not None and _watch.lost and _STOPPED.search(text):
            return cluster_lost(_watch.master)
        if found := _AHEAD.search(text):
            mine, updated = (format_instant(Instant(int(ms) * 1_000)) for ms in found.groups())
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
    # What stands behind it may say more, or that it is no fault of the file.
    if found := next((found for text in texts if (found := _CONFLICT.match(text))), None):
        return CatalogUnavailable(f"it refused, as if another had been first: {found.group(1).rstrip('.')}", advice="Try again.")
    found = next((found for text in texts if (found := _FILE.match(text))), None)
    if found is None or texts[-1].startswith("java.lang."):
        return None
    return FileUnreadable(found[1], texts[-1].rpartition("Exception: ")[2])


def _sql_state(cause: Java) -> str:
    state = said(cause, "getSQLState")
    return "" if state is None else str(state)  # no error of a database has no such method


def _causes(error: Exception) -> Iterator[Java]:
    """The Java exceptions behind an error of py4j or of Spark; of any other there are none."""
    java = java_exception(error)
    while java is not None:
        yield java
        java = java.getCause()
