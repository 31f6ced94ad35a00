"""A ledger is made once, and a program uses only a ledger of its own version."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.ledger.database import Database
from message_lifecycle.ledger.schema import SCHEMA_VERSION
from message_lifecycle.model.instants import Instant
from tests.errors import raises
from tests.ledgers import TOPIC, plan_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def test_an_empty_database_is_named_with_the_command(url: str) -> None:
    with raises("LedgerNotMigrated", match="has no ledger yet. Run `lifecycle ledger migrate`"):
        open_ledger(url)


def test_the_ledger_is_made_once(url: str) -> None:
    assert migrate_ledger(url) == (0, SCHEMA_VERSION)
    with open_ledger(url) as ledger:
        identity = ledger.identity()
        ledger.add_plan(plan_of(), run="r")
    assert migrate_ledger(url) == (SCHEMA_VERSION, SCHEMA_VERSION)
    with open_ledger(url) as ledger:
        assert ledger.identity() == identity
        assert [plan.plan_id for plan in ledger.plans()] == [plan_of().plan_id]


@pytest.mark.parametrize(
    ("version", "code"), [(SCHEMA_VERSION + 1, "LedgerTooNew"), (SCHEMA_VERSION - 1, "LedgerTooOld"), (1, "LedgerTooOld")]
)
def test_a_ledger_of_another_version_is_refused_and_stays_as_it_is(url: str, version: int, code: str) -> None:
    migrate_ledger(url)
    database = Database(url)
    with database.writing() as connection:
        connection.execute(text("update lifecycle_meta set version = :version"), {"version": version})
    for use in (open_ledger, migrate_ledger):
        with raises(code, match=f"is of version {version}, .*{SCHEMA_VERSION}"):
            use(url)
    with database.reading() as connection:
        assert connection.execute(text("select version from lifecycle_meta")).scalar_one() == version
    database.close()


def test_the_ledger_has_one_identity(url: str) -> None:
    migrate_ledger(url)
    database = Database(url)
    with pytest.raises(Exception, match="CHECK"), database.writing() as connection:
        connection.execute(text("insert into lifecycle_meta (id, version, uuid, sequence, event) values (2, 1, 'u', 0, 0)"))
    database.close()


def test_each_ledger_in_memory_is_its_own() -> None:
    with open_ledger("sqlite://") as one, open_ledger("sqlite://") as other:
        one.add_plan(plan_of(), run="r")
        one.commit(TOPIC, "c", 0, 5, Instant(1))
        assert one.consumers(TOPIC) and not other.consumers(TOPIC)
        with open_ledger("sqlite://") as later:
            assert not later.consumers(TOPIC)
            assert len({ledger.identity()[0] for ledger in (one, other, later)}) == 3
