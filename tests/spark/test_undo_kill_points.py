"""An undo killed at any step, or run twice at once, leaves what an uninterrupted one leaves (DEL-4, DEL-5, DEL-7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest
from tests.effort import hunt, sample
from tests.logs import SECOND
from tests.spark.kill_points import Run, dies, next_run_finishes, start_dying, two_at_once_publish_once, with_ledger

from message_lifecycle.app import steps
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import UNDOES
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF = Instant(100 * SECOND)


class Topic:
    """A topic of which a segment, a single message and an older marker have gone, and a marker come, by one plan; with a ledger of its own."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.s = replace(configured_lake(), ledger=open_ledger(ledger_url))
        writer = IcebergWriter(engine_of_process)
        self.name = TopicName(stream=f"undo-{token_hex(4)}", topic="messages")
        settings = {"message_expiry": 10, "allow_msg_ttl": True, "subject_delete_marker_ttl": 600, "max_removed_fraction": 1.0}
        create_topic(self.s, self.name, partitions=1, settings=settings)
        own_ttl = (("Nats-TTL", b"1s"),)
        messages = [
            NewMessage(append_time=Instant(1 * SECOND), key=b"old", value=b"v", segment=0),
            NewMessage(append_time=Instant(2 * SECOND), key=b"old", value=b"v", segment=0),
            NewMessage(append_time=Instant(95 * SECOND), key=b"a", value=b"v", headers=own_ttl, segment=2),
            NewMessage(append_time=Instant(99 * SECOND), key=b"b", value=b"v", segment=2),
        ]
        writer.append(self.name, messages, policy_of(self.s, self.name))
        self.was = list(self.s.reader.messages(self.name))
        outcome = self._run("message_cleaner")
        assert (outcome.name, outcome.removed_rows, outcome.markers) == ("published", 3, 2), outcome.detail
        assert outcome.plan_id is not None
        self.plan_id = outcome.plan_id

    def _run(self, work: UndoPlan | str) -> Outcome:
        given = work if isinstance(work, UndoPlan) else "message_cleaner"
        return steps.run(self.s, self.name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "as expected"), work=given)

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "undo", self.plan_id, ledger_url=self.ledger_url)

    def run(self) -> Outcome:
        """The next undo of the same plan, uninterrupted."""
        return self._run(UndoPlan(plan_id=self.plan_id))

    def is_as_after_one_run(self) -> None:
        assert list(self.s.reader.messages(self.name)) == self.was
        assert dict(self.s.reader.log(self.name).end_offsets) == {0: 6}, "the markers' offsets are not given again"
        table = Tables().load(self.name)
        undone = [s.snapshot_id for s in table.snapshots() if s.summary and s.summary[UNDOES] == self.plan_id]
        assert len(undone) == 1
        assert set(table.metadata.refs) == {"main"}, "what was staged is gone"
        (known,) = self.s.ledger.undone(self.name)
        assert (known.plan_id, known.ranges, known.released_at) == (self.plan_id, ((0, 0, 2),), None)
        outcome = self.s.ledger.record(known.undone_by).outcome
        assert outcome is not None and (outcome.name, outcome.restored, dict(outcome.removed)) == ("published", 3, {"undone": 2})
        assert self._run("message_cleaner").removed == (), "the next run leaves alone what came back"
        assert list(self.s.reader.messages(self.name)) == self.was


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample(("after_stage", "before_commit", "inside_commit", "after_commit"), "inside_commit", "after_commit"))
def test_a_killed_undo_is_finished_by_the_next(topic: Topic, step: str) -> None:
    before = topic.s.reader.log(topic.name)
    dies(topic, step)
    if step != "after_commit":
        assert topic.s.reader.log(topic.name) == before, "nothing of it is seen before the commit"
    next_run_finishes(topic)


def test_the_cleaner_that_comes_after_a_killed_undo_leaves_alone_what_came_back(topic: Topic) -> None:
    """The run died between its commit and the ledger's word of it: whoever plans next finds the commit first."""
    dies(topic, "after_commit")
    assert topic._run("message_cleaner").removed == ()
    topic.is_as_after_one_run()


@hunt
def test_two_undos_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)
