"""Group data files into the segments of a log. Every reader of metadata uses these functions, so all readers agree."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, assert_never

from message_lifecycle.model.errors import file_listed_twice, message_without_place
from message_lifecycle.model.facts import LogState, Segment
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import Place
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeColumn, TimeKnown
from message_lifecycle.stores.iceberg.layout import LogSummary


class FileMetrics(NamedTuple):
    """The metrics of one data file in a manifest. None: the manifest does not have the number.

    A tuple in the order it is sorted by: there are as many of these as there are files.
    """

    partition: int
    segment: int
    name: str
    """Relative to the table's location."""
    rows: int
    """As written; `deleted` of them are marked in a deletion vector."""
    deleted: int
    size_bytes: int
    first_offset: int | None
    last_offset: int | None
    oldest_at: int | None
    newest_at: int | None
    unknown_times: int | None
    """Messages without an append_time."""
    expires_from: int | None
    expires_to: int | None
    without_expiry: int | None
    """Messages without an expires_at."""
    never: bool | None
    """True if any message has no age limit."""
    without_never: int | None

    @property
    def may_hold_never(self) -> bool:
        return self.without_never != self.rows and self.never is not False

    @property
    def may_hold_own_ttl(self) -> bool:
        return self.without_expiry != self.rows


class InTime(NamedTuple):
    """The times in a segment's late files (CLK-4).

    The newest time that is not late, the number of late messages, and the offset of the first late one.
    """

    newest_at: int | None
    late_rows: int
    first_late: int | None


ReadLate = Callable[[Mapping[Place, list[str]], Instant], Mapping[Place, InTime]]
"""Given the names of the files to read by segment, and the time beyond which a message is late."""


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's collector: it would scan the many lasting objects again and again, for nearly half of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@_collector_paused()
def log_state(
    topic: TopicName,
    *,
    table_uuid: str,
    snapshot_id: int | None,
    partitions: int,
    files: Iterable[FileMetrics],
    summary: LogSummary,
    latest_allowed_time: Instant | None,
    read_late: ReadLate,
) -> LogState:
    """Return the log's state.

    Args:
        topic: The topic of the log.
        table_uuid: The uuid of the log's table.
        snapshot_id: The snapshot that the files come from.
        partitions: The number of partitions.
        files: The data files of the snapshot.
        summary: The state in the newest snapshot that carries one.
        latest_allowed_time: The last time that is not a future time (CLK-4). None: every time counts.
        read_late: Reads the exact times of segments that have late messages.

    Raises:
        Refused: A data file is listed more than once (`FileListedTwice`), or has no partition or segment (`MessageWithoutPlace`).
    """
    files = list(files)
    for file in files:
        if None in (file.partition, file.segment):  # where another engine has changed the table's columns
            raise message_without_place(file.name, "a partition or a segment")
    ordered = sorted(files, key=itemgetter(0, 1, 2))  # not by what metadata may leave out, which has no order
    require_listed_once(ordered)
    ends = dict.fromkeys(range(partitions), 0) | dict(summary.end_offsets)
    grouped = [(place, list(group)) for place, group in groupby(ordered, key=itemgetter(0, 1))]
    for file in ordered:
        # Another writer's append does not carry the state, so the files have a word, too (MSG-4: it never moves back).
        end = ends.setdefault(file.partition, 0)
        if file.last_offset is not None and file.last_offset >= end:
            ends[file.partition] = file.last_offset + 1
    segments = [_segment(group, summary) for _, group in grouped]
    if latest_allowed_time is not None and any(
        segment.newest_at is not None and segment.newest_at > latest_allowed_time for segment in segments
    ):
        segments = _without_late(segments, dict(grouped), latest_allowed_time, read_late)
    return LogState(
        topic=topic,
        table_uuid=table_uuid,
        snapshot_id=snapshot_id,
        end_offsets=ends,
        segments=tuple(segments),
        purged_through=summary.purged_through,
    )


def may_share_offsets(files: Iterable[FileMetrics]) -> list[FileMetrics]:
    """Return the files whose bounds allow that two of their messages share an offset, by partition. No commit of ours makes such files."""
    found: list[FileMetrics] = []
    ranges = [
        (file.partition, INT64_MIN if file.first_offset is None else file.first_offset, file.name, file)
        for file in files
        if file.deleted < file.rows
    ]
    ranges.sort()
    for _, in_partition in groupby(ranges, key=itemgetter(0)):
        group: list[FileMetrics] = []
        end = INT64_MIN
        for _, first, _, file in in_partition:
            if group and first > end:
                found += _if_suspect(group)
                group, end = [], INT64_MIN
            group.append(file)
            end = max(end, INT64_MAX if file.last_offset is None else file.last_offset)
        found += _if_suspect(group)
    return found


def _if_suspect(group: list[FileMetrics]) -> list[FileMetrics]:
    first, last = group[0].first_offset, group[0].last_offset
    has_room = first is None or last is None or group[0].rows - group[0].deleted <= last - first + 1
    return [] if len(group) == 1 and has_room else group


def require_listed_once(files: list[FileMetrics]) -> None:
    """Raises FileListedTwice."""
    seen = {file.name for file in files}
    if len(seen) < len(files):
        for file in files:
            if file.name not in seen:
                raise file_listed_twice(file.name)
            seen.remove(file.name)


