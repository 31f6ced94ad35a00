"""Iggy 0.0.50's binary layouts: the commands CreateTopic and CreateStream, the answers Topic and Stream, the identifier.

Encoders write names normalised (NAME-1) and raise InvalidName where that cannot be; a number out of range is a WireError.

Decoders take one whole message: a short, long or invalid one is a WireError with the offset at fault. Names that are not normalised
are valid in a *recorded* message, because Iggy's client sends a name as it was typed and its server normalises it. So a decoder gives
the name that the server would give, and only a name that NAME-1 refuses is at fault. Encoding such a message again therefore gives
the normalised bytes; for all others it gives the same bytes.

`message_expiry` is in whole seconds; 0 on the wire is None here: the message never expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from message_lifecycle.model.errors import InvalidName, WireError
from message_lifecycle.model.names import MAX_NAME_BYTES, normalise_name

# What Iggy's binary messages say: two commands and two answers. `message_expiry` is in whole seconds, None: never.


Identifier: TypeAlias = int | str
"""A stream by its number or by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """The command that makes a topic in a stream, which is given by its number or its name."""

    stream_id: Identifier
    topic_id: int
    partitions_count: int
    message_expiry: int | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream:
    """The command that makes a stream."""

    stream_id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyTopic:
    """A topic as the server answers it."""

    id: int
    partitions_count: int
    message_expiry: int | None
    size_bytes: int
    messages_count: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyStream:
    """A stream as the server answers it."""

    id: int
    topics_count: int
    size_bytes: int
    messages_count: int
    name: str


# The fields of Iggy's binary layouts, each with the byte at which it stands: numbers (little endian), names, identifiers.
#
# A field that is cut off, out of its range or no text is a WireError with its offset; in a writer, the offset at which the field
# would have stood. A number's range is one value that both directions read.


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


_STREAM_ID = Number(name="stream_id", width=4, minimum=1, maximum=U32_MAX)
_TOPIC_ID = Number(name="topic_id", width=4, minimum=1, maximum=U32_MAX)
_ID = Number(name="id", width=4, minimum=1, maximum=U32_MAX)
_PARTITIONS_COUNT = Number(name="partitions_count", width=4, maximum=100_000)
# An answer tells what is there; the bound of 100,000 is for commands.
_PARTITIONS_FOUND = Number(name="partitions_count", width=4, maximum=U32_MAX)
_TOPICS_COUNT = Number(name="topics_count", width=4, maximum=U32_MAX)
_MESSAGE_EXPIRY = Number(name="message_expiry", width=4, maximum=U32_MAX)
_SIZE = Number(name="size", width=8, maximum=U64_MAX)
_MESSAGES_COUNT = Number(name="messages_count", width=8, maximum=U64_MAX)


def encode_create_topic(stream_id: Identifier, topic_id: int, partitions_count: int, message_expiry: int | None, name: str) -> bytes:
    """The command's bytes. Raises WireError, InvalidName."""
    writer = FieldWriter("CreateTopic")
    writer.identifier(stream_id)
    writer.number(_TOPIC_ID, topic_id)
    writer.number(_PARTITIONS_COUNT, partitions_count)
    writer.number(_MESSAGE_EXPIRY, 0 if message_expiry is None else message_expiry)
    writer.name(name)
    return writer.written()


def decode_create_topic(data: bytes) -> CreateTopic:
    """Raises WireError."""
    reader = FieldReader("CreateTopic", data)
    command = CreateTopic(
        stream_id=reader.identifier(),
        topic_id=reader.number(_TOPIC_ID),
        partitions_count=reader.number(_PARTITIONS_COUNT),
        message_expiry=reader.number(_MESSAGE_EXPIRY) or None,
        name=reader.name(),
    )
    reader.end()
    return command


def encode_create_stream(stream_id: int, name: str) -> bytes:
    """The command's bytes. Raises WireError, InvalidName."""
    writer = FieldWriter("CreateStream")
    writer.number(_STREAM_ID, stream_id)
    writer.name(name)
    return writer.written()


def decode_create_stream(data: bytes) -> CreateStream:
    """Raises WireError."""
    reader = FieldReader("CreateStream", data)
    command = CreateStream(stream_id=reader.number(_STREAM_ID), name=reader.name())
    reader.end()
    return command


def encode_topic(topic: IggyTopic) -> bytes:
    """The answer's bytes. Raises WireError, InvalidName."""
    writer = FieldWriter("Topic")
    writer.number(_ID, topic.id)
    writer.number(_PARTITIONS_FOUND, topic.partitions_count)
    writer.number(_MESSAGE_EXPIRY, 0 if topic.message_expiry is None else topic.message_expiry)
    writer.number(_SIZE, topic.size_bytes)
    writer.number(_MESSAGES_COUNT, topic.messages_count)
    writer.name(topic.name)
    return writer.written()


def decode_topic(data: bytes) -> IggyTopic:
    """Raises WireError."""
    reader = FieldReader("Topic", data)
    topic = IggyTopic(
        id=reader.number(_ID),
        partitions_count=reader.number(_PARTITIONS_FOUND),
        message_expiry=reader.number(_MESSAGE_EXPIRY) or None,
        size_bytes=reader.number(_SIZE),
        messages_count=reader.number(_MESSAGES_COUNT),
        name=reader.name(),
    )
    reader.end()
    return topic


def encode_stream(stream: IggyStream) -> bytes:
    """The answer's bytes. Raises WireError, InvalidName."""
    writer = FieldWriter("Stream")
    writer.number(_ID, stream.id)
    writer.number(_TOPICS_COUNT, stream.topics_count)
    writer.number(_SIZE, stream.size_bytes)
    writer.number(_MESSAGES_COUNT, stream.messages_count)
    writer.name(stream.name)
    return writer.written()


def decode_stream(data: bytes) -> IggyStream:
    """Raises WireError."""
    reader = FieldReader("Stream", data)
    stream = IggyStream(
        id=reader.number(_ID),
        topics_count=reader.number(_TOPICS_COUNT),
        size_bytes=reader.number(_SIZE),
        messages_count=reader.number(_MESSAGES_COUNT),
        name=reader.name(),
    )
    reader.end()
    return stream


def encode_identifier(identifier: Identifier) -> bytes:
    """A stream's number or name as its bytes. Raises WireError, InvalidName."""
    writer = FieldWriter("Identifier")
    writer.identifier(identifier)
    return writer.written()


def decode_identifier(data: bytes) -> Identifier:
    """Raises WireError."""
    reader = FieldReader("Identifier", data)
    identifier = reader.identifier()
    reader.end()
    return identifier
