"""Changes of a table's metadata alone, by Iceberg's own library: properties, refs, snapshots that leave the history.

Each is one compare-and-swap by the catalog, whichever it is. What adds or removes files goes another way (`fence`), but for what is
staged already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from message_lifecycle.model.errors import CommitUnknown, LifecycleError, TableBusy
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.java import NOT_THERE, Java, Jvm, identifier, java_class, result_unknown
from message_lifecycle.stores.iceberg.session import engine

if TYPE_CHECKING:
    from message_lifecycle.stores.iceberg.pointers import Place

_ATTEMPTS = 20
Document = dict[str, Any]
"""A table's metadata as JSON, by the specification's names."""


class TableGone(Exception):
    """The catalog has no table of that name."""


def change_metadata(place: Place, change: Callable[[Java, Java], None], *, what: str) -> Java:
    """Commit what `change` does to Iceberg's `TableMetadata.Builder`, its second argument; its first is the `TableMetadata` that the attempt
    builds on. It is asked anew for each attempt, does nothing where all is done, and may raise to leave all as it is.

    The metadata that stand then. `what` names the deed in errors. Raises TableGone; CatalogUnavailable; TableBusy where other commits always
    come first; CommitUnknown where the catalog does not say how the commit ended, and `change` would still change something."""
    with engine_failures():
        return commit_metadata(_operations(place), change, what=what)


def commit_metadata(operations: Java, change: Callable[[Java, Java], None], *, what: str) -> Java:
    """As `change_metadata`, of the table behind Iceberg's `TableOperations`."""
    from py4j.protocol import Py4JError

    unknown: Py4JError | None = None
    for _ in range(_ATTEMPTS):
        try:
            base = operations.refresh()
            changed = changed_metadata(base, change)
        except (Py4JError, LifecycleError, OSError) as error:
            # What comes between a commit and the look for it does not tell how the commit ended.
            if unknown is None:
                raise
            raise CommitUnknown(what) from error
        if changed == base:
            return base
        if unknown is not None:
            raise CommitUnknown(what) from unknown
        try:
            operations.commit(base, changed)
        except Py4JError as error:
            if result_unknown(error):
                unknown = error
            elif java_class(error) != "CommitFailedException":
                raise
        else:
            return operations.current()
    raise TableBusy(what, _ATTEMPTS)


def current_metadata(place: Place) -> Java:
    """The table's `TableMetadata` as the catalog has them now. Raises TableGone, CatalogUnavailable."""
    with engine_failures():
        return _operations(place).current()


def changed_metadata(base: Java, change: Callable[[Java, Java], None]) -> Java:
    """What `change` makes of these metadata, which nobody commits; the very same where it does nothing."""
    builder = _iceberg().TableMetadata.buildFrom(base)
    change(base, builder)
    return builder.build()


def _operations(place: Place) -> Java:
    from py4j.protocol import Py4JJavaError

    jvm = cast(Jvm, engine())
    try:
        return jvm.lake.loadTable(identifier(jvm, place)).operations()
    except Py4JJavaError as error:
        if java_class(error) in NOT_THERE:
            raise TableGone(".".join(place)) from None
        raise


def _iceberg() -> Java:
    return cast(Jvm, engine())._jvm.org.apache.iceberg


def document_of(metadata: Java) -> Document:
    """What the `TableMetadata` would be as a file."""
    found: Document = json.loads(_iceberg().TableMetadataParser.toJson(metadata))
    return found


def set_properties(base: Java, builder: Java, changes: Mapping[str, str | None]) -> None:
    """Within a change: set these, None removes one; nothing where they stand so."""
    now = dict(base.properties())
    new = {key: value for key, value in changes.items() if value is not None and now.get(key) != value}
    if new:
        builder.setProperties(new)
    gone = {key for key, value in changes.items() if value is None and key in now}
    if gone:
        builder.removeProperties(gone)
