"""One reader for every format: bytes stay as they are, or the record is refused alone; a file never depends on its neighbours (MSG-1, P12)."""

from __future__ import annotations

import csv
import gzip
import io
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from message_lifecycle.sources import json_lines, messages
from message_lifecycle.sources.files import InputFile, Kind, find_files
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.reader import Job, Slice, TtlRules, read_slice
from tests.errors import raises

KEYED = FieldMapping(key="k", value="v", append_time="at")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Held:
    """A store of one file."""

    content: bytes

    def open(self, _: str) -> IO[bytes]:
        return io.BytesIO(self.content)


def held(name: str, content: bytes) -> InputFile:
    kinds: dict[str, Kind] = {"jsonl": "json lines", "csv": "csv", "parquet": "parquet"}
    kind = kinds[name.removesuffix(".gz").rpartition(".")[2]]
    return InputFile(name=name, path=name, kind=kind, size_bytes=len(content), store=Held(content))


def rows_of(file: InputFile, mapping: FieldMapping = KEYED, *, number: int = 0, start: int = 0, end: int | None = None) -> Rows:
    job = Job(mapping=mapping, partitions=3, ttl=TtlRules(allow_msg_ttl=True), for_quarantine=end is None and start == 0)
    batches = read_slice(Slice(file=file, number=number, start=start, end=end), job)
    return [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]


def good(rows: Rows) -> list[tuple[Any, ...]]:
    return [(row["key"], row["value"], row["append_time"]) for row in rows if row["code"] is None]


def refusals(rows: Rows) -> list[tuple[int, str, str]]:
    return [(row["position"], row["code"], row["raw"]) for row in rows if row["code"] is not None]


def as_parquet(columns: Mapping[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, **options)
    return out.getvalue()


# The same rows in each format


TEXT = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
    st.sampled_from(("", " ", '"', '""', ",", "a\nb", "a\r\nb", "\r", "\\", "Zürich", "\u2028", "\x0b", "\x85", "\x00", "1.10", "null")),
)
TIME = st.none() | st.integers(631_152_000_000_000, 4_102_444_799_999_999).map(
    lambda at: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at)
)
ROW = st.tuples(st.none() | TEXT, st.none() | TEXT, TIME)


def stamp(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def quoted(value: str | None) -> str:
    return "" if value is None else '"' + value.replace('"', '""') + '"'


def in_formats(rows: Iterable[tuple[str | None, str | None, datetime | None]]) -> dict[str, bytes]:
    rows = list(rows)
    lines = [json.dumps({"k": key, "v": value, "at": stamp(at)}, ensure_ascii=False) for key, value, at in rows]
    records = ["k,v,at", *(f"{quoted(key)},{quoted(value)},{stamp(at) or ''}" for key, value, at in rows)]
    columns = {
        "k": pa.array([key for key, _, _ in rows], pa.string()),
        "v": pa.array([value for _, value, _ in rows], pa.string()),
        "at": pa.array([at for _, _, at in rows], pa.timestamp("us", "UTC")),
    }
    return {
        "a.jsonl": "".join(line + "\n" for line in lines).encode(),
        "a.csv": "".join(record + "\r\n" for record in records).encode(),
        "a.parquet": as_parquet(columns),
    }


@settings(deadline=None)
@given(rows=st.lists(ROW, max_size=20))
def test_the_same_rows_are_the_same_messages_in_every_format(rows: list[tuple[str | None, str | None, datetime | None]]) -> None:
    wanted = [
        (
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            None if at is None or at.timestamp() == 0 else at,
        )
        for key, value, at in rows
    ]
    for name, content in in_formats(rows).items():
        found = rows_of(held(name, content))
        assert (refusals(found), good(found)) == ([], wanted), name
        packed = [] if name == "a.parquet" else rows_of(held(f"{name}.gz", gzip.compress(content)))
        assert name == "a.parquet" or good(packed) == wanted


@settings(deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=20), number=st.integers(1, 30_000))
def test_a_file_gives_the_same_alone_and_among_neighbours(rows: list[tuple[str | None, str | None, datetime | None]], number: int) -> None:
    for name, content in in_formats(rows).items():
        alone, among = rows_of(held(name, content)), rows_of(held(name, content), number=number)
        for row in [*alone, *among]:
            row["log_order"] &= (1 << 48) - 1
        assert alone == among


