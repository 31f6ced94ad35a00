"""What a step has come to, in the words of a scenario file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from message_lifecycle.app.scenario_file import text_of
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.rows import offsets_of
from message_lifecycle.ports import PlanRecord


def reason_of(record: PlanRecord | None, position: tuple[int, int]) -> str:
    action = None if record is None else record.plan.taking(*position)
    if action is not None:
        return action.reason
    older = () if record is None or record.staged is None else record.staged.superseded
    named = any(position[0] == rows.partition and position[1] in offsets_of(rows.offsets) for rows in older)
    return "superseded" if named else "not planned"


def markers_of(messages: Iterable[Message]) -> list[dict[str, Any]]:
    return [
        {"key": text_of(m.key), "headers": [[name, text_of(content)] for name, content in m.headers]}
        for m in messages
        if is_marker(m.headers)
    ]


def held_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {"partition": h.partition, "from": h.first_base, "to": h.last_offset, "holder": h.holder, "detail": h.detail} for h in outcome.held
    ]


def by_key(markers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(markers, key=lambda marker: str(marker.get("key")))
