"""Taking back on random logs in memory: a deletion and its undo leave what was there (DEL-7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.undo import ranges_in
from message_lifecycle.stores.iceberg.data_files import copied_from
from tests.effort import effort, generated
from tests.logs import SECOND
from tests.undone import approved

NAME = TopicName(stream="s", topic="t")
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(st.none(), st.integers(0, 100)),
        st.sampled_from([None, b"a", b"b", b"c"]),
        st.sampled_from(["", "1s", "30s", "never"]),
        st.booleans(),
    ),
    max_size=20,
)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "message_expiry": st.sampled_from([0, 20, 50]),
        "allow_msg_ttl": st.just(True),
        "subject_delete_marker_ttl": st.sampled_from([60, 600]),
        "max_records": st.integers(1, 5),
        "max_age_seconds": st.sampled_from([10, 60]),
        "max_total_bytes": st.sampled_from([40, 100]),
    },
)


@generated
@effort("memory", 40)
@given(messages=MESSAGES, policy=POLICIES, later=st.integers(0, 2))
def test_undo_of_a_deletion_is_the_log_as_it_was(
    messages: list[tuple[int, int | None, bytes | None, str, bool]], policy: dict[str, object], later: int
) -> None:
    if "subject_delete_marker_ttl" in policy:
        policy["allow_msg_ttl"] = True
    own = {"max_removed_fraction": 1.0, **policy}
    world = memory_world({})
    s = world.services
    create_topic(s, NAME, partitions=2, settings=own)  # type: ignore[arg-type]  # values of settings, by name
    for partition, at_s, key, ttl, sealed in messages:
        header = (("Nats-TTL", ttl.encode()),) if ttl and policy.get("allow_msg_ttl") else ()
        time = None if at_s is None else Instant(at_s * SECOND)
        message = NewMessage(append_time=time, key=key, value=b"v", partition=partition, headers=header)
        world.writer.append(NAME, [message], policy_of(s, NAME))
        if sealed:
            world.writer.seal(NAME, partition)
    was = list(s.reader.messages(NAME))
    now = Instant(110 * SECOND)
    world.set_now(now)
    cleaned = steps.run(s, NAME, as_of=now, approver=approved)
    if cleaned.name != "published":
        return
    for _ in range(later):
        world.writer.append(NAME, [NewMessage(append_time=now, key=b"later", value=b"v")], policy_of(s, NAME))
    ends = dict(s.reader.end_offsets(NAME))
    assert cleaned.plan_id is not None

    outcome = steps.run(s, NAME, as_of=now, approver=approved, work=UndoPlan(plan_id=cleaned.plan_id))

    assert outcome.name == "published", outcome.detail
    assert [m for m in s.reader.messages(NAME) if m.key != b"later"] == was
    assert sum(m.key == b"later" for m in s.reader.messages(NAME)) == later
    assert dict(s.reader.end_offsets(NAME)) == ends
    (known,) = s.ledger.undone(NAME)
    assert sum(last - first + 1 for _, first, last in known.ranges) == outcome.restored
    assert known.ranges == ranges_in(s.ledger.record(outcome.plan_id or "").plan.log_return.back)
    again = steps.run(s, NAME, as_of=now, approver=approved)
    taken = {(p, offset) for p, first, last in known.ranges for offset in range(first, last + 1)}
    assert taken <= {(m.partition, m.offset) for m in s.reader.messages(NAME)}, (again.name, "what came back stays")


def test_a_copy_tells_its_place_in_a_plan_of_any_size() -> None:
    places = (0, 999_999, 1_000_000, 12_345_678)
    assert [copied_from(f"data/{'0' * 8}-undo-{at:06}.parquet") for at in places] == list(places)
    assert copied_from("data/00000-0-1-undo.parquet") is None
