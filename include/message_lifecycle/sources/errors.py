"""What can be wrong with input files; each error names the file or field, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors import BadInput


class NoInput(BadInput):
    """The path to ingest holds nothing."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"nothing to ingest at {path}: {reason}.")


class UnreadableFile(BadInput):
    """A file cannot be read at all; no row of the whole batch was taken."""

    def __init__(self, file: str, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(f"file {file} cannot be read: {reason}. Nothing was taken from this or any other file; mend it or move it away.")


class MissingField(BadInput):
    """A file has no field of a name that was asked for."""

    def __init__(self, file: str, field: str, fields: Sequence[str]) -> None:
        self.file, self.field, self.fields = file, field, tuple(fields)
        super().__init__(f"file {file} has no field {field!r}. It has: {', '.join(fields)}. Nothing was taken.")


class WrongTimeUnit(BadInput):
    """Times that lie so far from any likely date that the unit must be another."""

    def __init__(self, *, field: str, value: str, unit: str, reads_as: str | None, likely: str | None, rows: int, of: int) -> None:
        self.field, self.value, self.unit, self.likely, self.rows = field, value, unit, likely, rows
        found = f"{value!r} in unit {unit!r} is {reads_as}" if reads_as else f"{value!r} was found for unit {unit!r}"
        hint = f"it looks like unit {likely!r}" if likely else "that is no date from 1990 to 2099"
        super().__init__(
            f"field {field!r}: {found}; {hint} ({rows} of {of} rows are like that). Nothing was taken. "
            "Give the right unit, or --allow-implausible-times if these times are meant."
        )
