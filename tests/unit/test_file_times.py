"""Times that go back between files: whole files in the wrong order, never an overlap, an unknown time or one that is yet to come (CLK-4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.model.instants import Instant, from_datetime
from message_lifecycle.sources.file_times import GoingBack, Span, find_going_back, going_back_line
from message_lifecycle.sources.files import find_files
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.messages import Findings, read_slices, slices
from message_lifecycle.sources.reader import Job, TtlRules
from tests.worlds import NOW

AT = from_datetime(NOW) if not isinstance(NOW, int) else Instant(NOW)


def span(*times: int, partition: int | None = None) -> Span:
    return Span(partition=partition, oldest=Instant(min(times)), newest=Instant(max(times)), messages=len(times))


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (([1, 2], [3, 4]), []),
        (([1, 3], [2, 4]), []),
        (([3, 4], [1, 3]), []),
        (([3, 4], [1, 2]), [(1, 0, 2)]),
        (([5], [3], [4], [6]), [(1, 0, 1), (2, 0, 1)]),
        (([5], [], [4, 4]), [(2, 0, 2)]),
    ],
)
def test_a_file_goes_back_if_all_its_times_do(files: Sequence[list[int]], wanted: list[tuple[int, int, int]]) -> None:
    found = find_going_back((str(number), [span(*times)] if times else []) for number, times in enumerate(files))
    assert [(int(one.file), int(one.after), one.messages) for one in found] == wanted


def test_partitions_are_compared_each_with_itself() -> None:
    files = [("a", [span(8, 9, partition=0)]), ("b", [span(1, 2, partition=1)]), ("c", [span(3, partition=1), span(4, partition=0)])]
    assert [(one.file, one.after, one.messages) for one in find_going_back(files)] == [("c", "a", 1)]


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), max_size=6))
def test_files_in_order_of_their_newest_times_never_go_back(files: list[list[int]]) -> None:
    assert not find_going_back((str(number), [span(*times)]) for number, times in enumerate(sorted(files, key=max)))


@pytest.mark.parametrize("by_field", [False, True])
def test_the_reader_gives_the_span_of_each_file(tmp_path: Path, *, by_field: bool) -> None:
    """Some times do not count: unknown, never set, yet to come, or those of a refused line."""
    lines = {"app-2": [10, 12, None, 0], "app-10": [4, 5, 9_000], "app-11": [6, 7]}
    for name, times in lines.items():
        records = [f'{{"k":"k{at}","p":"1","at":{"null" if at is None else at and at * 1_000_000 + AT - 10**9}}}' for at in times]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*records, f'{{"k":"k","p":"1","at":{AT},"h":1}}']))
    mapping = FieldMapping(key="k", append_time="at", append_time_unit="us", partition="p" if by_field else None, headers="h")
    one, other = Findings(), Findings()
    job = Job(mapping=mapping, partitions=3, ttl=TtlRules(), latest_allowed_time=AT)
    first, *rest = [part for group in slices(find_files(tmp_path)) for part in group]
    for found_in, parts in ((one, [first]), (other, rest)):
        assert list(read_slices(parts, job, found_in, None))
    one.join(other)
    wanted = {number: (times, len(times)) for number, times in enumerate(([10, 12], [4, 5], [6, 7]))}
    found = {
        number: ([(span.oldest - AT + 10**9) // 10**6, (span.newest - AT + 10**9) // 10**6], span.messages)
        for number, spans in one.spans.items()
        for span in spans.values()
    }
    assert found == wanted
    assert [list(spans) for spans in one.spans.values()] == [[1 if by_field else None]] * 3


def test_the_warning_names_two_files_and_how_many_more_go_back() -> None:
    one = GoingBack(file="b\x1b.csv", newest=Instant(10**6), after="a.csv", oldest=Instant(2 * 10**6), messages=1_200)
    assert going_back_line([one]) == (
        "times go back between files: b\\x1b.csv (newest 1970-01-01T00:00:01Z) comes after a.csv (oldest 1970-01-01T00:00:02Z): "
        "1,200 messages are older than the file before them"
    )
    assert going_back_line([one, one]).endswith("; 1 more files go back, 2,400 messages in all")
