"""Snapshots and purges killed at any step, run twice at once or overtaken: extra data at the worst, never missing data (SNP-7, DEL-4, DEL-5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import hunt, sample
from tests.engines import change_tables
from tests.spark.documents import AS_OF, KINDS, LATER, Documents, text_at, typed
from tests.spark.kill_points import Run, dies, next_run_finishes, published, start_dying, two_at_once_publish_once, with_ledger
from tests.spark.lake import LEDGER, tables
from tests.spark.tables import unheard
from tests.verdicts import by, let_pass

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import CommitUnknown, LifecycleError, PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg.documents.store import IcebergDocuments
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import PLAN_ID, SNAPSHOTS

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

COMMITS = ("snapshots_commit", "purge_commit")
STEPS = ("after_stage", *(f"{when}_{commit}" for commit in COMMITS for when in ("before", "inside", "after")))
KEPT = tuple(f"{when}_{commit}" for commit in COMMITS for when in ("inside", "after"))
BETWEEN = ("after_snapshots_commit", "before_purge_commit", "inside_purge_commit")
ANOTHER = "another plan"


class Topic(Documents):
    """A document of twelve changes, of which seven can go, and one of nine, of which none can."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        super().__init__(replace(configured_lake(), ledger=open_ledger(ledger_url)), f"kill-{token_hex(4)}")
        self.add(*typed("one", 1, 12), *typed("two", 1, 9))
        self.sync("one", a=8, b=12)

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "snapshot_with_purge", ledger_url=self.ledger_url)

    def judged(self) -> Plan:
        """Planned, staged and let pass by the gate, ready to be published."""
        plan, _ = self.staged()
        if steps.gate(self.s, plan.plan_id).judgement == "needs_approval":
            steps.approve(self.s, plan.plan_id, granted=True, by="tester", text="as expected")
        return plan

    def is_whole(self) -> None:
        """A reader at any moment: what is left goes on to the end without a hole, from a snapshot that is there."""
        left, snapshots = self.stored("one"), self.snapshots("one")
        assert left == list(range(left[0], 13))
        assert left[0] == 1 or snapshots == [(12, 1, text_at(12))]
        assert self.stored("two") == list(range(1, 10))

    def is_as_after_one_run(self) -> None:
        self.is_whole()
        assert self.stored("one") == [8, 9, 10, 11, 12]
        assert (self.snapshots("one"), self.epoch("one"), self.epoch("two")) == ([(12, 1, text_at(12))], 1, 0)
        assert self.branches() == {"main"}, "what was staged is gone"
        (plan_id,) = self.plans("")
        assert self.plans(SNAPSHOTS) == [plan_id]
        assert published(self.s, self.name) == [(plan_id, (("purged_synced", 7),))]


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample(STEPS, *KEPT))
def test_a_killed_run_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    topic.is_whole()
    assert (topic.stored("one")[0] == 1) is (step != "after_purge_commit"), "nothing goes before the purge"
    assert bool(topic.snapshots("one")) is (step in BETWEEN or step == "after_purge_commit")
    if step in BETWEEN:
        # As the task of an orchestrator does it that is tried again: by the plan's id.
        record = topic.s.ledger.open_plan(topic.name)
        assert record is not None
        assert steps.publish(topic.s, record.plan.plan_id) is not None
        assert steps.verify(topic.s, record.plan.plan_id).name == "published"
        topic.is_as_after_one_run()
    else:
        next_run_finishes(topic)


def test_a_run_that_died_between_its_commits_may_be_planned_anew(topic: Topic) -> None:
    """Then the epoch is raised a second time, and nothing else is different."""
    plan = topic.judged()
    topic.s.stores.snapshots.publish(verdict_of(topic, plan), by(LEDGER))
    assert topic.run().name == "published"
    topic.is_whole()
    assert (topic.stored("one"), topic.epoch("one")) == ([8, 9, 10, 11, 12], 2)
    assert topic.branches() == {"main"}


def verdict_of(topic: Topic, plan: Plan) -> Verdict:
    staged = topic.s.ledger.record(plan.plan_id).staged
    assert staged is not None
    return let_pass(plan, staged)


@hunt
def test_two_runs_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)


def test_of_two_staged_plans_the_second_is_refused_at_the_commit(topic: Topic) -> None:
    first = topic.judged()
    topic.add(*typed("two", 10, 10))
    second = preview(topic.s, topic.name, as_of=LATER, work="snapshot_with_purge")
    staged = topic.s.stores.snapshots.stage(second)
    assert steps.publish(topic.s, first.plan_id) is not None
    verdict = let_pass(second, staged)
    with pytest.raises(PlanConflict, match="have changed since it was planned"):
        topic.s.stores.snapshots.publish(verdict, by(LEDGER))
    with pytest.raises(PlanConflict, match="not published"):
        topic.s.stores.changes.publish(verdict, by(LEDGER))
    topic.s.stores.snapshots.discard(second)
    assert steps.verify(topic.s, first.plan_id).name == "published"
    assert topic.plans("") == [first.plan_id]
    assert topic.stored("two") == list(range(1, 11))


