"""Scratch logs on servers of this machine, for `lifecycle scenario run` where nothing is set up."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from lifecycle_local import redis, stack
from lifecycle_local.environment import enter
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import Layout, find_layout, project_root
from message_lifecycle.app import wiring
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import NO_OPTIONS, Backend, StoreOptions
from message_lifecycle.stores.iceberg.engine import end_engine

if TYPE_CHECKING:
    from message_lifecycle.app.scenario import MakeWorld, World  # pydantic comes with it: only where a scenario runs
    from message_lifecycle.stores.redis_streams.log import Server


def scratch_lake_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:
    """Scratch tables in a lake of this process alone: nothing need run, and no lake that is used is touched."""
    _enter_scratch_lake()
    return wiring.iceberg_world(server, options)


@cache
def _enter_scratch_lake() -> None:
    """Start a lake that is removed when the process ends, also if the process is killed."""
    layout = Layout(project=project_root(), state=Path(mkdtemp(prefix="lifecycle-")))
    ending = ExitStack()
    atexit.register(ending.close)
    ending.enter_context(stop_at_exit(stack.remove_scratch, layout))
    ending.callback(end_engine)
    enter(stack.start_scratch(layout))


def redis_streams_world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:  # noqa: ARG001  # it has no options
    """Scratch streams on the embedded Redis, which is started if it does not run, and then stopped when this process ends or is killed."""
    return wiring.scratch_streams(_embedded_redis(), server)


@cache
def _embedded_redis() -> Server:
    from message_lifecycle.stores.redis_streams.log import Server

    layout = find_layout()
    address = redis.find_running(layout)
    if address is None:
        ending = ExitStack()
        atexit.register(ending.close)
        ending.enter_context(stop_at_exit(redis.stop, layout))
        address = redis.start(layout)
    return Server(name="embedded", url=address.url, password=lambda: address.password)


SCRATCH: Mapping[Backend, MakeWorld] = {"iceberg": scratch_lake_world, "redis_streams": redis_streams_world}
WORLDS: Mapping[Backend, MakeWorld] = {**wiring.WORLDS, "redis_streams": redis_streams_world}
"""By backend; `iceberg`: in the lake that is configured."""
