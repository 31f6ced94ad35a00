"""Compaction in memory against its rules, said again quadratically in tests/compacted.py (CMP-1 to CMP-9, CMP-12, P3, P6, P9, P12)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.memory import MemoryStore
from tests.compacted import (
    LAST,
    RUNS,
    Log,
    Topic,
    alive_by_the_rules,
    deletes,
    end_by_the_rules,
    is_dead,
    latest_by_the_rules,
    logs,
    of_one_key,
    older_by_event_time,
    view_by_the_rules,
)
from tests.effort import effort, generated
from tests.errors import raises
from tests.logs import AS_OF, SECOND

MANY = settings(effort("memory", 15), phases=[Phase.generate], report_multiple_bugs=False)
"""Without shrinking: a run of the verbs takes too long for hundreds of tries."""


def topic_of(log: Log) -> Topic:
    return Topic(memory_world({}), log)


def compacted(topic: Topic, as_of: Instant) -> Outcome:
    """A run, whose counts must add up (P9)."""
    before, horizons = [row for row in topic.view() if not row.remembered], dict(topic.horizons)
    outcome = topic.run(as_of)
    assert outcome.name in ("published", "no_op"), outcome.detail
    # What went before it was compacted (CMP-9) is not counted.
    in_log = set(topic.world.services.reader.messages(topic.name))
    tail = [m for m in topic.taken if m.offset > horizons.get(m.partition, -1) and m in in_log]
    after = [row for row in topic.view() if not row.remembered]
    assert outcome.rows_in == len(before) + len(tail)
    assert len(before) + len(tail) == len(after) + outcome.removed_rows
    assert outcome.rows_kept == len(after)
    return outcome


def in_one(log: Log) -> Topic:
    """All batches, then one run."""
    topic = topic_of(log)
    for batch, _ in log.batches:
        topic.append(batch)
    compacted(topic, LAST)
    return topic


@generated
@MANY
@given(logs())
def test_any_split_is_the_same_as_one_shot_and_as_the_rules(log: Log) -> None:  # P6, P9, CMP-5
    topic = topic_of(log)
    for batch, run in log.batches:
        topic.append(batch)
        if run is not None:
            before = dict(topic.horizons)
            compacted(topic, run)
            for partition, horizon in topic.horizons.items():
                mine = [m for (place, _), m in sorted(topic.ever.items()) if place == partition]
                assert horizon == max(before.get(partition, -1), end_by_the_rules(mine, run))
            rows = [row.message for row in topic.view()]
            assert rows == view_by_the_rules(topic.taken, log.settings, run)
    compacted(topic, LAST)
    once = in_one(log)
    assert topic.horizons == once.horizons
    assert topic.view() == once.view()
    assert [row.message for row in once.view()] == view_by_the_rules(once.taken, log.settings, LAST)
    assert compacted(topic, LAST).name == "no_op"  # P1
    assert topic.view() == once.view()


class Died(Exception):
    """The run ends here."""


def dies_between_its_commits(topic: Topic, as_of: Instant) -> None:
    """A run of the cleaner that has taken from the view what the plan names, and nothing from the log yet."""
    s = topic.world.services
    topic.world.set_now(as_of)
    record = steps.plan(s, topic.name, as_of=as_of)
    if record.outcome is not None or not record.plan.view_removal.mark:
        return
    plan_id = record.plan.plan_id
    if record.report is None:  # else the run before has died there as well, and this one goes on with its plan
        steps.stage(s, plan_id)
        if steps.gate(s, plan_id).judgement == "needs_approval":
            steps.approve(s, plan_id, granted=True, by="tester", text="as expected")

    def die(*_: object, **__: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Died):
        patched.setattr(MemoryStore, "publish", die)
        steps.publish(s, plan_id)
    assert s.stores.view.find_published(s.ledger.record(plan_id).plan) is not None, "the view comes first"


@generated
@MANY
@given(logs(retentions=(0.0, 0.5, 4.0, 100.0), lags=(None, 1, 5, 12)), st.data())
def test_a_deleted_key_never_shows_an_older_value(log: Log, data: st.DataObject) -> None:  # P3, CMP-6
    topic, last = topic_of(log), Instant(0)
    for batch, run in log.batches:
        topic.append(batch)
        last = max(last, run or RUNS[0])
        for work in data.draw(st.lists(st.sampled_from(["run", "earlier", "clean", "clean", "die", "die between"]), max_size=4)):
            if work in ("clean", "die between") and not topic.horizons:
                continue  # before the first run there is no horizon, and nothing binds the cleaner (CMP-9)
            if work == "clean":
                cleaned = topic.run(last, work="message_cleaner")
                while cleaned.more:  # a segment that its own TTL has emptied holds no other behind it any more
                    assert cleaned.name == "published"
                    cleaned = topic.run(last, work="message_cleaner")
                assert cleaned.name in ("published", "no_op")
                assert topic.run(last, work="message_cleaner").name == "no_op"  # P1
            elif work == "die between":
                dies_between_its_commits(topic, last)
            elif work == "die":  # a run that got as far as its stage
                topic.world.set_now(last)
                record = steps.plan(topic.world.services, topic.name, as_of=last, work="compaction")
                if record.outcome is None:
                    steps.stage(topic.world.services, record.plan.plan_id)
            else:
                compacted(topic, RUNS[0] if work == "earlier" else last)
        if not topic.horizons:
            continue
        latest, shown, log_now = latest_by_the_rules(topic.taken), topic.read(), list(topic.world.services.reader.messages(topic.name))
        covered = [m for m in shown if m.offset <= topic.horizons.get(m.partition, -1)]
        assert [m for m in covered if m not in latest] == []
        assert [m for m in covered if m.key is not None and deletes(m, log.settings)] == [
            row.message for row in topic.view() if row.delete_horizon is not None
        ]
        gone = [m for m in topic.past if m not in log_now]
        assert [m for m in shown if m not in covered] == [m for m in topic.past if m not in gone]
        assert log.settings.get("max_compaction_lag") is not None or not gone  # else nothing past the horizon goes
        assert [m for m in gone if not is_dead(m, log.settings, last)] == []
        assert [m for m in shown if any(of_one_key(m, other) and m.offset < other.offset for other in gone)] == []
        for at in (last, LAST):
            alive = topic.read(at=at)
            newest = {(m.partition, m.key): m for m in topic.ever.values() if m.key is not None and is_dead(m, log.settings, at)}
            for m in alive:
                dead = newest.get((m.partition, m.key))
                assert m.key is None or dead is None or dead.offset < m.offset
                assert not is_dead(m, log.settings, at)


@generated
@MANY
@given(logs(retentions=(0.0, 4.0)), st.randoms(use_true_random=False))
def test_order_of_keys_partitions_and_batches_changes_nothing(log: Log, chance: random.Random) -> None:  # P12
    """Messages that differ in partition, and batches that are cut elsewhere: only the order inside a partition is the log's."""
    every = [message for batch, _ in log.batches for message in batch]
    lanes = [[m for m in every if m.partition == partition] for partition in range(log.partitions)]
    mixed = []
    while any(lanes):
        lane = chance.choice([lane for lane in lanes if lane])
        mixed += [lane.pop(0) for _ in range(chance.randint(1, len(lane)))]
    other = topic_of(log)
    while mixed:
        cut = chance.randint(1, len(mixed))
        other.append(mixed[:cut])
        mixed = mixed[cut:]
    compacted(other, LAST)
    assert other.view() == in_one(log).view()