@settings(deadline=None)
@given(
    lines=st.lists(st.sampled_from((b'{"k":"a"}', b'{"k":"b","v":"Z\xc3\xbcrich"}', b"", b" ", b"torn")), max_size=12),
    ends=st.lists(st.sampled_from((b"\n", b"\r\n", b"\r")), min_size=12, max_size=12),
    size=st.integers(1, 40),
    chunk=st.integers(1, 40),
    mark=st.sampled_from((b"", b"\xef\xbb\xbf")),
)
def test_a_file_in_slices_is_the_whole_file(lines: list[bytes], ends: list[bytes], size: int, chunk: int, mark: bytes) -> None:
    content = mark + b"".join(line + end for line, end in zip(lines, ends, strict=False))
    file = held("a.jsonl", content)
    whole = [{**row, "position": None} for row in rows_of(file)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_CHUNK", chunk)
        parts = [row for start in range(0, len(content), size) for row in rows_of(file, start=start, end=start + size)]
    assert [{**row, "position": None, "raw": None} for row in parts] == [{**row, "raw": None} for row in whole]


def test_every_file_goes_to_one_task_and_large_ones_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LEAST_BYTES", "_SLICE_BYTES"):
        monkeypatch.setattr(messages, name, 1000)
    for name, size in (("a.jsonl", 2500), ("b.csv", 2500), ("c.jsonl", 300), ("d.jsonl", 300), ("e.jsonl.gz", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    groups = [[(part.file.name, part.start, part.end) for part in group] for group in messages.slices(find_files(tmp_path))]
    assert groups == [
        [("a.jsonl", 0, 1000)],
        [("a.jsonl", 1000, 2000)],
        [("a.jsonl", 2000, 3000)],
        [("b.csv", 0, None)],
        [("c.jsonl", 0, None), ("d.jsonl", 0, None), ("e.jsonl.gz", 0, None)],
    ]


# JSON lines


def one(line: str, field: str | None = None) -> bytes | None:
    (row,) = rows_of(held("a.jsonl", line.encode()), FieldMapping(key=field, value=field))
    assert row["code"] is None
    found: bytes | None = row["value"]
    assert field is None or row["key"] == found
    return found


@pytest.mark.parametrize(
    "text",
    ["12345678901234567.89", "1.10", "1e400", "-0", "-0.0", "1E+2", "0.1e-5", "9" * 400, '{"b" : [1.10, null]}', '[ {"x":"]"} , 2.50 ]'],
)
@pytest.mark.parametrize("field", ["x", "a.b", None])
def test_a_value_of_json_is_the_text_that_it_has(text: str, field: str | None) -> None:
    line = f'{{"x": {text}, "a":{{ "c":[1], "b" :{text}}}}}'
    assert one(line, field) == (line if field is None else text).encode()


@pytest.mark.parametrize(
    ("text", "value"), [("true", b"true"), ("null", None), ('""', b""), (r'"\u005a\ud83d\ude00"', "Z\U0001f600".encode())]
)
def test_words_and_text_of_json(text: str, value: bytes | None) -> None:
    assert one(f'{{"x":{text}}}', "x") == value


def test_a_field_with_points_in_its_name_comes_before_one_within_another() -> None:
    assert one('{"a.b":"1","a":{"b":"2"}}', "a.b") == b"1"
    assert one('{"a":{"b":{"c":"3"}}}', "a.b.c") == b"3"


@pytest.mark.parametrize(
    "line",
    [b"{'k':'a'}", b'{"k":NaN}', b'{"k":"a"} {}', b"[1]", b'"a"', b'{"k":"\xff"}', b'{"k":"\\ud800"}', b'{"x":["\\udc00"]}', b'{"k":"\x01"}',
     b'{"k":"a","k":"b"}', b'{"k":"a","\\u006b":"b"}', b'{"k":' + b"[" * 200_000, b'{"k":01}', b'{"k":"a",}'],
)  # fmt: skip
def test_a_line_that_is_no_record_is_refused_alone(line: bytes) -> None:
    rows = rows_of(held("a.jsonl", b'{"k":"before"}\n' + line + b'\n{"k":"behind"}\n'), FieldMapping(key="k"))
    assert [row["key"] for row in rows if row["code"] is None] == [b"before", b"behind"]
    assert [(position, code) for position, code, _ in refusals(rows)] == [(2, "unreadable_line")]


# CSV


def test_quotes_follow_rfc_4180() -> None:
    content = 'k,v,at\r\n"",empty key,\r\n,no key,\r\n3,"",\r\n4,,\r\n5,"a ""b"", c",\r\n6,"first\nsecond\r\nthird",\r\n7,5" pipe,\r\n8, "x",\r\n9,"""",\r\n'
    assert [row[:2] for row in good(rows_of(held("a.csv", content.encode())))] == [
        (b"", b"empty key"), (None, b"no key"), (b"3", b""), (b"4", None), (b"5", b'a "b", c'), (b"6", b"first\nsecond\r\nthird"),
        (b"7", b'5" pipe'), (b"8", b' "x"'), (b"9", b'"'),
    ]  # fmt: skip


def test_a_record_of_csv_that_breaks_a_rule_is_refused_alone_with_its_line() -> None:
    content = b'k,v,at\na,1,\nb\nc,"x"y,\nd,"x\ny",,\ne,"x\n\xff",\n\nf,"2\n3",\n'
    rows = rows_of(held("a.csv", content))
    assert [row[:2] for row in good(rows)] == [(b"a", b"1"), (b"f", b"2\n3")]
    assert [(position, raw) for position, _, raw in refusals(rows)] == [
        (3, "b"), (4, 'c,"x"y,'), (5, 'd,"x\ny",,'), (7, "base64:ZSwieAr/Iiw="),
    ]  # fmt: skip


@pytest.mark.parametrize("content", ['k,v,at\na,"1,\nb,2,\n', 'k,v,at\na,1,\nb,2,"', 'k,"v,at\n'])
def test_a_quote_that_is_never_closed_refuses_the_file(content: str) -> None:
    with raises("UnreadableFile", match="is never closed"):
        rows_of(held("a.csv", content.encode()))


@settings(deadline=None)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=10), mark=st.sampled_from(",;\t|"))
def test_what_another_program_wrote_as_csv_is_read_as_it_was_meant(rows: list[tuple[str, str]], mark: str) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=mark, quoting=csv.QUOTE_ALL).writerows([("k", "v"), *rows])
    found = rows_of(held("a.csv", out.getvalue().encode()), FieldMapping(key="k", value="v", delimiter=mark))
    assert [row[:2] for row in good(found)] == [(key.encode(), value.encode()) for key, value in rows]


