"""Refused rows come in again exactly once, and a row that is refused again stays in the quarantine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.errors import raises
from tests.spark.lake import Lake
from tests.spark.landing import KEYED, Landing

from message_lifecycle.app import steps
from message_lifecycle.app.ingest_result import IngestResult
from message_lifecycle.app.intake import IngestOptions
from message_lifecycle.app.replay import Replay, replay_batch
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine

pytestmark = pytest.mark.spark

AT = "2024-05-01T12:00:00Z"
WRONG = replace(KEYED, partition="p")


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    return Landing(lake, tmp_path)


def again(landing: Landing, name: TopicName, batch: str, *, mapping: FieldMapping = KEYED, header: str | None = None) -> IngestResult:
    asked = Replay(batch_id=batch, by="ann", why="the partition was no partition", header=header)
    return replay_batch(landing.intake, name, asked, IngestOptions(mapping=mapping))


def keys(landing: Landing, name: TopicName) -> list[bytes | None]:
    return [message.key for message in landing.messages(name)]


def test_refused_rows_come_in_once_and_rows_refused_again_stay(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = landing.topic()
    rows = [f'{{"k":"{key}","v":"1","at":"{AT}","p":"{partition}"}}\n' for key, partition in (("a", 0), ("b", 9), ("c", 9))]
    folder = landing.source(a_jsonl=rows[0] + rows[1] + "broken\n", b_jsonl=rows[2], c_csv=f"k,at,v,p\nd,{AT},1,9\n")
    first = landing.take(topic, folder, WRONG)
    assert (first.rows, first.quarantined) == (1, {"invalid_partition": 3, "unreadable_line": 1})
    assert first.refused_whole == ("b.jsonl", "c.csv")
    (batch,) = first.batch_ids
    store = IcebergQuarantine(engine_of_process, tables=Tables())
    assert [(one.file, one.code, one.rows) for one in store.refused_counts(topic)] == [
        ("a.jsonl", "invalid_partition", 1), ("a.jsonl", "unreadable_line", 1), ("b.jsonl", "invalid_partition", 1), ("c.csv", "invalid_partition", 1),
    ]  # fmt: skip
    shown = store.refused_rows(topic, batch=batch, file=None, code="invalid_partition", limit=2)
    assert [(row.file, row.position, row.raw) for row in shown] == [("a.jsonl", 2, rows[1].strip()), ("b.jsonl", 1, rows[2].strip())]
    with raises("UnreplayableRows", match="--header"):
        again(landing, topic, batch)
    with raises("NothingToReplay", match="no row of it"):
        again(landing, topic, "other")
    assert keys(landing, topic) == [b"a"]

    # The run dies after its commit: the ledger does not know yet that the rows are in the log.
    finish = landing.ledger.finish_batch
    monkeypatch.setattr(landing.ledger, "finish_batch", _die)
    with pytest.raises(RuntimeError, match="cut"):
        again(landing, topic, batch, header="k,at,v,p")
    monkeypatch.setattr(landing.ledger, "finish_batch", finish)
    again(landing, topic, batch, header="k,at,v,p")
    assert keys(landing, topic) == [b"a", b"b", b"c", b"d"]
    with raises("NothingToReplay", match="replayed before"):
        again(landing, topic, batch, header="k,at,v,p")
    assert keys(landing, topic) == [b"a", b"b", b"c", b"d"]
    old, new = landing.ledger.refused_batches(topic)
    assert (old.settled_as, old.settled_by, old.unsettled, new.rows, new.refused) == ("replayed", "ann", 0, 3, 1)
    assert [row.raw for row in store.refused_rows(topic, batch=new.batch_id, file=None, code=None, limit=9)] == ["broken"]

    # The replayed rows leave the quarantine by a plan, long before their age.
    services = replace(configured_lake(), ledger=landing.ledger)
    outcome = steps.run(services, topic, as_of=landing.ledger.now(), work="quarantine", approver=None)
    assert (outcome.name, outcome.removed) == ("published", (("quarantine_replayed", 4),)), outcome.detail
    assert [row.batch for row in store.refused_rows(topic, batch=None, file=None, code=None, limit=9)] == [new.batch_id]
    assert steps.run(services, topic, as_of=landing.ledger.now(), work="quarantine", approver=None).name == "no_op"

    # What came in by a replay does not come in once more with a mended file.
    landing.put(folder, "b_jsonl", rows[2].replace('"9"', '"0"'))
    with raises("ChangedFile", match=r"b\.jsonl"):
        landing.take(topic, folder)


def test_a_file_that_came_in_mended_is_not_replayed(landing: Landing) -> None:
    topic = landing.topic()
    rows = [f'{{"k":"{key}","v":"1","at":"{AT}","p":"9"}}\n' for key in "ab"]
    folder = landing.source(a_jsonl=rows[0], b_jsonl=rows[1])
    (batch,) = landing.take(topic, folder, WRONG).batch_ids
    landing.put(folder, "a_jsonl", rows[0].replace('"9"', '"0"'))
    assert landing.take(topic, folder, WRONG).rows == 1
    assert again(landing, topic, batch).rows == 1
    assert keys(landing, topic) == [b"a", b"b"]


def _die(*_: object, **__: object) -> None:
    raise RuntimeError("cut")