def _segment(group: list[FileMetrics], summary: LogSummary) -> Segment:
    partition, base = group[0].partition, group[0].segment
    if len(group) == 1:  # as nearly all are: the sums below cost twice as much
        file = group[0]
        return Segment(
            partition=partition,
            base_offset=base,
            last_offset=base if file.last_offset is None else file.last_offset,
            newest_at=newest_known(group),
            oldest_at=None if file.oldest_at is None else Instant(file.oldest_at),
            rows=file.rows - file.deleted,
            size_bytes=file.size_bytes,
            sealed=summary.is_sealed(partition, base),
            files=(file.name,),
            never=file.may_hold_never,
            own_ttl=file.may_hold_own_ttl,
        )
    return Segment(
        partition=partition,
        base_offset=base,
        last_offset=max((file.last_offset for file in group if file.last_offset is not None), default=base),
        newest_at=newest_known(group),
        oldest_at=min((Instant(file.oldest_at) for file in group if file.oldest_at is not None), default=None),
        rows=sum(file.rows - file.deleted for file in group),
        size_bytes=sum(file.size_bytes for file in group),
        sealed=summary.is_sealed(partition, base),
        files=tuple(file.name for file in group),
        never=any(file.may_hold_never for file in group),
        own_ttl=any(file.may_hold_own_ttl for file in group),
    )


def newest_known(group: list[FileMetrics]) -> Instant | None:
    """None where any message's time, or any file's last offset, is not known: unknown keeps data (CLK-4)."""
    newest: int | None = None
    for file in group:
        # A time of 0 is unknown as well; the newest or oldest time of a file shows it, in between it would be lost in order.
        if file.newest_at is None or file.unknown_times != 0 or file.last_offset is None or 0 in (file.newest_at, file.oldest_at):
            return None
        newest = file.newest_at if newest is None or file.newest_at > newest else newest
    return None if newest is None else Instant(newest)


def _without_late(
    segments: list[Segment], files: dict[Place, list[FileMetrics]], latest_allowed_time: Instant, read_late: ReadLate
) -> list[Segment]:
    late = {
        (segment.partition, segment.base_offset): [
            file for file in files[segment.partition, segment.base_offset] if (file.newest_at or 0) > latest_allowed_time
        ]
        for segment in segments
        if segment.newest_at is not None and segment.newest_at > latest_allowed_time
    }
    found = read_late({place: [file.name for file in group] for place, group in late.items()}, latest_allowed_time)

    def one(segment: Segment) -> Segment:
        place = segment.partition, segment.base_offset
        if place not in late:
            return segment
        read = found.get(place, InTime(None, 0, None))
        in_bounds = [file.newest_at for file in files[place] if file not in late[place] and file.newest_at is not None]
        newest = max((time for time in (read.newest_at, *in_bounds) if time is not None), default=None)
        return replace(
            segment,
            newest_at=None if newest is None else Instant(newest),
            late_rows=read.late_rows,
            first_late=read.first_late,
        )

    return [one(segment) for segment in segments]


# Rules about messages, rendered for the bounds of a file: from when on some, and all, of its messages may be taken.
#
# Missing metadata never lose data: some messages then may be removable (so the file is read), and it is unknown whether all are.


class FirstTimes(NamedTuple):
    """INT64_MIN: always; INT64_MAX: never (`some`), or not known (`all`)."""

    some: int
    all: int


_ALWAYS = FirstTimes(INT64_MIN, INT64_MIN)
_NO = FirstTimes(INT64_MAX, INT64_MAX)
_MAYBE = FirstTimes(INT64_MIN, INT64_MAX)


def first_times(rule: Rule, file: FileMetrics) -> FirstTimes:
    match rule:
        case PeriodPassed(column, us):
            lower, upper, nulls = _bounds(column, file)
            if nulls == file.rows:
                return _NO
            known = _all_known(column, file)
            return FirstTimes(
                INT64_MIN if lower is None else min(lower + us, INT64_MAX),
                INT64_MAX if upper is None or not known else min(upper + us, INT64_MAX),
            )
        case NeverExpires():
            return _NO if file.without_never == file.rows or file.never is False else _MAYBE
        case TimeKnown(column):
            if _bounds(column, file)[2] == file.rows:
                return _NO
            return _ALWAYS if _all_known(column, file) else _MAYBE
        case NotRule(inner):
            found = first_times(inner, file)
            return _ALWAYS if found.some == INT64_MAX else _NO if found.all == INT64_MIN else _MAYBE
        case AnyOfRules(rules):
            each = [first_times(inner, file) for inner in rules]
            return FirstTimes(min((b.some for b in each), default=INT64_MAX), min((b.all for b in each), default=INT64_MAX))
        case AllOfRules(rules):
            each = [first_times(inner, file) for inner in rules]
            return FirstTimes(max((b.some for b in each), default=INT64_MIN), max((b.all for b in each), default=INT64_MIN))
        case never:
            assert_never(never)


def _bounds(column: TimeColumn, file: FileMetrics) -> tuple[int | None, int | None, int | None]:
    if column == "append_time":
        return file.oldest_at, file.newest_at, file.unknown_times
    return file.expires_from, file.expires_to, file.without_expiry


def _all_known(column: TimeColumn, file: FileMetrics) -> bool:
    """True if every row has a time, and no time stands for unknown."""
    lower, upper, nulls = _bounds(column, file)
    if nulls != 0 or lower is None or upper is None:
        return False
    return lower != INT64_MIN and not (column == "append_time" and lower <= 0 <= upper)
