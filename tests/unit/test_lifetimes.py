"""Lifetimes by blocks are what the rule says value by value (TTL-1 to TTL-3)."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from message_lifecycle.model.instants import InvalidTtl, parse_ttl
from message_lifecycle.sources.lifetimes import INVALID, NEVER, NO_LIFETIME, parse_lifetimes
from tests.ttls import TTLS, VALUES


def by_the_rule(value: bytes | None) -> int | None:
    if value is None or not value.strip(b" "):
        return None
    try:
        ttl = parse_ttl(value)
    except InvalidTtl:
        return INVALID
    return NEVER if ttl.never else NO_LIFETIME if ttl.duration_us is None else ttl.duration_us


# Close to the forms that arrays read, and to the limits at which they leave off.
PARTS = st.builds(
    lambda number, unit: number + unit,
    st.text("0123456789", max_size=10),
    st.sampled_from(["h", "m", "s", "ms", ".", "us", "\u00b5s", "", "d", "sm", " "]),
)
NEAR = st.lists(PARTS, max_size=5).map("".join)
REPEATED = st.builds(lambda part, times: part * times, PARTS, st.integers(1, 20))
HEADERS = st.one_of(st.none(), st.sampled_from(list(VALUES)), TTLS, NEAR, NEAR, REPEATED, st.text("0123456789", max_size=30))
BLOCKS = st.lists(st.one_of(HEADERS.map(lambda text: text if text is None else text.encode()), st.binary(max_size=4)), max_size=30)


@settings(deadline=None)  # the first imports PyArrow's kernels
@given(
    block=BLOCKS,
    start=st.integers(0, 5),
    length=st.integers(0, 30),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
)
@example(block=[b"99999h" * 16, b"99999h" * 17, b"1s"], start=0, length=3, kind=pa.binary())
@example(block=[b"1h", None, b"", b"1m", b"5", b"s"], start=1, length=5, kind=pa.large_binary())
def test_a_block_reads_as_its_values_do(block: list[bytes | None], start: int, length: int, kind: pa.DataType) -> None:
    values = pa.array(block, kind).slice(start, length)
    expected = [by_the_rule(value) for value in block[start : start + length]]
    found = parse_lifetimes(values)
    found.validate(full=True)
    assert found.type == pa.int64()
    assert found.to_pylist() == expected


def test_many_long_durations_do_not_spoil_each_other() -> None:
    # Their sum passes int64 many times over.
    block = [f"{90_000 + n}h{n}m{n}.5s".encode() for n in range(1000)]
    assert parse_lifetimes(pa.array(block)).to_pylist() == [by_the_rule(value) for value in block]


@given(
    some=st.lists(HEADERS.map(lambda text: text if text is None else text.encode()), min_size=1, max_size=8),
    picks=st.lists(st.integers(0, 7), max_size=300),
)
def test_a_block_that_repeats_itself_reads_the_same(some: list[bytes | None], picks: list[int]) -> None:
    block = [some[pick % len(some)] for pick in picks]
    assert parse_lifetimes(pa.array(block, pa.binary())).to_pylist() == [by_the_rule(value) for value in block]


@pytest.mark.parametrize("many", [99, 100, 101, 5000])
def test_a_block_of_new_values_reads_the_same(many: int) -> None:
    block = [f"{number}.5s{number}m".encode() for number in range(many)]
    assert parse_lifetimes(pa.array(block, pa.binary())).to_pylist() == [by_the_rule(value) for value in block]


@pytest.mark.parametrize(
    "block",
    [[None] * 3, [b"1", None, b"1h5.5s", b"never", b"bad", b" 1ms", b""], [b"%ds" % n for n in range(200)]],
    ids=["absent", "some", "many"],
)
def test_a_worker_needs_no_pandas_for_it(block: list[bytes | None]) -> None:
    # The array is made of a table in IPC form, as Spark hands it over.
    made = "pa.ipc.open_stream(sys.stdin.buffer).read_next_batch().column(0)"
    stream = pa.BufferOutputStream()
    batch = pa.record_batch({"v": pa.array(block, pa.binary())})
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    program = (
        "import sys, pyarrow as pa\n"
        "from message_lifecycle.sources.lifetimes import parse_lifetimes\n"
        f"parse_lifetimes({made})\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], input=stream.getvalue().to_pybytes(), check=True)
