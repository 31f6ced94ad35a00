"""Iceberg's library in a JVM without Spark: who may speak to it, when it ends, and that whole files and single messages go by it alone."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tests.ledgers import StandingClock
from tests.spark.documents import Documents, text_at, typed
from tests.spark.kill_points import ROOT
from tests.spark.lake import EXPIRY_S, LEDGER, SECOND, Lake, Rows, tables
from tests.verdicts import by

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import CatalogUnavailable, CommitUnknown, PlanConflict, SparkUnavailable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.settings import resolve
from message_lifecycle.stores.iceberg import engine, java, session, view_file
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewStore
from message_lifecycle.stores.iceberg.documents.store import IcebergChanges, IcebergDocuments, IcebergSnapshots
from message_lifecycle.stores.iceberg.engine import Engine, SparkEngine, end_engine, engine_of_process
from message_lifecycle.stores.iceberg.fence import Walk, fenced_commit
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.store import IcebergStore
from message_lifecycle.stores.iceberg.witness import read_snapshot
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = pytest.mark.spark

AS_OF = 1000.0
YOUNG = AS_OF - EXPIRY_S + 1
ENDS_WITHIN_SECONDS = 30.0


@pytest.fixture
def no_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """This process as one in which nobody has started Spark; the session is another's, and is for making topics."""
    monkeypatch.setattr(session, "_of_process", None)
    monkeypatch.setattr(engine, "_of_process", None)
    for name in (session.SUBMITTED, session.ARGUMENTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engine, "spark_session", _nobody)
    yield engine_of_process()
    end_engine()


def _nobody(_name: str) -> SparkSession:
    raise AssertionError("Spark was asked for")


def store() -> IcebergStore:
    return IcebergStore(engine_of_process, tables=tables(), server={})


def test_whole_files_go_without_spark(lake: Lake, no_spark: Engine) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(YOUNG,)))
    plan = lake.plan(name, AS_OF)
    made = store()
    judged = lake.verdict(plan, made.stage(plan))
    lake.append(name, Rows(base=4, times=(YOUNG,)))
    assert made.publish(judged, by(LEDGER)).removed == (("expiry", 3),)
    assert lake.offsets(name) == [3, 4]
    assert lake.reader.find_published(plan) == store().publish(judged, by(LEDGER))


def test_what_another_process_staged_is_published_without_spark(lake: Lake, no_spark: Engine) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(YOUNG,)))
    plan = lake.plan(name, AS_OF)
    judged = lake.verdict(plan, lake.store().stage(plan))
    assert store().publish(judged, by(LEDGER)).removed == (("expiry", 3),)
    assert lake.offsets(name) == [3]


def test_the_fence_is_asked_without_spark(lake: Lake, no_spark: Engine) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(YOUNG,)))
    plan = lake.plan(name, AS_OF)
    judged = lake.verdict(plan, store().stage(plan))
    lake.delete(name, "offset = 1")
    with pytest.raises(PlanConflict, match="another writer's"):
        store().publish(judged, by(LEDGER))
    assert lake.offsets(name) == [0, 2, 3]


def test_a_topic_is_compacted_without_spark(lake: Lake, no_spark: Engine) -> None:
    name = lake.topic(cleanup_policy="compact", message_expiry=0)
    lake.append(name, Rows(base=0, times=(1, 2)), Rows(base=2, times=(3,)))
    s = lake.services()
    s = replace(s, stores=replace(s.stores, log=store(), view=IcebergViewStore(engine_of_process, tables=tables())))
    s.ledger.accept(name, LEDGER)
    outcome = steps.run(
        s, name, as_of=Instant(int(AS_OF * SECOND)), work="compaction", approver=lambda _plan, _report: (True, "tester", "yes")
    )
    assert (outcome.name, outcome.rows_kept) == ("published", 3), outcome
    assert [message.offset for message in read_compacted(s, name)] == [0, 1, 2]


def test_single_messages_go_are_marked_and_come_back_without_spark(lake: Lake, no_spark: Engine) -> None:
    clock = StandingClock(Instant(SECOND))
    s, name = lake.services(clock), TopicName.parse(f"{lake.stream}/marked by Java alone")
    s = replace(s, stores=replace(s.stores, log=store()))
    create_topic(s, name, partitions=1, settings={"allow_msg_ttl": True, "subject_delete_marker_ttl": 90, "max_removed_fraction": 1.0})
    ttl = (("Nats-TTL", b"60s"),)
    made = [
        NewMessage(append_time=Instant(SECOND), key=key, value=b"v", headers=own) for key, own in ((b"a", ttl), (b"b", ()), (b"a", ttl))
    ]
    IcebergWriter(engine_of_process).append(name, made, policy_of(s, name))

    def run(work: Work) -> Outcome:
        clock.now = Instant(clock.now + 100 * SECOND)
        return steps.run(s, name, as_of=clock.now, work=work, approver=lambda _plan, _report: (True, "tester", "yes"))

    outcome = run("message_cleaner")
    assert (outcome.name, dict(outcome.removed), outcome.markers) == ("published", {"ttl": 2}, 1), outcome
    assert lake.offsets(name) == [1, 3]
    assert run(UndoPlan(plan_id=outcome.plan_id or "")).restored == 2
    assert lake.offsets(name) == [0, 1, 2]


