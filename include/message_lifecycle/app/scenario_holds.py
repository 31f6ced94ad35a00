"""The verbs `hold` and `release` of scenario files (DEL-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from message_lifecycle.app.holds import place_hold, release_hold, standing
from message_lifecycle.app.scenario_file import HoldStep
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_BY = "scenario"


def hold(s: Services, name: TopicName, step: HoldStep) -> dict[str, Any]:
    return {"hold": place_hold(s, name, by=_BY, why="as its file says", key=step.key, offsets=_offsets(step)).hold_id}


def release(s: Services, name: TopicName, step: HoldStep) -> dict[str, Any]:
    """The hold that was placed in the same words."""
    found = standing(s, name, key=step.key, offsets=_offsets(step))
    if found is None:
        raise InvalidScenario("release", step.model_dump(exclude_none=True, by_alias=True), "what an earlier `hold` of the topic names")
    return {"hold": release_hold(s, found.hold_id, by=_BY, why="as its file says").hold_id}


def _offsets(step: HoldStep) -> HeldRange | None:
    if step.start is None:
        if step.end is not None:
            raise InvalidScenario("hold.to", step.end, "nothing without `from`")
        return None
    return HeldRange(partition=step.partition, first=step.start, last=step.end)
