"""A topic's tables in memory, as lists of versions, and the versions of a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Generic, TypeVar
from uuid import uuid4

from message_lifecycle.model.change import CommitLog, ReturnToLog, SealSegment
from message_lifecycle.model.document import Change
from message_lifecycle.model.erasure import KeyMatch, TableKind
from message_lifecycle.model.errors import PlanConflict, undo_source_gone
from message_lifecycle.model.facts import ActiveSegment, CopyState, Segment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Marker, Message, NewMessage, ViewRow, offsets_of
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.admission import Refusal, admission, admit
from message_lifecycle.ports import Topic

# A version of the log: messages by their places, and state that removals do not change. A commit makes the next version.


Position = tuple[int, int]
"""(partition, offset), or (partition, base offset of a segment)"""


@dataclass(slots=True, kw_only=True)
class Version:
    """A version of the log. Only its maker writes on it, until a table has it."""

    messages: dict[Position, Message] = field(default_factory=dict)
    end_offsets: dict[int, int] = field(default_factory=dict)
    active: dict[int, ActiveSegment] = field(default_factory=dict)
    # EXP-4: fixed when a segment is sealed (last offset, newest time or None, messages). Later removals do not change them.
    sealed: dict[Position, tuple[int, Instant | None, int]] = field(default_factory=dict)
    # EXP-4: the known times of every message that was ever written to a segment.
    written: dict[Position, Sequence[Instant]] = field(default_factory=dict)
    # TTL-6: for a replica, the origin's last copied offset by partition, and the uuid of its table.
    copied: dict[int, int] = field(default_factory=dict)
    copied_from: str | None = None
    # CMP-9: the last offset by partition that was purged because the compacted view covers it.
    purged_through: dict[int, int] = field(default_factory=dict)

    @property
    def copy_state(self) -> CopyState:
        return CopyState(offsets=dict(self.copied), origin_uuid=self.copied_from)

    def copy(self) -> Version:
        """Return a copy to write on. Copies share messages, which never change."""
        return replace(
            self,
            messages=dict(self.messages),
            end_offsets=dict(self.end_offsets),
            active={partition: replace(segment) for partition, segment in self.active.items()},
            sealed=dict(self.sealed),
            written=dict(self.written),
            copied=dict(self.copied),
            purged_through=dict(self.purged_through),
        )

    def without(self, gone: Iterable[Position]) -> Version:
        after = self.copy()
        for position in gone:
            after.messages.pop(position, None)
        return after


def apply(version: Version, change: CommitLog) -> Version:
    """Return the log after the change: exactly the named messages leave."""
    named: dict[int, list[range]] = {}
    for partition, run in change.removed_runs():
        named.setdefault(partition, []).append(run)
    after = version.without((p, offset) for p, offset in version.messages if any(offset in run for run in named.get(p, ())))
    for seal in change.seal:
        _seal_unless_grown(after, seal)
    after.purged_through |= {run.partition: run.last_offset for run in change.drop if run.reason == "compacted"}
    return after


def bring_back(version: Version, change: ReturnToLog, source: Version) -> Version:
    """Return the log after the undo: the named messages return, and its markers leave. `source`: holds the messages."""
    after = version.without((rows.partition, offset) for rows in change.mark for offset in offsets_of(rows.offsets))
    for rows in change.back:
        for offset in offsets_of(rows.offsets):
            after.messages[rows.partition, offset] = source.messages[rows.partition, offset]
        _seal_as_in(source, after, (rows.partition, rows.base_offset))
    return after


def _seal_unless_grown(version: Version, seal: SealSegment) -> None:
    """Seal the segment, unless it got messages since the plan (EXP-3)."""
    active = version.active[seal.partition]
    if active.base_offset == seal.base_offset and version.end_offsets[seal.partition] == seal.next_offset:
        active.restart(seal.next_offset)


def _seal_as_in(source: Version, version: Version, place: Position) -> None:
    """Seal a returning segment that was active when it left, because its partition has another active segment now."""
    then = source.active.get(place[0])
    if place in version.sealed or place[1] >= version.active[place[0]].base_offset or then is None or then.base_offset != place[1]:
        return
    last = max(offset for (partition, offset), message in source.messages.items() if (partition, message.segment) == place)
    version.sealed[place] = last, _newest_written(source, place, then), then.rows


def append(
    version: Version, message: NewMessage, policy: Policy, forbidden: KeyMatch | None = None, *, latest_allowed_time: Instant | None
) -> Position | Refusal:
    """Append to a new version. `latest_allowed_time`: see `admission.admit`. Raises InvalidAppend."""
    own = admission(message, policy, forbidden)
    if isinstance(own, Refusal):
        return own
    partition = message.partition
    end = version.end_offsets.get(partition, 0)
    active = version.active.setdefault(partition, ActiveSegment(base_offset=end))
    before = replace(active)
    offset, segment = admit(message, end_offset=end, active=active, policy=policy, latest_allowed_time=latest_allowed_time)
    if before.rows and segment != before.base_offset:
        _fix_bounds(version, partition, before)
    stored = message.stored(offset=offset, segment=segment, expires_at=own.expires_at, never=own.never)
    version.messages[partition, offset] = stored
    if stored.append_time is not None:
        version.written[partition, segment] = (*version.written.get((partition, segment), ()), stored.append_time)
    version.end_offsets[partition] = offset + 1
    return partition, offset


def seal(version: Version, partition: int) -> None:
    """Close the active segment of a new version, unless the segment is empty (EXP-3)."""
    active = version.active.get(partition)
    if active is not None and active.rows:
        _fix_bounds(version, partition, active)
        active.restart(version.end_offsets[partition])


def _fix_bounds(version: Version, partition: int, closed: ActiveSegment) -> None:
    inside = [offset for (p, offset), message in version.messages.items() if p == partition and message.segment == closed.base_offset]
    newest = _newest_written(version, (partition, closed.base_offset), closed)
    version.sealed[partition, closed.base_offset] = (max(inside, default=closed.base_offset), newest, closed.rows)


def _newest_written(version: Version, place: Position, segment: ActiveSegment) -> Instant | None:
    """Return the newest time that was ever written to the segment, future times included. None if any of its times is unknown."""
    return None if segment.any_unknown else max(version.written.get(place, ()), default=None)


def position_of(message: Message) -> Position:
    return message.partition, message.offset


def segment_of(message: Message) -> Position:
    return message.partition, message.segment


def by_segment(messages: Iterable[Message]) -> Iterator[tuple[Position, list[Message]]]:
    """Group messages, which are in order of (partition, offset), by segment."""
    for place, group in groupby(messages, key=segment_of):
        yield place, list(group)


def in_order(messages: Mapping[Position, Message]) -> list[Message]:
    return [messages[position] for position in sorted(messages)]


def segments(version: Version, latest_allowed_time: Instant | None) -> Iterator[Segment]:
    """See `ports.MessageReader.log`."""
    for (partition, base), messages in by_segment(in_order(version.messages)):
        known = [message.append_time for message in messages if message.append_time is not None]
        fixed = version.sealed.get((partition, base))
        last_offset, newest = _bounds_of_active(version, partition) if fixed is None else fixed[:2]
        late: list[int] = []
        if newest is not None and latest_allowed_time is not None and newest > latest_allowed_time:
            late = [m.offset for m in messages if m.append_time is not None and m.append_time > latest_allowed_time]
            newest = max((time for time in version.written[partition, base] if time <= latest_allowed_time), default=None)
        yield Segment(
            partition=partition,
            base_offset=base,
            last_offset=last_offset,
            newest_at=newest,
            oldest_at=min(known, default=None),
            rows=len(messages),
            size_bytes=sum(message.size_bytes for message in messages),
            sealed=fixed is not None or base < version.active[partition].base_offset,
            files=(file_of((partition, base)),),
            late_rows=len(late),
            first_late=min(late, default=None),
            never=any(message.never for message in messages),
            own_ttl=any(message.expires_at is not None for message in messages),
        )


def file_of(place: Position) -> str:
    """Return the name of a segment, which stands for a file here."""
    return f"{place[0]}/{place[1]}"


def _bounds_of_active(version: Version, partition: int) -> tuple[int, Instant | None]:
    """Return last offset and newest time ever written to the active segment. A removal changes neither, like file bounds."""
    active = version.active[partition]
    return version.end_offsets[partition] - 1, _newest_written(version, (partition, active.base_offset), active)


# A topic's tables in memory. A table is a list of versions, and only an erasure changes a version.
#
# stage      applies the plan's change to the version of the plan, and stores the result next to the list, where no reader looks
# publish    checks the plan's requirements and applies the same change to the newest version, which makes one more version
# published  finds the version that carries the plan's id
# evidence   compares two versions, row by row
# undo       copies rows from the version before the version with the plan's id
# erasure    rewrites every version without the key
# move       removes the tables' names, or gives them back


State = TypeVar("State")
Place = TypeVar("Place", bound=Hashable)
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Generic[State]):
    """One commit.

    Attributes:
        version: The table after the commit.
        done: The result of the commit's plan. None: another writer made the commit.
        takes: Rows may have left.
        half: The plan has a second commit, on another table.
    """

    snapshot_id: int
    version: State
    takes: bool
    done: Published | None = None
    files: tuple[str, ...] = ()
    half: bool = False

    @property
    def plan_id(self) -> str | None:
        return None if self.done is None else self.done.plan_id


@dataclass(slots=True, kw_only=True)
class StagedVersion(Generic[State]):
    """The stage of a plan.

    Attributes:
        markers: New markers of a log, which `version` does not have yet.
        removed: Removals from a view, by reason.
        blocked: Documents that stay unchanged, each with the reason.
    """

    version: State
    markers: tuple[Marker, ...] = ()
    removed: Counter[ViewReason] = field(default_factory=Counter)
    blocked: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class Table(Generic[State]):
    """One table with its versions.

    Attributes:
        kind: The kind, as erasures name it.
        empty: The version before the first commit.
        first: The id of the first snapshot. Later snapshots count up.
    """

    kind: TableKind
    empty: State
    uuid: str = field(default_factory=lambda: str(uuid4()))
    first: int = 0
    commits: list[Committed[State]] = field(default_factory=list)
    staged: dict[str, StagedVersion[State]] = field(default_factory=dict)

    @property
    def snapshot_id(self) -> int | None:
        """None: nothing was ever written."""
        return self.commits[-1].snapshot_id if self.commits else None

    @property
    def next_id(self) -> int:
        return self.first + len(self.commits)

    @property
    def head(self) -> State:
        return self.at(self.snapshot_id)

    def at(self, snapshot_id: int | None) -> State:
        """Return the version of the snapshot. None: the version before the first commit."""
        if snapshot_id is None:
            return self.empty
        assert self.has_snapshot(snapshot_id), f"snapshot {snapshot_id} is not of this table"
        return self.commits[snapshot_id - self.first].version

    def has_snapshot(self, snapshot_id: int) -> bool:
        return self.first <= snapshot_id < self.next_id

    def write(self, version: State, *, takes: bool = False) -> None:
        """Add a writer's commit."""
        self.commits.append(Committed(snapshot_id=self.next_id, version=version, takes=takes))

    def publish(self, version: State, done: Published, *, files: tuple[str, ...] = (), half: bool = False) -> Published:
        """Add a plan's commit as the snapshot `next_id`. `done`: its result."""
        self.commits.append(Committed(snapshot_id=self.next_id, version=version, takes=True, done=done, files=files, half=half))
        return done

    def commit_of(self, plan_id: str) -> Committed[State] | None:
        return next((commit for commit in self.commits if commit.plan_id == plan_id), None)

    def find_published(self, plan_id: str) -> Published | None:
        found = self.commit_of(plan_id)
        return None if found is None else found.done

    def has_lost(self, plan: Plan, base_id: int | None) -> bool:
        """Return True if the commit of a published plan has disappeared, but the plan's base, or the plan that it undoes, is still here."""
        goes_back = (base_id is not None and self.has_snapshot(base_id)) or (
            plan.parent is not None and self.commit_of(plan.parent) is not None
        )
        return goes_back and self.commit_of(plan.plan_id) is None

    def source_of(self, plan_id: str) -> int | None:
        """Return the snapshot before the plan's commit. None if that was the first. Raises UndoSourceGone."""
        found = self.commit_of(plan_id)
        if found is None:
            raise undo_source_gone(plan_id, "its commit is not in the table's history")
        return found.snapshot_id - 1 if self.has_snapshot(found.snapshot_id - 1) else None

    def staged_by(self, plan: Plan) -> StagedVersion[State]:
        """Raises PlanConflict."""
        if plan.plan_id not in self.staged:
            raise PlanConflict(plan.plan_id, "nothing is staged for it")
        return self.staged[plan.plan_id]

    def require(self, plan: Plan) -> None:
        """Raise PlanConflict if this is not the plan's table, or if the plan's snapshot is missing."""
        wanted = plan.requirements
        if wanted.table_uuid != self.uuid:
            raise PlanConflict(plan.plan_id, "the topic is another table now")
        if wanted.snapshot_id is not None and not self.has_snapshot(wanted.snapshot_id):
            raise PlanConflict(plan.plan_id, f"snapshot {wanted.snapshot_id} is gone")

    def refuse_removals(self, plan: Plan) -> None:
        """Raise PlanConflict if another commit has removed rows since the plan's snapshot (DEL-4). New rows are allowed."""
        since = plan.requirements.snapshot_id
        for commit in reversed(self.commits):
            if since is not None and commit.snapshot_id <= since:
                break
            if commit.takes and commit.plan_id != plan.plan_id:
                raise PlanConflict(plan.plan_id, "conflicting delete", rival=commit.plan_id or f"snapshot {commit.snapshot_id}")

    def rewrite(self, without: Callable[[State], State]) -> None:
        """Rewrite every readable version under its own number. Drop the stages, which come from the old versions."""
        self.commits = [replace(commit, version=without(commit.version)) for commit in self.commits]
        self.staged.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewVersion:
    """A compacted view: rows in order of (partition, offset), and the horizon of each partition."""

    rows: tuple[ViewRow, ...] = ()
    horizons: Mapping[int, int] = field(default_factory=dict)
    due_at: Instant | None = None
    settings_hash: str | None = None
    """None: no settings have judged any message yet."""


