"""An undo that brings back to the log and to the compacted view, killed at any step of either, leaves what an uninterrupted one leaves
(DEL-4, DEL-7, P3)."""

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
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic, update_latest_view
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, ViewRow
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import PurgeKey, UndoPlan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import COMPACTED, PLAN_ID, UNDOES
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF = Instant(100 * SECOND)
SHOWN = [(0, b"a"), (1, b"b"), (2, b"a")]


class Topic:
    """Of the key `a` one message was in the view, and a newer one past the horizon; both went by one request. With a ledger of its own."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.s = replace(configured_lake(), ledger=open_ledger(ledger_url))
        self.writer = IcebergWriter(engine_of_process)
        self.name = TopicName(stream=f"undo-{token_hex(4)}", topic="messages")
        create_topic(self.s, self.name, partitions=1, settings={"max_removed_fraction": 1.0})
        self.append(b"a", b"b")
        assert self.work("compaction").name == "published"
        self.append(b"a")
        self.was, self.rows = list(self.s.reader.messages(self.name)), self.view()
        outcome = self.work(PurgeKey(key=b"a"))
        assert (outcome.name, outcome.removed_rows) == ("published", 2), outcome.detail
        assert outcome.plan_id is not None
        self.plan_id = outcome.plan_id

    def append(self, *keys: bytes) -> None:
        new = [NewMessage(append_time=Instant(1 * SECOND), key=key, value=b"v") for key in keys]
        self.writer.append(self.name, new, policy_of(self.s, self.name))

    def view(self) -> list[ViewRow]:
        state = self.s.stores.view.view(self.name)
        assert state is not None
        return list(self.s.stores.view.view_rows(self.name, state))

    def shown(self) -> list[tuple[int, bytes | None]]:
        return [(m.offset, m.key) for m in read_compacted(self.s, self.name)]

    def work(self, work: Work) -> Outcome:
        return steps.run(self.s, self.name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "undo", self.plan_id, ledger_url=self.ledger_url)

    def run(self) -> Outcome:
        """The next undo of the same plan, uninterrupted."""
        return self.work(UndoPlan(plan_id=self.plan_id))

    def is_as_after_one_run(self) -> None:
        assert list(self.s.reader.messages(self.name)) == self.was
        assert (self.view(), self.shown()) == (self.rows, SHOWN)
        by_sql = spark_session("tests").table(str(update_latest_view(self.s, self.name))).select("offset", "key").collect()
        assert sorted((row.offset, bytes(row.key)) for row in by_sql) == SHOWN
        log, view = Tables().load(self.name), Tables().load(self.name, kind=COMPACTED)
        (known,) = self.s.ledger.undone(self.name)
        assert (known.plan_id, known.ranges) == (self.plan_id, ((0, 0, 0), (0, 2, 2)))
        assert len([s for s in log.snapshots() if s.summary and s.summary[UNDOES] == self.plan_id]) == 1
        assert len([s for s in view.snapshots() if s.summary and s.summary[PLAN_ID] == known.undone_by]) == 1
        assert set(log.metadata.refs) == set(view.metadata.refs) == {"main"}, "what was staged is gone"
        outcome = self.s.ledger.record(known.undone_by).outcome
        assert outcome is not None and (outcome.name, outcome.restored) == ("published", 2)


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


BEFORE = ("view:after_stage", "after_stage", "before_commit", "inside_commit")
BETWEEN = ("after_commit", "view:before_commit", "view:inside_commit")
KEPT = ("inside_commit", "after_commit", "view:inside_commit", "view:after_commit")


@pytest.mark.parametrize("step", sample([*BEFORE, *BETWEEN, "view:after_commit"], *KEPT))
def test_a_killed_undo_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    if step in BEFORE:
        assert topic.shown() == SHOWN[1:2], "nothing of it is seen before the commit"
    elif step in BETWEEN:
        assert topic.shown() == SHOWN[1:], "no older value without the newer one (P3)"
    next_run_finishes(topic)


@pytest.mark.parametrize("work", ["message_cleaner", "compaction"])
def test_whoever_comes_after_a_killed_undo_finishes_it_first(topic: Topic, work: Work) -> None:
    dies(topic, "view:before_commit")
    outcome = topic.work(work)
    if work == "message_cleaner":
        topic.is_as_after_one_run()
    else:
        assert (outcome.name, outcome.removed) == ("published", (("superseded", 1),)), "the view had the older one back"
        assert topic.shown() == SHOWN[1:]
    assert topic.run().name == "no_op"


@hunt
def test_two_undos_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)
