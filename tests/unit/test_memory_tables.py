"""The reference store's tables: whatever is done, what a table once was it stays, until a key is erased from it; and a change is one function
of a version, made to the plan's own when it is staged and to the newest when it is published."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.memory import MemoryStore
from message_lifecycle.stores.memory.tables import Table, difference
from tests import document_sequences, log_sequences
from tests.effort import effort, generated
from tests.sequences import Step, begin

NAME = TopicName(stream="memory", topic="tables")


def versions(store: MemoryStore) -> dict[tuple[str, int], str]:
    tables = store.of(NAME)
    of: dict[str, Table[Any]] = {"log": tables.log, "view": tables.view, "changes": tables.changes, "snapshots": tables.snapshots}
    return {(kind, commit.snapshot_id): repr(commit.version) for kind, table in of.items() for commit in table.commits}


@generated
@pytest.mark.parametrize(("kind", "partitions"), [(log_sequences, 2), (document_sequences, 1)], ids=["log", "documents"])
def test_no_version_changes_but_by_an_erasure(kind: ModuleType, partitions: int) -> None:
    @given(st.sampled_from(kind.OWN), kind.SEQUENCES)
    @effort("memory", 15)
    def holds(own: dict[str, Value], sequence: Sequence[Step]) -> None:
        world = memory_world({})
        store = world.services.stores.log
        assert isinstance(store, MemoryStore)
        run = begin(world, NAME, kind.seen, own, partitions=partitions)
        was = versions(store)
        for step in sequence:
            run.step(step)
            now = versions(store)
            assert now.keys() >= was.keys()
            assert step.says.startswith("erase") or {place: now[place] for place in was} == was, str(step)
            was = now

    holds()


def test_what_is_published_is_what_was_staged_on_whatever_has_come_since() -> None:
    world = memory_world({})
    s, policy = world.services, Policy.from_values(())
    assert isinstance(s.stores.log, MemoryStore)
    create_topic(s, NAME, partitions=1, settings={"max_removed_fraction": 1.0})
    new = [NewMessage(append_time=Instant(at), key=b"k", value=b"v", partition=0) for at in range(4)]
    world.writer.append(NAME, new[:3], policy)
    plan = steps.plan(s, NAME, as_of=Instant(9), work=RemoveMessages(positions=((0, 1),))).plan
    steps.stage(s, plan.plan_id)
    log = s.stores.log.of(NAME).log
    staged = difference(log.head.messages, log.staged[plan.plan_id].version.messages)
    world.writer.append(NAME, new[3:], policy)
    steps.gate(s, plan.plan_id)
    steps.publish(s, plan.plan_id)
    published = difference(log.at(log.next_id - 2).messages, log.head.messages)
    assert (set(staged.gone), dict(staged.came)) == ({(0, 1)}, {}) == (set(published.gone), dict(published.came))
    assert [offset for _, offset in sorted(log.head.messages)] == [0, 2, 3]


def test_an_erasure_that_the_ledger_does_not_answer_has_erased_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = memory_world({})
    s, key = world.services, b"customer 17 of the north"
    create_topic(s, NAME, partitions=1, settings={})
    world.writer.append(NAME, [NewMessage(append_time=Instant(1), key=key, value=b"v")], Policy.from_values(()))
    request = ask(s, [key], topics=[NAME], forbid=False, by="ada", why="a letter")
    before, ledger = versions(s.stores.log), s.topics.describe(NAME).ledger  # type: ignore[arg-type]  # the memory store

    def away(_: TopicName) -> tuple[str, int]:
        raise Unavailable("it does not answer")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(s.ledger, "next_identity", away)
        carry_out(s, request.request_id, approver=lambda _plan, _report: (True, "ada", "a letter"))
    assert (versions(s.stores.log), s.topics.describe(NAME).ledger) == (before, ledger)  # type: ignore[arg-type]  # as above
    carry_out(s, request.request_id, approver=lambda _plan, _report: (True, "ada", "a letter"))
    assert s.ledger.erasure(request.request_id).state == "erased"
    assert s.topics.describe(NAME).ledger != ledger
