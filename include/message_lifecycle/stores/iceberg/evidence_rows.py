"""Evidence about single messages.

The evidence reads once each data file that loses single messages or may hold overdue ones. Tasks read these files if they are many. The
evidence also reads a sample of the files that are removed whole.

The rules are written here a second time, straight from the settings. The planner's own rules are not used, so that one mistake cannot
repeat. Times of one file are columns of microseconds, null for unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.table import Table

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Place, ranges_text
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import is_limit, is_request, reasons_of_family
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import (
    NO_POSITIONS,
    UNKNOWN,
    Columns,
    Longs,
    Positions,
    Vectors,
    columns_of,
    first_times,
    open_rows,
)
from message_lifecycle.stores.iceberg.engine import job_text
from message_lifecycle.stores.iceberg.evidence_files import judging_failed, rows_of
from message_lifecycle.stores.iceberg.evidence_limits import LimitEvidence
from message_lifecycle.stores.iceberg.file_tasks import Answer, File, FileReader
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from message_lifecycle.stores.iceberg.engine import Engine


_JUDGED_HERE = ("expiry", "ttl", "retention_age")
"""Rules of age that the evidence judges itself. Other rules of age use the planner's code."""
Flags = NDArray[np.bool_]
_INT64_MAX = 2**63 - 1

