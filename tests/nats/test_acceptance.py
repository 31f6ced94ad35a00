"""What a NATS server takes and refuses for its TTL, we take and refuse with the same code (TTL-1, TTL-2, TTL-4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from message_lifecycle.model.instants import INVALID_TTL, TTL_DISABLED, TTL_HEADER, InvalidTtl, parse_ttl, ttl_header
from tests.nats.server import NatsServer, Publish
from tests.ttls import TTLS, VALUES

pytestmark = pytest.mark.nats

INT64 = 2**63
FITTING_DIGITS = 18


@pytest.fixture(scope="module")
def streams(server: NatsServer) -> tuple[str, str]:
    """With the feature, and without."""
    return server.create_stream(allow_msg_ttl=True, storage="memory"), server.create_stream(storage="memory")


def ours(headers: Sequence[tuple[str, bytes]], *, allow_msg_ttl: bool) -> int | None:
    """The code that we refuse a message with."""
    value = ttl_header(headers)
    if value is None:
        return None
    try:
        # `zero_ttl = "reject"` is what servers from 2.11.0 on do; the default follows the document.
        parse_ttl(value, reject_zero=True)
    except InvalidTtl:
        return INVALID_TTL
    return None if allow_msg_ttl else TTL_DISABLED


def differently(value: bytes) -> tuple[int | None, int | None] | None:
    """What the server does where we differ on purpose, with the feature and without; None: we do not differ.

    It reads digits into an int64 that runs over, we saturate (TTL-1); and zeros that are no Go duration, such as `00`, are no TTL
    to it, though it refuses the `0` that is one (TTL-2).
    """
    digits = value.lstrip(b" ")
    if not digits.isdigit() or digits == b"0" or 1 <= len(digits.lstrip(b"0")) <= FITTING_DIGITS:
        return None
    total = 0
    for digit in digits:
        total = (total * 10 + digit - ord("0")) % (2 * INT64)
    if total == 0:
        return None, None
    return (INVALID_TTL, INVALID_TTL) if total >= INT64 else (None, TTL_DISABLED)


def compare(server: NatsServer, streams: tuple[str, str], batch: Sequence[tuple[tuple[str, bytes], ...]]) -> None:
    messages = [Publish(subject="s", headers=headers) for headers in batch]
    found = zip(*(server.publish(stream, messages) for stream in streams), strict=True)
    for headers, answers in zip(batch, found, strict=True):
        expected = tuple(ours(headers, allow_msg_ttl=allow) for allow in (True, False))
        value = ttl_header(headers)
        if value is not None and (otherwise := differently(value)) is not None:
            expected = otherwise
        assert tuple(answer.code for answer in answers) == expected, headers


def test_the_table(server: NatsServer, streams: tuple[str, str]) -> None:
    compare(server, streams, [((TTL_HEADER, value.encode()),) for value in VALUES])


# A line break ends a header; there is no way to send one inside.
SENDABLE = st.builds(
    lambda spaces, text, after: (spaces + text + after).encode(),
    st.sampled_from(["", "", " ", "   "]),
    TTLS,
    st.sampled_from(["", "", " ", "\t"]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(values=st.lists(st.one_of(SENDABLE, SENDABLE, st.binary(max_size=4)), min_size=20, max_size=60))
def test_generated_strings(server: NatsServer, streams: tuple[str, str], values: list[bytes]) -> None:
    assume(all(b"\r" not in value and b"\n" not in value for value in values))
    compare(server, streams, [((TTL_HEADER, value),) for value in values])


def test_which_header_counts(server: NatsServer, streams: tuple[str, str]) -> None:
    compare(
        server,
        streams,
        [
            (),
            (("Other", b"x"),),
            (("nats-ttl", b"x"),),
            ((TTL_HEADER, b"1"), (TTL_HEADER, b"x")),
            ((TTL_HEADER, b"x"), (TTL_HEADER, b"1")),
            ((TTL_HEADER, b""), (TTL_HEADER, b"x")),
            (("X-Nats-TTL", b"x"), (TTL_HEADER, b"1")),
            (("Nats-TTL-X", b"x"), (TTL_HEADER, b"1")),
            (("Other", b"Nats-TTL: x"), (TTL_HEADER, b"1")),
        ],
    )


def test_what_is_refused_gets_no_sequence_number_and_headers_stay_as_published(server: NatsServer) -> None:
    stream = server.create_stream(allow_msg_ttl=True)
    values = [b"1h", b"bad", b"  2h", b"never", b"500ms", b"\xc2\xb5s", b"3600000000\xc2\xb5s"]
    server.publish(stream, [Publish(subject="s", headers=(("A", b"1"), (TTL_HEADER, value)), payload=value) for value in values])
    stored = server.messages(stream)
    assert [(message.seq, message.payload) for message in stored] == [(1, b"1h"), (2, b"  2h"), (3, b"never"), (4, b"3600000000\xc2\xb5s")]
    assert [message.headers for message in stored] == [(("A", b"1"), (TTL_HEADER, message.payload)) for message in stored]
    server.delete_stream(stream)
