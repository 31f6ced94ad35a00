"""Seam to the quarantine beside a topic, a table with a history of its own (QUA-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.tables import QuarantineReturning, QuarantineState
from message_lifecycle.operations.verdict import Verdict


class QuarantineReader(Protocol):
    """By metadata alone."""

    def quarantine(self, name: TopicName) -> QuarantineState | None:
        """None: nothing of the topic was ever refused."""
        ...

    def quarantine_published(self, name: TopicName, plan_id: str) -> Published | None:
        """The commit that carries the plan, if there is one (DEL-4)."""
        ...

    def quarantine_has_committed(self, name: TopicName, plan_id: str) -> bool:
        """As `HistoryReader.has_committed`, of the quarantine."""
        ...

    def quarantine_returning(self, plan: Plan) -> QuarantineReturning:
        """What a published plan took and can come back. Raises UndoSourceGone, also where it has come back already."""
        ...

    def quarantine_returned(self, plan: Plan) -> int:
        """How many rows the commit of an undo has brought, of those that it names."""
        ...


class QuarantineStore(QuarantineReader, Protocol):
    """The deed, a removal or the undo of one: staged on a branch, published in one fenced commit; each step again changes nothing."""

    def stage_quarantine(self, plan: Plan) -> Staged:
        """Raises PlanConflict; of an undo UndoSourceGone, where a file is not there any more."""
        ...

    def quarantine_evidence(self, plan: Plan, staged: Staged) -> Mapping[str, object]:
        """Frames that the gate judges: see `gates.quarantine`."""
        ...

    def publish_quarantine(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        """Raises PlanConflict where anything but appends came since the plan."""
        ...

    def discard_quarantine(self, plan: Plan) -> None:
        """Forget what was staged; nothing there is success."""
        ...
