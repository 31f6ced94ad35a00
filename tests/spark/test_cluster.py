"""A cluster whose machines share nothing with the driver but the network, tables in an object store: tasks find code, packages and files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.contract.test_requests import HEADERS, append, topic_of
from tests.contract.test_undo_view import compacted
from tests.effort import hunt
from tests.engines import change_tasks
from tests.errors import raises
from tests.events import described_jobs, event_log
from tests.lakes import RestLake, rest_lake
from tests.logs import SECOND
from tests.undone import published, run
from tests.undone_documents import made, purged

from lifecycle_local import spark_cluster
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.java import JARS, STORE_JARS, ensure_jars, find_java
from lifecycle_local.layout import Layout, find_layout, project_root
from lifecycle_local.s3_server import s3_server
from lifecycle_local.worlds import WORLDS
from message_lifecycle.app.doctor import examine
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.wiring import iceberg_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.topic import NO_OPTIONS
from message_lifecycle.stores.iceberg import cluster_watch
from message_lifecycle.stores.iceberg.executors import pack
from message_lifecycle.stores.iceberg.session import spark_session

MACHINES = 3
pytestmark = [hunt, pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    layout = find_layout()
    made = Layout(project=layout.project, state=tmp_path_factory.mktemp("machines"), shared_tools=layout.tools)
    made.prepare()
    return made


def start(machines: Layout) -> Mapping[str, str]:
    """Again: at the same address."""
    layout = find_layout()
    return spark_cluster.start(
        machines, find_java(layout), ensure_jars(layout, find_java(layout), jars=(*JARS, *STORE_JARS)), workers=MACHINES
    )


@pytest.fixture(scope="module")
def lake(embedded: Path, machines: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestLake]:
    layout, folder = find_layout(), tmp_path_factory.mktemp("cluster")
    archive = folder / "packages.tar.gz"
    pack(archive)
    (folder / "events").mkdir()
    packages = {**event_log(folder / "events"), "spark.archives": f"{archive}#env", "spark.pyspark.python": "./env/bin/python"}
    (folder / "rest").mkdir()
    with s3_server() as store, rest_lake(layout, folder / "rest", store) as rest, stop_at_exit(_stop, machines):
        settings = start(machines)
        (folder / "conf").mkdir()
        found = rest.on_cluster(folder / "conf", {**settings, **packages})
        yield found
        found.end()


def _stop(machines: Layout) -> None:
    spark_cluster.stop(machines, workers=MACHINES)


@pytest.fixture
def world(lake: RestLake) -> Iterator[World]:
    with lake.entered():
        opened = WORLDS["iceberg"]({}, NO_OPTIONS)
        yield opened
        opened.close()


def test_the_machines_have_nothing_of_ours_but_what_they_are_given(world: World) -> None:
    root = project_root()

    def seen(_: int) -> tuple[list[str], str, str, bool]:
        import importlib.util

        import duckdb

        import message_lifecycle

        return (
            [path.name for path in root.iterdir()],
            str(message_lifecycle.__file__),
            str(duckdb.__file__),
            importlib.util.find_spec("pip") is not None,
        )

    (found,) = spark_session("tests").sparkContext.parallelize([0], 1).map(seen).collect()
    assert found[0] == []
    assert "/message_lifecycle-" in found[1]
    assert "/env/packages/" in found[2]
    assert not found[3], "packages that lie beside the machine's Python are hidden"


def test_the_doctor_asks_every_machine(lake: RestLake) -> None:
    with lake.entered():
        found = {one.part: one for one in examine(iceberg_world)}
    assert found["tables"].ok, found["tables"].found
    assert found["tasks"].ok, found["tasks"].found
    assert found["tasks"].found.startswith(f"{MACHINES} executors")
    assert found["cleanup"].ok, found["cleanup"].found


# As if it were another, to whoever asks for its version.
OLDER = """
import collections, sys
sys.version_info = collections.namedtuple("version_info", "major minor micro releaselevel serial")(3, 10, 0, "final", 0)
"""


@pytest.mark.parametrize(
    ("program", "told"), [(None, "the executors have no /no/python"), ("older", "the executors have another Python than 3.11")]
)
def test_a_python_that_runs_no_task_is_told_with_what_to_do(lake: RestLake, tmp_path: Path, program: str | None, told: str) -> None:
    lake.end()  # it has all cores of the cluster
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "sitecustomize.py").write_text(OLDER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/older:$PYTHONPATH" exec python3.11 "$@"\n')
    python.chmod(0o755)
    (tmp_path / "conf").mkdir()
    wrong = lake.on_cluster(tmp_path / "conf", {"spark.executorEnv.LIFECYCLE_PYTHON": str(python) if program else "/no/python"})
    with wrong.entered():
        parts = {one.part: one for one in examine(iceberg_world)}
    wrong.end()
    assert parts["tasks"].ok is False
    assert told in parts["tasks"].found, parts["tasks"].found
    assert parts["cleanup"].ok, parts["cleanup"].found


def jobs_of(lake: RestLake, name: TopicName) -> set[str]:
    """Return the descriptions of the jobs that name the topic, without the ids of plans."""
    events = Path(lake.environment["SPARK_CONF_DIR"]).parent / "events"
    return {re.sub("plan [0-9a-f]{8}", "plan ID", job) for job in described_jobs(events) if str(name) in job}


def test_a_view_is_compacted_by_a_job_that_names_it(world: World, lake: RestLake) -> None:
    name = compacted(world, b"a", b"b", b"a", b"c")
    append(world, name, 8, b"a")
    published(world, name, 9, "compaction")
    assert [(m.offset, m.key) for m in read_compacted(world.services, name)] == [(1, b"b"), (3, b"c"), (4, b"a")]
    assert f"compaction of {name}: 1 partitions, plan ID" in jobs_of(lake, name)


def test_single_messages_are_found_by_a_job_that_names_it(world: World, lake: RestLake) -> None:
    name = topic_of(world, allow_msg_ttl=True)
    # Both in one file. A file whose messages are all due goes as a whole, and no task looks for rows.
    headers = {b"a": HEADERS["1s"], b"b": ()}
    new = [NewMessage(append_time=Instant(SECOND), key=key, value=b"v", headers=of_key) for key, of_key in headers.items()]
    world.writer.append(name, new, policy_of(world.services, name))
    published(world, name, 9)
    assert [m.key for m in world.services.reader.messages(name)] == [b"b"]
    assert f"message cleaner of {name}: finding rows in 1 files, plan ID" in jobs_of(lake, name)


@pytest.mark.usefixtures("erasure_secret")
def test_a_key_is_looked_for_by_a_job_that_names_it(world: World, lake: RestLake) -> None:
    name = topic_of(world)
    append(world, name, 1, b"a", b"b")
    request = ask(world.services, [b"a"], topics=[name], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: (True, "ada", "as asked"))
    assert found.is_done, found.why_not_done()
    assert [m.key for m in world.services.reader.messages(name)] == [b"b"]
    assert f"erasure of {name}: searching 1 files" in jobs_of(lake, name)


def test_a_view_is_compacted_by_event_time(world: World) -> None:
    name = topic_of(world, winner="event_time", delete_retention=100, cleanup_policy="compact")
    append(world, name, 1, *(b"%d" % key for key in range(100)))
    append(world, name, 2, *(b"%d" % key for key in range(50)))
    published(world, name, 50, "compaction")
    append(world, name, 51, b"1")
    published(world, name, 60, "compaction")
    assert len(list(read_compacted(world.services, name))) == 100


def test_documents_are_folded_purged_and_come_back(world: World, lake: RestLake) -> None:
    topic = made(world)
    plans, was = purged(topic)
    assert f"snapshot with purge of {topic.name}: folding 1 buckets, plan ID" in jobs_of(lake, topic.name)
    assert topic.undone(4, plans[-1]).restored
    assert topic.shown()[0] == was[0]


@pytest.mark.parametrize("lost", ["executor", "worker"])
def test_what_a_machine_that_is_lost_in_a_stage_was_at_is_done_by_another(
    world: World, tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task ends the JVM that it runs under, or the one that has started that."""
    name = compacted(world, b"a", b"b", b"a", b"c")
    append(world, name, 8, b"a")
    met, levels = str(tmp_path / "met"), 1 if lost == "executor" else 2

    def dying(run: Callable[..., Any], items: Sequence[Any], work: Callable[..., Any]) -> Any:
        def first_dies(item: object, share: object) -> object:
            import os
            import signal
            import time
            from contextlib import suppress
            from pathlib import Path

            with suppress(FileExistsError):
                os.close(os.open(met, os.O_CREAT | os.O_EXCL))
                process, seen = os.getpid(), 0
                while seen < levels:
                    process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
                    seen += Path(f"/proc/{process}/comm").read_text().strip() == "java"
                os.kill(process, signal.SIGKILL)
                time.sleep(60)  # it never wakes: what it runs under has ended
            return work(item, share)

        return run(items, first_dies)

    change_tasks(monkeypatch, dying)
    published(world, name, 9, "compaction")
    assert Path(met).exists()
    assert [(m.offset, m.key) for m in read_compacted(world.services, name)] == [(1, b"b"), (3, b"c"), (4, b"a")]


