"""Verbs said again, and runs beside which others go on: markers are made once, what moved on meanwhile fails nobody, and what is being
published is not exchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.errors import CommitUnknown, NotReady
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, GateReport, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import PurgeKey, RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.memory import MemoryStore
from tests.errors import raises
from tests.logs import AS_OF, SECOND

NAME = TopicName(stream="test", topic="again")


def world(server: dict[str, Value] | None = None, **settings: Value) -> World:
    made = memory_world(server or {})
    create_topic(made.services, NAME, partitions=1, settings={"max_removed_fraction": 1.0, **settings})
    made.set_now(AS_OF)
    return made


def append(world: World, *messages: NewMessage) -> None:
    world.writer.append(NAME, messages, policy_of(world.services, NAME))


def one(time: int, *, key: bytes = b"k", segment: int | None = None, ttl: bytes | None = None) -> NewMessage:
    headers = () if ttl is None else (("Nats-TTL", ttl),)
    return NewMessage(append_time=Instant(time * SECOND), key=key, value=b"v", segment=segment, headers=headers)


@pytest.mark.parametrize("died_before_it_was_recorded", [False, True])
def test_markers_are_made_once_however_often_they_are_asked_for(died_before_it_was_recorded: bool) -> None:  # MRK-4
    w = world(max_age_seconds=1.0, subject_delete_marker_ttl=60)
    append(w, one(1, key=b"a"), one(1, key=b"b"), one(100, key=b"z"))
    s = w.services
    plan = steps.plan(s, NAME, as_of=AS_OF).plan
    steps.stage(s, plan.plan_id)
    first = steps.mark(s, plan.plan_id)
    if died_before_it_was_recorded:
        steps.stage(s, plan.plan_id)
    assert steps.mark(s, plan.plan_id) == first
    report = steps.gate(s, plan.plan_id)
    assert [check.id for check in report.blocking] == []


class Losing:
    """A store whose catalog does not say how a commit has ended."""

    def __init__(self, store: Any, *, made: bool) -> None:
        self._store, self._made = store, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def publish(self, *given: Any, **named: Any) -> None:
        if self._made:
            self._store.publish(*given, **named)
        raise CommitUnknown("publishing")


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_commit_of_unknown_result_leaves_its_plan_to_the_next_run(made: bool) -> None:  # DEL-4
    w = world(message_expiry=1)
    append(w, one(1, segment=0), one(99, segment=1), one(100, segment=1))
    s = w.services
    with pytest.raises(CommitUnknown):
        steps.run(replace(s, stores=replace(s.stores, log=Losing(s.stores.log, made=made))), NAME, as_of=AS_OF)
    open_ = s.ledger.open_plan(NAME)
    assert open_ is not None and open_.staged is not None, "nobody knows yet how it has ended, so nothing of it is taken away"
    outcome = steps.run(s, NAME, as_of=AS_OF)
    published = [(found.plan_id, found.removed) for _, found in s.ledger.history(NAME) if found.name == "published"]
    assert published == [(open_.plan.plan_id, (("expiry", 1),))], "once, by that very plan"
    assert (outcome.name, outcome.first_plan_id) == (("no_op", open_.plan.plan_id) if made else ("published", None))
    assert [message.offset for message in s.reader.messages(NAME)] == [1, 2]


class Beside:
    """A store beside whose verbs another run does something: before one of them, by its name."""

    def __init__(self, store: Any, verb: str, other: Callable[[], object]) -> None:
        self._store, self._verb, self._other = store, verb, other

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self._other()
        return getattr(self._store, name)


def with_log(s: Services, verb: str, other: Callable[[], object]) -> Services:
    return replace(s, stores=replace(s.stores, log=Beside(s.stores.log, verb, other)))


class BlockingGate:
    def judge(self, plan: Plan, staged: Any, *_: object) -> GateReport:
        check = Check(id="held", says="no hold", kind="rule", evaluated=True, passed=False, found="one row is held")
        return GateReport(plan_id=plan.plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(check,), figures=())


def judged(**settings: Value) -> tuple[World, str]:
    """A log with a plan that the gate has judged."""
    w = world(**{"message_expiry": 1, **settings})
    append(w, one(1, segment=0), one(99, segment=1), one(100, segment=1))
    plan_id = steps.plan(w.services, NAME, as_of=AS_OF).plan.plan_id
    steps.stage(w.services, plan_id)
    steps.gate(w.services, plan_id)
    return w, plan_id


def test_the_gate_of_another_run_does_not_end_what_is_being_published() -> None:  # DEL-1, DEL-4
    w, plan_id = judged()
    s = w.services

    def other() -> None:
        with pytest.raises(NotReady, match="publishing"):
            steps.gate(replace(s, gate=BlockingGate()), plan_id)

    assert isinstance(steps.publish(with_log(s, "publish", other), plan_id), Published)
    assert steps.verify(s, plan_id).name == "published"
    assert [message.offset for message in s.reader.messages(NAME)] == [1, 2]


def test_what_another_run_has_staged_anew_is_marked_before_it_is_judged() -> None:  # MRK-4
    """Without its markers it would be blocked, and with it the plan of both."""
    w = world(max_age_seconds=1.0, subject_delete_marker_ttl=60)
    append(w, one(1, key=b"a"), one(1, key=b"b"), one(100, key=b"z"))
    s = w.services
    plan_id = steps.plan(s, NAME, as_of=AS_OF).plan.plan_id
    steps.stage(s, plan_id)
    marked = steps.mark(s, plan_id)
    s.ledger.record_staged(replace(marked, markers=None))
    assert steps.gate(s, plan_id).judgement == "passed"
    assert s.ledger.record(plan_id).staged == marked


def test_what_another_run_stages_while_the_gate_looks_is_judged_instead() -> None:  # DEL-2
    w, plan_id = judged()
    s = w.services
    first = s.ledger.record(plan_id).staged
    assert first is not None
    other = replace(first, branch="of another run")

    class Slow:
        seen: ClassVar[list[Staged]] = []

        def judge(self, plan: Plan, staged: Staged, suite: Suite, evidence: Mapping[str, object]) -> GateReport:
            self.seen.append(staged)
            s.ledger.record_staged(other)
            return s.gate.judge(plan, staged, suite, evidence)

    assert steps.gate(replace(s, gate=Slow()), plan_id).judgement == "passed"
    record = s.ledger.record(plan_id)
    assert (Slow.seen, record.staged, record.state) == ([first, other], other, "passed")


def test_a_commit_that_the_table_has_lost_is_not_told_as_published() -> None:  # DEL-4
    """Its catalog was put back to a state from before; the ledger was not."""
    w, plan_id = judged()
    s, tables = w.services, cast(MemoryStore, w.services.topics).tables
    before = deepcopy(tables[NAME])
    steps.publish(s, plan_id)
    assert steps.verify(s, plan_id).name == "published"
    tables[NAME] = before
    with raises("CommitLost", match=plan_id[:12]):
        steps.run(s, NAME, as_of=AS_OF, run="again")
    assert not s.ledger.run_entries("again"), "the run tells nothing of what the plan once removed"
    assert [message.offset for message in s.reader.messages(NAME)] == [0, 1, 2]
    w.set_now(Instant(AS_OF + SECOND))
    again = steps.run(s, NAME, as_of=Instant(AS_OF + SECOND), approver=granted)
    assert again.name == "published"
    assert 0 not in [message.offset for message in s.reader.messages(NAME)]


@pytest.mark.parametrize("appended", [False, True], ids=["a quiet topic", "a topic that is written to"])
def test_an_undo_that_the_table_has_lost_is_told_and_made_again(appended: bool) -> None:  # DEL-4, DEL-7
    """Its catalog was put back to a state from before the undo, and from before what it was made from where somebody appended; the ledger was
    not."""
    w, plan_id = judged()
    s, tables = w.services, cast(MemoryStore, w.services.topics).tables
    steps.publish(s, plan_id)
    steps.verify(s, plan_id)
    before = deepcopy(tables[NAME])
    if appended:
        append(w, one(100))
    lost = steps.run(s, NAME, as_of=AS_OF, work=UndoPlan(plan_id=plan_id), approver=granted)
    assert lost.restored == 1
    s.ledger.release_undone(plan_id, by="ada", text="let it go")
    tables[NAME] = before
    if not appended:
        with raises("CommitLost"):
            steps.run(s, NAME, as_of=AS_OF, work=UndoPlan(plan_id=plan_id), approver=granted)
    assert [message.offset for message in s.reader.messages(NAME)] == [1, 2]
    again = steps.run(s, NAME, as_of=Instant(AS_OF + 1), work=UndoPlan(plan_id=plan_id), approver=granted)
    assert (again.name, again.restored) == ("published", 1)
    assert [message.offset for message in s.reader.messages(NAME)] == [0, 1, 2]
    (known,) = s.ledger.undone(NAME)
    assert (known.undone_by, known.released_at) == (again.plan_id, None), "what keeps it from going again names the undo that stands"
    assert steps.run(s, NAME, as_of=Instant(AS_OF + 2), work=UndoPlan(plan_id=plan_id), approver=granted).name == "no_op"
    assert s.ledger.undone_by(plan_id) == again.plan_id, "one that finds nothing to do takes nobody's place"


def test_a_compaction_that_an_older_catalog_has_lost_hinders_no_undo() -> None:  # DEL-7
    w = world(cleanup_policy="compact")
    s, tables = w.services, cast(MemoryStore, w.services.topics).tables
    append(w, one(1, key=b"z"))
    assert steps.run(s, NAME, as_of=AS_OF, work="compaction", approver=granted).name == "published"
    append(w, one(1, key=b"a"), one(2, key=b"a"), one(3, key=b"b"))
    plan_id = steps.run(s, NAME, as_of=AS_OF, work=RemoveMessages(positions=((0, 2),)), approver=granted).plan_id
    assert plan_id is not None
    before = deepcopy(tables[NAME])
    assert steps.run(s, NAME, as_of=Instant(AS_OF + 1), work="compaction", approver=granted).name == "published"
    with raises("LaterPlan"):
        steps.run(s, NAME, as_of=AS_OF, work=UndoPlan(plan_id=plan_id), approver=granted)
    tables[NAME] = before
    assert steps.run(s, NAME, as_of=AS_OF, work=UndoPlan(plan_id=plan_id), approver=granted).restored == 1


def granted(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
    return True, "tester", "as expected"


def test_what_another_run_has_judged_again_is_not_published_by_the_first_report() -> None:  # DEL-2
    """Its gate comes while the first waits for its turn, and has not closed the plan yet."""
    w, plan_id = judged()
    s = w.services
    record = s.ledger.record(plan_id)
    assert record.staged is not None
    s.ledger.record_report(record.staged, BlockingGate().judge(record.plan, record.staged))
    with pytest.raises(NotReady):
        steps._publish(s, record)
    assert [message.offset for message in s.reader.messages(NAME)] == [0, 1, 2]


def test_another_run_s_stage_of_a_compaction_does_not_replace_what_is_published() -> None:  # CMP-10, DEL-4
    w = world(cleanup_policy="compact")
    append(w, one(1, key=b"a"), one(2, key=b"a"), one(3, key=b"b"))
    s = w.services
    plan_id = steps.plan(s, NAME, as_of=AS_OF, work="compaction").plan.plan_id
    first = steps.stage(s, plan_id)
    assert first.view is not None
    steps.gate(s, plan_id)
    was = s.ledger.record(plan_id)

    class Again(Beside):
        """Its stage is another one: the first one's is no more to be found."""

        def stage(self, *given: Any) -> Any:
            staged = self._store.stage(*given)
            self._other()
            return replace(staged, view=replace(staged.view, snapshot_id=99))

    other = replace(s, stores=replace(s.stores, view=Again(s.stores.view, "", lambda: steps.publish(s, plan_id))))
    with pytest.raises(NotReady):
        steps.stage(other, plan_id)
    after = s.ledger.record(plan_id)
    assert (after.staged, after.report) == (was.staged, was.report)
    assert steps.verify(s, plan_id).name == "published"


