"""The stores that the contract suite runs on. The memory store is the reference; a new store is one parameter more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lifecycle_local.layout import find_layout
from lifecycle_local.s3_server import s3_server
from lifecycle_local.worlds import WORLDS
from message_lifecycle.app.scenario import MakeWorld as MakeWorld
from message_lifecycle.app.scenario import World
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import NO_OPTIONS, Backend, StoreOptions
from message_lifecycle.ports import Gate
from tests.archives import Archived, archive_of
from tests.effort import far, hunt
from tests.judges import PlainGateOfTables
from tests.lakes import Lake, RestLake, postgres_lake, rest_lake

NEEDS = {"iceberg": (pytest.mark.spark, pytest.mark.postgres), "redis_streams": (pytest.mark.redis,)}
"""Marks of the stores whose tests start something."""
WHOLE_LOGS: tuple[Backend, ...] = ("memory", "iceberg")
"""Stores that every operation runs on; the others have retention alone (RET-5)."""
REST_LAKES = ("rest_disk", "rest_s3")
"""Behind a REST catalog, tables on this machine's disk or in an object store."""
FAR_LAKES = (*REST_LAKES, "postgres_s3")
"""Where tables lie as well; the last: in an object store, and their catalog is rows of PostgreSQL, as that of this machine's tables."""


def on(*stores: Backend, hunted: Backend | None = None) -> list[object]:
    """Parameters of `store_kind`, of tables also in those lakes. `hunted`: the store on which `make hunt` alone runs them, as it does in those
    lakes."""
    own = [pytest.param(store, marks=(*NEEDS.get(store, ()), *([hunt] if store == hunted else ()))) for store in stores]
    return [*own, *(pytest.param(lake, marks=(*NEEDS["iceberg"], hunt)) for lake in FAR_LAKES if "iceberg" in stores)]


def at_both(*stores: Backend, in_store: Sequence[Backend] = ("memory", "json_file")) -> pytest.MarkDecorator:
    """Of tests that take an `archive`: on these stores it is a folder of a disk, and on those one of an object store."""
    disk = [pytest.param(store, "disk", marks=NEEDS.get(store, ())) for store in stores]
    there = [pytest.param(store, "object_store", marks=NEEDS["iceberg"]) for store in in_store]
    return pytest.mark.parametrize(("store_kind", "archive"), [*disk, *there], indirect=True)


TABLES_HUNTED = pytest.mark.parametrize("store_kind", on(*WHOLE_LOGS, hunted="iceberg"), indirect=True)
"""Of a test of what the verbs decide, whatever the store: on tables, where it costs seconds, `make hunt` runs it."""


@pytest.fixture(scope="session")
def rest_disk(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestLake]:
    with rest_lake(find_layout(), tmp_path_factory.mktemp("rest")) as made:
        yield made


@pytest.fixture(scope="session")
def rest_s3(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestLake]:
    with s3_server() as store, rest_lake(find_layout(), tmp_path_factory.mktemp("rest"), store) as made:
        yield made


@pytest.fixture(scope="session")
def postgres_s3(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with s3_server() as store, postgres_lake(find_layout(), tmp_path_factory.mktemp("postgres"), store) as made:
        yield made


@pytest.fixture(params=on(*WHOLE_LOGS))
def store_kind(request: pytest.FixtureRequest) -> Iterator[Backend]:
    kind: Backend = "iceberg" if request.param in FAR_LAKES else request.param
    if kind == "iceberg":
        request.getfixturevalue("embedded")
    if kind == "redis_streams":
        request.getfixturevalue("embedded_redis")
    with ExitStack() as lake:
        if request.param in FAR_LAKES:
            lake.enter_context(request.getfixturevalue(request.param).entered())
            lake.enter_context(far())
        yield kind


@pytest.fixture
def archive(request: pytest.FixtureRequest) -> Iterator[Archived]:
    """Where what goes is kept, of tests that have `tests.archives.at_both`."""
    with archive_of(request.param, request) as made:
        yield made


@contextmanager
def worlds_of(store: Backend, gate: Gate | None = None) -> Iterator[MakeWorld]:
    """Make worlds of the store, and remove them at the end. `gate`: judges in place of the store's own gate."""
    made: list[World] = []

    def make(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:
        world = WORLDS[store](server, options)
        made.append(world if gate is None else replace(world, services=replace(world.services, gate=gate)))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def make_world(store_kind: Backend) -> Iterator[MakeWorld]:
    """Makes worlds of the store. The plain gate judges, on tables too: Great Expectations would be half of a test's time there."""
    with worlds_of(store_kind, PlainGateOfTables() if store_kind == "iceberg" else None) as make:
        yield make
