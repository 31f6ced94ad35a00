"""Evidence about single messages.

The evidence reads each data file that loses single messages or may hold overdue ones once. A sample of the files that are removed whole is
read, too.

The rules are written here a second time, straight from the settings. The planner's own rules are not used, so that one mistake cannot
repeat. Times of one file are columns of microseconds, null for unknown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.table import Table

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.message import NOTHING, DueRows, LimitQuestion, Place, Reason, RowQuestion
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import is_limit, is_request, reasons_of_family
from message_lifecycle.model.rules import AnyOfRules
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import UNKNOWN, FileRows, Positions, Vectors, columns_of, first_times, read_keys, read_rows
from message_lifecycle.stores.iceberg.due_rows import due_rows
from message_lifecycle.stores.iceberg.evidence_files import rows_of, schema
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


# Evidence about limits by number and by size: counted again on the plan's snapshot, and searched in the staged one (P5).
#
# The settings alone decide; the plan's bounds and counts are not used. The count reads only the data that the limits need: the sizes of
# kept messages, and the files that a limit cuts. Messages beyond a limit come from the plan's snapshot alone. In the staged snapshot a held
# message may fit again, after the removal of a larger message before it (RET-4, DEL-9).


LIMITS = schema("most_records", "most_bytes", "within", "beyond")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """Evidence about limits; empty if no limit acts.

    Attributes:
        beyond: Offsets beyond the limits in the plan's snapshot, as `ranges_text`, by file (relative to the table's location) and reason.
        left: By segment, the last offset and the number of these messages that are still in the staged snapshot.
    """

    frame: pa.Table = field(default_factory=LIMITS.empty_table)
    beyond: Mapping[tuple[str, str], str] = field(default_factory=dict)
    left: Mapping[Place, tuple[int, int]] = field(default_factory=dict)


def limit_evidence(
    table: Table,
    plan: Plan,
    policy: Policy,
    expired: Iterable[Place],
    *,
    before: Vectors,
    after: Vectors,
    stays: Container[str],
    renewed: Iterable[tuple[int, int]],
) -> LimitEvidence:
    """Return the evidence about limits.

    Args:
        table: The log's table.
        plan: The plan, for its time, its reasons and its holders.
        policy: The topic's policy.
        expired: Segments that have expired.
        before: The deletion vectors of the plan's snapshot.
        after: The deletion vectors of the staged snapshot.
        stays: The paths of the staged snapshot's data files.
        renewed: Places of older markers that the plan removes because their key has a new one (MRK-5).
    """
    if policy.limits is None or "retention_count" not in plan.reasons:
        return LimitEvidence()
    question = _question(plan, policy, frozenset(expired))
    was = due_rows(table, before.snapshot_id, question)
    same = before.snapshot_id == after.snapshot_id
    now = was if same else due_rows(table, after.snapshot_id, question, ends=dict(plan.requirements.end_offsets))
    beyond = [entry for entry in was.due if is_limit(entry.reason)]
    left: dict[Place, tuple[int, int]] = {}
    prefix = location_prefix(table.location())
    for entry in beyond:
        path = absolute(prefix, entry.file)
        last, rows = _still(table.io, path, entry, before[path], after[path]) if path in stays else (NOTHING, 0)
        if rows:
            known = left.get((entry.partition, entry.base_offset), (NOTHING, 0))
            left[entry.partition, entry.base_offset] = max(last, known[0]), known[1] + rows
    count, stay = sum(entry.rows for entry in beyond), sum(rows for _, rows in left.values())
    held = sum(entry.rows for entry in plan.held if is_limit(entry.reason))
    row = {
        # Messages that stay beyond the limits without a holder count against the plan.
        "most_records": now.limited.most_records + max(0, stay - held),
        "most_bytes": now.limited.most_bytes,
        # Messages that rules of age remove are not part of these counts. The rest must equal the messages that the limits keep, except for
        # renewed markers.
        "within": (was.limited.left - count) - (now.limited.left - stay) - _within(renewed, beyond),
        "beyond": count,
    }
    offsets: dict[tuple[str, str], str] = {(entry.file, entry.reason): entry.taken for entry in beyond}
    return LimitEvidence(frame=pa.Table.from_pylist([row], schema=LIMITS), beyond=offsets, left=left)


def _within(places: Iterable[tuple[int, int]], beyond: Sequence[DueRows]) -> int:
    """Count the places that lie within the limits."""
    found = 0
    for partition, group in groupby(sorted(places), key=itemgetter(0)):
        offsets = np.array([offset for _, offset in group], dtype=np.int64)
        for entry in beyond:
            if entry.partition == partition:
                offsets = offsets[~is_named(offsets, entry.taken)]
        found += len(offsets)
    return found


def _still(io: FileIO, path: str, entry: DueRows, was: Positions, now: Positions) -> tuple[int, int]:
    """Return the last offset and the number of messages beyond a limit that are still in a file.

    Args:
        io: Reads the file.
        path: The path of the file.
        entry: The messages of the file that are beyond the limit.
        was: The removed positions in the plan's snapshot.
        now: The removed positions in the staged snapshot. The file is read only if they differ.
    """
    if np.array_equal(was, now):
        return entry.last_offset, entry.rows
    rows = read_rows(io, path, now, ())
    left = rows.offsets[rows.alive & is_named(rows.offsets, entry.taken)]
    return int(left.max(initial=NOTHING)), len(left)


def _question(plan: Plan, policy: Policy, expired: frozenset[Place]) -> RowQuestion:
    """Return the question of the settings alone, without bounds of holders: a held message counts neither as left nor twice (DEL-9)."""
    assert policy.limits is not None
    rules, cleans = expiry.age_rules(policy), "expiry" in plan.reasons
    named = {reason: rule for reason, rule in rules.items() if reason in plan.reasons}
    reasons = [Reason(name=reason, rule=rule, segments=expired if reason == "expiry" else None) for reason, rule in named.items()]
    lapsed = [rules[reason] for reason in (("expiry",) if cleans else ("expiry", "ttl")) if reason in rules]
    beyond = LimitQuestion(limits=policy.limits, lapsed=AnyOfRules(tuple(lapsed)) if lapsed else None)
    return RowQuestion(as_of=plan.as_of, reasons=tuple(reasons), beyond=beyond)


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


@dataclass(slots=True, kw_only=True)
class RowEvidence:
    """Evidence about single messages.

    Attributes:
        before: Deletion vectors of the plan's snapshot.
        after: Deletion vectors of the staged snapshot.
        active: The base offset of each partition's active segment.
        removals: Every list of single messages.
        renewed: Places of older markers whose key has a new one.
        newest: By segment, its newest known time that is not late. A segment without such a time is not expired.
    """

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
    """The policy's expiry, kept here because very many segments need it."""
    _overdue: dict[str, int] = field(default_factory=dict)
    """Overdue messages by file, counted while the file's columns are in memory. The columns of a whole log would not fit into memory."""
    _purged: list[pa.Array] = field(default_factory=list)
    """The purged keys, once per file."""

    def __post_init__(self) -> None:
        self._expiry_us = self.policy.message_expiry_us

    def lost(self, files: Iterable[tuple[str, Place]], stays: set[str], relative: Mapping[str, str]) -> pa.Table:
        """Return one row per file that loses single messages.

        Args:
            files: Path and segment of each file.
            stays: Paths of files that stay.
            relative: The files' names in the plan, by path.
        """
        named: dict[str, list[tuple[str, str]]] = {}
        for action in self.removals:
            named.setdefault(action.file, []).append((action.reason, action.offsets))
        return pa.Table.from_pylist(
            [self._lost(path, relative[path], place, path in stays, named.get(relative[path], [])) for path, place in files], schema=ROWS
        )

    def _lost(self, path: str, name: str, place: Place, stays: bool, named: list[tuple[str, str]]) -> dict[str, object]:
        whole = self._read(path)
        left = _alive(len(whole.offsets), self.before[path])
        if stays:
            left &= ~_alive(len(whole.offsets), self.after[path])
            self._overdue[path] = self._still_due(path, whole, place)
        rows = whole.at(np.flatnonzero(left))
        open_, unjustified, expires = np.ones(len(rows.offsets), np.bool_), 0, False
        for reason, offsets in named:
            mine = is_named(rows.offsets, offsets)
            due = (
                is_named(rows.offsets, self.limits.beyond.get((name, reason), ""))
                if is_limit(reason)
                else self._is_due(reason, rows, place)
            )
            unjustified += int((mine & ~due).sum())
            expires = expires or (reason == "expiry" and bool(mine.any()))
            open_ &= ~mine
            if reason == "purged" and mine.any():
                self._purged.append(read_keys(self.table.io, path, np.flatnonzero(left)[mine]).unique())
        return {
            "partition": place[0],
            "segment": place[1],
            "rows": len(rows.offsets),
            "unnamed": int(open_.sum()),
            "unjustified": unjustified,
            "active": expires and (place[0] not in self.active or place[1] >= self.active[place[0]]),
        }

    def purged(self) -> pa.Table:
        """Return one row about the purged messages that `lost` has found, or no row without any.

        The row has the number of their keys, and the number of files with a purged message without a key.
        """
        if not self._purged:
            return PURGED.empty_table()
        keys = pa.chunked_array(self._purged).unique()
        keyless = sum(found.null_count for found in self._purged)
        return pa.Table.from_pylist([{"keys": len(keys) - keys.null_count, "keyless": keyless}], schema=PURGED)

    def overdue(self, path: str, place: Place) -> int:
        """Count the due messages that a file of the staged snapshot still has. Call this after `newest` is complete, and after `lost`."""
        if path not in self._overdue:
            self._overdue[path] = self._still_due(path, self._read(path), place)
        return self._overdue[path]

    def _still_due(self, path: str, rows: FileRows, place: Place) -> int:
        due = np.zeros(len(rows.offsets), np.bool_)
        for reason in reasons_of_family("age"):
            due |= self._is_due(reason, rows, place)
        return int((due & _alive(len(rows.offsets), self.after[path])).sum())

    def sample(self, files: pa.Table) -> pa.Table:
        """Return the messages of sampled files: whether each has expired (CLK-2, CLK-3) and lies within its file's bounds.

        An unknown value counts as not expired and out of bounds.
        """
        found = rows_of(files, "name", "partition", "segment", "first_offset", "last_offset", "newest_at")
        return pa.concat_tables([SAMPLE.empty_table(), *(self._sampled(*file) for file in found)])

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

    def newest_before(self, path: str, latest_allowed_time: int) -> int | None:
        """Return the newest time that is not late, of a file of the plan's snapshot. Removed messages count (EXP-4)."""
        times = self._times(read_rows(self.table.io, path, np.empty(0, np.int64), ("append_time",)), "append_time")
        found = times[(times != UNKNOWN) & (times <= latest_allowed_time)]
        return int(found.max()) if len(found) else None

    def is_expired(self, place: Place) -> bool:
        newest, expiry = self.newest.get(place), self._expiry_us
        return bool(expiry) and newest is not None and newest <= self.plan.as_of - expiry and newest < _INT64_MAX - expiry

    def _is_due(self, reason: str, rows: FileRows, place: Place) -> Flags:
        policy, as_of = self.policy, self.plan.as_of
        no = np.zeros(len(rows.offsets), np.bool_)
        if is_request(reason):
            return np.full(len(no), reason in self.plan.reasons)  # a user named the message
        if reason == "superseded":
            return np.fromiter(((place[0], int(offset)) in self.renewed for offset in rows.offsets), np.bool_, len(rows.offsets))
        if reason not in self.plan.reasons:
            return no
        if reason == "ttl":
            if not policy.allow_msg_ttl:
                return no
            expires = self._times(rows, "expires_at")
            return np.asarray((expires != UNKNOWN) & (expires <= as_of) & (expires < _INT64_MAX), np.bool_)
        if reason not in _JUDGED_HERE:
            rule = expiry.RULES[reason](policy)
            return no if rule is None else np.asarray(first_times(rule, rows.columns, len(no)) <= as_of, np.bool_)
        span = policy.message_expiry_us if reason == "expiry" else policy.max_age_us
        if span is None or (reason == "expiry" and not self.is_expired(place)):
            return no
        appended = self._times(rows, "append_time")
        # A message is dead at its deadline, but too old only after its age (CLK-2).
        old = appended <= as_of - span if reason == "expiry" else appended < as_of - span
        return np.asarray((appended != UNKNOWN) & old & ~self._kept(rows), np.bool_)

    def _kept(self, rows: FileRows) -> Flags:
        if not self.policy.allow_msg_ttl:
            return np.zeros(len(rows.offsets), np.bool_)
        never = np.asarray(rows.columns["never"], np.bool_)
        return never | (self._times(rows, "expires_at") != UNKNOWN) if self.policy.ttl_overrides_age else never

    def _read(self, path: str) -> FileRows:
        # Read only the columns that some setting needs: with many files the other columns are most of the work.
        columns = {"expires_at"} if self.policy.allow_msg_ttl else set()
        if self.policy.message_expiry_us or self.policy.max_age_us is not None:
            columns |= {"append_time", "never"}
        columns |= {name for reason, rule in expiry.age_rules(self.policy, without=_JUDGED_HERE).items() for name in columns_of(rule)}
        return read_rows(self.table.io, path, np.empty(0, np.int64), columns)

    @staticmethod
    def _times(rows: FileRows, column: str) -> NDArray[np.int64]:
        return np.asarray(rows.columns[column], np.int64)


def _alive(rows: int, removed: NDArray[np.int64]) -> Flags:
    alive = np.ones(rows, np.bool_)
    alive[removed] = False
    return alive
