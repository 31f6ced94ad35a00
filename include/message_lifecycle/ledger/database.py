"""The ledger's database: transactions, its clock, and the one place where its failures become named errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from sqlalchemy import URL, Connection, Engine, StaticPool, Table, create_engine, event, func, make_url, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError

from message_lifecycle.ledger.errors import InvalidLedgerUrl, LedgerUnavailable
from message_lifecycle.model.instants import Instant, of_datetime

Clock = Callable[[], Instant]

CONNECT_SECONDS = 5
# Any number; taken for the length of a migration, by every program that migrates this database.
_ALONE = 7_310_579_284
_ROWS_AT_ONCE = 1_000
_IN_MEMORY = (None, "", ":memory:")
_LOCK_NOT_AVAILABLE = "55P03"


class LockTimeout(Exception):
    """A lock was not free within the time that its taker had set; becomes TopicBusy."""


class Database:
    """One engine. Every `reading` and `writing` block is one transaction; failures of the server are LedgerUnavailable."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = _parse(url)
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self.place = _place(self.url)
        self.engine = _engine(self.url)
        self.is_scratch = not self.is_postgres and self.url.database in _IN_MEMORY
        """In memory: nothing can have been there before, and it ends with the process."""
        self.locks: dict[str, Lock] = {}
        """Of a scratch database, which nobody else can open: they end with it."""
        self._clock = clock

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.answering(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A transaction that sees one state from beginning to end and can write nothing."""
        with self.answering(), self.engine.connect() as connection:
            if self.is_postgres:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """Commits at the end of the block, or nothing. `alone`: no other such block runs at the same time."""
        with self.answering(), self.engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                if alone and self.is_postgres:
                    connection.execute(select(func.pg_advisory_xact_lock(_ALONE)))
                yield connection

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The one place where a failure of the server is caught."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise LockTimeout from None
            # Not the SQLAlchemy text: the first line of the driver's says it in words and holds no values.
            reason = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
            raise LedgerUnavailable(self.place, reason) from error

    def now(self, connection: Connection) -> Instant:
        """The database's clock (CLK-1); an injected one in tests and scenarios. SQLite has none but the machine's."""
        if self._clock is not None:
            return self._clock()
        if not self.is_postgres:
            return Instant(time.time_ns() // 1_000)
        return of_datetime(connection.execute(select(func.now())).scalar_one())

    def close(self) -> None:
        self.engine.dispose()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Not the text itself: what cannot be read may still hold a password.
        raise InvalidLedgerUrl("it is not a database URL") from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return parsed
    raise InvalidLedgerUrl(f"{parsed.drivername} is not supported")


def _place(url: URL) -> str:
    """The address for people: no user, no password, no options."""
    if url.get_backend_name() == "sqlite":
        return url.database or "memory"
    return f"{url.host or 'the local socket'}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        options = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_SECONDS}
        return create_engine(
            url,
            hide_parameters=True,
            pool_pre_ping=True,
            connect_args={"application_name": "message_lifecycle", **options},
        )
    # In memory there is one connection, or each would have a database of its own; also for the thread in which a commit asks back.
    pool = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}} if url.database in _IN_MEMORY else {}
    engine = create_engine(url, hide_parameters=True, **pool)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("pragma busy_timeout = 30000")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that first reads and then writes would fail, not wait, when another one writes in between.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


def put(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row, or set its other columns where the key is there."""
    _insert_or_set(connection, table, values, set(values) - _keys(table))


def lock_row(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row, or leave it as it is; until the transaction ends, others who do the same wait."""
    # Setting a key to itself changes nothing and takes the row's lock.
    _insert_or_set(connection, table, values, _keys(table))


def add_if_absent(connection: Connection, table: Table, **values: object) -> bool:
    """Insert a row, or leave the one that is there; whether it was inserted."""
    # Not by the count of rows, which of an insertion psycopg does not tell.
    inserted = _insert(connection)(table).values(values).on_conflict_do_nothing().returning(*table.primary_key)
    return connection.execute(inserted).first() is not None


def _keys(table: Table) -> set[str]:
    return {column.name for column in table.primary_key}


def _insert_or_set(connection: Connection, table: Table, values: dict[str, object], names: set[str]) -> None:
    statement = _insert(connection)(table).values(values)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=sorted(_keys(table)), set_={name: statement.excluded[name] for name in sorted(names)}
        )
    )


def _insert(connection: Connection) -> Callable[[Table], postgresql.Insert | sqlite.Insert]:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def add_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert many rows, a few hundred in one statement."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        connection.execute(table.insert(), rows[start : start + _ROWS_AT_ONCE])
