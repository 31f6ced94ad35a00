"""A deleted topic that goes for good, on real tables, without a JVM: every file of it, nothing else, and nothing unsafe (DEL-7)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.erasures import describe_unsearched_places, record_request_state
from message_lifecycle.app.operations import registry
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.requests import deleted_topics
from message_lifecycle.model.erasure import KeyDigest, KeyDigests
from message_lifecycle.model.errors import NothingDeleted, PlanConflict, UnsafePath
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from message_lifecycle.model.phrases import short
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import ReclaimDeleted
from message_lifecycle.stores.iceberg import deleted_reclaim
from message_lifecycle.stores.iceberg.deleted_reclaim import namespace_properties
from message_lifecycle.stores.iceberg.layout import COMPACTED, DELETED
from message_lifecycle.stores.iceberg.topic_delete import deleted_table_place
from tests.deleted_topics import names_in, topic_in
from tests.errors import raises
from tests.histories import ON_OWN_CATALOG, folder_of, names_below, set_properties
from tests.reclaiming import DAY, NAME, NOW, Past

pytestmark = ON_OWN_CATALOG

WINDOW_US = 7 * DAY


def deleted_in(folder: Path) -> tuple[Past, str]:
    """A topic of two tables whose window has passed, and the plan that deleted it."""
    past = topic_in(folder)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    past.clock.pass_us(WINDOW_US)
    return past, plan_id


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return deleted_in(tmp_path)[0]


@pytest.fixture
def plan_id(past: Past) -> str:
    return deleted_topics(past.services)[0].plan_id


def planned(past: Past, plan_id: str) -> Plan:
    return preview(past.services, NAME, as_of=NOW, work=ReclaimDeleted(plan_id=plan_id))


def judged(past: Past, plan_id: str) -> tuple[str, GateReport]:
    reclaim_id = steps.plan(past.services, NAME, as_of=NOW, work=ReclaimDeleted(plan_id=plan_id)).plan.plan_id
    steps.stage(past.services, reclaim_id)
    return reclaim_id, steps.gate(past.services, reclaim_id)


def folders(past: Past) -> list[Path]:
    return [folder_of(table) for table in past.made.values()]


def all_files(past: Past) -> dict[Path, int]:
    return {folder / name: (folder / name).stat().st_size for folder in folders(past) for name in names_below(folder)}


@pytest.mark.parametrize(("kept", "told"), [(("a",), ("a",)), (("a", "b"), ("a; b",)), (("a" * 301,), (f"{'a' * 299}…",)), ((), ())])
def test_what_a_bucket_keeps_of_it_is_told(
    past: Past, plan_id: str, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...], told: tuple[str, ...]
) -> None:
    """As much of it as there is room for: the word of it lies in a property of the namespace until the outcome is written."""
    asked: list[str] = []
    monkeypatch.setattr(deleted_reclaim, "kept_of_removed", lambda places: asked.extend(place for _, place in places) or kept)
    reclaim_id, _ = judged(past, plan_id)
    steps.approve(past.services, reclaim_id, granted=True, by="ada", text="not needed")
    steps.publish(past.services, reclaim_id)
    outcome = steps.verify(past.services, reclaim_id)
    assert (outcome.name, outcome.warnings) == ("published", told)
    assert asked == [action.location for action in past.services.ledger.record(reclaim_id).plan.dropped_tables]


def test_every_file_of_every_table_goes_and_is_measured(past: Past, plan_id: str) -> None:
    before = all_files(past)
    plan = planned(past, plan_id)
    assert sum(len(removal.files) for removal in plan.file_removals) == len(before)
    assert {removal.role for removal in plan.file_removals} >= {"data", "manifest", "list", "metadata"}
    outcome = past.reclaim_deleted(plan_id)
    assert (outcome.name, outcome.detail) == ("published", "")
    assert (outcome.reclaimed_files, outcome.reclaimed_bytes) == (len(before), sum(before.values()))
    assert all_files(past) == {}
    assert names_in(past, DELETED) == set()
    assert not [name for name in namespace_properties(past.tables.catalog) if name.startswith("lifecycle.")], "no word of it is left"


def test_files_that_are_gone_already_are_success(past: Past, plan_id: str) -> None:  # EXP-8
    reclaim_id, report = judged(past, plan_id)
    assert report.judgement == "needs_approval"
    steps.approve(past.services, reclaim_id, granted=True, by="ann", text="yes")
    before = all_files(past)
    lost = next(path for path in before if path.suffix == ".parquet")
    lost.unlink()
    steps.publish(past.services, reclaim_id)
    outcome = steps.verify(past.services, reclaim_id)
    assert (outcome.name, outcome.reclaimed_files, outcome.reclaimed_bytes) == (
        "published",
        len(before) - 1,
        sum(before.values()) - before[lost],
    )


def test_another_topic_beside_it_loses_nothing(past: Past, plan_id: str) -> None:
    other = past.catalog.create_table((NAME.namespace, "other"), schema=past.made[""].schema())
    before = names_below(folder_of(other))
    assert past.reclaim_deleted(plan_id).name == "published"
    assert names_below(folder_of(other)) == before != set()


def test_a_refusal_does_not_hold_up_what_has_the_name_now(past: Past, plan_id: str, tmp_path: Path) -> None:
    reclaim_id, _ = judged(past, plan_id)
    steps.approve(past.services, reclaim_id, granted=False, by="ann", text="not yet")
    (due,) = judge(past.services, [NAME], as_of=NOW, work="reclaim")
    assert (due.due, "a person refused" in due.reason) == (False, True)
    past.table(location=str(tmp_path / "warehouse" / "anew"), max_removed_fraction=1.0)
    for days in (40, 30, 20):
        past.append(days, days_old=days)
    past.touch_all(days_old=10)
    (due,) = judge(past.services, [NAME], as_of=NOW, work="reclaim")
    assert (due.due, "snapshots" in due.reason) == (True, True), due.reason
    assert registry.work_on(past.services, NAME, "reclaim", as_of=NOW) == "reclaim"


def test_what_nothing_names_goes_with_it_once_it_is_old(past: Past, plan_id: str) -> None:
    stray = folders(past)[0] / "data" / "stray.parquet"
    stray.write_bytes(b"left by a writer that died")
    at = (NOW - DAY) * 1_000
    os.utime(stray, ns=(at, at))
    before = all_files(past)
    young = past.reclaim_deleted(plan_id)
    assert (young.name, "data/stray.parquet" in " ".join(young.warnings)) == ("no_op", True)
    assert all_files(past) == before
    at = (NOW - 5 * DAY) * 1_000
    os.utime(stray, ns=(at, at))
    assert [removal.files for removal in planned(past, plan_id).file_removals if removal.role == "orphan"] == [("data/stray.parquet",)]
    assert past.reclaim_deleted(plan_id).name == "published"
    assert all_files(past) == {}


def test_a_file_that_came_since_the_plan_is_not_left_behind(past: Past, plan_id: str) -> None:
    reclaim_id = steps.plan(past.services, NAME, as_of=NOW, work=ReclaimDeleted(plan_id=plan_id)).plan.plan_id
    steps.stage(past.services, reclaim_id)
    (folders(past)[1] / "late").write_bytes(b"x")
    before = all_files(past)
    report = steps.gate(past.services, reclaim_id)
    assert [check.id for check in report.blocking] == ["unlisted"]
    assert all_files(past) == before


def test_a_commit_since_the_plan_is_seen_by_the_gate_and_refuses_the_publish(past: Past, plan_id: str) -> None:
    reclaim_id, _ = judged(past, plan_id)
    steps.approve(past.services, reclaim_id, granted=True, by="ann", text="yes")
    before = all_files(past)
    set_properties(deleted_table_place(str(past.made[COMPACTED].metadata.table_uuid)), {"note": "by hand"})
    with pytest.raises(PlanConflict, match="has changed since it was planned"):
        steps.publish(past.services, reclaim_id)
    assert len(names_in(past, DELETED)) == 2
    assert before.items() <= all_files(past).items()
    steps.close(past.services, past.ledger.record(reclaim_id).plan, "superseded", "it changed")
    reclaim_id = steps.plan(past.services, NAME, as_of=NOW, work=ReclaimDeleted(plan_id=plan_id)).plan.plan_id
    steps.stage(past.services, reclaim_id)
    set_properties(deleted_table_place(str(past.made[COMPACTED].metadata.table_uuid)), {"note": "again"})
    assert {check.id for check in steps.gate(past.services, reclaim_id).blocking} == {"same", "unlisted"}


def test_a_window_that_is_open_again_keeps_it(past: Past, plan_id: str) -> None:
    reclaim_id, _ = judged(past, plan_id)
    steps.approve(past.services, reclaim_id, granted=True, by="ann", text="yes")
    object.__setattr__(past.services, "server", {"undo_window": 30 * 86_400})
    with pytest.raises(PlanConflict, match="settings were changed"):
        steps.publish(past.services, reclaim_id)
    assert past.undo(plan_id).name == "published"


def test_the_gate_by_itself_sees_that_the_window_is_open(past: Past, plan_id: str) -> None:
    reclaim_id = steps.plan(past.services, NAME, as_of=NOW, work=ReclaimDeleted(plan_id=plan_id)).plan.plan_id
    steps.stage(past.services, reclaim_id)
    past.clock.pass_us(-1)
    assert [check.id for check in steps.gate(past.services, reclaim_id).blocking] == ["window"]


def test_a_link_in_its_folder_stops_the_plan_and_the_gate(past: Past, plan_id: str, tmp_path: Path) -> None:
    reclaim_id = steps.plan(past.services, NAME, as_of=NOW, work=ReclaimDeleted(plan_id=plan_id)).plan.plan_id
    steps.stage(past.services, reclaim_id)
    (tmp_path / "elsewhere").mkdir()
    (folders(past)[0] / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert "outside" in {check.id for check in steps.gate(past.services, reclaim_id).blocking}
    with pytest.raises(UnsafePath, match="symbolic link"):
        planned(past, plan_id)


def test_a_link_that_came_at_the_last_moment_is_not_followed_and_the_rest_is_finished_later(
    past: Past, plan_id: str, tmp_path: Path
) -> None:
    reclaim_id, _ = judged(past, plan_id)
    steps.approve(past.services, reclaim_id, granted=True, by="ann", text="yes")
    data, elsewhere = folders(past)[0] / "data", tmp_path / "elsewhere"
    data.rename(elsewhere)
    data.symlink_to(elsewhere)
    with pytest.raises(UnsafePath, match="symbolic link"):
        steps.publish(past.services, reclaim_id)
    assert list(elsewhere.iterdir()), "nothing outside was touched"
    data.unlink()
    elsewhere.rename(data)
    outcome = past.reclaim_deleted(plan_id)
    assert (outcome.name, outcome.plan_id, all_files(past)) == ("published", reclaim_id, {})


def test_a_table_within_its_folder_stops_the_plan(past: Past, plan_id: str) -> None:
    within = f"{folders(past)[0]}/data/other"
    past.catalog.create_table((NAME.namespace, "within"), schema=past.made[""].schema(), location=within)
    with pytest.raises(UnsafePath, match="within the location"):
        planned(past, plan_id)


def test_a_table_made_of_its_files_while_a_person_was_asked_stops_the_publish(past: Past, plan_id: str) -> None:
    reclaim_id, _ = judged(past, plan_id)
    steps.approve(past.services, reclaim_id, granted=True, by="ann", text="yes")
    deleted = past.catalog.load_table(deleted_table_place(str(past.made[""].metadata.table_uuid)))
    rescued = past.catalog.register_table((NAME.namespace, "rescued"), deleted.metadata_location)
    before = all_files(past)
    with pytest.raises(UnsafePath, match="within the location"):
        steps.publish(past.services, reclaim_id)
    assert (all_files(past), len(rescued.scan().to_arrow())) == (before, 5)
    assert len(names_in(past, DELETED)) == 2


def test_a_file_outside_of_its_folder_stops_the_plan(tmp_path: Path) -> None:
    """It would be left, and nobody would know whose it is."""
    past = topic_in(tmp_path)
    inside = next(folder_of(past.made[""]).rglob("*.parquet"))
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(inside.read_bytes())
    past.made[""].refresh().add_files([str(outside)], check_duplicate_files=False, snapshot_properties=_ours(past))
    plan_id = past.delete_whole().plan_id
    past.clock.pass_us(WINDOW_US)
    with pytest.raises(UnsafePath, match="outside of its location"):
        planned(past, plan_id or "")


def _ours(past: Past) -> dict[str, str]:
    newest = past.log.current_snapshot()
    assert newest is not None and newest.summary is not None
    return {key: value for key, value in newest.summary.additional_properties.items() if key.startswith("lifecycle.")}


def test_a_history_that_cannot_be_read_keeps_all(past: Past, plan_id: str) -> None:
    next(folders(past)[0].rglob("*-m0.avro")).unlink()
    before = all_files(past)
    with raises("StorageRefused", match="it is not there"):
        planned(past, plan_id)
    assert all_files(past) == before


@pytest.fixture
def unread(past: Past) -> Past:
    """The same lake, in a process that has read nothing of it."""
    past.tables._documents.clear()
    return past


def test_metadata_that_are_lost_are_named(unread: Past) -> None:
    for path in folders(unread)[0].rglob("*.metadata.json"):
        path.unlink()
    with raises("StorageRefused", match="of a deleted topic is read through it"):
        deleted_topics(unread.services)


def test_a_topic_that_is_reclaimed_while_the_deleted_ones_are_listed_is_none(unread: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list(unread.tables.pointers.all(DELETED))
    for path in all_files(unread):
        path.unlink()
    for place, _ in listed:
        unread.catalog.drop_table(place)
    monkeypatch.setattr(unread.tables.pointers, "all", lambda _: listed)
    assert deleted_topics(unread.services) == []


def test_an_erasure_does_not_pass_over_what_is_left_of_a_topic_whose_log_somebody_dropped(past: Past, plan_id: str) -> None:
    log, view = (deleted_table_place(str(past.made[kind].metadata.table_uuid)) for kind in ("", COMPACTED))
    past.catalog.drop_table(log)
    assert deleted_topics(past.services) == []
    keys = KeyDigests(secret="s", each=(KeyDigest(digest="d", mark="abc"),))
    request = past.ledger.add_erasure("r", keys, topics=[], forbid=False, requested_by="ada", why="asked")
    settled = record_request_state(past.services, request, [])
    assert settled.state == "requested"
    assert (short(plan_id) in settled.detail, ".".join(view) in settled.detail) == (True, True)
    of_another = replace(request, topics=(TopicName(stream="past", topic="other"),))
    assert (
        len(describe_unsearched_places(past.services, replace(request, topics=(NAME,)))),
        describe_unsearched_places(past.services, of_another),
    ) == (1, [])
    past.catalog.drop_table(view)
    assert record_request_state(past.services, request, []).state == "erased"


def test_tables_that_somebody_dropped_are_named(past: Past, plan_id: str) -> None:
    for table in list(past.made.values()):
        past.catalog.drop_table(deleted_table_place(str(table.metadata.table_uuid)))
    with pytest.raises(NothingDeleted, match="dropped"):
        past.reclaim_deleted(plan_id)
