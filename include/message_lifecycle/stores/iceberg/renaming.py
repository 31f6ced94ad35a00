"""Tables renamed in a SQL catalog, many in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import CursorResult, delete, update
from sqlalchemy.orm import Session

from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.table_file import Written

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_VIEW = "VIEW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A table with its new metadata, and the name it is to have."""

    written: Written
    to: Place


def at_place(catalog: SqlCatalog, place: Place) -> tuple[Any, ...]:
    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == place[0],
        IcebergTables.table_name == place[1],
    )


def rename(catalog: Catalog, moves: Sequence[Moved], views: Iterable[Place], *, steps: Callable[[str], None]) -> bool:
    """Give all of them their names and metadata, and drop the views, or change nothing; False: a table has moved on.

    Raises IntegrityError where a name is taken; nothing was changed then."""
    assert isinstance(catalog, SqlCatalog)
    with Session(catalog.engine) as session:
        for place in views:
            session.execute(delete(IcebergTables).where(*at_place(catalog, place), IcebergTables.iceberg_type == _VIEW))
        for move in moves:
            place = (".".join(move.written.identifier[:-1]), move.written.identifier[-1])
            done = session.execute(
                update(IcebergTables)
                .where(*at_place(catalog, place), IcebergTables.metadata_location == move.written.old)
                .values(
                    table_namespace=move.to[0],
                    table_name=move.to[1],
                    metadata_location=move.written.new,
                    previous_metadata_location=move.written.old,
                )
            )
            assert isinstance(done, CursorResult)
            if done.rowcount != 1:
                session.rollback()
                return False
            steps("inside_commit")
        steps("before_commit")
        session.commit()
    return True
