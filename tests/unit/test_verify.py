"""Verify reads the table again: a commit that did something else than was planned and judged is told as failed, with the difference (DEL-6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from tests.logs import AS_OF, SECOND

NAME = TopicName(stream="test", topic="verified")


class Telling:
    """A store that answers one question otherwise."""

    def __init__(self, store: Any, question: str, changed: Callable[[Any], Any]) -> None:
        self._store, self._question, self._changed = store, question, changed

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)
        return asked if name != self._question else lambda *given, **named: self._changed(asked(*given, **named))


def published() -> tuple[Services, str]:
    """Two segments that are expired and one that is not; the plan is published, and not verified yet."""
    world = memory_world({})
    s = world.services
    create_topic(s, NAME, partitions=1, settings={"message_expiry": 10, "max_removed_fraction": 1.0})
    world.set_now(AS_OF)
    times = [(1, 0), (2, 1), (99, 2)]
    messages = [NewMessage(append_time=Instant(at * SECOND), key=b"k", value=b"v", segment=base) for at, base in times]
    world.writer.append(NAME, messages, policy_of(s, NAME))
    plan_id = steps.plan(s, NAME, as_of=AS_OF).plan.plan_id
    steps.stage(s, plan_id)
    assert steps.gate(s, plan_id).judgement == "passed"
    steps.publish(s, plan_id)
    return s, plan_id


def test_what_was_done_as_planned_is_published() -> None:
    s, plan_id = published()
    assert steps.verify(s, plan_id).name == "published"


@pytest.mark.parametrize(
    ("question", "changed", "told"),
    [
        ("removed_files", lambda files: files[1:], "took 1 files out, the plan names 2, 1 differ"),
        ("removed_files", lambda files: (*files, "0/2"), "took 3 files out, the plan names 2, 1 differ"),
        ("removed_files", lambda files: ("0/2", *files[1:]), "took 2 files out, the plan names 2, 2 differ"),
        (
            "find_published",
            lambda done: replace(done, removed=(("expiry", 1),)),
            "the commit removed {'expiry': 1}, the plan says {'expiry': 2}",
        ),
        ("find_published", lambda done: replace(done, removed=(("ttl", 2),)), "the commit removed {'ttl': 2}"),
        ("find_published", lambda done: replace(done, markers=1), "the commit made 1 markers and cancelled 0, the gate judged 0"),
    ],
    ids=["a file less", "a file more", "another file", "a message less", "another reason", "a marker more"],
)
def test_what_was_done_otherwise_has_failed(question: str, changed: Callable[[Any], Any], told: str) -> None:
    s, plan_id = published()
    lying = replace(s, reader=Telling(s.reader, question, changed), stores=replace(s.stores, log=Telling(s.stores.log, question, changed)))
    outcome = steps.verify(lying, plan_id)
    assert outcome.name == "failed"
    assert told in outcome.detail


def test_what_is_still_overdue_and_held_by_nobody_has_failed() -> None:
    s, plan_id = published()
    log = s.stores.log.of(NAME).log  # type: ignore[attr-defined]  # the memory store's own
    log.head.messages[0, 1] = log.at(log.first + 1).messages[0, 1]
    outcome = steps.verify(s, plan_id)
    assert outcome.name == "failed"
    assert "messages up to offset 1 are still overdue and nothing named holds them" in outcome.detail