class Killed(BaseException):
    """What no verb catches."""


def died() -> tuple[World, str]:
    """Of a run that has said that it publishes, and not committed."""
    w, plan_id = judged()

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        steps.publish(with_log(w.services, "publish", killed), plan_id)
    assert w.services.ledger.record(plan_id).state == "publishing"
    return w, plan_id


def test_a_run_that_dies_before_its_commit_leaves_its_plan_to_the_next_one() -> None:  # DEL-4
    w, plan_id = died()
    s = w.services
    assert isinstance(steps.publish(s, plan_id), Published)
    assert steps.verify(s, plan_id).name == "published"
    assert [message.offset for message in s.reader.messages(NAME)] == [1, 2]


def test_verbs_said_again_of_a_plan_that_is_being_published_change_nothing_of_it() -> None:
    w, plan_id = died()
    s = w.services
    was = s.ledger.record(plan_id)
    assert steps.stage(s, plan_id) == was.staged
    with pytest.raises(NotReady, match="published"):
        steps.verify(s, plan_id)
    assert s.ledger.record(plan_id) == was
    assert steps.run(s, NAME, as_of=AS_OF).plan_id == plan_id
    assert [found.name for _, found in s.ledger.history(NAME)] == ["published"]


def hold(w: World) -> None:
    place_hold(w.services, NAME, by="ada", why="case 7", offsets=HeldRange(partition=0, first=0, last=0))


