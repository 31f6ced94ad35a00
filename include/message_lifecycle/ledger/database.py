"""The ledger's database: transactions, clock and locks. Its failures become named errors here only."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Insert,
    StaticPool,
    Table,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import CompiledCacheType
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import invalid_ledger_url, ledger_unavailable
from message_lifecycle.ledger.tables import FoundRow, Query
from message_lifecycle.model.errors import TopicBusy, clock_skewed
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_to_second, from_datetime
from message_lifecycle.model.names import TopicName

Clock = Callable[[], Instant]

CONNECT_SECONDS = 5
# An arbitrary lock number. Every program that migrates this database holds the lock meanwhile.
_ALONE = 7_310_579_284
_ROWS_AT_ONCE = 1_000
_IN_MEMORY = (None, "", ":memory:")
_LOCK_NOT_AVAILABLE = "55P03"
WAIT_SECONDS = 5.0
"""Long enough for another run's publish to end, and short enough to report the busy topic soon."""

_POLL_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class _Look:
    """The records that one look has read so far.

    Attributes:
        database: The ledger's database.
        connection: The one connection of the look.
        rows: By query, the rows of each topic or table.
        now: The time of the look, read once, so that every topic is judged at the same time.
    """

    database: Database
    connection: Connection
    rows: dict[Query, dict[str, list[FoundRow]]] = field(default_factory=dict)
    now: Instant | None = None


_looking: ContextVar[_Look | None] = ContextVar("looking", default=None)


class LockTimeout(Exception):
    """A lock was not free in time. `Locks` turns this into TopicBusy."""


