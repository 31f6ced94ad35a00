"""The ledger: the records of plans, approvals, outcomes and consumers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, Select, bindparam, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import Clock, Database, LedgerPart, Locks, key_of, lock_row, put
from message_lifecycle.ledger.intake import Ingest, forget_ingest
from message_lifecycle.ledger.plans import Plans
from message_lifecycle.ledger.requests import Erasures, Holds, forget_undone
from message_lifecycle.ledger.runs import Runs
from message_lifecycle.ledger.schema import create, create_scratch, require_current
from message_lifecycle.ledger.topics import Documents, TopicState, forget_documents, forget_progress
from message_lifecycle.ledger.witnesses import TableRecords
from message_lifecycle.model.errors import LifecycleError, future_as_of, ledger_mismatch
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import OF_TOPIC

if TYPE_CHECKING:
    from message_lifecycle.ledger.backup import Backup

# The records of intentions, in one SQL database (PostgreSQL in production, SQLite in unit tests).


class Identity(LedgerPart):
    """The ledger's identity, its check against a table's history (LedgerMismatch), and its clock (CLK-1).

    Our commits write `uuid:sequence` into the table. The ledger keeps the newest sequence that it gave to each topic. A ledger restored
    from an older backup finds a higher sequence in the table. The check still works after commits on other topics have raised the ledger's
    own sequence past that one.
    """

    def identity(self) -> tuple[str, int]:
        """Return (uuid, sequence) for display. Commits use `next_identity`."""
        with self._database.reading() as connection:
            return _identity(connection)

    def next_identity(self, topic: TopicName) -> tuple[str, int]:
        """Record the next sequence of the topic, and return (uuid, sequence). One commit on its table carries both."""
        key = key_of(topic)
        with self._database.writing() as connection:
            # First a topic's row, then the single row of `meta`, as everywhere else. Otherwise two writers could deadlock.
            lock_row(connection, tables.topics, topic=key, last_sequence=0)
            row = connection.execute(_next_sequence()).one()
            put(connection, tables.topics, topic=key, last_sequence=row.sequence)
            return row.uuid, row.sequence

    def check(self, topic: TopicName, found: tuple[str, int] | None) -> None:
        """Check that this ledger may delete from the topic. Raises LedgerMismatch.

        Args:
            topic: The topic to delete from.
            found: The identity in our newest commit on the topic.
        """
        if found is None:
            return
        uuid, sequence = found
        with self._database.reading() as connection:
            own, _ = _identity(connection)
            if uuid == own:
                known = connection.execute(_last_sequence(), {"of_topic": key_of(topic)}).scalar()
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
        """Accept the table as it is now (`found`). The records of the other ledger, or of the lost time, are given up."""
        uuid, sequence = found
        with self._database.writing() as connection:
            lock_row(connection, tables.topics, topic=key_of(topic), last_sequence=0)
            own, _ = _identity(connection)
            if uuid == own:
                ours = tables.topics.c
                connection.execute(
                    update(tables.topics).where(ours.topic == key_of(topic), ours.last_sequence < sequence).values(last_sequence=sequence)
                )
                # The ledger gave these numbers in the lost time and must not give them again.
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
        """False if a scenario brings its own time. The times that machines write to tables then mean nothing."""
        return self._database.has_real_clock

    def check_host_clock(self) -> None:
        """Raise ClockSkewed if this machine's clock and the ledger's differ by more than `clock_skew`."""
        self._database.check_host_clock()

    def check_as_of(self, as_of: Instant, skew_us: int) -> None:
        """Raise FutureAsOf if `as_of` is later than the ledger's clock + skew (CLK-1)."""
        now = self.now()
        if as_of > now + skew_us:
            raise future_as_of(as_of=format_to_second(as_of), now=format_to_second(now), skew_seconds=skew_us // MICROS_PER_SECOND)


def _identity(connection: Connection) -> tuple[str, int]:
    row = connection.execute(_own_identity()).one()
    return row.uuid, row.sequence


@cache
def _own_identity() -> Select[str, int]:
    return select(tables.meta.c.uuid, tables.meta.c.sequence)


@cache
def _next_sequence() -> ReturningUpdate[str, int]:
    grown = update(tables.meta).values(sequence=tables.meta.c.sequence + 1)
    return grown.returning(tables.meta.c.uuid, tables.meta.c.sequence)


@cache
def _last_sequence() -> Select[int | None]:
    kept = tables.topics.c
    return select(kept.last_sequence).where(kept.topic == bindparam("of_topic"))


class Ledger(Identity, Plans, Runs, TopicState, Documents, Ingest, Holds, Erasures, TableRecords, Locks):
    """Every record of the ledger. A write is one transaction, and a failing database is LedgerUnavailable."""

    @property
    def place(self) -> str:
        """The database's address without user and password, for messages."""
        return self._database.place

    def look(self) -> AbstractContextManager[None]:
        """Ask about many topics on one connection. The ledger reads each kind of record once for all topics.

        The block sees one state of the ledger, as of its first question of each kind. So the block must decide nothing that other runs may
        have changed meanwhile.
        """
        return self._database.look()

    def reset_topic(self, topic: TopicName) -> None:
        """Reset the progress of readers and copies of the name, and forget its clients, before a topic is made.

        Readers stay registered.
        """
        with self._database.writing() as connection:
            forget_progress(connection, topic)
            forget_documents(connection, topic)

    def forget_former(self, topic: TopicName) -> None:
        """Forget the ingests and undos of an earlier topic of that name, after a topic is made.

        The caller must wait for the creation. If it fails, an undo may still restore the earlier topic. That topic would then lose its
        undone messages and ingest files a second time.
        """
        with self._database.writing() as connection:
            forget_undone(connection, topic)
            forget_ingest(connection, topic)

    def backup(self, path: Path) -> Backup:
        """See `backup.backup`. Raises BackupNotWritten."""
        from message_lifecycle.ledger.backup import backup

        return backup(self._database, path)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_ledger(url: str, *, clock: Clock | None = None, host_clock: Clock | None = None, skew_us: int = 0) -> Ledger:
    """Open the ledger at that address.

    Args:
        url: The database's address, in the form of SQLAlchemy.
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
    """Create the ledger at that address, or migrate it to the newest version. Return (version found, version reached)."""
    database = Database(url)
    try:
        return create(database)
    finally:
        database.close()


def restore_ledger(url: str, path: Path) -> Backup:
    """Fill the empty database at that address from a backup. See `backup.restore`."""
    from message_lifecycle.ledger.backup import restore

    database = Database(url)
    try:
        return restore(database, path)
    finally:
        database.close()
