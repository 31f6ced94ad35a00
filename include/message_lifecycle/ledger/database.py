"""The ledger's database: transactions, its clock, locks, and the one place where its failures become named errors."""

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
    Row,
    Select,
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
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import invalid_ledger_url, ledger_unavailable
from message_lifecycle.model.errors import TopicBusy, clock_skewed
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant, of_datetime
from message_lifecycle.model.names import TopicName

Clock = Callable[[], Instant]

CONNECT_SECONDS = 5
# Any number; taken for the length of a migration, by every program that migrates this database.
_ALONE = 7_310_579_284
_ROWS_AT_ONCE = 1_000
_IN_MEMORY = (None, "", ":memory:")
_LOCK_NOT_AVAILABLE = "55P03"
WAIT_SECONDS = 5.0
"""Long enough for another run's publish to end, short enough to be told soon what the matter is."""

_POLL_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class _Look:
    """What one look has read so far.

    Attributes:
        database: The ledger's database.
        connection: The one connection of the look.
        rows: By query, the rows of each topic or table.
        now: The time of the look, read once. All topics are judged at the same time.
    """

    database: Database
    connection: Connection
    rows: dict[Select[Any], dict[str, list[Row[Any]]]] = field(default_factory=dict)
    now: Instant | None = None


_looking: ContextVar[_Look | None] = ContextVar("looking", default=None)


class LockTimeout(Exception):
    """A lock was not free within the time that its taker had set; becomes TopicBusy."""


class Database:
    """One engine. Every `writing` block is one transaction; failures of the server are LedgerUnavailable."""

    def __init__(self, url: str, *, clock: Clock | None = None, host_clock: Clock | None = None, skew_us: int = 0) -> None:
        self.url = _parse(url)
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self.place = _place(self.url)
        self.engine = _engine(self.url)
        # Each statement sees what is committed when it begins, in a transaction as well: by itself it is two questions less to the server.
        self._reader = self.engine.execution_options(isolation_level="AUTOCOMMIT") if self.is_postgres else self.engine
        self.is_scratch = not self.is_postgres and self.url.database in _IN_MEMORY
        """In memory: nothing can have been there before, and it ends with the process."""
        self.locks: dict[str, Lock] = {}
        """Of a scratch database, which nobody else can open: they end with it."""
        self._clock, self._host_clock, self._skew_us = clock, host_clock, skew_us

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """For questions, each by itself."""
        looking = self.looking()
        if looking is None:
            with self.answering(), self._reader.connect() as connection:
                yield connection
            return
        with self.answering():
            yield looking.connection
            # A transaction that stayed open would keep a writer of SQLite waiting. PostgreSQL's reader begins none.
            if looking.connection.in_transaction() and not self.is_postgres:
                looking.connection.rollback()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Hold one connection for all questions of this thread in the block, and read what is kept of topics once for all of them."""
        if self.looking() is not None:
            yield
            return
        with self.answering():
            connection = self._reader.connect()
        token = _looking.set(_Look(database=self, connection=connection))
        try:
            yield
        finally:
            _looking.reset(token)
            connection.close()

    def looking(self) -> _Look | None:
        """The look that this thread has at this database; None: it has none."""
        found = _looking.get()
        return found if found is not None and found.database is self else None

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
            raise ledger_unavailable(self.place, reason) from error

    def now(self, connection: Connection) -> Instant:
        """The database's clock (CLK-1); an injected one in tests and scenarios. SQLite has none but the machine's."""
        if self._clock is not None:
            return self._clock()
        if not self.is_postgres:
            return _machine_clock()
        return of_datetime(connection.execute(select(func.now())).scalar_one())

    @property
    def has_real_clock(self) -> bool:
        """Return False where a scenario or a test brings its own time."""
        return self._clock is None

    def check_host_clock(self) -> None:
        """Compare this machine's clock, which Iceberg writes to tables, with the ledger's.

        A scenario brings its own time, and SQLite has the machine's clock: nothing is compared then, unless a test gives a host's clock.
        Raises ClockSkewed where they differ by more than `clock_skew`."""
        host = self._host_clock or (_machine_clock if self.is_postgres and self._clock is None else None)
        if host is None or not self._skew_us:
            return
        first = host()
        with self.reading() as connection:
            now = self.now(connection)
        last = host()  # the answer of a busy server takes its time
        if first > now + self._skew_us or last < now - self._skew_us:
            raise clock_skewed(host=format_instant(last), ledger=format_instant(now), skew_seconds=self._skew_us // MICROS_PER_SECOND)

    def close(self) -> None:
        self.engine.dispose()


def _machine_clock() -> Instant:
    return Instant(time.time_ns() // 1_000)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Not the text itself: what cannot be read may still hold a password.
        raise invalid_ledger_url("it is not a database URL") from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return parsed
    raise invalid_ledger_url(f"{parsed.drivername} is not supported")


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


# Or each would have a database of its own; also for the thread in which a commit asks back.
_ONE_CONNECTION: Any = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}


@cache
def _in_memory() -> tuple[Engine, dict[Any, Any]]:
    """Whose dialect and compiled statements all databases in memory of this process share: a scenario's work is mostly compiling, else."""
    engine = create_engine("sqlite://", **_ONE_CONNECTION)
    event.listen(engine, "connect", _prepare_sqlite)
    engine.connect().close()  # the dialect asks the library what it can, once
    return engine, {}


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("pragma busy_timeout = 30000")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that first reads and then writes would fail, not wait, when another one writes in between.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


