"""A record that is too large is refused alone, in every format; memory stays bounded, and the neighbours are taken."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.sources import csv_records, json_lines, reader
from message_lifecycle.sources.block import MESSAGE_BYTES
from message_lifecycle.sources.files import InputFile
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.reader import TtlRules
from tests.unit.test_reader import KEYED, as_parquet, good, held, refusals, rows_of

AT = "2026-11-20T10:00:00Z"
WHOLE = FieldMapping(key="k", append_time="at")
HEADED = FieldMapping(key="k", value="v", append_time="at", headers="h")


@cache
def _files(value: str, size: int) -> dict[str, bytes]:
    """A message before and a message behind one with this value, so many times."""
    rows = [("a", "small"), ("big", value * size), ("z", "small")]
    lines = "".join(json.dumps({"k": key, "v": one, "at": AT}) + "\n" for key, one in rows).encode()
    table = "k,v,at\n" + "".join(f'{key},"{one}",{AT}\n' for key, one in rows)
    columns = {"k": [key for key, _ in rows], "v": pa.array([one.encode() for _, one in rows], pa.binary()), "at": [AT] * 3}
    return {"a.jsonl": lines, "a.jsonl.gz": gzip.compress(lines, 1), "a.csv": table.encode(), "a.parquet": as_parquet(columns)}


@pytest.mark.parametrize("mapping", [KEYED, WHOLE], ids=["field", "record"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet"])
def test_a_message_that_is_too_large_is_refused_alone(name: str, mapping: FieldMapping) -> None:
    found = rows_of(held(name, _files("0123456789abcde\n" * 4096, 300)[name]), mapping)
    assert [row["key"] for row in found if row["code"] is None] == [b"a", b"z"]
    ((position, code, raw),) = refusals(found)
    assert (position, code, raw) == ({"a.csv": 3}.get(name, 2), "too_large", None)
    (refused,) = (row for row in found if row["code"] is not None)
    assert len(refused["value"] or b"") < 100 and f"at most {MESSAGE_BYTES:,} are allowed" in refused["reason"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_message_of_nearly_the_limit_is_taken(name: str) -> None:
    size = MESSAGE_BYTES - 200
    assert [len(one) for _, one, _ in good(rows_of(held(name, _files("x", size)[name])))] == [5, size, 5]


@pytest.mark.parametrize("where", ["key", "header", "both"])
def test_key_value_and_headers_count_together(where: str) -> None:
    size = {"key": (MESSAGE_BYTES, 0), "header": (0, MESSAGE_BYTES), "both": (MESSAGE_BYTES // 2, MESSAGE_BYTES // 2)}[where]
    headers = pa.array([[("n", b"h" * size[1])], []], pa.map_(pa.string(), pa.binary()))
    columns = {"k": [b"k" * size[0], b"z"], "v": [b"value", b""], "at": [AT, AT], "h": headers}
    found = rows_of(held("a.parquet", as_parquet(columns)), HEADED)
    assert [row["code"] for row in found] == ["too_large", None]
    assert found[0]["headers"] == [] and found[0]["value"] is None


def test_a_refused_record_keeps_no_text_that_is_too_large() -> None:
    columns = {"k": ["a"], "v": [b"v"], "at": ["noon"], "rest": [b"r" * MESSAGE_BYTES]}
    ((_, code, raw),) = refusals(rows_of(held("a.parquet", as_parquet(columns))))
    assert (code, raw) == ("unreadable_time", None)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_memory_does_not_hold_a_record_that_is_too_large(name: str) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as out:
        out.write({"a.jsonl.gz": b'{"v":"', "a.csv.gz": b'k,v,at\nb,"'}[name])
        for _ in range(100):
            out.write(b'x, ""' * 200_000)
        out.write({"a.jsonl.gz": b'"}\n{"k":"z","v":"small"}', "a.csv.gz": b'"\nz,small,'}[name])
    tracemalloc.start()
    found = rows_of(held(name, packed.getvalue()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(row["key"], row["code"]) for row in found] == [(None, "too_large"), (b"z", None)]
    assert peak < 100 << 20


def test_a_block_of_parquet_has_as_many_rows_as_memory_holds() -> None:
    content = as_parquet({"k": ["k"] * 64, "v": [bytes([at]) * (1 << 20) for at in range(64)], "at": [AT] * 64}, use_dictionary=False)
    job = reader.Job(mapping=KEYED, partitions=1, ttl=TtlRules())
    sizes = [batch.nbytes for batch in reader.read_slice(reader.Slice(file=held("a.parquet", content), number=0), job)]
    assert max(sizes) < 16 << 20


# With a small limit: any text, cut anywhere

PIECE = st.sampled_from(["a", "bb", '"', '""', '"""', ",", ",,", "\n", "\r", "\r\n", "é", " "])


@settings(deadline=None, max_examples=300)
@given(text=st.lists(PIECE, max_size=40).map("".join), limit=st.integers(2, 12))
def test_a_csv_record_ends_where_it_ends_whatever_its_size(text: str, limit: int) -> None:
    plain, is_closed = _parsed(text, 1000)
    found, ends = _parsed(text, limit)
    assert (len(found), ends) == (len(plain), is_closed)
    for (record, is_too_large), (wanted, _) in zip(found, plain, strict=True):
        assert is_too_large or record == wanted


def _parsed(text: str, limit: int) -> tuple[list[tuple[list[str], bool]], bool]:
    """The records, each with whether it is too large; and whether the last quote is closed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "MESSAGE_BYTES", limit)
        lines = csv_records._Lines(io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline=""), ",")
        parser, found = csv.reader(lines), list[tuple[list[str], bool]]()
        while True:
            lines.begin()
            record = next(parser, None)
            if lines.has_ended and lines.number >= lines.first:
                return found, False
            if record is None:
                return found, True
            if record:
                found.append((record, lines.is_too_large))


@settings(deadline=None, max_examples=200)
@given(
    lines=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["\n", "\r", "\r\n"])), max_size=8),
    chunk=st.integers(1, 20),
    size=st.integers(1, 80),
)
def test_a_line_that_is_too_large_is_refused_alone_in_slices_too(lines: list[tuple[int, str]], chunk: int, size: int) -> None:
    content = "".join(json.dumps({"k": str(at), "v": "x" * width}) + end for at, (width, end) in enumerate(lines)).encode()
    limit = 40
    file: InputFile = held("a.jsonl", content)

    def found(start: int, end: int | None) -> list[tuple[Any, ...]]:
        return [
            (row["key"], row["code"], row["log_order"]) for row in rows_of(file, FieldMapping(key="k", value="v"), start=start, end=end)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_CHUNK", chunk)
        for module in (json_lines, reader):
            patch.setattr(module, "MESSAGE_BYTES", limit)
        whole = found(0, None)
        parts = [row for start in range(0, len(content), size) for row in found(start, start + size)]
    wanted = [
        (None, "too_large") if len(line) > limit else (json.loads(line)["k"].encode(), None) for line in content.splitlines(keepends=True)
    ]
    assert [row[:2] for row in whole] == wanted
    assert parts == whole
