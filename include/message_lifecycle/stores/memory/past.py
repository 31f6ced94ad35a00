"""Reclaiming in memory: nothing is kept of what was removed, so every plan is empty, and the way to it is the same (DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import LooseFiles, LooseQuestion, TableHistory
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.stores.memory.store import MemoryStore

_WRONG = ("needed", "missing", "young", "pointed", "progress", "outside", "fresh")


class MemoryReclaimer:
    """`ports.Reclaimer` of a store without a past."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        self._store.describe(name)
        return ()

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:  # noqa: ARG002  # no table is ever asked about
        return LooseFiles(table=question.table, files=(), total_files=0, total_bytes=0)

    def reclaimed(self, plan: Plan) -> Published | None:  # noqa: ARG002  # no plan of it changes anything
        return None

    def remains(self, plan: Plan) -> Sequence[str]:  # noqa: ARG002  # no plan leaves anything to be there
        return ()

    def hidden_bytes(self, name: TopicName) -> int | None:  # noqa: ARG002  # nothing is hidden
        return None

    def reclaim_evidence(self, plan: Plan, policy: Policy) -> Mapping[str, object]:  # noqa: ARG002  # there is nothing to look at
        figures = {"snapshots": 0, "files": 0, "bytes": 0, "fraction_bytes": 0.0, "asks": len(plan.asks)}
        return {**{frame: [] for frame in _WRONG}, "tables": [], "figures": [figures]}

    def reclaim(self, verdict: Verdict) -> Published:
        raise AssertionError(f"plan {verdict.plan.plan_id} of a store without a past is empty")