class Database:
    """One engine. A `writing` block is one transaction. Failures of the server are LedgerUnavailable."""

    def __init__(self, url: str, *, clock: Clock | None = None, host_clock: Clock | None = None, skew_us: int = 0) -> None:
        self.url = _parse(url)
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self.place = _place(self.url)
        self.engine = _engine(self.url)
        # Without a transaction a read saves two round trips to the server. A statement sees the newest commits either way.
        self._reader = self.engine.execution_options(isolation_level="AUTOCOMMIT") if self.is_postgres else self.engine
        self.is_scratch = not self.is_postgres and self.url.database in _IN_MEMORY
        """In memory: the database starts empty and ends with the process."""
        self.locks: dict[str, Lock] = {}
        """Locks of a scratch database. Only this process can open it, so the locks end with it."""
        self._clock, self._host_clock, self._skew_us = clock, host_clock, skew_us

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Connect for independent questions."""
        looking = self.looking()
        if looking is None:
            with self.named_server_errors(), self._reader.connect() as connection:
                yield connection
            return
        with self.named_server_errors():
            yield looking.connection
            # An open transaction would keep a writer of SQLite waiting. PostgreSQL's reader begins none.
            if looking.connection.in_transaction() and not self.is_postgres:
                looking.connection.rollback()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Hold one connection for all questions of this thread in the block, and read the records of topics once for all topics."""
        if self.looking() is not None:
            yield
            return
        with self.named_server_errors():
            connection = self._reader.connect()
        token = _looking.set(_Look(database=self, connection=connection))
        try:
            yield
        finally:
            _looking.reset(token)
            connection.close()

    def looking(self) -> _Look | None:
        """Return this thread's look at this database. None outside a look."""
        found = _looking.get()
        return found if found is not None and found.database is self else None

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Connect in a read-only transaction that sees one state from beginning to end."""
        with self.named_server_errors(), self.engine.connect() as connection:
            if self.is_postgres:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """Commit at the end of the block, or change nothing.

        Args:
            alone: Let no other such block run at the same time.
        """
        with self.named_server_errors(), self.engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                if alone and self.is_postgres:
                    connection.execute(select(func.pg_advisory_xact_lock(_ALONE)))
                yield connection

    @contextmanager
    def named_server_errors(self) -> Iterator[None]:
        """Turn failures of the server into errors. No other code catches them."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise LockTimeout from None
            # Not the SQLAlchemy text: the first line of the driver's message is readable and holds no values.
            reason = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
            raise ledger_unavailable(self.place, reason) from error

    def now(self, connection: Connection) -> Instant:
        """Return the database's time (CLK-1), or the injected clock's in tests and scenarios. SQLite has only the machine's clock."""
        if self._clock is not None:
            return self._clock()
        if not self.is_postgres:
            return _machine_clock()
        return from_datetime(connection.execute(select(func.now())).scalar_one())

    @property
    def has_real_clock(self) -> bool:
        """False if a scenario or a test brings its own time."""
        return self._clock is None

    def check_host_clock(self) -> None:
        """Compare this machine's clock, which Iceberg writes to tables, with the ledger's.

        A scenario brings its own time, and SQLite has the machine's clock. Neither needs the comparison, unless a test gives a host's
        clock.

        Raises:
            ClockSkewed: The clocks differ by more than `clock_skew`.
        """
        host = self._host_clock or (_machine_clock if self.is_postgres and self._clock is None else None)
        if host is None or not self._skew_us:
            return
        first = host()
        with self.reading() as connection:
            now = self.now(connection)
        last = host()  # the answer of a busy server takes its time
        if first > now + self._skew_us or last < now - self._skew_us:
            raise clock_skewed(host=format_to_second(last), ledger=format_to_second(now), skew_seconds=self._skew_us // MICROS_PER_SECOND)

    def close(self) -> None:
        self.engine.dispose()


def _machine_clock() -> Instant:
    return Instant(time.time_ns() // 1_000)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Not the text itself: unreadable text may still hold a password.
        raise invalid_ledger_url("it is not a database URL") from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return parsed
    raise invalid_ledger_url(f"{parsed.drivername} is not supported")


def _place(url: URL) -> str:
    """Return the address for people: no user, no password, no options."""
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
    if url.database in _IN_MEMORY and not url.query:
        made, compiled = _in_memory()
        engine = Engine(made.pool.recreate(), made.dialect, url, hide_parameters=True)
        engine.update_execution_options(compiled_cache=compiled)
    else:
        pool = _ONE_CONNECTION if url.database in _IN_MEMORY else {}
        engine = create_engine(url, hide_parameters=True, **pool)
        event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


# Otherwise each connection would have its own database. A commit may ask back from another thread.
_ONE_CONNECTION: Any = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}


@cache
def _in_memory() -> tuple[Engine, CompiledCacheType]:
    """Return the dialect and the compiled statements that all in-memory databases of this process share.

    Otherwise a scenario would spend most of its time compiling statements.
    """
    engine = create_engine("sqlite://", **_ONE_CONNECTION)
    event.listen(engine, "connect", _prepare_sqlite)
    engine.connect().close()  # the dialect asks the library what it can, once
    return engine, {}


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("pragma busy_timeout = 30000")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that first reads and then writes would fail, not wait, if another transaction writes in between.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


# Frequent statements are built once, with `bindparam` for the values. SQLAlchemy needs longer to build a statement, and to recognise it,
# than SQLite needs to answer it.


def put(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row, or update its other columns if the key exists."""
    connection.execute(_insert_or_set(connection.dialect.name, table, frozenset(values) - _keys(table)), values)


def lock_row(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row, or leave it unchanged. Others who do the same wait until the transaction ends."""
    # Setting a key to itself changes nothing and takes the row's lock.
    connection.execute(_insert_or_set(connection.dialect.name, table, _keys(table)), values)


def add_if_absent(connection: Connection, table: Table, **values: object) -> bool:
    """Insert a row unless it exists. Return True if it was inserted."""
    # psycopg does not report the row count of an insertion, so the statement returns the key.
    return connection.execute(_insert_if_absent_query(connection.dialect.name, table), values).first() is not None


@cache
def _keys(table: Table) -> frozenset[str]:
    return frozenset(column.name for column in table.primary_key)


@cache
def _insert_or_set(dialect: str, table: Table, names: frozenset[str]) -> postgresql.Insert | sqlite.Insert:
    statement = _insert(dialect)(table)
    return statement.on_conflict_do_update(
        index_elements=sorted(_keys(table)), set_={name: statement.excluded[name] for name in sorted(names)}
    )


@cache
def _insert_if_absent_query(dialect: str, table: Table) -> ReturningInsert[*tuple[object, ...]]:
    return _insert(dialect)(table).on_conflict_do_nothing().returning(*table.primary_key)


def _insert(dialect: str) -> Callable[[Table], postgresql.Insert | sqlite.Insert]:
    return postgresql.insert if dialect == "postgresql" else sqlite.insert


def add(connection: Connection, table: Table, **values: object) -> None:
    """Insert a new row."""
    connection.execute(_insertion(table), values)


@cache
def _insertion(table: Table) -> Insert:
    return insert(table)


def add_rows(connection: Connection, table: Table, rows: Sequence[dict[str, object]]) -> None:
    """Insert many rows, a few hundred in one statement."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        connection.execute(_insertion(table), rows[start : start + _ROWS_AT_ONCE])


class LedgerPart:
    """One concern of the ledger. `ledger.Ledger` joins all parts over one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _rows(self, query: Query, **given: object) -> Sequence[FoundRow]:
        """Read in a separate transaction.

        Args:
            query: A query with the names of `given`.
            given: Values for the query's names.
        """
        with self._database.reading() as connection:
            return connection.execute(query, given).all()

    def _of_topic(self, every: Query, topic: TopicName, *, one: Query | None = None) -> Sequence[FoundRow]:
        """Return the rows of one topic. In a look, one query reads the rows of all topics.

        Args:
            every: A query over the rows of all topics with the column `topic`. Pass the same object at each call.
            topic: The topic of the rows.
            one: The same query for the topic `of_topic` alone, if a condition on the column `topic` would read too much.
        """
        looked = self._in_look(every, "topic", key_of(topic))
        return self._rows(_one_topic(every) if one is None else one, of_topic=key_of(topic)) if looked is None else looked

    def _in_look(self, every: Query, column: str, value: str) -> Sequence[FoundRow] | None:
        """Return the rows whose column has the value, from one query for all values. None if the thread is in no look.

        Args:
            every: A query over the rows of all values with the column. Pass the same object at each call.
            column: The name of the column.
            value: The value to find.
        """
        looking = self._database.looking()
        if looking is None:
            return None
        if every not in looking.rows:
            found: dict[str, list[FoundRow]] = {}
            for row in self._rows(every):
                found.setdefault(row._mapping[column], []).append(row)
            looking.rows[every] = found
        return looking.rows[every].get(value, ())

    def _scalar(self, query: Query, **given: object) -> int | None:
        """Return the value of one row and column. None if the row is missing."""
        with self._database.reading() as connection:
            return connection.execute(query, given).scalar_one_or_none()


@cache
def _one_topic(every: Query) -> Query:
    return every.where(every.selected_columns["topic"] == bindparam("of_topic"))


def key_of(topic: TopicName) -> str:
    """Return `stream/topic`. No name holds a slash, so two topics never share a key."""
    return str(topic)


def topic_of(key: str) -> TopicName:
    """Return the topic of a key without parsing. The name was normalised by the rules of its time."""
    stream, _, topic = key.partition("/")
    return TopicName(stream=stream, topic=topic)


def next_event(connection: Connection) -> int:
    """Return a number greater than the number of every committed row. Waits for other writers to end, so call it last."""
    return int(connection.execute(_next_event()).scalar_one())


@cache
def _next_event() -> ReturningUpdate[int]:
    return update(tables.meta).values(event=tables.meta.c.event + 1).returning(tables.meta.c.event)


def claim_topic(connection: Connection, topic: TopicName) -> None:
    """Keep others from recording a plan or a batch of this topic until the transaction ends."""
    lock_row(connection, tables.topics, topic=key_of(topic), last_sequence=0)


class Locks(LedgerPart):
    """Locks that let one run at a time work on a topic.

    The lock only saves work. The fence in the commit makes runs safe. On PostgreSQL the lock belongs to a connection of its own, on SQLite
    to an open file next to the database. Either lock ends with the process, even after a crash. A database in memory has a lock within this
    process. Locks are not re-entrant: a run locks a topic once.
    """

    @contextmanager
    def lock(self, topic: TopicName, *, wait_seconds: float | None = WAIT_SECONDS, purpose: str = "") -> Iterator[None]:
        """Hold the topic's lock while one run works on the topic. Raises TopicBusy, ClockSkewed.

        Locks of different purposes are independent: an ingest may run while a cleaner does. A run with the lock may commit to the topic's
        tables, so a wrong clock of this machine fails here.

        Args:
            topic: The topic to lock.
            wait_seconds: How long to wait. None waits without limit.
            purpose: The name of the lock among the topic's locks. Empty: the lock of plans.
        """
        self._database.check_host_clock()
        held = (
            self._lock_in_database
            if self._database.is_postgres
            else self._lock_in_process
            if self._database.is_scratch
            else self._lock_beside
        )
        with held(topic, wait_seconds, purpose):
            yield

    @contextmanager
    def _lock_in_database(self, topic: TopicName, wait_seconds: float | None, purpose: str) -> Iterator[None]:
        with self._database.named_server_errors():
            connection = self._database.engine.connect()
        try:
            try:
                with self._database.named_server_errors():
                    _prepare_session(connection, wait_seconds)
                    connection.execute(select(func.pg_advisory_lock(_lock_number(topic, purpose))))
            except LockTimeout:
                raise TopicBusy(str(topic)) from None
            yield
        finally:
            # The lock ends with its session, even if the server has ended the session before.
            connection.close()

    @contextmanager
    def _lock_beside(self, topic: TopicName, wait_seconds: float | None, purpose: str) -> Iterator[None]:
        folder = Path(f"{self._database.place}.locks")
        folder.mkdir(mode=0o700, exist_ok=True)
        # The lock belongs to this open file alone, so it also works between threads.
        descriptor = os.open(folder / f"{_lock_number(topic, purpose) & 0xFFFF_FFFF_FFFF_FFFF:016x}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if wait_seconds is None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            elif not _taken_in_time(descriptor, time.monotonic() + wait_seconds):
                raise TopicBusy(str(topic))
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _lock_in_process(self, topic: TopicName, wait_seconds: float | None, purpose: str) -> Iterator[None]:
        lock = self._database.locks.setdefault(f"{key_of(topic)} {purpose}".strip(), Lock())
        if not lock.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            raise TopicBusy(str(topic))
        try:
            yield
        finally:
            lock.release()


def _lock_number(topic: TopicName, purpose: str) -> int:
    """Return the lock's number. The number uses all 64 bits, so two topics practically never share one."""
    digest = hashlib.sha256(f"message_lifecycle topic {key_of(topic)} {purpose}".strip().encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _taken_in_time(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)  # flock knows no time limit
        else:
            return True


def _prepare_session(connection: Connection, wait_seconds: float | None) -> None:
    # Detached from the pool, so that closing ends the session. No transaction, because one would delay the server's own cleaning.
    connection.execution_options(isolation_level="AUTOCOMMIT")
    connection.detach()
    # A lost machine sends no end. Keepalives let the server notice within a minute.
    for name, value in (("idle", 30), ("interval", 10), ("count", 3)):
        connection.exec_driver_sql(f"set tcp_keepalives_{name} = {value}")
    # 0 would mean no limit.
    limit = 0 if wait_seconds is None else max(1, int(wait_seconds * 1_000))
    connection.exec_driver_sql(f"set lock_timeout = {limit}")
