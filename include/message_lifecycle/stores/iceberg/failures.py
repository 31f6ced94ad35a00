"""What it means when the engine stops in the middle of a deed: the disk is full, or the catalog's database has gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from message_lifecycle.model.errors import CatalogUnavailable, LifecycleError, storage_full
from message_lifecycle.stores.iceberg.pointers import FULL_NUMBERS
from message_lifecycle.stores.iceberg.session import Java

_FULL = re.compile(r"No space left on device|File too large|Disk quota exceeded", re.IGNORECASE)
# SQL states: a connection that cannot be made or broke, a server that shuts down; a server without room.
_GONE, _NO_ROOM = ("08", "57P"), "53100"
_MOST_CAUSES = 10


@contextmanager
def engine_failures() -> Iterator[None]:
    """Raises StorageFull or CatalogUnavailable where that is why the engine stopped; anything else as it is.

    A commit that may have been made is told before, where it is made (CommitUnknown). Imports no engine: what it is put around may
    need none.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_NUMBERS:
            raise
        raise storage_full(str(error.strerror)) from error
    except Exception as error:  # of any engine: it is looked at, and raised again where it says nothing of the kind
        named = _named(error)
        if named is None:
            raise
        raise named from error


def _named(error: Exception) -> LifecycleError | None:
    for cause in islice(_causes(error), _MOST_CAUSES):
        text = str(cause.toString())
        if found := _FULL.search(text):
            return storage_full(found.group(0))
        state = _sql_state(cause)
        if state.startswith(_GONE):
            return CatalogUnavailable(text.splitlines()[0].rstrip("."))
        if state == _NO_ROOM:
            return storage_full(text.splitlines()[0])
    return None


def _sql_state(cause: Java) -> str:
    from py4j.protocol import Py4JError

    try:
        return str(cause.getSQLState())
    except Py4JError:
        return ""  # no error of a database: it has no such method


def _causes(error: Exception) -> Iterator[Java]:
    """The Java exceptions behind an error of py4j or of Spark; of any other there are none."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        yield java
        java = java.getCause()
