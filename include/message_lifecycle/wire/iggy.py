"""Iggy 0.0.50's binary layouts: the commands CreateTopic and CreateStream, the answers Topic and Stream, the identifier.

Encoders write names normalised (NAME-1) and raise InvalidName where that cannot be; a number out of range is a WireError.

Decoders take one whole message: a short, long or invalid one is a WireError with the offset at fault. Names that are not normalised
are valid in a *recorded* message, because Iggy's client sends a name as it was typed and its server normalises it. So a decoder gives
the name that the server would give, and only a name that NAME-1 refuses is at fault. Encoding such a message again therefore gives
the normalised bytes; for all others it gives the same bytes.

`message_expiry` is in whole seconds; 0 on the wire is None here: the message never expires.
"""

from __future__ import annotations

from message_lifecycle.wire.fields import U32_MAX, U64_MAX, FieldReader, FieldWriter, Number
from message_lifecycle.wire.iggy_messages import CreateStream as CreateStream
from message_lifecycle.wire.iggy_messages import CreateTopic as CreateTopic
from message_lifecycle.wire.iggy_messages import Identifier as Identifier
from message_lifecycle.wire.iggy_messages import IggyStream as IggyStream
from message_lifecycle.wire.iggy_messages import IggyTopic as IggyTopic

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