def settings(w: World) -> None:
    w.services.topics.alter(NAME, {"message_expiry": 200})


@pytest.mark.parametrize("between", [hold, settings])
def test_what_came_after_the_word_ends_the_plan_as_before_it(between: Callable[[World], None]) -> None:  # DEL-3, DEL-8
    w, plan_id = died()
    s = w.services
    between(w)
    steps.run(s, NAME, as_of=AS_OF)
    outcome = s.ledger.record(plan_id).outcome
    assert outcome is not None and outcome.name == "superseded"
    assert [message.offset for message in s.reader.messages(NAME)] == [0, 1, 2]


def test_a_later_interval_takes_the_place_of_what_died_before_its_commit() -> None:  # DEL-1
    w, plan_id = died()
    s = w.services
    append(w, one(100, segment=2))
    later = Instant(AS_OF + SECOND)
    w.set_now(later)
    outcome = steps.run(s, NAME, as_of=later, approver=lambda *_: (True, "tester", "as expected"))
    first = s.ledger.record(plan_id).outcome
    assert first is not None and (first.name, outcome.name) == ("superseded", "published"), outcome.detail
    assert 0 not in [message.offset for message in s.reader.messages(NAME)]


def test_a_request_is_not_answered_with_the_plan_of_another_that_waits() -> None:  # DEL-1
    """What waits for a person is of that request alone, and gives way to the next one."""
    w = world(max_removed_fraction=0.1)
    append(w, *(one(1, key=b"k%d" % at) for at in range(4)))
    s = w.services
    first, second = (steps.run(s, NAME, as_of=AS_OF, work=RemoveMessages(positions=((0, at),))) for at in (0, 1))
    assert (first.name, second.name) == ("needs_approval", "needs_approval")
    plans = [s.ledger.record(outcome.plan_id or "") for outcome in (first, second)]
    assert [[action.offsets for action in record.plan.log_commit.mark] for record in plans] == [["0"], ["1"]]
    assert [record.outcome and record.outcome.name for record in plans] == ["lapsed", None]


