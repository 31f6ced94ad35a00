"""Whole topics moved on real tables, without a JVM: met by other writers, in the way of other tables (DEL-4, DEL-7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from message_lifecycle.app import steps
from message_lifecycle.app.topics import update_views
from message_lifecycle.model.errors import CommitUnknown, NotReady, PlanConflict, TableUnreadable, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.request import DeleteTopic, UndoPlan
from message_lifecycle.stores.iceberg.catalog import IcebergTopics
from message_lifecycle.stores.iceberg.compaction.view_table import HORIZONS, RAW_PROPERTY
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import COMPACTED, DELETED, LATEST, LIVE, SCRATCH_PROPERTY, by_partition
from message_lifecycle.stores.iceberg.pointers import Place
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.topic_delete import IcebergDeleter, deleted_table_place
from tests.deleted_topics import OWN, names_in, offsets, topic_in
from tests.errors import raises
from tests.histories import ON_OWN_CATALOG, rewrite_document, set_properties
from tests.reclaiming import NAME, NOW, Past

pytestmark = ON_OWN_CATALOG

DELETE = DeleteTopic()


def test_all_tables_go_and_come_back_with_their_history(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    snapshots, files = past.snapshot_ids(), past.files()
    outcome = past.delete_whole()
    assert (outcome.name, dict(outcome.removed)) == ("published", {"removed": 5}), outcome.detail
    assert names_in(past, NAME.namespace) == set()
    assert len(names_in(past, DELETED)) == 2
    assert outcome.plan_id is not None
    back = past.undo(outcome.plan_id)
    assert (back.name, back.restored) == ("published", 5), back.detail
    assert names_in(past, NAME.namespace) == OWN
    assert names_in(past, DELETED) == set()
    assert (offsets(past), offsets(past, COMPACTED)) == ([0, 1, 2, 3, 4], [1, 4])
    assert past.snapshot_ids() == snapshots
    assert files <= past.files(), "not a file went"
    properties = past.catalog.load_table((NAME.namespace, NAME.table())).properties
    assert not [name for name in properties if name.startswith("lifecycle._deleted")]


def test_the_views_beside_a_topic_go_with_it_and_are_made_anew(tmp_path: Path) -> None:
    """A view that stays would fail, or show another topic of the name."""
    past = topic_in(tmp_path)
    names = with_views(past)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    assert names_in(past, NAME.namespace) == set()
    assert past.undo(plan_id).name == "published"
    assert names_in(past, NAME.namespace) == names


def with_views(past: Past) -> set[str]:
    """Beside a scenario's topic no views are kept; now they are, and are there. All names."""
    past.append(3, days_old=0, kind=COMPACTED, **{HORIZONS: by_partition({0: 4})})
    for kind in ("", COMPACTED):
        properties = {SCRATCH_PROPERTY: None, RAW_PROPERTY: str(past.log.metadata.table_uuid)}
        set_properties((NAME.namespace, NAME.table(kind)), properties)
    object.__setattr__(past.services, "topics", IcebergTopics(past.tables))
    object.__setattr__(past.services.stores, "delete_tables", IcebergDeleter(past.tables))
    update_views(past.services, NAME)
    found = names_in(past, NAME.namespace)
    assert found == OWN | {NAME.table(LIVE), NAME.table(LATEST)}
    return found


@contextmanager
def catalog_put_back(past: Past) -> Iterator[None]:
    """Afterwards the catalog is as it is now, as if restored; ledger and files are not."""
    with past.catalog.engine.begin() as connection:
        connection.execute(text("CREATE TABLE of_before AS SELECT * FROM iceberg_tables"))
    yield
    with past.catalog.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables"))
        connection.execute(text("INSERT INTO iceberg_tables SELECT * FROM of_before"))


