"""Seam to the quarantine beside a topic, whose rows go by their age (QUA-1), and come back (DEL-7)."""

from __future__ import annotations

from typing import Protocol

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.tables import QuarantineReturning, QuarantineState
from message_lifecycle.ports.stores import ChangeStore


class QuarantineStore(ChangeStore, Protocol):
    """Looked at by metadata alone."""

    def quarantine(self, name: TopicName) -> QuarantineState | None:
        """None: nothing of the topic was ever refused."""
        ...

    def returning(self, plan: Plan) -> QuarantineReturning:
        """What a published plan took and can come back. Raises UndoSourceGone, also where it has come back already."""
        ...
