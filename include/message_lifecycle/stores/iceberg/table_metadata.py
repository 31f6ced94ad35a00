"""Changes of a table's metadata alone, by Iceberg's own library: properties, refs, snapshots that leave the history.

Every change is one compare-and-swap by the catalog, whichever catalog it is. The same holds for commits that add or remove files, under the
judge of `fence`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from message_lifecycle.model.errors import CommitUnknown, LifecycleError, TableBusy
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import NOT_THERE, Java, entries, identifier, java_class, result_unknown, thrown
from message_lifecycle.stores.iceberg.session import engine_failures

if TYPE_CHECKING:
    from message_lifecycle.stores.iceberg.pointers import Place


_ATTEMPTS = 20
Attempt = Callable[[], tuple[Java, Java]]
"""Makes the `TableMetadata` that it builds on, and those that come instead."""
Document = dict[str, Any]
"""A table's metadata as JSON, by the specification's names."""


class TableGone(Exception):
    """The catalog has no table of that name."""


def change_metadata(place: Place, change: Callable[[Java, Java], None], *, what: str) -> None:
    """Commit a change of a table's metadata.

    Args:
        place: The namespace and the name of the table.
        change: Gets the `TableMetadata` that the attempt builds on, and Iceberg's `TableMetadata.Builder` to change. Every attempt calls
            `change`. If the change is already there, `change` does nothing. To prevent the commit, `change` raises.
        what: Names the change in errors.

    Raises:
        TableGone: The catalog has no such table.
        CatalogUnavailable: The catalog does not answer.
        TableBusy: Other commits came first in every attempt.
        CommitUnknown: The catalog does not say how the commit ended, and `change` would still change something.
    """
    with engine_failures():
        commit_metadata_change(_table_operations(place), change, what=what)


def commit_metadata_change(operations: Java, change: Callable[[Java, Java], None], *, what: str) -> None:
    """As `change_metadata`, of the table behind Iceberg's `TableOperations`."""

    def attempt() -> tuple[Java, Java]:
        base = operations.refresh()
        return base, changed_metadata(base, change)

    compare_and_swap(operations, attempt, what=what)


def compare_and_swap(operations: Java, attempt: Attempt, *, what: str) -> None:
    """Commit what an attempt makes. As `commit_metadata_change` else."""
    swap_at_once([attempt], lambda made: operations.commit(*made[0]), what=what)


def swap_at_once(attempts: Sequence[Attempt], commit: Callable[[Sequence[tuple[Java, Java]]], object], *, what: str) -> None:
    """Commit the attempts, one for each table, by one call of `commit`. If another commit came first, make all attempts again.

    Only that call can have an unknown result. Otherwise as `commit_metadata_change`.
    """
    unknown: Exception | None = None
    for number in range(_ATTEMPTS + 1):  # the last round only checks how the commit before it ended
        try:
            made = [attempt() for attempt in attempts]
        except thrown(LifecycleError, OSError) as error:
            # An error between a commit and the check of its result does not show how the commit ended.
            if unknown is None:
                raise
            raise CommitUnknown(what) from error
        if all(changed == base for base, changed in made):
            return
        if unknown is not None:
            raise CommitUnknown(what) from unknown
        if number == _ATTEMPTS:
            break
        try:
            commit(made)
        except thrown() as error:
            if result_unknown(error):
                unknown = error
            elif java_class(error) != "CommitFailedException":
                raise
            else:
                time.sleep(random.uniform(0, min(0.02 * 2**number, 0.5)))  # or the quicker of two writers would come first each time
        else:
            return  # without another look: a catalog that fails in it would make a commit that is there an error
    raise TableBusy(what, _ATTEMPTS)


def current_metadata(place: Place) -> Java:
    """The table's `TableMetadata` as the catalog has them now. Raises TableGone, CatalogUnavailable."""
    with engine_failures():
        return _table_operations(place).current()


def changed_metadata(base: Java, change: Callable[[Java, Java], None]) -> Java:
    """Apply `change` to the metadata without a commit. Return the same object if `change` does nothing."""
    builder = _iceberg().TableMetadata.buildFrom(base)
    change(base, builder)
    return builder.build()


def _table_operations(place: Place) -> Java:
    jvm = engine_of_process()
    try:
        return jvm.lake.loadTable(identifier(jvm, place)).operations()
    except thrown() as error:
        if java_class(error) in NOT_THERE:
            raise TableGone(".".join(place)) from None
        raise


def _iceberg() -> Java:
    return engine_of_process().jvm.org.apache.iceberg


def document_of(metadata: Java) -> Document:
    """Return the `TableMetadata` as the document that its file would have."""
    found: Document = json.loads(_iceberg().TableMetadataParser.toJson(metadata))
    return found


def set_properties(base: Java, builder: Java, changes: Mapping[str, str | None]) -> None:
    """Within a change: set these, None removes one; nothing where they stand so."""
    now = entries(base.properties())
    new = {key: value for key, value in changes.items() if value is not None and now.get(key) != value}
    if new:
        builder.setProperties(new)
    gone = {key for key, value in changes.items() if value is None and key in now}
    if gone:
        builder.removeProperties(gone)
