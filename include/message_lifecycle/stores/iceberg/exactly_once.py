"""A batch written to a branch, where no reader sees it, and put on main by one commit that is made at most once.

The batch id stands in the commit's summary. After a crash, or a commit whose result is unknown, it is looked for on main; and
inside every attempt the fence asks whether another run of the batch was first, and whether it may still be committed at all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.branches import set_refs
from message_lifecycle.stores.iceberg.fence import Ancestor, fenced_commit, main_ancestors, newest_state
from message_lifecycle.stores.iceberg.java import each
from message_lifecycle.stores.iceberg.layout import INGEST_ID, LogSummary
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A branch that a dead run left ends by itself.
_BRANCH_AGE_MS = 86_400_000
MayCommit = Callable[[], None]
"""Raises a LifecycleError where the batch may no longer be committed; asked inside every attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A batch on main, as its commit tells; `state` is the log's after it."""

    batch_id: str
    snapshot_id: int
    rows: int
    segments: int
    state: LogSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A batch on its branch. `segments`: rows of each (partition, segment) that got any."""

    files: Sequence[Java]
    rows: int
    segments: Mapping[tuple[int, int], int]


class AlreadyThere(LifecycleError):
    """Another run of this batch was first: look for it."""


def find_appended(ancestors: Iterable[Ancestor], batch_id: str) -> Appended | None:
    """The batch's commit among snapshots of main."""
    for ancestor in ancestors:
        if ancestor.get(INGEST_ID) == batch_id:
            return Appended(
                batch_id=batch_id,
                snapshot_id=ancestor.snapshot_id,
                rows=int(ancestor.get("added-records") or 0),
                segments=int(ancestor.get("changed-partition-count") or 0),
                state=ancestor.state or LogSummary(),
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A branch of the table as it was made: at `base_id`, main's newest snapshot then, or an empty one where main had none."""

    session: SparkSession
    table: Java
    branch: str
    base_id: int

    def found(self, batch_id: str) -> Appended | None:
        """The batch where it was on main before this branch was made; whatever came later, the fence sees."""
        return find_appended(main_ancestors(self.table), batch_id)

    def written(self) -> Written:
        """What was written to the branch."""
        self.table.refresh()
        head = self.table.snapshot(self.branch)
        jvm: Java = self.session._jvm
        changes = jvm.org.apache.iceberg.SnapshotChanges.builderFor(self.table).snapshot(head).build()
        files = [] if head.snapshotId() == self.base_id else list(each(changes.addedDataFiles()))
        segments: dict[tuple[int, int], int] = {}
        for file in files:
            place = file.partition()
            if place.size() == 2:
                key = int(_value(place, 0)), int(_value(place, 1))
                segments[key] = segments.get(key, 0) + int(file.recordCount())
        return Written(files=files, rows=sum(int(file.recordCount()) for file in files), segments=segments)


@contextmanager
def staging(session: SparkSession, name: TopicName, batch_id: str, *, kind: str = "") -> Iterator[Stage]:
    """A new branch for the batch; afterwards it is gone, and so are those that dead runs of the batch left."""
    table = java_table(session, name, kind=kind)
    branch = f"in_{batch_id}_{secrets.token_hex(4)}"
    # On whatever is newest in the attempt that holds; a table without snapshots gets an empty one, on the branch alone.
    set_refs(table, lambda refs: refs.createBranch(branch).setMaxRefAgeMs(branch, _BRANCH_AGE_MS), what=f"staging batch {batch_id}")
    table.refresh()
    base_id = int(table.snapshot(branch).snapshotId())
    forget_cached(session, name, kind=kind)
    try:
        yield Stage(session=session, table=table, branch=branch, base_id=base_id)
    finally:
        remove_branches(table, batch_id)


def end_of_batch(session: SparkSession, name: TopicName, batch_id: str) -> Appended | None:
    """What a dead run left: its commit, if it got so far; its branches are taken away."""
    table = java_table(session, name)
    remove_branches(table, batch_id)
    return find_appended(main_ancestors(table), batch_id)


def remove_branches(table: Java, batch_id: str) -> None:
    """Take away the batch's branches; files that main names stay."""
    table.refresh()

    def left() -> list[str]:
        return [str(ref) for ref in table.refs() if str(ref).startswith(f"in_{batch_id}_")]

    # Named anew in each attempt: another run of the batch may have taken some away.
    if left():
        set_refs(
            table, lambda refs: reduce(lambda change, branch: change.removeBranch(branch), left(), refs), what=f"ending batch {batch_id}"
        )


def commit_staged(
    session: SparkSession,
    stage: Stage,
    written: Written,
    *,
    batch_id: str,
    properties: Mapping[str, str],
    may_commit: MayCommit,
    state: Callable[[LogSummary], LogSummary] | None = None,
) -> None:
    """Put the branch's files on main in one fenced commit. `state`: the log's new state, given that of the real base.

    Raises AlreadyThere where the batch is on main, whatever `state` and `may_commit` raise, TableBusy, CommitUnknown.
    """
    update = stage.table.newAppend()
    for file in written.files:
        update = update.appendFile(file)
    for key, value in {**properties, INGEST_ID: batch_id}.items():
        update = update.set(key, value)

    def judge(ancestors: Callable[[], Iterator[Ancestor]]) -> None:
        for ancestor in ancestors():
            if ancestor.snapshot_id == stage.base_id:
                break
            if ancestor.get(INGEST_ID) == batch_id:
                raise AlreadyThere
        may_commit()
        if state is not None:
            for key, value in state(newest_state(ancestors())).to_properties().items():
                update.set(key, value)

    fenced_commit(session, [(update, judge)], what=f"batch {batch_id}")


def _value(place: Java, position: int) -> Java:
    return place.get(position, place.getClass().getClassLoader().loadClass("java.lang.Object"))
