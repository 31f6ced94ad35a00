"""Messages that another engine appends to a topic's log: each offset is given once, and nothing of theirs goes unasked (MSG-1, MSG-4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import get_args

import pytest
from tests.effort import sample
from tests.errors import raises
from tests.spark.lake import Lake
from tests.spark.other_engines import WORDS, Engine, Topic

from message_lifecycle.app import witness
from message_lifecycle.app.views.topics import describe
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan

ENGINES = pytest.mark.parametrize("engine", get_args(Engine))
JAVA_ALONE = pytest.mark.parametrize("engine", sample(get_args(Engine), "java"))
"""The product does not know who has written. `ENGINES` holds how both are found, and the rest of the suite needs one of them."""


PAST = [(1,), (1, 2), (-1,)]


def with_settings(**settings: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("topic", [settings], indirect=True, ids=[""])


@pytest.fixture
def topic(lake: Lake, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Topic]:
    settings = {"segment_max_seconds": 3600, **getattr(request, "param", {})}
    made = Topic(lake, tmp_path, TopicName.parse(f"{lake.stream}/m {token_hex(4)}"), **settings)
    yield made
    made.ledger.close()


def ends_agree(topic: Topic, expected: dict[int, int]) -> None:
    """Status, consumers' end, the planner's log and a repair's look say the same."""
    reader = topic.s.reader
    assert dict(reader.end_offsets(topic.name)) == dict(reader.log(topic.name).end_offsets) == expected
    assert {entry.partition: entry.end_offset for entry in describe(topic.s, topic.name).partitions} == expected


def require_once(topic: Topic) -> None:
    places = [(message.partition, message.offset) for message in topic.s.reader.messages(topic.name)]
    assert len(places) == len(set(places)), places


@ENGINES
def test_ingest_goes_on_above_them(topic: Topic, engine: Engine) -> None:
    topic.ingest("a", "b")
    topic.append_by(engine, 2, 3, 7)
    ends_agree(topic, {0: 8})
    topic.append_by(engine, 9)
    assert topic.ingest("c", "d").end_offsets == {0: 12}
    assert topic.places() == [0, 1, 2, 3, 7, 9, 10, 11]
    ends_agree(topic, {0: 12})


@ENGINES
def test_a_partition_that_is_new(topic: Topic, engine: Engine) -> None:
    topic.ingest("a")
    topic.append_by(engine, 4, 5, partition=3, segment=4)
    ends_agree(topic, {0: 1, 3: 6})
    assert topic.ingest("b").end_offsets == {0: 2, 3: 6}
    require_once(topic)


