"""Find the single messages that rules or requests remove: from the bounds of files if they suffice, else from a few columns.

Tasks read the columns if many files are open to question. A task returns offsets and counts, not columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_lifecycle.model.errors import PlanConflict, Unavailable
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import (
    DueRows,
    LimitUsage,
    Place,
    Reason,
    RowAnswer,
    RowQuestion,
    merge_touching,
    ranges_text,
    runs_text,
)
from message_lifecycle.model.reasons import RemovalReason
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, RemoveRanges, Request, TruncateLog, requested_offsets
from message_lifecycle.model.rules import Rule
from message_lifecycle.stores.iceberg import data_rows, segments
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import Columns, OpenRows, Positions, Vectors, open_rows
from message_lifecycle.stores.iceberg.file_tasks import FileReader
from message_lifecycle.stores.iceberg.limit_rows import lapsed_rows
from message_lifecycle.stores.iceberg.limited import ExcessOffsets, LimitResult, LimitSearch
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.segments import FileMetrics, newest_known
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from message_lifecycle.stores.iceberg.engine import Engine


def due_search_failed(kind: str, reason: str) -> Unavailable:
    """Return the error for a failed search for due messages. The topic then gets no plan."""
    return Unavailable(
        f"finding due messages failed ({kind}): {reason} Nothing was changed; mend that and run again.", code="DueSearchFailed"
    )


def request_search_failed(kind: str, reason: str) -> Unavailable:
    """Return the error for a failed search for requested messages. The request then gets no plan, and stays open."""
    return Unavailable(
        f"finding requested messages failed ({kind}): {reason} Nothing was changed; mend that and run again.", code="RequestSearchFailed"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenFile:
    """A file whose bounds do not show which messages are due.

    Attributes:
        removed: The positions that its deletion vector marks. Tasks do not read vectors: one file may have the vectors of a whole topic.
        reasons: The reasons that may remove some of its messages.
        counted: Whether its other messages count for the limits.
        spared: The spared offsets of the file.
    """

    file: FileMetrics
    path: str
    removed: Positions
    reasons: tuple[Reason, ...]
    counted: bool
    spared: SparedOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileAnswer:
    """The result of one file.

    Attributes:
        due: Due messages of each reason.
        left: The number of messages that no reason removes: of messages that have not lapsed, and of lapsed ones.
        later: The times when other messages become due.
    """

    due: Sequence[DueRows]
    left: tuple[int, int]
    later: Sequence[int]


def due_rows(
    table: Table,
    snapshot_id: int,
    question: RowQuestion,
    *,
    unsealed: frozenset[Place] = frozenset(),
    ends: Mapping[int, int] | None = None,
    engine: Callable[[], Engine | None] = lambda: None,
) -> RowAnswer:
    """See `ports.MessageReader.rows`.

    Args:
        table: The log's table.
        snapshot_id: The snapshot to read.
        question: The rules and the limits.
        unsealed: Segments that still accept messages.
        ends: By partition, an offset. Files that begin there or later do not count, for example markers that a staged change has added.
        engine: Returns the engine whose tasks read many files. None: this process reads them.

    Raises:
        PlanConflict: The snapshot is missing.
        FileLost, FileUnreadable, MessageWithoutPlace, OffsetGivenTwice: A file is missing or damaged.
        DueSearchFailed: A task failed before it read a file.
    """
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise PlanConflict("not yet made", f"its snapshot {snapshot_id} is gone")
    vectors, prefix = Vectors(table, snapshot), location_prefix(table.location())
    # In columns and bounds the end of time means never.
    as_of = Instant(min(question.as_of, INT64_MAX - 1))
    beyond = None if question.beyond is None else LimitSearch(table, vectors, prefix, as_of, question.beyond)
    spared = SparedOffsets(question.spared)
    due: dict[FileMetrics, list[DueRows]] = {}
    of_place: dict[Place, list[FileMetrics]] = {}
    later: list[int] = []
    open_files: list[_OpenFile] = []
    found = (
        file
        for file in files_of(table, snapshot)
        if ends is None or file.first_offset is None or file.first_offset < ends.get(file.partition, INT64_MAX)
    )
    for place, group in groupby(sorted(found), key=lambda file: (file.partition, file.segment)):
        if place in question.going:
            continue
        reasons = tuple(reason for reason in question.reasons if reason.segments is None or place in reason.segments)
        of_place[place] = list(group)
        for file in of_place[place]:
            if file.deleted == file.rows:
                continue  # no row is left; a plan names only files with removed rows
            certain = _by_bounds(file, reasons, as_of, later, spared)
            if isinstance(certain, DueRows):
                due[file] = [certain]
                continue
            counted = None if beyond is None or place in beyond.dead else beyond
            if certain is None and (counted is None or counted.add_by_bounds(file)):
                continue
            path = absolute(prefix, file.name)
            open_files.append(
                _OpenFile(
                    file=file,
                    path=path,
                    reasons=tuple(_of_partition(reason, file.partition) for reason in certain or ()),
                    removed=vectors[path],
                    counted=counted is not None,
                    spared=spared.between(file.partition, file.first_offset, file.last_offset),
                )
            )
    lapsed = None if question.beyond is None else question.beyond.lapsed
    search = FileReader(
        question=_Search(as_of=as_of, lapsed=lapsed).answer,
        store=Store.of_io(table.io, table.location()),
        description=f"{'.'.join(table.name())}: finding due messages in {len(open_files)} files",
        failed=due_search_failed,
    )
    for one, answer in zip(open_files, search.read(open_files, table.io, engine), strict=True):
        if one.reasons:
            due[one.file] = list(answer.due)
        later += answer.later
        if beyond is not None and one.counted:
            beyond.add(one.file, answer.left, one.reasons)
    limits = LimitResult() if beyond is None else beyond.find_excess()
    for entry in limits.gone:
        due.setdefault(entry.file, []).append(_beyond(entry, question))
    whole: dict[str, int] = {}
    for place, files in of_place.items():
        emptied = [file for file in files if file in due and sum(entry.rows for entry in due[file]) == file.rows - file.deleted]
        if emptied and still_shown(files, emptied, question.as_of, sealed=place not in unsealed):
            whole.update((file.name, file.size_bytes) for file in emptied)
    return RowAnswer(
        due=tuple(entry for files in of_place.values() for file in files for entry in due.get(file, ())),
        whole=whole,
        next_at=Instant(min(later)) if later else None,
        emptied=limits.emptied,
        oversized=limits.oversized,
        unknown_times=sum(min(file.unknown_times or 0, file.rows - file.deleted) for files in of_place.values() for file in files),
        limited=LimitUsage(left=limits.left, most_records=limits.most_records, most_bytes=limits.most_bytes),
    )


def _by_bounds(
    file: FileMetrics, reasons: Sequence[Reason], as_of: Instant, later: list[int], spared: SparedOffsets
) -> DueRows | list[Reason] | None:
    """Decide from a file's bounds which messages are due.

    Returns:
        None: nothing is due. DueRows: one reason removes every message. Otherwise: the reasons that may remove some messages.
    """
    possible: list[Reason] = []
    for reason in reasons:
        begins = segments.first_times(reason.rule, file)
        if begins.some > as_of:
            if begins.some < INT64_MAX:
                later.append(begins.some)
            continue
        free = file.last_offset is not None and file.last_offset < reason.below.get(file.partition, INT64_MAX)
        if not possible and begins.all <= as_of and free and _holds_each_offset(file) and not _partly(file, spared):
            assert file.first_offset is not None
            assert file.last_offset is not None
            return DueRows(
                partition=file.partition,
                base_offset=file.segment,
                file=file.name,
                reason=reason.name,
                taken=ranges_text(range(file.first_offset, file.last_offset + 1)),
                rows=file.rows - file.deleted,
                first_offset=file.first_offset,
                last_offset=file.last_offset,
                since=Instant(begins.some),
            )
        possible.append(reason)
    return possible or None


def _holds_each_offset(file: FileMetrics) -> bool:
    """Return whether the file's bounds describe its messages exactly: no gap between the offsets, and no removed message."""
    return (
        file.first_offset is not None
        and file.last_offset is not None
        and file.deleted == 0
        and file.last_offset - file.first_offset + 1 == file.rows
    )


