"""An operation is added by its name, its module and one line of the registry: every verb carries it out, and none has to know it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, cast, get_args

import pytest

from message_lifecycle.app import applications, steps
from message_lifecycle.app.due import Due, DueContext, due
from message_lifecycle.app.operations import registry
from message_lifecycle.app.operations.messages import MessageOperation, facts_of
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.plans import question_of
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.messages import message_request_suite
from message_lifecycle.gates.suite import Suite, row_count_equals, rule
from message_lifecycle.ledger import codec
from message_lifecycle.model import outcome as outcomes
from message_lifecycle.model import plan as plans
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import RemoveNullKeys, UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import requests
from tests.errors import raises

NAME = TopicName(stream="toy", topic="orders")
SECOND = 1_000_000
AS_OF = Instant(10 * SECOND)
WORK = cast(Any, "drop_keyless")


class DropKeyless(MessageOperation):
    """Removes messages without a key."""

    name = WORK

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        made = self.preview(s, name, WORK, as_of=asked.as_of)
        if made.is_empty:
            return Due(topic=name, due=False, reason="each has a key")
        return asked.due_unless_blocked(made, f"{made.expected.removed_rows} have no key")

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: object, *, as_of: Instant) -> Plan:
        request = RemoveNullKeys(partition=0, first=0, last=log.end_offsets[0] - 1)
        found = s.reader.find_requested_rows(log, request, as_of=as_of)
        return replace(requests.plan(facts_of(s, log), policy, request, found, as_of=as_of), operation=WORK)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        own = rule("few", "As many files lose messages as it says.", "files", row_count_equals("rows", len(plan.log_commit.mark)))
        return (*message_request_suite(plan, staged, policy), own)

    def question(self, plan: Plan, going: int) -> str:
        return f"drop {going} without a key?"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    module = ModuleType("message_lifecycle.app.operations.keyless")
    module.DropKeyless = DropKeyless  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry.OPERATIONS, WORK, "keyless.DropKeyless")  # the registry's line
    for words in (plans, outcomes):  # its name, as the ledger reads it
        monkeypatch.setattr(words, "Operation", Literal[(*get_args(plans.Operation), WORK)])
    _read_anew()
    try:
        made = memory_world({})
        create_topic(made.services, NAME, partitions=1, settings={"max_removed_fraction": 1.0})
        keys = (b"a", None, b"b", None)
        messages = [NewMessage(append_time=Instant(at * SECOND), key=key, value=b"v") for at, key in enumerate(keys)]
        made.writer.append(NAME, messages, policy_of(made.services, NAME))
        made.set_now(AS_OF)
        yield made
    finally:
        registry.operation_named.cache_clear()
        monkeypatch.undo()
        _read_anew()


def _read_anew() -> None:
    codec._adapter.cache_clear()
    codec._recorded_plan.cache_clear()


def keys(world: World) -> list[bytes | None]:
    return [message.key for message in world.services.reader.messages(NAME)]


def test_the_verbs_carry_it_out_from_due_to_verify(world: World) -> None:
    s = world.services
    (answer,) = due(s, [NAME], as_of=AS_OF, work=WORK)
    assert (answer.due, answer.reason) == (True, "2 have no key")
    record = steps.plan(s, NAME, as_of=AS_OF, work=WORK)
    assert question_of(record) == "drop 2 without a key?"
    assert applications.summary(record) == "2 of 4 messages in 0 segments go"
    outcome = steps.carry_out(s, record)
    assert (outcome.name, dict(outcome.removed)) == ("published", {"removed": 2}), outcome.detail
    assert keys(world) == [b"a", b"b"]
    report = s.ledger.record(record.plan.plan_id).report
    assert report is not None and "few" in {check.id for check in report.checks}
    again = steps.run(s, NAME, as_of=AS_OF, work=WORK)
    assert (again.name, again.first_plan_id) == ("no_op", record.plan.plan_id)
    (answer,) = due(s, [NAME], as_of=AS_OF, work=WORK)
    assert (answer.due, answer.reason) == (False, "each has a key")
    with raises("NotUndoable"):  # nobody has said that it may be taken back
        steps.plan(s, NAME, as_of=AS_OF, work=UndoPlan(plan_id=record.plan.plan_id))


def test_each_operation_says_why_its_plans_are_not_taken_back() -> None:
    assert registry.operation_named("retention").why_not_undone() is None
    assert registry.operation_named("erasure").why_not_undone() == "what is erased never comes back"
    for name in ("reclaim", "reclaim of topic_delete"):
        assert registry.operation_named(name).why_not_undone() == "the operation reclaim has no undo"
