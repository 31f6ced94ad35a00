"""Addresses, failures of the database, locks, and what opening a ledger costs."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import text

from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.model.errors import TopicBusy
from message_lifecycle.model.instants import Instant
from tests.errors import raises
from tests.ledgers import OTHER, TOPIC, plan_of

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url", ["", "not a url", f"mysql://u:{SECRET}@h/d", f"postgresql+psycopg2://u:{SECRET}@h/d", f"u:{SECRET}@host:5432"]
)
def test_an_address_that_cannot_be_a_ledger_is_named_without_its_password(url: str) -> None:
    with raises("InvalidLedgerUrl", match="LIFECYCLE_LEDGER_URL") as error:
        open_ledger(url)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "url", [f"postgresql://u:{SECRET}@127.0.0.1:1/ledger", f"postgresql://127.0.0.1:1/ledger?user=u&password={SECRET}"]
)
def test_a_database_that_is_down_is_named_without_its_password(url: str) -> None:
    with raises("LedgerUnavailable", match="LIFECYCLE_LEDGER_URL") as error:
        open_ledger(url)
    assert "127.0.0.1:1/ledger" in str(error.value)
    assert SECRET not in str(error.value)


def test_a_file_that_is_no_database_or_in_no_folder_is_named(tmp_path: Path) -> None:
    with raises("LedgerUnavailable", match="no such folder"):
        open_ledger(f"sqlite:///{tmp_path}/no such folder/x.db")


def test_a_failure_in_the_middle_writes_nothing(ledger: Ledger) -> None:
    """Each write is one transaction: the plan's last row cannot be written, so none of it is there."""
    with ledger._database.writing() as connection:
        connection.execute(text("alter table lifecycle_plans rename to elsewhere"))
    with pytest.raises(Exception, match="lifecycle_plans"):
        ledger.add_plan(plan_of(), run="r")
    with ledger._database.reading() as connection:
        for table in ("lifecycle_topics", "lifecycle_plan_documents", "lifecycle_plan_ranges", "lifecycle_runs"):
            assert connection.execute(text(f"select count(*) from {table}")).scalar_one() == 0, table


def test_a_topic_has_one_worker_at_a_time(ledger: Ledger) -> None:
    with ledger.lock(TOPIC):
        with pytest.raises(TopicBusy) as refused, ledger.lock(TOPIC, wait_seconds=0):
            pytest.fail("two hold the lock")
        assert refused.value.topic == str(TOPIC)
        with ledger.lock(OTHER, wait_seconds=0), ledger.lock(TOPIC, wait_seconds=0, purpose="ingest"):
            pass
    with ledger.lock(TOPIC, wait_seconds=0):
        pass


def test_a_lock_ends_with_an_error_too(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.lock(TOPIC):
        raise ZeroDivisionError
    with ledger.lock(TOPIC, wait_seconds=0):
        pass


def test_a_lock_can_be_waited_for(ledger: Ledger) -> None:
    waits, done = threading.Event(), threading.Event()

    def work() -> None:
        waits.set()
        with ledger.lock(TOPIC, wait_seconds=None):
            done.set()

    with ledger.lock(TOPIC):
        other = threading.Thread(target=work)
        other.start()
        assert waits.wait(10)
        assert not done.is_set()
    other.join(10)
    assert done.is_set()


def test_two_openings_of_one_file_share_locks_and_two_in_memory_do_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)
    with open_ledger(url) as one, open_ledger(url) as other, one.lock(TOPIC), pytest.raises(TopicBusy), other.lock(TOPIC, wait_seconds=0):
        pass
    with open_ledger("sqlite://") as one, open_ledger("sqlite://") as other, one.lock(TOPIC), other.lock(TOPIC, wait_seconds=0):
        pass


HOLD = """
import sys
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.names import TopicName
with open_ledger(sys.argv[1]) as ledger, ledger.lock(TopicName(stream="shop", topic="orders")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_share_the_locks_of_a_file_and_a_killed_one_gives_them_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)
    with (
        subprocess.Popen([sys.executable, "-c", HOLD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        open_ledger(url) as ledger,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(TopicBusy), ledger.lock(TOPIC, wait_seconds=0.1):
            pytest.fail("two hold the lock")
        process.kill()
        with ledger.lock(TOPIC, wait_seconds=30):
            pass


def test_opening_a_ledger_and_asking_what_is_due_loads_nothing_heavy() -> None:
    """`lifecycle due` runs every few seconds on idle topics."""
    program = (
        "import sys; from message_lifecycle.ledger import open_ledger; l = open_ledger('sqlite://'); l.due_states(); l.waiting(); "
        "from message_lifecycle.model.names import TopicName; l.consumers(TopicName(stream='a', topic='b')); "
        "print([n for n in ('pydantic', 'pyspark', 'pandas', 'airflow', 'pyiceberg') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_ledger_in_memory_answers_the_thread_in_which_a_commit_asks_back() -> None:
    ledger, found = open_ledger("sqlite://"), list[object]()
    asking = threading.Thread(target=lambda: found.append(ledger.identity()))
    asking.start()
    asking.join()
    assert found == [ledger.identity()]


@pytest.mark.parametrize(("ahead", "refused"), [(60, False), (61, True), (7200, True), (-60, False), (-61, True)])
def test_a_host_clock_that_is_beside_the_ledgers_locks_no_topic(ahead: int, refused: bool) -> None:
    now = Instant(1_700_000_000 * 1_000_000)
    with (
        open_ledger("sqlite://", clock=lambda: now, host_clock=lambda: Instant(now + ahead * 1_000_000), skew_us=60_000_000) as ledger,
        raises("ClockSkewed") if refused else nullcontext(),
        ledger.lock(TOPIC),
    ):
        pass
