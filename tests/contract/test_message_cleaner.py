"""What every store must do with the message cleaner's plans, whatever the log looks like."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.applications import gate_all
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import NotReady, PlanConflict
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport, Outcome, Published
from message_lifecycle.model.plan import Plan
from tests.contract.conftest import MakeWorld
from tests.effort import effort, generated
from tests.logs import AS_OF, EXPIRY_SECONDS, SECOND, Log, expired_by_the_rules, logs

SERVER = {"consumer_expiry": 50}


def granted(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
    return True, "tester", "as expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One topic in one world."""

    world: World
    name: TopicName

    @property
    def s(self) -> Services:
        return self.world.services

    def append(self, *messages: NewMessage) -> None:
        self.world.writer.append(self.name, messages, policy_of(self.s, self.name))

    def messages(self) -> list[Message]:
        return list(self.s.reader.messages(self.name))

    def positions(self) -> set[tuple[int, int]]:
        return {(message.partition, message.offset) for message in self.messages()}

    def run(self, as_of: Instant = AS_OF) -> Outcome:
        self.world.set_now(as_of)
        return steps.run(self.s, self.name, as_of=as_of, approver=granted)

    def judged(self) -> str:
        """Plan, stage, gate and a person's word: all but publish. Returns the plan's id."""
        self.world.set_now(AS_OF)
        plan_id = steps.plan(self.s, self.name, as_of=AS_OF).plan.plan_id
        steps.stage(self.s, plan_id)
        if steps.gate(self.s, plan_id).judgement == "needs_approval":
            steps.approve(self.s, plan_id, granted=True, by="tester", text="as expected")
        return plan_id


def case(make_world: MakeWorld, *, partitions: int = 1, segment_bytes: int = 1000) -> Case:
    world = make_world(SERVER)
    name = TopicName(stream=f"{world.scratch}.contract" if world.scratch else "contract", topic=f"t{random.getrandbits(64):x}")
    own = {"message_expiry": EXPIRY_SECONDS, "segment_size_bytes": segment_bytes}
    create_topic(world.services, name, partitions=partitions, settings=own)
    return Case(world=world, name=name)


def filled(make_world: MakeWorld, log: Log) -> Case:
    made = case(make_world, partitions=log.partitions, segment_bytes=log.segment_bytes)
    for batch, seals in zip(log.batches, log.seals, strict=True):
        made.append(*batch)
        for partition in seals:
            made.world.writer.seal(made.name, partition)
    ends = made.s.reader.log(made.name).end_offsets
    for progress in log.consumers:
        offset = min(progress.offset, ends[progress.partition] - 1)
        if offset >= 0:
            made.s.ledger.commit(made.name, progress.consumer, progress.partition, offset, progress.at, end_offset=ends[progress.partition])
    return made


def at(seconds: float, *, partition: int = 0, segment: int | None = None, value: bytes = b"v") -> NewMessage:
    return NewMessage(append_time=Instant(round(seconds * SECOND)), key=b"k", value=value, partition=partition, segment=segment)


@pytest.fixture
def old_and_new(make_world: MakeWorld) -> Case:
    """Offsets 0 to 2 expired in two segments, 3 and 4 live in a third."""
    made = case(make_world)
    made.append(at(1, segment=0), at(2, segment=0), at(3, segment=2), at(99, segment=3), at(100, segment=3))
    return made


