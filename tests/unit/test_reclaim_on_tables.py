"""Reclaiming on real tables with a past: what was listed goes, what stays can be read, and any step may be the last (DEL-7)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.views.plans import approval_text
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import SourceFile
from message_lifecycle.stores.iceberg import reclaiming
from message_lifecycle.stores.iceberg.table_folder import local_path
from tests.effort import sample
from tests.errors import raises
from tests.histories import ON_OWN_CATALOG, append, document_of, folder_of, names_below, read_by_pyiceberg
from tests.holds import WHENS, When, held, run_with_hold
from tests.reclaiming import DAY, NAME, NOW, Past, aged_past, past_in

pytestmark = ON_OWN_CATALOG


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return aged_past(tmp_path)


def sizes(past: Past, kind: str = "") -> dict[str, int]:
    folder = folder_of(past.made[kind])
    return {name: (folder / name).stat().st_size for name in names_below(folder)}


def test_what_comes_back_is_what_was_listed_and_what_the_disk_says(past: Past) -> None:
    ids = [entry["snapshot-id"] for entry in document_of(past.log)["snapshots"]]
    plan = preview(past.services, NAME, as_of=NOW, work="reclaim")
    listed = {name for removal in plan.file_removals for name in removal.files}
    before, rows = sizes(past), sorted(past.log.scan().to_arrow()["offset"].to_pylist())
    outcome = past.run()
    assert (outcome.name, outcome.detail) == ("published", "")
    gone = before.keys() - sizes(past).keys()
    assert gone == listed
    assert any(name.endswith(".parquet") for name in gone)
    assert outcome.reclaimed_bytes == sum(before[name] for name in gone) == plan.expected.removed_bytes
    assert outcome.reclaimed_files == len(gone)
    # The one that was the newest when the window began stays, for a deletion within the window is taken back to it.
    assert past.snapshot_ids() == set(ids[-3:])
    assert sorted(past.log.scan().to_arrow()["offset"].to_pylist()) == rows
    for snapshot_id in ids[-3:]:
        assert len(past.log.scan(snapshot_id=snapshot_id).to_arrow()) > 0
    assert read_by_pyiceberg(past.log, ids[-3:]) <= past.files()


def test_what_a_bucket_keeps_of_it_is_told_by_whoever_writes_the_outcome(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked where the files went, and verifying may be another process's."""
    asked: list[list[str]] = []
    kept = ("lake keeps 2 earlier versions of its objects",)
    monkeypatch.setattr(reclaiming, "kept_of_removed", lambda places: asked.append([place for _, place in places]) or kept)
    plan_id = steps.plan(past.services, NAME, as_of=NOW, work="reclaim").plan.plan_id
    steps.stage(past.services, plan_id)
    steps.gate(past.services, plan_id)
    steps.approve(past.services, plan_id, granted=True, by="ada", text="room is needed")
    steps.publish(past.services, plan_id)
    outcome = steps.verify(past.services, plan_id)
    assert (outcome.name, outcome.warnings) == ("published", kept)
    assert asked == [[past.made[action.table].location() for action in past.services.ledger.record(plan_id).plan.forgets]]


def test_a_second_run_changes_nothing_and_names_the_first(past: Past) -> None:  # DEL-5, P1
    first = past.run()
    before, metadata = sizes(past), past.log.metadata_location
    second = past.run()
    assert (second.name, second.first_plan_id) == ("no_op", first.plan_id)
    assert (sizes(past), past.log.metadata_location) == (before, metadata)


def test_nothing_goes_within_the_window(past: Past) -> None:
    past.services.topics.alter(NAME, {"undo_window": 50 * 86_400})
    plan = preview(past.services, NAME, as_of=NOW, work="reclaim")
    assert plan.forgets == () or not any(action.snapshots for action in plan.forgets)
    assert not any(removal.role in ("data", "vector", "manifest", "list") for removal in plan.file_removals)


def test_a_shortened_window_asks_a_person_once(past: Past) -> None:  # DEL-3
    long = {"undo_window": 30 * 86_400}
    past.services.ledger.set_accepted(NAME, long)
    outcome = steps.run(past.services, NAME, as_of=NOW, work="reclaim")
    assert outcome.name == "needs_approval"
    assert outcome.detail.endswith("; stricter than the last approved value: undo_window from 30d (2,592,000 s) to 7d (604,800 s)")
    waiting = past.services.ledger.open_plan(NAME)
    assert waiting is not None
    assert "* why approval: stricter than the last approved value: undo_window from " in approval_text(past.services, waiting)
    assert past.run().name == "published"
    accepted = past.services.ledger.accepted(NAME)
    assert accepted is not None and accepted["undo_window"] == 604_800


