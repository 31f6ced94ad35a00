"""What this process reaches by the two configurations that name the lake, and what the machines of a cluster have: for `lifecycle doctor`."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg.executors import NEEDED, python_version
from message_lifecycle.stores.iceberg.java import Jvm, each, settings
from message_lifecycle.stores.iceberg.pointers import reaching_catalog
from message_lifecycle.stores.iceberg.session import engine, engine_failures, local_cores, spark_session
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from message_lifecycle.stores.iceberg.catalog import Tables

# As long as a task that looks holds its place, so that the others go elsewhere.
_LOOKING_SECONDS = 0.5
_ABSENT = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An executor, or this process. `versions`: of the packages that tasks need. `refused`: why the lake's file could not be read; empty: it
    was."""

    name: str
    python: str
    versions: Mapping[str, str]
    refused: str = ""


def seen_by_python(tables: Tables) -> set[str]:
    """Namespaces of the catalog, as PyIceberg's configuration names it. Raises CatalogUnavailable."""
    with reaching_catalog():
        return {".".join(name) for name in tables.catalog.list_namespaces()}


def seen_by_java() -> set[str]:
    """Namespaces of the catalog, as Spark's configuration names it. Raises SparkUnavailable, CatalogUnavailable."""
    with engine_failures():
        java: Jvm = engine()  # type: ignore[assignment]  # typed as a session, which would do as well
        return {str(name) for name in each(java.lake.listNamespaces())}


def master() -> str | None:
    """Spark's, by its settings; None: whoever starts it says."""
    return settings().get("spark.master")


def this_machine() -> Machine:
    """By which others are judged."""
    return Machine(name=platform.node(), python=python_version(), versions=_versions())


def runs_tasks_here() -> int | None:
    """How many tasks this process runs at once; None: a cluster does."""
    return local_cores(settings())


def machines(store: Store, path: str) -> tuple[list[Machine], int]:
    """What the executors that answered have, each asked to read the file at `path`; and how many there are. Raises SparkUnavailable."""
    context = spark_session("doctor").sparkContext
    places = context.defaultParallelism
    found = context.parallelize(range(places), places).map(partial(_look, store, path)).collect()
    return list({one.name: one for one in found}.values()), len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1


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