def test_a_run_whose_cluster_goes_away_ends_with_what_to_do_and_the_next_goes_on(
    lake: RestLake, machines: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own driver would wait for the master for ever."""
    lake.end()  # a context that is there has been told how long it waits
    monkeypatch.setattr(cluster_watch, "LOST_SECONDS", 3.0)
    met = tmp_path / "met"

    def waiting(run: Callable[..., Any], items: Sequence[Any], work: Callable[..., Any]) -> Any:
        def waits(item: object, share: object) -> object:
            import time
            from pathlib import Path

            Path(str(met)).touch()
            time.sleep(600)  # the cluster goes first
            return work(item, share)

        return run(items, waits)

    def goes() -> None:
        while not met.exists():
            time.sleep(0.1)  # nobody tells that a task has begun
        _stop(machines)

    ending = Thread(target=goes, daemon=True)
    with lake.entered():
        world = WORLDS["iceberg"]({}, NO_OPTIONS)
        name = compacted(world, b"a", b"b", b"a", b"c")
        append(world, name, 8, b"a")
        with monkeypatch.context() as patched:
            change_tasks(patched, waiting)
            ending.start()
            with raises("ClusterLost", match="has no executor.*run the same command again"):
                run(world, name, 9, "compaction")
            ending.join()
        start(machines)
        published(world, name, 9, "compaction")
        assert [(m.offset, m.key) for m in read_compacted(world.services, name)] == [(1, b"b"), (3, b"c"), (4, b"a")]
        world.close()
