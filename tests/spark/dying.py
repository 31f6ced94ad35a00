"""A run that dies by SIGKILL, in a process of its own over the Java of the tests: neither Java nor the imports start anew for each.

What is held by Java alone lives on; `test_kill_points` kills whole runs, their Java included.
"""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from tests import forked
from tests.forked import Forked

from message_lifecycle.app.applications import run_application
from message_lifecycle.stores.iceberg import session
from message_lifecycle.stores.iceberg.session import spark_session


def start(arguments: list[str], environment: dict[str, str]) -> Forked:
    """`run_and_die` with these arguments."""
    gateway = spark_session("tests").sparkContext._gateway
    assert gateway is not None
    given = gateway.gateway_parameters
    of_java = {"PYSPARK_GATEWAY_PORT": str(given.port), "PYSPARK_GATEWAY_SECRET": str(given.auth_token)}
    return forked.start(_run, arguments, {**environment, **of_java})


def _run(arguments: list[str]) -> int:
    from tests.spark.run_and_die import main

    gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark gives it no types
    of_java = gateway.jvm.JavaSparkContext.fromSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    SparkContext(gateway=gateway, jsc=of_java)
    session.end_session = lambda: None  # the context is the tests'
    run_application(lambda: main(arguments))
