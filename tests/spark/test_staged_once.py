"""What was staged becomes main's as it is, and a commit's word stands behind it: one commit to whoever looks, whatever comes between (DEL-2,
DEL-4, DEL-7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from tests.errors import raises
from tests.ledgers import StandingClock
from tests.spark.lake import EXPIRY_S, LEDGER, Lake, Rows, tables
from tests.spark.tables import touch
from tests.spark.test_marker_stream import Stream
from tests.spark.test_reclaim import reclaim, sizes, soon
from tests.spark.test_undo import AS_OF as AT
from tests.spark.test_undo import back, run, services
from tests.verdicts import by

from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.iceberg.branches import branch_of
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import CATALOG, PLAN_ID, REMOVED, STAGED_AS, of_plan, summary_of
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.reclaiming import hidden_bytes
from message_lifecycle.stores.iceberg.session import sql_table

pytestmark = pytest.mark.spark

AS_OF = 1000.0
LATE = AS_OF + 5000
YOUNG = AS_OF - EXPIRY_S + 1
WHOLE = (Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(4,)), Rows(base=4, times=(YOUNG,)))
# Offset 1 is of a time to come: of its segment, the others go by row (CLK-4).
BY_ROW = (Rows(base=0, times=(1, LATE, 3)), Rows(base=3, times=(LATE,)), Rows(base=4, times=(YOUNG,)))
BOTH = (Rows(base=0, times=(1, LATE, 3)), Rows(base=3, times=(4,)), Rows(base=4, times=(YOUNG,)))
WAYS = pytest.mark.parametrize(("rows", "left"), [(WHOLE, [4]), (BY_ROW, [1, 3, 4])], ids=["whole segments", "single messages"])


def staged(lake: Lake, rows: tuple[Rows, ...] = WHOLE) -> tuple[TopicName, Plan, Staged]:
    name = lake.topic()
    for segment in rows:  # whatever lists the first files then lists no other
        lake.append(name, segment)
    plan = lake.plan(name, AS_OF)
    return name, plan, lake.store().stage(plan)


def publish(lake: Lake, plan: Plan, made: Staged, steps: Callable[[str], None] | None = None) -> Published:
    return lake.store(steps).publish(lake.verdict(plan, made), by(("ledger", 2)))


def head_of(name: TopicName) -> tuple[Table, Snapshot, Mapping[str, str]]:
    table = Tables().load(name)
    head = table.current_snapshot()
    assert head is not None
    return table, head, summary_of(head)


def names_at(table: Table, snapshot_id: int | None) -> dict[str, int]:
    """The data files of a snapshot, and how many of each one's messages are marked."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return {file.name: file.deleted for file in files_of(table, snapshot)}


def expire(lake: Lake, name: TopicName) -> None:
    """As another engine's housekeeping does."""
    lake.session.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{sql_table(name)}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    ).collect()
    engine_of_process().forget(name)


@WAYS
def test_the_staged_snapshot_is_mains_and_the_plans_word_stands_behind_it(lake: Lake, rows: tuple[Rows, ...], left: list[int]) -> None:
    name, plan, made = staged(lake, rows)
    base_id = plan.requirements.snapshot_id
    published = publish(lake, plan, made)
    table, head, told = head_of(name)
    assert (head.parent_snapshot_id, head.snapshot_id) == (made.snapshot_id, published.snapshot_id)
    assert names_at(table, head.snapshot_id) == names_at(table, made.snapshot_id) != names_at(table, base_id)
    assert head.summary is not None and head.summary.operation.value == "append"
    assert not [key for key in told if key.startswith(("added-", "deleted-"))], "it has no files of its own"
    before, own = of_plan(head.snapshot_id, head.parent_snapshot_id, told)
    assert (before, own) == (base_id, {made.snapshot_id, head.snapshot_id})
    assert told[REMOVED] == str(plan.expected.removed_rows) == str(sum(count for _, count in published.removed))
    assert [entry.snapshot_id for entry in table.metadata.snapshot_log][-2:] == [base_id, head.snapshot_id], "main was never between them"
    assert lake.offsets(name) == left
    assert (lake.reader.find_published(plan), lake.reader.removed_files(plan)) == (published, plan.selection.files)
    assert lake.reader.removed_by_others(lake.log(name), base_id or 0) == ()


def test_what_was_staged_in_two_snapshots_is_made_again_in_one(lake: Lake) -> None:
    name, plan, made = staged(lake, BOTH)
    published = publish(lake, plan, made)
    _, head, told = head_of(name)
    assert (head.parent_snapshot_id, STAGED_AS in told) == (plan.requirements.snapshot_id, False)
    assert (lake.offsets(name), lake.reader.find_published(plan)) == ([1, 4], published)
    assert lake.reader.removed_files(plan) == plan.selection.files != ()


