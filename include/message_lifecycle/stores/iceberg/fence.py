"""The fence decides inside every attempt whether a plan may commit, from the snapshots that the attempt really builds on.

If another commit came first, the next attempt makes everything again on the new state. Checks from before the first attempt are out of date
by then.

An attempt never calls Iceberg's own `commit()` of a table. If the last attempt is refused, that method deletes the files of all attempts.
But the refusal may come from an earlier attempt that succeeded and whose answer was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CommitRefused, CommitUnknown, LifecycleError, LogStateLost, PlanConflict
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.stores.iceberg.catalog import ledger_text
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java, each, entries, java_class, java_message, thrown
from message_lifecycle.stores.iceberg.layout import (
    AS_OF,
    COUNTS,
    END_OFFSETS,
    GATE_ID,
    LEDGER,
    OPERATION,
    PLAN_ID,
    POLICY_HASH,
    LogSummary,
    settings_of,
)
from message_lifecycle.stores.iceberg.table_metadata import Attempt, compare_and_swap
from message_lifecycle.stores.iceberg.witness import Commit, Known, TableStanding, Witness, find_state, next_witness, read_snapshot

if TYPE_CHECKING:
    from message_lifecycle.operations.verdict import Verdict


def main_ancestors(table: Java) -> Iterator[Known]:
    """Yield the snapshots of main, newest first, as far back as the table remembers them."""
    yield from ancestors(table, table.currentSnapshot())


def ancestors(table: Java, snapshot: Java | None) -> Iterator[Known]:
    """Yield the snapshot and its ancestors, newest first."""
    while snapshot is not None:
        found = read_snapshot(snapshot)
        yield found
        snapshot = None if found.parent_id is None else table.snapshot(found.parent_id)


def newest_state(table: Java, snapshot: Java | None = None) -> LogSummary:
    """Return the log's newest state like `read.newest_state`, for a table that Java has loaded (MSG-4)."""
    return Walk(table).log_state(snapshot)


def read_witness_batch(table: Java) -> Mapping[str, str]:
    """Return the witness's record of the newest ingest on main; empty without one. Raises the errors of `newest_state`."""
    witness = Witness.read(entries(table.properties()), str(table.name()))
    if witness is None or not witness.batch:
        return {}
    Walk(table).state(END_OFFSETS)  # after a rollback the batch is not on main
    return witness.batch


class Walk:
    """The table that a commit attempt builds on: main's snapshots, newest first, and the state in them and in the table's witness."""

    def __init__(self, table: Java, metadata: Java | None = None) -> None:
        """Read a table. `metadata`: the attempt's base, if it is not the table's own metadata."""
        self._table, self._metadata = table, table if metadata is None else metadata

    def __call__(self) -> Iterator[Known]:
        return main_ancestors(self._metadata)

    def log_state(self, snapshot: Java | None = None) -> LogSummary:
        """Return the log's state. Raises the errors of `read.newest_state`."""
        found = self._standing(END_OFFSETS, snapshot)
        state = None if found is None else LogSummary.from_properties(found.state)
        if found is None or state is None:
            raise LogStateLost(self._where, "no snapshot and no table property says where the log ends")
        if found.bringing:
            from message_lifecycle.stores.iceberg.other_writers import log_state, table_of

            table = table_of(self._table, self._current)
            state = log_state(table, None if snapshot is None else table.snapshot_by_id(int(snapshot.snapshotId())), found) or state
        return state

    def state(self, mark: str) -> Mapping[str, str] | None:
        """Return the state with the mark from our newest commit; None if the table never had one. Raises the errors of `find_state`."""
        found = self._standing(mark)
        return None if found is None else found.state

    def _standing(self, mark: str, snapshot: Java | None = None) -> TableStanding | None:
        start = self._metadata.currentSnapshot() if snapshot is None else snapshot
        witness = Witness.read(entries(self._metadata.properties()), self._where)
        if witness is not None and snapshot is not None and int(snapshot.sequenceNumber()) < witness.sequence_number:
            witness = None  # the witness is newer than the snapshot
        return find_state(self._where, mark, ancestors(self._metadata, start), witness, self._earlier)

    @property
    def _current(self) -> Java:
        return self._table.operations().current() if self._metadata is self._table else self._metadata

    @cached_property
    def _where(self) -> str:
        return str(self._table.name())

    def _earlier(self) -> Iterator[Commit]:
        """Yield the snapshots of earlier metadata documents, newest first, as far as the documents exist."""
        jvm = engine_of_process().jvm
        for entry in reversed(list(each(self._current.previousFiles()))):
            try:
                found = jvm.org.apache.iceberg.TableMetadataParser.read(self._table.io(), entry.file())
                yield from [read_snapshot(snapshot) for snapshot in each(found.snapshots())]
            except thrown():
                continue


