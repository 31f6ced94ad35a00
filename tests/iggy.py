"""Messages in Iggy's layouts, put together by `struct` from the written layout: an oracle of another make, and fuzzed inputs."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from message_lifecycle.model.errors import WireError
from message_lifecycle.wire import iggy

U32, U64 = 2**32 - 1, 2**64 - 1
PARTITIONS = 100_000


def text(name: str) -> bytes:
    """Return a length and a name, without normalising the name."""
    raw = name.encode()
    return struct.pack("<B", len(raw)) + raw


def identifier(stream: int | str) -> bytes:
    return struct.pack("<BBI", 1, 4, stream) if isinstance(stream, int) else b"\x02" + text(stream)


def create_topic(stream: int | str, topic_id: int, partitions: int, expiry: int, name: str) -> bytes:
    return identifier(stream) + struct.pack("<III", topic_id, partitions, expiry) + text(name)


def create_stream(stream_id: int, name: str) -> bytes:
    return struct.pack("<I", stream_id) + text(name)


def topic(topic_id: int, partitions: int, expiry: int, size: int, messages: int, name: str) -> bytes:
    return struct.pack("<IIIQQ", topic_id, partitions, expiry, size, messages) + text(name)


def stream(stream_id: int, topics: int, size: int, messages: int, name: str) -> bytes:
    return struct.pack("<IIQQ", stream_id, topics, size, messages) + text(name)


def _encode_create_topic(command: iggy.CreateTopic) -> bytes:
    return iggy.encode_create_topic(command.stream_id, command.topic_id, command.partitions_count, command.message_expiry, command.name)


def _encode_create_stream(command: iggy.CreateStream) -> bytes:
    return iggy.encode_create_stream(command.stream_id, command.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout's two directions, and sample messages for the fuzzer to start with."""

    name: str
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    samples: tuple[bytes, ...]


LAYOUTS = (
    Layout(
        name="CreateTopic",
        decode=iggy.decode_create_topic,
        encode=_encode_create_topic,
        samples=(
            create_topic(1, 1, 1, 0, "t"),
            create_topic("shop", 7, PARTITIONS, 604_800, "orders.eu-west_1"),
            create_topic(U32, U32, 0, U32, "हिन्दी"),
            create_topic("My Shop", 2, 3, 60, "  My Topic  "),
        ),
    ),
    Layout(
        name="CreateStream",
        decode=iggy.decode_create_stream,
        encode=_encode_create_stream,
        samples=(create_stream(1, "s"), create_stream(U32, "naïve stream"), create_stream(9, "x" * 255)),
    ),
    Layout(
        name="Topic",
        decode=iggy.decode_topic,
        encode=iggy.encode_topic,
        samples=(topic(1, 0, 0, 0, 0, "t"), topic(U32, PARTITIONS, U32, U64, U64, "Ünï.côdé"), topic(3, 2, 60, 1_000, 10, "a b")),
    ),
    Layout(
        name="Stream",
        decode=iggy.decode_stream,
        encode=iggy.encode_stream,
        samples=(stream(1, 0, 0, 0, "s"), stream(U32, U32, U64, U64, "strøm"), stream(3, 2, 1_000, 10, "x" * 255)),
    ),
    Layout(
        name="Identifier",
        decode=iggy.decode_identifier,
        encode=iggy.encode_identifier,
        samples=(identifier(1), identifier(U32), identifier("shop"), identifier("x" * 255), identifier("A B")),
    ),
)


def fuzzed(layout: Layout, count: int, seed: int) -> Iterator[bytes]:
    """Noise, and messages with something done to them: bits, bytes, lengths and numbers changed, cut, grown, two put together."""
    chance = random.Random(seed)
    below, noise = chance.random, chance.randbytes
    # Names of full length are normalised slowly: they come, but seldom.
    starts = [sample for sample in layout.samples for _ in range(1 if len(sample) > 200 else 25)]
    for _ in range(count):
        kind = int(below() * 8)
        if kind == 0:
            yield noise(int(below() * 64))
            continue
        sample = bytearray(starts[int(below() * len(starts))])
        at = int(below() * len(sample))
        match kind:
            case 1:
                sample[at] ^= 1 << int(below() * 8)
            case 2:
                sample[at] = int(below() * 256)
            case 3:
                del sample[at:]
            case 4:
                sample[at:at] = noise(1 + int(below() * 8))
            case 5:
                # The first bytes hold the kind of the following part, and its length.
                sample[int(below() * min(len(sample), 8))] = int(below() * 8)
            case 6:
                other = starts[int(below() * len(starts))]
                sample[at:] = other[int(below() * len(other)) :]
            case _:
                sample[at : at + 4] = (0, 0, 0, 0) if below() < 0.5 else (255, 255, 255, 255)
        yield bytes(sample)


def survived(layout: Layout, count: int, seed: int) -> Counter[str]:
    """Require that the decoder reads every input, or refuses it by a WireError with a place in it. Count errors by field, and `read`.

    A decoded value must hold everything that the bytes say. Encoded again, it must give the same bytes, or, after a name that was not
    normalised, bytes that decode to the same value.
    """
    told: Counter[str] = Counter()
    for data in fuzzed(layout, count, seed):
        try:
            read = layout.decode(data)
        except WireError as error:
            assert 0 <= error.offset <= len(data), data.hex()
            told[error.field] += 1
            continue
        told["read"] += 1
        written = layout.encode(read)
        assert written == data or layout.decode(written) == read, data.hex()
    return told
