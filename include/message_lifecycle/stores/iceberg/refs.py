"""Changing a table's branches.

Iceberg takes a commit of data up again when another one came first, but not such a change: it only says that a refresh is
required. So it is made anew here, on what the table is then.
"""

from __future__ import annotations

from collections.abc import Callable

from message_lifecycle.model.errors import CommitUnknown, TableBusy
from message_lifecycle.stores.iceberg.session import UNKNOWN_RESULT, Java, java_class

_ATTEMPTS = 10


def set_refs(table: Java, change: Callable[[Java], Java], *, what: str) -> None:
    """Commit a change of branches. `what` names the deed in errors. Raises TableBusy, CommitUnknown.

    `change` is given Iceberg's ManageSnapshots once for each attempt, and finds `table` at the state that the attempt builds on.
    """
    from py4j.protocol import Py4JJavaError

    for _ in range(_ATTEMPTS):
        try:
            change(table.manageSnapshots()).commit()
        except Py4JJavaError as error:
            kind = java_class(error)
            if kind in UNKNOWN_RESULT:
                raise CommitUnknown(what) from error
            if kind != "CommitFailedException":
                raise
            table.refresh()
        else:
            return
    raise TableBusy(what, _ATTEMPTS)
