"""Iggy's binary layouts, byte for byte; whatever else comes is refused by a named error that says where (ERR-1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_lifecycle.model.errors import InvalidName, WireError
from message_lifecycle.model.names import normalise_name
from message_lifecycle.wire.iggy import (
    CreateStream,
    CreateTopic,
    IggyStream,
    IggyTopic,
    decode_create_stream,
    decode_create_topic,
    decode_identifier,
    decode_stream,
    decode_topic,
    encode_create_stream,
    encode_create_topic,
    encode_identifier,
    encode_stream,
    encode_topic,
)
from tests import iggy as layout
from tests.iggy import LAYOUTS, PARTITIONS, U32, U64, Layout, survived

BY_NAME = pytest.mark.parametrize("what", LAYOUTS, ids=lambda what: what.name)

NUMERIC = bytes.fromhex(
    "01 04 03000000"  # stream: a number, of 4 bytes, 3
    "07000000"  # topic_id 7
    "02000000"  # partitions_count 2
    "803a0900"  # message_expiry 604,800 = 0x093a80
    "06 6f7264657273"  # name, of 6 bytes: "orders"
)
NAMED = bytes.fromhex(
    "02 04 73686f70"  # stream: a name, of 4 bytes: "shop"
    "ffffffff"  # topic_id, the highest
    "a0860100"  # partitions_count 100,000 = 0x0186a0
    "00000000"  # message_expiry: never
    "08 6e61c3af7665 2e31"  # name, of 8 bytes: "na", "ï" in two bytes, "ve", ".1"
)
STREAM_COMMAND = bytes.fromhex(
    "00010000"  # stream_id 256
    "04 73686f70"  # name, of 4 bytes: "shop"
)
TOPIC = bytes.fromhex(
    "07000000"  # id 7
    "02000000"  # partitions_count 2
    "3c000000"  # message_expiry 60
    "0000000001000000"  # size 4,294,967,296
    "0102000000000000"  # messages_count 513
    "06 6f7264657273"  # name, of 6 bytes: "orders"
)
STREAM = bytes.fromhex(
    "01000000"  # id 1
    "ffffffff"  # topics_count, the highest
    "ffffffffffffffff"  # size, the highest
    "0000000000000000"  # messages_count 0
    "01 73"  # name, of 1 byte: "s"
)


def test_the_layouts_byte_for_byte() -> None:
    assert encode_create_topic(3, 7, 2, 604_800, "orders") == NUMERIC
    assert encode_create_topic("shop", U32, PARTITIONS, None, "naïve.1") == NAMED
    assert encode_create_stream(256, "shop") == STREAM_COMMAND
    topic = IggyTopic(id=7, partitions_count=2, message_expiry=60, size_bytes=2**32, messages_count=513, name="orders")
    assert encode_topic(topic) == TOPIC
    stream = IggyStream(id=1, topics_count=U32, size_bytes=U64, messages_count=0, name="s")
    assert encode_stream(stream) == STREAM
    assert encode_identifier(258) == bytes.fromhex("01 04 02010000")
    assert encode_identifier("ab") == bytes.fromhex("02 02 6162")

    assert decode_create_topic(NUMERIC) == CreateTopic(stream_id=3, topic_id=7, partitions_count=2, message_expiry=604_800, name="orders")
    assert decode_create_topic(NAMED) == CreateTopic(
        stream_id="shop", topic_id=U32, partitions_count=PARTITIONS, message_expiry=None, name="naïve.1"
    )
    assert decode_create_stream(STREAM_COMMAND) == CreateStream(stream_id=256, name="shop")
    assert decode_topic(TOPIC) == topic
    assert decode_stream(STREAM) == stream
    assert decode_identifier(bytes.fromhex("01 04 02010000")) == 258
    assert decode_identifier(bytes.fromhex("02 02 6162")) == "ab"


def test_an_expiry_of_zero_is_none() -> None:
    assert encode_create_topic(1, 1, 1, 0, "t") == encode_create_topic(1, 1, 1, None, "t")
    assert decode_create_topic(encode_create_topic(1, 1, 1, 0, "t")).message_expiry is None
    assert decode_topic(layout.topic(1, 1, 0, 0, 0, "t")).message_expiry is None


NAMES = (
    st.text(st.sampled_from("aZ09_-.  \t\u00a0éİß\u0939\u094dΣ"), min_size=1, max_size=60)
    | st.text(st.characters(categories=("Lu", "Ll", "Lt", "Lo", "Nl", "Mn", "Nd", "Pc")), min_size=1, max_size=20)
    | st.integers(1, 255).map(lambda length: "x" * length)
).filter(lambda name: _is_name(name) and len(name.encode()) <= 255)
IDS, U32S, U64S = st.integers(1, U32), st.integers(0, U32), st.integers(0, U64)
STREAM_IDS, PARTITION_COUNTS = IDS | NAMES, st.integers(0, PARTITIONS)


def _is_name(name: str) -> bool:
    try:
        normalise_name(name)
    except InvalidName:
        return False
    return True


def _stream_id(given_id: int | str) -> int | str:
    return normalise_name(given_id) if isinstance(given_id, str) else given_id


@given(STREAM_IDS, IDS, PARTITION_COUNTS, U32S, NAMES)
@example("My Shop", 1, 0, 0, "  My Topic  ")
def test_create_topic_both_ways(stream_id: int | str, topic_id: int, partitions: int, expiry: int, name: str) -> None:
    data = encode_create_topic(stream_id, topic_id, partitions, expiry, name)
    normal, stream = normalise_name(name), _stream_id(stream_id)
    assert data == layout.create_topic(stream, topic_id, partitions, expiry, normal)
    command = CreateTopic(stream_id=stream, topic_id=topic_id, partitions_count=partitions, message_expiry=expiry or None, name=normal)
    assert decode_create_topic(data) == command
    assert decode_create_topic(layout.create_topic(stream_id, topic_id, partitions, expiry, name)) == command


@given(IDS, NAMES)
def test_create_stream_both_ways(stream_id: int, name: str) -> None:
    data = encode_create_stream(stream_id, name)
    assert data == layout.create_stream(stream_id, normalise_name(name))
    command = CreateStream(stream_id=stream_id, name=normalise_name(name))
    assert decode_create_stream(data) == decode_create_stream(layout.create_stream(stream_id, name)) == command


@given(IDS, U32S, U32S, U64S, U64S, NAMES)
@example(1, PARTITIONS + 1, 0, 0, 0, "t")
def test_topic_both_ways(topic_id: int, partitions: int, expiry: int, size: int, messages: int, name: str) -> None:
    topic = IggyTopic(
        id=topic_id,
        partitions_count=partitions,
        message_expiry=expiry or None,
        size_bytes=size,
        messages_count=messages,
        name=normalise_name(name),
    )
    assert encode_topic(topic) == layout.topic(topic_id, partitions, expiry, size, messages, topic.name)
    assert decode_topic(encode_topic(topic)) == decode_topic(layout.topic(topic_id, partitions, expiry, size, messages, name)) == topic


@given(IDS, U32S, U64S, U64S, NAMES)
def test_stream_both_ways(stream_id: int, topics: int, size: int, messages: int, name: str) -> None:
    stream = IggyStream(id=stream_id, topics_count=topics, size_bytes=size, messages_count=messages, name=normalise_name(name))
    assert encode_stream(stream) == layout.stream(stream_id, topics, size, messages, stream.name)
    assert decode_stream(encode_stream(stream)) == decode_stream(layout.stream(stream_id, topics, size, messages, name)) == stream


@given(STREAM_IDS)
def test_identifier_both_ways(stream_id: int | str) -> None:
    data = encode_identifier(stream_id)
    assert data == layout.identifier(_stream_id(stream_id))
    assert decode_identifier(data) == decode_identifier(layout.identifier(stream_id)) == _stream_id(stream_id)


def test_a_recorded_name_is_read_as_the_server_would_name_it() -> None:
    recorded = layout.create_topic("My Shop", 1, 1, 0, " \tMy  Topic ")
    read = decode_create_topic(recorded)
    assert (read.stream_id, read.name) == ("my.shop", "my.topic")
    again = encode_create_topic(read.stream_id, read.topic_id, read.partitions_count, read.message_expiry, read.name)
    assert again == layout.create_topic("my.shop", 1, 1, 0, "my.topic") != recorded


def test_a_name_counts_by_its_bytes_after_normalising() -> None:
    assert encode_create_stream(1, "  " + "é" * 127 + "x  ") == layout.create_stream(1, "é" * 127 + "x")
    for name in ("é" * 128, "x" * 256, "İ" * 127, " ", ".", "..", "a/b", "a\x00", "\ud800"):
        with pytest.raises(InvalidName):
            encode_create_stream(1, name)
        with pytest.raises(InvalidName):
            encode_identifier(name)


@pytest.mark.parametrize("name", ["İ" * 127, " ", ".", "..", " . ", "a/b", "a\x00", "\ufeffa", "😀"])
def test_a_recorded_name_that_no_server_takes_is_refused_where_it_stands(name: str) -> None:
    with pytest.raises(WireError) as refused:
        decode_create_stream(layout.create_stream(1, name))
    assert (refused.value.field, refused.value.offset) == ("name", 5)
    with pytest.raises(WireError) as refused:
        decode_identifier(layout.identifier(name))
    assert (refused.value.field, refused.value.offset) == ("identifier value", 2)


@pytest.mark.parametrize(("raw", "offset"), [("61 ff 62", 6), ("61 62 c3", 7), ("c0 80", 5), ("61 ed a0 80", 6), ("f5 80 80 80", 5)])
def test_bytes_that_are_no_utf_8_are_refused_where_they_stand(raw: str, offset: int) -> None:
    name = bytes.fromhex(raw)
    with pytest.raises(WireError) as refused:
        decode_create_stream(bytes.fromhex("01000000") + bytes([len(name)]) + name)
    assert (refused.value.field, refused.value.offset) == ("name", offset)


@pytest.mark.parametrize(
    ("change", "field", "offset"),
    [
        ({0: "00"}, "identifier kind", 0),
        ({0: "03"}, "identifier kind", 0),
        ({1: "00"}, "identifier length", 1),
        ({1: "03"}, "identifier length", 1),
        ({1: "05"}, "identifier length", 1),
        ({2: "00000000"}, "identifier value", 2),
        ({6: "00000000"}, "topic_id", 6),
        ({10: "a1860100"}, "partitions_count", 10),
        ({10: "ffffffff"}, "partitions_count", 10),
        ({18: "00"}, "name length", 18),
        ({18: "07"}, "name", 19),
        ({18: "05"}, "end", 24),
        ({0: "02 00"}, "identifier length", 1),
    ],
    ids=str,
)
def test_a_wrong_field_is_told_with_its_place(change: dict[int, str], field: str, offset: int) -> None:
    data = bytearray(NUMERIC)
    for at, changed in change.items():
        data[at : at + len(bytes.fromhex(changed))] = bytes.fromhex(changed)
    with pytest.raises(WireError) as refused:
        decode_create_topic(bytes(data))
    error = refused.value
    assert (error.layout, error.field, error.offset) == ("CreateTopic", field, offset)
    assert str(error) == f"CreateTopic: {field} at byte {offset}: found {error.found}. Allowed: {error.allowed}."


@pytest.mark.parametrize(
    ("decode", "data", "field"),
    [
        (decode_create_stream, layout.create_stream(0, "s"), "stream_id"),
        (decode_topic, layout.topic(0, 0, 0, 0, 0, "t"), "id"),
        (decode_stream, layout.stream(0, 0, 0, 0, "s"), "id"),
    ],
    ids=["CreateStream", "Topic", "Stream"],
)
def test_no_id_is_zero(decode: Callable[[bytes], object], data: bytes, field: str) -> None:
    with pytest.raises(WireError) as refused:
        decode(data)
    assert (refused.value.field, refused.value.offset) == (field, 0)


BAD = (-1, 2**32, True, 1.0, "1", 10**5_000)


@pytest.mark.parametrize(
    ("arguments", "field", "offset"),
    [
        *(((bad, 1, 1, 1, "t"), "identifier value", 2) for bad in (0, -1, 2**32, True, 1.0, None, b"s", 10**5_000)),
        *((("s", bad, 1, 1, "t"), "topic_id", 3) for bad in (0, None, *BAD)),
        *(((1, 1, bad, 1, "t"), "partitions_count", 10) for bad in (100_001, None, *BAD)),
        *(((1, 1, 1, bad, "t"), "message_expiry", 14) for bad in (False, *BAD)),
    ],
    ids=lambda given: None if isinstance(given, tuple) else str(given),
)
def test_a_value_that_has_no_place_is_refused(arguments: tuple[int, int, int, int, str], field: str, offset: int) -> None:
    with pytest.raises(WireError) as refused:
        encode_create_topic(*arguments)
    assert (refused.value.field, refused.value.offset) == (field, offset)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: type(bad).__name__)
def test_an_answer_has_no_more_partitions_than_its_field_holds(bad: int) -> None:
    with pytest.raises(WireError) as refused:
        encode_topic(IggyTopic(id=1, partitions_count=bad, message_expiry=None, size_bytes=0, messages_count=0, name="t"))
    assert (refused.value.layout, refused.value.field, refused.value.offset) == ("Topic", "partitions_count", 4)


@BY_NAME
def test_every_truncation_and_every_longer_message_is_refused_with_a_place(what: Layout) -> None:
    for data in what.samples:
        what.decode(data)
        for length in range(len(data)):
            with pytest.raises(WireError) as refused:
                what.decode(data[:length])
            assert refused.value.layout == what.name
            assert 0 <= refused.value.offset <= length
        for more in range(256):
            with pytest.raises(WireError) as refused:
                what.decode(data + bytes([more]))
            assert (refused.value.field, refused.value.offset) == ("end", len(data))


@BY_NAME
def test_fuzzed_messages_are_read_whole_or_refused_by_name(what: Layout) -> None:
    told = survived(what, 10_000, seed=1)
    fields = {"read", "end", "name", "name length"} if what.name != "Identifier" else {"read", "end", "identifier kind", "identifier value"}
    assert fields <= told.keys(), "the inputs do not reach all of the layout"
