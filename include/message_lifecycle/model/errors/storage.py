"""Spark, the catalog, tables and disks."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused, Unavailable


class SparkUnavailable(Unavailable):
    """No Spark session can be had."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Spark is not available: {reason}. `make up` sets up the embedded one; elsewhere check SPARK_CONF_DIR and JAVA_HOME."
        )


class CatalogUnavailable(Unavailable):
    """The table catalog does not answer, or is not configured."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the table catalog is not available: {reason}. Check that its database runs (embedded: `make up`) and that PYICEBERG_HOME "
            "names the folder of the `.pyiceberg.yaml` that has the catalog `lake`."
        )


class TableBusy(Unavailable):
    """Other commits to the table came first, every time."""

    def __init__(self, what: str, attempts: int) -> None:
        self.what, self.attempts = what, attempts
        super().__init__(f"{what}: other commits to the table came first in all {attempts} attempts; nothing was changed. Try again.")


class CommitRefused(Refused):
    """Iceberg found that the table has changed in a way that the commit does not allow."""

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what}: the table has changed, nothing was committed: {reason}")


class CommitUnknown(Unavailable):
    """Nobody said how a commit ended; it may be there (DEL-4). `who`: who ought to have said it."""

    def __init__(self, what: str, *, who: str = "the catalog") -> None:
        self.what = what
        super().__init__(
            f"{what}: {who} did not say whether the commit was made. Run the same step again: it looks first, and repeats nothing."
        )


class ForeignTable(BadInput):
    """A table of that name was made by another writer and carries none of our properties."""

    def __init__(self, topic: str, table: str) -> None:
        self.topic, self.table = topic, table
        super().__init__(
            f"table {table} is there, but it is not the table of topic {topic!r}: it carries no `lifecycle.` properties. "
            "Choose another stream or topic name, or rename that table."
        )


class StorageFull(Unavailable):
    """The disk ended before the work did."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}: there is no room for the table's files or for Spark's own (spark.local.dir). Nothing was published; "
            "free some space and run the same command again."
        )


class StorageRefused(Unavailable):
    """The file system lets us not read or write where a log or an archive lies."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"{place}: {reason}. Nothing was published; see that the folder is there, mounted for writing, and open to the user of this "
            "process, then run the same command again."
        )


class BackendUnavailable(Unavailable):
    """A backend's server cannot be reached, or does not let us in."""

    def __init__(self, backend: str, reason: str, remedy: str) -> None:
        self.backend, self.reason, self.remedy = backend, reason, remedy
        super().__init__(f"backend {backend} is not available: {reason}. {remedy}.")


class ForeignKey(Refused):
    """A key of a backend holds what is not ours; nothing of it is read as messages, nor changed."""

    def __init__(self, topic: str, key: str, found: str) -> None:
        self.topic, self.key, self.found = topic, key, found
        super().__init__(
            f"topic {topic}: the key {key} {found}. Another program writes there: give the topic another name, or move what is foreign away; "
            "nothing was changed."
        )
