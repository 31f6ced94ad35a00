"""The whole ledger as one file, and back into an empty database. It holds what people wrote, but no password."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, MetaData, Table, delete, func, select

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.backup_file import BackupWriter, Heading, heading, new_file, portions
from message_lifecycle.ledger.database import Database, add_rows
from message_lifecycle.ledger.errors import BrokenBackup, LedgerNotEmpty, LedgerTooNew
from message_lifecycle.ledger.migrations import STEPS, Step, advance, migrate, require_current, version

_ROWS_AT_ONCE = 500
# A plan's document may be of 8 MB.
_DOCUMENTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What a backup holds: which ledger at which age, and rows per table."""

    heading: Heading
    counts: dict[str, int]


def backup(database: Database, path: Path) -> Backup:
    """Write the ledger as it is at one instant; a file of that name is replaced. Raises BackupNotWritten."""
    require_current(database)
    with new_file(path) as file, database.snapshot() as connection:
        meta = connection.execute(select(tables.meta)).one()
        head = Heading(ledger_version=meta.version, uuid=meta.uuid, sequence=meta.sequence, taken_at=database.now(connection))
        writer = BackupWriter(file, head)
        for table in tables.metadata.sorted_tables:
            writer.table(table.name, [column.name for column in table.columns])
            at_once = _DOCUMENTS_AT_ONCE if table is tables.plan_documents else _ROWS_AT_ONCE
            rows = select(table).order_by(*table.primary_key).execution_options(yield_per=at_once)
            for row in connection.execute(rows):
                writer.row(list(row))
        writer.end()
    return Backup(heading=head, counts=writer.counts)


def restore(database: Database, path: Path, *, steps: Sequence[Step] = STEPS) -> Backup:
    """Fill an empty database from a backup of this or an earlier version, and bring it to this one.

    The ledger is then as old as the backup: topics whose tables have moved on refuse deletions until they are taken on
    (`Identity.accept`). Raises BrokenBackup, LedgerTooNew, LedgerNotEmpty; nothing was changed then.
    """
    head = heading(path)
    if head.ledger_version > len(steps):
        raise LedgerTooNew(str(path), head.ledger_version, len(steps))
    counts: dict[str, int] = {}
    with database.writing(alone=True) as connection:
        _clear(connection, database, len(steps))
        for number, step in enumerate(steps[: head.ledger_version], start=1):
            advance(connection, step, number)
        connection.execute(delete(tables.meta))
        # As the backup's version has them, not as this one does.
        made = MetaData()
        made.reflect(connection, only=_is_ours)
        for name, rows in portions(path):
            add_rows(connection, _find(made, name, rows[0], path), rows)
            counts[name] = counts.get(name, 0) + len(rows)
    migrate(database, steps=steps)
    return Backup(heading=head, counts=counts)


def _find(made: MetaData, name: str, row: dict[str, object], path: Path) -> Table:
    table = made.tables.get(name)
    if table is None or {column.name for column in table.columns} != set(row):
        raise BrokenBackup(str(path), f"it holds {name} otherwise than a ledger of its version does")
    return table


def _is_ours(name: str, _: object) -> bool:
    return name.startswith("lifecycle_")


def _clear(connection: Connection, database: Database, known: int) -> None:
    """Take an empty ledger's tables away, so that the backup's own version can be made. Raises LedgerNotEmpty, LedgerTooNew."""
    found = version(connection)
    if found == 0:
        return
    if found > known:
        raise LedgerTooNew(database.place, found, known)
    there = MetaData()
    there.reflect(connection, only=_is_ours)
    for table in there.sorted_tables:
        rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if table.name != tables.META and rows:
            raise LedgerNotEmpty(database.place, f"{table.name} has {rows} rows")
    there.drop_all(connection)
