"""Reclaiming in memory: nothing is kept of what was removed, so every plan is empty, and the way to it is the same (DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import LooseFiles, LooseQuestion, TableHistory
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given

if TYPE_CHECKING:
    from message_lifecycle.stores.memory.store import MemoryStore

_WRONG = ("needed", "missing", "young", "pointed", "progress", "outside", "fresh")


class MemoryReclaimer(ChangeStore):
    """`ports.Reclaimer` of a store without a past."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        self._store.describe(name)
        return ()

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:  # noqa: ARG002  # no table is ever asked about
        return LooseFiles(table=question.table, files=(), total_files=0, total_bytes=0)

    def published(self, _plan: Plan) -> Published | None:
        return None  # no plan of it changes anything

    def publish(self, verdict: Verdict, _given: Given) -> Published:
        raise AssertionError(f"plan {verdict.plan.plan_id} of a store without a past is empty")

    def hidden_bytes(self, name: TopicName) -> int | None:  # noqa: ARG002  # nothing is hidden
        return None

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        figures = {"snapshots": 0, "files": 0, "bytes": 0, "fraction_bytes": 0.0, "asks": len(plan.asks)}
        return {**{frame: [] for frame in _WRONG}, "tables": [], "figures": [figures]}
