"""A driver killed at any step, or run twice at once, leaves what an uninterrupted run leaves (DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import sample
from tests.logs import SECOND
from tests.spark.kill_points import Run, dies, next_run_finishes, published, start_whole, two_at_once_publish_once, with_ledger

from message_lifecycle.app import changes, steps
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import NotReady
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import PLAN_ID
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF = Instant(100 * SECOND)
LIVE = {(0, 3), (0, 4)}


class Topic:
    """One topic with three expired messages and two live ones, and a ledger of its own."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.s = replace(configured_lake(), ledger=open_ledger(ledger_url))
        self.writer = IcebergWriter(engine_of_process)
        self.name = TopicName(stream=f"kill-{token_hex(4)}", topic="messages")
        create_topic(self.s, self.name, partitions=1, settings={"message_expiry": 10, "max_removed_fraction": 1.0})
        times = [(1, 0), (2, 0), (3, 2), (99, 3), (100, 3)]
        messages = [NewMessage(append_time=Instant(t * SECOND), key=b"k", value=b"v", segment=base) for t, base in times]
        self.writer.append(self.name, messages, policy_of(self.s, self.name))

    def start(self, last_step: str) -> Run:
        return start_whole(self.name, AS_OF, last_step, ledger_url=self.ledger_url)

    def run(self) -> Outcome:
        """The next run, uninterrupted."""
        return steps.run(self.s, self.name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "as expected"))

    def is_as_after_one_run(self) -> None:
        assert {(m.partition, m.offset) for m in self.s.reader.messages(self.name)} == LIVE
        assert dict(self.s.reader.log(self.name).end_offsets) == {0: 5}
        table = Tables().load(self.name)
        plans = [plan_id for snapshot in table.snapshots() if snapshot.summary and (plan_id := snapshot.summary[PLAN_ID])]
        assert len(plans) == 1
        assert set(table.metadata.refs) == {"main"}, "what was staged is gone"
        assert published(self.s, self.name) == [(plans[0], (("expiry", 3),))]


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample(("after_stage", "before_commit", "inside_commit", "after_commit"), "inside_commit", "after_commit"))
def test_a_killed_run_is_finished_by_the_next(topic: Topic, step: str) -> None:
    before = topic.s.reader.log(topic.name)
    dies(topic, step)
    if step != "after_commit":
        assert topic.s.reader.log(topic.name) == before, "nothing of it is seen before the commit"
    next_run_finishes(topic)


def test_two_runs_of_one_interval_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)


def test_what_is_staged_of_a_plan_that_has_ended_meanwhile_is_taken_away(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = steps.plan(topic.s, topic.name, as_of=AS_OF).plan

    staged = []

    def late(s: Services, plan: Plan) -> Staged:
        staged.append(plan.plan_id)
        steps.close(s, plan, "superseded", "another took its place")  # the other looks for what is staged before it is there
        return make(s, plan)

    make = changes.stage_all
    monkeypatch.setattr(changes, "stage_all", late)
    for _ in range(2):  # the second time the plan is closed before
        with pytest.raises(NotReady):
            steps.stage(topic.s, plan.plan_id)
        assert set(Tables().load(topic.name).metadata.refs) == {"main"}
    assert staged == [plan.plan_id]
