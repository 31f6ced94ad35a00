"""Errors of the ledger's own storage; none of them shows a password."""

from __future__ import annotations

from message_lifecycle.model.errors import BadInput, LifecycleError, Refused, Unavailable


def invalid_ledger_url(reason: str) -> BadInput:
    """The ledger's address cannot be read, or names a database that holds no ledger."""
    return BadInput(
        f"LIFECYCLE_LEDGER_URL: {reason}. Allowed: postgresql://user:password@host:port/database, or sqlite:///file for trials.",
        code="InvalidLedgerUrl",
    )


def ledger_unavailable(place: str, reason: str) -> Unavailable:
    """The ledger's database does not answer, or gave up in the middle."""
    return Unavailable(
        f"the ledger at {place} does not answer: {reason}. Start its database (the embedded one: `lifecycle up`) or correct "
        "LIFECYCLE_LEDGER_URL, then try again.",
        code="LedgerUnavailable",
    )


def ledger_not_migrated(place: str, found: int, needed: int) -> Refused:
    """The database holds no ledger yet, or one of an earlier version."""
    state = f"is of version {found}, this program needs {needed}" if found else "has no ledger yet"
    return Refused(f"the database at {place} {state}. Run `lifecycle ledger migrate`.", code="LedgerNotMigrated")


def ledger_too_new(place: str, found: int, known: int) -> Refused:
    """A newer program has migrated the ledger; an older one may not write to what it does not know."""
    return Refused(
        f"the ledger at {place} is of version {found}, this program knows versions up to {known}. Use the newer program.",
        code="LedgerTooNew",
    )


def corrupt_record(
    what: str,
    reason: str,
    *,
    advice: str = "Use the program that wrote it, or restore the newest backup: `lifecycle ledger restore FILE`.",
) -> LifecycleError:
    """What the ledger holds is not what was written, or was written by a program that knows more. `advice`: what to do."""
    return LifecycleError(f"{what} in the ledger cannot be read: {reason}. Nothing is done with it. {advice}", code="CorruptRecord")


def backup_not_written(path: str, reason: str) -> Unavailable:
    """The backup's file cannot be written; an earlier file of that name is as it was."""
    return Unavailable(
        f"the backup {path} was not written: {reason}. Name a file in a folder that can be written and has room.", code="BackupNotWritten"
    )


def broken_backup(path: str, reason: str) -> BadInput:
    """A file that is no whole backup of a ledger; nothing was restored."""
    return BadInput(
        f"{path} is not a whole ledger backup: {reason}. Nothing was restored. Give a file that `lifecycle ledger backup` wrote.",
        code="BrokenBackup",
    )


def ledger_not_empty(place: str, found: str) -> Refused:
    """Restoring would mix two memories."""
    return Refused(
        f"the ledger at {place} is not empty: {found}. Restore into a new database, then point LIFECYCLE_LEDGER_URL at it.",
        code="LedgerNotEmpty",
    )
