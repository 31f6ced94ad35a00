"""Spark, the catalog, tables and disks. Also backends without tables: unsupported limits and damaged or locked files."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from message_lifecycle.model.errors.given import BadInput, LifecycleError, Refused, Unavailable

# Spark, the catalog, tables and disks.


# The most characters that an error shows of another program's value.
_SHOWN = 120


class SparkUnavailable(Unavailable):
    """No Spark session can start."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"Spark is not available: {reason}. Check SPARK_CONF_DIR and JAVA_HOME. `make up` installs the embedded Spark.")


class CatalogUnavailable(Unavailable):
    """The table catalog does not answer, or has no configuration.

    Args:
        advice: What to do, if the catalog's database is not the cause.
    """

    def __init__(self, reason: str, *, advice: str = "Check that its database runs (embedded: `lifecycle up`), and try again.") -> None:
        self.reason = reason
        super().__init__(f"the table catalog is not available: {reason}. {advice}")


class TableBusy(Unavailable):
    """Other commits to the table came first, every time."""

    def __init__(self, what: str, attempts: int) -> None:
        self.what, self.attempts = what, attempts
        super().__init__(f"{what}: other commits to the table came first in all {attempts} attempts. Nothing was changed. Try again.")


class CommitRefused(Refused):
    """Iceberg found that the table has changed in a way that the commit does not allow."""

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what}: the table has changed: {reason}. Nothing was committed. Run again.")


class CommitUnknown(Unavailable):
    """A commit ended without an answer, so it may exist (DEL-4).

    Args:
        who: The system that should have answered.
    """

    def __init__(self, what: str, *, who: str = "the catalog") -> None:
        self.what = what
        super().__init__(f"{what}: {who} did not confirm the commit. Run the same step again. It checks first, and repeats nothing.")


def no_transactions(setting: str, reason: str) -> BadInput:
    """The configuration asks for commits of several tables at once, but the catalog does not offer them."""
    return BadInput(
        f"{setting} is true in spark-defaults.conf, but {reason}. Nothing was published. Remove the setting: then each table has a commit of its "
        "own. docs/catalogs.md lists the catalogs that support it.",
        code="NoTransactions",
    )


class ForeignTable(BadInput):
    """Another writer made a table of that name, without any of our properties."""

    def __init__(self, topic: str, table: str) -> None:
        self.topic, self.table = topic, table
        super().__init__(
            f"table {table} exists, but another program made it: it has no `lifecycle.` properties. "
            f"Choose another name for topic {topic!r}, or rename that table."
        )


class LogStateLost(Refused):
    """The end of a log or the horizon of its view is unknown (MSG-4).

    A witness of its state is missing, or two witnesses disagree.
    """

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"{table}: the state of the log is lost: {reason}. Another engine has changed the table's history or properties. The topic takes no "
            "writes and no removals until a repair. Show the state: `lifecycle topic repair TOPIC`. Repair it: add --by NAME --why WHY."
        )


class AppendedBelowEnd(LogStateLost):
    """Another engine appended messages under offsets that the log has given before, or to a mirror (MSG-4)."""

    def __init__(self, table: str, snapshot_id: int, found: str) -> None:
        self.table, self.reason = table, found
        Refused.__init__(
            self,
            f"{table}: another engine's append, snapshot {snapshot_id}, brought {found}. Readers past these offsets never see the "
            "messages. The topic takes no writes and no removals until a repair. Delete the messages with that "
            "engine, or roll the table back to the snapshot before. To keep the messages: `lifecycle topic repair TOPIC --by NAME --why WHY`.",
        )


class LogRolledBack(Refused):
    """Main does not come from our newest commit: another engine has rolled the table back (MSG-4)."""

    def __init__(self, table: str, head: int | None, ours: int) -> None:
        self.table, self.head, self.ours = table, head, ours
        at = "no snapshot" if head is None else f"snapshot {head}"
        super().__init__(
            f"{table}: another engine rolled the table back to {at}. Our newest commit, snapshot {ours}, is not part of it. The topic takes no "
            "writes and no removals until a repair. Roll the table forward to that commit, or accept the loss: "
            "`lifecycle topic repair TOPIC --accept-rollback --by NAME --why WHY`."
        )