def test_branches_and_tags_keep_what_they_name(past: Past) -> None:
    ids = [entry["snapshot-id"] for entry in document_of(past.log)["snapshots"]]
    past.log.manage_snapshots().create_branch(ids[0], "audit").create_tag(ids[1], "release").commit()
    assert past.run().name == "published"
    assert past.snapshot_ids() == {ids[0], ids[1], *ids[-3:]}
    assert len(past.log.scan(snapshot_id=ids[0]).to_arrow()) == 10
    assert len(past.log.scan(snapshot_id=ids[1]).to_arrow()) == 20


def test_a_branch_past_its_own_age_goes(past: Past) -> None:
    ids = [entry["snapshot-id"] for entry in document_of(past.log)["snapshots"]]
    past.log.manage_snapshots().create_branch(ids[0], "lc_stage", max_ref_age_ms=1_000).create_branch(ids[1], "kept").commit()
    assert past.run().name == "published"
    assert set(document_of(past.log)["refs"]) == {"main", "kept"}
    assert past.snapshot_ids() == {ids[1], *ids[-3:]}


@pytest.mark.parametrize(
    "summary",
    [
        {"kafka.connect.offsets.control.group": '{"0":5}', "kafka.connect.commit-id": "c1"},
        {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "7"},
        {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"},
    ],
)
def test_the_newest_word_of_a_foreign_writer_can_still_be_walked_to(tmp_path: Path, summary: dict[str, str]) -> None:
    past = past_in(tmp_path)
    past.table()
    old = past.append(1, days_old=50)
    past.foreign(2, days_old=45, **summary)
    newest = past.foreign(3, days_old=40, **summary)
    between = past.append(4, days_old=30)
    head = past.append(5, days_old=20)
    past.touch_all(days_old=10)
    assert past.run().name == "published"
    assert past.snapshot_ids() == {newest, between, head}
    assert old not in past.snapshot_ids()
    walked = past.log.current_snapshot()
    while walked is not None and walked.snapshot_id != newest:
        walked = None if walked.parent_snapshot_id is None else past.log.snapshot_by_id(walked.parent_snapshot_id)
    assert walked is not None, "a writer finds its word by walking from the branch"


def test_a_note_of_another_writer_is_no_progress(tmp_path: Path) -> None:
    past = past_in(tmp_path)
    past.table()
    past.foreign(1, days_old=50, **{"spark.app.id": "app-1", "my.note": "x"})
    head = past.append(2, days_old=20)
    assert past.run().name == "published"
    assert past.snapshot_ids() == {head}


def test_one_snapshot_that_carries_our_state_stays(tmp_path: Path) -> None:  # MSG-4
    past = past_in(tmp_path)
    past.table()
    past.append(1, days_old=50)
    ours = past.append(2, days_old=40)
    others = [past.foreign(at, days_old=39 - at) for at in (3, 4)]
    past.touch_all(days_old=10)
    assert past.run().name == "published"
    assert past.snapshot_ids() == {ours, *others}


def test_files_that_nothing_names_go_when_they_are_old_enough(past: Past) -> None:
    folder = folder_of(past.log)
    past.run()
    for name in ("data/lost.parquet", "data/.lost.parquet.crc", "data/new.parquet"):
        (folder / name).write_bytes(b"x" * 10)
    past.touch_all(days_old=3)
    (folder / "data/new.parquet").touch()
    os.utime(folder / "data/new.parquet", ns=((NOW - 2 * DAY) * 1_000,) * 2)
    before = past.files()
    assert past.run(as_of=Instant(NOW + 1_000)).name == "published"
    assert {name for name in before - past.files() if name.startswith("data/")} == {"data/lost.parquet", "data/.lost.parquet.crc"}


def test_an_ingest_that_began_later_keeps_no_older_file(past: Past) -> None:
    folder = folder_of(past.log)
    past.run()
    (folder / "data/lost.parquet").write_bytes(b"x")
    past.touch_all(days_old=5)
    past.services.ledger.begin_batch(NAME, "b", [SourceFile(path="f", size_bytes=1, sha256="0")])
    # It began at NOW, which is later than the file.
    past.run(as_of=Instant(NOW + 1_000))
    assert not (folder / "data/lost.parquet").exists()


def test_nothing_goes_that_came_after_an_ingest_began_which_is_still_open(tmp_path: Path) -> None:
    past = past_in(tmp_path)
    past.table()
    past.append(1, days_old=50)
    past.append(2, days_old=40)
    past.touch_all(days_old=-1)
    past.services.ledger.begin_batch(NAME, "b", [SourceFile(path="f", size_bytes=1, sha256="0")])
    late = past.clock.now = Instant(NOW + 20 * DAY)
    (folder_of(past.log) / "data/lost.parquet").write_bytes(b"x")
    past.touch_all(days_old=-1)
    roles = {removal.role for removal in preview(past.services, NAME, as_of=late, work="reclaim").file_removals}
    assert "orphan" not in roles and "list" in roles
    past.services.ledger.abandon_batch("b")
    assert "orphan" in {removal.role for removal in preview(past.services, NAME, as_of=late, work="reclaim").file_removals}


def test_a_run_has_a_limit_and_the_next_goes_on(past: Past) -> None:
    past.services = replace(past.services, server={"reclaim_max_files": 5})
    first = past.run()
    assert (first.name, first.more, first.reclaimed_files) == ("published", True, 5)
    for at in range(1, 12):
        outcome = past.run(as_of=Instant(NOW + at * 1_000))
        if not outcome.more:
            break
    assert not outcome.more
    kept = read_by_pyiceberg(past.log, sorted(past.snapshot_ids()))
    data = {name for name in past.files() if not name.endswith((".json", ".json.crc"))}
    assert data == {name for name in kept if not name.endswith((".json", ".json.crc"))}


def test_too_large_a_share_asks_a_person(tmp_path: Path) -> None:
    past = past_in(tmp_path)
    past.table(max_removed_fraction=0.01)
    past.append(1, days_old=50)
    past.append(2, days_old=40)
    past.touch_all(days_old=10)
    assert steps.run(past.services, NAME, as_of=NOW, work="reclaim").name == "needs_approval"
    assert len(past.snapshot_ids()) == 2


def test_an_append_after_the_plan_stays(past: Past) -> None:  # DEL-4
    record = steps.plan(past.services, NAME, as_of=NOW, work="reclaim")
    late = append(past.log, 99)
    assert steps.carry_out(past.services, record, lambda _plan, _report: (True, "ann", "yes")).name == "published"
    assert 99 in past.log.scan(snapshot_id=late).to_arrow()["offset"].to_pylist()


def test_what_came_back_to_life_since_the_plan_refuses_it(past: Past) -> None:
    ids = [entry["snapshot-id"] for entry in document_of(past.log)["snapshots"]]
    record = steps.plan(past.services, NAME, as_of=NOW, work="reclaim")
    steps.stage(past.services, record.plan.plan_id)
    if steps.gate(past.services, record.plan.plan_id).judgement == "needs_approval":
        steps.approve(past.services, record.plan.plan_id, granted=True, by="ann", text="yes")
    past.log.manage_snapshots().create_tag(ids[0], "late").commit()
    files = past.files()
    with pytest.raises(PlanConflict):
        steps.publish(past.services, record.plan.plan_id)
    assert past.files() >= files
    assert ids[0] in past.snapshot_ids()


@pytest.mark.parametrize(
    "step", sample(("before_expire", "after_expire", "while_deleting", "after_delete"), "after_expire", "while_deleting")
)
def test_a_run_that_died_is_brought_to_its_end(tmp_path: Path, step: str) -> None:
    class Died(BaseException):
        """No error is caught on the way."""

    armed = True

    def steps_(reached: str) -> None:
        nonlocal armed
        if armed and reached == step:
            armed = False
            raise Died

    past = past_in(tmp_path, steps=steps_)
    past.table()
    for at, days in enumerate((40, 30, 20)):
        past.append(at, days_old=days)
    past.delete("offset == 0", days_old=15)
    past.touch_all(days_old=10)
    plan = preview(past.services, NAME, as_of=NOW, work="reclaim")
    listed = {name for removal in plan.file_removals for name in removal.files}
    before = past.files()
    with pytest.raises(Died):
        past.run()
    outcome = past.run()
    assert (outcome.name, outcome.detail, outcome.plan_id) == ("published", "", plan.plan_id)
    assert before - past.files() == listed
    assert past.run().name == "no_op"
    assert len(past.log.scan().to_arrow()) == 2


def test_a_file_that_is_gone_already_is_success(past: Past) -> None:  # EXP-8
    record = steps.plan(past.services, NAME, as_of=NOW, work="reclaim")
    first = next(removal.files[0] for removal in record.plan.file_removals if removal.role == "data")
    (folder_of(past.log) / first).unlink()
    outcome = steps.carry_out(past.services, record, lambda _plan, _report: (True, "ann", "yes"))
    listed = sum(len(removal.files) for removal in record.plan.file_removals)
    assert (outcome.name, outcome.reclaimed_files) == ("published", listed - 1)


@pytest.mark.parametrize("at", [0, -1], ids=["of a snapshot that goes", "of one that stays"])
def test_a_list_of_manifests_that_is_gone_is_named_and_nothing_goes(past: Past, at: int) -> None:
    lost = local_path(past.log.snapshots()[at].manifest_list)
    lost.unlink()
    before = past.files()
    with raises("StorageRefused", match=lost.name):
        past.run()
    assert past.files() == before


def test_a_damaged_table_loses_nothing(past: Past) -> None:
    """A file of a snapshot that stays is gone: something is wrong, and no more is taken."""
    head = past.log.current_snapshot()
    assert head is not None
    kept = next(name for name in read_by_pyiceberg(past.log, [head.snapshot_id]) if name.endswith(".parquet"))
    (folder_of(past.log) / kept).unlink()
    before = past.files()
    outcome = past.run()
    assert outcome.name == "blocked" and f"needed files that are missing: 1 (data/{Path(kept).name})" in outcome.detail
    assert past.files() == before


def test_tables_beside_the_log_are_reclaimed_with_it(past: Past) -> None:
    past.table("compacted")
    old = past.append(1, days_old=30, kind="compacted")
    new = past.append(2, days_old=20, kind="compacted")
    past.touch_all(days_old=10)
    assert past.run().name == "published"
    assert past.snapshot_ids("compacted") == {new}
    assert old not in past.snapshot_ids("compacted")


def test_a_reader_pinned_to_a_snapshot_that_stays_finishes(past: Past) -> None:
    ids = [entry["snapshot-id"] for entry in document_of(past.log)["snapshots"]]
    pinned = StaticTable.from_metadata(past.log.metadata_location).scan(snapshot_id=ids[-3])
    tasks = list(pinned.plan_files())
    past.run()
    assert len(pinned.to_arrow()) == 28
    assert all(Path(task.file.file_path.removeprefix("file://")).exists() for task in tasks)


@pytest.mark.parametrize("when", sample(WHENS, "before", "judged"))
def test_a_hold_keeps_the_past_of_its_topic(past: Past, when: When) -> None:  # DEL-8
    """Placed before the run or in the middle of it: what it names may lie in any file of the past."""
    before, ids = sizes(past), past.snapshot_ids()
    outcome = run_with_hold(past.services, NAME, "reclaim", as_of=NOW, when=when, place=lambda: held(past.services, NAME, offsets=(0, 0)))
    assert outcome.name == "no_op", outcome.detail
    after = sizes(past)
    assert before.items() <= after.items()
    # The hold wrote the ledger's number into the table's metadata (DEL-8).
    assert [name for name in after.keys() - before.keys() if ".metadata.json" not in name] == []
    assert past.snapshot_ids() == ids
    (hold,) = past.services.ledger.holds(NAME)
    past.services.ledger.release_hold(hold.hold_id, by="ada", why="over")
    assert past.run().name == "published"


def test_of_two_runs_at_once_one_does_it_and_the_other_reports_it(past: Past) -> None:  # DEL-5
    record = steps.plan(past.services, NAME, as_of=NOW, work="reclaim")
    first = past.run()
    assert first.plan_id == record.plan.plan_id
    before = past.files()
    assert steps.publish(past.services, record.plan.plan_id) == first
    assert steps.verify(past.services, record.plan.plan_id) == first
    assert past.files() == before


def test_where_the_first_of_two_has_published_the_second_removes_nothing_again(past: Past) -> None:
    """Both hold the gate's leave; the second finds the plan's own mark on the table."""
    record = steps.plan(past.services, NAME, as_of=NOW, work="reclaim")
    plan_id = record.plan.plan_id
    steps.stage(past.services, plan_id)
    if steps.gate(past.services, plan_id).judgement == "needs_approval":
        steps.approve(past.services, plan_id, granted=True, by="ann", text="yes")
    first, before = steps.publish(past.services, plan_id), past.log.metadata_location
    assert steps.publish(past.services, plan_id) == first
    assert past.log.metadata_location == before
    assert steps.verify(past.services, plan_id).name == "published"


def test_a_table_of_a_path_that_cannot_be_compared_is_nobodys_hindrance(past: Past, tmp_path: Path) -> None:
    odd = f"{tmp_path}/warehouse//odd"
    past.catalog.create_table((NAME.namespace, "odd"), schema=past.log.schema(), location=odd)
    assert past.run().name == "published"
