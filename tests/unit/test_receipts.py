"""A receipt that is checked again says nothing of tables that were not looked into (DEL-7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from message_lifecycle.app import receipts
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.operations.registry import undoable_operations
from message_lifecycle.app.requests import delete_topic, reclaim_deleted
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.erasure import ErasureOf
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.plan import Requirements
from message_lifecycle.model.settings import resolve
from message_lifecycle.operations import erasure
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.layout import COMPACTED
from tests.deleted_topics import topic_in
from tests.reclaiming import NAME
from tests.reclaiming import NOW as PAST_NOW
from tests.worlds import NOW, SECOND, make_lake

KEY = b"customer-17"
YES = (True, "ada", "yes")


def test_a_deleted_topic_is_not_said_to_hold_unseen(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys)
    s, name = lake.services, lake.topic("shop/orders")
    lake.world.writer.append(name, [NewMessage(append_time=NOW, key=KEY, value=b"v")], policy_of(s, name))
    request = ask(s, [KEY], topics=[name], forbid=False, by="ada", why="a letter")
    carry_out(s, request.request_id, approver=lambda *_: YES)
    assert receipts.verify(s, request.request_id) == []
    deletion = delete_topic(s, name, by="ada", text="not needed")
    (wrong,) = receipts.verify(s, request.request_id)
    assert f"deleted since by plan {deletion.plan_id}, its tables were not looked into" in wrong
    later = Instant(NOW + 8 * 86_400 * SECOND)
    lake.world.set_now(later)
    reclaim_deleted(s, deletion.plan_id or "", as_of=later, approver=lambda *_: YES)
    assert receipts.verify(s, request.request_id) == []


@pytest.mark.postgres
@pytest.mark.spark
def test_a_view_that_was_dropped_keeps_nobody_from_looking_into_the_log(tmp_path: Path, own_catalog: None) -> None:
    past = topic_in(tmp_path)
    eraser, policy = IcebergEraser(past.tables, undoable=undoable_operations), resolve(topic={}, server={})
    found = [replace(table, clean=False) for table in eraser.find_key(NAME, lambda _key: False, policy, as_of=PAST_NOW)]
    required = Requirements(
        table_uuid=found[0].table_uuid, snapshot_id=found[0].snapshot_id, end_offsets=(), policy_hash=policy.hash, code_version="1"
    )
    plan = erasure.plan(NAME, required, policy, ErasureOf(request_id="r", digests=("d",), secret="s"), found, as_of=PAST_NOW)
    assert [table.table for table in eraser.erased_tables(plan, lambda _key: False)] == ["view", "log"]
    past.catalog.drop_table((NAME.namespace, NAME.table(COMPACTED)))
    assert [table.table for table in eraser.erased_tables(plan, lambda _key: False)] == ["log"]