def nothing_to_repair(topic: str) -> BadInput:
    """A person asked for a repair, but the witnesses agree."""
    return BadInput(
        f"topic {topic}: the witnesses of its log agree, so there is nothing to repair. Nothing was changed.", code="NothingToRepair"
    )


def java_ended() -> Unavailable:
    """Java ended before it answered. If that happens during a commit, the error is CommitUnknown instead."""
    return Unavailable(
        "Java ended before it answered. Nothing further was published. Run the same command again. If Java ends again, read its last lines in "
        "the log. If they are about memory, raise spark.driver.memory.",
        code="JavaEnded",
    )


def cluster_lost(master: str) -> Unavailable:
    """A driver has lost its Spark cluster."""
    return Unavailable(
        f"the Spark cluster at {master} has no executor left for this run. Nothing further was published. Check that its master and workers run. "
        "Then run the same command again.",
        code="ClusterLost",
    )


def table_ahead(*, updated: str, now: str) -> Refused:
    """A machine whose clock was ahead has written a table. Iceberg refuses commits with an earlier time."""
    return Refused(
        f"the table's last update has the time {updated}, but this machine's clock says {now}. Iceberg accepts commits from one minute before that "
        "time on. Nothing was committed. Wait until then. If this machine's clock is wrong, set it (NTP).",
        code="TableAhead",
    )


def storage_full(reason: str) -> Unavailable:
    """The disk is full."""
    return Unavailable(
        f"{reason}: the disk of the table's files, or of Spark's temporary files (spark.local.dir), is full. Nothing further was published. "
        "Free some space, then run the same command again.",
        code="StorageFull",
    )


def storage_refused(place: str, reason: str) -> PartlyUnavailable:
    """The file system refuses to read or write the place of a table, a log or an archive."""
    return PartlyUnavailable(
        f"{place}: {reason}. Nothing further was published. Check that the folder exists, is mounted for writing, and that this user may write "
        "to it. Then run the same command again.",
        code="StorageRefused",
    )


# The operating system's codes for a full disk, and for a refusal.
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG,
    errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO,
)  # fmt: skip


def storage_failure(error: OSError, place: str) -> Unavailable | None:
    """Return the error for a full disk or a refusing file system. None for any other error.

    Args:
        error: The error of the operating system.
        place: The place to name if the error names no file.
    """
    if error.errno in DISK_FULL:
        return storage_full(f"{error.filename or place}: {error.strerror}")
    return storage_refused(str(error.filename or place), str(error.strerror)) if error.errno in _REFUSED else None


class PartlyUnavailable(Unavailable):
    """One topic or one backend is out of reach. The others continue."""


class TableUnreadable(PartlyUnavailable, OSError):
    """The catalog has the table, but its metadata cannot be read. The table exists, and its content is unknown."""

    def __init__(self, table: str, location: str, reason: str) -> None:
        self.table, self.location = table, location
        super().__init__(
            f"cannot read the metadata {location} of table {table}: {reason}. Nothing was changed. Check that the folder or bucket exists, is "
            "mounted, and that this user may read it. Restore a lost or damaged file from a backup."
        )