@generated
@MANY
@given(logs(), st.integers(0, 12), st.sampled_from([None, *RUNS, LAST]))
def test_a_compacted_read_is_what_the_rules_say(log: Log, start: int, at: Instant | None) -> None:  # CMP-4, CMP-6, CMP-8
    topic, ran = topic_of(log), None
    for batch, run in log.batches:
        topic.append(batch)
        if run is not None:
            compacted(topic, run)
            ran = run
    view = [] if ran is None else view_by_the_rules(topic.taken, log.settings, ran)
    shown = sorted((*view, *topic.past), key=lambda m: (m.partition, m.offset))
    if at is not None:
        shown = alive_by_the_rules(shown, log.settings, at)
    assert topic.read(start=start, at=at) == [m for m in shown if m.offset >= start]


def one_key(taken: list[Message], runs: list[tuple[Instant, list[Message]]], log: Log) -> Message | None:
    """CMP-12 for one key, run by run: its message in the view after the last run.

    Of the latest alone something is known: whether it is a message, a deletion kept until some instant, or a memory."""
    retention = round(float(str(log.settings["delete_retention"])) * SECOND)
    latest: Message | None = None
    until: int | None = None
    remembered = False
    for as_of, new in runs:
        for m in new:
            if latest is None or older_by_event_time(latest, m):
                latest, remembered, until = m, False, as_of + retention if deletes(m, log.settings) else None
        if latest is None:
            continue
        if remembered and until is not None and until <= as_of:
            latest, remembered, until = None, False, None
        elif not remembered and (is_dead(latest, log.settings, as_of) or (until is not None and until <= as_of)):
            remembered, until = True, as_of + retention
    return None if remembered else latest


@generated
@MANY
@given(logs(by_event_time=True, retentions=(0.000001, 0.5, 4.0, 100.0)))
def test_the_newest_event_time_wins_and_late_events_bring_nothing_back(log: Log) -> None:  # CMP-12
    topic = topic_of(log)
    none: tuple[NewMessage, ...] = ()
    runs: list[tuple[Instant, list[Message]]] = []
    for batch, run in (*log.batches, (none, LAST)):
        topic.append(batch)
        if run is None:
            continue
        before = topic.taken
        compacted(topic, run)
        runs.append((run, [m for m in topic.taken if m not in before]))
        keys = {(m.partition, m.key): m for m in topic.taken if m.key is not None}.values()
        wanted = [one_key(topic.taken, [(as_of, [m for m in new if of_one_key(m, key)]) for as_of, new in runs], log) for key in keys]
        rows = [row.message for row in topic.view() if not row.remembered and row.message.key is not None]
        assert rows == sorted((m for m in wanted if m is not None), key=lambda m: (m.partition, m.offset))
        assert all(row.message.value is None and not row.message.headers for row in topic.view() if row.remembered)
        shown = [m for m in topic.read() if m.offset <= topic.horizons.get(m.partition, -1)]
        assert [m for m in shown if m.key is not None] == rows


