"""A batch on a table is taken again under a corrected mapping: its offsets from the commit, its refused rows, and undo (C9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.spark.lake import Lake
from tests.spark.landing import KEYED, Landing

from message_lifecycle.app import steps
from message_lifecycle.app.intake import IngestOptions
from message_lifecycle.app.remap import RemapRequest, RemapResult, remap
from message_lifecycle.app.replay import Replay, replay_batch
from message_lifecycle.app.services import Services
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.append import end_of_batch
from message_lifecycle.stores.iceberg.engine import engine_of_process

pytestmark = pytest.mark.spark

AT = "2024-05-01T12:00:00Z"
WRONG = replace(KEYED, key="v", partition="p")


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    return Landing(lake, tmp_path)


def again(landing: Landing, name: TopicName, folder: Path, mapping: FieldMapping = KEYED) -> RemapResult:
    word = RemapRequest(by="ann", why="the key was another field")
    return remap(services(landing), landing.intake, name, str(folder), IngestOptions(mapping=mapping), word)


def services(landing: Landing) -> Services:
    return replace(configured_lake(), ledger=landing.ledger)


def stored(landing: Landing, name: TopicName) -> list[tuple[int, int, bytes | None]]:
    return sorted((message.partition, message.offset, message.key) for message in landing.messages(name))


def row(key: str, partition: int) -> str:
    return f'{{"k":"{key}","v":"of {key}","at":"{AT}","p":"{partition}"}}\n'


def test_a_batch_with_refused_rows_is_taken_again_and_can_be_undone(landing: Landing) -> None:
    topic = landing.topic(partitions=2, max_removed_fraction=1.0)
    landing.take(topic, landing.source(z_jsonl=row("before", 0)), replace(KEYED, partition="p"))
    folder = landing.source(a_jsonl=row("a", 0) + row("b", 9) + row("c", 1), b_jsonl=row("d", 9))
    first = landing.take(topic, folder, WRONG)
    assert (first.rows, first.quarantined, first.refused_whole) == (2, {"invalid_partition": 2}, ("b.jsonl",))
    (batch_id,) = first.batch_ids
    assert landing.ledger.taken_batch(topic, batch_id).ranges == ((0, 1, 1), (1, 0, 0))
    landing.take(topic, landing.source(y_jsonl=row("after", 0)), replace(KEYED, partition="p"))
    appended = end_of_batch(engine_of_process(), topic, batch_id)
    assert appended is not None and appended.ranges == ((0, 1, 1), (1, 0, 0)), "the table's history says the same"

    found = again(landing, topic, folder, replace(KEYED, key="k"))
    assert found.removal is not None and found.result is not None and found.removal.plan_id is not None
    assert (found.removal.name, found.removal.removed, found.result.rows, found.refused) == ("published", (("removed", 2),), 4, 2)
    keys = sorted(key or b"" for _, _, key in stored(landing, topic))
    assert keys == [b"a", b"after", b"b", b"before", b"c", b"d"]
    assert not {(0, 1), (1, 0)} & {place[:2] for place in stored(landing, topic)}
    (old,) = (batch for batch in landing.ledger.refused_batches(topic) if batch.batch_id == batch_id)
    assert (old.settled_as, old.settled_by, old.unsettled) == ("replayed", "ann", 0)
    s = services(landing)
    went = steps.run(s, topic, as_of=landing.ledger.now(), work="quarantine")
    assert (went.name, went.removed) == ("published", (("quarantine_replayed", 2),)), went.detail
    assert again(landing, topic, folder, replace(KEYED, key="k")).batches == ()

    back = steps.run(
        s,
        topic,
        as_of=landing.ledger.now(),
        work=UndoPlan(plan_id=found.removal.plan_id),
        approver=lambda *_: (True, "ann", "it was right"),
    )
    assert back.name == "published", back.detail
    assert {(0, 1, b"of a"), (1, 0, b"of c")} <= set(stored(landing, topic))
    assert any("both are in the log" in warning for warning in back.warnings)


def test_refused_rows_that_were_replayed_go_and_come_with_their_batch(landing: Landing) -> None:
    topic = landing.topic(max_removed_fraction=1.0)
    folder = landing.source(a_jsonl=row("a", 0) + row("b", 9))
    (batch_id,) = landing.take(topic, folder, WRONG).batch_ids
    asked = Replay(batch_id=batch_id, by="ann", why="no partition", header=None)
    assert replay_batch(landing.intake, topic, asked, IngestOptions(mapping=replace(KEYED, key="v"))).rows == 1
    found = again(landing, topic, folder)
    assert found.removal is not None
    assert (len(found.batches), found.removal.removed) == (2, (("removed", 2),))
    assert [key for _, _, key in stored(landing, topic)] == [b"a", b"b"], "each row once"


def test_a_run_that_died_after_its_commit_is_ended_first(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = landing.topic(max_removed_fraction=1.0)
    folder = landing.source(a_jsonl=row("a", 0))
    with monkeypatch.context() as dying:
        dying.setattr(landing.ledger, "finish_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            landing.take(topic, folder, WRONG)
    assert again(landing, topic, folder).removal is not None
    with monkeypatch.context() as dying:
        dying.setattr(landing.ledger, "finish_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            again(landing, topic, folder, replace(KEYED, value="k"))
    assert again(landing, topic, folder, replace(KEYED, value="k")).batches == (), "the new batch is in the table"
    assert [message.value for message in landing.messages(topic)] == [b"a"]
