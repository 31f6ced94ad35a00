"""An erasure killed at any step is finished by the next run, and nothing of the key is left (DEL-4, DEL-5, EXP-8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes, token_hex

import pytest
from tests.effort import sample
from tests.logs import SECOND
from tests.spark.key_search import files_with
from tests.spark.kill_points import (
    BEFORE_ERASED,
    ERASURE_STEPS,
    Run,
    dies,
    next_run_finishes,
    published,
    start_dying,
    two_at_once_publish_once,
    with_ledger,
)

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import ERASING
from message_lifecycle.stores.iceberg.table_folder import erased_copy, local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

AS_OF = Instant(100 * SECOND)


class Topic:
    """A topic with a compacted view, two messages of the key that are seen, one that another writer marked, and others."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.s = replace(configured_lake(), ledger=open_ledger(ledger_url))
        self.writer = IcebergWriter(engine_of_process)
        self.name = TopicName(stream=f"kill-{token_hex(4)}", topic="messages")
        self.key = token_bytes(32)
        create_topic(self.s, self.name, partitions=1, settings={})
        self.append(self.key, b"a")
        self.append(self.key, b"b", self.key)
        steps.run(self.s, self.name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "yes"), work="compaction")
        self.writer.foreign_delete(self.name, [(0, 0)])
        self.request_id = token_hex(8)
        digests = self.s.key_secret(True).digests([self.key])
        self.s.ledger.add_erasure(self.request_id, digests, topics=[self.name], forbid=False, requested_by="tester", why="test")

    def append(self, *keys: bytes) -> None:
        messages = [NewMessage(append_time=Instant(10 * SECOND), key=key, value=b"v") for key in keys]
        self.writer.append(self.name, messages, policy_of(self.s, self.name))

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "erasure", self.request_id, ledger_url=self.ledger_url)

    def run(self) -> Outcome:
        """The next run, uninterrupted."""
        work = EraseKey(request_id=self.request_id)
        return steps.run(self.s, self.name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)

    def is_as_after_one_run(self) -> None:
        assert [m.key for m in self.s.reader.messages(self.name)] == [b"a", b"b"]
        for kind in ("", "compacted"):
            table = Tables().load(self.name, kind=kind)
            assert files_with(table.location(), self.key) == []
            assert set(table.metadata.refs) == {"main"}
            assert len(table.metadata.snapshots) == 1
            assert ERASING not in table.properties
            left = [path.name for path in local_path(table.location()).rglob("*") if "erasure-" in path.name]
            assert left == [], "nothing of the work is left"
        erased = [removed for _, removed in published(self.s, self.name) if dict(removed).get("erased")]
        assert erased == [(("erased", 2),)]
        receipt = Receipt.from_json(self.s.ledger.receipt(self.request_id))
        gone = [table.table for topic in receipt.topics for table in topic.tables if table.gone]
        assert gone == ["view", "log"]
        assert receipts.verify(self.s, self.request_id) == []


@pytest.fixture
def topic(embedded: Path, erasure_secret: None, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample(ERASURE_STEPS, "inside_commit", "after_commit", "inside_delete", "after_delete"))
def test_a_killed_erasure_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    if step in BEFORE_ERASED:
        assert len(list(topic.s.reader.messages(topic.name))) == 4, "nothing of it is seen before the commit"
    next_run_finishes(topic)


def test_half_a_file_of_a_stage_that_died_hinders_no_erasure(topic: Topic) -> None:
    """No snapshot names it and nobody can search it: another writer's would have to be waited for, three days."""
    plan = steps.plan(topic.s, topic.name, as_of=AS_OF, work=EraseKey(request_id=topic.request_id)).plan
    half = local_path(Tables().load(topic.name).location()) / "data" / f"{erased_copy(plan.plan_id, 9)}.parquet"
    half.write_bytes(b"PAR1")
    assert topic.run().name == "published"
    topic.is_as_after_one_run()
    assert not half.exists()


def test_two_erasures_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)
