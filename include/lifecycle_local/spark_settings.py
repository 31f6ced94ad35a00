"""The configuration of Spark and PyIceberg for one lake, and the class archive of the JVM."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from lifecycle_local.environment import LAST, MASTER
from lifecycle_local.java import Java, ensure_base_archive, sha256_of, starts
from lifecycle_local.layout import Layout, StackBusy, spark_home
from lifecycle_local.postgres import ROLE, Address
from lifecycle_local.processes import end_process_trees, find_process, hold_file_lock
from message_lifecycle.app.private_files import write_private

# The configuration is in files, so that no command line shows an address or password, and every session has the same settings.


# C1 and the serial collector start quickest; the log options keep hundreds of remarks about skipped classes off standard output.
# With C1 alone, Java reserves 48 MB for compiled code, a fifth of its usual. A driver that makes many plans fills them within minutes, and
# then sweeps methods out and compiles them again for ever.
JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
)
CATALOG = "lake"
LOG_FILE = "log4j2.properties"
TRAINING_CATALOG = "warm_up"
# Grows on demand: work on metadata stays far below, a rewrite of one segment fits.
DRIVER_MEMORY = "1g"

# Standard error is what Airflow shows as a task's log: warnings are worth a line there, start-up chatter is not.
LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss}{UTC} %p %c{1}: %m%n%ex
# Says at every start that a library is missing which only speeds up HDFS.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# Warns that the loopback is the loopback.
logger.net.name = org.apache.spark.util.Utils
logger.net.level = error
# Say at every start, or of every larger query, what nobody can act on here.
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
logger.plan.name = org.apache.spark.util.SparkStringUtils
logger.plan.level = error
logger.window.name = org.apache.spark.sql.execution.window.WindowExec
logger.window.level = error
# A driver that ends no longer listens, and a cluster still tells it what has become of its executors.
logger.handler.name = org.apache.spark.network.server.TransportRequestHandler
logger.handler.level = fatal
logger.backend.name = org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend
logger.backend.level = error
logger.dispatcher.name = org.apache.spark.rpc.netty.Dispatcher
logger.dispatcher.level = error
"""
APPLICATION = Path(__file__).with_name("warm_up.py")
RECORD_SECONDS = 600.0
RECORD_POLL_SECONDS = 0.2
DURABLE_FILES = Path(__file__).with_name("durable_files.jar")


def java_options(layout: Layout, archive: Path | None) -> str:
    """Options of the embedded driver: quick start before peak speed. Spark splits them as a shell would."""
    options = [*JVM_OPTIONS, "-Duser.timezone=UTC", f"-Dlog4j2.configurationFile={(layout.spark_conf / LOG_FILE).as_uri()}"]
    if archive:
        options.append(f'"-XX:SharedArchiveFile={archive}"')
    return " ".join(options)