@pytest.mark.parametrize("work", [PurgeKey(key=b"nobody's"), "message_cleaner", "purge_compacted"])
@pytest.mark.parametrize("run", [None, "another/run"])
def test_what_changes_nothing_leaves_anothers_question_open(work: Work, run: str | None) -> None:  # DEL-3
    w = world(max_removed_fraction=0.1, subject_delete_marker_ttl=60, cleanup_policy="compact,delete")
    append(w, *(one(1, key=b"k%d" % at) for at in range(4)))
    s = w.services
    asked = steps.run(s, NAME, as_of=AS_OF, work=RemoveMessages(positions=((0, 0),)))
    outcome = steps.run(s, NAME, as_of=AS_OF, run=run, work=work)
    assert (asked.name, outcome.name) == ("needs_approval", "no_op"), outcome.detail
    left = s.ledger.open_plan(NAME)
    assert left is not None and left.plan.plan_id == asked.plan_id
    steps.approve(s, left.plan.plan_id, granted=True, by="ada", text="seen")
    steps.publish(s, left.plan.plan_id)
    assert steps.verify(s, left.plan.plan_id).name == "published"


def test_what_a_request_takes_from_the_view_alone_is_told_in_no_count_of_the_log() -> None:  # CNT-1
    w = world(cleanup_policy="compact")
    append(w, one(1, key=b"a", segment=0), one(1, key=b"b", segment=1))
    w.writer.seal(NAME, 0)
    append(w, one(1, key=b"z"))
    s = w.services
    for work in ("compaction", "purge_compacted"):
        steps.run(s, NAME, as_of=AS_OF, work=work, approver=lambda *_: (True, "tester", "as expected"))
    assert [m.offset for m in s.reader.messages(NAME)] == [2]
    plan_id = steps.plan(s, NAME, as_of=AS_OF, work=PurgeKey(key=b"a")).plan.plan_id
    steps.stage(s, plan_id)
    steps.gate(s, plan_id)
    done = steps.publish(s, plan_id)
    assert isinstance(done, Published)
    outcome = steps.verify(s, plan_id)
    assert (done.removed, outcome.name, outcome.removed, outcome.rows_in, outcome.rows_kept) == ((), "published", (), 1, 1)
    view = s.stores.view.view(NAME)
    assert view is not None
    assert [row.message.key for row in s.stores.view.view_rows(NAME, view)] == [b"b", b"z"]


def test_a_consumer_that_moves_on_after_the_plan_does_not_fail_it() -> None:  # DEL-6
    w = world(message_expiry=1)
    append(w, *(one(1, segment=offset) for offset in range(4)))
    s = w.services
    s.ledger.commit(NAME, "slow", 0, 0, None)
    plan = steps.plan(s, NAME, as_of=AS_OF).plan
    steps.stage(s, plan.plan_id)
    steps.gate(s, plan.plan_id)
    steps.publish(s, plan.plan_id)
    s.ledger.commit(NAME, "slow", 0, 2, None)
    assert steps.verify(s, plan.plan_id).name == "published"


def test_what_the_budget_leaves_of_segments_that_a_consumer_holds_is_more() -> None:  # EXP-7
    w = world({"max_segments": 1}, message_expiry=1, allow_msg_ttl=True)
    append(w, *(one(1, segment=offset, ttl=b"1s") for offset in range(3)), one(1, segment=3))
    w.services.ledger.commit(NAME, "slow", 0, 0, None)
    done = steps.run(w.services, NAME, as_of=AS_OF)
    assert (done.name, done.more, done.detail) == ("published", True, "")
    assert [(held.holder, held.rows) for held in done.held] == [("consumer", 1), ("budget", 1)]
