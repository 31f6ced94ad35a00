"""Staging and publishing on real tables: what came later survives, whatever happens in between (DEL-1, DEL-4, DEL-5)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.engines import change_tables
from tests.errors import raises
from tests.spark.lake import EXPIRY_S, SECOND, Lake, Rows
from tests.spark.tables import Overtaken, touch
from tests.verdicts import by

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = pytest.mark.spark

AS_OF = 1000.0
OLD = AS_OF - EXPIRY_S
YOUNG = OLD + 1


def three_segments(lake: Lake) -> TopicName:
    """Two segments that are expired at AS_OF, then one that is not and is active."""
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2, 3)))
    lake.append(name, Rows(base=3, times=(4, OLD)), Rows(base=5, times=(YOUNG,)))
    return name


def data_folder(name: TopicName) -> Path:
    return local_path(Tables().load(name).location()) / "data"


def test_a_published_plan_removes_the_leading_expired_segments(lake: Lake) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    published = lake.publish(plan)
    assert published.removed == (("expiry", 5),)
    assert lake.offsets(name) == [5]
    assert lake.log(name).end_offsets == {0: 6}
    assert lake.reader.find_published(plan) == published
    assert lake.reader.removed_files(plan) == plan.selection.files
    assert lake.topics.describe(name).ledger == ("ledger", 2)


def test_nothing_is_seen_on_main_before_publishing_nor_after_discarding(lake: Lake) -> None:
    name = three_segments(lake)
    before = lake.log(name)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    assert lake.log(name) == before
    assert store.stage(plan) == staged
    store.discard(plan)
    store.discard(plan)
    assert lake.log(name) == before
    assert "lc_" not in str(Tables().load(name).metadata.refs)
    assert lake.publish(plan).removed == (("expiry", 5),)


def test_messages_appended_after_the_plan_survive_in_the_very_segments_that_go(lake: Lake) -> None:
    # By place and time these would match any predicate that the plan could be made into.
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    lake.append(name, Rows(base=6, segment=0, times=(1,)), Rows(base=7, segment=3, times=(2,)), with_state=False)
    assert store.publish(lake.verdict(plan, staged), by(("ledger", 2))).removed == (("expiry", 5),)
    assert lake.offsets(name) == [5, 6, 7]


def test_messages_appended_after_the_plan_under_its_own_offsets_refuse_the_commit(lake: Lake) -> None:  # MSG-4
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    lake.append(name, Rows(base=1, segment=0, times=(1,)), Rows(base=4, segment=3, times=(2,)), with_state=False)
    with raises("AppendedBelowEnd"):
        store.publish(lake.verdict(plan, staged), by(("ledger", 2)))
    assert lake.offsets(name) == [0, 1, 1, 2, 3, 4, 4, 5]


def test_a_commit_of_another_process_while_the_branch_is_made_is_no_conflict(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2)), Rows(base=2, times=(AS_OF,)))
    plan = lake.plan(name, AS_OF)
    with monkeypatch.context() as patched:
        change_tables(patched, lambda table, _kind: Overtaken(table, lambda: touch(name)))
        staged = lake.store().stage(plan)
    lake.store().publish(lake.verdict(plan, staged), by(("ledger", 2)))
    assert lake.offsets(name) == [2]


def test_an_append_inside_the_commit_survives_and_its_state_is_carried_on(lake: Lake) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    attempts: list[str] = []

    def step(reached: str) -> None:
        if reached == "inside_commit":
            attempts.append(reached)
            if len(attempts) == 1:
                lake.append(name, Rows(base=6, times=(5, 6)))

    published = lake.publish(plan, store=lake.store(step))
    assert len(attempts) == 2
    assert published.removed == (("expiry", 5),)
    assert lake.offsets(name) == [5, 6, 7]
    state = newest_state(Tables().load(name))
    assert state.end_offsets == {0: 8}
    assert state.active[0].base_offset == 6


def test_the_log_keeps_its_end_when_all_of_it_goes(lake: Lake) -> None:
    # EXP-3: an expired active segment is sealed and goes; the next message gets the next offset.
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2)))
    assert lake.publish(lake.plan(name, AS_OF)).removed == (("expiry", 2),)
    log = lake.log(name)
    assert (log.segments, log.end_offsets) == ((), {0: 2})
    assert newest_state(Tables().load(name)).active[0].base_offset == 2


def test_a_segment_that_got_messages_since_the_plan_stays_open(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2)))
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    lake.append(name, Rows(base=2, segment=0, times=(AS_OF,)))
    store.publish(lake.verdict(plan, staged), by(("ledger", 2)))
    assert lake.offsets(name) == [2]
    assert newest_state(Tables().load(name)).active[0].base_offset == 0
    assert not lake.log(name).segments[0].sealed


@pytest.mark.parametrize("where", ["offset = 0", "offset = 5"], ids=["of a planned message", "of another"])
def test_a_foreign_delete_refuses_the_plan(lake: Lake, where: str) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    lake.delete(name, where)
    before = lake.log(name)
    with pytest.raises(PlanConflict, match="a conflicting delete came first") as refused:
        store.publish(lake.verdict(plan, staged), by(("ledger", 2)))
    assert refused.value.rival is not None
    assert lake.log(name) == before


def test_a_foreign_delete_inside_the_commit_refuses_the_plan(lake: Lake) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    deleted: list[str] = []

    def step(reached: str) -> None:
        if reached == "inside_commit" and not deleted:
            deleted.append(reached)
            lake.delete(name, "offset = 1")

    with pytest.raises(PlanConflict, match="a conflicting delete came first"):
        lake.publish(plan, store=lake.store(step))
    assert lake.offsets(name) == [0, 2, 3, 4, 5]


def test_a_plan_published_twice_is_reported_and_changes_nothing(lake: Lake) -> None:
    name = three_segments(lake)
    plan, store = lake.plan(name, AS_OF), lake.store()
    judged = lake.verdict(plan, store.stage(plan))
    first = store.publish(judged, by(("ledger", 2)))
    lake.append(name, Rows(base=6, times=(1,)))
    marker = lake.reader.marker(name)
    assert store.publish(judged, by(("ledger", 3))) == first
    with pytest.raises(PlanConflict, match="another run has published it"):
        store.stage(plan)
    assert lake.reader.find_published(plan) == first
    assert lake.reader.marker(name) == marker


def test_two_publishers_at_once_make_one_commit(lake: Lake) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    other: list[Published] = []

    def step(reached: str) -> None:
        if reached == "inside_commit" and not other:
            other.append(lake.publish(plan))

    mine = lake.publish(plan, store=lake.store(step))
    assert [mine] == other
    assert lake.offsets(name) == [5]


def test_a_rival_plan_is_named(lake: Lake) -> None:
    name = three_segments(lake)
    early, late = lake.plan(name, OLD + EXPIRY_S - 1), lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(late)
    assert early.plan_id != late.plan_id
    lake.publish(early)
    with pytest.raises(PlanConflict) as refused:
        store.publish(lake.verdict(late, staged), by(("ledger", 3)))
    assert refused.value.rival == early.plan_id


def test_changed_settings_refuse_the_plan(lake: Lake) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    lake.topics.alter(name, {"message_expiry": EXPIRY_S * 2})
    with pytest.raises(PlanConflict, match="message_expiry 60 -> 120"):
        store.publish(lake.verdict(plan, staged), by(("ledger", 2)))
    with pytest.raises(PlanConflict, match="message_expiry"):
        store.stage(plan)


def test_an_empty_plan_stages_and_publishes_nothing(lake: Lake) -> None:
    name = three_segments(lake)
    plan = lake.plan(name, 1.0)
    store = lake.store()
    staged = store.stage(plan)
    assert staged.snapshot_id == plan.requirements.snapshot_id
    with pytest.raises(PlanConflict, match="nothing is staged"):
        store.publish(lake.verdict(plan, staged), by(("ledger", 2)))


def test_no_data_file_is_opened_from_plan_to_publish(lake: Lake) -> None:
    name = three_segments(lake)
    folder = data_folder(name)
    elsewhere = folder.with_name("moved")
    shutil.move(folder, elsewhere)
    try:
        plan = lake.plan(name, AS_OF)
        assert lake.publish(plan).removed == (("expiry", 5),)
    finally:
        shutil.move(elsewhere, folder)
    assert lake.offsets(name) == [5]


def test_late_messages_stay_by_row_when_their_segment_goes(lake: Lake) -> None:
    # CLK-4: offset 1 carries a time beyond as_of + skew; the others of its segment are expired.
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, AS_OF + 5000, 2)), Rows(base=3, times=(3, 4)))
    lake.append(name, Rows(base=5, times=(YOUNG,)))
    plan = lake.plan(name, AS_OF)
    published = lake.publish(plan)
    assert published.removed == (("expiry", 4),)
    assert lake.offsets(name) == [1, 5]
    again = lake.plan(name, AS_OF)
    assert again.is_empty
    remnant = lake.store().log(name, latest_allowed_time=again.as_of).segments[0]
    assert (remnant.rows, remnant.late_rows) == (1, 1)
    assert remnant.newest_at is not None, "removals change neither newest time nor last offset (EXP-4)"


def test_a_row_delete_on_top_of_a_foreign_one_is_replaced_whole(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, AS_OF + 5000, 2, 3)), Rows(base=4, times=(YOUNG,)))
    lake.delete(name, "offset = 2")
    lake.append(name, Rows(base=5, times=(1,)), with_state=False)
    plan = lake.plan(name, AS_OF)
    store = lake.store()
    staged = store.stage(plan)
    lake.append(name, Rows(base=6, segment=0, times=(1,)), with_state=False)
    assert store.publish(lake.verdict(plan, staged), by(("ledger", 2))).removed == (("expiry", 2),)
    assert lake.offsets(name) == [1, 4, 5, 6]


def test_markers_made_again_are_the_same(lake: Lake) -> None:
    """A run may die while it puts markers on the branch; the next one begins from the removal alone."""
    name = lake.topic(allow_msg_ttl=True, subject_delete_marker_ttl=60)
    lake.append(name, Rows(base=0, times=(1, 2)), Rows(base=2, times=(AS_OF,)))
    plan, policy, store = lake.plan(name, AS_OF), lake.policy(name), lake.store()
    staged = store.stage(plan)
    once = store.mark(plan, staged, policy)
    again = store.mark(plan, staged, policy)  # as after a death before it was recorded
    third = store.mark(plan, once, policy)  # as where a verb is repeated by hand
    assert once.markers == again.markers == third.markers
    assert once.markers is not None
    assert once.markers.count == 2
    frames = store.evidence(plan, third, policy)
    assert frames["marked"].to_pylist() == [{"rows": 2, "as_made": True}]
    published = store.publish(lake.verdict(plan, third), by(("ledger", 2)))
    assert (published.markers, published.cancelled_markers) == (2, 0)
    assert lake.offsets(name) == [2, 3, 4]


def test_an_active_segment_that_is_emptied_stays_as_old_as_it_is(lake: Lake) -> None:  # EXP-4
    name = lake.topic(message_expiry=0, max_age_seconds=float(EXPIRY_S))
    lake.append(name, Rows(base=0, times=(OLD - 1,)))
    plan = lake.plan(name, AS_OF)
    assert (plan.selection.files, [action.reason for action in plan.log_commit.mark]) == ((), ["retention_age"])
    lake.publish(plan)
    lake.append(name, Rows(base=1, times=(1,), segment=0))
    (segment,) = lake.log(name).segments
    assert (segment.rows, segment.newest_at) == (1, Instant(int((OLD - 1) * SECOND)))
