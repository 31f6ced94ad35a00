"""Who may speak to a driver of the embedded default: what it listens to takes Java's objects, from whoever knows its secret alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.effort import sample

pytestmark = pytest.mark.spark

OUTSIDER = """
import sys
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
port, authenticate = sys.argv[1:]
conf = SparkConf().setAppName("outsider").setMaster("local[1]").set("spark.authenticate", authenticate)
context = SparkContext(conf=conf)
jvm, environment = context._jvm, context._jvm.org.apache.spark.SparkEnv.get()
try:
    found = environment.rpcEnv().setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", int(port)), "MapOutputTracker")
    print("answered:", found.toString())
except Py4JJavaError as error:
    cause, told = error.java_exception, []
    while cause is not None:
        told.append(cause.toString())
        cause = cause.getCause()
    print("refused:", " | ".join(told).replace(chr(10), " "))
context.stop()
"""


def outsider(port: str, *, authenticate: bool) -> str:
    """Another process of this machine that asks the driver which listens there for its table of shuffles."""
    command = [sys.executable, "-c", OUTSIDER, port, str(authenticate).lower()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=_own_environment())
    (told,) = (line for line in done.stdout.splitlines() if line.startswith(("answered:", "refused:")))
    return told


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")}


@pytest.mark.parametrize("authenticate", sample([False, True], False), ids=["without a secret", "with another secret"])
def test_a_driver_answers_nobody_who_has_not_its_secret(spark: SparkSession, *, authenticate: bool) -> None:
    port = spark.sparkContext.getConf().get("spark.driver.port")
    assert port is not None
    with socket.create_connection(("127.0.0.1", int(port))):
        pass  # it listens, so that a refusal is no closed door
    assert outsider(port, authenticate=authenticate).startswith("refused:")
    # It goes on as before.
    assert spark.sparkContext.parallelize(range(4), 2).map(lambda number: number % 2).distinct().count() == 2


def test_the_secret_stands_in_no_setting_argument_or_file(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.authenticate") == "true"
    secret = spark._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    assert len(secret) >= 32
    assert not [name for name, value in conf.getAll() if secret in value or name == "spark.authenticate.secret"]
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    assert secret.encode() not in Path(f"/proc/{java}/cmdline").read_bytes()
    assert secret.encode() not in Path(f"/proc/{java}/environ").read_bytes()
    folder = Path(os.environ["SPARK_CONF_DIR"])
    assert not [file for file in folder.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
