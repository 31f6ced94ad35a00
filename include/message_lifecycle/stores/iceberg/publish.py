"""Publishing: the staged change committed again on main, once, under the fence (DEL-4, DEL-5).

Main may have moved since the plan: appends of others pass, any other change refuses. What goes is what the staged snapshot
took out, by identity, so a message that came later cannot match it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LifecycleError, PlanConflict, TableBusy
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.settings import Value
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.branches import chain
from message_lifecycle.stores.iceberg.commits import Steps, commit_once, find, only_appends_since, properties
from message_lifecycle.stores.iceberg.fence import Ancestor, Judge, fenced_commit, main_ancestors, newest_state
from message_lifecycle.stores.iceberg.layout import CANCELLED_MARKERS, MARKERS, PARENT_PLAN_ID, UNDOES
from message_lifecycle.stores.iceberg.marks import sealed
from message_lifecycle.stores.iceberg.publish_markers import MarkersNow
from message_lifecycle.stores.iceberg.read import published_by
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table
from message_lifecycle.stores.iceberg.staged_change import Change

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

TRIES = 10
"""How often markers are numbered again because somebody appended first."""


class _MovedOn(LifecycleError):
    """The log has grown since the markers were numbered: number them again."""


def publish(
    session: SparkSession,
    log: Callable[[], Table],
    verdict: Verdict,
    server: Mapping[str, Value] | None,
    *,
    ledger: tuple[str, int],
    steps: Steps,
    dropped: Java | None = None,
) -> Published:
    """Make the plan's one commit on main, or report the one that is there. Raises PlanConflict, TableBusy, CommitUnknown.

    `log`: the topic's table as PyIceberg reads it now. `dropped`: the DataFileSet that the staged snapshot took out, where that is all it
    did and this process made it; else it is read from there.
    """
    plan_id = verdict.staged.plan_id
    plan, staged_id = verdict.plan, verdict.staged.snapshot_id
    table = java_table(session, plan.topic)
    base_id = plan.requirements.snapshot_id
    done = find(table, plan_id, since=base_id)
    if done is not None:
        return published_by(plan_id, done.snapshot_id, done.summary)
    requirements.check(plan, plan_id, table, server)
    staged = None if staged_id is None else table.snapshot(staged_id)
    if plan.is_empty or staged is None or base_id is None or staged_id == base_id:
        raise PlanConflict(plan_id, f"nothing is staged for it (snapshot {staged_id})")
    change = Change.of(session, table, chain(table, staged, base_id)) if dropped is None else Change.of_files(dropped)
    commit = _Commit(
        session=session, table=table, log=log, verdict=verdict, base_id=base_id, properties=properties(verdict, ledger), steps=steps
    )

    def attempt() -> None:
        if plan.parent is not None:
            commit.restoring(change)
        elif verdict.staged.markers is None or not verdict.staged.markers.count:
            commit.removal(change)
        else:
            commit.removal_and_markers(change)

    try:
        found = commit_once(table, plan_id, attempt, steps=steps, since=base_id)
    finally:
        forget_cached(session, plan.topic)  # also where nobody knows whether it is there
    return published_by(plan_id, found.snapshot_id, found.summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """One plan's commit on main."""

    session: SparkSession
    table: Java
    log: Callable[[], Table]
    verdict: Verdict
    base_id: int
    properties: Mapping[str, str]
    steps: Steps

    @property
    def _what(self) -> str:
        return f"publishing plan {self.verdict.staged.plan_id}"

    def removal(self, change: Change) -> None:
        """The staged removal alone."""
        update = self._with(change.update(self.session, self.table, self.base_id), {})
        fenced_commit(self.session, [(update, self._judge(update))], what=self._what)

    def restoring(self, change: Change) -> None:
        """What an undo brings back, and the markers that go with it."""
        update = self._with(change.restore(self.session, self.table, self.base_id), {UNDOES: self.verdict.plan.parent or ""})
        fenced_commit(self.session, [(update, self._judge(update))], what=self._what)

    def removal_and_markers(self, change: Change) -> None:
        """The removal and an append of the markers, numbered on from the log as it is now: both or neither (MRK-4).

        Two snapshots, because readers of a stream pass over a snapshot that removes, and must meet the markers.
        """
        for _ in range(TRIES):
            with suppress(_MovedOn):
                return self._attempt(change)
        raise TableBusy(self._what, TRIES)

    def _attempt(self, change: Change) -> None:
        self.table.refresh()
        only_appends_since(main_ancestors(self.table), self.verdict.staged.plan_id, self.base_id)
        head_id = int(self.table.currentSnapshot().snapshotId())
        markers = MarkersNow.read(self.session, self.table, self.log(), self.verdict, change, base_id=self.base_id, head_id=head_id)
        transaction = self.table.newTransaction()

        def updates() -> Iterator[tuple[Java, Judge]]:
            counts = {MARKERS: str(markers.count), CANCELLED_MARKERS: str(markers.cancelled)}
            if change.removes:
                removal = self._with(change.update(self.session, transaction, self.base_id), counts)
                yield removal, self._judge(removal, head_id)
            if not markers.count:
                return
            append = transaction.newAppend()
            for file in markers.files:
                append = append.appendFile(file)
            if not change.removes:
                # A sweep's markers stand for the plan by themselves.
                yield self._with(append, {**counts, **markers.state.to_properties()}), self._judge_markers(head_id)
                return
            append.set(PARENT_PLAN_ID, self.verdict.staged.plan_id)
            for key, value in markers.state.to_properties().items():
                append.set(key, value)
            # The removal's judge lets nothing pass but the log that the markers were numbered on.
            yield append, lambda _walk: None

        fenced_commit(self.session, updates(), what=self._what, transaction=transaction)

    def _with(self, update: Java, more: Mapping[str, str]) -> Java:
        for key, value in {**self.properties, **more}.items():
            update.set(key, value)
        return update

    def _judge_markers(self, head_id: int) -> Judge:
        def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
            self.steps("inside_commit")
            only_appends_since(walk(), self.verdict.staged.plan_id, self.base_id)
            if next(walk()).snapshot_id != head_id:
                raise _MovedOn

        return judge

    def _judge(self, update: Java, head_id: int | None = None) -> Judge:
        plan, plan_id = self.verdict.plan, self.verdict.staged.plan_id

        def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
            self.steps("inside_commit")
            only_appends_since(walk(), plan_id, self.base_id)
            if head_id is not None and next(walk()).snapshot_id != head_id:
                raise _MovedOn
            # The state is that of the log which this very attempt builds on, however late an append came (MSG-4).
            for key, value in sealed(newest_state(walk()), plan).to_properties().items():
                update.set(key, value)

        return judge