@generated
class TestGenerated:
    """Properties over generated logs: many in memory, a few where each costs seconds."""

    def test_what_goes_is_what_the_rules_say_and_counts_add_up(self, make_world: MakeWorld, store_kind: str) -> None:
        @given(logs())
        @effort(store_kind, 60, on_tables=4)
        def holds(log: Log) -> None:
            made = filled(make_world, log)
            before = made.messages()
            progress: list[Progress] = list(made.s.ledger.consumers(made.name))
            expected = expired_by_the_rules(
                before, progress, expiry_us=EXPIRY_SECONDS * SECOND, consumer_expiry_us=50 * SECOND, as_of=AS_OF
            )
            ends = dict(made.s.reader.log(made.name).end_offsets)
            outcome = made.run()
            after = made.messages()
            positions = {(message.partition, message.offset) for message in before}
            assert made.positions() == positions - expected
            assert [message for message in before if (message.partition, message.offset) not in expected] == after
            assert outcome.name == ("published" if expected else "no_op")
            assert outcome.rows_in == len(before)  # P9
            assert outcome.rows_kept == len(after)
            assert outcome.removed_rows == len(expected)
            assert dict(made.s.reader.log(made.name).end_offsets) == ends
            # P1: a second run changes nothing.
            again = made.run()
            assert again.name == "no_op"
            assert made.messages() == after

        holds()

    def test_batches_may_be_cut_anywhere(self, make_world: MakeWorld, store_kind: str) -> None:  # P12
        @given(logs(), st.randoms(use_true_random=False))
        @effort(store_kind, 30, on_tables=1)
        def holds(log: Log, draw: random.Random) -> None:
            one = case(make_world, partitions=log.partitions, segment_bytes=log.segment_bytes)
            many = case(make_world, partitions=log.partitions, segment_bytes=log.segment_bytes)
            messages = [message for batch in log.batches for message in batch]
            one.append(*messages)
            for part in _cut(messages, draw):
                many.append(*part)
            assert one.messages() == many.messages()
            assert one.run().removed == many.run().removed
            assert one.messages() == many.messages()

        holds()


def _cut(messages: list[NewMessage], draw: random.Random) -> Iterator[list[NewMessage]]:
    rest = messages
    while rest:
        size = draw.randint(1, len(rest))
        yield rest[:size]
        rest = rest[size:]


def test_nothing_is_seen_before_publish(old_and_new: Case) -> None:
    before = old_and_new.messages()
    old_and_new.judged()
    assert old_and_new.messages() == before


def test_appends_between_plan_and_publish_survive_whatever_their_time(old_and_new: Case) -> None:  # DEL-4
    plan_id = old_and_new.judged()
    # As old as what goes: a commit that judged again by a predicate would take these too.
    old_and_new.append(at(1), at(2))
    assert isinstance(steps.publish(old_and_new.s, plan_id), Published)
    assert steps.verify(old_and_new.s, plan_id).name == "published"
    assert old_and_new.positions() == {(0, 3), (0, 4), (0, 5), (0, 6)}
    assert old_and_new.s.reader.log(old_and_new.name).end_offsets == {0: 7}


def test_appends_to_the_segment_that_is_being_sealed_survive(make_world: MakeWorld) -> None:
    made = case(make_world)
    made.append(at(1), at(2))
    plan_id = made.judged()
    made.append(at(3))
    assert isinstance(steps.publish(made.s, plan_id), Published)
    assert steps.verify(made.s, plan_id).name == "published"
    assert made.positions() == {(0, 2)}
    assert made.s.reader.log(made.name).end_offsets == {0: 3}
    assert made.run(Instant(AS_OF + 1)).removed == (("expiry", 1),)
    assert made.positions() == set()
    made.append(at(200))
    assert made.positions() == {(0, 3)}


def test_another_writers_delete_refuses_the_plan_and_the_run_plans_again(old_and_new: Case) -> None:
    plan_id = old_and_new.judged()
    old_and_new.world.writer.foreign_delete(old_and_new.name, [(0, 4)])
    with pytest.raises(PlanConflict):
        steps.publish(old_and_new.s, plan_id)
    assert old_and_new.positions() == {(0, 0), (0, 1), (0, 2), (0, 3)}
    assert old_and_new.run(Instant(AS_OF + 1)).name == "published"
    assert old_and_new.positions() == {(0, 3)}


def test_a_plan_is_published_once(old_and_new: Case) -> None:  # DEL-5
    plan_id = old_and_new.judged()
    first = steps.publish(old_and_new.s, plan_id)
    marker = old_and_new.s.reader.marker(old_and_new.name)
    assert steps.publish(old_and_new.s, plan_id) == first
    assert old_and_new.s.reader.marker(old_and_new.name) == marker
    outcome = steps.verify(old_and_new.s, plan_id)
    assert steps.publish(old_and_new.s, plan_id) == outcome
    assert steps.verify(old_and_new.s, plan_id) == outcome


def test_an_interval_that_was_published_reports_its_first_plan(old_and_new: Case) -> None:
    first = old_and_new.run()
    again = old_and_new.run()
    assert (first.name, again.name) == ("published", "no_op")
    assert again.first_plan_id == first.plan_id


