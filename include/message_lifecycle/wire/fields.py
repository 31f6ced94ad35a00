"""The fields of Iggy's binary layouts, each with the byte at which it stands: numbers (little endian), names, identifiers.

A field that is cut off, out of its range or no text is a WireError with its offset; in a writer, the offset at which the field
would have stood. A number's range is one value that both directions read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from message_lifecycle.model.errors import InvalidName, WireError
from message_lifecycle.model.names import MAX_NAME_BYTES, normalise_name
from message_lifecycle.wire.iggy_messages import Identifier

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1

_NUMERIC, _STRING = 1, 2
_LITTLE: Literal["little"] = "little"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An unsigned integer of `width` bytes, and which values it may have."""

    name: str
    width: int
    minimum: int = 0
    maximum: int

    @property
    def allowed(self) -> str:
        return str(self.minimum) if self.minimum == self.maximum else f"a whole number from {self.minimum} to {self.maximum}"

    def holds(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum


_IDENTIFIER_KIND = Number(name="identifier kind", width=1, minimum=_NUMERIC, maximum=_STRING)
_NUMERIC_LENGTH = Number(name="identifier length", width=1, minimum=4, maximum=4)
_NUMERIC_VALUE = Number(name="identifier value", width=4, minimum=1, maximum=U32_MAX)
_STRING_LENGTH = Number(name="identifier length", width=1, minimum=1, maximum=MAX_NAME_BYTES)
_NAME_LENGTH = Number(name="name length", width=1, minimum=1, maximum=MAX_NAME_BYTES)


class FieldReader:
    """Reads one layout's fields in order; `end` refuses what follows the last one."""

    __slots__ = ("_at", "_data", "_layout")

    def __init__(self, layout: str, data: bytes) -> None:
        self._layout, self._data, self._at = layout, data, 0

    def number(self, field: Number) -> int:
        at = self._at
        value = int.from_bytes(self._take(field.name, field.width), _LITTLE)
        if not field.minimum <= value <= field.maximum:
            raise self._wrong(field.name, at, str(value), field.allowed)
        return value

    def name(self) -> str:
        """A name behind its length, as NAME-1 normalises it; one that cannot be normalised is at fault."""
        return self._text(_NAME_LENGTH, "name")

    def identifier(self) -> Identifier:
        if self.number(_IDENTIFIER_KIND) == _STRING:
            return self._text(_STRING_LENGTH, "identifier value")
        self.number(_NUMERIC_LENGTH)
        return self.number(_NUMERIC_VALUE)

    def end(self) -> None:
        if self._at < len(self._data):
            raise self._wrong("end", self._at, f"{len(self._data) - self._at} more bytes", "nothing after the last field")

    def _text(self, length: Number, field: str) -> str:
        size = self.number(length)
        at = self._at
        raw = self._take(field, size)
        try:
            return normalise_name(raw.decode())
        except UnicodeDecodeError as error:
            found = f"{raw[error.start : error.end].hex()}, which is no UTF-8"
            raise self._wrong(field, at + error.start, found, "UTF-8") from None
        except InvalidName as error:
            raise self._wrong(field, at, f"{error.name!r}: {error.reason}", error.ALLOWED) from None

    def _take(self, field: str, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) < length:
            raise self._wrong(field, self._at, f"{len(taken)} bytes and the end", f"{length} bytes")
        self._at += length
        return taken

    def _wrong(self, field: str, offset: int, found: str, allowed: str) -> WireError:
        return WireError(layout=self._layout, field=field, offset=offset, found=found, allowed=allowed)


class FieldWriter:
    """Writes one layout's fields in order."""

    __slots__ = ("_data", "_layout")

    def __init__(self, layout: str) -> None:
        self._layout, self._data = layout, bytearray()

    def number(self, field: Number, value: int) -> None:
        if not field.holds(value):
            raise WireError(layout=self._layout, field=field.name, offset=len(self._data), found=_shown(value), allowed=field.allowed)
        self._data += value.to_bytes(field.width, _LITTLE)

    def name(self, name: str) -> None:
        """The normalised name behind its length. Raises InvalidName."""
        self._text(_NAME_LENGTH, name)

    def identifier(self, identifier: Identifier) -> None:
        if isinstance(identifier, str):
            self.number(_IDENTIFIER_KIND, _STRING)
            self._text(_STRING_LENGTH, identifier)
        else:
            self.number(_IDENTIFIER_KIND, _NUMERIC)
            self.number(_NUMERIC_LENGTH, _NUMERIC_VALUE.width)
            self.number(_NUMERIC_VALUE, identifier)

    def written(self) -> bytes:
        return bytes(self._data)

    def _text(self, length: Number, text: str) -> None:
        raw = normalise_name(text).encode()
        self.number(length, len(raw))
        self._data += raw


def _shown(value: object) -> str:
    # Python refuses to write thousands of digits.
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 64 else repr(value)
