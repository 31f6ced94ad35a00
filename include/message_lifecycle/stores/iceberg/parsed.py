"""Values in summaries and properties that another program may have changed, parsed into what we wrote or into a named error.

Only our program writes these keys, but anyone who may change a table may change them. An unreadable value is never taken for a missing one:
a missing count is zero, and a missing end offset is another writer's commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from message_lifecycle.model.errors import damaged_property
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant

_PARTITION_MAX = 2**31 - 1


def whole(value: object, key: str, *, least: int = 0, most: int = INT64_MAX) -> int:
    """Return the whole number that a JSON value, or the text of a property, holds.

    Raises:
        Refused: The value is not a whole number from `least` to `most` (`DamagedProperty`).
    """
    found = value
    if isinstance(value, str):
        try:
            found = int(value)
        except ValueError:
            found = None
    if type(found) is not int or not least <= found <= most:
        raise damaged_property(key, value, f"a whole number from {least} to {most}")
    return found


def instant(value: object, key: str) -> Instant:
    """Return a time in microseconds. Raises DamagedProperty."""
    return Instant(whole(value, key, least=INT64_MIN))


def json_object(text: object, key: str) -> dict[str, Any]:
    """Return the JSON object that a property holds. Raises DamagedProperty."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise damaged_property(key, text, "a JSON object")
    return found


def field(fields: Mapping[str, object], name: str, key: str) -> Any:
    """Return one field of a JSON object in the property `key`. Raises DamagedProperty."""
    if name not in fields:
        raise damaged_property(key, json.dumps(fields), f"the field {name}")
    return fields[name]


def partition(text: str, key: str) -> int:
    """Return the number of a partition. Raises DamagedProperty."""
    return whole(text, key, most=_PARTITION_MAX)


def offsets(text: object, key: str) -> dict[int, int]:
    """Return offsets by partition; -1 means no offset. Raises DamagedProperty."""
    return {partition(name, key): whole(offset, key, least=-1) for name, offset in json_object(text, key).items()}


def counts(summary: Mapping[str, str], key: str) -> dict[str, int]:
    """Return rows by reason, in their order. A commit without the key has none. Raises DamagedProperty."""
    return {name: whole(rows, key) for name, rows in json_object(summary.get(key, "{}"), key).items()}


def count(summary: Mapping[str, str], key: str) -> int:
    """Return a count; 0 where the commit does not say one. Raises DamagedProperty."""
    return whole(summary.get(key, "0"), key)


def one_of(value: object, allowed: Sequence[str], key: str) -> str:
    """Return the value if it is one of these texts. Raises DamagedProperty."""
    found = next((one for one in allowed if one == value), None)
    if found is None:
        raise damaged_property(key, value, f"one of {', '.join(map(repr, allowed))}")
    return found


def flag(value: object, key: str) -> bool:
    """Return a JSON truth value. Raises DamagedProperty."""
    if not isinstance(value, bool):
        raise damaged_property(key, value, "true or false")
    return value
