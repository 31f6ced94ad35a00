"""Topics that copy from others: what they may be made of, what a copy brings, and that nothing goes or comes twice (MSG-5, TTL-6)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import copy_topic, create_topic, replicas_to_copy
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.errors import (
    InvalidSetting,
    UnknownTopic,
)
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.errors import raises

SECOND = 1_000_000
AS_OF = Instant(100 * SECOND)
TTL = "Nats-TTL"


class Logs:
    """Topics in memory, by their short names."""

    def __init__(self) -> None:
        self.world: World = memory_world({})
        self.world.set_now(AS_OF)
        self.s = self.world.services

    def name(self, topic: str) -> TopicName:
        return TopicName.parse(topic, default_stream="s")

    def topic(self, topic: str, *, partitions: int | None = None, **settings: Value) -> TopicName:
        create_topic(self.s, self.name(topic), partitions=partitions, settings={"max_removed_fraction": 1.0, **settings})
        return self.name(topic)

    def append(self, topic: str, *seconds: float | None, partition: int = 0, ttl: bytes | None = None, **more: Any) -> None:
        headers = () if ttl is None else ((TTL, ttl),)
        new = [
            NewMessage(
                append_time=None if at is None else Instant(int(at * SECOND)), key=b"k", value=b"v", partition=partition, headers=headers, **more
            )
            for at in seconds
        ]  # fmt: skip
        self.world.writer.append(self.name(topic), new, policy_of(self.s, self.name(topic)))

    def drop(self, topic: str) -> None:
        """By hand, out of the catalog."""
        del self.s.topics.tables[self.name(topic)]
        self.s.ledger.forget_topic(self.name(topic))  # a person says that it is meant to be gone: only then it is made again

    def stored(self, topic: str) -> list[Message]:
        return list(self.s.reader.messages(self.name(topic)))

    def offsets(self, topic: str) -> list[int]:
        return [message.offset for message in self.stored(topic)]

    def copied(self, origin: str, replica: str) -> dict[int, int]:
        return {p.partition: p.offset for p in self.s.ledger.consumers(self.name(origin)) if p.consumer == str(self.name(replica))}

    def copy(self, replica: str) -> int:
        return copy_topic(self.s, self.name(replica)).messages

    def clean(self, topic: str) -> str:
        return steps.run(self.s, self.name(topic), as_of=AS_OF, approver=lambda _plan, _report: (True, "tester", "")).name


@pytest.fixture
def logs() -> Logs:
    return Logs()


class TestMaking:
    def test_a_replica_has_its_origins_partitions_and_binds_it_at_once(self, logs: Logs) -> None:
        logs.topic("origin", partitions=3, message_expiry=1)
        logs.append("origin", 1, 2)
        made = logs.topic("copy", role="source", origin="origin")
        assert logs.s.topics.describe(made).partitions == 3
        assert logs.copied("origin", "copy") == {0: -1, 1: -1, 2: -1}
        assert logs.clean("origin") == "no_op"
        (held,) = preview(logs.s, logs.name("origin"), as_of=AS_OF).held
        assert (held.holder, held.detail, held.rows) == ("replica", "replica s/copy has copied nothing here yet", 2)

    def test_another_number_of_partitions_is_refused(self, logs: Logs) -> None:
        logs.topic("origin", partitions=3)
        with pytest.raises(InvalidSetting, match=r"partitions = 2 .* 3, as its origin s/origin"):
            logs.topic("copy", role="mirror", origin="origin", partitions=2)
        logs.topic("copy", role="mirror", origin="origin", partitions=3)

    def test_an_origin_that_is_not_there_is_named_and_nothing_is_made(self, logs: Logs) -> None:
        with pytest.raises(UnknownTopic, match="s/nowhere"):
            logs.topic("copy", role="mirror", origin="nowhere")
        assert logs.s.topics.list() == []

    @pytest.mark.parametrize("origin", ["copy", "S/Copy"])
    def test_a_topic_is_not_its_own_origin(self, logs: Logs, origin: str) -> None:
        with pytest.raises(InvalidSetting, match="a topic that does not copy from this one"):
            logs.topic("copy", role="mirror", origin=origin)

    def test_topics_copy_in_no_circle(self, logs: Logs) -> None:
        """Possible where a topic was taken out of the catalog by hand, and is made again."""
        logs.topic("a")
        logs.topic("b", role="source", origin="a")
        logs.topic("c", role="source", origin="b")
        logs.drop("a")
        with pytest.raises(InvalidSetting, match="a topic that does not copy from this one"):
            logs.topic("a", role="source", origin="c")
        assert list(logs.s.ledger.consumers(logs.name("c"))) == []

    def test_a_topic_that_is_there_binds_nobody(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.topic("copy")
        with raises("TopicExists"):
            logs.topic("copy", role="source", origin="origin")
        assert list(logs.s.ledger.consumers(logs.name("origin"))) == []

    def test_a_mirror_takes_nothing_of_its_own(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.topic("copy", role="mirror", origin="origin")
        with raises("InvalidAppend", match="mirror"):
            logs.append("copy", 1)


class TestCopying:
    def test_everything_comes_with_it(self, logs: Logs) -> None:
        logs.topic("origin", allow_msg_ttl=True)
        logs.append("origin", 1, ttl=b"2s", event_time=Instant(5))
        logs.append("origin", None, ttl=b"never")
        logs.topic("copy", role="mirror", origin="origin")
        assert logs.copy("copy") == 2
        assert [replace(message, origin_offset=None) for message in logs.stored("copy")] == logs.stored("origin")
        assert [message.origin_offset for message in logs.stored("copy")] == [0, 1]
        assert [(message.expires_at, message.never) for message in logs.stored("copy")] == [(3 * SECOND, False), (None, True)]

    def test_what_is_dead_is_copied_too(self, logs: Logs) -> None:
        logs.topic("origin", allow_msg_ttl=True, max_age_seconds=1)
        logs.append("origin", 1, ttl=b"1s")
        logs.topic("copy", role="source", origin="origin")
        assert logs.clean("origin") == "no_op", "neither TTL nor age takes what is not copied"
        assert logs.copy("copy") == 1
        assert (logs.clean("origin"), logs.offsets("origin"), logs.offsets("copy")) == ("published", [], [0])

    def test_a_source_numbers_and_cuts_for_itself(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1, offset=7, segment=7)
        logs.append("origin", 2, 3)
        logs.topic("copy", role="source", origin="origin", segment_size_bytes=2)
        logs.append("copy", 0)
        assert logs.copy("copy") == 3
        assert [(m.offset, m.segment, m.origin_offset) for m in logs.stored("copy")] == [(0, 0, None), (1, 1, 7), (2, 2, 8), (3, 3, 9)]

    def test_a_mirror_ends_where_its_origin_does_though_the_end_is_gone(self, logs: Logs) -> None:
        """Else the next copy would come again and again, or an offset would be given twice."""
        logs.topic("origin", message_expiry=1)
        logs.append("origin", 1, 2)
        assert logs.clean("origin") == "published"
        logs.topic("copy", role="mirror", origin="origin")
        assert logs.copy("copy") == 0
        assert logs.copied("origin", "copy") == {0: 1}
        assert dict(logs.s.reader.log(logs.name("copy")).end_offsets) == {0: 2}
        assert replicas_to_copy(logs.s, [logs.name("origin")]) == []

    def test_a_segment_that_the_mirror_has_closed_takes_no_more(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1, 2)
        logs.topic("copy", role="mirror", origin="origin", message_expiry=10)
        logs.copy("copy")
        assert (logs.clean("copy"), logs.offsets("copy")) == ("published", [])
        logs.append("origin", 99)
        logs.copy("copy")
        assert [(m.offset, m.segment) for m in logs.stored("copy")] == [(2, 2)]

    def test_a_mirrors_segment_is_closed_where_its_origins_is(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1)
        logs.world.writer.seal(logs.name("origin"), 0)
        logs.topic("copy", role="mirror", origin="origin")
        logs.copy("copy")
        assert [segment.sealed for segment in logs.s.reader.log(logs.name("copy")).segments] == [True]

    @pytest.mark.parametrize("role", ["source", "mirror"])
    def test_a_copier_that_dies_after_its_commit_copies_nothing_twice(self, logs: Logs, role: str) -> None:
        logs.topic("origin", message_expiry=1)
        logs.append("origin", 1, 2)
        logs.topic("copy", role=role, origin="origin")

        class Dies:
            def __getattr__(self, name: str) -> Any:
                if name == "set_copied":
                    raise KeyboardInterrupt
                return getattr(logs.s.ledger, name)

        with pytest.raises(KeyboardInterrupt):
            copy_topic(replace(logs.s, ledger=Dies()), logs.name("copy"))
        assert (len(logs.offsets("copy")), logs.copied("origin", "copy")) == (2, {0: -1})
        assert logs.clean("origin") == "no_op", "what is not registered as copied stays"
        assert replicas_to_copy(logs.s, [logs.name("copy")]) == [logs.name("copy")]
        assert logs.copy("copy") == 0
        assert (len(logs.offsets("copy")), logs.copied("origin", "copy")) == (2, {0: 1})
        assert logs.clean("origin") == "published"

    def test_a_deletion_in_the_replica_forgets_no_progress(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1, 2)
        logs.topic("copy", role="source", origin="origin", message_expiry=1)
        logs.copy("copy")
        assert logs.clean("copy") == "published"
        assert (logs.copy("copy"), logs.offsets("copy")) == (0, [])

    def test_an_origin_that_is_another_log_now_is_refused(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1, 2)
        logs.topic("copy", role="source", origin="origin")
        logs.copy("copy")
        there = deepcopy(logs.s.topics.tables[logs.name("origin")])
        logs.append("origin", 3)
        logs.copy("copy")
        logs.s.topics.tables[logs.name("origin")] = there  # restored from before
        with raises("OriginBehind", match="consumer remove s/origin s/copy"):
            logs.copy("copy")

    @pytest.mark.parametrize("role", ["source", "mirror"])
    @pytest.mark.parametrize("grown", [1, 2, 5])
    def test_an_origin_that_was_made_anew_is_not_copied_with_a_hole_however_long(self, logs: Logs, role: str, grown: int) -> None:
        logs.topic("origin")
        logs.append("origin", 1, 2)
        logs.topic("copy", role=role, origin="origin")
        logs.copy("copy")
        before = logs.stored("copy")
        logs.drop("origin")
        logs.topic("origin", message_expiry=1)
        logs.append("origin", *range(1, 1 + grown))
        with raises("AnotherOrigin", match=r"recreated.*consumer remove s/origin s/copy"):
            logs.copy("copy")
        assert logs.stored("copy") == before
        assert (logs.clean("origin"), logs.copied("origin", "copy")) == ("no_op", {0: -1}), (
            "what is not copied stays, under old offsets too"
        )
        assert replicas_to_copy(logs.s) == [logs.name("copy")], "and each pass says why"

    def test_the_way_on_after_an_origin_was_made_anew(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1, 2)
        logs.topic("copy", role="mirror", origin="origin")
        logs.copy("copy")
        logs.drop("origin")
        logs.topic("origin", message_expiry=1)
        logs.append("origin", 1, 2, 3)
        logs.topic("copy2", role="mirror", origin="origin")
        assert logs.copy("copy2") == 3
        logs.s.ledger.remove(logs.name("origin"), "s/copy")
        with raises("AnotherOrigin"):
            logs.copy("copy")
        assert logs.copied("origin", "copy") == {}, "asked for once more, it does not bind what a person took it off"
        assert (logs.clean("origin"), replicas_to_copy(logs.s)) == ("published", [])

    def test_a_replica_that_was_made_anew_copies_all(self, logs: Logs) -> None:
        logs.topic("origin", message_expiry=1)
        logs.append("origin", 1, 2)
        logs.topic("copy", role="source", origin="origin")
        logs.copy("copy")
        logs.drop("copy")
        logs.topic("copy", role="source", origin="origin")
        assert logs.clean("origin") == "no_op", "what the one before has copied is gone with it"
        assert (logs.copy("copy"), logs.clean("origin")) == (2, "published")

    def test_a_replica_from_before_origins_were_kept_goes_on(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.append("origin", 1, 2)
        logs.topic("copy", role="source", origin="origin")
        logs.copy("copy")
        logs.s.topics.of(logs.name("copy")).log.head.copied_from = None
        logs.append("origin", 3)
        assert logs.copy("copy") == 1
        logs.drop("origin")
        logs.topic("origin")
        logs.append("origin", *range(9))
        with raises("AnotherOrigin"):
            logs.copy("copy")

    def test_a_ledger_that_forgot_is_not_told(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.topic("copy", role="source", origin="origin")
        other = memory_world({}).services.ledger
        with raises("LedgerMismatch"):
            copy_topic(replace(logs.s, ledger=other), logs.name("copy"))

    @settings(max_examples=50, deadline=None)
    @given(
        steps_=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.booleans()), max_size=6),
        role=st.sampled_from(["source", "mirror"]),
    )
    def test_in_steps_or_at_once_it_is_the_same(self, steps_: list[tuple[int, int, bool]], role: str) -> None:
        """P6; and a mirror is its origin, message by message."""
        logs = Logs()
        logs.topic("origin", partitions=2, segment_size_bytes=5)
        for replica in ("often", "once"):
            logs.topic(replica, role=role, origin="origin", segment_size_bytes=5)
        for at, (partition, count, copy) in enumerate(steps_):
            logs.append("origin", *[at] * count, partition=partition)
            if copy:
                logs.copy("often")
        logs.copy("often")
        logs.copy("once")
        assert logs.stored("often") == logs.stored("once")
        if role == "mirror":
            assert [replace(message, origin_offset=None) for message in logs.stored("often")] == logs.stored("origin")


class TestWhatIsToCopy:
    def test_each_after_its_origin_and_only_what_is_behind(self, logs: Logs) -> None:
        logs.topic("z")
        logs.topic("m", role="source", origin="z")
        logs.topic("a", role="source", origin="m")
        logs.topic("idle", role="source", origin="z")
        logs.append("z", 1)
        logs.copy("idle")
        assert replicas_to_copy(logs.s) == [logs.name("m"), logs.name("a")], "what comes to m goes on to a"
        logs.copy("m")
        assert replicas_to_copy(logs.s) == [logs.name("a")]
        logs.append("z", 2)
        assert replicas_to_copy(logs.s, [logs.name("z")]) == [logs.name("idle"), logs.name("m"), logs.name("a")]
        assert replicas_to_copy(logs.s, [logs.name("a")]) == [logs.name("a")]
        assert replicas_to_copy(logs.s, [logs.name("idle")]) == [logs.name("idle")]

    def test_a_replica_that_was_taken_off_is_copied_by_hand_alone(self, logs: Logs) -> None:
        logs.topic("origin", message_expiry=1)
        logs.topic("copy", role="source", origin="origin")
        logs.append("origin", 1)
        logs.s.ledger.remove(logs.name("origin"), "s/copy")
        assert replicas_to_copy(logs.s) == []
        assert logs.clean("origin") == "published"
        logs.append("origin", 99)
        assert (logs.copy("copy"), logs.copied("origin", "copy")) == (1, {0: 1})

    def test_a_topic_that_is_not_there_is_no_other_topics_affair(self, logs: Logs) -> None:
        logs.topic("origin")
        logs.topic("copy", role="source", origin="origin")
        logs.append("origin", 1)
        assert replicas_to_copy(logs.s, [logs.name("nowhere"), logs.name("origin")]) == [logs.name("copy")]
