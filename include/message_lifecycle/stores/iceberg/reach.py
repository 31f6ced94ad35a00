"""Checks for `lifecycle doctor`: the stores that the two configurations of the lake name, and the machines of a cluster."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CatalogUnavailable, SparkUnavailable
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.executors import NEEDED, python_version, registered
from message_lifecycle.stores.iceberg.java import settings, texts
from message_lifecycle.stores.iceberg.new_table import make_namespace
from message_lifecycle.stores.iceberg.pointers import reaching_catalog
from message_lifecycle.stores.iceberg.session import engine_failures, spark_session
from message_lifecycle.stores.iceberg.shares import local_cores
from message_lifecycle.stores.iceberg.tasks import Store
from message_lifecycle.stores.iceberg.transaction import commits_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import SparkContext

    from message_lifecycle.stores.iceberg.catalog import Tables

# As long as a task that looks holds its place, so that the others go elsewhere.
_LOOKING_SECONDS = 0.5
_ROUNDS = 3
_FIRST_SECONDS = 60
"""Until the first executor has come."""
_ABSENT = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An executor, or this process. `versions`: of the packages that tasks need. `refused`: why it could not read the lake's file, or empty."""

    name: str
    python: str
    versions: Mapping[str, str]
    refused: str = ""


def one_catalog(tables: Tables) -> bool:
    """True if PyIceberg's configuration names the same catalog as Spark's: PyIceberg finds a namespace that Java makes and then drops.

    Raises CatalogUnavailable, SparkUnavailable.
    """
    name = f"doctor-{token_hex(6)}"
    make_namespace(name)
    try:
        with reaching_catalog():
            return tables.catalog.namespace_exists(name)
    finally:
        try:
            with engine_failures():
                java = engine_of_process()
                java.lake.dropNamespace(java.jvm.org.apache.iceberg.catalog.Namespace.of(texts(java, name)))
        except Exception as error:  # any error: the message must name the namespace that stays
            raise CatalogUnavailable(f"it does not drop the namespace {name}, which was made to look for it: {error}") from error


def at_once() -> bool:
    """True if the catalog commits several tables at once. Raises NoTransactions, CatalogUnavailable, SparkUnavailable."""
    with engine_failures():
        return commits_at_once(engine_of_process())


def master() -> str | None:
    """Return the master that Spark's settings name, or None if only the start command names it."""
    return settings().get("spark.master")


def this_machine() -> Machine:
    """By which others are judged."""
    return Machine(name=platform.node(), python=python_version(), versions=_versions())


def runs_tasks_here() -> int | None:
    """Return the number of tasks that this process runs at once, or None if a cluster runs the tasks."""
    return local_cores(settings())


def machines(store: Store, path: str) -> tuple[list[Machine], int]:
    """Return what each executor found when it read the file at `path`, and the number of executors. Raises SparkUnavailable."""
    context = spark_session("doctor").sparkContext
    found: dict[str, Machine] = {}
    with _giving_up(context):
        for _ in range(_ROUNDS):
            there = registered(context)
            places = 2 * (sum(there) or 1)
            answers = context.parallelize(range(places), places).map(partial(_look, store, path)).collect()
            found.update({one.name: one for one in answers})
            # If Spark starts executors only when it has tasks, executors exist now.
            there = registered(context)
            if len(found) >= len(there):
                break
    return list(found.values()), len(there)


@contextmanager
def _giving_up(context: SparkContext) -> Iterator[None]:
    """Spark waits without end for an executor; a person does not."""
    gone, ended = threading.Event(), threading.Event()

    def look() -> None:
        seen = time.monotonic()
        while not ended.wait(_LOOKING_SECONDS):
            seen = time.monotonic() if registered(context) else seen
            if time.monotonic() - seen > _FIRST_SECONDS:
                gone.set()
                context.cancelAllJobs()  # again and again, for another may have begun

    threading.Thread(target=look, name="give-up", daemon=True).start()
    try:
        yield
    except Exception as error:  # Spark has its own error for a cancelled job; any other error passes unchanged
        if gone.is_set():
            what = f"{context.master} gave no executor within {_FIRST_SECONDS} s: it has no core or memory free, or does not reach this machine"
            raise SparkUnavailable(what) from error
        raise
    finally:
        ended.set()


def _look(store: Store, path: str, _place: int) -> Machine:
    time.sleep(_LOOKING_SECONDS)
    return Machine(name=f"{platform.node()}:{Path.cwd()}", python=python_version(), versions=_versions(), refused=_refused(store, path))


def _refused(store: Store, path: str) -> str:
    try:
        with store.open(path) as file:
            file.read(1)
    except Exception as error:  # noqa: BLE001  # of any library, on a machine that lacks some: it is told as it is
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def _versions() -> dict[str, str]:
    return dict(_installed(NEEDED))


def _installed(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, _ABSENT
