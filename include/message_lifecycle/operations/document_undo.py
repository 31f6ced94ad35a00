"""Taking back what a plan took of documents: its changes and the snapshots that it dropped (DEL-7, SNP-7, SNP-8).

The snapshot that it made stays, a fold of the same changes, and so does the epoch, which never goes back: clients go on with what they
have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from message_lifecycle.model.change import Commit, RestoreDocument, SnapshotDocument, that_change
from message_lifecycle.model.document import DocumentState, DocumentTables
from message_lifecycle.model.errors import later_plan, undo_source_gone
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Expected, Plan, Selection, SnapshotRequirements
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import DocumentsBefore
from message_lifecycle.operations.required import required_of_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a plan took of documents. `actions`: that took anything. `before`: those documents as they were. `later`: purges that were
    published since and still stand, oldest first."""

    actions: Sequence[SnapshotDocument]
    before: DocumentsBefore
    later: Sequence[Plan]


def plan(
    tables: DocumentTables,
    states: Sequence[DocumentState],
    policy: Policy,
    undone: Plan,
    taken: Taken | None,
    *,
    as_of: Instant,
    heeded: tuple[str, ...] = (),
) -> Plan:
    """The plan that takes `undone` back. `taken` None: it was taken back before, and nothing is to do. `states`: of all documents now.

    Raises LaterPlan, UndoSourceGone."""
    now = {state.document: state for state in states}
    back = () if taken is None else tuple(_returning(undone, taken, now))
    changes, snapshots = sum(one.changes for one in back), sum(len(one.snapshots) for one in back)
    sources = (None, None) if taken is None else (taken.before.changes_id, taken.before.snapshots_id)
    gone = 0 if taken is None else sum(action.document not in now for action in taken.actions)
    return Plan(
        operation="undo",
        topic=tables.topic,
        as_of=as_of,
        policy=tuple(sorted(policy.values.items())),
        requirements=required_of_documents(tables, policy, heeded),
        bounds=(),
        changes=that_change(
            Commit(table="changes", documents_back=tuple(replace(one, snapshots=()) for one in back if one.changes), source_id=sources[0]),
            Commit(
                table="snapshots",
                documents_back=tuple(replace(one, changes_from=0, changes_before=0) for one in back if one.snapshots),
                source_id=sources[1],
            ),
        ),
        selection=Selection(),
        expected=Expected(
            rows_in=sum(state.seq - state.first + 1 for state in states if state.first is not None),
            removed=(),
            removed_bytes=None,
            bytes_in=None,
            segments=0,
        ),
        held=(),
        # No document is named: an erasure leaves a word in the place of its name.
        warnings=(f"{gone} document(s) that the plan took from are not there any more and do not come back",) if gone else (),
        asks=(
            f"plan {undone.plan_id} of operation {undone.operation} is taken back: {changes} change(s) and {snapshots} snapshot(s) of "
            f"{len(back)} document(s) come back",
        )
        if back
        else (),
        more=False,
        due_since=None,
        next_due_at=None,
        parent=undone.plan_id,
        snapshots=SnapshotRequirements(table_uuid=tables.snapshots_uuid, snapshot_id=tables.snapshots_id),
    )


def _returning(undone: Plan, taken: Taken, now: Mapping[str, DocumentState]) -> Iterator[RestoreDocument]:
    for action in taken.actions:
        state = now.get(action.document)
        if state is None:
            continue  # erased since
        _check_kept(undone, action, taken.before.states.get(action.document))
        away = action.purged > 0 and _are_away(undone, action, state, taken.later)
        snapshots = tuple(seq for seq in action.dropped if seq not in state.snapshots)
        if away or snapshots:
            yield RestoreDocument(
                document=action.document,
                changes_from=action.purge_from if away else 0,
                changes_before=action.purge_before if away else 0,
                snapshots=snapshots,
            )


def _check_kept(undone: Plan, action: SnapshotDocument, then: DocumentState | None) -> None:
    """Half of it would be a hole in the sequence. Raises UndoSourceGone."""
    changes = action.purged == 0 or (
        then is not None and then.first is not None and then.first <= action.purge_from and then.seq >= action.purge_before - 1
    )
    if not changes or not set(action.dropped) <= set(() if then is None else then.snapshots):
        raise undo_source_gone(undone.plan_id, f"not all that it took of document {action.document} is in the tables' history any more")


def _are_away(undone: Plan, action: SnapshotDocument, state: DocumentState, later: Sequence[Plan]) -> bool:
    """Whether the changes are missing, right before those that are there. Raises LaterPlan, UndoSourceGone where bringing them back would
    leave a hole."""
    if state.first is not None and state.first <= action.purge_from:
        return False  # an undo that died between its commits has brought them back
    if state.first == action.purge_before:
        return True
    for other in later:
        if any(one.document == action.document and one.purged for one in other.on_snapshots.documents):
            raise later_plan(undone.plan_id, other.plan_id, f"purged document {action.document} further: take that one back first")
    first = "no change is" if state.first is None else f"change {state.first} is the first that is"
    raise undo_source_gone(
        undone.plan_id,
        f"of document {action.document} {first} there, where the plan left those from {action.purge_before} on: another writer took the rest",
    )