def test_bytes_that_only_the_past_needs_are_those_that_went(lake: Lake) -> None:
    name, plan, made = staged(lake)
    table, head, _ = head_of(name)
    was = {file.name: file.size_bytes for file in files_of(table, head)}
    publish(lake, plan, made)
    assert hidden_bytes(tables().document(name)) == sum(was[file] for file in plan.selection.files)


@WAYS
def test_where_main_has_moved_on_the_change_is_made_again_on_it(lake: Lake, rows: tuple[Rows, ...], left: list[int]) -> None:
    name, plan, made = staged(lake, rows)
    lake.append(name, Rows(base=5, times=(YOUNG,)))
    head_id = lake.log(name).snapshot_id
    published = publish(lake, plan, made)
    _, head, told = head_of(name)
    assert (head.parent_snapshot_id, STAGED_AS in told, told[PLAN_ID]) == (head_id, False, plan.plan_id)
    assert lake.offsets(name) == [*left, 5]
    assert (lake.reader.find_published(plan), lake.reader.removed_files(plan)) == (published, plan.selection.files)
    assert lake.reader.removed_by_others(lake.log(name), plan.requirements.snapshot_id or 0) == ()


def test_a_commit_that_leaves_main_where_it_is_lets_the_next_attempt_publish_what_is_staged(lake: Lake) -> None:
    name, plan, made = staged(lake)
    attempts: list[str] = []

    def step(reached: str) -> None:
        if reached == "inside_commit":
            attempts.append(reached)
            if len(attempts) == 1:
                touch(name)

    publish(lake, plan, made, step)
    _, head, told = head_of(name)
    assert (len(attempts), head.parent_snapshot_id, STAGED_AS in told) == (2, made.snapshot_id, True)
    assert Tables().load(name).properties["another.writer"].startswith("was here")


def test_settings_that_change_inside_the_commit_refuse_it(lake: Lake) -> None:
    name, plan, made = staged(lake)
    changed: list[str] = []

    def step(reached: str) -> None:
        if reached == "inside_commit" and not changed:
            changed.append(reached)
            lake.topics.alter(name, {"message_expiry": EXPIRY_S * 2})

    with pytest.raises(PlanConflict, match="message_expiry 60 -> 120"):
        publish(lake, plan, made, step)
    assert (changed, lake.offsets(name)) == (["inside_commit"], [0, 1, 2, 3, 4])


def test_what_another_writer_adds_to_the_branch_after_the_gate_is_not_published(lake: Lake) -> None:
    """The verdict is on the staged snapshot, and not on what the branch's name stands for."""
    name, plan, made = staged(lake)
    lake.session.sql(f"DELETE FROM {sql_table(name, branch=branch_of(plan.plan_id))} WHERE offset = 4")
    engine_of_process().forget(name)
    publish(lake, plan, made)
    assert lake.offsets(name) == [4]
    assert STAGED_AS not in head_of(name)[2]


def test_expiry_by_another_engine_between_stage_and_publish_is_no_conflict(lake: Lake) -> None:
    name, plan, made = staged(lake)
    expire(lake, name)
    publish(lake, plan, made)
    assert (lake.offsets(name), STAGED_AS in head_of(name)[2]) == ([4], True)


def in_two_snapshots(lake: Lake) -> tuple[TopicName, Plan, Staged]:
    """Whole segments, and then single messages."""
    return staged(lake, BOTH)


def with_markers(lake: Lake) -> tuple[TopicName, Plan, Staged]:
    """The removal, and then the markers that it calls for."""
    name = lake.topic(allow_msg_ttl=True, subject_delete_marker_ttl=60)
    lake.append(name, Rows(base=0, times=(1, 2)), Rows(base=2, times=(AS_OF,)))
    plan, store = lake.plan(name, AS_OF), lake.store()
    return name, plan, store.mark(plan, store.stage(plan), lake.policy(name))


@pytest.mark.parametrize(("make", "left"), [(in_two_snapshots, [1, 4, 5]), (with_markers, [2, 3, 4, 5])])
def test_what_is_staged_in_two_snapshots_outlives_an_expiry_by_another_engine(
    lake: Lake, make: Callable[[Lake], tuple[TopicName, Plan, Staged]], left: list[int]
) -> None:
    name, plan, made = make(lake)
    was = lake.offsets(name)
    expire(lake, name)
    assert lake.offsets(name) == was
    lake.append(name, Rows(base=len(was), times=(YOUNG,)))  # so that what was staged is made again
    publish(lake, plan, made)
    assert lake.offsets(name) == left


