"""Consumers, accepted settings, due states and ingest settings: what is kept per topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import event

from message_lifecycle.ledger import Ledger
from message_lifecycle.model.errors import InvalidName
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import DueState
from tests.errors import raises
from tests.ledgers import OTHER, TOPIC


def test_progress_is_kept_by_normal_name_and_partition(ledger: Ledger) -> None:
    assert ledger.commit(TOPIC, " My  Billing ", 1, 7, Instant(5)).consumer == "my.billing"
    ledger.commit(TOPIC, "my.billing", 0, INT64_MAX, None)
    ledger.commit(TOPIC, "audit", 0, 0, Instant(-5))
    ledger.commit(OTHER, "audit", 0, 3, Instant(1))
    assert list(ledger.consumers(TOPIC)) == [
        Progress(consumer="audit", partition=0, offset=0, at=Instant(-5)),
        Progress(consumer="my.billing", partition=0, offset=INT64_MAX, at=None),
        Progress(consumer="my.billing", partition=1, offset=7, at=Instant(5)),
    ]


@pytest.mark.parametrize(("before", "given", "kept"), [(5, 9, 9), (9, 5, 9), (5, 5, 5), (None, 5, 5), (5, None, None), (None, None, None)])
def test_the_time_of_a_commit_never_moves_back(ledger: Ledger, before: int | None, given: int | None, kept: int | None) -> None:
    """A commit that comes late must not make a consumer look silent: its messages would go (P4)."""
    ledger.commit(TOPIC, "c", 0, 1, None if before is None else Instant(before))
    assert ledger.commit(TOPIC, "c", 0, 2, None if given is None else Instant(given)).at == kept
    assert [progress.at for progress in ledger.consumers(TOPIC)] == [kept]


def test_a_consumer_may_reset(ledger: Ledger) -> None:
    ledger.commit(TOPIC, "c", 0, 50, Instant(1))
    ledger.commit(TOPIC, "c", 0, 20, Instant(2))
    assert [progress.offset for progress in ledger.consumers(TOPIC)] == [20]


@pytest.mark.parametrize(("partition", "offset"), [(0, -2), (-1, 0), (0, INT64_MAX + 1), (2**31, 0)])
def test_impossible_progress_is_refused(ledger: Ledger, partition: int, offset: int) -> None:
    with raises("InvalidProgress"):
        ledger.commit(TOPIC, "c", partition, offset, Instant(1))
    assert ledger.consumers(TOPIC) == []


@pytest.mark.parametrize(("offset", "end_offset", "refused"), [(9, 10, False), (10, 10, True), (0, 0, True), (0, 1, False)])
def test_progress_past_the_end_of_the_log_is_refused(ledger: Ledger, offset: int, end_offset: int, refused: bool) -> None:
    if not refused:
        ledger.commit(TOPIC, "c", 0, offset, Instant(1), end_offset=end_offset)
        return
    with raises("InvalidProgress"):
        ledger.commit(TOPIC, "c", 0, offset, Instant(1), end_offset=end_offset)


def test_a_consumer_is_removed_whole_or_reported(ledger: Ledger) -> None:
    ledger.commit(TOPIC, "c", 0, 1, Instant(1))
    ledger.commit(TOPIC, "c", 1, 1, Instant(1))
    ledger.commit(TOPIC, "d", 0, 1, Instant(1))
    ledger.remove(TOPIC, " C ")
    assert [progress.consumer for progress in ledger.consumers(TOPIC)] == ["d"]
    for topic, name in ((TOPIC, "c"), (OTHER, "d")):
        with raises("UnknownConsumer"):
            ledger.remove(topic, name)
    with pytest.raises(InvalidName):
        ledger.remove(TOPIC, "..")
    with pytest.raises(InvalidName):
        ledger.commit(TOPIC, "a/b", 0, 1, None)


def test_a_topic_that_is_made_anew_has_been_read_and_copied_by_nobody(ledger: Ledger) -> None:
    """Offsets of a log that is gone name other messages now (EXP-6, TTL-6); who is registered stays, and binds."""
    third = TopicName.parse("stream/third")
    ledger.commit(TOPIC, "c", 0, 9, Instant(1))
    ledger.set_copied(TOPIC, OTHER, {0: 9})
    ledger.set_copied(OTHER, third, {0: 9})
    ledger.commit(OTHER, "c", 0, 9, Instant(1))
    ledger.reset_topic(TOPIC)
    found = [(p.consumer, p.offset, p.at, p.kind) for p in ledger.consumers(TOPIC)]
    assert found == [("c", -1, Instant(1), "consumer"), (str(OTHER), -1, None, "replica")]
    assert [p.offset for p in ledger.consumers(OTHER)] == [9, 9]
    ledger.reset_topic(third)
    assert [(p.consumer, p.offset) for p in ledger.consumers(OTHER)] == [("c", 9), (str(third), -1)]


def test_a_replica_is_registered_with_nothing_copied_and_never_falls_silent(ledger: Ledger) -> None:
    ledger.register_replica(TOPIC, OTHER, 2)
    ledger.set_copied(TOPIC, OTHER, {1: 7})
    ledger.register_replica(TOPIC, OTHER, 2)  # again: nothing is forgotten
    assert list(ledger.consumers(TOPIC)) == [
        Progress(consumer="shop/returns", partition=0, offset=-1, at=None, kind="replica"),
        Progress(consumer="shop/returns", partition=1, offset=7, at=None, kind="replica"),
    ]
    ledger.commit(OTHER, "c", 0, 1, None)
    assert ledger.replicas() == [(TOPIC, OTHER)]
    assert all(progress.pins_at(Instant(INT64_MAX), 0) for progress in ledger.consumers(TOPIC))


def test_nobody_moves_a_replica_on_by_hand(ledger: Ledger) -> None:
    ledger.register_replica(TOPIC, OTHER, 1)
    with raises("ReplicaProgress", match="topic copy shop/returns"):
        ledger.commit(TOPIC, "Shop/Returns", 0, 5, None)
    ledger.commit(TOPIC, "returns", 0, 5, None)  # a consumer of its own name is another one
    assert [(p.consumer, p.offset, p.kind) for p in ledger.consumers(TOPIC)] == [
        ("returns", 5, "consumer"),
        ("shop/returns", -1, "replica"),
    ]
    ledger.remove(TOPIC, "Shop/Returns")
    assert [p.consumer for p in ledger.consumers(TOPIC)] == ["returns"]
    with pytest.raises(InvalidName):
        ledger.commit(TOPIC, "shop/returns", 0, 5, None)


def test_accepted_settings_are_kept_with_their_types(ledger: Ledger) -> None:
    assert ledger.accepted(TOPIC) is None
    ledger.set_accepted(TOPIC, {"message_expiry": 10})
    ledger.set_accepted(TOPIC, {"message_expiry": 9, "enabled": True, "max_removed_fraction": 1.0, "cleanup_policy": "delete"})
    found = ledger.accepted(TOPIC)
    assert found == {"message_expiry": 9, "enabled": True, "max_removed_fraction": 1.0, "cleanup_policy": "delete"}
    assert [type(value) for value in (found["enabled"], found["max_removed_fraction"])] == [bool, float]
    ledger.set_accepted(OTHER, {})
    assert ledger.accepted(OTHER) == {}


@pytest.fixture
def statements(ledger: Ledger) -> Iterator[list[str]]:
    asked: list[str] = []
    event.listen(ledger._database.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    yield asked


def test_due_states_of_all_topics_come_in_one_query(ledger: Ledger, statements: list[str]) -> None:
    states = {
        TopicName(stream="s", topic=f"t.{n}"): DueState(
            marker=str(n), policy_hash="p", next_due_at=None if n else Instant(-1), holders=(("c/0", "5"), ('"', "\\"))[:n]
        )
        for n in range(3)
    }
    for topic, state in states.items():
        ledger.set_due_state(topic, DueState(marker="old", policy_hash="old", next_due_at=Instant(1), holders=(("x", "y"),)))
        ledger.set_due_state(topic, state)
    statements.clear()
    assert ledger.due_states() == states
    assert len([text for text in statements if text.lower().startswith("select")]) == 1


def test_ingest_settings_are_kept_per_topic(ledger: Ledger) -> None:
    assert ledger.ingest_settings(TOPIC) == {}
    ledger.set_ingest_setting(TOPIC, "shift_us", 1)
    ledger.set_ingest_setting(TOPIC, "shift_us", -86_400_000_000)
    ledger.set_ingest_setting(TOPIC, 'a "name"', "text")
    assert ledger.ingest_settings(TOPIC) == {"shift_us": -86_400_000_000, 'a "name"': "text"}
    assert ledger.ingest_settings(OTHER) == {}
