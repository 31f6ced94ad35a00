"""The gate's look at single messages: read from the data files that lose some, or that may hold overdue ones, each of them once,
and from a sample of those that go whole.

The rules are written here once more, straight from the settings: the planner's own are not used, so that one mistake is not
made twice. Times of one file are columns of microseconds, null for unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.table import Table

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import Place
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.data_rows import FileRows, Vectors, keys_at, read_rows
from message_lifecycle.stores.iceberg.evidence_limits import BY_LIMIT, LimitEvidence
from message_lifecycle.stores.iceberg.row_deletes import within
from message_lifecycle.stores.iceberg.rule_columns import UNKNOWN

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


@dataclass(slots=True, kw_only=True)
class RowEvidence:
    """`before` and `after`: deletion vectors of the plan's and of the staged snapshot. `newest`: per segment, its newest known time
    that is not late; a segment without one is not expired. `removals`: every list of single messages; `renewed`: positions of older
    markers whose key has a new one. `active`: base offset of each partition's active segment."""

    table: Table
    plan: Plan
    policy: Policy
    before: Vectors
    after: Vectors
    active: Mapping[int, int]
    removals: Sequence[RemoveRows] = ()
    renewed: frozenset[tuple[int, int]] = frozenset()
    newest: dict[Place, int | None] = field(default_factory=dict)
    limits: LimitEvidence = field(default_factory=LimitEvidence)
    _expiry_us: int = field(init=False)
    """The policy's, which is asked for each of very many segments."""
    _overdue: dict[str, int] = field(default_factory=dict)
    """Per file, found while its columns were at hand: kept are counts, for the columns of a whole log are more than memory."""
    _purged: list[pa.Array] = field(default_factory=list)
    """Keys of what is purged, of each file once."""

    def __post_init__(self) -> None:
        self._expiry_us = self.policy.message_expiry_us

    def lost(self, files: Iterable[tuple[str, Place]], stays: set[str], relative: Mapping[str, str]) -> pa.Table:
        """One row per file that loses single messages. `files`: path and segment; `stays`: paths still there; `relative`: names in
        the plan by path."""
        named: dict[str, list[tuple[str, str]]] = {}
        for action in self.removals:
            named.setdefault(action.file, []).append((action.reason, action.offsets))
        return pa.Table.from_pylist(
            [self._lost(path, relative[path], place, path in stays, named.get(relative[path], [])) for path, place in files], schema=ROWS
        )

    def _lost(self, path: str, name: str, place: Place, stays: bool, named: list[tuple[str, str]]) -> dict[str, Any]:
        whole = self._read(path)
        left = _alive(len(whole.offsets), self.before[path])
        if stays:
            left &= ~_alive(len(whole.offsets), self.after[path])
            self._overdue[path] = self._still_due(path, whole, place)
        rows = whole.at(np.flatnonzero(left))
        open_, unjustified, expires = np.ones(len(rows.offsets), np.bool_), 0, False
        for reason, offsets in named:
            mine = within(rows.offsets, offsets)
            due = (
                within(rows.offsets, self.limits.beyond.get((name, reason), ""))
                if reason in BY_LIMIT
                else self._is_due(reason, rows, place)
            )
            unjustified += int((mine & ~due).sum())
            expires = expires or (reason == "expiry" and bool(mine.any()))
            open_ &= ~mine
            if reason == "purged" and mine.any():
                self._purged.append(keys_at(self.table.io, path, np.flatnonzero(left)[mine]).unique())
        return {
            "partition": place[0],
            "segment": place[1],
            "rows": len(rows.offsets),
            "unnamed": int(open_.sum()),
            "unjustified": unjustified,
            "active": expires and (place[0] not in self.active or place[1] >= self.active[place[0]]),
        }

    def purged(self) -> pa.Table:
        """One row about all that `lost` has found purged, none where nothing was: how many keys it has, and how many files hold some
        of it without a key."""
        if not self._purged:
            return PURGED.empty_table()
        keys = pa.chunked_array(self._purged).unique()
        keyless = sum(found.null_count for found in self._purged)
        return pa.Table.from_pylist([{"keys": len(keys) - keys.null_count, "keyless": keyless}], schema=PURGED)

    def overdue(self, path: str, place: Place) -> int:
        """Messages of a file of the staged snapshot that are due and still there. `newest` is complete by then, and before `lost`."""
        if path not in self._overdue:
            self._overdue[path] = self._still_due(path, self._read(path), place)
        return self._overdue[path]

    def _still_due(self, path: str, rows: FileRows, place: Place) -> int:
        due = np.zeros(len(rows.offsets), np.bool_)
        for reason in ("expiry", "ttl", "retention_age"):
            due |= self._is_due(reason, rows, place)
        return int((due & _alive(len(rows.offsets), self.after[path])).sum())

    def sample(self, files: pa.Table) -> pa.Table:
        """The messages of these files of segments that go whole: whether each has expired (CLK-2, CLK-3), and lies within the bounds
        that its file states. What is not known is neither."""
        columns = (files[name].to_pylist() for name in ("name", "partition", "segment", "first_offset", "last_offset", "newest_at"))
        return pa.concat_tables([SAMPLE.empty_table(), *(self._sampled(*file) for file in zip(*columns, strict=True))])

    def _sampled(self, path: str, partition: int, segment: int, first: int | None, last: int | None, newest: int | None) -> pa.Table:
        found = read_rows(self.table.io, path, self.before[path], ("append_time",))
        rows = found.at(np.flatnonzero(found.alive))
        times, count = self._times(rows, "append_time"), len(rows.offsets)
        known, expiry = times != UNKNOWN, self.policy.message_expiry_us if self.policy.cleaner_enabled else 0
        dead = known & (times <= self.plan.as_of - expiry) & (times < _INT64_MAX - expiry) & bool(expiry)
        inside = np.zeros(count, np.bool_)
        if first is not None and last is not None and newest is not None:
            inside = known & (rows.offsets >= first) & (rows.offsets <= last) & (times <= newest)
        arrays = [
            pa.array(np.full(count, partition, np.int32)),
            pa.array(np.full(count, segment, np.int64)),
            pa.array(rows.offsets),
            pa.array(times, mask=~known),
            pa.array(~dead),
            pa.array(~inside),
        ]
        return pa.Table.from_arrays(arrays, schema=SAMPLE)

    def newest_before(self, path: str, late_after: int) -> int | None:
        """The newest time of a file of the plan's snapshot that is not late; removed messages count (EXP-4)."""
        times = self._times(read_rows(self.table.io, path, np.empty(0, np.int64), ("append_time",)), "append_time")
        found = times[(times != UNKNOWN) & (times <= late_after)]
        return int(found.max()) if len(found) else None

    def is_expired(self, place: Place) -> bool:
        newest, expiry = self.newest.get(place), self._expiry_us
        return bool(expiry) and newest is not None and newest <= self.plan.as_of - expiry and newest < _INT64_MAX - expiry

    def _is_due(self, reason: str, rows: FileRows, place: Place) -> Flags:
        policy, as_of = self.policy, self.plan.as_of
        no = np.zeros(len(rows.offsets), np.bool_)
        if reason in ("removed", "purged"):
            return np.full(len(no), reason in self.plan.reasons)  # a person named it
        if reason == "superseded":
            return np.fromiter(((place[0], int(offset)) in self.renewed for offset in rows.offsets), np.bool_, len(rows.offsets))
        if reason not in self.plan.reasons:
            return no
        if reason == "ttl":
            if not policy.allow_msg_ttl:
                return no
            expires = self._times(rows, "expires_at")
            return np.asarray((expires != UNKNOWN) & (expires <= as_of) & (expires < _INT64_MAX), np.bool_)
        span = policy.message_expiry_us if reason == "expiry" else policy.max_age_us
        if span is None or (reason == "expiry" and not self.is_expired(place)):
            return no
        assert reason in ("expiry", "retention_age")
        appended = self._times(rows, "append_time")
        # Dead at its deadline, too old only after its age (CLK-2).
        old = appended <= as_of - span if reason == "expiry" else appended < as_of - span
        return np.asarray((appended != UNKNOWN) & old & ~self._kept(rows), np.bool_)

    def _kept(self, rows: FileRows) -> Flags:
        if not self.policy.allow_msg_ttl:
            return np.zeros(len(rows.offsets), np.bool_)
        never = np.asarray(rows.columns["never"], np.bool_)
        return never | (self._times(rows, "expires_at") != UNKNOWN) if self.policy.ttl_overrides_age else never

    def _read(self, path: str) -> FileRows:
        # What no setting asks for is not read: of many files that is most of the work.
        columns = {"expires_at"} if self.policy.allow_msg_ttl else set()
        if self.policy.message_expiry_us or self.policy.max_age_us is not None:
            columns |= {"append_time", "never"}
        return read_rows(self.table.io, path, np.empty(0, np.int64), columns)

    @staticmethod
    def _times(rows: FileRows, column: str) -> NDArray[np.int64]:
        return np.asarray(rows.columns[column], np.int64)


def _alive(rows: int, removed: NDArray[np.int64]) -> Flags:
    alive = np.ones(rows, np.bool_)
    alive[removed] = False
    return alive