def _partly(file: FileMetrics, spared: SparedOffsets) -> bool:
    """Return whether only a part of a file's offsets is spared. Bounds cannot separate the two parts."""
    assert file.first_offset is not None
    assert file.last_offset is not None
    left, kept = spared.split(file.partition, f"{file.first_offset}-{file.last_offset}")
    return bool(left and kept)


def _of_partition(reason: Reason, partition: int) -> Reason:
    """Return the reason for the files of one partition, small enough for a task. A reason may name each segment of a topic."""
    below = {partition: reason.below[partition]} if partition in reason.below else {}
    return replace(reason, segments=None, below=below)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Finds the due messages of one file at a time. Tasks receive it.

    Attributes:
        lapsed: By this rule, the limits count a message as lapsed. None: no message lapses.
    """

    as_of: Instant
    lapsed: Rule | None

    def answer(self, io: FileIO, one: _OpenFile) -> _FileAnswer:
        """Return the messages of one file, by the columns that its reasons need."""
        rule = self.lapsed if one.counted else None
        rules = [reason.rule for reason in one.reasons] + ([] if rule is None else [rule])
        with open_rows(io, one.path, one.removed) as rows:
            columns = rows.columns({name for rule in rules for name in data_rows.columns_of(rule)})
            due, open_, later = _split_due_rows(one, rows, columns, self.as_of)
        lapsed = lapsed_rows(rule, columns, len(open_), self.as_of)
        return _FileAnswer(due=due, left=(int((open_ & ~lapsed).sum()), int((open_ & lapsed).sum())), later=later)


def _split_due_rows(one: _OpenFile, rows: OpenRows, columns: Columns, as_of: Instant) -> tuple[list[DueRows], NDArray[np.bool_], list[int]]:
    """Return the due messages of each reason, the rows that no reason removes, and when the next messages become due.

    The offsets of a file without a due message are not read.
    """
    file, open_, found = one.file, rows.alive.copy(), []
    taken = np.zeros(len(open_), np.bool_)
    waiting = np.full(len(open_), INT64_MAX)
    for reason in one.reasons:
        begins = data_rows.first_times(reason.rule, columns, len(open_))
        hit = open_ & (begins <= as_of)
        # Include rows that another reason holds back: this reason may remove them before that holder releases them.
        waiting = np.minimum(waiting, np.where(begins > as_of, begins, INT64_MAX))
        if hit.any():
            offsets = rows.offsets()
            may_go = hit & (offsets < reason.below.get(file.partition, INT64_MAX))
            entry = _due(file, reason.name, reason.below, np.sort(offsets[hit]), int(begins[hit].min()))
            found.append(_with_free(entry, offsets[may_go], begins[may_go], one.spared))
            taken |= may_go
            open_ &= ~hit
    first = int(waiting[rows.alive & ~taken].min(initial=INT64_MAX))
    return found, open_, [first] if first < INT64_MAX else []


def _with_free(entry: DueRows, offsets: NDArray[np.int64], begins: NDArray[np.int64], spared: SparedOffsets) -> DueRows:
    free, kept = spared.split(entry.partition, entry.taken)
    if kept:
        begins = begins[is_named(offsets, free)] if free else begins[:0]
    if not len(begins) or begins.min() == entry.since:
        return entry
    return replace(entry, free_since=Instant(int(begins.min())))


def _beyond(gone: ExcessOffsets, question: RowQuestion) -> DueRows:
    """Return the messages beyond a limit as due now. A message, not a time, makes a log too long, and any later look finds it."""
    assert question.beyond is not None
    below = question.beyond.below
    if isinstance(gone.offsets, range):
        file, free = gone.file, range(gone.offsets.start, min(gone.offsets.stop, below.get(gone.file.partition, INT64_MAX)))
        return DueRows(
            partition=file.partition,
            base_offset=file.segment,
            file=file.name,
            reason=gone.reason,
            taken=ranges_text(free[:1]) if len(free) < 2 else f"{free[0]}-{free[-1]}",
            rows=len(free),
            first_offset=gone.offsets[0],
            last_offset=gone.offsets[-1],
            since=question.as_of,
            held=len(gone.offsets) - len(free),
        )
    return _due(gone.file, gone.reason, below, gone.offsets, question.as_of)


def _due(file: FileMetrics, reason: RemovalReason, below: Mapping[int, int], ordered: NDArray[np.int64], since: int) -> DueRows:
    taken = ordered[ordered < below.get(file.partition, INT64_MAX)]
    return DueRows(
        partition=file.partition,
        base_offset=file.segment,
        file=file.name,
        reason=reason,
        taken=_offsets_text(taken),
        rows=len(taken),
        first_offset=int(ordered[0]),
        last_offset=int(ordered[-1]),
        since=Instant(since),
        held=len(ordered) - len(taken),
    )


def _offsets_text(ordered: NDArray[np.int64]) -> str:
    """Return the same text as `ranges_text`, fast for many offsets."""
    if not len(ordered):
        return ""
    ends = np.flatnonzero(np.diff(ordered) != 1)
    firsts, lasts = ordered[np.concatenate([[0], ends + 1])], ordered[np.concatenate([ends, [len(ordered) - 1]])]
    return ",".join(str(f) if f == last else f"{f}-{last}" for f, last in zip(firsts.tolist(), lasts.tolist(), strict=True))


def still_shown(files: list[FileMetrics], emptied: list[FileMetrics], as_of: Instant, *, sealed: bool) -> bool:
    """Return whether the segment keeps its newest time and last offset without the emptied files, or disappears for good (EXP-4).

    A newest time after `as_of` may be wrong, so another time may count (CLK-4). The emptied files may be the files that show it.
    """
    left = [file for file in files if file not in emptied]
    if not left:
        return sealed  # an open segment will exist again, and must keep its age
    last = max((file.last_offset or 0 for file in files), default=0)
    newest = newest_known(files)
    if newest is not None and newest > as_of:
        return False
    return newest_known(left) == newest and max(file.last_offset or 0 for file in left) == last


# Find requested messages by the offsets or the keys of files that may hold them.


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestedFile:
    """A file that may hold requested messages.

    Attributes:
        removed: The positions that its deletion vector marks.
        offsets: The requested offsets that the file may hold, as `ranges_text` writes them.
    """

    file: FileMetrics
    path: str
    removed: Positions
    offsets: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestSearch:
    """Finds the messages of a request in one file at a time. Tasks receive it.

    Attributes:
        by_key: Whether the request also selects by key.
        key: The key. None: messages without a key.
    """

    by_key: bool
    key: bytes | None = field(default=None, repr=False)

    def answer(self, io: FileIO, one: _RequestedFile) -> list[int]:
        """Return the offsets of the requested messages of one file, in ascending order."""
        with open_rows(io, one.path, one.removed) as rows:
            mine = rows.alive & self._has_key(rows) if self.by_key else rows.alive
            if not mine.any():
                return []
            offsets = rows.offsets()
        found: list[int] = np.sort(offsets[mine & is_named(offsets, one.offsets)]).tolist()
        return found

    def _has_key(self, rows: OpenRows) -> NDArray[np.bool_]:
        keys = rows.keys()
        same = pc.is_null(keys) if self.key is None else pc.fill_null(pc.equal(keys, pa.scalar(self.key, pa.binary())), False)
        return np.asarray(same.to_numpy(), np.bool_)


def requested_rows(
    table: Table,
    snapshot: Snapshot,
    request: Request,
    *,
    as_of: Instant,
    unsealed: frozenset[Place],
    engine: Callable[[], Engine | None] = lambda: None,
) -> RowAnswer:
    """Return the messages of a request; see `ports.MessageReader.find_requested_rows`.

    Args:
        table: The log's table.
        snapshot: The snapshot to read.
        request: The request.
        as_of: The time of the plan.
        unsealed: Segments that still accept messages.
        engine: Returns the engine whose tasks read many files. None: this process reads them.

    Raises:
        FileLost, FileUnreadable, MessageWithoutPlace, OffsetGivenTwice: A file is missing or damaged.
        KeysUnknown: The request names a key, and a file has no column `key`.
        RequestSearchFailed: A task failed before it read a file.
    """
    vectors, prefix = Vectors(table, snapshot), location_prefix(table.location())
    files = sorted(files_of(table, snapshot))
    runs = _requested_runs(request, {file.partition for file in files})
    open_files = [
        _RequestedFile(file=file, path=path, removed=vectors[path], offsets=runs_text(some))
        for file in files
        if (some := _overlapping(runs.get(file.partition, ()), file))
        for path in [absolute(prefix, file.name)]
    ]
    search = FileReader(
        question=_request_search(request).answer,
        store=Store.of_io(table.io, table.location()),
        description=f"{'.'.join(table.name())}: finding requested messages in {len(open_files)} files",
        failed=request_search_failed,
    )
    answers = zip(open_files, search.read(open_files, table.io, engine), strict=True)
    found = {one.file: offsets for one, offsets in answers if offsets}
    if isinstance(request, PurgeKey) and request.keep is not None:
        found = _without_newest(found, request.keep)
    whole: dict[str, int] = {}
    for place, group in groupby(files, key=lambda file: (file.partition, file.segment)):
        of_segment = list(group)
        emptied = [file for file in of_segment if len(found.get(file, ())) == file.rows - file.deleted and file in found]
        if emptied and still_shown(of_segment, emptied, as_of, sealed=place not in unsealed):
            whole.update((file.name, file.size_bytes) for file in emptied)
    reason: RemovalReason = "purged" if isinstance(request, PurgeKey) else "removed"
    return RowAnswer(due=tuple(_asked_for(file, offsets, reason, as_of) for file, offsets in found.items()), whole=whole)


def _request_search(request: Request) -> _RequestSearch:
    match request:
        case PurgeKey(key=key):
            return _RequestSearch(by_key=True, key=key)
        case RemoveNullKeys():
            return _RequestSearch(by_key=True)
        case RemoveMessages() | TruncateLog() | RemoveRanges():
            return _RequestSearch(by_key=False)
        case never:
            assert_never(never)


def _requested_runs(request: Request, partitions: Collection[int]) -> Mapping[int, Sequence[range]]:
    """Return the offsets that the request allows, by partition: ascending runs that do not touch."""
    match request:
        case PurgeKey(before=before):
            offsets = range(INT64_MAX + 1 if before is None else before)
            return dict.fromkeys(partitions, (offsets,))
        case TruncateLog() | RemoveNullKeys():
            return {request.partition: (requested_offsets(request),)}
        case RemoveMessages(positions=positions):
            return _merged((partition, offset, offset) for partition, offset in positions)
        case RemoveRanges(ranges=ranges):
            return _merged(ranges)
        case never:
            assert_never(never)


def _merged(ranges: Iterable[tuple[int, int, int]]) -> Mapping[int, Sequence[range]]:
    """Return ranges, each given as (partition, first, last), as runs by partition."""
    runs: dict[int, list[range]] = {}
    for partition, first, last in ranges:
        runs.setdefault(partition, []).append(range(first, last + 1))
    return {partition: list(merge_touching(some)) for partition, some in runs.items()}


def _overlapping(runs: Sequence[range], file: FileMetrics) -> Sequence[range]:
    """Return the runs that overlap the file's offsets. A file without bounds may hold any offset."""
    first = 0 if file.first_offset is None else bisect_right(runs, file.first_offset, key=lambda run: run.stop)
    end = len(runs) if file.last_offset is None else bisect_right(runs, file.last_offset, key=lambda run: run.start)
    return [run for run in runs[first:end] if run]


def _without_newest(found: dict[FileMetrics, list[int]], keep: int) -> dict[FileMetrics, list[int]]:
    """Remove the newest `keep` messages per partition from the findings.

    A key lives in one partition (MSG-3). If it is in several, each partition keeps its own.
    """
    kept: dict[int, list[int]] = {}
    for file, offsets in found.items():
        kept.setdefault(file.partition, []).extend(offsets)
    cut = {partition: set(sorted(offsets)[-keep:]) for partition, offsets in kept.items()}
    left = {file: [offset for offset in offsets if offset not in cut[file.partition]] for file, offsets in found.items()}
    return {file: offsets for file, offsets in left.items() if offsets}


def _asked_for(file: FileMetrics, offsets: list[int], reason: RemovalReason, as_of: Instant) -> DueRows:
    return DueRows(
        partition=file.partition,
        base_offset=file.segment,
        file=file.name,
        reason=reason,
        taken=ranges_text(offsets),
        rows=len(offsets),
        first_offset=offsets[0],
        last_offset=offsets[-1],
        since=as_of,
    )