ROWS = pa.schema(
    {
        "partition": pa.int32(),
        "segment": pa.int64(),
        "rows": pa.int64(),
        "unnamed": pa.int64(),
        "unjustified": pa.int64(),
        "active": pa.bool_(),
    }
)
PURGED = pa.schema({"keys": pa.int64(), "keyless": pa.int64()})
SAMPLE = pa.schema(
    {
        "partition": pa.int32(),
        "segment": pa.int64(),
        "offset": pa.int64(),
        "append_time": pa.int64(),
        "too_young": pa.bool_(),
        "outside_bounds": pa.bool_(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Messages of one file that a plan names.

    Attributes:
        offsets: The messages, as `ranges_text` writes them.
        found: The file's messages that the evidence has found for this reason, written like `offsets`. None: the settings decide.
    """

    reason: str
    offsets: str
    found: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFile:
    """A data file to judge, with everything that a task must know about it.

    Attributes:
        expired: Whether its segment has expired.
        before: The positions that the deletion vector of the plan's snapshot marks. Empty if the file loses no message.
        after: The positions that the deletion vector of the staged snapshot marks. None: the file is not in that snapshot.
        named: Its messages that the plan names. None: the file loses no message, and its offsets are not read.
        may_stay_overdue: Whether to count overdue messages of the staged snapshot.
    """

    path: str
    expired: bool
    before: Positions
    after: Positions | None
    named: tuple[Removal, ...] | None
    may_stay_overdue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """The judgement on the messages of one file.

    Attributes:
        rows: How many messages the file loses.
        unnamed: How many of the lost messages the plan does not name.
        unjustified: How many lost messages the plan names for a reason that does not hold.
        expires: Whether the file loses messages because its segment has expired.
        overdue: How many due messages the file still has.
        purged: The distinct keys of the purged messages, null for a message without a key.
    """

    rows: int = 0
    unnamed: int = 0
    unjustified: int = 0
    expires: bool = False
    overdue: int = 0
    purged: pa.Array | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """Judges the messages of one file at a time, by the settings. Tasks receive it."""

    policy: Policy
    as_of: Instant
    reasons: frozenset[str]

    def judge(self, io: FileIO, file: JudgedFile) -> JudgedRows:
        with open_rows(io, file.path, NO_POSITIONS) as rows:
            columns, count = rows.columns(self._columns()), len(rows.alive)
            there = np.zeros(count, np.bool_) if file.after is None else rows.unmarked(file.after)
            overdue = int((there & self._is_overdue(columns, count, expired=file.expired)).sum()) if file.may_stay_overdue else 0
            if file.named is None:
                return JudgedRows(overdue=overdue)
            lost, offsets = rows.unmarked(file.before) & ~there, rows.offsets()
            keys = rows.keys() if any(removal.reason == "purged" for removal in file.named) else None
        open_, unjustified, expires, purged = lost.copy(), 0, False, np.zeros(count, np.bool_)
        for removal in file.named:
            mine = lost & is_named(offsets, removal.offsets)
            if removal.found is None:
                due = self._is_due(removal.reason, columns, count, expired=file.expired)
            else:
                due = is_named(offsets, removal.found)
            unjustified += int((mine & ~due).sum())
            expires = expires or (removal.reason == "expiry" and bool(mine.any()))
            open_ &= ~mine
            if removal.reason == "purged":
                purged |= mine
        return JudgedRows(
            rows=int(lost.sum()),
            unnamed=int(open_.sum()),
            unjustified=unjustified,
            expires=expires,
            overdue=overdue,
            purged=keys.filter(pa.array(purged)).unique() if keys is not None and purged.any() else None,
        )

    def _columns(self) -> set[str]:
        # Read only the columns that some setting needs: with many files the other columns are most of the work.
        columns = {"expires_at"} if self.policy.allow_msg_ttl else set()
        if self.policy.message_expiry_us or self.policy.max_age_us is not None:
            columns |= {"append_time", "never"}
        return columns | {name for rule in expiry.age_rules(self.policy, without=_JUDGED_HERE).values() for name in columns_of(rule)}

    def _is_overdue(self, columns: Columns, rows: int, *, expired: bool) -> Flags:
        due = np.zeros(rows, np.bool_)
        for reason in reasons_of_family("age"):
            due |= self._is_due(reason, columns, rows, expired=expired)
        return due

    def _is_due(self, reason: str, columns: Columns, rows: int, *, expired: bool) -> Flags:
        policy, as_of = self.policy, self.as_of
        no = np.zeros(rows, np.bool_)
        if reason not in self.reasons:
            return no
        if is_request(reason):
            return ~no  # a user named the message
        if reason == "ttl":
            if not policy.allow_msg_ttl:
                return no
            expires = _times(columns, "expires_at")
            return np.asarray((expires != UNKNOWN) & (expires <= as_of) & (expires < _INT64_MAX), np.bool_)
        if reason not in _JUDGED_HERE:
            rule = expiry.RULES[reason](policy)
            return no if rule is None else np.asarray(first_times(rule, columns, rows) <= as_of, np.bool_)
        span = policy.message_expiry_us if reason == "expiry" else policy.max_age_us
        if span is None or (reason == "expiry" and not expired):
            return no
        appended = _times(columns, "append_time")
        # A message is dead at its deadline, but too old only after its age (CLK-2).
        old = appended <= as_of - span if reason == "expiry" else appended < as_of - span
        return np.asarray((appended != UNKNOWN) & old & ~self._kept(columns, rows), np.bool_)

    def _kept(self, columns: Columns, rows: int) -> Flags:
        if not self.policy.allow_msg_ttl:
            return np.zeros(rows, np.bool_)
        never = np.asarray(columns["never"], np.bool_)
        return never | (_times(columns, "expires_at") != UNKNOWN) if self.policy.ttl_overrides_age else never


@dataclass(frozen=True, slots=True)
class _LateFile:
    """A file whose newest time is late."""

    path: str


@dataclass(frozen=True, slots=True)
class _NewestInTime:
    """Finds the newest time of a file that is not late. Removed messages count (EXP-4)."""

    latest_allowed_time: int

    def find(self, io: FileIO, file: _LateFile) -> int | None:
        with open_rows(io, file.path, NO_POSITIONS) as rows:
            times = _times(rows.columns(("append_time",)), "append_time")
        found = times[(times != UNKNOWN) & (times <= self.latest_allowed_time)]
        return int(found.max()) if len(found) else None


@dataclass(slots=True, kw_only=True)
class RowEvidence:
    """Evidence about single messages.

    Attributes:
        before: Deletion vectors of the plan's snapshot.
        after: Deletion vectors of the staged snapshot.
        active: The base offset of each partition's active segment.
        engine: Returns the engine whose tasks read many files. None: this process reads them.
        removals: Every list of single messages.
        renewed: The (partition, offset) of each older marker whose key has a new one.
        newest: By segment, its newest known time that is not late. A segment without such a time is not expired.
        judged: The judgement on each judged file, by its path.
    """

    table: Table
    plan: Plan
    policy: Policy
    before: Vectors
    after: Vectors
    active: Mapping[int, int]
    engine: Callable[[], Engine | None] = lambda: None
    removals: Sequence[RemoveRows] = ()
    renewed: frozenset[tuple[int, int]] = frozenset()
    newest: dict[Place, int | None] = field(default_factory=dict)
    limits: LimitEvidence = field(default_factory=LimitEvidence)
    judged: dict[str, JudgedRows] = field(default_factory=dict)
    _expiry_us: int = field(init=False)
    """The policy's expiry, kept here because very many segments need it."""

    def __post_init__(self) -> None:
        self._expiry_us = self.policy.message_expiry_us

    def judge(self, files: Mapping[str, Place], *, losing: Mapping[str, str], stays: Collection[str], overdue: Collection[str]) -> None:
        """Judge the messages of files. Call this after `newest` and `limits` are complete.

        Args:
            files: The segment of each file, by its path.
            losing: The names in the plan of files that lose single messages, by path.
            stays: Paths of files of the staged snapshot.
            overdue: Paths of files that may still have overdue messages.
        """
        actions: dict[str, list[RemoveRows]] = {}
        for action in self.removals:
            actions.setdefault(action.file, []).append(action)
        renewed = self._renewed()

        def named(name: str, place: Place) -> tuple[Removal, ...]:
            return tuple(self._removal(action, renewed.get(place[0], NO_POSITIONS)) for action in actions.get(name, ()))

        items = [
            JudgedFile(
                path=path,
                expired=self.is_expired(place),
                before=self.before[path] if path in losing else NO_POSITIONS,
                after=self.after[path] if path in stays else None,
                named=named(losing[path], place) if path in losing else None,
                may_stay_overdue=path in overdue,
            )
            for path, place in sorted(files.items())
        ]
        judge = _Judge(policy=self.policy, as_of=self.plan.as_of, reasons=frozenset(self.plan.reasons))
        found = self._reader(judge.judge, f"judging messages of {len(items)} files").read(items, self.table.io, self.engine)
        self.judged.update(zip((item.path for item in items), found, strict=True))

    def _removal(self, action: RemoveRows, renewed: Longs) -> Removal:
        """Return one removal of the plan with the evidence for its reason. `renewed`: older markers of the partition of the file."""
        found = None
        if is_limit(action.reason):
            found = self.limits.beyond.get((action.file, action.reason), "")
        elif action.reason == "superseded":
            # A partition may have very many renewed markers, and a task needs those of its file.
            first, end = np.searchsorted(renewed, action.first_offset), np.searchsorted(renewed, action.last_offset, side="right")
            found = ranges_text(renewed[first:end].tolist())
        return Removal(reason=action.reason, offsets=action.offsets, found=found)

    def _renewed(self) -> Mapping[int, Longs]:
        """Return the offsets of the older markers, ascending, by partition."""
        return {
            partition: np.array([offset for _, offset in group], np.int64)
            for partition, group in groupby(sorted(self.renewed), key=itemgetter(0))
        }

    def lost(self, files: Mapping[str, Place]) -> pa.Table:
        """Return one row for each file.

        Args:
            files: The segment of each judged file that loses single messages, by its path.
        """
        rows = []
        for path, place in sorted(files.items()):
            judged = self.judged[path]
            rows.append(
                {
                    "partition": place[0],
                    "segment": place[1],
                    "rows": judged.rows,
                    "unnamed": judged.unnamed,
                    "unjustified": judged.unjustified,
                    "active": judged.expires and (place[0] not in self.active or place[1] >= self.active[place[0]]),
                }
            )
        return pa.Table.from_pylist(rows, schema=ROWS)

    def purged(self) -> pa.Table:
        """Return one row about the purged messages of judged files, or no row without any.

        The row has the number of their keys, and the number of files with a purged message without a key.
        """
        purged = [judged.purged for judged in self.judged.values() if judged.purged is not None]
        if not purged:
            return PURGED.empty_table()
        keys = pa.chunked_array(purged).unique()
        keyless = sum(found.null_count for found in purged)
        return pa.Table.from_pylist([{"keys": len(keys) - keys.null_count, "keyless": keyless}], schema=PURGED)

    def sample(self, files: pa.Table) -> pa.Table:
        """Return the messages of sampled files: whether each has expired (CLK-2, CLK-3) and lies within its file's bounds.

        An unknown value counts as not expired and out of bounds.
        """
        found = rows_of(files, "name", "partition", "segment", "first_offset", "last_offset", "newest_at")
        return pa.concat_tables([SAMPLE.empty_table(), *(self._sampled(*file) for file in found)])

    def _sampled(self, path: str, partition: int, segment: int, first: int | None, last: int | None, newest: int | None) -> pa.Table:
        with open_rows(self.table.io, path, self.before[path]) as rows:
            offsets, times = rows.offsets()[rows.alive], _times(rows.columns(("append_time",)), "append_time")[rows.alive]
        count, known = len(times), times != UNKNOWN
        expiry = self.policy.message_expiry_us if self.policy.cleaner_enabled else 0
        dead = known & (times <= self.plan.as_of - expiry) & (times < _INT64_MAX - expiry) & bool(expiry)
        inside = np.zeros(count, np.bool_)
        if first is not None and last is not None and newest is not None:
            inside = known & (offsets >= first) & (offsets <= last) & (times <= newest)
        arrays = [
            pa.array(np.full(count, partition, np.int32)),
            pa.array(np.full(count, segment, np.int64)),
            pa.array(offsets),
            pa.array(times, mask=~known),
            pa.array(~dead),
            pa.array(~inside),
        ]
        return pa.Table.from_arrays(arrays, schema=SAMPLE)

    def newest_in_time(self, paths: Sequence[str], latest_allowed_time: int) -> Mapping[str, int | None]:
        """Return, for each file of the plan's snapshot, the newest time that is not late. Removed messages count (EXP-4)."""
        reader = self._reader(_NewestInTime(latest_allowed_time).find, f"reading times of {len(paths)} files")
        answers = reader.read([_LateFile(path) for path in paths], self.table.io, self.engine)
        return dict(zip(paths, answers, strict=True))

    def is_expired(self, place: Place) -> bool:
        newest, expiry = self.newest.get(place), self._expiry_us
        return bool(expiry) and newest is not None and newest <= self.plan.as_of - expiry and newest < _INT64_MAX - expiry

    def _reader(self, question: Callable[[FileIO, File], Answer], tasks: str) -> FileReader[File, Answer]:
        store = Store.of_io(self.table.io, self.table.location())
        return FileReader(question=question, store=store, description=job_text(self.plan, tasks), failed=judging_failed)


def _times(columns: Columns, name: str) -> Longs:
    return np.asarray(columns[name], np.int64)
