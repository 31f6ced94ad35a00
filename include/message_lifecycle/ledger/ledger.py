"""The memory of intentions: one SQL database (PostgreSQL in use, SQLite in unit tests) behind `ports.Ledger`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from message_lifecycle.ledger.backup import Backup, backup, restore
from message_lifecycle.ledger.batches import Batches, forget_batches
from message_lifecycle.ledger.consumers import Consumers, forget_progress
from message_lifecycle.ledger.database import Clock, Database
from message_lifecycle.ledger.documents import Documents, forget_documents
from message_lifecycle.ledger.erasures import Erasures
from message_lifecycle.ledger.forgetting import Forgetting
from message_lifecycle.ledger.holds import Holds
from message_lifecycle.ledger.identity import Identity
from message_lifecycle.ledger.locks import Locks
from message_lifecycle.ledger.migrations import migrate, require_current
from message_lifecycle.ledger.plan_reader import PlanReader
from message_lifecycle.ledger.plan_writer import PlanWriter
from message_lifecycle.ledger.runs import Runs
from message_lifecycle.ledger.topic_state import TopicState, forget_ingest_settings
from message_lifecycle.ledger.undone import UndoneMemory, forget_undone
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.ports import Ledger


class SqlLedger(
    Identity, PlanReader, PlanWriter, Runs, Consumers, Documents, Forgetting, TopicState, UndoneMemory, Batches, Holds, Erasures, Locks
):
    """Everything the ledger keeps. Every write is one transaction; a database that fails is LedgerUnavailable."""

    @property
    def place(self) -> str:
        """The database's address without user and password, for messages."""
        return self._database.place

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
            forget_batches(connection, topic)
            forget_ingest_settings(connection, topic)

    def backup(self, path: Path) -> Backup:
        """See `backup.backup`. Raises BackupNotWritten."""
        return backup(self._database, path)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


if TYPE_CHECKING:
    # The type checker's proof that nothing of the port is missing.
    _: type[Ledger] = SqlLedger


def open_ledger(url: str, *, clock: Clock | None = None) -> SqlLedger:
    """The ledger at that address. `clock`: instead of the database's, for tests and scenarios.

    Raises InvalidLedgerUrl, LedgerUnavailable, LedgerNotMigrated, LedgerTooNew.
    """
    database = Database(url, clock=clock)
    try:
        if database.is_scratch:
            migrate(database)
        require_current(database)
    except LifecycleError:
        database.close()
        raise
    return SqlLedger(database)


def migrate_ledger(url: str) -> tuple[int, int]:
    """Make the ledger at that address, or bring it to the newest version; (version found, version reached)."""
    database = Database(url)
    try:
        return migrate(database)
    finally:
        database.close()


def restore_ledger(url: str, path: Path) -> Backup:
    """Fill the empty database at that address from a backup; see `backup.restore`."""
    database = Database(url)
    try:
        return restore(database, path)
    finally:
        database.close()
