"""Faults of a catalog's server and of an object store, at every request of an operation: all is there still or gone as planned, each end has a
name, and the same command once more brings it to its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from typing import Any, Literal

import pytest

from lifecycle_local import rest_server, s3_server
from lifecycle_local.worlds import WORLDS
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.requests import delete_topic
from message_lifecycle.app.scenario import World
from message_lifecycle.model.errors import LifecycleError, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.request import PurgeKey, UndoPlan
from message_lifecycle.model.topic import NO_OPTIONS
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.view_file import drop_deleted
from tests.contract.test_deleted_reclaim import named, reclaim
from tests.contract.test_requests import append, topic_of
from tests.contract.test_topic_delete import deleted
from tests.contract.test_undo_view import compacted, view
from tests.effort import hunting, sample
from tests.lakes import RestLake
from tests.logs import SECOND
from tests.undone import approved, published, run, sealed_segments, stored
from tests.undone_documents import due

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

Look = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Deed:
    """`do`: by the command, once or again; `see`: what is there."""

    do: Callable[[], object]
    see: Look


def expiry(world: World) -> Deed:
    name = topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 2, 500)
    return Deed(lambda: run(world, name, 200), lambda: stored(world, name))


def ttl(world: World) -> Deed:
    name = topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"a", ttl="1s")
    append(world, name, 1, b"b", b"c")
    return Deed(lambda: run(world, name, 9), lambda: stored(world, name))


def key_purge(world: World) -> Deed:
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"a")
    return Deed(lambda: run(world, name, 9, PurgeKey(key=b"a")), lambda: stored(world, name))


def undo(world: World) -> Deed:
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"a")
    plan_id = published(world, name, 5, PurgeKey(key=b"a"))
    return Deed(lambda: run(world, name, 9, UndoPlan(plan_id=plan_id)), lambda: stored(world, name))


def compaction(world: World) -> Deed:
    name = compacted(world, b"a", b"b", b"a", b"c")
    append(world, name, 8, b"a", b"c")
    return Deed(lambda: run(world, name, 9, "compaction"), lambda: (stored(world, name), view(world, name)))


def documents(world: World) -> Deed:
    topic = due(world)
    return Deed(lambda: topic.run(2), topic.shown)


def erasure(world: World) -> Deed:
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"a")

    def do() -> object:
        world.set_now(Instant(9 * SECOND))
        request = ask(world.services, [b"a"], topics=[name], forbid=False, by="ada", why="a letter").request_id
        return carry_out(world.services, request, approver=approved)

    return Deed(do, lambda: stored(world, name))


def topic_delete(world: World) -> Deed:
    name = topic_of(world)
    append(world, name, 1, b"a")

    def see() -> object:
        try:
            return stored(world, name)
        except UnknownTopic:
            return len(named(world, name))

    def do() -> object:
        world.set_now(Instant(5 * SECOND))
        return delete_topic(world.services, name, by="ada", text="not needed")

    return Deed(do, see)


def reclaim_of_a_deleted_topic(world: World) -> Deed:
    name = topic_of(world, undo_window=100)
    append(world, name, 1, b"a")
    plan_id = deleted(world, name, 5)
    return Deed(lambda: reclaim(world, plan_id, 106), lambda: [one == plan_id for one in named(world, name)])


_TRIED, _HUNTED = 2, 70
DEEDS: tuple[Callable[[World], Deed], ...] = (
    expiry,
    ttl,
    key_purge,
    undo,
    compaction,
    documents,
    erasure,
    topic_delete,
    reclaim_of_a_deleted_topic,
)


# What a catalog's server does wrong, and an object store.


def _status(status: HTTPStatus, kind: str = "Fault") -> rest_server.Answer:
    return rest_server.error_answer(status, "by the test", kind)


def _served(answer: rest_server.Answer | None) -> Callable[[rest_server.RestRequest, rest_server.Serve], rest_server.Answer | None]:
    def fault(asked: rest_server.RestRequest, serve: rest_server.Serve) -> rest_server.Answer | None:
        serve(asked)
        return answer

    return fault


OF_CATALOG: Mapping[str, rest_server.Around] = {
    "line breaks before": lambda *_: None,
    "line breaks after": _served(None),
    "502 after": _served(_status(HTTPStatus.BAD_GATEWAY)),
    "504 after": _served(_status(HTTPStatus.GATEWAY_TIMEOUT)),
    "500 before": lambda *_: _status(HTTPStatus.INTERNAL_SERVER_ERROR),
    "503 before": lambda *_: _status(HTTPStatus.SERVICE_UNAVAILABLE),
    "429 before": lambda *_: _status(HTTPStatus.TOO_MANY_REQUESTS),
    "409 before": lambda *_: _status(HTTPStatus.CONFLICT, "CommitFailedException"),
}
_OF_A_QUESTION = ("line breaks before", "500 before")
_ON_AND_ON, _KEYS_END = 60, "keys end"


def _breaks_after(_: s3_server.S3Request, serve: s3_server.Serve) -> None:
    for _part in serve():
        pass


def _refused(status: HTTPStatus, code: str) -> s3_server.Around:
    return lambda *_: s3_server.Refused(status, code)


OF_STORE: Mapping[str, tuple[int, s3_server.Around]] = {
    "500": (1, _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError")),
    "SlowDown, three times": (3, _refused(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown")),
    "SlowDown, on and on": (_ON_AND_ON, _refused(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown")),
    _KEYS_END: (1, _refused(HTTPStatus.BAD_REQUEST, "ExpiredToken")),
    "line breaks before": (1, lambda *_: None),
    "line breaks after": (1, _breaks_after),
}
"""With how many requests in a row meet it. Of requests by keys that the catalog gave out: what it meets by itself it answers as one of its own
faults."""


@dataclass(frozen=True, slots=True)
class Point:
    """A fault at request number `at` of an undisturbed run."""

    of: Literal["catalog", "store"]
    at: int
    fault: str


@dataclass(slots=True)
class Harness:
    """The servers of a lake, which fail when they are told to."""

    lake: RestLake
    met: int = 0

    @property
    def store(self) -> s3_server.S3Server:
        assert self.lake.s3 is not None
        return self.lake.s3

    def quiet(self) -> None:
        self.lake.catalog.around = lambda asked, serve: serve(asked)
        self.store.around = lambda _, serve: serve()

    def points(self, deed: Deed) -> list[Point]:
        """All that an undisturbed run has."""
        asked: list[bool] = []

        def noted(one: rest_server.RestRequest, serve: rest_server.Serve) -> rest_server.Answer:
            asked.append(one.method in ("GET", "HEAD"))
            return serve(one)

        self.lake.catalog.around = noted
        self.store.asked.clear()
        deed.do()
        self.quiet()
        of_catalog = [Point("catalog", at, one) for at, asks in enumerate(asked) for one in (_OF_A_QUESTION if asks else OF_CATALOG)]
        of_store = (Point("store", at, one) for at in range(sum(one.given for one in self.store.asked)) for one in OF_STORE)
        return [*of_catalog, *of_store]

    def fails(self, point: Point) -> None:
        numbers = count()
        if point.of == "catalog":
            fault = OF_CATALOG[point.fault]

            def catalog(asked: rest_server.RestRequest, serve: rest_server.Serve) -> rest_server.Answer | None:
                if next(numbers) != point.at:
                    return serve(asked)
                self.met += 1
                return fault(asked, serve)

            self.lake.catalog.around = catalog
        else:
            times, of_store = OF_STORE[point.fault]

            def around(asked: s3_server.S3Request, serve: s3_server.Serve) -> Iterable[bytes] | s3_server.Refused | None:
                if not asked.given or not point.at <= next(numbers) < point.at + times:
                    return serve()
                self.met += 1
                if point.fault == _KEYS_END:
                    self.store.end_keys()
                return of_store(asked, serve)

            self.store.around = around


@pytest.fixture
def harness(rest_s3: RestLake) -> Iterator[Harness]:
    with rest_s3.entered():
        made = Harness(rest_s3)
        yield made
        made.quiet()


@pytest.fixture
def world(harness: Harness) -> Iterator[World]:
    opened = WORLDS["iceberg"]({}, NO_OPTIONS)
    yield opened
    harness.quiet()
    opened.close()


@pytest.mark.parametrize("make", sample(DEEDS, ttl), ids=lambda one: one.__name__)
def test_what_a_failing_server_leaves_is_as_before_or_as_planned(world: World, harness: Harness, make: Callable[[World], Deed]) -> None:
    first = make(world)
    before = first.see()
    points = harness.points(first)
    after = first.see()
    assert before != after
    tried = random.sample(points, min(len(points), _HUNTED if hunting() else _TRIED))
    for point in tried:
        # Who deletes topics lists those that were deleted before: with those of earlier points, requests would have other numbers than here.
        drop_deleted(Tables(), f"{world.scratch}.")
        deed = make(world)
        harness.fails(point)
        with suppress(LifecycleError):  # each that there is has a name
            deed.do()
        harness.quiet()
        assert deed.see() in (before, after, *_halfway(make, before, after)), point
        with suppress(LifecycleError):  # of what is done already
            deed.do()
        assert deed.see() == after, point
    # A run may have fewer requests than the one that was counted, but not all of them.
    assert harness.met >= len(tried) // 2


def _halfway(make: Callable[[World], Deed], before: Any, after: Any) -> list[object]:
    """A purge of documents is two commits: its snapshots are there before its changes go."""
    return [(before[0], after[1])] if make is documents else []
