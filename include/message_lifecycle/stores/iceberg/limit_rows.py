"""Find the messages beyond a table's limits by number and by size (RET-1 to RET-4), without reading files that no cut can touch.

A file is a block with a range of ranks, from metadata. A limit surely keeps a block if all rows that may rank as high as its lowest row fit
together. A limit surely removes a block if the rows that surely rank above its highest row fill the limit. Only rows of the blocks between
are compared one by one.

A surely kept row may rank below some of the rows between. Then all rows between that rank above it are kept, too. So the code first counts
the surely kept rows and then cuts the rows between, and the cut is the cut of the whole log.

Within one partition rows rank by offset alone. The two limits cut independently: a message stays if both limits keep it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import LimitQuestion, Reason
from message_lifecycle.model.reasons import LimitReason
from message_lifecycle.model.rules import Limits, Rule
from message_lifecycle.operations.limits import GroupWalk
from message_lifecycle.stores.iceberg import data_rows, segments
from message_lifecycle.stores.iceberg.data_rows import UNKNOWN, Columns, Longs, OpenRows, Vectors, open_rows, read_keys
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.table_folder import absolute

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table


# The limits by number and by size apply to the messages that rules of age leave. Metadata answer where they suffice, else columns.


Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWithRemainingRows:
    """Live messages of one file that no rule of age removes.

    Attributes:
        lapsed: Whether these are the file's lapsed messages or the others (see `operations.limits`).
        all: Whether these are all live messages of the file, so that its bounds describe them and removed ones only.
        reasons: The rules that remove some of the file's other messages.
    """

    file: FileMetrics
    rows: int
    lapsed: bool
    all: bool
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingRows:
    """Columns of the remaining messages of one file, in order of offset."""

    offsets: Longs
    columns: Mapping[str, Longs]
    positions: Longs
    """The positions in the file."""


def lapsed_rows(rule: Rule | None, columns: Columns, rows: int, as_of: Instant) -> Flags:
    """Return which rows have lapsed by the rule. Without a rule, no row has lapsed.

    Args:
        rule: The rule.
        columns: The columns of the rule (`data_rows.columns_of`).
        rows: The number of rows.
        as_of: The time of the question.
    """
    if rule is None:
        return np.zeros(rows, np.bool_)
    return np.asarray(data_rows.first_times(rule, columns, rows) <= as_of, np.bool_)


def _values(name: str, column: NDArray[np.generic]) -> Longs:
    """Return the numbers of a column. An unknown size counts as zero, so that it pushes no other message out."""
    found = np.asarray(column, np.int64)
    return np.maximum(found, 0) if name == "size_bytes" else found


@dataclass(slots=True, kw_only=True)
class Files:
    """Reads the files of one snapshot.

    Attributes:
        memory: How much memory the window over keys may use before it spills, as DuckDB writes sizes.
    """

    table: Table
    vectors: Vectors
    prefix: str
    as_of: Instant
    beyond: LimitQuestion
    memory: str = "1GB"
    _sizes: dict[tuple[str, bool], int] = field(default_factory=dict)

    def lapsed_by_bounds(self, file: FileMetrics) -> bool | None:
        """Return whether all or none of a file's messages have lapsed; None: only its columns can show it."""
        if self.beyond.lapsed is None:
            return False
        begins = segments.first_times(self.beyond.lapsed, file)
        return False if begins.some > self.as_of else True if begins.all <= self.as_of else None

    @property
    def lapsed_columns(self) -> set[str]:
        return set() if self.beyond.lapsed is None else set(data_rows.columns_of(self.beyond.lapsed))

    def rows_of(self, left: FileWithRemainingRows, columns: Collection[str]) -> RemainingRows:
        """Read columns of the remaining messages of one file, with that one file in memory."""
        with self._opened(left) as rows:
            offsets, read = rows.offsets(), rows.columns({*columns, *self._separating_columns(left)})
        positions = np.flatnonzero(self._remaining(left, rows.alive, read))
        positions = positions[np.argsort(offsets[positions], kind="stable")]
        found = {name: _values(name, read[name])[positions] for name in columns}
        return RemainingRows(offsets=offsets[positions], columns=found, positions=positions)

    def values(self, left: FileWithRemainingRows, name: str) -> Longs:
        """Return one column of the remaining messages of one file, in the order of the file, without their offsets."""
        with self._opened(left) as rows:
            read = rows.columns({name, *self._separating_columns(left)})
        return _values(name, read[name])[self._remaining(left, rows.alive, read)]

    def _opened(self, left: FileWithRemainingRows) -> AbstractContextManager[OpenRows]:
        path = absolute(self.prefix, left.file.name)
        return open_rows(self.table.io, path, self.vectors[path])

    def _separating_columns(self, left: FileWithRemainingRows) -> set[str]:
        """Return the names of the columns that separate the remaining messages of the file from the others."""
        if left.all:
            return set()
        return self.lapsed_columns.union(*(data_rows.columns_of(reason.rule) for reason in left.reasons))

    def _remaining(self, left: FileWithRemainingRows, alive: Flags, columns: Columns) -> Flags:
        """Return which rows of the file are its remaining messages, by the columns of `_separating_columns`."""
        if left.all:
            return alive
        mine = alive.copy()
        for reason in left.reasons:
            mine &= data_rows.first_times(reason.rule, columns, len(mine)) > self.as_of
        mine &= lapsed_rows(self.beyond.lapsed, columns, len(mine), self.as_of) == left.lapsed
        return mine

    def size_bytes(self, left: FileWithRemainingRows) -> int:
        """Return the sum of the messages' sizes (MSG-2). No metadata have it, so the column is read, once."""
        key = left.file.name, left.lapsed
        if key not in self._sizes:
            self._sizes[key] = int(self.values(left, "size_bytes").sum())
        return self._sizes[key]

    def keys(self, left: FileWithRemainingRows, rows: RemainingRows) -> pa.Array:
        return read_keys(self.table.io, absolute(self.prefix, left.file.name), rows.positions)