def test_nothing_goes_when_a_client_turns_up_that_needs_it(topic: Topic) -> None:  # SNP-9
    plan = topic.judged()
    topic.sync("one", late=3)
    with pytest.raises(PlanConflict, match="one"):
        steps.publish(topic.s, plan.plan_id)
    assert topic.stored("one") == list(range(1, 13))
    topic.s.stores.snapshots.discard(plan)


def other_snapshots(topic: Topic, plan_id: str | None = None) -> None:
    """Another writer's commit on the snapshots, or another plan's."""
    commit = engine_of_process().table(topic.name, kind=SNAPSHOTS).newAppend()
    (commit if plan_id is None else commit.set(PLAN_ID, plan_id)).commit()


SNAPSHOTS_CAME = "other snapshots of its documents were published since"
HAPPENS: dict[str, tuple[Callable[[Topic], object], str]] = {
    "snapshots": (other_snapshots, SNAPSHOTS_CAME),
    "another plan's": (partial(other_snapshots, plan_id=ANOTHER), SNAPSHOTS_CAME),
    "client": (lambda topic: topic.sync("one", a=3), "clients of one"),
}
IN_ATTEMPTS = [(title, attempt) for title in HAPPENS for attempt in (1, 2)]


# The second attempt asks what the first has asked.
@pytest.mark.parametrize(("title", "attempt"), sample(IN_ATTEMPTS, ("snapshots", 1), *((title, 2) for title in HAPPENS)))
def test_what_a_purge_rests_on_is_asked_in_each_attempt(topic: Topic, title: str, attempt: int) -> None:
    """Its own snapshots are the newest, and no client needs what goes (SNP-7, SNP-9). A first attempt that finds both true fails because of
    an append, and the second asks again."""
    happens, told = HAPPENS[title]
    plan, asked = topic.judged(), list[str]()

    def step(name: str) -> None:
        if name != "inside_purge_commit":
            return
        asked.append(name)
        if len(asked) == attempt:
            happens(topic)
        else:
            topic.add(*typed("two", 10, 10))

    s = topic.stepping(step)
    with pytest.raises(PlanConflict, match=told):
        steps.publish(s, plan.plan_id)
    assert len(asked) == attempt
    made = [plan_id for plan_id in topic.plans(SNAPSHOTS) if plan_id != ANOTHER]
    assert (made, topic.plans("")) == ([plan.plan_id], []), "only the first of its commits was made"
    assert topic.stored("one") == list(range(1, 13))
    topic.s.stores.snapshots.discard(plan)


def losing(table: Java, kind: str, *, lost: str, made: bool) -> Java:
    """The topic's tables; of one of them the answers to commits are lost."""
    return unheard(table, made=made, by="CommitStateUnknownException") if kind == lost else table


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize("lost", KINDS, ids=["changes", "snapshots"])
def test_a_commit_of_unknown_result_is_looked_for_and_never_repeated(topic: Topic, lost: str, made: bool) -> None:  # DEL-4
    plan = topic.judged()
    with pytest.MonkeyPatch.context() as patched:
        change_tables(patched, partial(losing, lost=lost, made=made))
        if made:
            assert steps.publish(topic.s, plan.plan_id) is not None
        else:
            with pytest.raises(CommitUnknown):
                steps.publish(topic.s, plan.plan_id)
    topic.is_whole()
    if lost == "" and not made:
        # The snapshots are published: the same step again goes on by the plan's id.
        assert steps.publish(topic.s, plan.plan_id) is not None
        assert steps.verify(topic.s, plan.plan_id).name == "published"
    else:
        assert topic.run().name == ("no_op" if made else "published")
    topic.is_as_after_one_run()


def test_two_writers_never_give_the_same_number(topic: Topic) -> None:  # SNP-1
    """The second has looked at the numbers when the first commits."""
    looked, go_on, raised = threading.Event(), threading.Event(), list[LifecycleError]()

    def wait(step: str) -> None:
        if step == "numbered" and not looked.is_set():
            looked.set()
            assert go_on.wait(120)

    slow = IcebergDocuments(engine_of_process, tables=tables(), steps=wait)

    def write() -> None:
        try:
            slow.add(topic.name, typed("two", 10, 11), ledger=LEDGER)
        except LifecycleError as error:
            raised.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert looked.wait(120)
    topic.add(*typed("two", 10, 10))
    go_on.set()
    writer.join(120)
    assert [error.code for error in raised] == ["InvalidServerSeq"]
    assert topic.stored("two") == list(range(1, 11))


def test_a_writer_of_another_document_is_numbered_again(topic: Topic) -> None:
    times = list[str]()

    def overtake(step: str) -> None:
        times.append(step)
        if len(times) == 1:
            topic.add(*typed("two", 10, 10))

    IcebergDocuments(engine_of_process, tables=tables(), steps=overtake).add(topic.name, typed("one", 13, 13), ledger=LEDGER)
    assert times == ["numbered", "numbered"]
    assert (topic.stored("one"), topic.stored("two")) == (list(range(1, 14)), list(range(1, 11)))