Judge = Callable[[Walk], None]
"""Returns to allow the attempt, raises a LifecycleError to refuse it."""
Make = Callable[[Java, Walk], Iterable[Java]]
"""Yields the updates of an attempt in the given transaction. Every update is made after the previous one was added."""


def fenced_commit(table: Java, judge: Judge, make: Make, *, what: str) -> None:
    """Commit one or several snapshots to main at once. The judge checks every attempt.

    An error before the request to the catalog refuses the commit. If another commit came first, the attempt leaves its manifests and
    their lists behind; reclaiming finds them.

    Args:
        table: The table to commit to, as Java has loaded it.
        judge: Raises its own error to refuse an attempt.
        make: Makes the updates, and may set properties that depend on the base of the attempt (end offsets, active segments).
        what: The action, for errors.

    Raises:
        CommitRefused: Iceberg's own checks saw a conflict.
        TableBusy: Other commits always came first; nothing has changed.
        CommitUnknown: The catalog's answer is missing (DEL-4). Search for the commit and clean nothing up.
    """
    with refusals(what):
        compare_and_swap(table.operations(), attempt_of(table, judge, make), what=what)


def attempt_of(table: Java, judge: Judge, make: Make) -> Attempt:
    """Return a function that makes one attempt of such a commit, without committing it."""

    def attempt() -> tuple[Java, Java]:
        transaction = table.newTransaction()
        base = transaction.startMetadata()

        walk = Walk(table, base)
        judge(walk)
        for update in make(transaction, walk):
            update.commit()  # to the transaction; a commit to it deletes nothing
        properties = witness_of(transaction.currentMetadata(), base)
        if properties:
            change = transaction.updateProperties()
            for key, value in properties.items():
                change.set(key, value)
            change.commit()
        return base, transaction.currentMetadata()

    return attempt


def witness_of(changed: Java, base: Java) -> dict[str, str]:
    """Return the table property that belongs into the same commit as a new head of main (MSG-4)."""
    head = changed.currentSnapshot()
    return {} if head is None else next_witness(read_snapshot(head), entries(base.properties()))


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn a conflict in Iceberg's own checks into CommitRefused."""
    try:
        yield
    except thrown() as error:
        if java_class(error) == "ValidationException":
            raise CommitRefused(what, java_message(error)) from error
        raise


# Check a plan's requirements of its table again, before staging and before publishing.


def check(plan: Plan, plan_id: str, table: Java, server: Mapping[str, Value] | None) -> None:
    """Check that the table and its settings are the same, and that main's history still has the plan's snapshot.

    Without the server's settings, the check compares only the topic's own settings.

    Raises:
        PlanConflict: A requirement is not met.
    """
    needed = plan.requirements
    if str(table.uuid()) != needed.table_uuid:
        raise PlanConflict(plan_id, f"the topic's table is another one now ({table.uuid()}, planned on {needed.table_uuid})")
    topic = settings_of(entries(table.properties()), where=f"topic {plan.topic}")
    now = topic if server is None else resolve(topic=topic, server=server).values
    planned = Policy.from_values(plan.policy)
    changed = ", ".join(f"{name} {planned[name]!r} -> {value!r}" for name, value in now.items() if planned[name] != value)
    if changed:
        raise PlanConflict(plan_id, f"the settings have changed since ({changed})")
    if needed.snapshot_id is not None and all(ancestor.snapshot_id != needed.snapshot_id for ancestor in main_ancestors(table)):
        raise PlanConflict(plan_id, f"its snapshot {needed.snapshot_id} is no longer in the table's history")


# A plan's one commit on a table, made at most once. Every attempt checks its conditions, and the plan's id finds the commit again (DEL-4,
# DEL-5).


Steps = Callable[[str], None]
"""Called with the name of each step."""


class AlreadyPublished(LifecycleError):
    """Another run published this plan during the attempt."""


def find(table: Java, plan_id: str, *, since: int | None = None) -> Known | None:
    """Return the commit on main that carries the plan, or None.

    Args:
        table: The table, whose main is searched as it is loaded.
        plan_id: The plan's id.
        since: A snapshot older than that commit; the search stops there.
    """
    for ancestor in main_ancestors(table):
        if since is not None and ancestor.snapshot_id == since:
            return None
        if ancestor.get(PLAN_ID) == plan_id:
            return ancestor
    return None


