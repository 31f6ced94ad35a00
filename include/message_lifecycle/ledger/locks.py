"""One run at a time works on a topic: an advisory lock, which saves work. What makes runs safe is the fence in the commit.

On PostgreSQL the lock belongs to a connection of its own, on SQLite to an open file beside the database: it ends when the
process does, however it does. A database in memory has one of this process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, func, select

from message_lifecycle.ledger.database import LockTimeout
from message_lifecycle.ledger.part import Part, key_of
from message_lifecycle.model.errors import TopicBusy
from message_lifecycle.model.names import TopicName

WAIT_SECONDS = 5.0
"""Long enough for another run's publish to end, short enough to be told soon what the matter is."""

_POLL_SECONDS = 0.05


class Locks(Part):
    """Not re-entrant: a run takes a topic's lock once."""

    @contextmanager
    def lock(self, topic: TopicName, *, wait_seconds: float | None = WAIT_SECONDS, purpose: str = "") -> Iterator[None]:
        """Held while one run works on the topic. Raises TopicBusy after `wait_seconds`; None waits for as long as it takes.

        Locks of different purposes do not meet: an ingest may run while a cleaner does.
        """
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
                    _prepare(connection, wait_seconds)
                    connection.execute(select(func.pg_advisory_lock(_number(topic, purpose))))
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
        descriptor = os.open(folder / f"{_number(topic, purpose) & 0xFFFF_FFFF_FFFF_FFFF:016x}", os.O_RDWR | os.O_CREAT, 0o600)
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


def _number(topic: TopicName, purpose: str) -> int:
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


def _prepare(connection: Connection, wait_seconds: float | None) -> None:
    # Out of the pool, so that closing it ends the session; no transaction, which would hold back the server's own cleaning.
    connection.execution_options(isolation_level="AUTOCOMMIT")
    connection.detach()
    # A machine that is gone sends no end: the server finds out within a minute.
    for name, value in (("idle", 30), ("interval", 10), ("count", 3)):
        connection.exec_driver_sql(f"set tcp_keepalives_{name} = {value}")
    # 0 would mean no limit.
    limit = 0 if wait_seconds is None else max(1, int(wait_seconds * 1_000))
    connection.exec_driver_sql(f"set lock_timeout = {limit}")
