"""The erasure of a document, killed at any step, is finished by the next run, and nothing of its name is left (DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest
from sqlalchemy import inspect, text
from tests.effort import hunt, sample
from tests.spark.documents import AS_OF, KINDS, Documents, name_beside, text_at, typed
from tests.spark.key_search import files_with
from tests.spark.kill_points import (
    BEFORE_ERASED,
    ERASURE_STEPS,
    Run,
    dies,
    next_run_finishes,
    start_dying,
    two_at_once_publish_once,
    with_ledger,
)

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import Ledger, open_ledger
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import ERASING
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
GONE = name_beside("kept")


class Topic(Documents):
    """Two documents in the same files, each of which a purge has taken changes from; one is to go."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        super().__init__(replace(configured_lake(), ledger=open_ledger(ledger_url)), f"kill-{token_hex(4)}")
        self.add(*typed(GONE, 1, 12), *typed("kept", 1, 12))
        for document in (GONE, "kept"):
            self.sync(document, a=8)
        purge = super().run()
        assert purge.name == "published" and purge.plan_id is not None, purge.detail
        self.purge_id = purge.plan_id
        assert self.rows_with(GONE)
        self.request_id = token_hex(8)
        digests = self.s.key_secret(True).digests([GONE.encode()])
        self.s.ledger.add_erasure(self.request_id, digests, topics=[self.name], forbid=False, requested_by="tester", why="test")

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "erasure", self.request_id, ledger_url=self.ledger_url)

    def run(self) -> Outcome:  # type: ignore[override]  # the kill points' run, of the erasure
        """The next run, uninterrupted."""
        work = EraseKey(request_id=self.request_id)
        return steps.run(self.s, self.name, as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)

    def rows_with(self, name: str) -> list[str]:
        """The ledger's tables that tell it."""
        ledger = self.s.ledger
        assert isinstance(ledger, Ledger)
        with ledger._database.reading() as connection:
            names = inspect(connection).get_table_names()
            return [one for one in names for row in connection.execute(text(f"SELECT * FROM {one}")) if name in repr(tuple(row))]

    def is_as_after_one_run(self) -> None:
        assert (self.stored("kept"), self.snapshots("kept"), self.epoch("kept")) == ([8, 9, 10, 11, 12], [(12, 1, text_at(12))], 1)
        assert (self.stored(GONE), self.snapshots(GONE)) == ([], [])
        for kind in KINDS:
            table = Tables().load(self.name, kind=kind)
            assert files_with(table.location(), GONE.encode()) == []
            assert (set(table.metadata.refs), len(table.metadata.snapshots)) == ({"main", undo_ref(self.purge_id)}, 2)
            assert ERASING not in table.properties
            left = [path.name for path in local_path(table.location()).rglob("*") if "erasure-" in path.name]
            assert left == [], "nothing of the work is left"
        assert not self.rows_with(GONE)
        assert [row.document for row in self.s.ledger.synced(self.name)] == ["kept"]
        receipt = Receipt.from_json(self.s.ledger.receipt(self.request_id))
        assert [table.table for topic in receipt.topics for table in topic.tables if table.gone] == ["snapshots", "log"]
        assert receipts.verify(self.s, self.request_id) == []


@pytest.fixture
def topic(embedded: Path, erasure_secret: None, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


@pytest.mark.parametrize("step", sample(ERASURE_STEPS, "inside_commit", "after_commit", "inside_delete", "after_delete"))
def test_a_killed_erasure_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    if step in BEFORE_ERASED:
        assert (topic.stored(GONE), topic.epoch(GONE)) == ([8, 9, 10, 11, 12], 1), "nothing of it is seen before the commit"
    next_run_finishes(topic)


@hunt
def test_two_erasures_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)