def commit_once(
    table: Java, plan_id: str, commit: Callable[[], None], *, steps: Steps, of: str = "commit", since: int | None = None
) -> Known:
    """Make the commit that carries the plan, unless another run was first, and return it.

    After an unknown result the function searches for the commit and never repeats it.

    Args:
        table: The table to commit to; loaded again after an attempt.
        plan_id: The plan's id.
        commit: Makes the commit.
        steps: Called with the name of each step.
        of: The commit's name in the names of the steps.
        since: The plan's snapshot, of a table that gets appends.

    Raises:
        PlanConflict: The table has changed since the plan.
        TableBusy: Other commits kept coming first.
        CommitUnknown: The catalog's answer is missing.
    """
    steps(f"before_{of}")
    try:
        commit()
    except AlreadyPublished:
        pass
    except (PlanConflict, CommitUnknown, CommitRefused) as error:
        if find_after_error(error, table, plan_id, since) is None:
            if not isinstance(error, CommitRefused):
                raise
            # Iceberg's check came before ours, and knows no plans: name the plan that was first.
            if since is not None:
                check_only_appends(main_ancestors(table), plan_id, since)
            raise PlanConflict(plan_id, error.reason) from error
    steps(f"after_{of}")
    unknown = CommitUnknown(f"publishing plan {plan_id}")
    found = find_after_error(unknown, table, plan_id, since)
    if found is None:
        raise unknown
    return found


def find_after_error(error: LifecycleError, table: Java, plan_id: str, since: int | None) -> Known | None:
    """Search main again for the plan's commit, after an attempt that ended with an error.

    Raises:
        CommitUnknown: The attempt ended so, and the catalog failed in the search, too.
    """
    try:
        table.refresh()
        return find(table, plan_id, since=since)
    except thrown() as failed:
        # The catalog may fail here, too. The result then stays unknown.
        if isinstance(error, CommitUnknown):
            raise error from error.__cause__ or failed
        raise


def properties(verdict: Verdict, ledger: tuple[str, int], removed: Sequence[tuple[str, int]] | None = None) -> dict[str, str]:
    """Return the properties of a plan's commit (DEL-5).

    Args:
        verdict: The gate's permission to publish.
        ledger: The ledger's (uuid, sequence).
        removed: Removed rows by reason, if they differ from the counts of the outcome.
    """
    plan = verdict.plan
    return {
        PLAN_ID: plan.plan_id,
        OPERATION: plan.operation,
        AS_OF: format_instant(plan.as_of),
        GATE_ID: verdict.gate_id,
        POLICY_HASH: plan.requirements.policy_hash,
        COUNTS: json.dumps(dict(verdict.staged.removed(plan) if removed is None else removed)),
        LEDGER: ledger_text(ledger),
    }


# Conditions, checked inside an attempt


def check_only_appends(ancestors: Iterator[Known], plan_id: str, base_id: int) -> None:
    """Check that only appends came since the plan's snapshot.

    Raises:
        PlanConflict: Something else came.
        AlreadyPublished: The plan itself was published.
    """
    for ancestor in ancestors:
        if ancestor.snapshot_id == base_id:
            return
        rival = ancestor.get(PLAN_ID)
        if rival == plan_id:
            raise AlreadyPublished(plan_id)
        # The undo of a removed file is an `append` to Iceberg as well, so refuse the append of a plan, too.
        if ancestor.operation != "append" or rival is not None:
            who = f"plan {rival}" if rival else f"snapshot {ancestor.snapshot_id}, another writer's"
            raise PlanConflict(
                plan_id, f"a conflicting {ancestor.operation} came first ({who})", rival=rival or f"snapshot {ancestor.snapshot_id}"
            )
    raise PlanConflict(plan_id, f"its snapshot {base_id} is not among the ancestors of main")


def check_head_unchanged(ancestors: Iterator[Known], plan_id: str, base_id: int, *, table: str) -> None:
    """Check that the table's head is still the plan's snapshot. Raises PlanConflict.

    Args:
        ancestors: The snapshots of the table, newest first.
        plan_id: The plan's id.
        base_id: The plan's snapshot.
        table: The table's name in words.
    """
    head = next(ancestors)
    if head.snapshot_id != base_id:
        rival = head.get(PLAN_ID)
        raise PlanConflict(plan_id, f"{table} changed first", rival=rival or f"snapshot {head.snapshot_id}")
