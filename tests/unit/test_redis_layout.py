"""Messages as entries of a stream, names of keys, and how a removal is cut: no server is needed to tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.cluster import key_slot

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log import Removal
from message_lifecycle.stores.record_log.store import merged
from message_lifecycle.stores.redis_streams.layout import TopicKeys, fields_of, id_of, message_of, offset_of, trim_of

_content = st.none() | st.binary(max_size=20)
_times = st.none() | st.integers(-(2**62), 2**62).map(Instant)
_offsets = st.integers(0, INT64_MAX - 1)
_names = st.text("ab:-{}é0", min_size=1, max_size=6)
messages = st.builds(
    Message,
    partition=st.just(3),
    offset=_offsets,
    append_time=_times,
    event_time=_times,
    key=_content,
    value=_content,
    segment=_offsets,
    origin_offset=st.none() | _offsets,
    headers=st.lists(st.tuples(_names, st.binary(max_size=5)), max_size=3).map(tuple),
    expires_at=st.none(),
    never=st.just(False),
)


def as_read(message: Message) -> list[object]:
    """An entry as a server gives it back: everything is bytes."""
    fields = [field if isinstance(field, bytes) else str(field).encode() for field in fields_of(message)]
    return [id_of(message.offset).encode(), fields]


@given(messages)
def test_what_is_read_is_what_was_written(message: Message) -> None:
    """Null and empty are two things, and a header may stand there twice."""
    assert message_of(3, as_read(message)) == message


@given(st.lists(_offsets, min_size=2, max_size=2, unique=True))
def test_ids_ascend_as_offsets_do_and_begin_above_zero(offsets: list[int]) -> None:
    first, second = sorted(offsets)
    assert 0 < int(id_of(first).removesuffix("-0")) < int(id_of(second).removesuffix("-0")) < 2**64
    assert offset_of(id_of(first).encode()) == first


@pytest.mark.parametrize(
    "entry",
    [
        [b"5-1", [b"s", b"0"]],
        [b"5-0", [b"field", b"value"]],
        [b"5-0", [b"t", b"1"]],
        [b"5-0", [b"s", b"zero"]],
        [b"5-0", [b"s", b"0", b"t", b"noon"]],
        [b"5-0", [b"s", b"0", b"h:\xff", b""]],
        [b"5-0", [b"s"]],
    ],
)
def test_an_entry_that_is_none_of_ours_is_told(entry: list[object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        message_of(0, entry)


def test_all_keys_of_a_topic_lie_in_one_slot_and_topics_in_different_ones() -> None:
    topics = [TopicKeys(prefix="lifecycle", name=TopicName(stream="web", topic=topic)) for topic in ("clicks", "orders")]
    slots = [{key_slot(key.encode()) for key in (keys.topic, keys.lock, *keys.streams(range(9)))} for keys in topics]
    assert [len(found) for found in slots] == [1, 1]
    assert slots[0] != slots[1]


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40), min_size=1), st.booleans())
def test_a_cut_takes_what_is_named_and_nothing_else(stored: set[int], named: set[int], by_count: bool) -> None:
    removal = Removal(plan_id="p", offsets={0: merged(range(offset, offset + 1) for offset in sorted(named))})
    end = removal.offsets[0][-1].stop
    ids = [id_of(offset).encode() for offset in sorted(stored) if offset < end]
    trim = trim_of(0, end, removal.taker(), ids, by_count=by_count)
    assert trim.rows == len(stored & named)
    by_hand = (
        sorted(stored)[trim.first :]
        if by_count
        else [o for o in sorted(stored) if not trim.first or o >= offset_of(trim.keep_from.encode())]
    )
    left = [offset for offset in by_hand if id_of(offset) not in trim.beside]
    assert left == sorted(stored - named)
    if stored & named:
        assert offset_of(trim.last.encode()) == max(stored & named)
