"""What an erasure leaves readable: the head of every ref, and what the table was before each plan whose undo is still open."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from message_lifecycle.model.change import Rewrite
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.layout import OPERATION, PLAN_ID, of_plan

Document = Mapping[str, Any]
MAIN = "main"
# What plans and batches leave behind them when they die; at its end an erasure stands alone in the table. Each was given an age when it
# was made: another's branch that is only called like one stays.
_STAGES = re.compile(r"lc_[0-9a-f]{16}|in_[0-9A-Za-z_-]+_[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoWindow:
    """Decides which undo is still open at `at_ms`: by the topic's settings, for a table's own property is as old as the last change of it.

    An undo counts from the plan's outcome, which may have come long after its commit. `undoable`: plans whose undo is open by that.
    `operations`: those whose plans are taken back at all."""

    at_ms: int
    length_ms: int
    operations: Collection[str]
    undoable: Collection[str] = ()

    @classmethod
    def of(cls, policy: Policy, as_of: Instant, undoable: Collection[str], operations: Collection[str]) -> UndoWindow:
        return cls(at_ms=as_of // 1000, length_ms=policy.undo_window_us // 1000, operations=operations, undoable=undoable)

    @classmethod
    def planned(cls, plan: Plan, action: Rewrite, operations: Collection[str]) -> UndoWindow:
        """As the erasure was planned: it has named whose undo is open."""
        return cls.of(Policy.of_values(plan.policy), plan.as_of, {plan_id for plan_id, _ in action.undo}, operations)

    def end(self, plan_id: str, committed_ms: int) -> int:
        """An outcome that is known has come by `at_ms`: the undo does not end later than a window from there."""
        return max(committed_ms, self.at_ms if plan_id in self.undoable else committed_ms) + self.length_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """`refs`: every branch and tag but stages; `stages`: those; `undo`: plan id to the snapshot just before it, and when it ends (ms)."""

    main: int | None
    refs: Mapping[str, int]
    stages: tuple[str, ...]
    undo: Mapping[str, int]
    undo_until: Mapping[str, int]

    @property
    def needed(self) -> frozenset[int]:
        return frozenset((*self.refs.values(), *self.undo.values()))

    @staticmethod
    def snapshot(document: Document, snapshot_id: int | None) -> Mapping[str, Any] | None:
        return next((one for one in document["snapshots"] if one["snapshot-id"] == snapshot_id), None)

    @classmethod
    def of(cls, document: Document, window: UndoWindow) -> Heads:
        refs = {name: int(ref["snapshot-id"]) for name, ref in document.get("refs", {}).items()}
        stages = tuple(
            sorted(name for name, ref in document.get("refs", {}).items() if _STAGES.fullmatch(name) and "max-ref-age-ms" in ref)
        )
        kept = {name: snapshot_id for name, snapshot_id in refs.items() if name not in stages}
        undo, until = dict[str, int](), dict[str, int]()
        for snapshot in ancestors(document, refs.get(MAIN)):
            summary = snapshot.get("summary", {})
            plan_id = summary.get(PLAN_ID)
            if plan_id is None or summary.get(OPERATION) not in window.operations:
                continue
            ends = window.end(plan_id, int(snapshot["timestamp-ms"]))
            if ends < window.at_ms:
                continue
            before, _ = of_plan(int(snapshot["snapshot-id"]), snapshot.get("parent-snapshot-id"), summary)
            if before is not None and undo_ref(plan_id) not in refs and cls.snapshot(document, before) is not None:
                undo[plan_id], until[plan_id] = int(before), ends
        return cls(main=refs.get(MAIN), refs=kept, stages=stages, undo=undo, undo_until=until)


def ancestors(document: Document, snapshot_id: int | None) -> Iterator[Mapping[str, Any]]:
    """The snapshot and those before it, newest first, as far back as the table remembers them."""
    by_id = {int(snapshot["snapshot-id"]): snapshot for snapshot in document["snapshots"]}
    snapshot = None if snapshot_id is None else by_id.get(snapshot_id)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id"))