class FileUnreadable(PartlyUnavailable, OSError):
    """A file that a table names, of data or of its metadata, is damaged or out of reach."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path}: cannot read this file of a table: {reason}. Nothing was changed. Check that its folder or bucket exists, is mounted, and "
            "that this user may read it. Restore a lost or damaged file from a backup."
        )
        self.filename = path
        self._reason = reason

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type[FileUnreadable], tuple[str, str]]:
        """Keep path and reason, so that the error can travel from a task on another machine."""
        return type(self), (self.filename, self._reason)


class FileLost(FileUnreadable, FileNotFoundError):
    """A file that a table names is missing."""


def keys_unknown(path: str) -> PartlyUnavailable:
    """Return the error for a data file without a column `key`, if a question needs its keys."""
    return PartlyUnavailable(
        f"{path}: the file has no column `key`, so the keys of its messages are unknown. Another program wrote it. Nothing was changed. Write its "
        "messages again with that column, or name messages by offset.",
        code="KeysUnknown",
    )


def damaged_property(key: str, found: object, allowed: str) -> Refused:
    """A summary or a property of a table has a value that our program never writes."""
    shown = ascii(found)
    return Refused(
        f"{key} is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + ' ...'}. Allowed: {allowed}. Another program changed it. This table was not "
        "read or changed. Set the earlier value again, or roll the table back to a snapshot from before the change.",
        code="DamagedProperty",
    )


def file_listed_twice(path: str) -> Refused:
    """A snapshot lists one data file more than once, so the table has its rows as often."""
    return Refused(
        f"{path}: the table's manifests list this data file more than once. Another program added it again. Nothing was planned or removed. Roll "
        "the table back to the snapshot before that, or rewrite the file with that program.",
        code="FileListedTwice",
    )


def offset_given_twice(offset: int, files: Sequence[str]) -> Refused:
    """Two messages of a log have the same partition and offset, so no plan can name one of them."""
    return Refused(
        f"{', '.join(files)}: more than one message of the partition has offset {offset}. Another program wrote them. Nothing was "
        "planned or removed. Delete all but one with that program, or roll the table back to the snapshot before.",
        code="OffsetGivenTwice",
    )


def message_without_place(path: str, column: str) -> Refused:
    """A row of a log has no partition, segment or offset, so no plan can name it."""
    return Refused(
        f"{path}: the file has messages without {column}. Allowed: a value in each row. Another program wrote the file. Nothing was planned or "
        "removed. Delete these rows with that program, or roll the table back to the snapshot before.",
        code="MessageWithoutPlace",
    )


def offsets_used_up(path: str, offset: int) -> Refused:
    """Another engine appended a message under the last possible offset."""
    return Refused(
        f"{path}: a message has the last possible offset, {offset}. Another program wrote the file. Nothing was planned, written "
        "or removed. Delete the message with that program, or roll the table back to the snapshot before.",
        code="OffsetsUsedUp",
    )


def internal_error(topic: str, error: Exception) -> LifecycleError:
    """Work on one topic met an unforeseen error. The log has the traceback."""
    shown = (str(error).splitlines() or [""])[0][:_SHOWN]
    return LifecycleError(
        f"topic {topic}: {type(error).__name__}: {shown}. This is a defect of the program, or an unknown state of the topic. The log "
        "has the traceback. The other topics are not affected.",
        code="InternalError",
    )


def table_not_told(table: str) -> PartlyUnavailable:
    """The catalog has the table but does not report its location. Its files may therefore be among a topic's own files."""
    return PartlyUnavailable(
        f"the catalog does not report the location of table {table}. Its files may be in the topic's own folders, so nothing was removed. Try "
        "again. If the error stays, repair that table, or remove it from the catalog.",
        code="TableNotTold",
    )


def topic_missing(topic: str) -> PartlyUnavailable:
    """The ledger knows the topic, and no plan has deleted it. A missing topic is not a topic that never existed."""
    return PartlyUnavailable(
        f"topic {topic} is missing. The ledger has it, but neither the catalog nor a backend of lifecycle.toml does, and no plan deleted it. "
        "Causes: another program dropped it, its disk or server is away, the catalog is an older one, or the configuration lacks it. "
        "Nothing was created in its place. Bring it back. If another program was meant to drop it: "
        f"`lifecycle topic forget {topic} --by NAME --why WHY`.",
        code="TopicMissing",
    )


