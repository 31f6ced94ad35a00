"""A table whose last update lies ahead, as a machine with a wrong clock leaves it: commits are refused by name, and status says until when."""

from __future__ import annotations

import json

import pytest
from tests.errors import raises
from tests.spark.lake import Lake, Rows

from message_lifecycle.app.services import policy_of
from message_lifecycle.app.views.status import topic_status
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.writer import IcebergWriter

pytestmark = pytest.mark.spark
AS_OF = 1000.0


def updated_in(lake: Lake, name: TopicName, hours: int) -> None:
    """A commit by a machine whose clock is that many hours ahead."""
    operations, parser = engine_of_process().table(name).operations(), engine_of_process().jvm.org.apache.iceberg.TableMetadataParser
    base = operations.refresh()
    content = json.loads(parser.toJson(base))
    content["last-updated-ms"] += hours * 3_600_000
    operations.commit(base, parser.fromJson(json.dumps(content)))


def test_a_commit_on_a_table_that_is_ahead_is_refused_by_name(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(AS_OF,)))
    plan = lake.plan(name, AS_OF)
    s = lake.services()
    assert not any("is in the future" in problem for problem in topic_status(s, name).problems)
    updated_in(lake, name, 2)
    before = Tables().document(name).content["metadata-log"]
    with raises("TableAhead"):
        lake.store().stage(plan)
    with raises("TableAhead"):
        IcebergWriter(engine_of_process).append(name, [NewMessage(append_time=Instant(1), key=None, value=b"v")], policy_of(s, name))
    assert Tables().document(name).content["metadata-log"] == before
    found = topic_status(s, name)
    assert not found.ok
    assert any("is in the future" in problem and "TableAhead" in problem for problem in found.problems)