def test_a_blocked_plan_leaves_everything_as_it_was(old_and_new: Case) -> None:  # DEL-2, DEL-3
    before = old_and_new.messages()
    old_and_new.world.set_now(AS_OF)
    plan_id = steps.plan(old_and_new.s, old_and_new.name, as_of=AS_OF).plan.plan_id
    steps.stage(old_and_new.s, plan_id)
    store = old_and_new.s.stores.log

    class Lying:
        """Evidence that shows one file too few: something else than the plan was staged."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def evidence(self, *_: object) -> dict[str, object]:
            return {}

    lying = replace(old_and_new.s, stores=replace(old_and_new.s.stores, log=Lying()))  # type: ignore[arg-type]  # it has all that MessageStore has
    assert steps.gate(lying, plan_id).judgement == "blocked"
    outcome = steps.publish(old_and_new.s, plan_id)
    assert isinstance(outcome, Outcome)
    assert outcome.name == "blocked"
    assert old_and_new.messages() == before


def test_a_refusal_leaves_everything_as_it_was(old_and_new: Case) -> None:
    before = old_and_new.messages()
    old_and_new.world.set_now(AS_OF)
    outcome = steps.run(old_and_new.s, old_and_new.name, as_of=AS_OF, approver=lambda _plan, _report: (False, "tester", "keep it"))
    assert outcome.name == "refused"
    assert "keep it" in outcome.detail
    assert old_and_new.messages() == before


def test_a_changed_setting_refuses_the_plan(old_and_new: Case) -> None:
    plan_id = old_and_new.judged()
    old_and_new.s.topics.alter(old_and_new.name, {"message_expiry": 1000})
    with pytest.raises(PlanConflict, match="settings"):
        steps.publish(old_and_new.s, plan_id)
    assert old_and_new.run(Instant(AS_OF + 1)).name == "no_op"
    assert len(old_and_new.positions()) == 5


def test_a_question_that_nobody_answers_lapses(old_and_new: Case) -> None:
    old_and_new.world.set_now(AS_OF)
    asked = steps.run(old_and_new.s, old_and_new.name, as_of=AS_OF)
    assert asked.name == "needs_approval"
    still = steps.run(old_and_new.s, old_and_new.name, as_of=Instant(AS_OF + 1))
    assert (still.name, still.plan_id) == ("needs_approval", asked.plan_id)
    later = Instant(AS_OF + 86_401 * SECOND)
    old_and_new.world.set_now(later)
    asked_again = steps.run(old_and_new.s, old_and_new.name, as_of=later)
    assert asked_again.plan_id != asked.plan_id
    assert asked.plan_id is not None
    closed = old_and_new.s.ledger.record(asked.plan_id).outcome
    assert closed is not None
    assert closed.name == "lapsed"


def test_due_is_what_a_plan_would_remove(old_and_new: Case) -> None:
    from message_lifecycle.app.due import due

    def is_due(as_of: Instant) -> bool:
        old_and_new.world.set_now(as_of)
        return due(old_and_new.s, [old_and_new.name], as_of=as_of)[0].due

    assert not is_due(Instant(5 * SECOND))
    assert is_due(AS_OF)
    old_and_new.run()
    assert not is_due(AS_OF)
    old_and_new.append(at(101))
    assert not is_due(Instant(110 * SECOND)), "a table that merely differs is not due"
    assert is_due(Instant(111 * SECOND))
    old_and_new.s.ledger.commit(old_and_new.name, "slow", 0, 3, Instant(111 * SECOND), end_offset=6)
    assert not is_due(Instant(111 * SECOND))
    old_and_new.s.ledger.commit(old_and_new.name, "slow", 0, 5, Instant(111 * SECOND), end_offset=6)
    assert is_due(Instant(111 * SECOND))


def test_an_answer_after_the_question_lapsed_publishes_nothing(old_and_new: Case) -> None:  # DEL-1
    old_and_new.world.set_now(AS_OF)
    asked = steps.run(old_and_new.s, old_and_new.name, as_of=AS_OF)
    assert asked.plan_id is not None
    old_and_new.world.set_now(Instant(AS_OF + 86_401 * SECOND))
    steps.approve(old_and_new.s, asked.plan_id, granted=True, by="tester", text="too late")
    outcome = steps.publish(old_and_new.s, asked.plan_id)
    assert isinstance(outcome, Outcome)
    assert outcome.name == "lapsed"
    assert len(old_and_new.positions()) == 5


def test_a_plan_that_gave_way_can_be_planned_again(old_and_new: Case) -> None:
    """The same facts make the same plan: with the same id it must still be possible to carry it out."""
    plan_id = old_and_new.judged()
    old_and_new.s.topics.alter(old_and_new.name, {"max_overdue": 600})
    with pytest.raises(PlanConflict):
        steps.publish(old_and_new.s, plan_id)
    steps.close(old_and_new.s, old_and_new.s.ledger.record(plan_id).plan, "superseded", "settings changed")
    old_and_new.s.topics.alter(old_and_new.name, {"max_overdue": None})
    assert old_and_new.run().name == "published"
    assert old_and_new.positions() == {(0, 3), (0, 4)}


def overtaken(case: Case, monkeypatch: pytest.MonkeyPatch, meets: type[PlanConflict] | type[NotReady], *, said: bool) -> None:
    """Where the next run would ask the gate, another has committed the same plan, and `said` so; or not yet."""

    def gate(s: Services, plan_id: str) -> GateReport:
        monkeypatch.undo()
        report = steps.gate(s, plan_id)
        if report.judgement == "needs_approval":
            steps.approve(s, plan_id, granted=True, by="another", text="as expected")
        steps.publish(s, plan_id)
        if said:
            steps.verify(s, plan_id)
        raise PlanConflict(plan_id, "what was staged is gone") if meets is PlanConflict else NotReady(plan_id, "closed", "an open plan")

    monkeypatch.setattr(steps, "gate", gate)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("meets", [PlanConflict, NotReady])
def test_a_run_that_another_has_overtaken_ends_as_that_one(
    old_and_new: Case, monkeypatch: pytest.MonkeyPatch, meets: type[PlanConflict] | type[NotReady], said: bool
) -> None:
    overtaken(old_and_new, monkeypatch, meets, said=said)
    assert old_and_new.run().name == "published"
    assert old_and_new.positions() == {(0, 3), (0, 4)}
    assert [outcome.name for _, outcome in old_and_new.s.ledger.history(old_and_new.name)] == ["published"]


def test_a_task_that_another_has_overtaken_closes_nothing(old_and_new: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    old_and_new.world.set_now(AS_OF)
    plan_id = steps.plan(old_and_new.s, old_and_new.name, as_of=AS_OF, run="r").plan.plan_id
    steps.stage(old_and_new.s, plan_id)
    overtaken(old_and_new, monkeypatch, PlanConflict, said=False)
    with pytest.MonkeyPatch.context() as of_tasks:
        of_tasks.setattr("message_lifecycle.app.applications.lake", lambda **_: old_and_new.s)
        gate_all(run="r")
    outcome = old_and_new.s.ledger.record(plan_id).outcome
    assert outcome is not None and outcome.name == "published"


def test_a_topic_that_is_gone_holds_up_no_other(old_and_new: Case) -> None:
    from message_lifecycle.app.due import due

    old_and_new.world.set_now(AS_OF)
    gone = TopicName(stream=old_and_new.name.stream, topic="gone")
    answers = due(old_and_new.s, [gone, old_and_new.name], as_of=AS_OF)
    assert [answer.due for answer in answers] == [False, True]
    assert "UnknownTopic" in answers[0].reason


def test_an_empty_plan_is_no_result_before_a_gate_has_seen_it(make_world: MakeWorld) -> None:
    """Overdue messages beside an empty plan are what the gate is for (DEL-2): verify must not come first."""
    made = case(make_world)
    made.append(at(100))
    made.world.set_now(AS_OF)
    plan_id = steps.plan(made.s, made.name, as_of=AS_OF).plan.plan_id
    with pytest.raises(NotReady):
        steps.verify(made.s, plan_id)


def test_a_tightened_setting_still_asks_after_a_run_that_removed_nothing(make_world: MakeWorld) -> None:  # DEL-3
    made = case(make_world)
    made.append(*[at(100, segment=0)] * 3)
    made.s.topics.alter(made.name, {"message_expiry": EXPIRY_SECONDS - 5})
    assert made.run().name == "no_op"
    made.append(at(93, segment=3), *[at(200, segment=4)] * 9)
    later = Instant(106 * SECOND)
    made.world.set_now(later)
    assert steps.run(made.s, made.name, as_of=later).name == "needs_approval"
