"""Tasks find and judge the same messages as one process that reads each file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.engines import change_tasks
from tests.spark.lake import SECOND, Lake, Rows, tables

from message_lifecycle.app import wiring
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import LifecycleError, PartlyUnavailable
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, RemoveRanges, Request, TruncateLog
from message_lifecycle.operations import message_cleaner
from message_lifecycle.stores.iceberg import file_tasks
from message_lifecycle.stores.iceberg.engine import Engine, SparkEngine, ThreadEngine, engine_of_process
from message_lifecycle.stores.iceberg.evidence import evidence
from message_lifecycle.stores.iceberg.read import IcebergReader
from message_lifecycle.stores.iceberg.store import IcebergStore
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = pytest.mark.spark

AGE = 60
FILES, OF_TASK = 7, 3
FIRST = 1000.0
"""When the first message of each file is too old; the others follow, one each second."""


@pytest.fixture(params=[SparkEngine, ThreadEngine], ids=["spark", "this process"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Engine:
    found: Engine = SparkEngine(spark) if request.param is SparkEngine else engine_of_process()
    assert isinstance(found, request.param)
    return found


@pytest.fixture
def items(engine: Engine, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of items of each search by the lake's reader, which runs tasks from now on."""
    seen = list[int]()

    def counted(run: Callable[..., list[Any]], some: Sequence[Any], work: Callable[..., Any]) -> list[Any]:
        seen.append(len(some))
        return run(some, work)

    change_tasks(monkeypatch, counted)
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", OF_TASK)
    monkeypatch.setattr(lake, "reader", IcebergReader(tables(), engine=lambda: engine))
    return seen


