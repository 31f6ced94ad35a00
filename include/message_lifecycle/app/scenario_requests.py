"""The verb `delete` of scenario files: what a person asks to have removed (PRG-1)."""

from __future__ import annotations

from message_lifecycle.app.scenario_file import DeleteStep
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog


def request_of(step: DeleteStep) -> Request:
    """Raises InvalidScenario where it names nothing."""
    if step.offsets is not None:
        return RemoveMessages(positions=tuple(position_of(entry) for entry in step.offsets))
    if step.key is not None:
        return PurgeKey(key=step.key, keep=step.keep, before=step.before)
    if step.null_keys is not None:
        return RemoveNullKeys(partition=step.partition, first=step.null_keys[0], last=step.null_keys[1])
    if step.before is not None:
        return TruncateLog(partition=step.partition, before=step.before)
    raise InvalidScenario("delete", step.model_dump(exclude_none=True), "offsets, a key, null_keys [from, to], or before")


def position_of(entry: int | str) -> tuple[int, int]:
    """`partition:offset`, or an offset of partition 0."""
    partition, colon, offset = str(entry).partition(":")
    return (int(partition), int(offset)) if colon else (0, int(entry))
