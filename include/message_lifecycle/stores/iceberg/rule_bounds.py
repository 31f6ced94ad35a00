"""Rules about messages, rendered for the bounds of a file: from when on some, and all, of its messages may be taken.

What the metadata does not say is taken as it keeps data: some may be (so the file is read), all are not known to be.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN
from message_lifecycle.model.rules import After, Both, Either, Known, Never, Not, Rule, TimeColumn
from message_lifecycle.stores.iceberg.segments import FileMetrics


class Begins(NamedTuple):
    """INT64_MIN: always; INT64_MAX: never (`some`), or not known (`all`)."""

    some: int
    all: int


_ALWAYS = Begins(INT64_MIN, INT64_MIN)
_NO = Begins(INT64_MAX, INT64_MAX)
_MAYBE = Begins(INT64_MIN, INT64_MAX)


def begins(rule: Rule, file: FileMetrics) -> Begins:
    match rule:
        case After(column, us):
            lower, upper, nulls = _bounds(column, file)
            if nulls == file.rows:
                return _NO
            known = _all_known(column, file)
            return Begins(
                INT64_MIN if lower is None else min(lower + us, INT64_MAX),
                INT64_MAX if upper is None or not known else min(upper + us, INT64_MAX),
            )
        case Never():
            return _NO if file.without_never == file.rows or file.never is False else _MAYBE
        case Known(column):
            if _bounds(column, file)[2] == file.rows:
                return _NO
            return _ALWAYS if _all_known(column, file) else _MAYBE
        case Not(inner):
            found = begins(inner, file)
            return _ALWAYS if found.some == INT64_MAX else _NO if found.all == INT64_MIN else _MAYBE
        case Either(rules):
            each = [begins(inner, file) for inner in rules]
            return Begins(min((b.some for b in each), default=INT64_MAX), min((b.all for b in each), default=INT64_MAX))
        case Both(rules):
            each = [begins(inner, file) for inner in rules]
            return Begins(max((b.some for b in each), default=INT64_MIN), max((b.all for b in each), default=INT64_MIN))
        case never:
            assert_never(never)


def _bounds(column: TimeColumn, file: FileMetrics) -> tuple[int | None, int | None, int | None]:
    if column == "append_time":
        return file.oldest_at, file.newest_at, file.unknown_times
    return file.expires_from, file.expires_to, file.without_expiry


def _all_known(column: TimeColumn, file: FileMetrics) -> bool:
    """Whether no row's time is missing, or one of those that stand for unknown."""
    lower, upper, nulls = _bounds(column, file)
    if nulls != 0 or lower is None or upper is None:
        return False
    return lower != INT64_MIN and not (column == "append_time" and lower <= 0 <= upper)
