"""The trigger that waits for the end of a question: what ends it, what does not, and what the triggerer keeps of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

pytestmark = pytest.mark.airflow

ENDED = {"granted": False, "reason": "ada refused the plan elsewhere"}
ANSWER = {"chosen_options": ["Approve"], "params_input": {"text": "go"}}
HOUR = timedelta(hours=1)


class Broken(Exception):
    pass


@pytest.fixture
def made(plugins: None) -> Any:
    from lifecycle_triggers import QuestionTrigger

    def make(*, ends: timedelta = HOUR, **options: Any) -> Any:
        params = {"text": {"value": "", "description": None, "schema": {"type": "string"}}}
        return QuestionTrigger(
            **{"plan_id": "p", "gate_id": "g", "ti_id": uuid4(), "options": ["Approve", "Reject"], "params": params, "poke_interval": 0.001}
            | {"timeout_datetime": datetime.now(UTC) + ends}
            | options
        )

    return make


def fired(trigger: Any, monkeypatch: pytest.MonkeyPatch, *, answers: list[Any], endings: list[Any]) -> tuple[Any, list[bool]]:
    """The event that ends the wait, and with which looks settings were read. The last of each list stays."""
    from airflow.triggers.base import TriggerEvent

    from message_lifecycle.app import tasks

    def taken(queue: list[Any]) -> Any:
        found = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def response() -> Any:
        answer = taken(answers)
        return None if answer is None else TriggerEvent(answer)

    async def timeout() -> Any:
        return TriggerEvent({"error_type": "timeout"})

    looks: list[bool] = []

    def ending(*, plan_id: str, gate_id: str, with_settings: bool) -> Any:
        assert (plan_id, gate_id) == ("p", "g")
        looks.append(with_settings)
        return taken(endings)

    monkeypatch.setattr(tasks, "find_question_end", ending)
    monkeypatch.setattr(trigger, "_handle_response", response)
    monkeypatch.setattr(trigger, "_handle_timeout", timeout)

    async def first() -> Any:
        return await anext(trigger.run())

    return asyncio.run(asyncio.wait_for(first(), 10)).payload, looks


@pytest.mark.parametrize(
    ("answers", "endings", "ends", "event"),
    [
        ([None, None, ANSWER], [None], HOUR, ANSWER),
        ([None], [None, None, ENDED], HOUR, {"ending": ENDED}),
        # The task that records an answer says whether it came too late.
        ([ANSWER], [ENDED], -HOUR, ANSWER),
        # How the ledger saw it end says more than that it has.
        ([None], [ENDED], -HOUR, {"ending": ENDED}),
        ([None], [None], -HOUR, {"error_type": "timeout"}),
        # A ledger that does not answer ends no question.
        ([None], [Broken(), Broken(), ENDED], HOUR, {"ending": ENDED}),
        ([None], [Broken()], -HOUR, {"error_type": "timeout"}),
    ],
)
def test_what_ends_the_wait(
    made: Any, monkeypatch: pytest.MonkeyPatch, answers: list[Any], endings: list[Any], ends: timedelta, event: Any
) -> None:
    found, _ = fired(made(ends=ends), monkeypatch, answers=list(answers), endings=list(endings))
    assert found == event


def test_settings_are_read_once_a_minute(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lifecycle_triggers import LOOKS_BETWEEN_SETTINGS, SECONDS_BETWEEN_LOOKS

    _, looks = fired(made(), monkeypatch, answers=[None], endings=[None] * 20 + [ENDED])
    assert [number for number, with_settings in enumerate(looks) if with_settings] == [0, LOOKS_BETWEEN_SETTINGS]
    assert LOOKS_BETWEEN_SETTINGS * SECONDS_BETWEEN_LOOKS == 60


def test_the_triggerer_makes_it_again_from_what_it_keeps(made: Any) -> None:
    from airflow.sdk._shared.module_loading import import_string
    from airflow.sdk.serde import deserialize, serialize

    trigger = made()
    path, options = trigger.serialize()
    again = import_string(path)(**deserialize(serialize(options)))
    assert again.serialize() == (path, options)
    assert (path, again.plan_id, again.gate_id) == ("lifecycle_triggers.QuestionTrigger", "p", "g")


def test_the_first_look_leaves_the_executor_time(made: Any) -> None:
    from lifecycle_local.airflow import SETTLED
    from lifecycle_triggers import SECONDS_BETWEEN_LOOKS

    assert timedelta(seconds=SECONDS_BETWEEN_LOOKS) > SETTLED