def catalog_settings(name: str, address: Address, warehouse: Path) -> dict[str, str]:
    """An Iceberg catalog in our database; also for a catalog other than the users'."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": address.jdbc("lake"),
        f"{prefix}.jdbc.user": ROLE,
        f"{prefix}.jdbc.password": address.password,
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": str(warehouse),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """The settings of Spark and PyIceberg for one lake.

    `java`: Spark's settings in addition to the settings of every session. `without`: settings of every session to leave out. `python`:
    PyIceberg's properties of the catalog.
    """

    java: Mapping[str, str]
    python: Mapping[str, str]
    without: tuple[str, ...] = ()


def lake_on_disk(layout: Layout, address: Address) -> Lake:
    """Tables in the state folder, their catalog in our database."""
    return Lake(
        java=catalog_settings(CATALOG, address, layout.warehouse),
        python={"type": "sql", "uri": address.url("lake"), "warehouse": str(layout.warehouse)},
    )


def class_path(jars: tuple[Path, ...]) -> str:
    """Return the class path of Java and Spark, with our own jar."""
    return ":".join(map(str, (*jars, DURABLE_FILES)))


def session_settings(layout: Layout, jars: tuple[Path, ...], options: str) -> dict[str, str]:
    """Return the settings of every session, whatever its catalogs."""
    return {
        "spark.master": MASTER,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The driver listens on a port that accepts Java objects. If the master is this machine, each driver makes a random secret, which is
        # in no setting, file or argument. Without the secret, a caller gets no answer.
        "spark.authenticate": "true",
        "spark.driver.extraClassPath": class_path(jars),
        "spark.executor.extraClassPath": class_path(jars),
        "spark.driver.extraJavaOptions": options,
        "spark.log.level": "WARN",
        # Without these two, Spark writes to the system's temporary folder and to wherever it was started.
        "spark.local.dir": str(layout.scratch),
        "spark.sql.warehouse.dir": str(layout.scratch / "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Hadoop's own starts a process, `chmod`, for each local file that Java writes: twenty and more of a commit, at ten milliseconds
        # each. `BareLocalFileSystem` does not, and ours, made of it, has each on disk when it is closed: a catalog is about to name it.
        "spark.hadoop.fs.file.impl": "message_lifecycle.DurableFiles",
        "spark.python.daemon.module": "message_lifecycle.stores.iceberg.worker_daemon",
    }


def _properties(settings: Mapping[str, str]) -> str:
    # A properties file ends a value at no space but takes a backslash for itself.
    return "".join(f"{key} {value.replace(chr(92), chr(92) * 2)}\n" for key, value in settings.items())


def write_spark_conf(layout: Layout, lake: Lake, jars: tuple[Path, ...], archive: Path | None) -> None:
    """The folder that SPARK_CONF_DIR names: spark-submit and sessions made in a process both take it."""
    every = session_settings(layout, jars, java_options(layout, archive))
    settings = {name: value for name, value in every.items() if name not in lake.without} | dict(lake.java)
    write_private(layout.spark_conf / "spark-defaults.conf", _properties(settings))
    write_private(layout.spark_conf / LOG_FILE, LOG_SETTINGS)


def training_conf(layout: Layout, lake: Lake, jars: tuple[Path, ...], recording: Path, warehouse: Path) -> str:
    """Return Spark's settings for the run that records the class archive: the lake's catalog under another name.

    If the lake is a folder, the run's tables are in `warehouse`. A catalog that is a server chooses the place itself.
    """
    settings = session_settings(layout, jars, java_options(layout, None) + f' "-XX:ArchiveClassesAtExit={recording}"')
    users, ours = f"spark.sql.catalog.{CATALOG}", f"spark.sql.catalog.{TRAINING_CATALOG}"
    catalog = {key.replace(users, ours, 1): value for key, value in lake.java.items() if key == users or key.startswith(f"{users}.")}
    place = f"{ours}.warehouse"
    return _properties(settings | catalog | ({place: str(warehouse)} if place in catalog else {}))


def write_pyiceberg_conf(layout: Layout, lake: Lake) -> None:
    """`.pyiceberg.yaml` in the folder that PYICEBERG_HOME names."""
    # PyIceberg's reader refuses YAML's flow style, so only the values are JSON: that quotes any path right.
    lines = ["catalog:", f"  {CATALOG}:", *(f"    {key}: {json.dumps(value)}" for key, value in lake.python.items())]
    write_private(layout.state / ".pyiceberg.yaml", "\n".join(lines) + "\n")


def archive_path(layout: Layout, java: Java, jars: tuple[Path, ...], last: tuple[Path, ...] = ()) -> Path:
    """Return the archive's path for this combination. The name is a hash of everything that the archive depends on.

    `last` is the argument of `environment`.
    """
    identity = "\n".join(
        [
            java.version,
            str(java.runtime),
            str(spark_home()),
            *map(str, (*jars, *last)),
            sha256_of(DURABLE_FILES),
            *JVM_OPTIONS,
            APPLICATION.read_text(encoding="utf-8"),
        ]
    )
    kind = _WITH_MORE if last else _ALONE
    return layout.class_archives / f"{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


# A class path must have every jar of the archive that it uses. So a lake with jars of its own has an archive of its own.
_ALONE, _WITH_MORE = "disk", "store"


def find_archive(layout: Layout, java: Java, jars: tuple[Path, ...], last: tuple[Path, ...] = ()) -> Path | None:
    """Return the recorded archive, or an archive without the jars of `last`, which also helps."""
    for path in (archive_path(layout, java, jars, last), archive_path(layout, java, jars)):
        if path.is_file():
            return path
    return None


def record_archive(
    layout: Layout,
    java: Java,
    jars: tuple[Path, ...],
    last: tuple[Path, ...],
    lake: Lake,
    environment: Mapping[str, str],
    cancelled: Event,
) -> Path | None:
    """Run the warm-up application in the lake and keep the classes that it loaded, in place of older archives.

    If another process has recorded the archive meanwhile, return that one. Return None if this JVM cannot record, if `cancelled` was set,
    or if recording takes longer than any machine should; a log has the reason.
    """
    path = archive_path(layout, java, jars, last)
    try:
        with hold_file_lock(layout.class_archives / "lock", wait_seconds=RECORD_SECONDS, cancelled=cancelled):
            if path.is_file():
                return path
            own = {name: value for name, value in environment.items() if name != LAST}  # another lake's
            own |= {LAST: ":".join(map(str, last))} if last else {}
            return path if _record(layout, java, jars, lake, own, cancelled, path) else None
    except StackBusy:
        return None


def _record(
    layout: Layout, java: Java, jars: tuple[Path, ...], lake: Lake, environment: Mapping[str, str], cancelled: Event, path: Path
) -> bool:
    if not ensure_base_archive(java):
        return False
    with tempfile.TemporaryDirectory(dir=layout.class_archives) as folder:
        recording = Path(folder) / "recording.jsa"
        settings = Path(folder) / "training.conf"
        write_private(settings, training_conf(layout, lake, jars, recording, Path(folder) / "warehouse"))
        command = [str(spark_home() / "bin" / "spark-submit"), "--properties-file", str(settings), str(APPLICATION)]
        if not _ran(command, environment, layout.logs / "record-class-archive.log", cancelled) or not _is_whole(java, recording):
            return False
        kept = {_ALONE, _WITH_MORE} - {path.name.partition("-")[0]}
        for old in layout.class_archives.glob("*.jsa"):
            if old.name.partition("-")[0] not in kept:
                old.unlink()
        recording.replace(path)
        return True


def _is_whole(java: Java, recording: Path) -> bool:
    """True if a JVM starts with the archive, now and after a loss of power. With a truncated archive, every JVM would crash."""
    if not recording.is_file():
        return False
    with recording.open("rb") as file:
        os.fsync(file.fileno())
    crash = (f"-XX:ErrorFile={recording.with_suffix('.log')}", "-XX:-CreateCoredumpOnCrash")
    return starts(java, *JVM_OPTIONS, *crash, f"-XX:SharedArchiveFile={recording}")


def _ran(command: list[str], environment: Mapping[str, str], log: Path, cancelled: Event) -> bool:
    """True if the command succeeded. The command has its own session: a Ctrl-C would make the JVM write an archive of half the classes."""
    deadline = time.monotonic() + RECORD_SECONDS
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        while child.poll() is None and not cancelled.is_set() and time.monotonic() < deadline:
            cancelled.wait(RECORD_POLL_SECONDS)
    finally:
        if child.poll() is None and (process := find_process(child.pid)):
            end_process_trees([process], polite_seconds=0.0)
    return child.wait() == 0
