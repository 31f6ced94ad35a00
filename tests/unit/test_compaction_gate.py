"""What is wrong in a staged view is seen, blocks the run, and leaves view and horizon as they were (DEL-2, DEL-3, CMP-1 to CMP-4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.requests import forget_view
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.errors import CompactedTableMissing
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, ViewRow
from message_lifecycle.stores.memory import MemoryStore
from message_lifecycle.stores.memory.tables import StagedVersion, Table, ViewVersion
from tests.compacted import Log, Topic
from tests.errors import raises
from tests.logs import AS_OF, SECOND

LATER = Instant(AS_OF + 10 * SECOND)


def message(key: bytes | None, value: bytes | None, *, time: int = 80) -> NewMessage:
    return NewMessage(append_time=Instant(time * SECOND), key=key, value=value)


@pytest.fixture
def topic() -> Topic:
    """In the view: a, b and one without a key. Past its horizon: a newer a, the deletion of b, c twice, one without a key, one too late."""
    made = Topic(memory_world({}), Log(settings={"max_removed_fraction": 1.0}, batches=(), partitions=1))
    made.append([message(b"a", b"0"), message(b"b", b"1"), message(None, b"2")])
    assert made.run(AS_OF).name == "published"
    made.append(
        [
            message(b"a", b"3"),
            message(b"b", None),
            message(b"c", b"5"),
            message(b"c", b"6"),
            message(None, b"7"),
            message(b"z", b"8", time=999),
        ]
    )
    return made


Damage = Callable[[list[ViewRow], Callable[[int], ViewRow]], list[ViewRow]]


def without(offset: int) -> Damage:
    return lambda rows, _row: [row for row in rows if row.message.offset != offset]


def instead(offset: int, other: int) -> Damage:
    return lambda rows, row: beside(other)(without(offset)(rows, row), row)


def beside(other: int) -> Damage:
    return lambda rows, row: sorted([*rows, row(other)], key=lambda each: each.message.offset)


def changed(offset: int, **parts: object) -> Damage:
    def damage(rows: list[ViewRow], _row: Callable[[int], ViewRow]) -> list[ViewRow]:
        return [replace(row, message=replace(row.message, **parts)) if row.message.offset == offset else row for row in rows]

    return damage


DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "a second row of a key": (beside(0), {"repeated_keys", "unwanted", "rows_kept", "rows_removed"}),
    "an older row of the tail": (instead(6, 5), {"unwanted", "missing"}),
    "the row that the view had": (instead(3, 0), {"unwanted", "missing"}),
    "the value of a deleted key": (beside(1), {"unwanted", "rows_kept", "rows_removed"}),
    "the deletion itself": (beside(4), {"unwanted", "rows_kept", "rows_removed"}),
    "a missing key": (without(6), {"missing", "rows_kept", "rows_removed"}),
    "a missing message without a key, new": (without(7), {"null_keys_missing", "rows_kept", "rows_removed"}),
    "a missing message without a key, of the view": (without(2), {"null_keys_missing", "rows_kept", "rows_removed"}),
    "another value": (changed(6, value=b"x"), {"changed"}),
    "another header": (changed(2, headers=(("h", b"x"),)), {"changed"}),
    "another time": (changed(3, append_time=Instant(1)), {"changed"}),
    "out of order": (lambda rows, _row: rows[::-1], {"disordered"}),
    "past the horizon": (beside(8), {"unwanted", "changed", "beyond", "rows_kept", "rows_removed"}),
    "nothing": (lambda _rows, _row: [], {"missing", "null_keys_missing", "rows_kept", "rows_removed"}),
}


def staged_by(topic: Topic) -> tuple[str, StagedVersion[ViewVersion]]:
    store = topic.world.services.stores.log
    assert isinstance(store, MemoryStore)
    topic.world.set_now(LATER)
    plan = steps.plan(topic.world.services, topic.name, as_of=LATER, work="compaction").plan
    topic.world.services.stores.view.stage(plan)
    return plan.plan_id, store.of(topic.name).view.staged[plan.plan_id]


def is_blocked(topic: Topic, plan_id: str, wanted: set[str]) -> None:
    s = topic.world.services
    before, horizons = topic.view(), dict(topic.horizons)
    report = steps.gate(s, plan_id)
    assert {check.id for check in report.blocking} == wanted
    outcome = steps.publish(s, plan_id)
    assert getattr(outcome, "name", None) == "blocked"
    assert (topic.view(), dict(topic.horizons)) == (before, horizons)
    assert topic.run(LATER).name in ("published", "blocked")


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_view_is_not_published(topic: Topic, name: str) -> None:
    damage, wanted = DAMAGES[name]
    plan_id, made = staged_by(topic)
    assert [row.message.offset for row in made.version.rows] == [2, 3, 6, 7]
    steps.stage(topic.world.services, plan_id)
    rows = damage(list(made.version.rows), lambda offset: ViewRow(message=topic.ever[0, offset]))
    made.version = replace(made.version, rows=tuple(rows))
    is_blocked(topic, plan_id, wanted)


def test_wrong_counts_are_not_published(topic: Topic) -> None:  # CNT-1
    plan_id, made = staged_by(topic)
    made.removed["superseded"] += 1
    steps.stage(topic.world.services, plan_id)
    is_blocked(topic, plan_id, {"rows_removed"})


def test_an_undamaged_view_passes(topic: Topic) -> None:
    plan_id, _ = staged_by(topic)
    steps.stage(topic.world.services, plan_id)
    assert steps.gate(topic.world.services, plan_id).blocking == ()


def test_a_view_that_reaches_beyond_its_log_is_not_compacted_into(topic: Topic) -> None:
    store = topic.world.services.stores.log
    assert isinstance(store, MemoryStore)
    view = store.of(topic.name).view
    view.commits[-1] = replace(view.commits[-1], version=replace(view.head, horizons={0: 9}))
    with raises("HorizonBeyondLog"):
        topic.run(LATER)
    assert len(view.commits) == 1


def test_a_view_that_was_there_and_is_gone_is_not_made_anew(topic: Topic) -> None:  # CMP-4
    store = topic.world.services.stores.log
    assert isinstance(store, MemoryStore)
    store.of(topic.name).view = Table(kind="view", empty=ViewVersion())
    with pytest.raises(CompactedTableMissing):
        topic.run(LATER)
    with pytest.raises(CompactedTableMissing):
        topic.read()


def test_a_purged_log_is_not_read_for_a_view_that_nobody_knows_of() -> None:  # CMP-4
    """The log itself tells that it was purged, where the ledger has forgotten the view."""
    made = Topic(memory_world({}), Log(settings={"cleanup_policy": "compact", "max_removed_fraction": 1.0}, batches=(), partitions=1))
    made.append([message(b"a", b"0"), message(b"a", b"1")])
    made.world.writer.seal(made.name, 0)
    assert (made.run(AS_OF).name, made.run(LATER, work="purge_compacted").name) == ("published", "published")
    store = made.world.services.stores.log
    assert isinstance(store, MemoryStore)
    store.of(made.name).view = Table(kind="view", empty=ViewVersion())
    made.world.services.ledger.set_accepted_view(made.name, None)
    with pytest.raises(CompactedTableMissing, match="purged"):
        made.read()


def test_a_log_is_not_read_for_a_view_that_is_to_be_made_anew(topic: Topic) -> None:  # CMP-4
    """A person lets it be made anew, and it is not there yet: the log may have been trimmed since it was."""
    services, store = topic.world.services, topic.world.services.stores.log
    assert isinstance(store, MemoryStore)
    store.of(topic.name).view = Table(kind="view", empty=ViewVersion())
    forget_view(services, topic.name)
    with pytest.raises(CompactedTableMissing):
        topic.read()
    assert topic.run(LATER).name == "published"
    assert topic.read()


@pytest.fixture
def behind() -> Topic:
    """In the view: a and b. Past its horizon, and long dead: a newer a; a c that lives, and a newer c that is dead."""
    settings = {"max_removed_fraction": 1.0, "allow_msg_ttl": True, "max_compaction_lag": 1}
    made = Topic(memory_world({}), Log(settings=settings, batches=(), partitions=1))
    made.append([message(b"a", b"0"), message(b"b", b"1")])
    assert made.run(Instant(80 * SECOND)).name == "published"
    made.append([dying(b"a", b"2"), message(b"c", b"3"), dying(b"c", b"4")])
    return made


def dying(key: bytes, value: bytes) -> NewMessage:
    return replace(message(key, value), headers=(("Nats-TTL", b"1s"),))


def test_past_the_lag_what_goes_takes_its_key_from_the_view(behind: Topic) -> None:  # CMP-9
    behind.world.set_now(AS_OF)
    plan = steps.plan(behind.world.services, behind.name, as_of=AS_OF).plan
    assert [(action.partition, action.offsets, action.reason) for action in plan.view_removal.mark] == [(0, "0", "superseded")]
    assert [action.offsets for action in plan.log_commit.mark] == ["2"]
    (bound,) = [bound for bound in plan.bounds if bound.name == "compaction"]
    assert bound.offset == 5
    assert "1 message from offset 4 wait for it" in bound.reason
    assert "20s old, more than max_compaction_lag = 1s" in bound.reason
    (warning,) = plan.warnings
    assert "has compacted up to offset 1" in warning
    assert "20s old, more than max_compaction_lag = 1s" in warning
    (held,) = plan.held
    assert (held.holder, held.rows, held.last_offset) == ("compaction", 1, 4)
    outcome = steps.run(behind.world.services, behind.name, as_of=AS_OF)
    assert dict(outcome.removed) == {"ttl": 1}
    assert [row.message.offset for row in behind.view()] == [1]


@pytest.mark.parametrize(
    ("forgotten", "wanted"),
    [
        ({"of_view": {}}, {"outlived_view"}),
        ({"in_log": {}}, {"outlived_log"}),
        ({"of_view": {0: [1]}}, {"outlived_view"}),
    ],
)
def test_a_cleaner_that_would_bring_an_older_value_back_is_blocked(
    behind: Topic, forgotten: dict[str, object], wanted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # CMP-9, P3
    s = behind.world.services
    behind.world.set_now(AS_OF)
    right = s.stores.view.find_older_rows
    monkeypatch.setattr(s.stores.view, "find_older_rows", lambda view, plan: replace(right(view, plan), **forgotten))
    plan = steps.plan(s, behind.name, as_of=AS_OF).plan
    steps.stage(s, plan.plan_id)
    assert {check.id for check in steps.gate(s, plan.plan_id).blocking} == wanted
    assert [m.offset for m in s.reader.messages(behind.name)] == [0, 1, 2, 3, 4]
    assert [row.message.offset for row in behind.view()] == [0, 1]
