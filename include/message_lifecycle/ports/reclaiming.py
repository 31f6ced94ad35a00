"""Seam to what remembers the past of a topic's tables and can let go of it (DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import BegunReclaim, DeletedTopic, LooseFiles, LooseQuestion, TableFiles, TableHistory
from message_lifecycle.operations.verdict import Verdict


class PastReader(Protocol):
    """By metadata, without a JVM."""

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        """Of the topic's table and of all beside it; none where the store keeps no past. Raises UnknownTopic, ForeignTable."""
        ...

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:
        """Raises UnsafePath where a link lies among the table's files, and what reading the history raises: nothing goes by guesswork."""
        ...

    def reclaimed(self, plan: Plan) -> Published | None:
        """What the plan has brought back, if it was carried out to its end."""
        ...

    def remains(self, plan: Plan) -> Sequence[str]:
        """Of what the plan names, what is still there, in words."""
        ...

    def hidden_bytes(self, name: TopicName) -> int | None:
        """About how many bytes of files only the past needs, by summaries alone; None: not known, or the store has no past."""
        ...


class Reclaimer(PastReader, Protocol):
    """The deed."""

    def reclaim_evidence(self, plan: Plan, policy: Policy) -> Mapping[str, object]:
        """Frames that the gate judges, by other readers than planned it."""
        ...

    def reclaim(self, verdict: Verdict) -> Published:
        """Forget the snapshots, then remove the files. What is done already is not done again. Raises PlanConflict where something
        needs one of the files again."""
        ...


class DeletedReclaimer(Protocol):
    """Deleted topics that nobody can bring back any more: their tables are forgotten in one commit, then their files go. Without a JVM."""

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:
        """Of each of its tables, the log first. Raises UnsafePath where a link, another table or a file elsewhere is in the way,
        StorageRefused."""
        ...

    def drop_evidence(self, plan: Plan, policy: Policy) -> Mapping[str, object]:
        """Frames that the gate judges, by another reading than the plan's."""
        ...

    def drop(self, verdict: Verdict) -> Published:
        """Forget the tables, and leave word of it until the files have gone. Raises PlanConflict where a table is not as it was planned
        for, and what `finish` raises."""
        ...

    def is_begun(self, plan: Plan) -> bool:
        """Whether the plan's tables are forgotten: there is no way back."""
        ...

    def finish(self, plan: Plan) -> Published:
        """Remove what files are left of a plan that has begun; one that is gone is success. Raises UnsafePath, StorageRefused."""
        ...

    def dropped(self, plan: Plan) -> Published | None:
        """What the plan has brought back, if it was carried out to its end and its outcome not yet written."""
        ...

    def still_there(self, plan: Plan) -> Sequence[str]:
        """Of what the plan names, what is still there, in words."""
        ...

    def close(self, plan: Plan) -> None:
        """Drop the word of a plan that has come to its end."""
        ...

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        """By plan: those that have begun and not come to their end."""
        ...

    def left_by(self, plan_id: str) -> Sequence[str]:
        """The first few files in the order of their names below each location of a plan that has begun, whole names; in a location that
        another table has now, none: what nothing names there goes with that table's orphans. Raises UnsafePath, StorageRefused."""
        ...

    def forget(self, plan_id: str) -> None:
        """Drop the word of a plan that nobody can bring to its end by the ledger."""
        ...
