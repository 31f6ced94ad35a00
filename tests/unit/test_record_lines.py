"""Lines and heads of files of single records: what one may say, what comes back of it, and what a removal names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.stores.record_log import COMMITS_KEPT, Commit, Removal, head_of
from message_lifecycle.stores.record_log.lines import line_of, message_of, message_place_in_line, start_state
from message_lifecycle.stores.record_log.store import merged
from tests.record_files import (
    HEAD,
)

BYTES = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode)
WHOLE = st.integers(0, 2**63 - 2)
TIME = st.none() | st.integers(-(2**63), 2**63 - 1).map(Instant)


CONTENT = (None, True, -1, 0, 2**63, 1.5, "", "a", ["a"], [["a", "b"]], [["a"]], {"base64": "YQ=="}, {"base64": "!"}, {"x": 1})
FIELDS = ("partition", "offset", "append_time", "event_time", "key", "value", "headers", "segment", "origin_offset", "other")


@pytest.mark.parametrize("field", FIELDS)
def test_a_line_that_is_only_looked_at_is_judged_as_one_that_is_read(field: str) -> None:
    for content in CONTENT:
        line = orjson.dumps({"partition": 0, "offset": 1, field: content})
        try:
            message = message_of(line)
        except ValueError as error:
            with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                message_place_in_line(line)
        else:
            assert message_place_in_line(line) == (message.partition, message.offset, message.segment)


@given(
    st.builds(
        Message,
        partition=WHOLE,
        offset=WHOLE,
        append_time=TIME.filter(lambda time: time != 0),
        key=BYTES,
        value=BYTES,
        segment=WHOLE,
        headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
        event_time=TIME,
        origin_offset=st.none() | WHOLE,
    )
)
def test_a_message_comes_back_from_its_line(message: Message) -> None:
    line = line_of(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert message_of(line) == message


def test_a_time_of_zero_is_unknown() -> None:  # CLK-4
    assert message_of(b'{"partition":0,"offset":1,"append_time":0,"event_time":0}') == Message(
        partition=0, offset=1, append_time=None, key=None, value=None, segment=0, event_time=Instant(0)
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "line 1 column 1"),
        (b"[]", "not a JSON object"),
        (b'{"partition":0,"offset":1', "line 1 column"),
        (b'{"partition":0}', "offset is no whole number"),
        (b'{"partition":0,"offset":-1}', "offset is no whole number"),
        (b'{"partition":false,"offset":1}', "partition is no whole number"),
        (b'{"partition":0,"offset":1.0}', "offset is no whole number"),
        (b'{"partition":0,"offset":9223372036854775807}', "offset is no whole number"),
        (b'{"partition":0,"offset":18446744073709551615}', "offset is no whole number"),
        (b'{"partition":0,"offset":1,"segment":9223372036854775807}', "segment is no whole number"),
        (b'{"partition":0,"offset":1,"append_time":9223372036854775808}', "append_time is no whole number of microseconds"),
        (b'{"partition":0,"offset":1,"event_time":9223372036854775808}', "event_time is no whole number of microseconds"),
        (b'{"partition":0,"offset":1,"append_time":"2026"}', "append_time is no whole number of microseconds"),
        (b'{"partition":0,"offset":1,"key":5}', "key is neither text nor base64"),
        (b'{"partition":0,"offset":1,"key":{"base64":"*"}}', "key:"),
        (b'{"partition":0,"offset":1,"key":{"base64":"","x":1}}', "key is neither"),
        (b'{"partition":0,"offset":1,"headers":{"a":"b"}}', "headers are no list"),
        (b'{"partition":0,"offset":1,"headers":[["a"]]}', "a header is no pair"),
        (b'{"partition":0,"offset":1,"hedaers":[]}', "unknown field 'hedaers'"),
        (b'{"partition":0,"offset":1,"value":"\xff"}', "line 1 column"),
    ],
)
def test_a_line_that_is_no_message_is_told_why(line: bytes, reason: str) -> None:
    for read in (message_of, message_place_in_line):
        with pytest.raises(ValueError, match=reason):
            read(line)


def test_a_reader_stops_at_a_line_that_is_being_written() -> None:
    """What was appended while it read would look like a line that begins in its middle, and a message would be missing before others."""
    first, second, third = (line_of(Message(partition=0, offset=at, append_time=None, key=None, value=b"v", segment=0)) for at in range(3))
    met = [first, second[:9], second[9:], third]
    found = start_state(1)
    assert [message.offset for message in found.messages(cast(BinaryIO, iter(met)))] == [0]
    assert (found.open_end, found.tail, found.position) == (True, second[:9], len(first) + 9)


def test_a_head_comes_back_and_remembers_its_newest_commits() -> None:
    head = HEAD
    for number in range(COMMITS_KEPT + 5):
        commits = head.with_commit(plan_id=f"p{number}", removed=(("retention_age", number),), files=("0/0",))
        head = replace(head, generation=head.generation + 1, commits=commits)
    assert head.commit_of("p4") is None
    assert head.commit_of("p5") == Commit(generation=7, plan_id="p5", removed=(("retention_age", 5),), files=("0/0",))
    assert head_of(orjson.loads(orjson.dumps(head.to_json()))) == head


@pytest.mark.parametrize(
    "field", ["format", "uuid", "partitions", "generation", "end_offsets", "segments", "settings", "ledger", "commits"]
)
def test_a_head_that_lacks_something_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"lacks something: '{field}'"):
        head_of({name: value for name, value in HEAD.to_json().items() if name != field})


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda run: range(run[0], sum(run))), max_size=8))
def test_a_removal_takes_what_its_runs_name(runs: list[range]) -> None:
    takes = Removal(plan_id="p", offsets={0: merged(runs)}).taker()
    assert [offset for offset in range(40) if takes(0, offset)] == sorted({offset for run in runs for offset in run})
    assert not takes(1, 0)
