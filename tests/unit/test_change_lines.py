"""Changes as JSON lines: taken as they are written, or refused with their place."""

from __future__ import annotations

import json

import pytest

from message_lifecycle.app.change_lines import read_changes
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant
from tests.errors import raises

GOOD = {"document": " My Letter ", "server_seq": 1, "client": "Ada", "at": "1970-01-01T00:00:01Z", "payload": [[0, 0, "Ä\U0001f600"]]}


def read(*lines: object, fold: str = "text_splice") -> list[Change]:
    given = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return list(read_changes(given, where="letter.jsonl", fold=fold))


def test_a_line_is_a_change() -> None:
    (first, second) = read(GOOD, b"\n", {**GOOD, "server_seq": 2, "at": None, "payload": None})
    assert (first.document, first.server_seq, first.client, first.at) == ("my.letter", 1, "ada", Instant(1_000_000))
    assert json.loads(first.payload) == GOOD["payload"]
    assert (second.server_seq, second.at, second.payload) == (2, None, b"null")


def test_a_line_without_a_time_has_an_unknown_one() -> None:
    (change,) = read({name: value for name, value in GOOD.items() if name != "at"})
    assert change.at is None


def test_an_update_of_yjs_is_base64() -> None:
    (change,) = read({**GOOD, "payload": {"base64": "AAE="}}, fold="yjs")
    assert change.payload == b"\x00\x01"
    (change,) = read({**GOOD, "payload": {"base64": "AAE="}}, fold="last_write")
    assert json.loads(change.payload) == {"base64": "AAE="}, "to any other fold it is JSON as any"


@pytest.mark.parametrize(
    ("line", "field", "allowed"),
    [
        (b"{", "line", "a JSON object"),
        (b'{"document": NaN}', "line", "NaN is no JSON number"),
        (b"\xff", "line", "a JSON object"),
        ([1], "line", "a JSON object with document, server_seq, client, payload, at"),
        ({**GOOD, "offset": 1}, "offset", "only document, server_seq, client, payload, at"),
        ({key: value for key, value in GOOD.items() if key != "payload"}, "payload", "it must be there"),
        ({**GOOD, "document": 5}, "document", "text"),
        ({**GOOD, "document": "a/b"}, "document", "character '/'"),
        ({**GOOD, "client": ".."}, "client", "a path"),
        ({**GOOD, "server_seq": 0}, "server_seq", "a whole number from 1"),
        ({**GOOD, "server_seq": True}, "server_seq", "a whole number from 1"),
        ({**GOOD, "server_seq": 1.0}, "server_seq", "a whole number from 1"),
        ({**GOOD, "server_seq": 2**63}, "server_seq", "to 9223372036854775807"),
        ({**GOOD, "at": "yesterday"}, "at", "ISO 8601"),
        (b'{"document": "d", "server_seq": 1, "client": "c", "payload": 1e999}', "payload", "numbers that a float can hold"),
    ],
)
def test_what_is_no_change_is_refused_with_its_place(line: object, field: str, allowed: str) -> None:
    with raises("InvalidChangeLine") as error:
        read(GOOD, line)
    assert str(error.value).startswith(f"letter.jsonl:2: {field}: found ")
    assert allowed in str(error.value)
    assert "Nothing was stored" in str(error.value)


@pytest.mark.parametrize("payload", ["AAE=", {"base64": "A"}, {"base64": 5}, {"base64": "AAE=", "more": 1}, None])
def test_an_update_that_is_none_is_refused(payload: object) -> None:
    with raises("InvalidChangeLine"):
        read({**GOOD, "payload": payload}, fold="yjs")


def test_of_a_long_line_the_beginning_is_shown() -> None:
    with raises("InvalidChangeLine") as error:
        read({**GOOD, "document": ["x" * 10_000]})
    assert len(str(error.value)) < 300