def is_exact(left: FileWithRemainingRows) -> bool:
    """Return whether the file's bounds of offsets and times describe the remaining messages exactly."""
    file = left.file
    return left.all and file.deleted == 0 and None not in (file.first_offset, file.last_offset)


def exact_span(left: FileWithRemainingRows) -> range | None:
    """Return the remaining offsets of a file if its bounds describe them exactly, else None."""
    file = left.file
    if not is_exact(left) or file.first_offset is None or file.last_offset is None or file.last_offset - file.first_offset + 1 != file.rows:
        return None
    return range(file.first_offset, file.last_offset + 1)


def time_bounds(left: FileWithRemainingRows) -> tuple[int | None, int | None]:
    """Return the least and the greatest possible newest time of the remaining messages; None: unknown.

    Zero and the first instant are no times (CLK-4).
    """
    file = left.file
    if file.unknown_times == file.rows:
        return None, None
    if file.newest_at is None or file.oldest_at is None:
        return None, INT64_MAX
    straddles = file.oldest_at <= 0 <= file.newest_at or file.oldest_at == data_rows.UNKNOWN
    if straddles or file.unknown_times != 0:
        return (file.newest_at if is_exact(left) and file.newest_at > 0 else None), file.newest_at
    # The newest bound may be the time of a removed message. The remaining messages still have at least the oldest time.
    return (file.newest_at if is_exact(left) else file.oldest_at), file.newest_at


Rank = tuple[int, int, int, int]
"""(1 unless lapsed, running maximum of the times, partition, offset). Within one partition the second value is always the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The remaining messages of one file, or of several files with overlapping offsets.

    Attributes:
        lowest: The lowest rank.
        highest: The highest rank.
        before: The previous block of its lane: of the same partition, and lapsed or not.
    """

    parts: tuple[FileWithRemainingRows, ...]
    lowest: Rank
    highest: Rank
    before: Block | None

    @property
    def rows(self) -> int:
        return sum(left.rows for left in self.parts)

    @property
    def lane(self) -> tuple[int, int]:
        """The lane: (1 unless lapsed, partition)."""
        return int(not self.parts[0].lapsed), self.parts[0].file.partition


