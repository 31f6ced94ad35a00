"""Plain lines of JSON as messages, in this process: for batches so small that starting Spark would be nearly all of the work.

A line is plain where every reader of JSON must read the same from it. Of a batch with any other line nothing is taken here: Spark's readers
(`records`) decide what it is, and what is refused and why. So no rule has a second place, and a property test holds the two equal.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant, of_datetime
from message_lifecycle.model.message import Header, NewMessage
from message_lifecycle.sources.files import UTF_8, InputFile
from message_lifecycle.sources.mapping import PLAUSIBLE_FROM, PLAUSIBLE_TO, FieldMapping, Unit

_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark."""
_SURROGATE = re.compile(rb"\\u[dD]")
"""How the escape of half a letter begins; a pair of them is one letter, and not all readers agree on what is none."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])?)?")
# Far below what any reader takes.
_MOST_DIGITS, _MOST_PARTS, _MOST_LETTERS = 100, 200, 1_000
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class _NotPlain(Exception):
    """Never leaves this module."""


class _Number(str):
    """A whole number as it stands in the line."""

    __slots__ = ()


class _Odd:
    """A value whose text is not the same to every reader: a number with a point or exponent, true and false."""


def plain_messages(files: Sequence[InputFile], mapping: FieldMapping, *, partitions: int) -> list[NewMessage] | None:
    """The messages of these files in their order, read whole; None where any line is not plain, or breaks a rule."""
    if mapping.encoding != UTF_8 or any(file.kind != "json lines" or file.is_packed for file in files):
        return None
    try:
        return [_message(line, mapping, partitions) for file in files for line in _lines(file)]
    except (_NotPlain, ValueError, RecursionError, OSError, LifecycleError):  # of a file that is not there, too: Spark's readers name it
        return None


def _lines(file: InputFile) -> Iterator[bytes]:
    with file.open() as content:
        text = content.read()
    if text.startswith(_MARK):
        raise _NotPlain
    # A line ends by a line feed, a carriage return, or both, as Hadoop's reader ends it.
    return (line for line in text.splitlines() if line.strip(b" "))


def _message(line: bytes, mapping: FieldMapping, partitions: int) -> NewMessage:
    if _SURROGATE.search(line) or line.count(b"{") + line.count(b"[") > _MOST_PARTS:
        raise _NotPlain
    record = _parsed(line.decode(UTF_8))
    if not isinstance(record, dict):
        raise _NotPlain
    key = _bytes(record, mapping.key)
    value = line if mapping.value is None else _bytes(record, mapping.value)
    return NewMessage(
        append_time=_time(_text(record, mapping.append_time), mapping.append_time_unit),
        event_time=_time(_text(record, mapping.event_time), mapping.event_time_unit),
        key=key,
        value=value,
        headers=() if mapping.headers is None else _headers(record.get(mapping.headers)),
        partition=_partition(_text(record, mapping.partition), key, value, partitions),
    )


def _parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_fields, parse_int=_number, parse_float=_float, parse_constant=_refuse)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) or any(len(name) > _MOST_LETTERS for name in found):
        raise _NotPlain
    return found


def _number(text: str) -> _Number | _Odd:
    if len(text) > _MOST_DIGITS:
        raise _NotPlain
    return _Number(text) if _WHOLE.fullmatch(text) else _Odd()


def _float(text: str) -> _Odd:
    if len(text) > _MOST_DIGITS:
        raise _NotPlain
    return _Odd()


def _refuse(_: str) -> None:
    raise _NotPlain


def _text(record: dict[str, Any], field: str | None) -> str | None:
    found = None if field is None else record.get(field)
    if found is None or isinstance(found, str):
        return found
    raise _NotPlain


def _bytes(record: dict[str, Any], field: str | None) -> bytes | None:
    found = _text(record, field)
    return None if found is None else found.encode(UTF_8)


def _time(text: str | None, unit: Unit) -> Instant | None:
    """None: it is not known (CLK-4)."""
    if not text:
        return None
    if unit == "iso":
        if not _TIME.fullmatch(text):
            raise _NotPlain
        found = of_datetime(datetime.fromisoformat(text))
    else:
        if not _WHOLE.fullmatch(text):
            raise _NotPlain
        # Rounded up: a deadline may only ever be rounded later (TTL-3).
        found = Instant(-(-int(text) // 1_000) if unit == "ns" else int(text) * _MICROS[unit])
        if found == 0:
            return None
    if not PLAUSIBLE_FROM <= found < PLAUSIBLE_TO:
        raise _NotPlain
    return found


def _headers(given: Any) -> tuple[Header, ...]:
    if given is None or given == "":
        return ()
    match _parsed(given) if isinstance(given, str) else given:
        case dict() as named:
            pairs = list(named.items())
        case list() as listed:
            pairs = [_pair(header) for header in listed]
        case _:
            raise _NotPlain
    if any(type(value) is not str for _, value in pairs):
        raise _NotPlain
    return tuple((name, value.encode(UTF_8)) for name, value in pairs)


def _pair(header: Any) -> tuple[str, Any]:
    if not isinstance(header, dict) or header.keys() != {"name", "value"} or type(header["name"]) is not str:
        raise _NotPlain
    return header["name"], header["value"]


def _partition(given: str | None, key: bytes | None, value: bytes | None, partitions: int) -> int:
    if not given:
        content = key if key is not None else value
        return zlib.crc32(content if content is not None else b"") % partitions
    if not _PARTITION.fullmatch(given) or int(given) >= partitions:
        raise _NotPlain
    return int(given)
