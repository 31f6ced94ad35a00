"""A commit that was made or not, and the catalog did not say: looked for by plan id, never repeated, nothing cleaned up (DEL-4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from types import ModuleType
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tests.errors import raises
from tests.spark.lake import EXPIRY_S, Lake, Rows
from tests.spark.tables import unheard, unheard_operations
from tests.verdicts import by

from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg import new_table
from message_lifecycle.stores.iceberg import store as of_log
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from message_lifecycle.stores.iceberg.session import java_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = pytest.mark.spark

AS_OF = 1000.0
YOUNG = AS_OF - EXPIRY_S + 1
LEDGER = ("ledger", 2)
# Iceberg's own word, and what its JDBC catalog lets through when it loses the connection to its database.
UNKNOWN, LOST = "CommitStateUnknownException", "UncheckedSQLException"
EACH = pytest.mark.parametrize("word", [UNKNOWN, LOST])


@contextmanager
def losing(module: ModuleType, *, made: bool, by: str) -> Iterator[None]:
    """The answers to commits on the module's tables are lost."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "java_table", lambda session, name: unheard(session, java_table(session, name), made=made, by=by))
        yield


def planned(lake: Lake) -> tuple[TopicName, Plan]:
    """A topic with three messages that are expired and one that is not, and the plan of their removal."""
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(YOUNG,)))
    return name, lake.plan(name, AS_OF)


def verdict(lake: Lake, plan: Plan) -> Verdict:
    return lake.verdict(plan, lake.store().stage(plan))


def files(name: TopicName) -> set[Path]:
    """Every file of the table, those of its metadata too."""
    return {path for path in local_path(Tables().load(name).location()).rglob("*") if path.is_file()}


def commits_of(name: TopicName, plan: Plan) -> int:
    main = Tables().load(name)
    return sum(1 for snapshot in main.snapshots() if snapshot.summary and snapshot.summary[PLAN_ID] == plan.plan_id)


@EACH
@pytest.mark.parametrize("came", [(), (4,)], ids=["as staged", "made again"])
def test_a_publish_that_was_made_is_found(lake: Lake, word: str, came: tuple[int, ...]) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    for offset in came:
        lake.append(name, Rows(base=offset, times=(YOUNG,)))
    with losing(of_log, made=True, by=word):
        published = lake.store().publish(judged, by(LEDGER))
    assert published.removed == (("expiry", 3),)
    assert published == lake.reader.published(plan) == lake.store().publish(judged, by(LEDGER))
    assert commits_of(name, plan) == 1
    assert lake.offsets(name) == [3, *came]


@EACH
def test_a_publish_that_was_not_made_says_so_and_leaves_all_for_the_next_run(lake: Lake, word: str) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    log, branches, there = lake.log(name), Tables().load(name).refs(), files(name)
    with losing(of_log, made=False, by=word), pytest.raises(CommitUnknown, match=plan.plan_id):
        lake.store().publish(judged, by(LEDGER))
    assert (lake.log(name), Tables().load(name).refs()) == (log, branches)
    assert files(name) > there, "what the attempt wrote stays as well: it may be named by a commit that is still on its way"
    assert lake.reader.published(plan) is None
    assert lake.store().publish(judged, by(LEDGER)).removed == (("expiry", 3),)
    assert commits_of(name, plan) == 1
    assert lake.offsets(name) == [3]


def test_an_append_after_a_publish_of_unknown_result_does_not_hide_it(lake: Lake) -> None:
    name, plan = planned(lake)
    judged = verdict(lake, plan)
    with losing(of_log, made=True, by=UNKNOWN):
        first = lake.store().publish(judged, by(LEDGER))
    lake.append(name, Rows(base=4, times=(1, 2)))
    assert lake.store().publish(judged, by(LEDGER)) == first
    assert lake.offsets(name) == [3, 4, 5]


@EACH
@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_branch_of_unknown_result_is_named_and_made_anew(lake: Lake, made: bool, word: str) -> None:
    name, plan = planned(lake)
    with losing(of_log, made=made, by=word), pytest.raises(CommitUnknown, match=f"staging plan {plan.plan_id}"):
        lake.store().stage(plan)
    assert lake.publish(plan).removed == (("expiry", 3),)
    assert lake.offsets(name) == [3]


# A topic's creation: Iceberg's transaction would delete what it has written where it takes the commit for refused.


TAKEN = "AlreadyExistsException"
"""What a database says that is told again to make a table, because its first answer was lost."""


class Begun:
    """Iceberg's transaction that makes a table, on a catalog that loses the answer."""

    def __init__(self, session: SparkSession, real: Java, *, made: bool, by: str) -> None:
        self._session, self._real, self._made, self._by = session, real, made, by

    def underlyingOps(self) -> Java:  # the name is Iceberg's
        return unheard_operations(self._session, self._real.underlyingOps(), made=self._made, by=self._by)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def create(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, made: bool, by: str) -> TopicName:
    """Try to make a topic."""
    name, real = TopicName.parse(f"{lake.stream}/t {token_hex(4)}"), new_table._begun
    with monkeypatch.context() as patched:
        patched.setattr(new_table, "_begun", lambda *asked: Begun(lake.session, real(*asked), made=made, by=by))
        lake.topics.create(name, partitions=1, settings={}, ledger=LEDGER)
    return name


def is_whole(name: TopicName) -> bool:
    table = Tables().load(name)
    snapshot = table.current_snapshot()
    return snapshot is not None and snapshot.manifests(table.io) == []


@pytest.mark.parametrize("word", [UNKNOWN, LOST, TAKEN])
def test_a_topic_that_was_made_though_the_answer_was_lost_is_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    name = create(lake, monkeypatch, made=True, by=word)
    assert is_whole(name)
    lake.append(name, Rows(base=0, times=(1, 2)))
    assert lake.offsets(name) == [0, 1]


@EACH
def test_a_topic_that_may_have_been_made_is_not_told_as_made(lake: Lake, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    with pytest.raises(CommitUnknown, match="making the table"):
        create(lake, monkeypatch, made=False, by=word)


@pytest.mark.parametrize("word", [UNKNOWN, LOST, TAKEN])
def test_a_topic_that_cannot_be_looked_up_stays_unknown_and_loses_no_file(lake: Lake, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    before = set(lake.topics.list(lake.stream))

    def gone(*_: object) -> str:
        raise Py4JError("the line is dead")

    with monkeypatch.context() as patched, pytest.raises(CommitUnknown, match="making the table"):
        patched.setattr(new_table, "uuid_at", gone)
        create(lake, monkeypatch, made=True, by=word)
    (name,) = set(lake.topics.list(lake.stream)) - before
    assert is_whole(name)


def test_a_topic_that_another_process_makes_first_is_told_as_there(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name, real = TopicName.parse(f"{lake.stream}/t {token_hex(4)}"), new_table._begun

    def overtaken(*asked: Any) -> Java:
        begun = real(*asked)
        with monkeypatch.context() as patched:
            patched.setattr(new_table, "_begun", real)
            IcebergTopics(Tables()).create(name, partitions=2, settings={}, ledger=LEDGER)
        return begun

    with monkeypatch.context() as patched, raises("TopicExists"):
        patched.setattr(new_table, "_begun", overtaken)
        lake.topics.create(name, partitions=1, settings={}, ledger=LEDGER)
    assert (lake.topics.describe(name).partitions, is_whole(name)) == (2, True)