class Rows(NamedTuple):
    """Single rows of a block, in order of offset.

    Attributes:
        parts: For each row, the number of its file in the block.
    """

    offsets: Longs
    times: Longs
    """The running maxima of the times in the partition."""
    sizes: Longs
    parts: Longs


class ExcessRows(NamedTuple):
    """Messages of one file beyond a limit, ascending; None: all its remaining messages."""

    left: FileWithRemainingRows
    reason: LimitReason
    offsets: Longs | range | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondRows:
    """Messages beyond the limits, and figures.

    Attributes:
        left: How many messages no rule of age removes.
        most_records: The most messages that a group keeps.
        most_bytes: The most bytes that a group keeps. 0: no limit by size, or a single message that `min_keep` keeps.
        emptied: See `RowAnswer`.
        oversized: See `RowAnswer`.
    """

    gone: tuple[ExcessRows, ...] = ()
    left: int = 0
    most_records: int = 0
    most_bytes: int = 0
    emptied: int = 0
    oversized: int = 0


def find_rows_beyond_group_limits(files: Files, left: Sequence[FileWithRemainingRows], limits: Limits) -> BeyondRows:
    """Return the messages beyond the limits in one group: a topic's files, or a partition's."""
    by_time = len({entry.file.partition for entry in left}) > 1
    blocks = [block for _, lane in groupby(sorted(left, key=_lane), key=_lane) for block in _blocks(list(lane), by_time=by_time)]
    ranks = _Ranks(files=files, by_time=by_time)
    numbers = sizes = None
    if limits.max_records is not None:
        numbers = _find_cut(blocks, Limits(max_records=limits.max_records, max_total_bytes=None), lambda block: block.rows, ranks)
    if limits.max_total_bytes is not None:
        of_size = Limits(max_records=None, max_total_bytes=limits.max_total_bytes, min_keep=limits.min_keep)
        sizes = _find_cut(blocks, of_size, lambda block: sum(files.size_bytes(left) for left in block.parts), ranks)
    gone: list[ExcessRows] = []
    kept_records = kept_bytes = 0
    for block in blocks:
        of_block, stay = _excess_rows(block, numbers, sizes, ranks)
        gone += of_block
        kept_records += block.rows if stay is None else int(stay.sum())
        if sizes is not None and (stay is None or stay.any()):
            kept_bytes += sum(files.size_bytes(left) for left in block.parts) if stay is None else int(ranks.of(block).sizes[stay].sum())
    passes = sizes is not None and sizes.newest_passes
    return BeyondRows(
        gone=tuple(gone),
        left=sum(block.rows for block in blocks),
        most_records=kept_records,
        most_bytes=0 if passes and limits.min_keep else kept_bytes,
        emptied=int(passes and not limits.min_keep),
        oversized=int(passes and bool(limits.min_keep)),
    )


def _lane(left: FileWithRemainingRows) -> tuple[int, bool]:
    return left.file.partition, left.lapsed


def _blocks(lane: list[FileWithRemainingRows], *, by_time: bool) -> Iterator[Block]:
    """Yield the blocks of a lane in order of offset, by the bounds of files."""
    before: Block | None = None
    least, most = INT64_MIN, INT64_MIN
    for parts in _group_overlapping_files(lane):
        partition, visible = parts[0].file.partition, int(not parts[0].lapsed)
        lowest = (visible, least, partition, min(_offsets(left)[0] for left in parts))
        for at_least, at_most in (time_bounds(left) for left in parts if by_time):
            least, most = max(least, INT64_MIN if at_least is None else at_least), max(most, INT64_MIN if at_most is None else at_most)
        highest = (visible, most, partition, max(_offsets(left)[1] for left in parts))
        before = Block(parts=parts, lowest=lowest, highest=highest, before=before)
        yield before


def _group_overlapping_files(lane: list[FileWithRemainingRows]) -> Iterator[tuple[FileWithRemainingRows, ...]]:
    """Yield files in order of offset. Files with overlapping offsets come together."""
    together: list[FileWithRemainingRows] = []
    reach = -1
    for left in sorted(lane, key=_offsets):
        first, last = _offsets(left)
        if together and first > reach:
            yield tuple(together)
            together = []
        together.append(left)
        reach = max(reach, last)
    if together:
        yield tuple(together)


