"""A TTL header means what the rules say, byte for byte; an oracle of another make reads the same strings (TTL-1 to TTL-3)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant, InvalidTtl, OwnTtl, expires_at, is_dead, parse_ttl, ttl_header
from tests.ttls import INVALID, NEVER, NONE, SECOND, TTLS, UNITS, VALUES, oracle


def outcome(value: bytes, *, reject_zero: bool = False) -> int | str:
    try:
        ttl = parse_ttl(value, reject_zero=reject_zero)
    except InvalidTtl:
        return INVALID
    if ttl.never:
        assert ttl.duration_us is None
        return NEVER
    return NONE if ttl.duration_us is None else ttl.duration_us


@pytest.mark.parametrize(("value", "expected"), VALUES.items(), ids=lambda value: str(value)[:30])
def test_the_table(value: str, expected: int | str) -> None:
    assert outcome(value.encode()) == expected
    assert outcome(value.encode(), reject_zero=True) == (INVALID if expected == NONE else expected)


def test_bytes_that_are_no_text_are_invalid() -> None:
    assert outcome(b"1\xb5s") == outcome(b"\xff") == outcome(b"5\x00s") == INVALID


@given(spaces=st.sampled_from(["", " ", "   "]), text=TTLS, after=st.sampled_from(["", "", "", " ", "s", "\n"]))
@example(spaces="", text="1.", after="s")
@example(spaces="", text="-", after="")
def test_every_string_reads_as_the_oracle_reads_it(spaces: str, text: str, after: str) -> None:
    value = spaces + text + after
    assert outcome(value.encode()) == oracle(value)


@given(nanoseconds=st.integers(10**9, 2**63 - 1))
def test_a_duration_is_never_rounded_to_an_earlier_deadline(nanoseconds: int) -> None:
    read = outcome(f"{nanoseconds}ns".encode())
    assert isinstance(read, int)
    assert 0 <= read * 1000 - nanoseconds < 1000


@given(text=st.text("0123456789", min_size=1, max_size=40), unit=st.sampled_from(["h", "m", "s"]), whole=st.integers(1, 10**6))
def test_any_number_of_decimals_is_within_a_nanosecond_of_exact(text: str, unit: str, whole: int) -> None:
    read = outcome(f"{whole}.{text}{unit}".encode())
    assert isinstance(read, int)
    exact = Fraction(f"{whole}.{text}") * UNITS[unit]
    assert exact - 2 <= read * 1000 < exact + 1002


TIMES = st.one_of(st.integers(INT64_MIN, INT64_MAX), st.integers(-5, 5), st.integers(INT64_MAX - 10**7, INT64_MAX)).map(Instant)


@given(at=TIMES, seconds=st.one_of(st.integers(1, 100), st.integers(1, 10**20)))
@example(at=Instant(INT64_MIN), seconds=10**30)
@example(at=Instant(0), seconds=1)
def test_a_message_dies_at_its_deadline_and_not_a_microsecond_earlier(at: Instant, seconds: int) -> None:
    due_at = expires_at(at, parse_ttl(str(seconds).encode()))
    assert due_at is not None
    exact = at + seconds * SECOND
    for delta in (-1, 0, 1):
        as_of = Instant(min(exact + delta, INT64_MAX))
        # Beyond the last instant there is no due time: never due, whatever it is counted from (CLK-3).
        saturates = exact >= INT64_MAX or seconds * SECOND >= INT64_MAX
        assert is_dead(due_at, as_of) == (not saturates and as_of >= exact)


@pytest.mark.parametrize("ttl", [OwnTtl(never=True), OwnTtl()])
def test_without_a_duration_there_is_no_deadline(ttl: OwnTtl) -> None:
    assert expires_at(Instant(5), ttl) is None


def test_an_unknown_time_never_expires() -> None:
    assert expires_at(None, OwnTtl(duration_us=SECOND)) is None


def test_the_first_header_of_that_exact_name_counts_and_an_empty_one_is_absent() -> None:
    assert ttl_header([("nats-ttl", b"1"), ("Nats-TTL", b"2"), ("Nats-TTL", b"3")]) == b"2"
    assert ttl_header([("Nats-TTL", b""), ("Nats-TTL", b"3")]) is None
    assert ttl_header([("Nats-TTL", b"  ")]) is None
    assert ttl_header([("Nats-TTL", b" 5")]) == b" 5"
    assert ttl_header([("X-Nats-TTL", b"1")]) is None
    assert ttl_header([]) is None
