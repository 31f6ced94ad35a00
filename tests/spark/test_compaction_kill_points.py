"""A compaction killed at any step, run twice at once or overtaken leaves what an uninterrupted one leaves (CMP-4, CMP-10, DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import hunt, sample
from tests.engines import change_tables
from tests.logs import SECOND
from tests.spark.kill_points import Run, dies, is_killed, next_run_finishes, published, start_dying, two_at_once_publish_once, with_ledger
from tests.spark.lake import LEDGER
from tests.spark.tables import unheard
from tests.verdicts import by, let_pass

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Scheduled, preview
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.sparing import horizons_of
from message_lifecycle.app.topics import alter_topic, create_topic, update_latest_view
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import CommitUnknown, CompactionRunning, PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewStore
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, PLAN_ID
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF, LATER = Instant(100 * SECOND), Instant(200 * SECOND)
LATEST = [(1, b"a", b"2"), (2, b"b", b"1")]


def message(key: bytes, value: bytes | None, *, time: int = 1, segment: int | None = None) -> NewMessage:
    return NewMessage(append_time=Instant(time * SECOND), key=key, value=value, segment=segment)


class Topic:
    """A topic with two keys, one of them twice, and a ledger of its own."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.s = replace(configured_lake(), ledger=open_ledger(ledger_url))
        self.writer = IcebergWriter(engine_of_process)
        self.name = TopicName(stream=f"kill-{token_hex(4)}", topic="messages")
        create_topic(self.s, self.name, partitions=1, settings={"message_expiry": 500, "max_removed_fraction": 1.0})
        self.append(message(b"a", b"1", segment=0), message(b"a", b"2", segment=1), message(b"b", b"1", segment=1))

    def append(self, *messages: NewMessage) -> None:
        self.writer.append(self.name, messages, policy_of(self.s, self.name))

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "compaction", ledger_url=self.ledger_url)

    def run(self, as_of: Instant = AS_OF, work: Scheduled = "compaction") -> Outcome:
        return steps.run(self.s, self.name, as_of=as_of, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)

    def judged(self, as_of: Instant = AS_OF, work: Scheduled = "compaction") -> Plan:
        """Planned, staged and let pass by the gate, ready to be published."""
        plan = steps.plan(self.s, self.name, as_of=as_of, work=work).plan
        steps.stage(self.s, plan.plan_id)
        steps.mark(self.s, plan.plan_id)
        if steps.gate(self.s, plan.plan_id).judgement == "needs_approval":
            steps.approve(self.s, plan.plan_id, granted=True, by="tester", text="as expected")
        return plan

    def read(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(m.offset, m.key, m.value) for m in read_compacted(self.s, self.name)]

    def plans(self) -> list[str]:
        table = Tables().load(self.name, kind=COMPACTED)
        return [plan_id for snapshot in table.snapshots() if snapshot.summary and (plan_id := snapshot.summary[PLAN_ID])]

    def is_as_after_one_run(self) -> None:
        assert self.read() == LATEST
        assert horizons_of(self.s, self.name) == {0: 2}
        plans = self.plans()
        assert len(plans) == 1
        assert set(Tables().load(self.name, kind=COMPACTED).metadata.refs) == {"main"}, "what was staged is gone"
        assert published(self.s, self.name) == [(plans[0], (("superseded", 1),))]


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample(("after_stage", "before_commit", "inside_commit", "after_commit"), "inside_commit", "after_commit"))
def test_a_killed_run_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    assert (topic.s.stores.view.view(topic.name) is None) is (step != "after_commit"), "nothing of it is seen before the commit"
    next_run_finishes(topic)


@hunt
def test_two_runs_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)


def test_a_second_compaction_is_refused_while_one_works(topic: Topic) -> None:
    plan = steps.plan(topic.s, topic.name, as_of=AS_OF, work="compaction").plan
    with topic.s.ledger.lock(topic.name, purpose="compaction"), pytest.raises(CompactionRunning):
        steps.stage(topic.s, plan.plan_id)
    assert topic.run().name == "published"
    topic.is_as_after_one_run()


def test_of_two_staged_compactions_the_second_is_refused_at_the_commit(topic: Topic) -> None:
    first = topic.judged()
    topic.append(message(b"a", b"3"))
    second = preview(topic.s, topic.name, as_of=LATER, work="compaction")
    staged = topic.s.stores.view.stage(second)
    assert steps.publish(topic.s, first.plan_id) is not None
    with pytest.raises(PlanConflict, match="for the first time since"):
        topic.s.stores.view.publish(let_pass(second, staged), by(LEDGER))
    topic.s.stores.view.discard(second)
    assert steps.verify(topic.s, first.plan_id).name == "published"
    assert topic.plans() == [first.plan_id]
    assert topic.read() == [*LATEST, (3, b"a", b"3")]


def test_a_commit_on_the_view_inside_the_commit_refuses_it(topic: Topic) -> None:  # DEL-4
    """Any at all: what was judged is the view as it was. The first attempt passes and comes too late, the second asks again."""
    assert topic.run().name == "published"
    topic.append(message(b"a", b"3"))
    plan, asked = topic.judged(LATER), list[str]()

    def step(reached: str) -> None:
        if reached == "inside_commit":
            asked.append(reached)
            if len(asked) == 1:
                engine_of_process().table(topic.name, kind=COMPACTED).newAppend().commit()

    s = replace(topic.s, stores=replace(topic.s.stores, view=IcebergViewStore(engine_of_process, steps=step)))
    with pytest.raises(PlanConflict, match="the compacted view was changed first"):
        steps.publish(s, plan.plan_id)
    assert len(asked) == 2
    assert plan.plan_id not in topic.plans()
    topic.s.stores.view.discard(plan)