# Parquet


NOW = datetime(2026, 11, 20, 10, 0, 0, 123456, tzinfo=UTC)
NANOS = 1_795_168_800_123_456_789
ID = uuid.UUID(int=1)
TYPED: dict[str, tuple[pa.Array, str]] = {
    "whole float": (pa.array([12345678.0]), "12345678"),
    "large float": (pa.array([1e22]), "10000000000000000000000"),
    "small float": (pa.array([1e-7]), "0.0000001"),
    "float": (pa.array([0.1], pa.float32()), "0.1"),
    "half float": (pa.array([np.float16(0.1)], pa.float16()), "0.1"),
    "no number": (pa.array([float("nan")]), '"NaN"'),
    "decimal": (pa.array([Decimal("1.10")], pa.decimal128(9, 2)), "1.10"),
    "wide decimal": (pa.array([Decimal("1.10")], pa.decimal256(50, 2)), "1.10"),
    "unsigned": (pa.array([2**64 - 1], pa.uint64()), str(2**64 - 1)),
    "true": (pa.array([True]), "true"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([ID.bytes], pa.binary(16))), f'"{ID}"'),
    "time": (pa.array([time(10, 0, 0, 5)], pa.time64("us")), '"10:00:00.000005"'),
    "time of milliseconds": (pa.array([time(10, 0)], pa.time32("ms")), '"10:00:00"'),
    "date": (pa.array([date(2026, 11, 20)]), '"2026-11-20"'),
    "microseconds": (pa.array([NOW], pa.timestamp("us", "UTC")), '"2026-11-20T10:00:00.123456Z"'),
    "milliseconds": (pa.array([NOW.replace(microsecond=120_000)], pa.timestamp("ms", "Asia/Tokyo")), '"2026-11-20T10:00:00.120Z"'),
    "local": (pa.array([NOW.replace(tzinfo=None)], pa.timestamp("us")), '"2026-11-20T10:00:00.123456"'),
    "nanoseconds": (pa.array([NANOS], pa.timestamp("ns", "UTC")), '"2026-11-20T10:00:00.123456789Z"'),
    "nanoseconds within": (pa.array([[{"at": NANOS}]], pa.list_(pa.struct([("at", pa.timestamp("ns", "UTC"))]))), '[{"at":"2026-11-20T10:00:00.123456789Z"}]'),
    "map": (pa.array([[("a", 1.0)]], pa.map_(pa.string(), pa.float64())), '{"a":1}'),
    "dictionary": (pa.array(["x"]).dictionary_encode(), '"x"'),
    "bytes": (pa.array([b"\xff"]), '"/w=="'),
    "text": (pa.array(['a"\n\u2028'], pa.large_string()), '"a\\"\\n\u2028"'),
    "nothing": (pa.array([None], pa.string()), "null"),
}  # fmt: skip


