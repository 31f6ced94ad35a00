"""Times that go back between the files of a batch: whole files in the wrong order, by each file's span of times.

A few messages of a log usually overlap between two files. So a file goes back only if its newest time is before the oldest time of a file
with an earlier name. Unknown times and future times do not count (CLK-4).
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
        partition: None: all partitions together, because keys choose them.
        messages: Messages whose time counts.
    """

    partition: int | None
    oldest: Instant
    newest: Instant
    messages: int

    def joined(self, other: Span) -> Span:
        """Return one span for both."""
        return Span(
            partition=self.partition,
            oldest=min(self.oldest, other.oldest),
            newest=max(self.newest, other.newest),
            messages=self.messages + other.messages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingBack:
    """A file whose newest time is before the oldest time of an earlier file. Times are as in the files.

    Args:
        after: The earlier file.
        oldest: The earlier file's oldest time.
        messages: Messages of this file that come after newer messages.
    """

    file: str
    newest: Instant
    after: str
    oldest: Instant
    messages: int


Spans = dict[int, dict[int | None, Span]]
"""By a file's number in its batch, and by partition."""


def spans_of_rows(times: pa.Array, partitions: pa.Array | None, *, latest_allowed_time: Instant) -> list[Span]:
    """Return the spans of one block of messages.

    Args:
        times: Microseconds (int64). Null if a row is not a message or its time is unknown.
        partitions: None: all rows together.
        latest_allowed_time: A later time does not count.
    """
    kept = pc.fill_null(pc.less_equal(times, latest_allowed_time), False)
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
    """Join spans of a file to the known spans. `number`: the file's number in its batch."""
    of_file = spans.setdefault(number, {})
    for span in found:
        of_file[span.partition] = of_file[span.partition].joined(span) if span.partition in of_file else span


def find_going_back(files: Iterable[tuple[str, Iterable[Span]]]) -> tuple[GoingBack, ...]:
    """Return the files that go back. The given files and the result have the order of the log."""
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
    """Return the warning: the first two files with their times, and the number of other files."""
    first, messages = found[0], sum(one.messages for one in found)
    more = "" if len(found) == 1 else f"; {len(found) - 1:,} more files go back, {messages:,} messages in all"
    return (
        f"times go back between files: {safe(first.file)} (newest {format_instant(first.newest)}) comes after "
        f"{safe(first.after)} (oldest {format_instant(first.oldest)}): {first.messages:,} messages are older than the file before them{more}"
    )
