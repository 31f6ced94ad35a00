"""Plain lines are what Spark's readers make of them: whatever a line is, it is left to Spark, or comes out as the same message."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from tests.effort import effort, generated
from tests.spark.lake import Lake
from tests.spark.landing import KEYED

from message_lifecycle.model.message import NewMessage, known_time
from message_lifecycle.sources.files import InputFile, find_files
from message_lifecycle.sources.mapping import UNITS, FieldMapping
from message_lifecycle.sources.messages import TtlRules, read_messages
from message_lifecycle.sources.plain import plain_messages

pytestmark = pytest.mark.spark

PARTITIONS = 3
PLAIN = b'{"k":"a","v":"1","at":"2024-05-01T12:00:00Z"}'
TEXTS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        (
            "",
            " ",
            "a",
            "Zürich",
            "\U0001f600",
            "\ud800",
            "\x00",
            "\u2028",
            'quote "',
            "back\\slash",
            "1",
            "0",
            "-0",
            "+1",
            "01",
            " 2 ",
            "2.0",
            "3",
            "1e3",
        )
    ),
)
NUMBERS = st.one_of(st.integers(-3, 5), st.sampled_from((-0.0, 1.10, 1e400, 10**17, 10**19, 10**99, 1714564800, 1714564800123456789)))
TIMES = st.one_of(
    st.sampled_from(
        (
            "2024-05-01", "2024-5-1", "2024-05-01 12:00:00", "2024-05-01T12:00:00Z", "2024-05-01t12:00:00z", "2024-05-01T12:00:00.1Z",
            "2024-05-01T12:00:00.123456Z", "2024-05-01T12:00:00.1234567Z", "2024-05-01T12:00:00+02:00", "2024-05-01T12:00:00-14:00",
            "2024-05-01T12:00:00+14:59", "2024-05-01T12:00:00+15:00", "2024-05-01T12:00:00+0200", "2024-05-01T12:00:00+02", "2024-05-01T24:00:00Z",
            "2024-05-01T23:59:60Z", "2024-05-01T12:00", "2024-02-30", "0000-01-01", "1970-01-01", "1989-12-31T23:59:59Z", "1990-01-01",
            "2099-12-31T23:59:59.999999Z", "2100-01-01", "2024-05-01 12:00:00 Europe/Vienna", " 2024-05-01", "2024-05-01\n", "12:00:00",
            "1714564800", "1714564800000", "1714564800000001", "1714564800000000001", "-1", "0", "00", "", "1714564800.5", "１７１４５６４８００",
        )
    ),
    st.none(),
    NUMBERS,
)  # fmt: skip
PAIRS = st.dictionaries(TEXTS, st.one_of(TEXTS, st.none(), NUMBERS), max_size=2)
LISTED = st.lists(
    st.fixed_dictionaries({}, optional={"name": st.one_of(TEXTS, st.none()), "value": st.one_of(TEXTS, st.none()), "x": TEXTS}), max_size=2
)
HEADERS = st.one_of(
    st.none(), TEXTS, NUMBERS, st.booleans(), PAIRS, LISTED, PAIRS.map(json.dumps), LISTED.map(json.dumps), PAIRS.map(lambda one: [one]),
    st.sampled_from(("{}", "[]", " [] ", '{"a":"1"} x', '{"a":"1","a":"2"}', '"text"', "null", '{}], "x":[', "{'a':'1'}")),
)  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(TEXTS, NUMBERS, st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=3,
)


ODD = {
    "k": st.one_of(TEXTS, ANYTHING), "v": ANYTHING, "at": TIMES, "e": TIMES, "h": HEADERS, "p": st.one_of(TEXTS, NUMBERS), "x": ANYTHING,
}  # fmt: skip
EVEN = {
    "k": st.sampled_from(("a", "Zürich", "", None, 7)), "v": st.sampled_from(("b", "\n", None)), "x": st.sampled_from((1.5, True, [], "x")),
    "at": st.sampled_from(("2024-05-01T12:00:00Z", None)), "e": st.sampled_from((1714564800, "1714564800000", 1714564800000000001, 0)),
    "h": st.sampled_from(({"a": "1"}, [{"name": "a", "value": ""}], None)), "p": st.sampled_from((0, "2", "")),
}  # fmt: skip


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """Of fields that are plain, all but a few; some come twice."""
    odd = draw(st.sets(st.sampled_from(sorted(ODD)), max_size=draw(st.sampled_from((1, 1, 7)))))
    names = draw(st.lists(st.sampled_from(sorted(ODD)), unique=draw(st.sampled_from((True, True, False))), max_size=8))
    ascii_only, (comma, colon) = draw(st.booleans()), draw(st.sampled_from(((",", ":"), (", ", ": "), (" ,\t", " :  "))))
    pairs = [(name, draw((ODD if name in odd else EVEN)[name])) for name in names]
    told = (f'"{name}"{colon}{json.dumps(value, ensure_ascii=ascii_only, separators=(comma, colon))}' for name, value in pairs)
    return f"{{{comma.join(told)}}}".encode("utf-8", "surrogatepass")


PIECES = (
    b"\\ud83d\\ude00", b"\\ud800", b"\\uDfff", b"\\u0041", b"\\u006b", b"\\/", b"\\x", b"'", b'"', b"\xff", b"\xef\xbb\xbf", b"\x00", b"\x1f",
    b"\t", b" ", b"NaN", b"Infinity", b"true", b"0", b"1", b".", b"e5", b"-", b"+", b",", b":", b"{", b"}", b"[", b"]", b"/**/", b"#", b"\\",
    b'"k":"b",', b'"x":1,"x":2,', b'"\\u006b":"b",', b"'k':'b',", b"[" * 1200, b"[" * 990 + b"]" * 990, b"9" * 1100, b'{"k":"b"}', b"\x0b", b"\x85",
    b"\xc2\x85", b"\xe2\x80\xa8",
)  # fmt: skip


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """With pieces put in somewhere, and pieces left out."""
    line = draw(st.one_of(objects(), st.just(PLAIN)))
    for _ in range(draw(st.integers(1, 2))):
        at, gone = draw(st.integers(0, len(line))), draw(st.integers(0, 2))
        line = line[:at] + draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=1))) + line[at + gone :]
    return line


LINES = st.one_of(objects(), broken(), st.sampled_from((PLAIN, b" ", b"\t", b"", b"{}", b"[]", b"null", b'"a"', b"1", PLAIN + PLAIN)))


@dataclass(frozen=True)
class Held:
    """A store of one file."""

    content: bytes

    def open(self, _: str) -> IO[bytes]:
        return io.BytesIO(self.content)


def plain(line: bytes, mapping: FieldMapping) -> list[NewMessage] | None:
    file = InputFile(name="a.jsonl", path="a.jsonl", kind="json lines", size_bytes=len(line), store=Held(line))
    return plain_messages([file], mapping, partitions=PARTITIONS)


def by_spark(lake: Lake, folder: Path, lines: Iterable[bytes], mapping: FieldMapping) -> dict[int, tuple[str | None, tuple[object, ...]]]:
    """By the number of the line: why it is refused or suspected, and the message."""
    (folder / "a.jsonl").write_bytes(b"\n".join([PLAIN, *lines]))  # the first one keeps a byte order mark from coming first
    read = read_messages(lake.session, find_files(folder), mapping, partitions=PARTITIONS, ttl=TtlRules(copies=True))
    named = F.transform("headers", lambda header: F.struct(header["name"], header["value"]))
    times = [F.unix_micros(name) for name in ("append_time", "event_time")]
    suspect = F.coalesce("code", "suspect_append_time", "suspect_event_time")
    rows = read.select("at", suspect, "partition", "key", "value", *times, named, "size_bytes").collect()
    return {row[0] - 1: (row[1], (*map(_held, row[2:7]), tuple((name, _held(value)) for name, value in row[7]), row[8])) for row in rows}


def _held(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def said(message: NewMessage) -> tuple[object, ...]:
    times = known_time(message.append_time), message.event_time
    return (message.partition, message.key, message.value, *times, message.headers, message.size_bytes)


MAPPINGS = st.builds(
    replace,
    st.just(replace(KEYED, headers="h", partition="p", event_time="e")),
    value=st.sampled_from((None, "v")),
    append_time_unit=st.sampled_from(UNITS),
    event_time_unit=st.sampled_from(UNITS),
    headers=st.sampled_from(("h", None)),
    partition=st.sampled_from(("p", None)),
)


@generated
@effort("iceberg", 0, on_tables=8)
@given(lines=st.lists(LINES.filter(lambda line: not set(line) & set(b"\r\n")), min_size=100, max_size=400), mapping=MAPPINGS)
def test_a_plain_line_is_the_message_that_spark_makes_of_it(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], mapping: FieldMapping
) -> None:
    found = by_spark(lake, tmp_path_factory.mktemp("lines"), lines, mapping)
    taken = 0
    for number, line in enumerate(lines):
        messages = plain(line, mapping)
        if messages is None:
            continue
        if not messages:
            assert number not in found, f"a line that Spark reads: {line!r}"
            continue
        taken += 1
        assert (found[number], line) == ((None, said(messages[0])), line)
    assert taken, "some are plain"


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [
        (PLAIN, True),
        (b'  {"k" : "\\u005a\xc3\xbcrich\\n" , "at": null}', True),
        (b'{"k":7,"x":[1.5,true,{"y":null}]}', True),
        (b'{"k":1.10}', False),
        (b'{"k":true}', False),
        (b'{"k":["a"]}', False),
        (b'{"k":"a","k":"b"}', False),
        (b'{"k":"\\ud83d\\ude00"}', False),
        (b'{"k":"a","x":"\\ud800"}', False),
        (b"{'k':'a'}", False),
        (b'{"k":"a"} ', True),
        (b'{"k":"a"} {}', False),
        (b'{"x":%s}' % (b"[" * 201 + b"]" * 201), False),
        (b'{"%s":1}' % (b"x" * 1001), False),
        (b'{"at":"noon"}', False),
        (b'{"at":"1989-12-31"}', False),
        (b'{"k":"\xff"}', False),
        (b"\xef\xbb\xbf" + PLAIN, False),
    ],
)
def test_a_line_is_plain_where_every_reader_must_read_the_same(line: bytes, is_plain: bool) -> None:
    assert (plain(line, KEYED) is not None) is is_plain
