"""Undone plans. Tests of every store of whole logs use them."""

from __future__ import annotations

from dataclasses import replace

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario import World
from message_lifecycle.model.facts import Segment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport, Outcome
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from tests.contract.test_requests import append
from tests.logs import SECOND


def approved(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
    return True, "tester", "as expected"


def run(world: World, name: TopicName, at_s: int, work: Work = "message_cleaner") -> Outcome:
    world.set_now(Instant(at_s * SECOND))
    return steps.run(world.services, name, as_of=Instant(at_s * SECOND), approver=approved, work=work)


def published(world: World, name: TopicName, at_s: int, work: Work = "message_cleaner") -> str:
    """The id of the plan."""
    outcome = run(world, name, at_s, work)
    assert outcome.name == "published", outcome.detail
    assert outcome.plan_id is not None
    return outcome.plan_id


def undone(world: World, name: TopicName, at_s: int, plan_id: str) -> Outcome:
    outcome = run(world, name, at_s, UndoPlan(plan_id=plan_id))
    assert outcome.name == "published", outcome.detail
    return outcome


def stored(world: World, name: TopicName) -> list[Message]:
    """Every column of every message."""
    return list(world.services.reader.messages(name))


def segments(world: World, name: TopicName) -> list[Segment]:
    """Return the log's segments without the names of files and without metadata that fresh files change."""
    return [replace(segment, files=(), sealed=True) for segment in world.services.reader.log(name).segments]


def sealed_segments(world: World, name: TopicName, *first_s: int) -> None:
    for at_s in first_s:
        append(world, name, at_s, b"a", b"b", b"c")
        world.writer.seal(name, 0)
