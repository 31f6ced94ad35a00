"""A topic's tables in memory: each is a list of versions, which nothing changes any more but an erasure.

stage      the plan's change applied to the version that it was planned on; kept beside the list, where no reader looks
publish    the same change applied to the newest version, after what the plan relies on was asked: one more version
published  the version that carries the plan's id
evidence   the difference between two versions, row by row
undo       copies from the version before the one that carries the plan's id
erasure    every version is written again without the key
move       the tables under no name, or under their own again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar
from uuid import uuid4

from message_lifecycle.model.document import Change
from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.errors import PlanConflict, undo_source_gone
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import Marker
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.model.view import ViewRow
from message_lifecycle.ports import Topic
from message_lifecycle.stores.memory.log import Version

State = TypeVar("State")
Place = TypeVar("Place", bound=Hashable)
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Generic[State]):
    """`version`: the table after it. `done`: by the plan that it carries; None: it is of a writer.

    `takes`: rows may have gone. `half`: the plan has a second commit, on another table."""

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
class Made(Generic[State]):
    """What a plan has staged. `markers`: of a log, not in `version` yet. `removed`: from a view, by reason. `blocked`: documents that are
    left as they are, each with the reason."""

    version: State
    markers: tuple[Marker, ...] = ()
    removed: Counter[ViewReason] = field(default_factory=Counter)
    blocked: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class Table(Generic[State]):
    """`kind`: as erasures name it. `empty`: the version before the first commit. `first`: the id of the first snapshot; those that follow
    count on."""

    kind: TableKind
    empty: State
    uuid: str = field(default_factory=lambda: str(uuid4()))
    first: int = 0
    commits: list[Commit[State]] = field(default_factory=list)
    staged: dict[str, Made[State]] = field(default_factory=dict)

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
        """None: before anything was written."""
        if snapshot_id is None:
            return self.empty
        assert self.knows(snapshot_id), f"snapshot {snapshot_id} is not of this table"
        return self.commits[snapshot_id - self.first].version

    def knows(self, snapshot_id: int) -> bool:
        return self.first <= snapshot_id < self.next_id

    def write(self, version: State, *, takes: bool = False) -> None:
        """A writer's commit."""
        self.commits.append(Commit(snapshot_id=self.next_id, version=version, takes=takes))

    def publish(self, version: State, done: Published, *, files: tuple[str, ...] = (), half: bool = False) -> Published:
        """`done`: of the snapshot `next_id`."""
        self.commits.append(Commit(snapshot_id=self.next_id, version=version, takes=True, done=done, files=files, half=half))
        return done

    def carrying(self, plan_id: str) -> Commit[State] | None:
        return next((commit for commit in self.commits if commit.plan_id == plan_id), None)

    def published(self, plan_id: str) -> Published | None:
        found = self.carrying(plan_id)
        return None if found is None else found.done

    def source_of(self, plan_id: str) -> int | None:
        """The snapshot before the plan's commit; None: that was the first. Raises UndoSourceGone."""
        found = self.carrying(plan_id)
        if found is None:
            raise undo_source_gone(plan_id, "its commit is not in the table's history")
        return found.snapshot_id - 1 if self.knows(found.snapshot_id - 1) else None

    def made_by(self, plan: Plan) -> Made[State]:
        """Raises PlanConflict."""
        if plan.plan_id not in self.staged:
            raise PlanConflict(plan.plan_id, "nothing is staged for it")
        return self.staged[plan.plan_id]

    def require(self, plan: Plan) -> None:
        """Raises PlanConflict where it is not the plan's table, or does not know its snapshot."""
        wanted = plan.requirements
        if wanted.table_uuid != self.uuid:
            raise PlanConflict(plan.plan_id, "the topic is another table now")
        if wanted.snapshot_id is not None and not self.knows(wanted.snapshot_id):
            raise PlanConflict(plan.plan_id, f"snapshot {wanted.snapshot_id} is gone")

    def refuse_removals(self, plan: Plan) -> None:
        """Since the plan's snapshot rows may have come; where any went, but for the plan's own, raises PlanConflict (DEL-4)."""
        since = plan.requirements.snapshot_id
        for commit in reversed(self.commits):
            if since is not None and commit.snapshot_id <= since:
                break
            if commit.takes and commit.plan_id != plan.plan_id:
                raise PlanConflict(plan.plan_id, "conflicting delete", rival=commit.plan_id or f"snapshot {commit.snapshot_id}")

    def rewrite(self, without: Callable[[State], State]) -> None:
        """Every version that can be read back, under its own number; what is staged was made of the old ones."""
        self.commits = [replace(commit, version=without(commit.version)) for commit in self.commits]
        self.staged.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewVersion:
    """A compacted view: rows in order of (partition, offset), and up to where each partition's log is in it."""

    rows: tuple[ViewRow, ...] = ()
    horizons: Mapping[int, int] = field(default_factory=dict)
    due_at: Instant | None = None
    settings_hash: str | None = None
    """None: no settings have judged anything yet."""


Changes = Mapping[str, tuple[Change, ...]]
"""Ascending, by document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """`state` None: the epoch was raised, and no snapshot made."""

    server_seq: int
    epoch: int
    state: bytes | None


Snapshots = Mapping[str, tuple[SnapshotRow, ...]]
"""In the order in which they came, by document."""


def states_of(rows: tuple[SnapshotRow, ...]) -> dict[int, bytes]:
    """Snapshots by server_seq, ascending."""
    return {row.server_seq: row.state for row in sorted(rows, key=lambda row: row.server_seq) if row.state is not None}


def epoch_of(rows: tuple[SnapshotRow, ...]) -> int:
    """The first is 0 (SNP-7)."""
    return max((row.epoch for row in rows), default=0)


@dataclass(slots=True, kw_only=True)
class TopicTables:
    """All that there is of a topic: a log with its compacted view, or changes of documents with their snapshots."""

    topic: Topic
    log: Table[Version]
    view: Table[ViewVersion] = field(default_factory=lambda: Table(kind="view", empty=ViewVersion()))
    changes: Table[Changes]
    snapshots: Table[Snapshots] = field(default_factory=lambda: Table[Snapshots](kind="snapshots", empty={}))

    @property
    def of_documents(self) -> bool:
        return "fold" in self.topic.settings

    @property
    def main(self) -> Table[Version] | Table[Changes]:
        """The one that has the topic's uuid."""
        return self.changes if self.of_documents else self.log

    def touch(self, ledger: tuple[str, int]) -> None:
        """A commit of ours was made with that ledger."""
        self.topic = replace(self.topic, ledger=ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Generic[Place, Row]):
    """Between two versions. `changed`: places that both have, with another row."""

    came: Mapping[Place, Row]
    gone: Mapping[Place, Row]
    changed: frozenset[Place]


def difference(before: Mapping[Place, Row], after: Mapping[Place, Row]) -> Difference[Place, Row]:
    return Difference(
        came={place: row for place, row in after.items() if place not in before},
        gone={place: row for place, row in before.items() if place not in after},
        changed=frozenset(place for place, row in after.items() if place in before and before[place] != row),
    )
