"""A record that is no message is searched for a key that is known by its hash alone."""

from __future__ import annotations

import base64
import json

import pytest

from message_lifecycle.model.erasure import BASE64, KeyMatch, KeySecret
from message_lifecycle.operations.erasure import WHOLE_SEARCH_BYTES, tells_key

SECRET = KeySecret(b"0123456789abcdef0123456789abcdef")
KEY = b"customer-17"
ODD = b"\xff\x00k\xfe\x01"
ODD2 = b"\xff\xfe\xfb\xefo"
KEYS = (KEY, ODD, ODD2, ODD2 * 30, 'né "so"'.encode(), b"1234", b"-Infinity")
MATCH = KeyMatch.for_requests(SECRET, [SECRET.digests(KEYS)])
FILLING = b"x " * WHOLE_SEARCH_BYTES


@pytest.mark.parametrize(
    "record",
    [
        b'{"partition":0,"offset":3,"key":"customer-17","value":"v","odd":1}',
        b'{"a":[{"b":"customer-17"}]}',
        b'{"customer-17":null}',
        json.dumps({"key": {"base64": base64.b64encode(ODD).decode()}}).encode(),
        json.dumps({"k": 'né "so"'}).encode(),
        b'{"k":1234}',
        b'{"partition":0,"key":"customer-17","val',
        b'{"partition":0,"key":"customer-17',
        json.dumps({"k": 'né "so"', "v": 1}).encode()[:-3],
        b"7,customer-17,2024",
        b'7;"customer-17";2024',
        b"customer-17",
        b"the line of customer-17 was torn",
        b"key=customer-17&x=1",
        b"xxcustomer-17yy",
        b"\x00" + ODD + b"\x02",
        base64.b64encode(ODD),
        json.dumps({"key": {"base64": base64.b64encode(ODD2).decode().rstrip("=")}}).encode(),
        json.dumps({"key": {"base64": base64.b64encode(ODD2).decode() + "="}}).encode(),
        json.dumps({"key": {"base64": base64.urlsafe_b64encode(ODD2).decode()}}).encode(),
        json.dumps({"key": {"base64": base64.encodebytes(ODD2 * 30).decode()}}).encode(),
        b'{"partition":0,"key":{"base64":"' + base64.b64encode(ODD2).rstrip(b"="),
        b'{"key":-Infinity}',
        BASE64.encode() + base64.b64encode(b'{"k":"customer-17","v":"\xff"}'),
        BASE64.encode() + base64.encodebytes(b'{"k":"customer-17","v":"' + b"\xff" * 60 + b'"}'),
        BASE64.encode() + base64.b64encode(b'{"k":"' + ODD + b'"}'),
    ],
)
def test_it_is_found(record: bytes) -> None:
    assert tells_key(record, MATCH)


@pytest.mark.parametrize(
    "record",
    [
        BASE64.encode() + b"customer-1",
        BASE64.encode() + base64.b64encode(b"customer-1"),
        b"",
        b"{}",
        b"null",
        b"true",
        b'{"key":"customer-1"}',
        b'{"key":"customer-',
        b"customer-71",
        b'{"n":12345}',
    ],
)
def test_another_is_not(record: bytes) -> None:
    assert not tells_key(record, MATCH)


def test_white_space_and_padding_tell_no_empty_key() -> None:
    matches = KeyMatch.for_requests(SECRET, [SECRET.digests([b""])])
    assert tells_key(b'{"key":""}', matches)
    assert not tells_key(b'{"key":" ","value":"=="}', matches)


@pytest.mark.parametrize("part", [b'"key":"customer-17"', b"a,customer-17,b", b"is customer-17 there"])
def test_a_long_record_is_searched_by_strings_fields_and_words(part: bytes) -> None:
    assert tells_key(FILLING + part, MATCH)
    assert not tells_key(FILLING + b"xxcustomer-17yy", MATCH), "what the page says of a long record"


@pytest.mark.parametrize("record", [b'{"key":"customer-17","key":"other"}', b"[" * 100_000 + b'"customer-17"' + b"]" * 100_000])
def test_a_record_that_a_reader_of_json_would_not_give_back_is_searched_all_the_same(record: bytes) -> None:
    assert tells_key(record, MATCH)


def test_a_number_is_looked_for_as_it_is_written() -> None:
    match = KeyMatch.for_requests(SECRET, [SECRET.digests([b"1.50", b"1e3"])])
    assert tells_key(b'{"k":1.50}', match)
    assert tells_key(b'{"k":1e3}', match)