def _offsets(left: FileWithRemainingRows) -> tuple[int, int]:
    file = left.file
    return 0 if file.first_offset is None else file.first_offset, INT64_MAX if file.last_offset is None else file.last_offset


@dataclass(slots=True, kw_only=True)
class _Ranks:
    """Ranks of single rows. A block is read once, and earlier blocks only as far as the running maximum needs."""

    files: Files
    by_time: bool
    _newest: dict[int, int] = field(default_factory=dict)
    _rows: dict[int, Rows] = field(default_factory=dict)

    def of(self, block: Block) -> Rows:
        """Return the rows of a block. Call this only for blocks that a cut may fall into."""
        if id(block) not in self._rows:
            self._rows[id(block)] = self._read(block)
        return self._rows[id(block)]

    def _read(self, block: Block) -> Rows:
        columns = ("append_time", "size_bytes") if self.by_time else ("size_bytes",)
        read = [self.files.rows_of(left, columns) for left in block.parts]
        offsets = np.concatenate([rows.offsets for rows in read])
        order = np.argsort(offsets, kind="stable")
        times = np.full(len(offsets), INT64_MIN)
        if self.by_time:
            times = np.concatenate([rows.columns["append_time"] for rows in read])[order]
            times = np.maximum.accumulate(np.maximum(times, self._newest_time_before(block)))
        sizes = np.concatenate([rows.columns["size_bytes"] for rows in read])
        parts = np.concatenate([np.full(len(rows.offsets), at) for at, rows in enumerate(read)])
        return Rows(offsets=offsets[order], times=times, sizes=sizes[order], parts=parts[order])

    def _newest_time_before(self, block: Block) -> int:
        """Return the newest known time of the lane before the block."""
        waiting, at = [], block.before
        while at is not None and id(at) not in self._newest:
            waiting.append(at)
            at = at.before
        newest = INT64_MIN if at is None else self._newest[id(at)]
        for entry in reversed(waiting):
            for left in entry.parts:
                least, most = time_bounds(left)
                if most is not None and most > newest:
                    newest = max(newest, most if least == most else self._read_newest(left))
            self._newest[id(entry)] = newest
        return newest

    def _read_newest(self, left: FileWithRemainingRows) -> int:
        return int(self.files.values(left, "append_time").max(initial=UNKNOWN))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The cut of one limit.

    Attributes:
        kept: Blocks that the limit keeps whole, by identity.
        gone: Blocks that the limit removes whole, by identity.
        lowest: In all other blocks, the limit keeps rows from this rank on; None: no row.
        newest_passes: Whether the newest message alone exceeds the limit.
    """

    kept: frozenset[int]
    gone: frozenset[int]
    lowest: Rank | None
    newest_passes: bool


def _find_cut(blocks: list[Block], limits: Limits, weight: Callable[[Block], int], ranks: _Ranks) -> _Cut:
    """Return the cut of one limit. Weights are requested from the newest block back, only as far as they matter.

    Args:
        blocks: The blocks to judge.
        limits: This one limit alone.
        weight: Returns how much a block weighs.
        ranks: The ranks of single rows.
    """
    limit = limits.max_records if limits.max_records is not None else limits.max_total_bytes
    assert limit is not None
    weights = _weigh_blocks(blocks, limit, weight, of_rows=limits.max_records is not None)
    looked_at = sorted((block for block in blocks if id(block) in weights), key=lambda block: block.highest, reverse=True)
    # The rows that may rank as high as a block's lowest row are all rows down to that rank.
    highest = [_reverse_rank(block.highest) for block in looked_at]
    sums = list(accumulate((weights[id(block)] for block in looked_at), initial=0))
    kept = {id(block) for block in looked_at if sums[bisect_right(highest, _reverse_rank(block.lowest))] <= limit}
    walk = GroupWalk(limits=limits)
    if kept:
        sure = [block for block in looked_at if id(block) in kept]
        total = sum(weights[id(block)] for block in sure)
        rows = sum(block.rows for block in sure)
        assert walk.judge_block(rows, total if limits.max_total_bytes is not None else None) == "kept", "they fit together"
    between = [block for block in looked_at if id(block) not in kept]
    lowest = _lowest_kept(between, walk, ranks)
    return _Cut(
        kept=frozenset(kept),
        gone=frozenset(id(block) for block in blocks if id(block) not in weights),
        lowest=lowest,
        newest_passes=walk.newest_passes,
    )


def _weigh_blocks(blocks: list[Block], limit: int, weight: Callable[[Block], int], *, of_rows: bool) -> dict[int, int]:
    """Return weights by identity, from the newest block back, until the rows that surely rank above the next block fill the limit.

    The limit removes that block and every later one. A message without bytes still fits if the rest fits exactly; one more message never
    does.
    """
    weights: dict[int, int] = {}
    surely: list[tuple[Rank, int]] = []
    above = 0
    for block in sorted(blocks, key=lambda block: block.highest, reverse=True):
        while surely and surely[0][0] < _reverse_rank(block.highest):
            above += heappop(surely)[1]
        if above > limit or (above == limit and of_rows):
            break
        weights[id(block)] = weight(block)
        heappush(surely, (_reverse_rank(block.lowest), weights[id(block)]))
    return weights


def _reverse_rank(rank: Rank) -> Rank:
    """Return a rank that sorts in reverse, for ascending sorts."""
    visible, time, partition, offset = rank
    return -visible, -time, -partition, -offset


def _lowest_kept(between: list[Block], walk: GroupWalk, ranks: _Ranks) -> Rank | None:
    if not between:
        return None
    found = [(block.lane, ranks.of(block)) for block in between]
    visible, partitions = (np.concatenate([np.full(len(rows.offsets), lane[at]) for lane, rows in found]) for at in range(2))
    offsets, times, sizes = (np.concatenate([rows[at] for _, rows in found]) for at in range(3))
    order = np.lexsort((offsets, partitions, times, visible))
    kept, _ = walk.split(sizes[order].tolist())
    if kept == len(order):
        return None
    at = order[kept]
    return int(visible[at]), int(times[at]), int(partitions[at]), int(offsets[at])


def _excess_rows(block: Block, numbers: _Cut | None, sizes: _Cut | None, ranks: _Ranks) -> tuple[list[ExcessRows], Flags | None]:
    """Return the block's messages to remove, and which of its rows stay (None: all).

    If both limits remove a message, the limit by number counts (CNT-1).
    """
    limits: list[tuple[LimitReason, _Cut | None]] = [("retention_count", numbers), ("retention_bytes", sizes)]
    cuts = [(reason, cut) for reason, cut in limits if cut is not None and id(block) not in cut.kept]
    if not cuts:
        return [], None
    if id(block) in cuts[0][1].gone:
        # If the limit by number keeps the whole block, `cuts[0]` is the limit by size.
        return [ExcessRows(left, cuts[0][0], None) for left in block.parts], np.zeros(1, np.bool_)
    rows, gone = ranks.of(block), []
    open_ = np.ones(len(rows.offsets), np.bool_)
    for reason, cut in cuts:
        mine = open_ if id(block) in cut.gone else open_ & _ranks_below(block, rows, cut.lowest)
        for at, left in enumerate(block.parts):
            if (of_part := mine & (rows.parts == at)).any():
                gone.append(ExcessRows(left, reason, rows.offsets[of_part]))
        open_ = open_ & ~mine
    return gone, open_


def _ranks_below(block: Block, rows: Rows, lowest: Rank | None) -> Flags:
    """Return which rows of the block rank below `lowest`."""
    if lowest is None:
        return np.ones(len(rows.offsets), np.bool_)
    (visible, partition), time = block.lane, lowest[1]
    if visible != lowest[0]:
        return np.full(len(rows.offsets), visible < lowest[0])
    at_time = rows.offsets < lowest[3] if partition == lowest[2] else partition < lowest[2]
    return np.asarray((rows.times < time) | ((rows.times == time) & at_time), np.bool_)
