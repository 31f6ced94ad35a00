"""Who remembers: plans, approvals, outcomes, consumers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Select, bindparam, func, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.backup import Backup, backup, restore
from message_lifecycle.ledger.database import Clock, Database, Locks, Part, key_of, lock_row, put
from message_lifecycle.ledger.intake import Ingest, forget_ingest
from message_lifecycle.ledger.plans import Plans
from message_lifecycle.ledger.requests import Erasures, Holds, forget_undone
from message_lifecycle.ledger.runs import Runs
from message_lifecycle.ledger.schema import create, create_scratch, require_current
from message_lifecycle.ledger.topics import Documents, TopicState, forget_documents, forget_progress
from message_lifecycle.ledger.witnesses import Witnesses
from message_lifecycle.model.errors import LifecycleError, future_as_of, ledger_mismatch
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import OF_TOPIC

# The memory of intentions: one SQL database (PostgreSQL in use, SQLite in unit tests).


_ANY_TOPIC = ""


class Identity(Part):
    """Which ledger this is, whether it knows what a table has been through (LedgerMismatch), and its clock (CLK-1).

    Every commit of ours writes `uuid:sequence` into the table. The ledger keeps the newest sequence that it gave to each topic: a ledger
    restored from an older backup finds a younger one in the table. It goes on finding it after other topics' commits have brought its own
    sequence past that.
    """

    def identity(self) -> tuple[str, int]:
        """(uuid, sequence). For showing; what goes into a table comes from `next_identity`."""
        with self._database.reading() as connection:
            return _identity(connection)

    def next_identity(self, topic: TopicName | None = None) -> tuple[str, int]:
        """(uuid, next sequence), recorded before it is returned. Name the topic whose table will carry it: without one, an
        older backup is noticed only until the sequence has grown past what the table holds."""
        key = key_of(topic) if topic else _ANY_TOPIC
        with self._database.writing() as connection:
            # A topic's row before the one row of all, here as everywhere: else two writers could wait for each other.
            lock_row(connection, tables.topics, topic=key, last_sequence=0)
            row = connection.execute(_next_sequence()).one()
            put(connection, tables.topics, topic=key, last_sequence=row.sequence)
            return row.uuid, row.sequence

    def check(self, topic: TopicName, found: tuple[str, int] | None) -> None:
        """Whether this ledger may delete from the topic, whose newest commit of ours carries `found`. Raises LedgerMismatch."""
        if found is None:
            return
        uuid, sequence = found
        with self._database.reading() as connection:
            own, _ = _identity(connection)
            if uuid == own:
                known = connection.execute(_last_sequence(), {"of_topic": key_of(topic)}).scalar_one()
                if sequence > (known or 0):
                    raise ledger_mismatch(
                        str(topic),
                        f"its newest commit is number {sequence} of this ledger, which remembers none after {known or 0} "
                        "for it: the ledger is an older state of itself, as from a backup",
                    )
                return
            accepted = connection.execute(
                select(tables.accepted_ledgers.c.sequence).where(
                    tables.accepted_ledgers.c.topic == key_of(topic), tables.accepted_ledgers.c.uuid == uuid
                )
            ).scalar_one_or_none()
        if accepted is None:
            raise ledger_mismatch(str(topic), f"it was written with ledger {uuid}, this one is {own}")
        if sequence > accepted:
            raise ledger_mismatch(
                str(topic),
                f"it was written with ledger {uuid} again (number {sequence}) after that was taken on at number {accepted}",
            )

    def accept(self, topic: TopicName, found: tuple[str, int]) -> None:
        """Take the table on knowingly, as it is now (`found`): what the other ledger, or the lost time, knew is given up."""
        uuid, sequence = found
        with self._database.writing() as connection:
            lock_row(connection, tables.topics, topic=key_of(topic), last_sequence=0)
            own, _ = _identity(connection)
            if uuid == own:
                ours = tables.topics.c
                connection.execute(
                    update(tables.topics).where(ours.topic == key_of(topic), ours.last_sequence < sequence).values(last_sequence=sequence)
                )
                # Numbers up to there were given once, in the time that was lost; they are not given again.
                connection.execute(update(tables.meta).where(tables.meta.c.sequence < sequence).values(sequence=sequence))
            else:
                at = self._database.now(connection)
                put(connection, tables.accepted_ledgers, topic=key_of(topic), uuid=uuid, sequence=sequence, at=at)
                lock_row(connection, tables.looks, topic=key_of(topic), operation=OF_TOPIC, looked_at=at, settled_at=at)

    def now(self) -> Instant:
        """Return the time of the ledger's clock, which only the edge reads (CLK-1). A look reads the clock once."""
        looking = self._database.looking()
        if looking is not None and looking.now is not None:
            return looking.now
        with self._database.reading() as connection:
            now = self._database.now(connection)
        if looking is not None:
            looking.now = now
        return now

    @property
    def has_real_clock(self) -> bool:
        """Return False where a scenario brings its own time: the times that machines write to tables mean nothing beside it."""
        return self._database.has_real_clock

    def check_host_clock(self) -> None:
        """Raises ClockSkewed where this machine's clock and the ledger's differ by more than `clock_skew`."""
        self._database.check_host_clock()

    def check_as_of(self, as_of: Instant, skew_us: int) -> None:
        """CLK-1: `as_of` may be as late as the ledger's clock + skew. Raises FutureAsOf."""
        now = self.now()
        if as_of > now + skew_us:
            raise future_as_of(as_of=format_instant(as_of), now=format_instant(now), skew_seconds=skew_us // MICROS_PER_SECOND)


def _identity(connection: Connection) -> tuple[str, int]:
    row = connection.execute(_own_identity()).one()
    return row.uuid, row.sequence


@cache
def _own_identity() -> Select[tuple[str, int]]:
    return select(tables.meta.c.uuid, tables.meta.c.sequence)


@cache
def _next_sequence() -> ReturningUpdate[Any]:
    grown = update(tables.meta).values(sequence=tables.meta.c.sequence + 1)
    return grown.returning(tables.meta.c.uuid, tables.meta.c.sequence)


@cache
def _last_sequence() -> Select[Any]:
    kept = tables.topics.c
    return select(func.max(kept.last_sequence)).where(or_(kept.topic == bindparam("of_topic"), kept.topic == _ANY_TOPIC))


class Ledger(Identity, Plans, Runs, TopicState, Documents, Ingest, Holds, Erasures, Witnesses, Locks):
    """Everything the ledger keeps. Every write is one transaction; a database that fails is LedgerUnavailable."""

    @property
    def place(self) -> str:
        """The database's address without user and password, for messages."""
        return self._database.place

    def look(self) -> AbstractContextManager[None]:
        """Ask about many topics: on one connection, and once for all of them what the ledger keeps of each.

        The block sees one state of the ledger, as of its first question of each kind. So it must decide nothing that others may have
        changed meanwhile.
        """
        return self._database.look()

    def start_anew(self, topic: TopicName) -> None:
        """Before a topic is made: nobody has read, copied or synchronised anything of it."""
        with self._database.writing() as connection:
            forget_progress(connection, topic)
            forget_documents(connection, topic)

    def forget_former(self, topic: TopicName) -> None:
        """After a topic is made: what was taken into, and brought back to, a former one of its name. Not before: were it not made after
        all, a deleted one that comes back would lose what an undo had brought back to it, and take files a second time."""
        with self._database.writing() as connection:
            forget_undone(connection, topic)
            forget_ingest(connection, topic)

    def backup(self, path: Path) -> Backup:
        """See `backup.backup`. Raises BackupNotWritten."""
        return backup(self._database, path)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_ledger(url: str, *, clock: Clock | None = None, host_clock: Clock | None = None, skew_us: int = 0) -> Ledger:
    """The ledger at that address.

    Args:
        url: The address.
        clock: A clock instead of the database's, for tests and scenarios.
        host_clock: A clock instead of this machine's, for tests.
        skew_us: How far the two clocks may differ before a lock of a topic is refused. 0 if nobody compares them.

    Raises InvalidLedgerUrl, LedgerUnavailable, LedgerNotMigrated, LedgerTooNew.
    """
    database = Database(url, clock=clock, host_clock=host_clock, skew_us=skew_us)
    try:
        if database.is_scratch:
            create_scratch(database)
        require_current(database)
    except LifecycleError:
        database.close()
        raise
    return Ledger(database)


def migrate_ledger(url: str) -> tuple[int, int]:
    """Make the ledger at that address, or bring it to the newest version; (version found, version reached)."""
    database = Database(url)
    try:
        return create(database)
    finally:
        database.close()


def restore_ledger(url: str, path: Path) -> Backup:
    """Fill the empty database at that address from a backup; see `backup.restore`."""
    database = Database(url)
    try:
        return restore(database, path)
    finally:
        database.close()