Changes = Mapping[str, tuple[Change, ...]]
"""Ascending, by document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """A row of the snapshots' table. `state` None: the row only raises the epoch."""

    server_seq: int
    epoch: int
    state: bytes | None


Snapshots = Mapping[str, tuple[SnapshotRow, ...]]
"""In the order of arrival, by document."""


def states_of(rows: tuple[SnapshotRow, ...]) -> dict[int, bytes]:
    """Return the snapshots by server_seq, ascending."""
    return {row.server_seq: row.state for row in sorted(rows, key=lambda row: row.server_seq) if row.state is not None}


def epoch_of(rows: tuple[SnapshotRow, ...]) -> int:
    """Return the document's epoch. The first is 0 (SNP-7)."""
    return max((row.epoch for row in rows), default=0)


@dataclass(slots=True, kw_only=True)
class TopicTables:
    """The tables of a topic: a log with its compacted view, or changes of documents with their snapshots."""

    topic: Topic
    log: Table[Version]
    view: Table[ViewVersion] = field(default_factory=lambda: Table(kind="view", empty=ViewVersion()))
    changes: Table[Changes]
    snapshots: Table[Snapshots] = field(default_factory=lambda: Table[Snapshots](kind="snapshots", empty={}))

    @property
    def main(self) -> Table[Version] | Table[Changes]:
        """The table with the topic's uuid."""
        return self.changes if self.topic.has_documents else self.log

    def touch(self, ledger: tuple[str, int]) -> None:
        """Record the ledger of our newest commit."""
        self.topic = replace(self.topic, ledger=ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Generic[Place, Row]):
    """The difference between two versions. `changed`: places that both have, with another row."""

    came: Mapping[Place, Row]
    gone: Mapping[Place, Row]
    changed: frozenset[Place]


def difference(before: Mapping[Place, Row], after: Mapping[Place, Row]) -> Difference[Place, Row]:
    return Difference(
        came={place: row for place, row in after.items() if place not in before},
        gone={place: row for place, row in before.items() if place not in after},
        changed=frozenset(place for place, row in after.items() if place in before and before[place] != row),
    )
