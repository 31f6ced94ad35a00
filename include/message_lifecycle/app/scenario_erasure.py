"""The `erasure` of a scenario: a request by the key that the file states, recorded and carried out as a person's."""

from __future__ import annotations

from message_lifecycle.app.erasure_requests import ask, settle_latest
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario_file import RunStep
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey


def erasure_of(s: Services, name: TopicName, step: RunStep) -> EraseKey | None:
    """Of this one topic; None: another operation. Raises InvalidScenario where a key is missing, or there is one too many."""
    if step.operation != "erasure":
        if step.key is not None or step.forbid:
            raise InvalidScenario("run", step.model_dump(exclude_none=True), "key and forbid with the operation erasure alone")
        return None
    if step.key is None:
        raise InvalidScenario("run", step.model_dump(exclude_none=True), "an erasure has a key")
    request = ask(s, step.key, topics=[name], forbid=step.forbid, by="scenario", why="scenario")
    return EraseKey(request_id=request.request_id)


def settle_erasure(s: Services, work: Work) -> None:
    """After its run: what was refused forbids nothing."""
    if isinstance(work, EraseKey):
        request = s.ledger.erasure(work.request_id)
        settle_latest(s, request)
