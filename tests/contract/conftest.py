"""The stores that the contract suite runs on. The memory store is the reference; a new store is one parameter more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from message_lifecycle.app.scenario import World
from message_lifecycle.app.wiring import iceberg_world, memory_world
from message_lifecycle.model.settings import Value

MakeWorld = Callable[[Mapping[str, Value]], World]


@pytest.fixture(params=["memory", pytest.param("iceberg", marks=[pytest.mark.spark, pytest.mark.postgres])])
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "iceberg":
        request.getfixturevalue("embedded")
    return kind


@pytest.fixture
def make_world(store_kind: str) -> Iterator[MakeWorld]:
    """Makes worlds of the store; what they left is gone after the test."""
    made: list[World] = []

    def make(server: Mapping[str, Value]) -> World:
        made.append((iceberg_world if store_kind == "iceberg" else memory_world)(server))
        return made[-1]

    yield make
    for world in made:
        world.close()