@pytest.fixture
def topic(lake: Lake) -> TopicName:
    """Each file has messages of three ages."""
    name = lake.topic(partitions=2, message_expiry=0, max_age_seconds=AGE, max_records=FILES + 3)
    aged = (FIRST - AGE - 1, FIRST - AGE, FIRST - AGE + 1)
    lake.append(name, *(Rows(base=10 * (at // 2), times=aged, partition=at % 2) for at in range(FILES)))
    return name


def planned(lake: Lake, reader: IcebergReader, name: TopicName, as_of: float) -> Plan:
    log, at = reader.log(name), Instant(int(as_of * SECOND))
    facts = Facts(log=log, accepted=lake.policy(name).values)
    return message_cleaner.plan(facts, lake.policy(name), as_of=at, ask=partial(reader.rows, log))


def test_tasks_find_what_one_process_finds(lake: Lake, topic: TopicName, items: list[int]) -> None:
    in_process = IcebergReader(tables())
    # The second time, each file has a deletion vector.
    for seconds, removed in ((0, {"retention_age": 7, "retention_count": 4}), (1, {"retention_age": 4})):
        items.clear()
        plan = planned(lake, lake.reader, topic, FIRST + seconds)
        (tasks,) = items
        assert tasks > 1
        assert dict(plan.expected.removed) == removed
        assert plan == planned(lake, in_process, topic, FIRST + seconds)
        lake.publish(plan)


def test_the_reader_of_an_application_has_the_engine_of_its_process(lake: Lake, topic: TopicName, items: list[int]) -> None:
    with open_ledger("sqlite://") as ledger:
        reader = wiring._iceberg({}, ledger, scratch=True).reader
        assert isinstance(reader, IcebergReader)
        planned(lake, reader, topic, FIRST)
    assert len(items) == 1


def test_a_task_that_cannot_read_its_file_names_it_and_nothing_is_planned(lake: Lake, topic: TopicName, items: list[int]) -> None:
    lost = next(local_path(str(tables().load(topic).location())).rglob("*.parquet"))
    lost.unlink()
    raised = list[LifecycleError]()
    for reader in (lake.reader, IcebergReader(tables())):
        with pytest.raises(LifecycleError) as error:
            planned(lake, reader, topic, FIRST)
        raised.append(error.value)
    by_tasks, in_process = raised
    assert min(items) > 1
    assert lost.name in str(by_tasks)
    assert (by_tasks.code, by_tasks.exit_code, str(by_tasks)) == (in_process.code, in_process.exit_code, str(in_process))
    assert all(isinstance(error, PartlyUnavailable) for error in raised), "the other topics go on"


@pytest.mark.parametrize(
    "request_",
    [
        PurgeKey(key=b"k1"),
        PurgeKey(key=b"k1", before=21),
        RemoveMessages(positions=((0, 1), (1, 11), (1, 12), (1, 99))),
        RemoveRanges(ranges=((1, 11, 12), (0, 21, 40), (1, 12, 20), (0, 0, 0))),
        RemoveNullKeys(partition=0, first=1, last=11),
        TruncateLog(partition=0, before=21),
    ],
    ids=["a key", "a key before an offset", "positions", "ranges", "null keys", "truncation"],
)
def test_tasks_find_the_messages_of_a_request(
    lake: Lake, topic: TopicName, items: list[int], monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    log, as_of = lake.reader.log(topic), Instant(int(FIRST * SECOND))
    items.clear()
    found = lake.reader.find_requested_rows(log, request_, as_of=as_of)
    assert bool(found.due) == (not isinstance(request_, RemoveNullKeys)), "each message has a key"
    assert found == IcebergReader(tables()).find_requested_rows(log, request_, as_of=as_of)
    assert len(items) == 1
    assert items[0] > 1


def judged(lake: Lake, plan: Plan, staged: Staged, engine: Engine | None) -> Mapping[str, pa.Table]:
    return evidence(tables().load(plan.topic), plan, staged, lake.policy(plan.topic), engine=lambda: engine)


@pytest.fixture
def ageing(lake: Lake) -> TopicName:
    """Each file has a message that is too old, messages in time, and one of the future. The future message keeps its segment."""
    name = lake.topic(partitions=2, message_expiry=AGE, max_age_seconds=2 * AGE, max_records=2 * FILES + 3)
    times = (FIRST - 2 * AGE - 1, FIRST - AGE, FIRST - 1, FIRST + 90_000)
    lake.append(name, *(Rows(base=10 * (at // 2), times=times, partition=at % 2) for at in range(FILES)))
    return name


def test_tasks_judge_as_one_process_does(lake: Lake, ageing: TopicName, engine: Engine, items: list[int]) -> None:
    plan = planned(lake, lake.reader, ageing, FIRST)
    assert set(dict(plan.expected.removed)) >= {"retention_age", "retention_count"}
    staged = lake.store().stage(plan)
    items.clear()
    by_tasks = judged(lake, plan, staged, engine)
    assert len(items) == 5, "times of the future, limits before and after, files that a limit cuts, messages"
    assert min(items) > 1
    assert pc.sum(by_tasks["rows"]["rows"]).as_py() == sum(dict(plan.expected.removed).values())
    assert by_tasks == judged(lake, plan, staged, None)


def test_the_gate_of_a_store_judges_in_tasks(lake: Lake, topic: TopicName, items: list[int]) -> None:
    """`store.evidence` passes the engine of the process on."""
    plan, policy = planned(lake, lake.reader, topic, FIRST), lake.policy(topic)
    staged = lake.store().stage(plan)
    items.clear()
    assert lake.store().evidence(plan, staged, policy) == judged(lake, plan, staged, None)
    assert min(items) > 1


def test_messages_that_stay_overdue_are_found_in_tasks(lake: Lake, topic: TopicName, engine: Engine, items: list[int]) -> None:
    """The staged change is that of an earlier plan, so messages that have become due since are still there."""
    plan = planned(lake, lake.reader, topic, FIRST + 1)
    staged = lake.store().stage(planned(lake, lake.reader, topic, FIRST))
    items.clear()
    found = judged(lake, plan, staged, engine)
    assert len(items) == 3, "limits before and after, messages"
    assert min(items) > 1
    assert found == judged(lake, plan, staged, None)
    assert pc.sum(found["left"]["rows"]).as_py() > 0


def test_a_task_of_the_gate_that_cannot_read_its_file_names_it(lake: Lake, topic: TopicName, engine: Engine, items: list[int]) -> None:
    plan = planned(lake, lake.reader, topic, FIRST)
    staged = lake.store().stage(plan)
    lost = next(local_path(str(tables().load(topic).location())).rglob("*.parquet"))
    lost.unlink()
    raised = list[LifecycleError]()
    for one in (engine, None):
        with pytest.raises(LifecycleError) as error:
            judged(lake, plan, staged, one)
        raised.append(error.value)
    by_tasks, in_process = raised
    assert min(items) > 1
    assert lost.name in str(by_tasks)
    assert (by_tasks.code, by_tasks.exit_code, str(by_tasks)) == (in_process.code, in_process.exit_code, str(in_process))


def test_a_task_of_a_stage_that_cannot_read_its_file_names_it(lake: Lake, topic: TopicName, engine: Engine, items: list[int]) -> None:
    plan = planned(lake, lake.reader, topic, FIRST)
    gone = next(local_path(str(tables().load(topic).location())).rglob("*.parquet"))
    gone.unlink()
    items.clear()
    with pytest.raises(PartlyUnavailable, match=gone.name) as error:  # the other topics go on
        IcebergStore(lambda: engine, tables=tables(), server={}).stage(plan)
    assert len(items) == 1
    assert items[0] > 1
    assert error.value.code == "FileLost"