@pytest.mark.parametrize("make", [in_two_snapshots, with_markers])
def test_what_is_staged_is_not_published_where_the_first_of_its_snapshots_is_gone(
    lake: Lake, make: Callable[[Lake], tuple[TopicName, Plan, Staged]]
) -> None:
    """Half of a plan is none."""
    name, plan, made = make(lake)
    was, head = lake.offsets(name), Tables().load(name).snapshot_by_id(made.snapshot_id or 0)
    assert head is not None and head.parent_snapshot_id not in (None, plan.requirements.snapshot_id)
    engine_of_process().table(name).expireSnapshots().expireSnapshotId(head.parent_snapshot_id).commit()
    engine_of_process().forget(name)
    with pytest.raises(PlanConflict, match=f"snapshot {head.parent_snapshot_id} is gone"):
        publish(lake, plan, made)
    assert lake.offsets(name) == was


def test_after_an_expiry_by_another_engine_what_went_is_still_told(lake: Lake) -> None:
    """The word's own snapshot is left alone; what was staged, and the snapshot before it, are gone."""
    name, plan, made = staged(lake)
    published = publish(lake, plan, made)
    lake.store().discard(plan)
    expire(lake, name)
    assert len(Tables().load(name).snapshots()) == 1
    assert (lake.reader.find_published(plan), lake.reader.removed_files(plan)) == (published, plan.selection.files)
    assert lake.offsets(name) == [4]
    assert lake.session.table(sql_table(name)).count() == 1, "every file that main names is there"
    assert lake.log(name).end_offsets == {0: 5}


def cleaned(lake: Lake, s: Services, *rows: Rows, **settings: int) -> tuple[TopicName, str]:
    name = lake.topic(**settings)
    s.ledger.accept(name, LEDGER)
    for segment in rows:
        lake.append(name, segment)
    return name, run(s, name).plan_id or ""


@WAYS
def test_a_plan_and_its_undo_are_each_one_commit_and_bring_all_back(lake: Lake, rows: tuple[Rows, ...], left: list[int]) -> None:
    s = services(lake)
    name, plan_id = cleaned(lake, s, *rows)
    assert (lake.offsets(name), STAGED_AS in head_of(name)[2]) == (left, True)
    outcome = back(s, name, plan_id)
    _, head, told = head_of(name)
    gone = 5 - len(left)
    assert (outcome.restored, told[REMOVED], STAGED_AS in told) == (gone, str(-gone), True)
    assert of_plan(head.snapshot_id, head.parent_snapshot_id, told)[1] == {head.parent_snapshot_id, head.snapshot_id}
    assert lake.offsets(name) == [0, 1, 2, 3, 4]
    assert set(Tables().load(name).refs()) == {"main"}, "what was staged is gone"
    assert run(s, name, UndoPlan(plan_id=plan_id)).name == "no_op"


def test_an_undo_whose_source_another_engine_has_expired_says_so(lake: Lake) -> None:
    s = services(lake)
    name, plan_id = cleaned(lake, s, *WHOLE)
    expire(lake, name)
    with raises("UndoSourceGone", match="expired"):
        run(s, name, UndoPlan(plan_id=plan_id))


@pytest.mark.postgres
def test_reclaim_frees_the_files_of_a_plan_that_was_staged_once(lake: Lake) -> None:
    clock = StandingClock(AT)
    s = lake.services(clock)
    name, plan_id = cleaned(lake, s, *WHOLE, undo_window=1)
    went = set(s.ledger.record(plan_id).plan.selection.files)
    there = sizes(name)
    assert went <= there.keys()
    clock.now = soon()
    outcome = reclaim(s, name, clock.now)
    assert (outcome.name, outcome.detail) == ("published", "")
    gone = there.keys() - sizes(name).keys()
    assert went <= gone
    assert {file for file in gone if file.endswith((".parquet", ".puffin"))} == went
    assert lake.offsets(name) == [4]


def test_a_stream_passes_over_it_and_misses_nothing(lake: Lake, tmp_path: Path) -> None:
    s = services(lake)
    name = lake.topic()
    s.ledger.accept(name, LEDGER)
    stream = Stream(lake, name, tmp_path)
    lake.append(name, *BY_ROW)
    stream.advance()
    run(s, name)
    assert STAGED_AS in head_of(name)[2]
    stream.advance()
    lake.append(name, Rows(base=5, times=(YOUNG, YOUNG)))
    stream.advance()
    assert [offset for _, offset, _ in stream.got()] == list(range(7))
    assert lake.offsets(name) == [1, 3, 4, 5, 6]
