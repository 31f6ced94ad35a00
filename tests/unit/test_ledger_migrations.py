"""A ledger moves on in steps, each whole or not at all, and is used only by a program that knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, inspect, select, text

from message_lifecycle.ledger import migrate_ledger, open_ledger, tables
from message_lifecycle.ledger.database import Database, topic_of
from message_lifecycle.ledger.migrations import STEPS, migrate
from message_lifecycle.model.instants import Instant
from tests.errors import raises
from tests.ledgers import TOPIC, plan_of
from tests.older_plans import as_it_was, recorded_in

NEXT = len(STEPS) + 1


def add_region(connection: Connection) -> None:
    """A step as a later version may bring one."""
    connection.exec_driver_sql("alter table lifecycle_consumers add column region text not null default 'here'")


def break_off(connection: Connection) -> None:
    connection.exec_driver_sql("create table lifecycle_half_done (a text)")
    raise RuntimeError("the power went")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def test_an_empty_database_is_named_with_the_command(url: str) -> None:
    with raises("LedgerNotMigrated", match="has no ledger yet. Run `lifecycle ledger migrate`"):
        open_ledger(url)


def test_migrating_makes_the_ledger_once(url: str) -> None:
    assert migrate_ledger(url) == (0, len(STEPS))
    with open_ledger(url) as ledger:
        identity = ledger.identity()
    assert migrate_ledger(url) == (len(STEPS), len(STEPS))
    with open_ledger(url) as ledger:
        assert ledger.identity() == identity


def test_a_ledger_with_data_takes_a_later_step_alone(url: str) -> None:
    migrate_ledger(url)
    with open_ledger(url) as ledger:
        ledger.add_plan(plan_of(), run="r")
        ledger.commit(TOPIC, "c", 0, 5, Instant(1))
        identity = ledger.next_identity(TOPIC)
    database = Database(url)
    assert migrate(database, steps=(*STEPS, add_region)) == (len(STEPS), NEXT)
    assert migrate(database, steps=(*STEPS, add_region)) == (NEXT, NEXT)
    with database.reading() as connection:
        assert connection.execute(text("select consumer, region from lifecycle_consumers")).all() == [("c", "here")]
        assert connection.execute(text("select plan_id from lifecycle_plans")).scalar_one() == plan_of().plan_id
        assert connection.execute(text("select uuid, sequence from lifecycle_meta")).one() == identity
    database.close()
    with raises("LedgerTooNew", match=f"is of version {NEXT}, this program knows versions up to {len(STEPS)}\\."):
        open_ledger(url)
    with raises("LedgerTooNew"):
        migrate_ledger(url)


def test_consumers_from_before_there_were_replicas_are_none(url: str) -> None:
    database = Database(url)
    assert migrate(database, steps=STEPS[:1]) == (0, 1)
    with database.writing() as connection:
        connection.execute(
            text("insert into lifecycle_consumers (topic, consumer, partition, \"offset\") values ('shop/orders', 'c', 0, 5)")
        )
    database.close()
    with raises("LedgerNotMigrated"):
        open_ledger(url)
    assert migrate_ledger(url) == (1, len(STEPS))
    with open_ledger(url) as ledger:
        assert [(p.consumer, p.offset, p.kind) for p in ledger.consumers(TOPIC)] == [("c", 5, "consumer")]


def test_a_step_that_fails_leaves_the_version_before_it(url: str) -> None:
    database = Database(url)
    with pytest.raises(RuntimeError):
        migrate(database, steps=(*STEPS, break_off))
    with database.reading() as connection:
        assert not inspect(connection).has_table("lifecycle_half_done")
    database.close()
    with open_ledger(url) as ledger:  # at the version before, and whole
        assert ledger.history() == []


def test_a_ledger_of_an_earlier_version_must_be_migrated(url: str) -> None:
    migrate_ledger(url)
    database = Database(url)
    with database.writing() as connection:
        connection.execute(text("update lifecycle_meta set version = 0"))
    database.close()
    with raises("LedgerNotMigrated"):
        open_ledger(url)


def shape(engine: Engine) -> dict[str, Any]:
    """Tables as the database tells them."""
    found = inspect(engine)
    return {
        name: {
            "columns": {(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(name)},
            "key": found.get_pk_constraint(name)["constrained_columns"],
            "indexes": {(i["name"], tuple(i["column_names"]), bool(i["unique"])) for i in found.get_indexes(name)},
        }
        for name in found.get_table_names()
    }


def rows_of(connection: Connection, columns: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Of each table the columns that are named, in no order."""
    tables_now, found = tables.metadata.tables, {}
    for name, names in columns.items():
        rows = connection.execute(select(*(tables_now[name].c[column] for column in names)))
        found[name] = sorted((dict(row._mapping) for row in rows), key=repr)
    return found