def losing(table: Java, _kind: str, *, made: bool) -> Java:
    """The topic's table, whose answers to commits are lost."""
    return unheard(table, made=made, by="CommitStateUnknownException")


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_commit_of_unknown_result_is_looked_for_and_never_repeated(topic: Topic, made: bool) -> None:  # DEL-4
    plan = topic.judged()
    with pytest.MonkeyPatch.context() as patched:
        change_tables(patched, partial(losing, made=made))
        if made:
            assert steps.publish(topic.s, plan.plan_id) is not None
        else:
            with pytest.raises(CommitUnknown):
                steps.publish(topic.s, plan.plan_id)
    assert topic.run().name == ("no_op" if made else "published")
    topic.is_as_after_one_run()


def test_what_is_appended_after_the_plan_comes_in_with_the_next_run(topic: Topic) -> None:  # DEL-4
    plan = topic.judged()
    topic.append(message(b"b", b"2"), message(b"c", b"1"))
    steps.publish(topic.s, plan.plan_id)
    assert steps.verify(topic.s, plan.plan_id).name == "published"
    assert topic.read() == [*LATEST, (3, b"b", b"2"), (4, b"c", b"1")]
    assert dict(topic.run(LATER).removed) == {"superseded": 1}
    assert topic.read() == [LATEST[0], (3, b"b", b"2"), (4, b"c", b"1")]


def test_a_cleaner_run_planned_before_the_first_compaction_is_refused(topic: Topic) -> None:  # CMP-9
    topic.append(message(b"z", b"1", time=599, segment=3))
    at = Instant(600 * SECOND)
    plan = topic.judged(at, "message_cleaner")
    assert plan.expected.removed_rows == 3
    # By a run that the ledger does not know of: one that it knew of would have closed the cleaner's plan.
    compaction = preview(topic.s, topic.name, as_of=AS_OF, work="compaction")
    staged = topic.s.stores.view.stage(compaction)
    topic.s.stores.view.publish(let_pass(compaction, staged), by(topic.s.ledger.next_identity(topic.name)))
    with pytest.raises(PlanConflict, match="compacted since it was planned"):
        steps.publish(topic.s, plan.plan_id)
    assert len(list(topic.s.reader.messages(topic.name))) == 4


PAST_LAG = Instant(600 * SECOND)


@pytest.fixture
def behind(topic: Topic) -> Topic:
    """Compacted up to offset 2, and then no more: past that a newer `a`, which is dead by its TTL, and a `c`."""
    assert topic.run().name == "published"
    settings = {"message_expiry": 0, "allow_msg_ttl": True, "max_compaction_lag": 60}
    alter_topic(topic.s, topic.name, settings)
    dead = NewMessage(append_time=Instant(200 * SECOND), key=b"a", value=b"3", headers=(("Nats-TTL", b"1s"),))
    topic.append(dead, message(b"c", b"1", time=300))
    return topic


def test_behind_its_lag_a_killed_cleaner_never_shows_an_older_value(behind: Topic) -> None:  # CMP-9, P3
    # The first commit is the view's.
    is_killed(start_dying(behind.name, PAST_LAG, "after_commit", ledger_url=behind.ledger_url))
    assert behind.read() == [(2, b"b", b"1"), (3, b"a", b"3"), (4, b"c", b"1")], "gone from the view, and still in the log"
    outcome = behind.run(PAST_LAG, "message_cleaner")
    assert (outcome.name, outcome.removed) == ("published", (("ttl", 1),))
    assert behind.read() == [(2, b"b", b"1"), (4, b"c", b"1")]
    assert behind.run(PAST_LAG, "message_cleaner").name == "no_op"
    assert behind.run(PAST_LAG).name == "published"
    assert behind.read() == [(2, b"b", b"1"), (4, b"c", b"1")]


def test_behind_its_lag_a_topic_shows_the_same_to_sql(behind: Topic) -> None:  # CMP-6, CMP-9
    view = update_latest_view(behind.s, behind.name)
    plan = behind.judged(PAST_LAG, "message_cleaner")
    behind.append(message(b"b", b"2", time=500))
    steps.publish(behind.s, plan.plan_id)
    shown = spark_session("tests").table(str(view)).select("offset").collect()
    assert sorted(row.offset for row in shown) == [2, 4, 5], "the view of SQL names the compacted table as it was before"
    assert steps.verify(behind.s, plan.plan_id).name == "published"
    assert behind.read() == [(2, b"b", b"1"), (4, b"c", b"1"), (5, b"b", b"2")]


def test_behind_its_lag_a_cleaner_is_refused_when_the_topic_was_compacted_after_all(behind: Topic) -> None:  # CMP-9
    plan = behind.judged(PAST_LAG, "message_cleaner")
    # By a run that the ledger does not know of, up to a time before the newest messages.
    compaction = preview(behind.s, behind.name, as_of=Instant(250 * SECOND), work="compaction")
    staged = behind.s.stores.view.stage(compaction)
    behind.s.stores.view.publish(let_pass(compaction, staged), by(behind.s.ledger.next_identity(behind.name)))
    with pytest.raises(PlanConflict, match="compacted since it was planned"):
        steps.publish(behind.s, plan.plan_id)
    assert [m.offset for m in behind.s.reader.messages(behind.name)] == [0, 1, 2, 3, 4]
