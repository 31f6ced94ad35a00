"""What every store must do with messages that go one by one: by their own TTL, by the topic's age, and with what markers."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, given, settings

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from tests.ages import Aged, aged_logs, marked_keys_by_the_rules, reasons_by_the_rules
from tests.contract.conftest import MakeWorld
from tests.logs import AS_OF, SECOND


def topic_of(world: World, log: Aged) -> TopicName:
    name = TopicName(stream=f"{world.scratch}.ages" if world.scratch else "ages", topic=f"t{random.getrandbits(64):x}")
    create_topic(world.services, name, partitions=1, settings=log.settings)
    for batch in log.batches:
        world.writer.append(name, batch, steps.policy_of(world.services, name))
    return name


def cleaned(world: World, name: TopicName, as_of: Instant = AS_OF) -> Outcome:
    world.set_now(as_of)
    return steps.run(world.services, name, as_of=as_of, approver=lambda _plan, _report: (True, "tester", "as expected"))


def test_what_goes_is_what_the_rules_say_and_emptied_keys_are_marked_once(make_world: MakeWorld, store_kind: str) -> None:
    few = store_kind == "iceberg"

    @given(aged_logs())
    @settings(
        max_examples=4 if few else 150,
        phases=[Phase.generate] if few else list(Phase),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
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
        assert again.name == "no_op"
        assert list(world.services.reader.messages(name)) == after
        later = cleaned(world, name, Instant(AS_OF + 7 * SECOND))  # P2, P11
        assert later.name in ("published", "no_op")
        left: list[Message] = list(world.services.reader.messages(name))
        assert {m.offset for m in left if m.offset < len(before)} <= {m.offset for m in after}
        timeless = [m for m in after if m.never and not is_marker(m.headers)]
        assert [m for m in timeless if m not in left] == []
        world.close()

    holds()
