"""What the gate judges of documents in memory: each proved again from what is stored and staged, whatever staging said (SNP-6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from message_lifecycle.folds import Fold
from message_lifecycle.folds.replay import proof
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.memory.table import Changes, SnapshotRow, Snapshots, epoch_of, states_of


def documents_evidence(
    plan: Plan, fold: Fold, *, before: tuple[Changes, Snapshots], after: tuple[Changes, Snapshots], blocked: Collection[str]
) -> Mapping[str, object]:
    """The frames of `gates.documents`, but for `clients`. `blocked`: documents that are left as they are."""
    (changes, snapshots), (left, kept) = before, after
    actions = {action.document: action for action in plan.on_snapshots.documents if action.document not in blocked}
    looks = [
        _Look(
            actions.get(document),
            (changes.get(document, ()), left.get(document, ())),
            (snapshots.get(document, ()), kept.get(document, ())),
        )
        for document in sorted(changes.keys() | left.keys() | snapshots.keys() | kept.keys() | actions.keys())
    ]
    reasons = {document: why for document, action in actions.items() if (why := _reason(action, fold, before, after))}
    rows_in, rows_kept = (sum(len(rows) for rows in tables.values()) for tables in (changes, left))
    return {
        "documents": [
            {
                "planned": len(actions),
                "snapshots_made": sum(look.made for look in looks),
                "snapshots_dropped": sum(look.dropped for look in looks),
                "purged": sum(len(look.gone) for look in looks),
                "unnamed": sum(look.unnamed for look in looks),
                "holes": sum(look.has_hole for look in looks),
                "ahead": sum(look.is_ahead for look in looks),
                "epochs_wrong": sum(look.epoch_is_wrong for look in looks),
                "uncovered": sum(look.is_uncovered for look in looks),
                "snapshots_unnamed": sum(look.snapshots_unnamed for look in looks),
            }
        ],
        "unproved": [{"document": document, "reason": reason} for document, reason in sorted(reasons.items())],
        "figures": [{"rows_in": rows_in, "rows_kept": rows_kept, "rows_removed": rows_in - rows_kept, "asks": len(plan.asks)}],
    }


def _reason(action: SnapshotDocument, fold: Fold, before: tuple[Changes, Snapshots], after: tuple[Changes, Snapshots]) -> str | None:
    staged = states_of(after[1].get(action.document, ()))
    newest = max(staged, default=0)
    return proof(
        action,
        fold,
        newest=newest,
        base=states_of(before[1].get(action.document, ())).get(action.after),
        snapshot=staged.get(newest),
        changes=(change for change in before[0].get(action.document, ()) if change.server_seq > action.after),
        left=(change for change in after[0].get(action.document, ()) if change.server_seq > newest),
    )


class _Look:
    """One document before and as staged; `action` None: the plan says nothing of it, or it is blocked."""

    def __init__(
        self,
        action: SnapshotDocument | None,
        changes: tuple[tuple[Change, ...], tuple[Change, ...]],
        snapshots: tuple[tuple[SnapshotRow, ...], tuple[SnapshotRow, ...]],
    ) -> None:
        self._action, self._snapshots = action, snapshots
        before, after = ({change.server_seq: change for change in rows} for rows in changes)
        self._seq, self._left = max(before, default=0), sorted(after)
        self.gone = before.keys() - after.keys()
        named = set() if action is None else set(range(action.purge_from, action.purge_before))
        changed = {seq for seq in before.keys() & after.keys() if before[seq] != after[seq]}
        self.unnamed = len(self.gone - named) + len(after.keys() - before.keys()) + len(changed)

    @property
    def made(self) -> int:
        return len(states_of(self._snapshots[1]).keys() - states_of(self._snapshots[0]).keys())

    @property
    def dropped(self) -> int:
        return len(states_of(self._snapshots[0]).keys() - states_of(self._snapshots[1]).keys())

    @property
    def has_hole(self) -> bool:
        """What is left reaches without a gap up to where the document was."""
        return self._left != list(range(self._left[0] if self._left else self._seq, self._seq + 1 if self._seq else 0))

    @property
    def is_ahead(self) -> bool:
        return any(row.server_seq > self._seq for row in self._snapshots[1] if row not in self._snapshots[0])

    @property
    def epoch_is_wrong(self) -> bool:
        return epoch_of(self._snapshots[1]) - epoch_of(self._snapshots[0]) != bool(self.gone)

    @property
    def is_uncovered(self) -> bool:
        return any(seq > max(states_of(self._snapshots[1]), default=0) for seq in self.gone)

    @property
    def snapshots_unnamed(self) -> int:
        """Rows that came or went, and are not what the action makes or drops; of two at one server_seq, one."""
        before, after = self._snapshots
        action = self._action
        made, dropped = (None, ()) if action is None else (action.snapshot, action.dropped)
        came, gone = [row for row in after if row not in before], [row for row in before if row not in after]
        # A raised epoch of a document that has no new snapshot is a row beside its newest one, as the plan says.
        raised = [row for row in came if row.state is None and action is not None and row.epoch == action.epoch and action.purged]
        wrong = sum(row.server_seq != made for row in came if row not in raised) + sum(row.server_seq not in dropped for row in gone)
        stored = [row.server_seq for row in after if row.state is not None]
        return wrong + max(0, len(raised) - 1) + len(stored) - len(set(stored))
