"""Which snapshots stay, and why: the rule by itself, over pasts as they may be (DEL-7, MSG-4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import json_file_world, memory_world
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.tables import LooseFiles, LooseQuestion, ReclaimFacts, RefFact, SnapshotFact, TableHistory
from message_lifecycle.operations.reclaim import find_kept_history, plan
from tests.errors import raises
from tests.logs import AS_OF

NAME = TopicName(stream="s", topic="t")
DAY = 86_400_000_000
NOW = Instant(1_000 * DAY)
WINDOW = 7 * DAY


def snapshot(snapshot_id: int, at: int, *, parent: int | None = None, carries: tuple[str, ...] = ()) -> SnapshotFact:
    return SnapshotFact(snapshot_id=snapshot_id, parent_id=parent, at=Instant(at), carries=carries)


def line(*times: int) -> tuple[SnapshotFact, ...]:
    """Snapshots 1, 2, ... of one branch."""
    return tuple(snapshot(at + 1, time, parent=at or None) for at, time in enumerate(times))


def table(snapshots: tuple[SnapshotFact, ...], *refs: RefFact, main: int | None = None) -> TableHistory:
    head = RefFact(name="main", snapshot_id=main or snapshots[-1].snapshot_id, is_branch=True)
    return TableHistory(table="", table_uuid="u", snapshots=snapshots, refs=(head, *refs))


def kept(history: TableHistory) -> set[int]:
    return set(find_kept_history(history, as_of=NOW, before=Instant(NOW - WINDOW)).reasons)


@pytest.mark.parametrize(("micros", "stays"), [(-1, False), (0, False), (1, True)])
def test_a_snapshot_stays_while_it_was_the_newest_within_the_window(micros: int, stays: bool) -> None:  # CLK-2
    """What followed it is as old as the window, give or take."""
    assert (1 in kept(table(line(1, NOW - WINDOW + micros, NOW - 1)))) is stays


def test_the_state_before_a_deletion_stays_however_old_it_is() -> None:
    """It was made long ago and stood until yesterday: to it the deletion of yesterday is taken back."""
    assert kept(table(line(1, 2, NOW - DAY))) == {2, 3}


def test_branches_keep_what_their_own_rules_say() -> None:
    snapshots = line(1, 2, 3, 4, NOW - 100 * DAY)
    by_number = RefFact(name="b", snapshot_id=4, is_branch=True, min_snapshots=2)
    by_age = RefFact(name="b", snapshot_id=4, is_branch=True, max_snapshot_age_us=NOW - 2)
    tag = RefFact(name="b", snapshot_id=2, is_branch=False, min_snapshots=9)
    assert kept(table(snapshots, by_number)) == {3, 4, 5}
    assert kept(table(snapshots, by_age)) == {2, 3, 4, 5}
    assert kept(table(snapshots, tag)) == {2, 5}


@pytest.mark.parametrize(("age", "ends"), [(NOW - 2 - 1, True), (NOW - 2, False)])
def test_a_branch_ends_past_its_age_and_main_never(age: int, ends: bool) -> None:
    history = table(line(1, 2, 3), RefFact(name="b", snapshot_id=2, is_branch=True, max_ref_age_us=age))
    found = find_kept_history(history, as_of=NOW, before=Instant(NOW - WINDOW))
    assert found.refs == (("b",) if ends else ())
    assert (2 in found.reasons) is not ends
    main = replace(history, refs=(replace(history.refs[0], max_ref_age_us=0),))
    assert find_kept_history(main, as_of=NOW, before=Instant(NOW - WINDOW)).refs == ()


def test_all_between_a_branch_and_the_newest_word_of_each_writer_stays() -> None:
    words = {2: ("flink",), 3: ("flink", "ours"), 5: ("ours",)}
    snapshots = tuple(replace(entry, carries=words.get(entry.snapshot_id, ())) for entry in line(1, 2, 3, 4, 5, 6))
    assert kept(table(snapshots)) == {3, 4, 5, 6}
    assert kept(table(snapshots, main=4)) == {3, 4}


def test_where_nothing_stays_nothing_is_asked_or_goes() -> None:
    history = TableHistory(table="", table_uuid="u", snapshots=line(1, 2), refs=())
    found = find_kept_history(history, as_of=NOW, before=Instant(NOW - WINDOW))
    assert (found.reasons, found.going) == ({}, ())
    assert made(history).is_empty


def made(history: TableHistory, policy: Policy | None = None, **facts: Any) -> Plan:
    def ask(question: LooseQuestion) -> LooseFiles:
        assert question.kept
        return LooseFiles(table=question.table, files=(("data/f", "data", 7),), total_files=2, total_bytes=9)

    known = ReclaimFacts(topic=NAME, tables=(history,), snapshot_id=1, **facts)
    return plan(known, policy or resolve(topic={}, server={}), as_of=NOW, ask=ask)


def test_a_window_of_no_time_is_an_error_and_never_now() -> None:
    with pytest.raises(InvalidSetting, match="undo_window"):
        resolve_and_plan(0)
    with pytest.raises(InvalidSetting, match="undo_window"):
        resolve_and_plan(-1)


def resolve_and_plan(window: int) -> object:
    """As though a wrong value had got past where settings are read."""
    values = {**resolve(topic={}, server={}).values, "undo_window": window}
    return made(table(line(1, 2)), Policy.from_values(values.items()))


def test_what_holds_the_topic_holds_its_past() -> None:  # DEL-8
    assert not made(table(line(1, 2))).is_empty
    found = made(table(line(1, 2)), held=("legal hold h1",))
    assert found.is_empty and "legal hold h1" in found.warnings[0]


def test_nothing_younger_than_an_open_ingest_goes() -> None:
    history = table(line(1, 2 * DAY, 3 * DAY, NOW - 20 * DAY))
    assert [action.snapshots for action in made(history).forgets] == [(1, 2, 3)]
    assert made(history, needed_since=Instant(2 * DAY)).forgets[0].snapshots == (1,)


def test_the_plan_says_when_there_is_more_to_come() -> None:
    assert made(table(line(1, NOW - 3 * DAY))).next_due_at == NOW + 4 * DAY


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=12),
    st.sets(st.integers(1, 12), max_size=3),
    st.integers(0, 30),
)
def test_what_stays_is_whole_and_what_goes_is_old(shape: list[tuple[int, int]], heads: set[int], later: int) -> None:
    """Any tree of snapshots: no ref loses its head, nothing young goes, and a later look takes no less."""
    snapshots: list[SnapshotFact] = []
    for number, (back, days) in enumerate(shape, start=1):
        parent = number - 1 - back
        before = snapshots[parent - 1].at if parent > 0 else NOW - 40 * DAY
        snapshots.append(snapshot(number, min(before + days * DAY, NOW), parent=parent if parent > 0 else None))
    refs = tuple(RefFact(name=f"b{head}", snapshot_id=head, is_branch=True) for head in heads if head <= len(snapshots))
    history = table(tuple(snapshots), *refs)
    found = find_kept_history(history, as_of=NOW, before=Instant(NOW - WINDOW))
    assert {ref.snapshot_id for ref in history.refs} <= found.reasons.keys()
    assert found.reasons.keys() | set(found.going) == {entry.snapshot_id for entry in snapshots}
    assert not found.reasons.keys() & set(found.going)
    for entry in snapshots:
        if entry.at > NOW - WINDOW:
            assert entry.snapshot_id in found.reasons
            assert entry.parent_id is None or entry.parent_id in found.reasons
    after = find_kept_history(history, as_of=Instant(NOW + later * DAY), before=Instant(NOW + later * DAY - WINDOW))
    assert set(found.going) <= set(after.going)


def test_a_store_without_a_past_has_nothing_to_give_back() -> None:
    world = memory_world({})
    create_topic(world.services, NAME, partitions=1, settings={})
    world.set_now(AS_OF)
    outcome = steps.run(world.services, NAME, as_of=AS_OF, work="reclaim")
    assert (outcome.name, outcome.detail, outcome.reclaimed_bytes) == ("no_op", "", None)


def test_a_log_of_records_refuses_by_name() -> None:
    world = json_file_world({})
    create_topic(world.services, NAME, partitions=1, settings={})
    world.set_now(AS_OF)
    with raises("UnsupportedLimit", match="the backend json_file does not support the operation reclaim"):
        steps.run(world.services, NAME, as_of=AS_OF, work="reclaim")
    world.close()
