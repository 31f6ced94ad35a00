"""Tasks give the same on Spark as in threads of this process, in order, and a failed task is reported (CMP-11)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Event

import pytest
from pyspark.sql import SparkSession

from message_lifecycle.model.errors import invalid_append
from message_lifecycle.stores.iceberg import engine as engine_module
from message_lifecycle.stores.iceberg import shares
from message_lifecycle.stores.iceberg.engine import Engine, SparkEngine, ThreadEngine, engine_of_process
from message_lifecycle.stores.iceberg.shares import Failed, ResourceLimits, Resources, local_cores

pytestmark = pytest.mark.spark

CLUSTER = "spark://a-cluster:7077"


@pytest.fixture(params=[SparkEngine, ThreadEngine], ids=["spark", "this process"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Engine:
    if request.param is SparkEngine:
        return SparkEngine(spark)
    found = engine_of_process()
    assert isinstance(found, ThreadEngine)
    return found


@pytest.fixture
def cluster(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str], list[int]], Engine]:
    """An engine whose settings name a cluster with executors. Spark's own executor of this machine does the work."""

    def made(settings: Mapping[str, str], executors: list[int]) -> Engine:
        monkeypatch.setattr(shares, "registered", lambda _: executors)
        given = {"spark.master": CLUSTER, **settings}
        monkeypatch.setattr(engine_module, "settings_of", lambda context: {**dict(context.getConf().getAll()), **given})
        return SparkEngine(spark)

    return made


def test_each_item_is_done_within_its_share_and_failures_keep_their_place(engine: Engine) -> None:
    driver = os.getpid()

    def work(item: int, share: Resources) -> tuple[int, int, int, int, bool]:
        if item == 2:
            raise invalid_append("the item is not done")
        return item * item, share.memory_bytes, share.read_bytes_per_second, share.write_bytes_per_second, os.getpid() == driver

    found = engine.run([1, 2, 3], work, description="a test", rates=ResourceLimits(memory_bytes=1000, read_bytes_per_second=3))

    here = isinstance(engine, ThreadEngine)
    assert found[0] == (1, 500, 2, 0, here)
    assert found[2] == (9, 500, 2, 0, here)
    assert isinstance(found[1], Failed)
    assert "is not done" in found[1].reason
    assert engine.run([], work, description="a test") == []


@pytest.mark.parametrize(
    ("executors", "threads", "memory", "rate"),
    [([], 1, 250, 2), ([1, 1, 1], 1, 1000, 2), ([1, 3], 1, 333, 2), ([8], 2, 250, 2), ([8, 8], 2, 250, 2)],
    ids=["none yet", "of one each", "unlike", "one", "large ones"],
)
def test_memory_and_threads_are_those_of_the_largest_executor(
    cluster: Callable[[Mapping[str, str], list[int]], Engine], executors: list[int], threads: int, memory: int, rate: int
) -> None:
    """Four items for any number of executors: rates are shared by all that run at once."""
    engine = cluster({}, executors)

    def work(_item: int, share: Resources) -> tuple[int, int, int]:
        return share.threads, share.memory_bytes, share.read_bytes_per_second

    assert set(engine.run([1, 2, 3, 4], work, description="a test", rates=ResourceLimits(memory_bytes=1000, read_bytes_per_second=6))) == {
        (threads, memory, rate)
    }


@pytest.mark.parametrize(
    ("settings", "threads", "memory", "rate"),
    [
        ({"spark.executor.cores": "8"}, 2, 250, 2),
        ({"spark.executor.cores": "8", "spark.task.cpus": "4"}, 4, 500, 2),
        ({"spark.master": "yarn", "spark.executor.cores": "2", "spark.executor.instances": "1"}, 1, 500, 3),
        ({"spark.executor.cores": "2", "spark.executor.instances": "1"}, 1, 500, 2),
        (
            {
                "spark.master": "yarn",
                "spark.executor.cores": "1",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "3",
            },
            1,
            1000,
            2,
        ),
        ({"spark.executor.cores": "1", "spark.cores.max": "2"}, 1, 1000, 3),
    ],
    ids=["cores", "large tasks", "one executor", "a setting that Standalone does not take", "up to three", "two cores"],
)
def test_what_settings_say_of_executors_counts_before_one_has_come(
    cluster: Callable[[Mapping[str, str], list[int]], Engine], settings: Mapping[str, str], threads: int, memory: int, rate: int
) -> None:
    engine = cluster(settings, [])

    def work(_item: int, share: Resources) -> tuple[int, int, int]:
        return share.threads, share.memory_bytes, share.read_bytes_per_second

    assert set(engine.run([1, 2, 3, 4], work, description="a test", rates=ResourceLimits(memory_bytes=1000, read_bytes_per_second=6))) == {
        (threads, memory, rate)
    }


def test_what_no_task_may_meet_is_raised(engine: Engine) -> None:
    def work(_item: int, _share: Resources) -> None:
        raise ZeroDivisionError("a fault of the program")

    with pytest.raises(Exception, match="a fault of the program"):
        engine.run([1], work, description="a test")


def test_nothing_is_still_at_work_when_a_fault_is_raised(spark: SparkSession) -> None:
    """The caller tidies up next, and plans anew."""
    began, ended = Event(), Event()

    def work(item: int, _share: Resources) -> None:
        if item == 0:
            assert began.wait(60)
            raise ZeroDivisionError("a fault of the program")
        began.set()
        ended.wait(0.2)  # still at work when the other one has failed
        ended.set()

    with pytest.raises(ZeroDivisionError):
        engine_of_process().run([0, 1], work, description="a test")
    assert ended.is_set()


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3, 2]"}, 3),
        ({"spark.master": "local[*]"}, len(os.sched_getaffinity(0))),
        ({"spark.master": "local[0]"}, 1),
        ({"spark.master": "local-cluster[1,1,512]"}, None),
        ({"spark.master": CLUSTER}, None),
        ({"spark.master": "yarn"}, None),
        ({}, None),
    ],
)
def test_only_a_local_master_is_this_machine(settings: Mapping[str, str], cores: int | None) -> None:
    assert local_cores(settings) == cores
