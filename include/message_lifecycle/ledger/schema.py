"""Creates the ledger's tables in an empty database, and refuses a ledger of another version."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from uuid import uuid4

from sqlalchemy import Connection, insert, inspect, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import ledger_not_migrated, ledger_too_new, ledger_too_old
from message_lifecycle.ledger.database import Database

SCHEMA_VERSION = 26
"""Every change of `tables` raises this number. From the first release on, each change brings a migration. Before it, the program reads no
other version.
"""


def version(connection: Connection) -> int:
    """Return the version of the ledger in this database; 0 if the database has no ledger."""
    if not inspect(connection).has_table(tables.META):
        return 0
    return int(connection.execute(select(tables.meta.c.version)).scalar_one())


def create(database: Database) -> tuple[int, int]:
    """Create the ledger's tables, unless they exist. Return the version found (0: none) and the version reached.

    Raises:
        LedgerTooNew, LedgerTooOld: Another version of the program made the ledger.
    """
    with database.writing(alone=True) as connection:
        found = version(connection)
        if found == 0:
            create_tables(connection)
            return 0, SCHEMA_VERSION
        require_version(database.place, found)
        return found, SCHEMA_VERSION


def create_tables(connection: Connection) -> None:
    """Create all tables and the identity of a new ledger, in the caller's transaction."""
    tables.metadata.create_all(connection)
    if connection.dialect.name == "postgresql":
        # Compression by the server took most of the time to record a plan of 60,000 files (0.2 of 0.35 s). The compression saved only half the space.
        connection.exec_driver_sql("alter table lifecycle_plan_documents alter column document set storage external")
    connection.execute(insert(tables.meta).values(id=1, version=SCHEMA_VERSION, uuid=str(uuid4()), sequence=0, event=0))


def create_scratch(database: Database) -> None:
    """Fill an empty in-memory database from this process's template, so that each scenario has a ledger of its own."""
    _driver(_scratch()).backup(_driver(database))
    with database.writing() as connection:
        connection.execute(update(tables.meta).values(uuid=str(uuid4())))


def require_current(database: Database) -> None:
    """Check that the database has a ledger of this version.

    Raises:
        LedgerNotMigrated: The database has no ledger.
        LedgerTooNew, LedgerTooOld: Another version of the program made the ledger.
    """
    with database.reading() as connection:
        found = version(connection)
    if found == 0:
        raise ledger_not_migrated(database.place)
    require_version(database.place, found)


def require_version(place: str, found: int) -> None:
    """Raises LedgerTooNew, LedgerTooOld."""
    if found > SCHEMA_VERSION:
        raise ledger_too_new(place, found, SCHEMA_VERSION)
    if found < SCHEMA_VERSION:
        raise ledger_too_old(place, found, SCHEMA_VERSION)


@cache
def _scratch() -> Database:
    database = Database("sqlite://")
    create(database)
    return database


def _driver(database: Database) -> sqlite3.Connection:
    with closing(database.engine.raw_connection()) as connection:
        driver = connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