def test_an_expiry_of_snapshots_a_rewrite_and_a_delete_behind_them(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.append_by("java", 5)
    topic.append_by("spark", 6, 7)
    topic.sql("DELETE FROM {t} WHERE offset = 7")
    ends_agree(topic, {0: 8})
    topic.rewrite()
    ends_agree(topic, {0: 8})
    topic.expire()
    ends_agree(topic, {0: 7})
    assert topic.ingest("c").end_offsets == {0: 8}
    require_once(topic)


@JAVA_ALONE
@with_settings(max_records=3)
def test_retention_by_count_counts_them(topic: Topic, engine: Engine) -> None:
    topic.ingest("a", "b", "c")
    topic.append_by(engine, 3, 4)
    assert topic.run().name == "published"
    assert topic.places() == [2, 3, 4]
    assert topic.ingest("d").end_offsets == {0: 6}
    assert topic.run().name == "published"
    assert topic.places() == [3, 4, 5]


@JAVA_ALONE
@with_settings(message_expiry=2 * 86_400)
def test_expiry_takes_them_by_their_own_age(topic: Topic, engine: Engine) -> None:
    topic.ingest("a", "b")
    topic.append_by(engine, 2, 3, at=topic.ledger.now() // 1_000_000 - 60, segment=2)
    topic.run()
    assert topic.places() == [2, 3]
    assert topic.ingest("c").end_offsets == {0: 5}


@JAVA_ALONE
def test_deletion_and_undo_of_single_messages(topic: Topic, engine: Engine) -> None:
    topic.ingest("a", "b", "c")
    topic.append_by(engine, 3, 4)
    done = topic.remove(1, 4)
    assert done.removed == (("removed", 2),)
    topic.append_by(engine, 5)
    assert topic.run(UndoPlan(plan_id=done.plan_id or "")).restored == 2
    assert topic.ingest("d").end_offsets == {0: 7}
    assert topic.places() == [0, 1, 2, 3, 4, 5, 6]


@JAVA_ALONE
@with_settings(cleanup_policy="compact,delete")
def test_compaction_reads_them(topic: Topic, engine: Engine) -> None:
    topic.ingest("a", "b", "a")
    topic.append_by(engine, 3, key="a")
    assert topic.run("compaction").name == "published"
    topic.ingest("b")
    assert topic.run("compaction").name == "published"
    view = topic.s.stores.view.view(topic.name)
    assert view is not None
    assert view.horizons == {0: 4}
    require_once(topic)


@pytest.mark.parametrize(
    ("engine", "offsets"),
    sample([(engine, offsets) for engine in get_args(Engine) for offsets in PAST], ("spark", (1, 2)), *((("java", one)) for one in PAST)),
)
def test_offsets_of_the_past_stop_the_topic(topic: Topic, engine: Engine, offsets: tuple[int, ...]) -> None:
    topic.ingest("a", "b")
    before = topic.head()
    topic.append_by(engine, *offsets)
    topic.stops("AppendedBelowEnd")
    assert f"offsets {offsets[0]} to {offsets[-1]} of partition 0, which ended at 2" in str(topic.status()["problems"])
    topic.clear_inbox()
    topic.roll_back(before)
    assert topic.ingest("c").end_offsets == {0: 3}
    require_once(topic)


@JAVA_ALONE
def test_what_came_under_offsets_of_the_past_is_deleted_by_who_brought_it(topic: Topic, engine: Engine) -> None:
    topic.ingest("a", "b")
    topic.append_by(engine, 1)
    topic.sql("DELETE FROM {t} WHERE key = X'" + b"theirs".hex() + "'")
    assert topic.ingest("c").end_offsets == {0: 3}
    assert topic.places() == [0, 1, 2]


def test_a_person_keeps_messages_in_a_gap_and_never_two_of_one_offset(topic: Topic) -> None:
    topic.ingest("a", "b", "c")
    topic.remove(1)
    topic.append_by("java", 1)
    topic.stops("AppendedBelowEnd")
    topic.clear_inbox()
    assert witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False).repaired
    assert topic.places() == [0, 1, 2]
    assert topic.ingest("d").end_offsets == {0: 4}
    topic.append_by("java", 2)
    topic.clear_inbox()
    assert witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False).repaired
    with raises("OffsetGivenTwice"):
        topic.remove(2)
    assert "OffsetGivenTwice" in str(topic.status()["problems"])
    assert topic.places() == [0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("offsets", "by_one_commit"),
    sample([((5, 5), True), ((5, 5), False), ((5, 5, 9), True), ((5, 5, 9), False)], ((5, 5), True), ((5, 5, 9), False)),
)
@with_settings(max_age_seconds=86_400)
def test_one_offset_twice_above_the_end(topic: Topic, offsets: tuple[int, ...], by_one_commit: bool) -> None:
    topic.ingest("a", "b")
    for group in [offsets] if by_one_commit else [(offset,) for offset in offsets]:
        topic.append_by("spark", *group)
    before = topic.places()
    for work in (topic.run, lambda: topic.remove(5)):
        with raises("OffsetGivenTwice"):
            work()
    assert topic.places() == before
    end = offsets[-1] + 1
    assert topic.ingest("c").end_offsets == {0: end + 1}
    assert topic.places() == [*before, end]


def test_messages_without_an_offset(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.sql("ALTER TABLE {t} ALTER COLUMN offset DROP NOT NULL")
    topic.sql("INSERT INTO {t} SELECT partition, null, append_time, event_time, key, value, headers, size_bytes, segment, expires_at, never, "
              "origin_offset FROM {t} WHERE offset = 0")  # fmt: skip
    for work in (topic.run, lambda: topic.remove(0)):
        with raises("MessageWithoutPlace"):
            work()
    assert "MessageWithoutPlace" in str(topic.status()["problems"])
    topic.sql("DELETE FROM {t} WHERE offset IS NULL")
    assert topic.remove(0).removed == (("removed", 1),)


def test_a_file_whose_metadata_say_nothing_of_its_offsets(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.metrics.column.offset' = 'none')")
    topic.append_by("spark", 2, 3)
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.metrics.column.offset' = 'full')")
    assert dict(topic.s.reader.end_offsets(topic.name)) == {0: 4}
    assert topic.ingest("c").end_offsets == {0: 5}
    assert topic.places() == [0, 1, 2, 3, 4]


def test_the_last_offset_there_is(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.append_by("java", 2**63 - 1)
    topic.stops("OffsetsUsedUp")


def test_offsets_corrected_by_an_update_are_no_new_messages(topic: Topic) -> None:
    topic.ingest("a", "b", "c")
    topic.sql("UPDATE {t} SET value = X'77' WHERE offset = 1")
    assert topic.remove(1).removed == (("removed", 1),)
    assert topic.ingest("d").end_offsets == {0: 4}
    assert topic.places() == [0, 2, 3]
