"""Spark's configuration as files, so that an address or password stands in no command line and every session has the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from message_lifecycle.local.layout import Layout
from message_lifecycle.local.postgres import ROLE, Address
from message_lifecycle.local.private_files import write_private

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
MASTER = "local[2]"
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
"""


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


def session_settings(layout: Layout, jars: tuple[Path, ...], options: str) -> dict[str, str]:
    """What every session has, whatever its catalogs."""
    class_path = ":".join(map(str, jars))
    return {
        "spark.master": MASTER,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
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
        "spark.python.daemon.module": "message_lifecycle.stores.iceberg.worker_daemon",
    }


def _properties(settings: Mapping[str, str]) -> str:
    # A properties file ends a value at no space but takes a backslash for itself.
    return "".join(f"{key} {value.replace(chr(92), chr(92) * 2)}\n" for key, value in settings.items())


def write_spark_conf(layout: Layout, address: Address, jars: tuple[Path, ...], archive: Path | None) -> None:
    """The folder that SPARK_CONF_DIR names: spark-submit and sessions made in a process both take it."""
    settings = session_settings(layout, jars, java_options(layout, archive)) | catalog_settings(CATALOG, address, layout.warehouse)
    write_private(layout.spark_conf / "spark-defaults.conf", _properties(settings))
    write_private(layout.spark_conf / LOG_FILE, LOG_SETTINGS)


def training_conf(layout: Layout, address: Address, jars: tuple[Path, ...], recording: Path, warehouse: Path) -> str:
    """The same session with a catalog of its own, for the run that is recorded into the class archive."""
    settings = session_settings(layout, jars, java_options(layout, None) + f' "-XX:ArchiveClassesAtExit={recording}"')
    return _properties(settings | catalog_settings(TRAINING_CATALOG, address, warehouse))
