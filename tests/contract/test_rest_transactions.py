"""Several tables in one commit of a REST catalog that is configured as atomic: all of a plan is there or none, whatever goes wrong; and what a
catalog makes by halves is found, told and brought to its end."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import pytest

from lifecycle_local.rest_server import TRANSACTION, Answer, Around, CommitConflict, RestRequest, Serve
from lifecycle_local.worlds import WORLDS
from message_lifecycle.app import doctor
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.model.topic import NO_OPTIONS
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.transaction import SETTING
from tests.contract.conftest import REST_LAKES
from tests.contract.test_rest_faults import OF_CATALOG
from tests.contract.test_undo_view import compacted, view
from tests.effort import hunt, sample
from tests.errors import raises
from tests.lakes import RestLake
from tests.undone import published, stored, undone
from tests.undone_documents import Shown, Topic, due

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


class Died(BaseException):
    """A server that ends within a commit."""


@pytest.fixture(scope="module", params=sample(REST_LAKES, "rest_disk"))
def plain(request: pytest.FixtureRequest) -> Iterator[RestLake]:
    """A client whom nobody has told what its catalog offers, and is."""
    lake: RestLake = request.getfixturevalue(request.param)
    lake.catalog.at_once = "all or none"
    yield lake
    lake.catalog.at_once = None


@pytest.fixture(scope="module")
def configured(plain: RestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestLake]:
    """A client to whom the catalog is atomic."""
    found = plain.configured(tmp_path_factory.mktemp("atomic"), {SETTING: "true"})
    yield found
    found.end()


@pytest.fixture
def lake(configured: RestLake) -> Iterator[RestLake]:
    with configured.entered():
        yield configured
        catalog = configured.catalog
        catalog.around, catalog.between, catalog.at_once = lambda asked, serve: serve(asked), lambda: None, "all or none"


@pytest.fixture
def topic(lake: RestLake) -> Iterator[Topic]:
    opened = WORLDS["iceberg"]({}, NO_OPTIONS)
    yield due(opened)
    lake.catalog.around = lambda asked, serve: serve(asked)
    opened.close()


def commits(lake: RestLake, at: Mapping[int, Around] | None = None) -> list[RestRequest]:
    """Each request that commits several tables, from now on. `at`: how the one of that number ends."""
    seen: list[RestRequest] = []

    def around(asked: RestRequest, serve: Serve) -> Answer | None:
        if "/".join(asked.path) != TRANSACTION:
            return serve(asked)
        seen.append(asked)
        return (at or {}).get(len(seen), lambda asked, serve: serve(asked))(asked, serve)

    lake.catalog.around = around
    return seen


def seen(topic: Topic) -> tuple[Shown, int]:
    return topic.shown(), topic.epoch()


def test_a_purge_is_one_commit_of_both_tables_and_so_is_its_undo(topic: Topic, lake: RestLake) -> None:
    was, asked = seen(topic), commits(lake)
    plan_id = topic.purged(2)
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == ([8, 9, 10], [10], 1)
    (one,) = asked
    # A table's witness of the log's state comes with it (MSG-4).
    assert [_told(table) - {"set-properties"} for table in json.loads(one.body)["table-changes"]] == [ONE_COMMIT, ONE_COMMIT]
    assert _warned(topic, plan_id) == ()
    assert topic.run(2).name == "no_op"
    topic.undone(3, plan_id)
    assert topic.shown()[0] == was[0][0]
    topic.is_whole(10)


ONE_COMMIT = {"assert-table-uuid", "assert-ref-snapshot-id main", "add-snapshot", "set-snapshot-ref main"}


def _told(table: dict[str, list[dict[str, str]]]) -> set[str]:
    """What is required of a table, and done to it."""
    required = {f"{one['type']} {one.get('ref', '')}".strip() for one in table["requirements"]}
    return required | {f"{one['action']} {one.get('ref-name', '')}".strip() for one in table["updates"]}


@pytest.mark.parametrize("fault", sample([*OF_CATALOG, "it ends within"], "line breaks after"))
def test_all_of_it_is_there_or_none_however_the_commit_ends(topic: Topic, lake: RestLake, fault: str) -> None:
    """Whoever reads finds both tables as before, or both as planned, and the same command once more brings it to its end."""
    before = seen(topic)
    asked = commits(lake, {1: OF_CATALOG.get(fault, _dies(lake))})
    with suppress(LifecycleError):
        topic.run(2)
    assert asked
    then = seen(topic)
    lake.catalog.between = lambda: None
    with suppress(LifecycleError):  # of what is done already
        topic.run(2)
    after = seen(topic)
    assert then in (before, after)
    assert ([change.server_seq for change in after[0][0]], after[1]) == ([8, 9, 10], 1)
    topic.undone(3, _plan(topic))
    topic.is_whole(10)


def _dies(lake: RestLake) -> Around:
    def around(asked: RestRequest, serve: Serve) -> Answer | None:
        def die() -> None:
            raise Died

        lake.catalog.between = die
        with suppress(Died):
            serve(asked)
        return None

    return around


@pytest.mark.parametrize(
    ("order", "ends"),
    sample(
        list(product(("one after the other", "the last one first"), ("it ends within", "it says that another came first"))),
        ("one after the other", "it ends within"),
    ),
)
def test_a_half_by_a_catalog_that_is_not_atomic_is_told_and_brought_to_its_end(
    topic: Topic, lake: RestLake, order: Any, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    lake.catalog.at_once = order

    def another_came() -> None:
        raise CommitConflict("by the test")

    lake.catalog.between = another_came
    asked = commits(lake, {1: _dies(lake)} if ends == "it ends within" else None)
    with caplog.at_level(logging.WARNING):
        plan_id = topic.purged(2)
    assert asked
    assert [
        SETTING in one.getMessage() and "it has not committed" in one.getMessage() for one in caplog.records if plan_id in one.getMessage()
    ]
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == ([8, 9, 10], [10], 1)
    assert [told for told in _warned(topic, plan_id) if "NotAtOnce" in told and "lifecycle.atomic-transactions" in told]
    lake.catalog.between = lambda: None
    topic.undone(3, plan_id)
    topic.is_whole(10)


@hunt
def test_a_catalog_that_makes_one_after_the_other_does_what_it_is_told(topic: Topic, lake: RestLake) -> None:
    lake.catalog.at_once = "one after the other"
    topic.undone(3, topic.purged(2))
    topic.is_whole(10)


def test_one_that_does_not_offer_it_is_refused_before_anything_is_published(topic: Topic, lake: RestLake) -> None:
    before, lake.catalog.at_once = seen(topic), None
    with _asked_anew():
        with raises("NoTransactions", match=f"{SETTING} is true.*does not offer.*Remove the setting"):
            topic.run(2)
        found = doctor._check_part("catalog", doctor._catalog)
    assert not found.ok
    assert found.found.startswith("NoTransactions: ")
    assert seen(topic) == before
    lake.catalog.at_once = "all or none"
    with _asked_anew():
        assert "commits several tables at once" in doctor._check_part("catalog", doctor._catalog).found
        topic.purged(3)


@contextmanager
def _asked_anew() -> Iterator[None]:
    """What a catalog offers a client asks once, when it opens it."""
    vars(engine_of_process()).pop("lake", None)
    yield
    vars(engine_of_process()).pop("lake", None)


@hunt
def test_without_the_setting_each_table_has_its_own_commit(plain: RestLake) -> None:
    """Though the catalog offers another."""
    with plain.entered():
        world = WORLDS["iceberg"]({}, NO_OPTIONS)
        topic, asked = due(world), commits(plain)
        topic.undone(3, topic.purged(2))
        assert not asked
        plain.catalog.around = lambda asked, serve: serve(asked)
        world.close()


@hunt
def test_messages_that_come_back_to_log_and_view_do_so_in_one_commit(topic: Topic, lake: RestLake) -> None:
    """What goes of both does not: the SQL view comes between."""
    world = topic.world
    name = compacted(world, b"a", b"b", b"a", b"c")
    was, asked = (stored(world, name), view(world, name)), commits(lake)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1), (0, 2))))
    assert not asked
    undone(world, name, 7, plan_id)
    assert [one.body.count('"set-snapshot-ref"') for one in asked] == [2]
    assert (stored(world, name), view(world, name)) == was


def _warned(topic: Topic, plan_id: str) -> tuple[str, ...]:
    outcome = topic.s.ledger.record(plan_id).outcome
    assert outcome is not None
    return outcome.warnings


def _plan(topic: Topic) -> str:
    """The one that was published."""
    found = topic.s.ledger.find_published(topic.name, "snapshot_with_purge", topic.s.ledger.now())
    assert found is not None
    return found.plan.plan_id