def tables_missing(topic: str, plan_id: str, tables: str) -> PartlyUnavailable:
    """A published plan cannot be verified, because a table next to the topic's log is missing."""
    return PartlyUnavailable(
        f"topic {topic}: plan {plan_id[:12]} is published, but cannot be verified: its {tables} is not in the catalog under its name. "
        f"The plan stays open. Bring the table back under its name, then run `lifecycle verify {plan_id[:12]}`. "
        f"If you dropped the table with its files: `lifecycle topic repair {topic} --give-up-tables --by NAME --why WHY`.",
        code="TablesMissing",
    )


def table_vanished(found: str) -> PartlyUnavailable:
    """Another engine renamed or dropped a table while we worked on it."""
    return PartlyUnavailable(
        f"a table left the catalog during the work on the topic ({found}). Another engine renamed or dropped it. Bring the table back under its "
        "name. Then run the same command again to continue.",
        code="TableVanished",
    )


class BackendUnavailable(PartlyUnavailable):
    """A backend's server cannot be reached, or does not let us in."""

    def __init__(self, backend: str, reason: str, remedy: str) -> None:
        self.backend, self.reason, self.remedy = backend, reason, remedy
        super().__init__(f"backend {backend} is not available: {reason}. {remedy}.")


def foreign_key(topic: str, key: str, found: str) -> Refused:
    """A key of a backend holds foreign data. The system neither reads it as messages nor changes it."""
    return Refused(
        f"topic {topic}: the key {key} {found}. Another program wrote it. Nothing was changed. Give the topic another name, or move the foreign "
        "data away.",
        code="ForeignKey",
    )


# Backends without tables.


def unsupported_limit(*, backend: str, limit: str, where: str, allowed: str) -> BadInput:
    """RET-6: a policy asks for a limit that the backend does not support. Loading refuses the policy, instead of ignoring the limit."""
    return BadInput(
        f"{where}: the backend {backend} does not support {limit} (RET-6). Allowed: {allowed}. Compare the backends: `lifecycle backends`.",
        code="UnsupportedLimit",
    )


def not_in_a_backend(topic: str, known: Sequence[str]) -> BadInput:
    """The operation `retention` is only for topics of configured backends. On a table, retention is part of the message cleaner (RET-5)."""
    return BadInput(
        f"topic {topic} is in no backend of lifecycle.toml. For a table, the message cleaner does the retention. "
        f"Topics of backends: {', '.join(known) or 'none'}.",
        code="NotInABackend",
    )


def log_replaced(topic: str, found: int, wanted: int) -> PartlyUnavailable:
    """A read saw messages leave the log, so its result describes no single state of the log."""
    return PartlyUnavailable(
        f"topic {topic!r}: another process removed messages during the read (generation {wanted} became {found}). "
        "Nothing was changed. Run the same command again.",
        code="LogReplaced",
    )


def log_locked(topic: str, holder: str, waited_seconds: float) -> PartlyUnavailable:
    """Another process is writing to the log."""
    return PartlyUnavailable(
        f"topic {topic!r} is locked by {holder}, still after {waited_seconds:g} s. Nothing was changed. Wait until that process has finished, or "
        "stop it. Then try again. The lock ends with the process. Do not delete a file.",
        code="LogLocked",
    )


def damaged_log(file: str, found: str, allowed: str) -> Refused:
    """The description of a log cannot be read. The system writes nothing to the log before a person has checked it."""
    return Refused(
        f"{file}: found {found}. Allowed: {allowed}. This log is neither read nor written. Restore the file from a backup.",
        code="DamagedLog",
    )


def no_quarantine(topic: str) -> BadInput:
    """QUA-1 is about the quarantine of tables. Damaged records in other stores have no age."""
    return BadInput(f"topic {topic} has no quarantine. Only topics in tables have one.", code="NoQuarantine")


class UnsafePath(Refused):
    """A file of the store is a link, or not a plain file. A link could lead out of the store's folder."""

    def __init__(self, path: str, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(f"{path}: found {found}. Allowed: a plain file or folder below the store's own root, and no link out of it.")