def test_views_whose_files_went_with_a_deletion_that_the_catalog_has_lost_are_made_anew(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    names = with_views(past)
    with catalog_put_back(past):
        past.delete_whole()
    update_views(past.services, NAME)
    assert names_in(past, NAME.namespace) == names
    assert all(past.tables.pointers.one((NAME.namespace, NAME.table(kind))) for kind in (LIVE, LATEST))


def test_an_undo_that_the_catalog_has_lost_is_told_and_made_again(tmp_path: Path) -> None:  # DEL-4, DEL-7
    past = topic_in(tmp_path)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    with catalog_put_back(past):
        assert past.undo(plan_id).name == "published"
    with raises("CommitLost"):
        past.undo(plan_id)
    assert names_in(past, NAME.namespace) == set()
    again = past.undo(plan_id, as_of=Instant(NOW + 1))
    assert (again.name, again.restored) == ("published", 5), again.detail
    assert offsets(past) == [0, 1, 2, 3, 4]


def test_a_deletion_that_stands_again_is_taken_back_whatever_came_after_it(tmp_path: Path) -> None:  # DEL-7
    """Taken back, and the topic deleted anew; and the catalog has lost both."""
    past = topic_in(tmp_path)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    with catalog_put_back(past):
        past.undo(plan_id)
        again = steps.run(past.services, NAME, as_of=Instant(NOW + 1), work=DELETE, approver=lambda _plan, _report: (True, "ada", "again"))
        assert again.name == "published"
    assert past.undo(plan_id, as_of=Instant(NOW + 2)).name == "published"
    assert offsets(past) == [0, 1, 2, 3, 4]


def test_a_view_whose_file_is_damaged_stays(tmp_path: Path) -> None:
    """It may be the disk, or who reads: nobody takes it away for that."""
    past = topic_in(tmp_path)
    with_views(past)
    location = past.tables.pointers.one((NAME.namespace, NAME.table(LIVE)))
    assert location is not None
    local_path(location).write_bytes(b"{")
    past.tables._documents.clear()
    with pytest.raises(TableUnreadable):
        update_views(past.services, NAME)
    assert past.tables.pointers.one((NAME.namespace, NAME.table(LIVE))) == location


def judged(past: Past, work: DeleteTopic | UndoPlan = DELETE) -> str:
    """What has been approved and waits to be published: a deletion, if nothing else is named."""
    plan_id = steps.plan(past.services, NAME, as_of=NOW, work=work).plan.plan_id
    steps.stage(past.services, plan_id)
    assert steps.gate(past.services, plan_id).judgement == "needs_approval"
    steps.approve(past.services, plan_id, granted=True, by="ada", text="not needed")
    return plan_id


def test_a_table_beside_it_that_came_since_the_plan_is_not_left_behind(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    plan_id = judged(past)
    past.table("quarantine")
    with pytest.raises(PlanConflict, match="quarantine"):
        steps.publish(past.services, plan_id)
    assert names_in(past, NAME.namespace) == OWN | {NAME.table("quarantine")}


def test_a_commit_beside_the_log_since_the_plan_refuses(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    plan_id = judged(past)
    past.append(2, days_old=0, kind=COMPACTED)
    with pytest.raises(PlanConflict, match=COMPACTED):
        steps.publish(past.services, plan_id)
    assert names_in(past, NAME.namespace) == OWN


@pytest.mark.parametrize("moment", ["written", "before_commit"])
def test_a_commit_that_comes_first_at_the_last_moment_is_not_lost(tmp_path: Path, moment: str) -> None:
    past = topic_in(tmp_path)
    plan_id = judged(past)
    files = past.files()

    def step(name: str) -> None:
        if name == moment:
            past.append(5, days_old=0)

    object.__setattr__(past.services.stores, "delete_tables", IcebergDeleter(past.tables, scratch=True, steps=step))
    with pytest.raises(PlanConflict, match="another commit came first"):
        steps.publish(past.services, plan_id)
    assert offsets(past) == [0, 1, 2, 3, 4, 5]
    assert (names_in(past, NAME.namespace), names_in(past, DELETED)) == (OWN, set())
    left = {name for name in past.files() - files if name.endswith(".metadata.json")}
    assert len(left) == 4, f"of the append and its age, and of the deletion's word and its end: {left}"
    for kind in past.made:
        assert not [name for name in past.made[kind].refresh().properties if name.startswith("lifecycle._deleted")]


def stays(past: Past, now: Place, before: Place) -> None:
    """One table is where it was, with the metadata that it had, as if the catalog moved table by table and a run had died in between."""
    of = IcebergTables
    back = {"table_namespace": before[0], "table_name": before[1], "metadata_location": of.previous_metadata_location}
    with Session(past.catalog.engine) as session:
        session.execute(update(of).where(of.table_namespace == now[0], of.table_name == now[1]).values(back))
        session.commit()
    assert past.tables.pointers.one(before) is not None


@pytest.mark.parametrize("left", ["", COMPACTED], ids=["log", "view"])
@pytest.mark.parametrize("operation", ["delete", "undo"])
def test_a_topic_of_which_a_table_was_not_moved_is_not_told_as_moved(tmp_path: Path, operation: str, left: str) -> None:
    """A SQL catalog moves all or none. Wherever a part alone is moved, no plan ends as done before the rest is (DEL-6)."""
    past = topic_in(tmp_path)
    here, away = (NAME.namespace, NAME.table(left)), deleted_table_place(str(past.made[left].metadata.table_uuid))
    if operation == "delete":
        plan_id, before, after = judged(past), here, away
    else:
        before, after = away, here
        plan_id = judged(past, UndoPlan(plan_id=past.delete_whole().plan_id or ""))
    steps.publish(past.services, plan_id)
    stays(past, after, before)
    for verb in (steps.publish, steps.verify):
        with suppress(PlanConflict, NotReady):
            verb(past.services, plan_id)
    outcome = past.ledger.record(plan_id).outcome
    is_whole = past.tables.pointers.one(before) is None
    assert is_whole or outcome is None or outcome.name not in ("published", "no_op"), outcome


@pytest.mark.parametrize(("operation", "asked"), [("delete", 0), ("delete", 1), ("undo", 2)])
def test_a_move_whose_answer_is_lost_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, asked: int) -> None:
    """`asked`: how often the catalog hears of each table: a client that has lost the first answer may ask again by itself."""
    past = topic_in(tmp_path)
    first = past.delete_whole().plan_id if operation == "undo" else None
    plan_id = judged(past, UndoPlan(plan_id=first) if first else DELETE)
    before, lake = names_in(past, NAME.namespace), engine_of_process().lake
    rename = lake.renameTable

    def lost(*places: object) -> None:
        for _ in range(asked):
            rename(*places)
        raise Py4JNetworkError("the line went dead")

    with monkeypatch.context() as patched, nullcontext() if asked else pytest.raises(CommitUnknown, match="moving the table"):
        patched.setattr(lake, "renameTable", lost)
        steps.publish(past.services, plan_id)
    if not asked:
        assert names_in(past, NAME.namespace) == before
        steps.publish(past.services, plan_id)
    assert steps.verify(past.services, plan_id).name == "published"
    assert (names_in(past, NAME.namespace), len(names_in(past, DELETED))) == ((OWN, 0) if first else (set(), 2))


def test_an_undo_finds_a_strangers_table_in_its_place(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    past.catalog.create_table((NAME.namespace, NAME.table(COMPACTED)), schema=past.made[""].schema())
    outcome = past.undo(plan_id)
    assert (outcome.name, "taken" in outcome.detail) == ("blocked", True)
    assert names_in(past, NAME.namespace) == {NAME.table(COMPACTED)}
    assert len(names_in(past, DELETED)) == 2


def test_a_table_that_was_changed_by_hand_after_the_deletion_is_seen(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    place = next(place for place, location in past.tables.pointers.all(DELETED) if past.tables.at(place, location).uuid == str(past.made[""].metadata.table_uuid))  # fmt: skip
    undo_id = steps.plan(past.services, NAME, as_of=NOW, work=UndoPlan(plan_id=plan_id)).plan.plan_id
    steps.stage(past.services, undo_id)

    def older(document: dict[str, Any]) -> dict[str, Any]:
        first = document["snapshots"][0]["snapshot-id"]
        refs = {**document["refs"], "main": {"snapshot-id": first, "type": "branch"}}
        return {**document, "current-snapshot-id": first, "refs": refs}

    rewrite_document(past.catalog, past.catalog.load_table(place), older)
    report = steps.gate(past.services, undo_id)
    assert {check.id for check in report.blocking} == {"same", "rows"}


def test_a_store_that_deletes_no_topics_says_so(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    object.__setattr__(past.services.stores, "delete_tables", None)
    with raises("NotDeletable", match=str(NAME)):
        past.delete_whole()
    assert names_in(past, NAME.namespace) == OWN


def test_a_deleted_topic_is_in_no_list_and_a_deleted_namespace_in_no_stream(tmp_path: Path) -> None:
    past = topic_in(tmp_path)
    past.delete_whole()
    assert list(past.services.topics.list()) == []
    with pytest.raises(UnknownTopic):
        past.services.topics.describe(NAME)
