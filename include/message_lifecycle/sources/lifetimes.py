"""Own lifetimes of messages, a block at a time (TTL-1 to TTL-3).

`parse_ttl` is the rule. The code below is the same rule over arrays, because calling the rule for millions of messages is too slow. A
property test compares the two. Arrays read digits, and durations in whole h, m, s and ms and in seconds with decimals. For other forms,
each distinct value goes to the rule once. The module runs in Spark's Python workers and does not need Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_lifecycle.model.instants import INT64_MAX, MICROS_PER_SECOND, TTL_HEADER, InvalidTtl, parse_ttl, ttl_header

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]

# Stand for a duration in microseconds. A real duration is above zero.
NO_LIFETIME, NEVER, INVALID = 0, -1, -2
_ABSENT = -3
_UNREAD = -4
"""A form that arrays cannot read."""

_SAMPLE = 100
"""The number of values that decides if a block repeats itself. Most blocks do, and then each distinct value is read once. In a block of new
values that search would cost more than reading.
"""

_DOT, _M, _S = b".ms"
_MS_NS, _S_NS = 1_000_000, 1_000_000_000
_NS_PER_MICRO = 1_000
# The limits of digits and parts keep every sum within int64.
_UNITS = {ord("h"): (3_600 * _S_NS, 5), _M: (60 * _S_NS, 6), _S: (_S_NS, 8), _DOT: (_S_NS, 8)}
_MS_DIGITS = 9
_MOST_PARTS = 16
_DECIMALS = 9
_MOST_DIGITS = 12
_POWERS = 10 ** np.arange(_MOST_DIGITS + 1, dtype=np.int64)
_UNIT_NS, _UNIT_DIGITS = np.zeros(256, dtype=np.int64), np.zeros(256, dtype=np.int64)
for _letter, (_ns, _digits) in _UNITS.items():
    _UNIT_NS[_letter], _UNIT_DIGITS[_letter] = _ns, _digits


def parse_lifetimes(values: pa.Array) -> pa.Array:
    """Return the lifetime in each header (binary) as int64.

    Values are microseconds, NO_LIFETIME (zero), NEVER or INVALID. A missing header is null.
    """
    count = len(values)
    if values.null_count == count:
        return pa.nulls(count, pa.int64())
    present = values.drop_null()
    if len(present.slice(0, _SAMPLE).unique()) > _SAMPLE // 2:
        read = _read(present)
    else:
        encoded = present.dictionary_encode()
        read = _read(encoded.dictionary)[np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)]
    found = read
    if len(read) < count:
        found = np.full(count, _ABSENT, dtype=np.int64)
        there = np.frombuffer(values.is_valid().cast(pa.uint8()).buffers()[1], dtype=np.uint8)[:count]
        found[there.astype(np.bool_)] = read
    valid = np.packbits(found != _ABSENT, bitorder="little")
    # PyArrow's own conversion from NumPy imports pandas, which costs a second of CPU in every new worker. So this uses buffers.
    return pa.Array.from_buffers(pa.int64(), count, [pa.py_buffer(valid), pa.py_buffer(found)])


def deadlines(append_time: pa.Array, lifetime: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return `expires_at` and `never` of messages with these `lifetimes`.

    A deadline saturates (CLK-3). The deadline is null if the append time is unknown (CLK-4), and if the header is not valid (TTL-6).
    """
    at = append_time.cast(pa.int64())
    # A saturated lifetime is never due, even if the append time is far below zero.
    beyond = pc.or_(pc.equal(lifetime, INT64_MAX), pc.greater(at, pc.subtract(INT64_MAX, lifetime)))
    due = pc.if_else(beyond, INT64_MAX, pc.add(at, lifetime))
    stated = pc.fill_null(pc.greater(lifetime, 0), False)
    never = pc.if_else(pc.equal(lifetime, NEVER), True, pa.scalar(None, pa.bool_()))
    return pc.if_else(stated, due, pa.scalar(None, pa.int64())).cast(append_time.type), never


def with_own_lifetimes(copies: pa.RecordBatch) -> pa.RecordBatch:
    """Set `expires_at` and `never` of copied messages by their headers. An invalid header has no effect (TTL-6)."""
    # The first header of that exact name counts (TTL-1).
    stated = [
        next((header["value"] for header in headers or () if header["name"] == TTL_HEADER), None)
        for headers in copies["headers"].to_pylist()
    ]
    ends = deadlines(copies["append_time"], parse_lifetimes(pa.array(stated, pa.binary())))
    for name, column in zip(("expires_at", "never"), ends, strict=True):
        copies = copies.set_column(copies.schema.get_field_index(name), name, column)
    return copies


