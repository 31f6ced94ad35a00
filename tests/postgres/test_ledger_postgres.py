"""The ledger on PostgreSQL: everything that it does on SQLite, and what only a server can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from sqlalchemy import create_engine, text

from lifecycle_local.postgres import Address
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger, restore_ledger
from message_lifecycle.ledger.backup import BackupWriter
from message_lifecycle.ledger.schema import SCHEMA_VERSION
from message_lifecycle.model.document import OwnChanges, OwnSettings, Synced
from message_lifecycle.model.erasure import KeyDigest, KeyDigests
from message_lifecycle.model.errors import InvalidSetting, LifecycleError, OpenPlan, TopicBusy, code_of
from message_lifecycle.model.outcome import SourceFile
from tests.errors import raises
from tests.ledgers import AS_OF, OTHER, TOPIC, alter, outcome_of, plan_of, report_of, staged_of
from tests.unit.test_ledger_backup import contents, fill
from tests.unit.test_ledger_batches import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_documents import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_erasures import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_forgetting import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_identity import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_plans import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_runs import *  # noqa: F403 - the same tests, on PostgreSQL
from tests.unit.test_ledger_topics import *  # noqa: F403 - the same tests, on PostgreSQL

pytestmark = pytest.mark.postgres

T = TypeVar("T")


def at_once(*calls: Callable[[], T]) -> list[T | LifecycleError]:
    """Results of calls that all begin together."""
    start = threading.Barrier(len(calls))

    def one(call: Callable[[], T]) -> T | LifecycleError:
        start.wait(30)
        try:
            return call()
        except LifecycleError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_the_clock_is_the_databases(url: str, beside: psycopg.Connection) -> None:
    def now() -> int:
        row = beside.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").fetchone()
        assert row is not None
        return int(row[0])

    with open_ledger(url) as ledger:
        before, found, after = now(), ledger.now(), now()
    assert before <= found <= after


def test_a_new_database_has_no_ledger_until_it_is_migrated_and_then_one(empty_url: str) -> None:
    with raises("LedgerNotMigrated"):
        open_ledger(empty_url)
    reached = at_once(*[lambda: migrate_ledger(empty_url)] * 3)
    assert {to for _, to in reached} == {SCHEMA_VERSION}
    assert [found for found, _ in reached].count(0) == 1, "one of them makes the tables"
    with open_ledger(empty_url) as ledger:
        assert ledger.identity()[1] == 0


def test_a_plans_document_is_not_compressed(url: str) -> None:
    """Compression took most of the time of recording a plan of 60,000 files."""
    storage = "select attstorage::text from pg_attribute where attrelid = 'lifecycle_plan_documents'::regclass and attname = 'document'"
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.execute(text(storage)).scalar_one() == "e"
    engine.dispose()


def test_a_wrong_password_is_named_and_not_shown(server: Address, database: str) -> None:
    wrong = server.url(database).replace(server.password, "hunter2")
    with raises("LedgerUnavailable", match="password authentication failed") as error:
        open_ledger(wrong)
    assert "hunter2" not in str(error.value)


def test_numbers_are_given_once(ledger: Ledger) -> None:
    found = at_once(*[lambda: [ledger.next_identity(TOPIC)[1] for _ in range(10)]] * 4)
    assert sorted(number for numbers in found for number in numbers) == list(range(1, 41))


def test_of_two_plans_at_once_one_is_open(ledger: Ledger) -> None:
    """DEL-1."""
    plans = [plan_of(as_of=AS_OF + n) for n in range(4)]
    found = at_once(*[lambda plan=plan: ledger.add_plan(plan, run="r") for plan in plans])
    assert [type(result) for result in found].count(OpenPlan) == 3
    assert len(ledger.plans()) == len(ledger.run_entries("r")) == 1


def test_the_same_plan_at_once_is_one_plan(ledger: Ledger) -> None:
    found = at_once(*[lambda: ledger.add_plan(plan_of(), run="r")] * 4)
    assert {result.plan for result in found} == {plan_of()}
    assert len(ledger.plans()) == 1


def test_of_two_outcomes_at_once_the_first_stands(ledger: Ledger) -> None:
    for n in range(5):
        plan = plan_of(as_of=AS_OF + n)
        ledger.add_plan(plan)
        ledger.record_staged(staged_of(plan))
        ledger.record_report(staged_of(plan), report_of(plan))
        given = [outcome_of(plan, detail=str(number)) for number in range(4)]
        found = at_once(*[lambda outcome=outcome: ledger.record_outcome(outcome) for outcome in given])
        assert set(found) == {ledger.record(plan.plan_id).outcome}
        assert len(ledger.history(limit=50)) == n + 1


def test_two_runners_that_keep_one_undo_at_once_keep_it_once(ledger: Ledger) -> None:
    for n in range(10):
        keep = partial(ledger.set_undone, TOPIC, f"plan {n}", "the undo", [])
        assert at_once(*[keep] * 4) == [None] * 4
        assert ledger.undone_by(f"plan {n}") == "the undo"


def test_of_two_batches_at_once_one_takes_the_file(ledger: Ledger) -> None:
    files = [SourceFile(path="a", size_bytes=1, sha256="x")]
    found = at_once(*[lambda n=n: len(ledger.begin_batch(TOPIC, str(n), files)) for n in range(4)])
    assert found.count(1) == 1
    assert [code_of(result) for result in found].count("OpenBatch") == 3


def test_writers_of_one_topic_do_not_wait_for_each_other_for_ever(ledger: Ledger) -> None:
    """Rows are always locked in one order: a topic's, then the ledger's one row, which every writer needs."""

    def identities() -> None:
        for _ in range(25):
            ledger.next_identity(TOPIC)
            ledger.accept(TOPIC, ledger.identity())

    def plans() -> None:
        for n in range(25):
            plan = plan_of(as_of=AS_OF + n)
            ledger.add_plan(plan, run="r")
            ledger.record_run_outcome("r", outcome_of(plan, "failed"))
            ledger.record_outcome(outcome_of(plan, "superseded"))

    def batches() -> None:
        for n in range(25):
            ledger.begin_batch(TOPIC, str(n), [SourceFile(path=str(n), size_bytes=1, sha256="x")])
            ledger.finish_batch(str(n), snapshot_id=1, rows=1, quarantined=0)

    assert at_once(identities, plans, batches) == [None, None, None]


def test_a_broken_connection_is_named_writes_nothing_and_is_replaced(ledger: Ledger, beside: psycopg.Connection) -> None:
    with raises("LedgerUnavailable"), ledger._database.writing() as connection:
        connection.exec_driver_sql("update lifecycle_meta set sequence = 99")
        end_sessions(beside)
        connection.exec_driver_sql("select 1")
    assert ledger.identity()[1] == 0


def end_sessions(beside: psycopg.Connection) -> None:
    beside.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'message_lifecycle'"
    )


def test_a_run_goes_on_when_the_server_has_ended_its_lock(ledger: Ledger, beside: psycopg.Connection) -> None:
    """The lock saves work; the fence keeps runs apart."""
    done = False
    with ledger.lock(TOPIC):
        end_sessions(beside)
        done = True
    assert done
    with ledger.lock(TOPIC):
        pass


def test_a_topic_is_locked_across_connections(url: str) -> None:
    with open_ledger(url) as one, open_ledger(url) as other:
        with one.lock(TOPIC):
            with pytest.raises(TopicBusy), other.lock(TOPIC, wait_seconds=0.01):
                pytest.fail("two hold the lock")
            with other.lock(OTHER, wait_seconds=0.01), other.lock(TOPIC, wait_seconds=0.01, purpose="ingest"):
                pass
        with pytest.raises(ZeroDivisionError), other.lock(TOPIC):
            raise ZeroDivisionError
        with one.lock(TOPIC):
            pass


def test_a_lock_is_waited_for(url: str, beside: psycopg.Connection) -> None:
    got = threading.Event()

    def wait() -> None:
        with open_ledger(url) as other, other.lock(TOPIC, wait_seconds=None):
            got.set()

    waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())"
    with open_ledger(url) as ledger, ledger.lock(TOPIC):
        thread = threading.Thread(target=wait)
        thread.start()
        while beside.execute(waits).fetchone() != (1,):
            assert thread.is_alive()
        assert not got.is_set()
    thread.join(30)
    assert got.is_set()


HOLD = """
import sys
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.names import TopicName
with open_ledger(sys.stdin.readline().strip()) as ledger, ledger.lock(TopicName(stream="shop", topic="orders")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_ends_when_its_process_is_killed(url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(url, file=process.stdin, flush=True)
        assert process.stdout.readline() == "held\n"
        with open_ledger(url) as ledger:
            with pytest.raises(TopicBusy), ledger.lock(TOPIC, wait_seconds=0.01):
                pytest.fail("two hold the lock")
            os.kill(process.pid, signal.SIGKILL)
            with ledger.lock(TOPIC, wait_seconds=30):
                pass


def test_a_backup_shows_one_instant(url: str, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.gz"
    with open_ledger(url) as ledger, open_ledger(url) as other:
        ledger.add_plan(plan_of())
        table = BackupWriter.table

        def write_meanwhile(writer: BackupWriter, name: str, columns: list[str]) -> None:
            if not other.plans(OTHER):
                other.add_plan(plan_of(OTHER))
            table(writer, name, columns)

        monkeypatch.setattr(BackupWriter, "table", write_meanwhile)
        found = ledger.backup(path)
        assert len(other.plans()) == 2
    for name in ("lifecycle_plans", "lifecycle_plan_documents", "lifecycle_plan_ranges", "lifecycle_topics"):
        assert found.counts[name] == 1, name


def test_backups_pass_between_sqlite_and_postgresql(empty_url: str, tmp_path: Path) -> None:
    first, last = f"sqlite:///{tmp_path}/first.db", f"sqlite:///{tmp_path}/last.db"
    migrate_ledger(first)
    with open_ledger(first, clock=lambda: AS_OF) as ledger:
        fill(ledger)
        ledger.backup(tmp_path / "1.gz")
    restore_ledger(empty_url, tmp_path / "1.gz")
    assert contents(empty_url) == contents(first)
    with open_ledger(empty_url) as ledger:
        ledger.backup(tmp_path / "2.gz")
    restore_ledger(last, tmp_path / "2.gz")
    assert contents(last) == contents(first)


def test_of_two_alterations_at_once_that_do_not_go_together_one_is_kept(ledger: Ledger) -> None:
    """SNP-5: each is checked with what the other has kept, or is kept before the other is checked."""

    def together(after: OwnSettings) -> None:
        if len(after.documents.get("d", {})) > 1:
            raise InvalidSetting(where="d", key="snapshot_interval", value=1, allowed="one of both")

    def altering(setting: str) -> Callable[[], None]:
        return lambda: ledger.alter_own_settings(TOPIC, OwnChanges(documents={"d": {setting: 7}}), check=together)

    for _ in range(20):
        told = at_once(altering("snapshot_interval"), altering("snapshot_threshold"))
        assert sorted(type(each).__name__ for each in told) == ["InvalidSetting", "NoneType"]
        assert len(ledger.settings_below_topic(TOPIC).documents["d"]) == 1
        alter(ledger, documents={"d": {"snapshot_interval": None, "snapshot_threshold": None}})


def test_of_requests_at_once_that_have_seen_the_same_row_one_replaces_it(ledger: Ledger) -> None:
    seen = None
    for turn in range(1, 21):
        wanted = [Synced(document="d", client="c", server_seq=seq, at=AS_OF) for seq in (10 * turn, 10 * turn + 1)]
        told = at_once(*(partial(ledger.replace_synced, TOPIC, "d", "c", seen=seen, to=entry) for entry in wanted))
        assert sorted(map(str, told)) == ["False", "True"]
        seen = wanted[told.index(True)]
        assert list(ledger.synced(TOPIC)) == [seen]


def test_topics_that_are_erased_at_once_are_all_in_the_receipt(ledger: Ledger) -> None:
    ledger.add_erasure(
        "e1", KeyDigests(secret="s", each=(KeyDigest(digest="d", mark="abc"),)), topics=(), forbid=False, requested_by="ada", why="a letter"
    )

    def adding(topic: int) -> Callable[[str | None], str]:
        return lambda kept: json.dumps(sorted([*json.loads(kept or "[]"), topic]))

    for turn in range(5):
        at_once(*(partial(ledger.keep_receipt, "e1", adding(4 * turn + number)) for number in range(4)))
    assert json.loads(ledger.receipt("e1")) == list(range(20))
