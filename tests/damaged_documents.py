"""Staged documents with something wrong in them, for tests of what the gate sees."""

from __future__ import annotations

from collections.abc import Callable

from message_lifecycle.folds import json_text
from message_lifecycle.model.document import Change
from message_lifecycle.stores.memory.tables import SnapshotRow, TopicTables

Rows = dict[str, tuple[Change, ...]]
Snaps = dict[str, tuple[SnapshotRow, ...]]
Damage = Callable[[Rows, Snaps], None]


def changes(document: str, change: Callable[[tuple[Change, ...]], tuple[Change, ...]]) -> Damage:
    def damage(rows: Rows, _snaps: Snaps) -> None:
        rows[document] = change(rows[document])

    return damage


def snapshots(document: str, change: Callable[[tuple[SnapshotRow, ...]], tuple[SnapshotRow, ...]]) -> Damage:
    def damage(_rows: Rows, snaps: Snaps) -> None:
        snaps[document] = change(snaps.get(document, ()))

    return damage


def state(seq: int, text: str, epoch: int = 1) -> SnapshotRow:
    return SnapshotRow(server_seq=seq, epoch=epoch, state=json_text.canonical_json(text))


def damaged(tables: TopicTables, plan_id: str, damage: Damage) -> None:
    """Do the damage to what is staged; what is published stays whole."""
    changes, snapshots = tables.changes.staged[plan_id], tables.snapshots.staged[plan_id]
    rows, snaps = dict(changes.version), dict(snapshots.version)
    damage(rows, snaps)
    changes.version, snapshots.version = rows, snaps
