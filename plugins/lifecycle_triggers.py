"""The trigger that waits in Airflow's triggerer for the end of a question: a person's answer, or an end elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk.timezone import utcnow
from airflow.triggers.base import TriggerEvent

if TYPE_CHECKING:
    from message_lifecycle.app.tasks import Values

SECONDS_BETWEEN_LOOKS = 5.0
LOOKS_BETWEEN_SETTINGS = 12
"""Every look asks the ledger. Only one look a minute checks for changed settings, because that check reads the table's metadata."""

log = logging.getLogger(__name__)


class QuestionTrigger(HITLTrigger):
    """Fires at the answer, as Airflow's own trigger does, or when the ledger says that the plan does not wait any more.

    An answer in Airflow resumes the task without this trigger, unless it came before the task was parked. The first look is
    `SECONDS_BETWEEN_LOOKS` late, because Airflow 3.3 fails a task that goes on while its executor still reports its first half.
    """

    def __init__(self, *, plan_id: str, gate_id: str, **options: Any) -> None:
        super().__init__(**{"poke_interval": SECONDS_BETWEEN_LOOKS, **options})
        self.plan_id, self.gate_id = plan_id, gate_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        _, options = super().serialize()
        return f"{__name__}.{type(self).__name__}", {**options, "plan_id": self.plan_id, "gate_id": self.gate_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        for look in count():
            await asyncio.sleep(self.poke_interval)
            event = await self._look(with_settings=look % LOOKS_BETWEEN_SETTINGS == 0)
            if event is not None:
                yield event
                return

    async def _look(self, *, with_settings: bool) -> TriggerEvent | None:
        """Return what happened. An answer comes first: the task that records it says whether it came too late."""
        answered = await self._handle_response()
        if answered is not None:
            return answered
        try:
            ending = await asyncio.to_thread(self._ending, with_settings)
        except Exception as error:  # noqa: BLE001 - not knowing ends no question; the next look may know
            log.warning("plan %s: the ledger or the catalog did not answer: %s", self.plan_id, type(error).__name__)
            ending = None
        if ending is not None:
            return TriggerEvent({"ending": ending})
        if self.timeout_datetime is not None and self.timeout_datetime < utcnow():
            return await self._handle_timeout()
        return None

    def _ending(self, with_settings: bool) -> Values | None:
        from message_lifecycle.app import tasks

        return tasks.find_question_end(plan_id=self.plan_id, gate_id=self.gate_id, with_settings=with_settings)
