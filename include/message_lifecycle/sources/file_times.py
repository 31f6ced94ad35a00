"""Times that go back between the files of a batch: whole files in the wrong order, by the span of times that each file has.

A log in which a few messages overlap between two files is usual. So a file goes back only if its newest time lies before the oldest time of a
file that comes earlier in the order of names. Unknown times and times that are yet to come count for no file (CLK-4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import safe


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The append times of a file's messages in one partition.

    Args:
        partition: None: of all partitions together, because keys choose them.
        messages: Messages whose time counts.
    """

    partition: int | None
    oldest: Instant
    newest: Instant
    messages: int

    def joined(self, other: Span) -> Span:
        """The span of both."""
        return Span(
            partition=self.partition,
            oldest=min(self.oldest, other.oldest),
            newest=max(self.newest, other.newest),
            messages=self.messages + other.messages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingBack:
    """A file whose newest time lies before the oldest time of an earlier file. Times are as the files have them.

    Args:
        after: The earlier file.
        oldest: The earlier file's oldest time.
        messages: Messages of this file that lie behind newer ones.
    """

    file: str
    newest: Instant
    after: str
    oldest: Instant
    messages: int


Spans = dict[int, dict[int | None, Span]]
"""By a file's number in its batch and by partition."""


def spans_of_rows(times: pa.Array, partitions: pa.Array | None, *, late_after: Instant) -> list[Span]:
    """Return the spans of one block of messages.

    Args:
        times: Microseconds (int64); null where a row is no message or its time is not known.
        partitions: None: all rows together.
    """
    kept = pc.fill_null(pc.less_equal(times, late_after), False)
    if not pc.any(kept).as_py():
        return []
    names = pa.nulls(len(times), pa.int32()) if partitions is None else partitions
    rows = pa.table({"partition": names, "at": times}).filter(kept)
    found = rows.group_by("partition").aggregate([("at", "min"), ("at", "max"), ("at", "count")])
    return [
        Span(partition=row["partition"], oldest=Instant(row["at_min"]), newest=Instant(row["at_max"]), messages=row["at_count"])
        for row in found.to_pylist()
    ]


def join_spans(spans: Spans, number: int, found: Iterable[Span]) -> None:
    """Join spans of a file to those that are known. `number`: the file's in its batch."""
    of_file = spans.setdefault(number, {})
    for span in found:
        of_file[span.partition] = of_file[span.partition].joined(span) if span.partition in of_file else span


def find_going_back(files: Iterable[tuple[str, Iterable[Span]]]) -> tuple[GoingBack, ...]:
    """Return the files that go back, in the order of the files given, which is that of the log."""
    highest: dict[int | None, tuple[Instant, str]] = {}
    found = []
    for name, given in files:
        spans = sorted(given, key=lambda span: -1 if span.partition is None else span.partition)
        back = [span for span in spans if span.partition in highest and span.newest < highest[span.partition][0]]
        if back:
            oldest, after = highest[back[0].partition]
            messages = sum(span.messages for span in back)
            found.append(GoingBack(file=name, newest=back[0].newest, after=after, oldest=oldest, messages=messages))
        for span in spans:
            if span.partition not in highest or span.oldest > highest[span.partition][0]:
                highest[span.partition] = span.oldest, name
    return tuple(found)


def going_back_line(found: Sequence[GoingBack]) -> str:
    """Return the warning: the first two files with their times, and how many more there are."""
    first, messages = found[0], sum(one.messages for one in found)
    more = "" if len(found) == 1 else f"; {len(found) - 1:,} more files go back, {messages:,} messages in all"
    return (
        f"times go back between files: {safe(first.file)} (newest {format_instant(first.newest)}) comes after "
        f"{safe(first.after)} (oldest {format_instant(first.oldest)}): {first.messages:,} messages are older than the file before them{more}"
    )