# Statements that every run makes many times are made once, with names (`bindparam`) for what differs: SQLAlchemy takes longer to put one
# together, and to see that it has met it before, than SQLite to answer it.


def put(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row, or set its other columns where the key is there."""
    connection.execute(_insert_or_set(connection.dialect.name, table, frozenset(values) - _keys(table)), values)


def lock_row(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row, or leave it as it is; until the transaction ends, others who do the same wait."""
    # Setting a key to itself changes nothing and takes the row's lock.
    connection.execute(_insert_or_set(connection.dialect.name, table, _keys(table)), values)


def add_if_absent(connection: Connection, table: Table, **values: object) -> bool:
    """Insert a row, or leave the one that is there; whether it was inserted."""
    # Not by the count of rows, which of an insertion psycopg does not tell.
    return connection.execute(_insert_if_absent(connection.dialect.name, table), values).first() is not None


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
def _insert_if_absent(dialect: str, table: Table) -> ReturningInsert[Any]:
    return _insert(dialect)(table).on_conflict_do_nothing().returning(*table.primary_key)


def _insert(dialect: str) -> Callable[[Table], postgresql.Insert | sqlite.Insert]:
    return postgresql.insert if dialect == "postgresql" else sqlite.insert


def add(connection: Connection, table: Table, **values: object) -> None:
    """Insert a row that is not there yet."""
    connection.execute(_insertion(table), values)


@cache
def _insertion(table: Table) -> Insert:
    return insert(table)


def add_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert many rows, a few hundred in one statement."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        connection.execute(_insertion(table), rows[start : start + _ROWS_AT_ONCE])


class Part:
    """One concern of the ledger; `ledger.Ledger` is all of them over one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _rows(self, query: Select[Any], **given: object) -> Sequence[Row[Any]]:
        """Read in a transaction of its own, as `_value` is. `given`: for the query's names."""
        with self._database.reading() as connection:
            return connection.execute(query, given).all()

    def _of_topic(self, every: Select[Any], topic: TopicName, *, one: Select[Any] | None = None) -> Sequence[Row[Any]]:
        """Return the rows of one topic. In a look, one query reads the rows of all topics.

        Args:
            every: The same object at each call. It selects the column `topic`, and rows of all topics.
            one: The same for the topic `of_topic` alone, where a condition on the column `topic` would read too much.
        """
        looked = self._in_look(every, "topic", key_of(topic))
        return self._rows(_one_topic(every) if one is None else one, of_topic=key_of(topic)) if looked is None else looked

    def _in_look(self, every: Select[Any], column: str, value: str) -> Sequence[Row[Any]] | None:
        """Return the rows whose column has the value, out of one query for all values. None: the thread is in no look.

        Args:
            every: The same object at each call. It selects the column, and rows of all values.
        """
        looking = self._database.looking()
        if looking is None:
            return None
        if every not in looking.rows:
            found: dict[str, list[Row[Any]]] = {}
            for row in self._rows(every):
                found.setdefault(row._mapping[column], []).append(row)
            looking.rows[every] = found
        return looking.rows[every].get(value, ())

    def _value(self, query: Select[Any], **given: object) -> Any:
        """Of one row and column; None: there is no row."""
        with self._database.reading() as connection:
            return connection.execute(query, given).scalar_one_or_none()


@cache
def _one_topic(every: Select[Any]) -> Select[Any]:
    return every.where(every.selected_columns["topic"] == bindparam("of_topic"))


def key_of(topic: TopicName) -> str:
    """`stream/topic`; no name holds a slash, so two topics never share a key."""
    return str(topic)


def topic_of(key: str) -> TopicName:
    """Not parsed again: the name was normalised when it was recorded, under the rules of that day."""
    stream, _, topic = key.partition("/")
    return TopicName(stream=stream, topic=topic)


def next_event(connection: Connection) -> int:
    """A number greater than that of every row committed before. Waits for other writers' ends: take it last."""
    return int(connection.execute(_next_event()).scalar_one())


@cache
def _next_event() -> ReturningUpdate[Any]:
    return update(tables.meta).values(event=tables.meta.c.event + 1).returning(tables.meta.c.event)


def claim_topic(connection: Connection, topic: TopicName) -> None:
    """Until the transaction ends, no other one records a plan or a batch of this topic."""
    lock_row(connection, tables.topics, topic=key_of(topic), last_sequence=0)


class Locks(Part):
    """One run at a time works on a topic: an advisory lock, which saves work. What makes runs safe is the fence in the commit.

    On PostgreSQL the lock belongs to a connection of its own, on SQLite to an open file beside the database: it ends when the process does,
    however it does. A database in memory has a lock within this process. Not re-entrant: a run takes a topic's lock once.
    """

    @contextmanager
    def lock(self, topic: TopicName, *, wait_seconds: float | None = WAIT_SECONDS, purpose: str = "") -> Iterator[None]:
        """Held while one run works on the topic. Raises TopicBusy after `wait_seconds`; None waits for as long as it takes.

        Locks of different purposes do not meet: an ingest may run while a cleaner does. Whoever locks a topic may commit to its tables, so a
        wrong clock of this machine is refused here. Raises ClockSkewed.
        """
        self._database.check_host_clock()
        held = self._advisory if self._database.is_postgres else self._local if self._database.is_scratch else self._beside
        with held(topic, wait_seconds, purpose):
            yield

    @contextmanager
    def _advisory(self, topic: TopicName, wait_seconds: float | None, purpose: str) -> Iterator[None]:
        with self._database.answering():
            connection = self._database.engine.connect()
        try:
            try:
                with self._database.answering():
                    _prepare_session(connection, wait_seconds)
                    connection.execute(select(func.pg_advisory_lock(_lock_number(topic, purpose))))
            except LockTimeout:
                raise TopicBusy(str(topic)) from None
            yield
        finally:
            # The end of its session ends the lock, also where the server has ended that before.
            connection.close()

    @contextmanager
    def _beside(self, topic: TopicName, wait_seconds: float | None, purpose: str) -> Iterator[None]:
        folder = Path(f"{self._database.place}.locks")
        folder.mkdir(mode=0o700, exist_ok=True)
        # The lock belongs to this opening of the file alone, so it holds between threads as well.
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
    def _local(self, topic: TopicName, wait_seconds: float | None, purpose: str) -> Iterator[None]:
        lock = self._database.locks.setdefault(f"{key_of(topic)} {purpose}".strip(), Lock())
        if not lock.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            raise TopicBusy(str(topic))
        try:
            yield
        finally:
            lock.release()


def _lock_number(topic: TopicName, purpose: str) -> int:
    """The lock's number: of all 64 bits, so that two topics practically never share one."""
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
    # Out of the pool, so that closing it ends the session; no transaction, which would hold back the server's own cleaning.
    connection.execution_options(isolation_level="AUTOCOMMIT")
    connection.detach()
    # A machine that is gone sends no end: the server finds out within a minute.
    for name, value in (("idle", 30), ("interval", 10), ("count", 3)):
        connection.exec_driver_sql(f"set tcp_keepalives_{name} = {value}")
    # 0 would mean no limit.
    limit = 0 if wait_seconds is None else max(1, int(wait_seconds * 1_000))
    connection.exec_driver_sql(f"set lock_timeout = {limit}")
