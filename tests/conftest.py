"""Which tests run beside each other, and the embedded default (PostgreSQL and Spark's configuration) for those that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from message_lifecycle.local.redis import Address

# Groups of `make test` and its two workers. One group runs in one worker, in order: it shares a server, a Spark session or an
# Airflow, whose settings a process reads once. Every other file runs in any worker.
GROUPS = {"contract": "lake", "spark": "lake", "postgres": "lake", "redis_streams": "lake", "dags": "dags", "e2e": "e2e"}


def group_of(nodeid: str) -> str:
    file = nodeid.split("::", 1)[0]
    return GROUPS.get(Path(file).parts[1], file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups by folder. Marks for `--dist loadgroup` would be lost without a word: pytest 9.2 keeps node ids where xdist 3.8 does not look."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # In the order of collection: by number of tests, the few of e2e, which take longest, would come last.
    config.option.loadscopereorder = False
    return ByGroup(config, log)


@pytest.fixture(scope="session")
def embedded() -> Iterator[Path]:
    """Started if it does not run yet, and then stopped after the tests; its environment is this process's. The state folder."""
    from message_lifecycle.app import embedded as default
    from message_lifecycle.local import stack
    from message_lifecycle.local.layout import find_layout

    layout = find_layout()
    ran = stack.status(layout).postgres
    default.up(layout, with_airflow=False)
    yield layout.state
    if not ran:
        stack.down(layout)


@pytest.fixture(scope="session")
def embedded_redis() -> Iterator[Address]:
    """The Redis server of the embedded default, started if it does not run yet, and then stopped after the tests."""
    from message_lifecycle.local import redis
    from message_lifecycle.local.layout import find_layout

    layout = find_layout()
    ran = redis.running(layout) is not None
    yield redis.start(layout)
    if not ran:
        redis.stop(layout)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A Redis server of these tests alone, whatever else runs beside them."""
    from message_lifecycle.local import redis
    from message_lifecycle.local.layout import Layout, project_root

    layout = Layout(project=project_root(), state=tmp_path_factory.mktemp("redis"))
    yield redis.start(layout)
    redis.stop(layout)
