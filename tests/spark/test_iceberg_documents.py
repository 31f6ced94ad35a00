"""Documents on tables: added, read, snapshotted and purged by the verbs (SNP-1 to SNP-10)."""

from __future__ import annotations

import pytest
from tests.errors import raises
from tests.spark.documents import AS_OF, LATER, Documents, text_at, typed
from tests.spark.lake import Lake

from message_lifecycle.model.instants import Instant

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def test_changes_are_stored_in_order_and_read_back(lake: Lake) -> None:
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 3), *typed("two", 1, 2, at=None))
    topic.add(*typed("one", 4, 5))
    assert [change.payload for change in topic.s.documents.changes(topic.name, "one", after=2)] == [
        change.payload for change in typed("one", 3, 5)
    ]
    assert list(topic.s.documents.changes(topic.name, "two")) == typed("two", 1, 2, at=None)
    assert topic.stored("three") == []
    assert topic.snapshots("one") == []


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_a_number_that_is_not_the_next_one_stores_nothing(lake: Lake, number: int) -> None:  # SNP-1
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 2))
    before = topic.heads()
    with raises("InvalidServerSeq", match="Allowed: 3"):
        topic.add(*typed("two", 1, 1), *typed("one", number, number))
    assert topic.heads() == before


def test_states_tell_first_and_last_snapshots_epoch_and_age(lake: Lake) -> None:
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 10, at=1), *typed("one", 11, 12, at=50), *typed("two", 1, 3, at=None), *typed("old", 1, 2, at=1))
    topic.sync("one", a=9)
    topic.run()
    found = topic.s.documents.states(topic.name, topic.s.documents.tables(topic.name), older_than=Instant(10_000_000), own={"old": None})
    told = [(one.document, one.seq, one.first, one.snapshots, one.epoch, one.younger) for one in found]
    assert told == [("old", 2, 1, (), 0, 1), ("one", 12, 9, (12,), 1, 11), ("two", 3, 1, (), 0, 1)]


def test_a_run_makes_snapshots_raises_epochs_and_purges(lake: Lake) -> None:
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 12), *typed("two", 1, 9), *typed("three", 1, 30))
    topic.sync("one", a=8, b=12)
    topic.sync("three", a=30)
    outcome = topic.run()
    assert (outcome.name, dict(outcome.removed), outcome.rows_in, outcome.rows_kept) == ("published", {"purged_synced": 36}, 51, 15)
    assert topic.stored("one") == [8, 9, 10, 11, 12]
    assert topic.stored("two") == list(range(1, 10))
    assert topic.stored("three") == [30]
    assert topic.snapshots("one") == [(12, 1, text_at(12))]
    assert topic.snapshots("two") == []
    assert topic.branches() == {"main"}
    assert topic.run().name == "no_op"
    topic.sync("one", a=11)
    assert dict(topic.run(LATER).removed) == {"purged_synced": 3}
    assert topic.snapshots("one") == [(12, 1, text_at(12))], "no second snapshot at one seq"
    assert topic.epoch("one") == 2
    topic.add(*typed("one", 13, 22))
    topic.sync("one", a=22, b=22)
    assert topic.run(Instant(LATER + 1)).name == "published"
    # The older one begins the history as long as the purge, a commit of its own, may not come; it goes with the next snapshot.
    assert topic.snapshots("one") == [(12, 1, text_at(12)), (22, 3, text_at(22))]
    assert topic.stored("one") == [22]


def test_what_is_added_after_the_plan_stays_and_is_numbered_on(lake: Lake) -> None:  # DEL-4
    topic = Documents.on(lake)
    topic.add(*typed("one", 1, 12))
    topic.sync("one", a=12)
    topic.staged()
    topic.add(*typed("one", 13, 15))
    assert topic.run().name == "published"
    assert topic.stored("one") == [12, 13, 14, 15]


def test_messages_and_documents_do_not_mix(lake: Lake) -> None:
    topic, messages = Documents.on(lake), lake.topic()
    with raises("IsADocumentTopic"):
        lake.reader.log(topic.name)
    with raises("IsADocumentTopic"):
        list(lake.reader.messages(topic.name))
    with raises("NotADocumentTopic"):
        lake.documents().tables(messages)
    with raises("NotADocumentTopic"):
        lake.documents().add(messages, typed("one", 1, 1), ledger=("ledger", 1))
    assert topic.name in lake.topics.list(topic.name.stream)
    assert topic.run(AS_OF).name == "no_op"