def _read(values: pa.Array) -> Longs:
    """Do as `parse_lifetimes`, with _ABSENT. `values` has no null."""
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    places = np.frombuffer(values.buffers()[1], dtype=width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = values.buffers()[2]
    data = np.frombuffer(content if content is not None else b"", dtype=np.uint8)[places[0] : places[-1]]
    offsets = places - places[0]
    read = _parse_with_arrays(data, offsets)
    unread = np.flatnonzero(read == _UNREAD)
    if len(unread):
        read[unread] = _parse_one_by_one(data.tobytes(), offsets[unread].tolist(), offsets[unread + 1].tolist())
    return read


def _parse_with_arrays(data: Bytes, offsets: Longs) -> Longs:
    """Do as `parse_lifetimes`, with _UNREAD.

    Args:
        data: The values, one directly behind the other.
        offsets: The begin of each value, and the end of the last.
    """
    digits = data - ord("0")  # other characters wrap around to more than nine
    letters = np.flatnonzero(digits > 9)
    first = np.searchsorted(letters, offsets)
    letters_in = np.diff(first)
    lengths = np.diff(offsets)
    seconds = _numbers(digits, offsets[1:], np.where((letters_in == 0) & (lengths <= _MOST_DIGITS), lengths, 0))
    read = np.where(seconds > 0, seconds * MICROS_PER_SECOND, _UNREAD)
    some = np.flatnonzero((letters_in > 0) & (letters_in <= _MOST_PARTS))
    if len(some):
        durations_ns = _durations_ns(data, digits, offsets, letters, first)[some]
        micros = np.where(durations_ns < _S_NS, INVALID, -(-durations_ns // _NS_PER_MICRO))
        read[some] = np.where(durations_ns > 0, micros, _UNREAD)
    return read


def _durations_ns(data: Bytes, digits: Bytes, offsets: Longs, letters: Longs, first: Longs) -> Longs:
    """Return the nanoseconds of each value, or 0 for another form. A part is the digits before a letter (or point), and the letter."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(first))
    letter = data[letters]
    begins = np.concatenate((np.zeros(1, dtype=np.int64), letters[:-1] + 1))
    lengths = letters - np.maximum(begins, offsets[rows])
    after = np.zeros(len(letters), dtype=np.uint8)  # the letter of the part before, in the same value
    after[1:] = np.where(rows[1:] == rows[:-1], letter[:-1], 0)
    seconds = letter == _S
    decimals = seconds & (after == _DOT)
    rest_of_ms = seconds & (after == _M) & (lengths == 0)
    millis = np.append(rest_of_ms[1:], False)
    unit_ns, most = _UNIT_NS[letter], _UNIT_DIGITS[letter]
    unit_ns[millis], most[millis] = _MS_NS, _MS_DIGITS
    unit_ns[decimals] = _POWERS[_DECIMALS - np.minimum(lengths[decimals], _DECIMALS)]
    most[decimals] = _DECIMALS
    good = ((lengths > 0) & (lengths <= most)) | rest_of_ms
    good &= (letter != _DOT) | np.append(decimals[1:], False)
    sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(_numbers(digits, letters, np.where(good, lengths, 0)) * unit_ns)))
    durations: Longs = sums[first[1:]] - sums[first[:-1]]  # exact, though the running sum may have wrapped around
    durations[rows[~good]] = 0
    ends_in_digits = digits[np.maximum(offsets[1:] - 1, 0)] <= 9
    durations[ends_in_digits] = 0
    return durations


def _numbers(digits: Bytes, ends: Longs, lengths: Longs) -> Longs:
    """Return the numbers that end before `ends`, with the given numbers of digits. 0 if a number has no digits."""
    numbers = np.zeros(len(ends), dtype=np.int64)
    for place in range(int(lengths.max(initial=0))):
        some = np.flatnonzero(lengths > place)
        numbers[some] += digits[ends[some] - 1 - place] * _POWERS[place]
    return numbers


def _parse_one_by_one(data: bytes, starts: Iterable[int], ends: Iterable[int]) -> list[int]:
    known: dict[bytes, int] = {}
    values = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    for value in set(values):
        known[value] = _lifetime(value)
    return [known[value] for value in values]


def _lifetime(value: bytes) -> int:
    if ttl_header([(TTL_HEADER, value)]) is None:
        return _ABSENT
    try:
        ttl = parse_ttl(value)
    except InvalidTtl:
        return INVALID
    return NEVER if ttl.never else ttl.duration_us or NO_LIFETIME