@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("name", TYPED)
def test_a_column_of_parquet_is_written_with_all_its_digits(name: str, with_schema: bool) -> None:
    column, text = TYPED[name]
    content = as_parquet({"x": column, "in": pa.StructArray.from_arrays([column], names=["x"])}, store_schema=with_schema)
    (whole,) = rows_of(held("a.parquet", content), FieldMapping())
    assert whole["value"].decode() == f'{{"x":{text},"in":{{"x":{text}}}}}'
    for field in ("x", "in.x"):
        (row,) = rows_of(held("a.parquet", content), FieldMapping(key=field, value=field))
        wanted = None if text == "null" else b"\xff" if name == "bytes" else (json.loads(text) if text.startswith('"') else text).encode()
        assert (row["key"], row["value"]) == (wanted, wanted)


@pytest.mark.parametrize("year", [1600, 1969, 2026, 2300])
def test_times_of_96_bits_are_utc(year: int) -> None:
    at = NOW.replace(year=year)
    column = pa.array([at.replace(tzinfo=None)], pa.timestamp("us"))
    (row,) = rows_of(held("a.parquet", as_parquet({"at": column}, use_deprecated_int96_timestamps=True)), FieldMapping(append_time="at"))
    assert (row["code"], row["append_time"], row["value"].decode()) == (None, at, f'{{"at":"{at.isoformat().replace("+00:00", "Z")}"}}')


def test_a_local_time_of_parquet_needs_a_zone() -> None:
    content = as_parquet({"at": pa.array([NOW.replace(tzinfo=None), None], pa.timestamp("us"))})
    mapping = FieldMapping(append_time="at")
    rows = rows_of(held("a.parquet", content), mapping)
    assert [(row["code"], row["append_time"]) for row in rows] == [("unreadable_time", None), (None, None)]
    berlin = rows_of(held("a.parquet", content), replace(mapping, time_zone="Europe/Berlin"))
    assert [row["append_time"] for row in berlin] == [NOW.replace(hour=9), None]


def test_fields_that_differ_in_case_are_two() -> None:
    content = as_parquet({"Id": ["a"], "id": ["b"]})
    assert [rows_of(held("a.parquet", content), FieldMapping(key=name))[0]["key"] for name in ("Id", "id")] == [b"a", b"b"]


# Folders and headers


@pytest.mark.parametrize("name", in_formats([]))
def test_a_folder_names_a_field_that_the_records_do_not_have(name: str) -> None:
    content = in_formats([("a", "1", None)])[name]
    file = held(f"dt=2026-11-20/zone=a%2Fb/none=__HIVE_DEFAULT_PARTITION__/k=other/{name}", content)
    for field, wanted in (("dt", b"2026-11-20"), ("zone", b"a/b"), ("none", None), ("k", b"a")):
        (row,) = rows_of(file, FieldMapping(key=field))
        assert (row["key"], row["absent"]) == (wanted, 0)


STRUCTS = {
    "name and value": pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])),
    "key and value": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "map": pa.map_(pa.string(), pa.string()),
}
PAIRS = [("a", "1"), ("Nats-TTL", "1m"), ("a", "")]


@pytest.mark.parametrize("kind", STRUCTS)
def test_headers_of_parquet_are_taken_as_kafka_connect_and_others_write_them(kind: str) -> None:
    names = ("key" if kind == "key and value" else "name"), "value"
    given = (
        PAIRS
        if kind == "map"
        else [dict(zip(names, (name, value.encode() if names[0] == "key" else value), strict=True)) for name, value in PAIRS]
    )
    content = as_parquet({"h": pa.array([given, None, []], STRUCTS[kind]), "k": ["a", "b", "c"]})
    rows = rows_of(held("a.parquet", content), FieldMapping(key="k", headers="h"))
    assert [[(one["name"], one["value"]) for one in row["headers"]] for row in rows] == [
        [(name, value.encode()) for name, value in PAIRS],
        [],
        [],
    ]
    assert [(row["code"], row["lifetime"]) for row in rows] == [(None, 60_000_000), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('[{"name":"a","value":"1"},{"key":"b","value":2.50}]', [("a", b"1"), ("b", b"2.50")]),
        ('{"a": "1", "b":{"c" : 1.10}, "d":null}', [("a", b"1"), ("b", b'{"c" : 1.10}'), ("d", None)]),
        ('"[{\\"key\\":\\"a\\",\\"value\\":\\"1\\"}]"', [("a", b"1")]),
        ("null", []),
        ('""', []),
        ("[]", []),
        ('[{"value":"1"}]', None),
        ("[1]", None),
        ('"none"', None),
        ("5", None),
    ],
)
def test_headers_of_json_are_a_list_an_object_or_their_text(given: str, wanted: list[tuple[str, bytes | None]] | None) -> None:
    (row,) = rows_of(held("a.jsonl", f'{{"h":{given}}}'.encode()), FieldMapping(headers="h"))
    if wanted is None:
        assert row["code"] == "invalid_headers"
    else:
        assert (row["code"], [(one["name"], one["value"]) for one in row["headers"]]) == (None, wanted)
