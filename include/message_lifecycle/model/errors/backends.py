"""Backends that are no tables: what they cannot do, and what stands in the way of their files."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors.kinds import BadInput, Refused, Unavailable


class UnsupportedLimit(BadInput):
    """RET-6: a policy asks for what the backend cannot hold; it is refused when it is loaded, never passed over."""

    def __init__(self, *, backend: str, limit: str, where: str, allowed: str) -> None:
        self.backend, self.limit, self.where, self.allowed = backend, limit, where, allowed
        super().__init__(
            f"{where}: the backend {backend} cannot do {limit} (RET-6). Allowed there: {allowed}. `lifecycle backends` shows what each can."
        )


class NotInABackend(BadInput):
    """Retention alone is for topics of configured backends; on a table it is part of the message cleaner's work (RET-5)."""

    def __init__(self, topic: str, known: Sequence[str]) -> None:
        self.topic, self.known = topic, tuple(known)
        super().__init__(
            f"topic {topic} is in no backend of lifecycle.toml: a table's retention is the message cleaner's. "
            f"Topics of backends: {', '.join(known) or 'none is configured'}."
        )


class LogReplaced(Unavailable):
    """Messages went from the log while it was read; what was read describes no one state of it."""

    def __init__(self, topic: str, found: int, wanted: int) -> None:
        self.topic, self.found, self.wanted = topic, found, wanted
        super().__init__(
            f"topic {topic!r}: messages went from the log while it was looked at (generation {wanted} became {found}). "
            "Nothing was changed; run the same command again."
        )


class LogLocked(Unavailable):
    """Another process is writing to the log."""

    def __init__(self, topic: str, holder: str, waited_seconds: float) -> None:
        self.topic, self.holder = topic, holder
        super().__init__(
            f"topic {topic!r} is locked by {holder}, also after {waited_seconds:g} s. Nothing was changed: wait until it has finished, or "
            "stop it, then try again. The lock goes with the process that holds it; no file needs to be removed by hand."
        )


class DamagedLog(Refused):
    """What says what the log is cannot be read; nothing is written to it before a person has looked."""

    def __init__(self, file: str, found: str, allowed: str) -> None:
        self.file, self.found, self.allowed = file, found, allowed
        super().__init__(
            f"{file}: found {found}. Allowed: {allowed}. Nothing is read from or written to this log as it is; restore the file from a backup."
        )


class NoQuarantine(BadInput):
    """QUA-1 is about the quarantine of tables; what other stores keep of damaged records has no age."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} has no quarantine whose rows have an age: only topics of tables have one.")


class UnsafePath(Refused):
    """A file of the store is a link, or no plain file: it could lead out of the store's folder."""

    def __init__(self, path: str, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(f"{path}: found {found}. Allowed: a plain file or folder below the store's own root, which no link leads out of.")
