"""A run that dies by SIGKILL, in a process of its own over the Java of the tests: neither Java nor the imports start anew for each.

What the kernel does to a killed process it does here: no `finally` runs, locks go, connections break off. What is held by Java alone lives
on; `test_kill_points` kills whole runs, their Java included.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import mkdtemp

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from message_lifecycle.app.boundary import run_application
from message_lifecycle.stores.iceberg.session import spark_session


@dataclass(frozen=True, slots=True)
class Dying:
    """As `subprocess.Popen`, as far as the suites ask."""

    process: ForkServerProcess
    folder: Path

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.process.join(timeout)
        assert self.process.exitcode is not None, "it did not end in time"
        take_calls_back()
        told = (self.folder / "out").read_text(), (self.folder / "err").read_text()
        shutil.rmtree(self.folder)
        return told

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.spark.run_and_die", "message_lifecycle.gates.engine"])
    return context


def start(arguments: list[str], environment: dict[str, str]) -> Dying:
    """`run_and_die` with these arguments."""
    gateway = spark_session("tests").sparkContext._gateway
    assert gateway is not None
    given = gateway.gateway_parameters
    folder = Path(mkdtemp(prefix="dying-"))
    of_java = {"PYSPARK_GATEWAY_PORT": str(given.port), "PYSPARK_GATEWAY_SECRET": str(given.auth_token)}
    process = _server().Process(target=_run, args=(arguments, {**environment, **of_java}, folder), daemon=True)
    process.start()
    return Dying(process, folder)


def _run(arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    from tests.spark.run_and_die import main

    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark gives it no types
    of_java = gateway.jvm.JavaSparkContext.fromSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    SparkContext(gateway=gateway, jsc=of_java)
    run_application(lambda: main(arguments))


def take_calls_back() -> None:
    """Java asks the fence of whoever said last that it listens: the tests' process again, where it did before."""
    from py4j.java_gateway import JavaObject

    gateway = SparkContext._gateway
    if gateway is None or vars(gateway).get("_callback_server") is None:
        return
    java = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    java.resetCallbackClient(java.getCallbackClient().getAddress(), gateway._python_proxy_port)