def test_a_search_of_many_files_does_not_start_spark(no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_settings() -> bool:
        raise SparkUnavailable("no catalog")

    assert engine.engine_at_hand() is no_spark
    for needs in (lambda: True, without_settings):
        monkeypatch.setattr(engine, "_needs_spark", needs)
        assert engine.engine_at_hand() is None


def test_a_search_of_many_files_uses_the_spark_that_runs(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_needs_spark", lambda: True)
    monkeypatch.setattr(engine, "_of_process", None)
    found = engine.engine_at_hand()
    assert isinstance(found, SparkEngine)
    assert found.run([1, 2], lambda item, _share: item + 1, description="a test") == [2, 3]


def test_documents_are_added_folded_proved_and_purged_without_spark(lake: Lake, no_spark: Engine) -> None:
    topic, of = Documents.on(lake), {"tables": tables()}
    stores = replace(topic.s.stores, snapshots=IcebergSnapshots(engine_of_process, **of), changes=IcebergChanges(engine_of_process, **of))
    topic.s = replace(topic.s, stores=stores, documents=IcebergDocuments(engine_of_process, **of))
    topic.add(*typed("one", 1, 12))
    topic.sync("one", a=8)
    outcome = topic.run()
    assert (outcome.name, dict(outcome.removed)) == ("published", {"purged_synced": 7}), outcome
    assert topic.snapshots("one") == [(12, 1, text_at(12))]


def test_where_arguments_may_name_the_catalog_spark_starts(no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.ARGUMENTS, "--conf spark.sql.catalog.lake=a.b.Catalog pyspark-shell")
    monkeypatch.setenv("SPARK_CONF_DIR", "/nowhere")
    with pytest.raises(AssertionError, match="Spark was asked for"):
        engine_of_process()


@pytest.mark.parametrize("master", ["spark://a-cluster:7077", "yarn", "k8s://https://a-cluster"])
def test_on_a_cluster_the_command_has_spark(no_spark: Engine, monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    found = java.settings() | {"spark.master": master}
    monkeypatch.setattr(java, "settings", lambda: found)
    with pytest.raises(AssertionError, match="Spark was asked for"):
        engine_of_process()


def test_an_application_has_spark(no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_application", None)
    with pytest.raises(AssertionError, match="Spark was asked for"):
        engine.start_application("compaction")
    with pytest.raises(AssertionError, match="Spark was asked for"):
        engine_of_process()


def test_views_are_written_without_spark(lake: Lake, no_spark: Engine) -> None:
    name, settings = lake.topic(), {"max_age_seconds": 60.0}
    for at, policy in enumerate((lake.policy(name), resolve(topic=settings, server={}))):
        assert lake.topics.update_live_view(name, policy) == f"lake.{name.namespace}.{name.table('live')}"
        lake.append(name, Rows(base=at, times=(1,)))
        assert lake.session.sql(f"SELECT * FROM {sql_table(name, kind='live')}").count() == 0
    view_file.drop((name.namespace, name.table("live")))
    assert lake.session.sql(f"SHOW VIEWS IN lake.{name.namespace} LIKE '{name.table('live')}'").count() == 0


def test_a_view_that_cannot_be_told_to_the_catalog_says_so(lake: Lake, no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    name = lake.topic()
    monkeypatch.setenv("SPARK_CONF_DIR", "/nowhere")
    with pytest.raises(CatalogUnavailable, match="SPARK_CONF_DIR"):
        lake.topics.update_live_view(name, lake.policy(name))


class Catalog:
    """A table's, to which something happens when it is told to commit."""

    def __init__(self, table: java.Java, happens: Callable[[], object]) -> None:
        self._table, self._operations, self._happens = table, table.operations(), happens

    def newTransaction(self) -> java.Java:  # the names here are Iceberg's
        return self._table.newTransaction()

    def operations(self) -> Catalog:
        return self

    def commit(self, base: java.Java, changed: java.Java) -> None:
        self._happens()
        self._operations.commit(base, changed)


def appending(on: java.Java, _walk: Walk) -> Iterator[java.Java]:
    yield on.newAppend()


def test_a_commit_that_is_not_back_by_the_deadline_is_unknown(lake: Lake, no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "DEADLINE_SECONDS", 3)
    end_engine()
    impatient = engine_of_process()
    jvm: java.Java = impatient.jvm
    hangs = Catalog(engine_of_process().table(lake.topic()), lambda: jvm.java.lang.Thread.sleep(6000))  # past its deadline
    with pytest.raises(CommitUnknown, match="a deed"):
        fenced_commit(hangs, lambda _walk: None, appending, what="a deed")


def test_a_commit_whose_java_dies_is_unknown(lake: Lake, no_spark: Engine) -> None:
    dies = Catalog(engine_of_process().table(lake.topic()), lambda: os.kill(_pid(no_spark), signal.SIGKILL))
    with pytest.raises(CommitUnknown, match="a deed"):
        fenced_commit(dies, lambda _walk: None, appending, what="a deed")


def test_a_java_that_has_ended_is_told_nothing_more(no_spark: Engine, caplog: pytest.LogCaptureFixture) -> None:
    jvm: java.Java = no_spark.jvm
    kept = [jvm.java.lang.Object() for _ in range(3)]
    port = _port(no_spark)
    end_engine()
    with caplog.at_level("DEBUG", logger="py4j"):
        del kept
        gc.collect()
    assert f":{port}" not in caplog.text, "nobody may have called at its door"


def test_a_list_of_java_that_dies_is_no_shorter_list(no_spark: Engine) -> None:
    jvm: java.Java = no_spark.jvm
    made = jvm.java.util.ArrayList()
    for one in ("a", "b", "c"):
        made.add(one)

    def listed(walk: Callable[[java.Java], Iterator[java.Java]]) -> list[str]:
        taken: list[str] = []
        for one in walk(made):
            taken.append(one)
            if dies:
                os.kill(_pid(no_spark), signal.SIGKILL)
        return taken

    dies = False
    assert listed(iter) == listed(java.each) == ["a", "b", "c"]
    dies = True
    with pytest.raises(Py4JError, check=java.is_connection_broken):
        listed(iter)
    end_engine()


def test_what_was_asked_and_not_answered_is_not_asked_again(no_spark: Engine) -> None:
    jvm: java.Java = no_spark.jvm
    told = jvm.java.util.ArrayList()
    client = no_spark.gateway._gateway_client

    class Breaks:
        def __init__(self, stream: BinaryIO) -> None:
            self._stream = stream

        def readline(self) -> bytes:
            self._stream.readline()
            return b""

        def close(self) -> None:
            self._stream.close()

    for line in client.deque:
        line.stream = Breaks(line.stream)
    with pytest.raises(Py4JError, check=java.is_connection_broken):
        told.add("once")
    assert list(told) == ["once"]


def test_the_rest_of_a_long_answer_is_not_waited_for(no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java writes 8 kB, and more once these are acknowledged, which the kernel of whoever asks and answers in turn puts off."""
    at_once: list[int] = []

    class Watched(socket.socket):
        def recv_into(self, *given: Any, **more: Any) -> int:
            at_once.append(self.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
            return super().recv_into(*given, **more)

    monkeypatch.setattr(socket, "socket", Watched)
    no_spark.jvm.java.lang.System.nanoTime()  # the class is known from here on
    no_spark.gateway._gateway_client.deque.clear()  # the next call makes a line of its own
    for _ in range(3):
        assert no_spark.jvm.java.lang.String("long" * 5_000).strip() == "long" * 5_000
    assert len(at_once) > 6 and all(at_once), at_once


def test_a_snapshot_and_a_name_are_one_call_each(lake: Lake, no_spark: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)))
    lake.delete(name, "offset = 1")
    head_in_java = no_spark.table(name).currentSnapshot()
    no_spark.jvm.org.apache.iceberg.catalog.TableIdentifierParser.fromJson  # noqa: B018  # py4j looks the class up now, not among the counted calls
    calls: list[str] = []
    send = GatewayClient.send_command

    def counted(client: GatewayClient, command: str, *given: object, **more: object) -> object:
        if not command.startswith("m\nd"):  # Java may forget an object that Python has collected
            calls.append(command)
        return send(client, command, *given, **more)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    known = read_snapshot(head_in_java)
    assert len(calls) == 1, calls
    dotted = java.identifier(no_spark, ("a.b", "c.d"))
    assert len(calls) == 2, calls
    assert (list(dotted.namespace().levels()), dotted.name()) == (["a.b"], "c.d"), "a dot begins no further level"
    head = tables().load(name).current_snapshot()
    assert head is not None and head.summary is not None
    assert (known.snapshot_id, known.sequence_number, known.parent_id) == (head.snapshot_id, head.sequence_number, head.parent_snapshot_id)
    assert known.summary == {"operation": head.summary.operation.value, **head.summary.additional_properties}
    assert known.operation == head.summary.operation.value


def test_nobody_without_the_secret_is_heard(no_spark: Engine) -> None:
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JError

    port = _port(no_spark)
    for secret in (None, "guessed"):
        other = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret))
        with pytest.raises(Py4JError):
            other.jvm.java.lang.System.getProperty("user.home")


def test_it_dies_with_its_process(lake: Lake) -> None:
    program = (
        "import os, signal; from message_lifecycle.stores.iceberg.engine import engine_of_process; jvm = engine_of_process().jvm\n"
        "print(jvm.java.lang.ProcessHandle.current().pid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    until = time.monotonic() + ENDS_WITHIN_SECONDS
    while _lives(int(killed.stdout)) and time.monotonic() < until:
        time.sleep(0.1)  # of a grandchild nothing tells the end
    assert not _lives(int(killed.stdout))


def test_what_needs_no_spark_does_not_import_it(lake: Lake) -> None:
    name = lake.topic()
    program = (
        "import sys\nfrom message_lifecycle.model.names import TopicName\n"
        "from message_lifecycle.stores.iceberg.engine import engine_of_process\n"
        f"print(engine_of_process().table(TopicName.parse({str(name)!r})).name(), 'pyspark' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.strip().endswith(f"{name.table()} False"), told


def test_what_spark_has_submitted_runs_its_tasks_on_spark(lake: Lake, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nfrom message_lifecycle.stores.iceberg.engine import engine_of_process\n"
        "found = engine_of_process()\npid = lambda _item, _share: os.getppid()\n"
        "worker = found.run([1], pid, description='a test')[0]\n"
        "print('found', type(found).__name__, found.lake.name(),\n"
        "      found.jvm.java.lang.ProcessHandle.current().pid() == os.getppid(), worker != os.getppid())\n"
    )
    submit = Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit"
    output = subprocess.run([submit, program], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "found SparkEngine lake True True" in output


def test_a_configuration_without_the_catalog_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="no catalog 'lake'"):
        java.settings()


def test_settings_are_read_as_spark_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    lines = [
        "# a remark", "", "spark.sql.catalog.lake a.b.Catalog", "spark.sql.catalog.lake.uri=jdbc:x://h:1/lake?a=b",
        "  spark.sql.catalog.lake.jdbc.password   a\\\\b c ", "spark.empty",
    ]  # fmt: skip
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    assert java.settings() == {
        "spark.sql.catalog.lake": "a.b.Catalog",
        "spark.sql.catalog.lake.uri": "jdbc:x://h:1/lake?a=b",
        "spark.sql.catalog.lake.jdbc.password": "a\\b c",
        "spark.empty": "",
    }


def test_a_commit_starts_no_process_for_its_files(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    for name in ("chmod", "ls", "stat"):
        said = tmp_path / name
        said.write_text(f"#!/bin/sh\necho {name} >> {asked}\n")
        said.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    topic = lake.topic()
    found = java.Jvm(java.settings())
    try:
        table = found.lake.loadTable(java.identifier(found, (topic.namespace, topic.table())))
        table.updateProperties().set("a.test.asks", "yes").commit()
    finally:
        found.end()
    assert engine_of_process().table(topic).properties().get("a.test.asks") == "yes"
    assert not asked.exists()


def test_a_class_is_asked_for_once() -> None:
    found = engine_of_process().jvm
    texts = found.java.lang.String
    assert found.java.lang.String is texts
    assert found.java.lang.String.valueOf is texts.valueOf
    assert found.java.lang.Integer.MAX_VALUE == 2**31 - 1
    assert texts("as it is") == "as it is"


@pytest.mark.parametrize("told", [{}, {"a": "b", "é \n": '"\\ü\u2028', "": ""}], ids=["empty", "any signs"])
def test_a_map_of_texts_comes_over_whole(told: dict[str, str]) -> None:
    found = engine_of_process().jvm.java.util.HashMap()
    for key, value in told.items():
        found.put(key, value)
    assert java.entries(found) == told


def _port(found: Engine) -> int:
    of_process: java.Java = found
    return int(of_process.gateway.gateway_parameters.port)


def _pid(found: Engine) -> int:
    jvm: java.Java = found.jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _lives(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except OSError:
        return False
