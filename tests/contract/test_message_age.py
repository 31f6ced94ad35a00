"""What every store must do with messages that go one by one: by their own TTL, by the topic's age, and with what markers."""

from __future__ import annotations

import random

from hypothesis import given

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage, is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value
from tests.ages import Aged, aged_logs, marked_keys_by_the_rules, reasons_by_the_rules
from tests.contract.conftest import MakeWorld
from tests.effort import effort, generated
from tests.logs import AS_OF, SECOND


def topic_of(world: World, log: Aged) -> TopicName:
    name = TopicName(stream=f"{world.scratch}.ages" if world.scratch else "ages", topic=f"t{random.getrandbits(64):x}")
    create_topic(world.services, name, partitions=1, settings=log.settings)
    for batch in log.batches:
        world.writer.append(name, batch, policy_of(world.services, name))
    return name


def cleaned(world: World, name: TopicName, as_of: Instant = AS_OF) -> Outcome:
    world.set_now(as_of)
    return steps.run(world.services, name, as_of=as_of, approver=lambda _plan, _report: (True, "tester", "as expected"))


@generated
def test_what_goes_is_what_the_rules_say_and_emptied_keys_are_marked_once(make_world: MakeWorld, store_kind: str) -> None:
    @given(aged_logs())
    @effort(store_kind, 40, on_tables=2)
    def holds(log: Aged) -> None:
        world = make_world({})
        name = topic_of(world, log)
        before = list(world.services.reader.messages(name))
        gone = reasons_by_the_rules(before, log.settings)
        marked = marked_keys_by_the_rules(before, gone) if "subject_delete_marker_ttl" in log.settings else []
        older = [m for m in before if m.offset not in gone and is_marker(m.headers) and m.key in marked]
        outcome = cleaned(world, name)
        after = list(world.services.reader.messages(name))
        assert outcome.name == ("published" if gone else "no_op"), outcome.detail
        new = [message for message in after if message.offset >= len(before)]
        assert [m for m in before if m.offset not in gone and m not in older] == [m for m in after if m not in new]
        assert [message.key for message in new] == marked  # P7, and their order
        assert all(is_marker(message.headers) and message.value == b"" for message in new)
        counts = {reason: list(gone.values()).count(reason) for reason in gone.values()}
        assert dict(outcome.removed) == ({**counts, "superseded": len(older)} if older else counts)
        assert outcome.markers == len(marked)
        assert len(before) == len(after) - len(new) + outcome.removed_rows  # P9
        again = cleaned(world, name)  # P1
        assert again.name == ("published" if outcome.more else "no_op")
        if outcome.more:
            assert "no_op" in [cleaned(world, name).name for _ in before], "what the run itself let go ends"
        else:
            assert list(world.services.reader.messages(name)) == after
        later = cleaned(world, name, Instant(AS_OF + 7 * SECOND))  # P2, P11
        assert later.name in ("published", "no_op")
        left: list[Message] = list(world.services.reader.messages(name))
        assert {m.offset for m in left if m.offset < len(before)} <= {m.offset for m in after}
        timeless = [m for m in after if m.never and not is_marker(m.headers)]
        assert [m for m in timeless if m not in left] == []
        world.close()

    holds()


@generated
def test_what_goes_by_number_counts_in_whether_a_key_is_marked(make_world: MakeWorld, store_kind: str) -> None:  # MRK-3, DEL-9
    @given(aged_logs(limited=True))
    @effort(store_kind, 40, on_tables=2)
    def holds(log: Aged) -> None:
        world = make_world({})
        name = topic_of(world, log)
        before = list(world.services.reader.messages(name))
        gone = reasons_by_the_rules(before, log.settings)
        marked = marked_keys_by_the_rules(before, gone)
        outcome = cleaned(world, name)
        assert outcome.name == ("published" if gone else "no_op"), outcome.detail
        counts = {reason: list(gone.values()).count(reason) for reason in gone.values()}
        assert {reason: rows for reason, rows in outcome.removed if reason != "superseded"} == counts
        new = [message for message in world.services.reader.messages(name) if message.offset >= len(before)]
        assert [message.key for message in new] == marked
        world.close()

    holds()


def test_what_an_older_marker_had_held_is_told_as_more(make_world: MakeWorld) -> None:  # P1, MRK-5, CLK-4
    """A marker of unknown time holds the log behind it, until the run replaces it by one of its own."""
    world = make_world({})
    marker = NewMessage(append_time=None, key=b"b", value=b"", partition=0, headers=(("Nats-Marker-Reason", b"MaxAge"),))
    old, newer = Instant(AS_OF - 20 * SECOND), Instant(AS_OF - 12 * SECOND)
    last, behind = (NewMessage(append_time=at, key=key, value=b"v", partition=0) for at, key in ((old, b"b"), (newer, None)))
    ages: dict[str, Value] = {"message_expiry": 10, "max_age_seconds": 15.5, "subject_delete_marker_ttl": 60}
    log = Aged(
        settings={"allow_msg_ttl": True, "segment_size_bytes": 1, "max_removed_fraction": 1.0, **ages}, batches=((marker, last, behind),)
    )
    name = topic_of(world, log)
    first = cleaned(world, name)
    assert (dict(first.removed), first.markers, first.more) == ({"retention_age": 1, "superseded": 1}, 1, True)
    second = cleaned(world, name)
    assert (dict(second.removed), second.more) == ({"expiry": 1}, False)
    assert cleaned(world, name).name == "no_op"
    assert [is_marker(message.headers) for message in world.services.reader.messages(name)] == [True]
    world.close()