def test_a_partition_without_messages_gets_no_horizon_from_what_is_due_in_another() -> None:
    topic = topic_of(Log(settings={"message_expiry": 1, "max_removed_fraction": 1.0}, batches=()))
    topic.append([one(80)])
    compacted(topic, Instant(80 * SECOND))
    assert dict(compacted(topic, LAST).removed) == {"expiry": 1}
    assert topic.horizons == {0: 0}


@pytest.mark.parametrize(("change", "reason"), [({"max_age_seconds": 15.0}, "retention_age"), ({"retain_null_key": False}, "null_key")])
def test_a_tightened_setting_acts_on_the_view_though_nothing_is_new(change: Mapping[str, Value], reason: str) -> None:  # CMP-5, CMP-8
    topic = topic_of(Log(settings={"max_removed_fraction": 1.0}, batches=()))
    topic.append([one(80), one(80, key=None), one(99, key=b"young")])
    compacted(topic, AS_OF)
    alter_topic(topic.world.services, topic.name, change)
    topic.world.set_now(LAST)
    asked = steps.run(topic.world.services, topic.name, as_of=AS_OF, work="compaction")
    assert asked.name == "needs_approval"  # DEL-3
    assert reason in dict(compacted(topic, LAST).removed)
    assert compacted(topic, LAST).name == "no_op"


def test_a_topic_without_keys_is_not_compacted_and_one_with_keys_goes_on_without() -> None:
    topic = topic_of(Log(settings={"max_removed_fraction": 1.0}, batches=()))
    topic.append([one(80, key=None), one(80, key=None, partition=1)])
    with raises("TopicWithoutKeys"):
        topic.run(AS_OF)
    assert topic.horizons == {}
    topic.append([one(80, partition=1)])
    compacted(topic, AS_OF)
    topic.append([one(80, key=None)])
    compacted(topic, LAST)
    assert topic.horizons == {0: 1, 1: 1}


@pytest.mark.parametrize(("late", "shown"), [(5, [20]), (30, [])], ids=["an older event", "a newer event"])
@pytest.mark.parametrize("ran", [False, True])
def test_a_dead_message_hides_what_is_older_by_event_time(late: int, shown: list[int], ran: bool) -> None:  # CMP-8, CMP-12
    """A logical read before a run is what it is after it."""
    settings: dict[str, Value] = {"winner": "event_time", "delete_retention": 1, "allow_msg_ttl": True, "max_removed_fraction": 1.0}
    topic = topic_of(Log(settings=settings, batches=()))
    topic.append([one(80, event=20)])
    compacted(topic, Instant(80 * SECOND))
    topic.append([replace(one(81, event=late), headers=(("Nats-TTL", b"1s"),))])
    if ran:
        compacted(topic, AS_OF)
    assert [m.event_time for m in topic.read(at=AS_OF)] == shown


def test_a_memory_ends_however_many_runs_there_are_meanwhile() -> None:  # CMP-12
    topic = topic_of(Log(settings={"winner": "event_time", "delete_retention": 2, "max_removed_fraction": 1.0}, batches=()))
    topic.append([one(80, event=20, value=None)])
    for second in range(80, 85):
        topic.append([one(80, key=b"other")])
        compacted(topic, Instant(second * SECOND))
    assert [row.remembered for row in topic.view() if row.message.key == b"k"] == []
    topic.append([one(81, event=10)])
    compacted(topic, AS_OF)
    assert [m.key for m in topic.read()] == [b"other", b"k"]


def test_a_dead_message_of_the_view_hides_a_late_event() -> None:  # CMP-8, CMP-12
    settings: dict[str, Value] = {"winner": "event_time", "delete_retention": 1, "allow_msg_ttl": True, "max_removed_fraction": 1.0}
    topic = topic_of(Log(settings=settings, batches=()))
    topic.append([replace(one(80, event=20), headers=(("Nats-TTL", b"5s"),))])
    compacted(topic, Instant(80 * SECOND))
    topic.append([one(81, event=10)])
    assert topic.read(at=AS_OF) == []
    compacted(topic, AS_OF)
    assert topic.read(at=AS_OF) == []


def one(time: int, *, key: bytes | None = b"k", value: bytes | None = b"v", partition: int = 0, event: int | None = None) -> NewMessage:
    return NewMessage(
        append_time=Instant(time * SECOND), key=key, value=value, partition=partition, event_time=None if event is None else Instant(event)
    )
