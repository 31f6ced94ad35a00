"""Groups of tests for the workers, and the embedded default (PostgreSQL and Spark's configuration) for tests that need it."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from sqlalchemy import Engine, event

from tests.effort import HUNT

if TYPE_CHECKING:
    from lifecycle_local.redis import Address

# One group of `make test` runs in one worker, in order, because the group shares an Airflow, whose settings a process reads once. Every
# other group is a file, and runs in any worker. A worker has an embedded default of its own. Workers share only the jars and Java's class
# archive, which no test changes.
GROUPS = {"dags": "dags", "e2e": "e2e"}
# One test over many files of scenarios. A scenario file is a group, as a file of tests is. Cases are named `store-file-scenario`.
_SCENARIOS = "tests/contract/test_scenarios.py"
# Marks of tests that start a server or a JVM.
_SERVERS = ("spark", "postgres", "redis", "nats", "airflow")
# xdist's name for the first worker. That worker uses the clone's own state folder, as a run without workers does.
_FIRST_WORKER = "gw0"
# The number of new objects that starts Python's garbage collector.
_COLLECTED_AFTER = 20_000

# No example has a deadline: slowness on a busy machine is no fault.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
settings.register_profile(HUNT, print_blob=True)
# Hypothesis takes constants from whatever modules of ours a worker has imported so far: the same seed would make other logs wherever the
# files are spread otherwise over the workers. `providers` is its own; requirements.txt pins it.
providers._get_local_constants = lambda: providers._local_constants


@event.listens_for(Engine, "connect")
def _wait_for_no_disk(connection: object, _record: object) -> None:
    """A ledger of a test outlives its processes, and no loss of power."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("pragma synchronous = off")


def group_of(nodeid: str) -> str:
    file, _, test = nodeid.partition("::")
    if file == _SCENARIOS:
        return f"{file} {(*test.split('-'), '')[1]}"
    return GROUPS.get(Path(file).parts[1], file)


def pytest_configure() -> None:
    """Every further worker has a state folder in the clone's: a database, a catalog and a warehouse that no other worker's tests walk through."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", _FIRST_WORKER)
    if worker == _FIRST_WORKER:
        return
    from lifecycle_local.layout import find_layout

    clones = find_layout()
    clones.prepare()
    os.environ["LIFECYCLE_HOME"] = str(clones.state / worker)
    os.environ["LIFECYCLE_TOOLS"] = str(clones.tools)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The end-to-end tests first: they wait for Airflow more than they work, and begun last they would be waited for alone. Beside them the
    groups that start nothing, while Java's class archive is recorded for the others; scenarios, in small groups, last."""
    starting = {group_of(item.nodeid) for item in items if any(item.get_closest_marker(mark) for mark in _SERVERS)}

    def turn(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        if group.startswith(_SCENARIOS):
            return 3
        return 0 if group == GROUPS["e2e"] else 2 if group in starting else 1

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Exclude existing objects from garbage collection.

    Thousands of tests and their imported modules stay until the end. Python's collector would scan all of them every few seconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, 20, 20)


def pytest_sessionfinish() -> None:
    """Libraries that count at the end of the process what was left find nothing."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups by folder. Marks for `--dist loadgroup` would be lost without a word: pytest 9.2 keeps node ids where xdist 3.8 does not look."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # In the order of collection: by number of tests, the few of e2e would come last.
    config.option.loadscopereorder = False
    return ByGroup(config, log)


@pytest.fixture(scope="session")
def embedded() -> Iterator[Path]:
    """Started if it does not run yet, and then stopped after the tests; its environment is this process's. The state folder."""
    from lifecycle_local import embedded as default
    from lifecycle_local import stack
    from lifecycle_local.guard import stop_at_exit
    from lifecycle_local.layout import find_layout

    layout = find_layout()
    with nullcontext() if stack.status(layout).postgres else stop_at_exit(stack.down, layout):
        default.up(layout, with_airflow=False)
        yield layout.state


@pytest.fixture
def own_catalog(embedded: Path) -> Iterator[None]:
    """Catalogs that a test makes (see `tests.histories`) are gone after it."""
    from tests.histories import forget_catalogs

    yield
    forget_catalogs()


@pytest.fixture(scope="session")
def embedded_redis() -> Iterator[Address]:
    """The Redis server of the embedded default, started if it does not run yet, and then stopped after the tests."""
    from lifecycle_local import redis
    from lifecycle_local.guard import stop_at_exit
    from lifecycle_local.layout import find_layout

    layout = find_layout()
    with nullcontext() if redis.find_running(layout) else stop_at_exit(redis.stop, layout):
        yield redis.start(layout)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Start a Redis server for these tests alone. Its data outlive no loss of power, so that no write waits for a disk."""
    from contextlib import closing

    from lifecycle_local import redis
    from lifecycle_local.guard import stop_at_exit
    from lifecycle_local.layout import Layout, project_root

    layout = Layout(project=project_root(), state=tmp_path_factory.mktemp("redis"))
    with stop_at_exit(redis.stop, layout):
        address = redis.start(layout)
        with closing(address.connect()) as client:
            client.config_set("appendfsync", "no")
        yield address