def wanted_rows(file: str) -> dict[str, list[dict[str, Any]]]:
    """As that version recorded them, without the version."""
    found: dict[str, list[dict[str, Any]]] = {table: list(map(dict, rows)) for table, rows in recorded_in(file)["rows"].items() if rows}
    del found["lifecycle_meta"][0]["version"]
    return {table: sorted(rows, key=repr) for table, rows in found.items()}


@pytest.mark.parametrize(("file", "found"), [("format_3", 4), ("format_4_first", 5), ("format_4", 5), ("format_5", 10)])
def test_a_ledger_of_each_earlier_version_comes_to_this_one_with_all_its_rows(file: str, found: int, tmp_path: Path) -> None:
    url, wanted = as_it_was(file, tmp_path), wanted_rows(file)
    if found < len(STEPS):
        with raises("LedgerNotMigrated"):
            open_ledger(url)
    assert migrate_ledger(url) == (found, len(STEPS))
    migrated, new = create_engine(url), create_engine(f"sqlite:///{tmp_path}/new.db")
    migrate_ledger(str(new.url))
    assert shape(migrated) == shape(new)
    with migrated.connect() as connection:
        assert rows_of(connection, {table: list(rows[0]) for table, rows in wanted.items()}) == wanted
    for engine in (migrated, new):
        engine.dispose()
    with open_ledger(url) as ledger:
        for row in wanted["lifecycle_plans"]:
            assert ledger.record(row["plan_id"]).requested_by == row.get("requested_by")
        assert [plan.topic.topic for plan in ledger.waiting()] == [], "of an earlier version none waits"
        assert {progress.kind for topic in wanted["lifecycle_topics"] for progress in ledger.consumers(topic_of(topic["topic"]))} == {
            "consumer"
        }


@pytest.mark.parametrize(("file", "version"), [("format_3", 4), ("format_4_first", 5), ("format_4", 5), ("format_5", 10)])
def test_no_step_was_edited_since_a_version_made_its_tables_by_it(file: str, version: int, tmp_path: Path) -> None:
    then, now = create_engine(as_it_was(file, tmp_path)), create_engine(f"sqlite:///{tmp_path}/now.db")
    database = Database(str(now.url))
    migrate(database, steps=STEPS[:version])
    database.close()
    statements = text("select sql from sqlite_master where sql is not null order by rowid")
    with then.connect() as one, now.connect() as other:
        assert one.execute(statements).scalars().all() == other.execute(statements).scalars().all()
    for engine in (then, now):
        engine.dispose()


def test_the_steps_make_the_tables_that_the_code_uses(url: str, tmp_path: Path) -> None:
    migrate_ledger(url)
    wanted = create_engine(f"sqlite:///{tmp_path}/wanted.db")
    tables.metadata.create_all(wanted)
    made = create_engine(url)
    assert shape(made) == shape(wanted)
    with made.connect() as one, wanted.connect() as other:
        partial = text("select name, replace(lower(substr(sql, instr(lower(sql), 'where'))), '  ', ' ') from sqlite_master where type = 'index' and lower(sql) like '%where%' order by name")  # fmt: skip
        assert one.execute(partial).all() == other.execute(partial).all() != []
    made.dispose()
    wanted.dispose()


def test_a_ledger_in_memory_is_one_that_the_steps_have_made_and_its_own(tmp_path: Path) -> None:
    stepped = Database(f"sqlite:///{tmp_path}/stepped.db")
    migrate(stepped)
    with open_ledger("sqlite://") as one, open_ledger("sqlite://") as other:
        assert shape(one._database.engine) == shape(stepped.engine)
        one.add_plan(plan_of(), run="r")
        one.commit(TOPIC, "c", 0, 5, Instant(1))
        assert one.consumers(TOPIC) and not other.consumers(TOPIC)
        with open_ledger("sqlite://") as later:
            assert not later.consumers(TOPIC)
            assert len({ledger.identity()[0] for ledger in (one, other, later)}) == 3
    stepped.close()
