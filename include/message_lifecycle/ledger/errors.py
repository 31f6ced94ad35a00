"""Errors of the ledger's own storage; none of them shows a password."""

from __future__ import annotations

from message_lifecycle.model.errors import BadInput, LifecycleError, Refused, Unavailable


class InvalidLedgerUrl(BadInput):
    """The ledger's address cannot be read, or names a database that holds no ledger."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"LIFECYCLE_LEDGER_URL: {reason}. Allowed: postgresql://user:password@host:port/database, or sqlite:///file for trials."
        )


class LedgerUnavailable(Unavailable):
    """The ledger's database does not answer, or gave up in the middle."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the ledger at {place} does not answer: {reason}. Start its database (the embedded one: `lifecycle up`) or correct "
            "LIFECYCLE_LEDGER_URL, then try again."
        )


class LedgerNotMigrated(Refused):
    """The database holds no ledger yet, or one of an earlier version."""

    def __init__(self, place: str, found: int, needed: int) -> None:
        self.place, self.found, self.needed = place, found, needed
        state = f"is of version {found}, this program needs {needed}" if found else "has no ledger yet"
        super().__init__(f"the database at {place} {state}. Run `lifecycle ledger migrate`.")


class LedgerTooNew(Refused):
    """A newer program has migrated the ledger; an older one may not write to what it does not know."""

    def __init__(self, place: str, found: int, known: int) -> None:
        self.place, self.found, self.known = place, found, known
        super().__init__(f"the ledger at {place} is of version {found}, this program knows versions up to {known}. Use the newer program.")


class CorruptRecord(LifecycleError):
    """What the ledger holds is not what was written, or was written by a program that knows more. `advice`: what to do."""

    def __init__(
        self,
        what: str,
        reason: str,
        *,
        advice: str = "Use the program that wrote it, or restore the newest backup: `lifecycle ledger restore FILE`.",
    ) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what} in the ledger cannot be read: {reason}. Nothing is done with it. {advice}")


class BackupNotWritten(Unavailable):
    """The backup's file cannot be written; an earlier file of that name is as it was."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"the backup {path} was not written: {reason}. Name a file in a folder that can be written and has room.")


class BrokenBackup(BadInput):
    """A file that is no whole backup of a ledger; nothing was restored."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} is not a whole ledger backup: {reason}. Nothing was restored. Give a file that `lifecycle ledger backup` wrote."
        )


class LedgerNotEmpty(Refused):
    """Restoring would mix two memories."""

    def __init__(self, place: str, found: str) -> None:
        self.place, self.found = place, found
        super().__init__(
            f"the ledger at {place} is not empty: {found}. Restore into a new database, then point LIFECYCLE_LEDGER_URL at it."
        )
