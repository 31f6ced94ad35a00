"""What a reclaim must not touch: links, tables of others within the folder, and what is needed again by the time it is carried out (DEL-7)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import preview, undoable_operations
from message_lifecycle.model.change import Forget
from message_lifecycle.model.erasure import KeyMatch, KeySecret
from message_lifecycle.model.errors import CatalogUnavailable, ForeignTable, PlanConflict, UnsafePath
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.settings import resolve
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.erasure.rewrite import KeyRowFinder
from message_lifecycle.stores.iceberg.erasure.search import loose_with
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.java import PROPERTIES
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.layout import ERASING, STAGED_AS
from message_lifecycle.stores.iceberg.reclaim_evidence import find_named_files, reclaim_evidence
from message_lifecycle.stores.iceberg.table_folder import local_path
from tests.histories import ON_OWN_CATALOG, append, document_of, folder_of, head, names_below, rewrite_document, set_properties
from tests.ledgers import outcome_of, plan_of
from tests.reclaiming import DAY, NAME, NOW, Past, aged_past, past_in

pytestmark = ON_OWN_CATALOG


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return aged_past(tmp_path)


def test_a_link_below_the_table_stops_the_plan(past: Past, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder_of(past.log) / "data" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePath):
        past.run()


def test_a_name_that_is_no_text_stops_the_plan(past: Past) -> None:
    data = folder_of(past.log) / "data"
    (data / os.fsdecode(b"caf\xe9.parquet")).touch()
    with pytest.raises(UnsafePath, match=r"caf\\xe9.*not UTF-8"):
        past.run()


def test_a_branch_made_while_the_plan_waits_keeps_our_word_behind_it(tmp_path: Path) -> None:  # MSG-4
    past = past_in(tmp_path)
    past.table()
    ours = past.append(1, days_old=50)
    foreign = past.foreign(2, days_old=45)
    past.append(3, days_old=3)
    past.touch_all(days_old=10)
    plan_id = steps.plan(past.services, NAME, as_of=NOW, work="reclaim").plan.plan_id
    steps.stage(past.services, plan_id)
    assert steps.gate(past.services, plan_id).judgement == "passed"
    past.log.manage_snapshots().create_branch(foreign, "audit").commit()
    with pytest.raises(PlanConflict, match=f"{ours} of the log is needed again"):
        steps.publish(past.services, plan_id)
    assert past.run().name in ("published", "no_op")
    assert ours in past.snapshot_ids()


def test_our_word_behind_a_tag_stays(tmp_path: Path) -> None:  # MSG-4
    """Main may be set back to the tag, and would then give offsets again that were given."""
    past = past_in(tmp_path)
    past.table()
    ours = past.append(1, days_old=50)
    tagged = past.foreign(2, days_old=45)
    past.log.manage_snapshots().create_tag(tagged, "release").commit()
    gone = past.append(3, days_old=30)
    past.append(4, days_old=20)
    past.touch_all(days_old=10)
    outcome = past.run()
    assert (outcome.name, outcome.detail) == ("published", "")
    assert {ours, tagged} <= past.snapshot_ids()
    assert gone not in past.snapshot_ids()


def set_back(past: Past, to: int) -> None:
    """An hour ago, by another engine: main stands on an older snapshot again."""

    def rolled_back(document: dict[str, Any]) -> dict[str, Any]:
        at = NOW // 1_000 - 3_600_000
        return {
            **document,
            "current-snapshot-id": to,
            "refs": {"main": {"snapshot-id": to, "type": "branch"}},
            "snapshot-log": [*document["snapshot-log"], {"snapshot-id": to, "timestamp-ms": at}],
            "last-updated-ms": at,
        }

    rewrite_document(past.catalog, past.log, rolled_back)
    past.touch_all(days_old=10)


def test_what_main_was_set_back_from_within_the_window_stays(tmp_path: Path) -> None:
    """Nothing follows it, and it is old; readers had it until an hour ago."""
    past = past_in(tmp_path)
    past.table()
    first = past.append(1, days_old=50)
    left = past.append(2, days_old=40)
    set_back(past, to=first)
    past.run()
    assert past.snapshot_ids() == {first, left}
    past.clock.now = Instant(NOW + 8 * DAY)
    past.run(as_of=Instant(NOW + 8 * DAY))
    assert past.snapshot_ids() == {first}


def test_the_gate_too_sees_when_main_left_a_snapshot(tmp_path: Path) -> None:
    """A plan that would take it is told by its own look, which asks no planner."""
    past = past_in(tmp_path)
    past.table()
    first = past.append(1, days_old=50)
    left = past.append(2, days_old=40)
    set_back(past, to=first)
    of_table = Forget(table="", table_uuid=str(past.log.metadata.table_uuid), snapshots=(left,), refs=(), kept=())
    planned = preview(past.services, NAME, as_of=NOW, work="reclaim")
    wrong = replace(planned, changes=(of_table,))
    young = reclaim_evidence(past.tables, wrong, resolve(topic={}, server={}))["young"]
    assert isinstance(young, pa.Table)
    assert young.to_pylist() == [{"name": str(left)}]


def long_staged(folder: Path) -> tuple[Past, int, int, int]:
    """A plan whose stage waited for its approval for a month; the table has no log of what main was: before it, what it staged, its commit."""
    past = past_in(folder)
    past.table()
    before, staged = past.append(1, days_old=50), past.append(2, days_old=40)
    commit = past.append(3, days_old=5, **{STAGED_AS: f"{before} {staged}"})
    rewrite_document(past.catalog, past.log, lambda document: {**document, "snapshot-log": document["snapshot-log"][-1:]})
    past.touch_all(days_old=10)
    return past, before, staged, commit


def test_what_was_just_before_a_plan_stays_for_a_window_from_its_commit(tmp_path: Path) -> None:
    past, before, staged, commit = long_staged(tmp_path)
    past.run()
    assert past.snapshot_ids() == {before, staged, commit}
    past.clock.now = Instant(NOW + 3 * DAY)
    assert past.run(as_of=past.clock.now).name == "published"
    assert past.snapshot_ids() == {commit}


def test_the_gate_too_sees_when_main_left_what_was_before_a_plan(tmp_path: Path) -> None:
    past, before, staged, _ = long_staged(tmp_path)
    uuid = str(past.log.metadata.table_uuid)
    of_table = Forget(table="", table_uuid=uuid, snapshots=(before, staged), refs=(), kept=())
    wrong = replace(preview(past.services, NAME, as_of=NOW, work="reclaim"), changes=(of_table,))
    young = reclaim_evidence(past.tables, wrong, resolve(topic={}, server={}))["young"]
    assert isinstance(young, pa.Table)
    assert {row["name"] for row in young.to_pylist()} == {str(before), str(staged)}


def test_what_an_undo_still_finds_by_the_ledgers_clock_stays(tmp_path: Path) -> None:
    """A run died between its commit and its outcome, which the next one wrote a week later: its window began then."""
    past = past_in(tmp_path)
    past.table()
    kept = past.append(1, 2, days_old=40)
    past.clock.now = Instant(NOW - 9 * DAY)
    plan = plan_of(NAME)
    past.ledger.add_plan(plan)
    newest = past.append(3, days_old=8.9)
    past.clock.now = Instant(NOW - 2 * DAY)
    past.ledger.record_outcome(outcome_of(plan, "failed"))
    past.clock.now = NOW
    past.touch_all(days_old=8)
    past.run()
    assert past.snapshot_ids() == {kept, newest}
    past.clock.now = Instant(NOW + 6 * DAY)
    past.run(as_of=past.clock.now)
    assert past.snapshot_ids() == {newest}


def test_a_table_within_the_table_stops_the_plan(past: Past) -> None:
    inner = f"{folder_of(past.log)}/data/inner"
    past.catalog.create_table((NAME.namespace, "inner"), schema=past.log.schema(), location=inner)
    with pytest.raises(UnsafePath, match="inner"):
        past.run()


@pytest.mark.parametrize("below", ["", "/", "/data/other"])
def test_another_table_that_writes_into_the_table_stops_the_plan(past: Past, below: str) -> None:
    """Its metadata lie elsewhere, and its files would look like nobody's."""
    into = {"write.data.path": f"{past.log.location()}{below}"}
    other = past.catalog.create_table((NAME.namespace, "other"), schema=past.log.schema(), properties=into)
    append(other, 7)
    past.touch_all(days_old=10)
    with pytest.raises(UnsafePath, match="other"):
        past.run()
    assert len(other.refresh().scan().to_arrow()) == 1


def test_a_file_that_lies_elsewhere_by_its_uri_is_neither_missed_nor_taken_for_ours(tmp_path: Path) -> None:
    """The gate's own look tells it from a file within, whatever the scheme and whoever the host."""
    past = past_in(tmp_path)
    past.table()
    past.append(1, days_old=40)
    inside = next(folder_of(past.log).rglob("*.parquet"))
    (tmp_path / "outside.parquet").write_bytes(inside.read_bytes())
    uris = [f"file://other-host{tmp_path}/outside.parquet", f"file://localhost{inside}"]
    place = NAME.namespace, NAME.table()
    past.tables.catalog.load_table(place).add_files(uris, check_duplicate_files=False)
    table = past.tables.catalog.load_table(place)
    names = {file.name for file in find_named_files(table, table.metadata.snapshots) if file.kind == "data"}
    assert names == {uris[0], f"data/{inside.name}"}
    past.age({head(past.log): 35})
    past.append(2, days_old=30)
    past.touch_all(days_old=20)
    assert past.run().name == "published"


def test_another_table_whose_metadata_are_gone_is_no_hindrance(past: Past) -> None:
    other = past.catalog.create_table((NAME.namespace, "other"), schema=past.log.schema())
    local_path(other.metadata_location).unlink()
    assert past.run().name == "published"


def test_nor_is_a_key_looked_for_among_the_files_of_another_table(past: Past) -> None:
    """An erasure takes away old files that no snapshot of the table names: another table's, if it lies within."""
    inner = f"{folder_of(past.log)}/data/inner"
    past.catalog.create_table((NAME.namespace, "inner"), schema=past.log.schema(), location=inner)
    with pytest.raises(UnsafePath, match="inner"):
        IcebergEraser(past.tables, undoable=undoable_operations).find_key(NAME, lambda _key: True, resolve(topic={}, server={}), as_of=NOW)


def test_the_list_of_what_an_erasure_has_to_delete_still_stays(past: Past) -> None:
    name = "metadata/erasure-1.going.json"
    (folder_of(past.log) / name).write_text("[]")
    set_properties((NAME.namespace, NAME.table()), {ERASING: name})
    past.touch_all(days_old=30)
    assert past.run().name == "published"
    assert name in past.files()


def test_a_foreign_table_is_refused(past: Past) -> None:
    past.catalog.create_table((NAME.namespace, NAME.table("compacted")), schema=past.log.schema())
    with pytest.raises(ForeignTable):
        past.run()


def test_a_torn_file_that_no_snapshot_names_cannot_be_searched_and_counts_as_held(past: Past) -> None:
    root = folder_of(past.log)
    named = [f"{root}/{name}" for name in names_below(root) if name.endswith(".parquet")]
    for name, content in (("empty", b""), ("torn", b"PAR1 and then it died")):
        (root / "data" / f"{name}.parquet").write_bytes(content)
    secret = KeySecret(b"s" * 32)
    found = loose_with(
        LakeFileIO(), document_of(past.log), named, KeyRowFinder(KeyMatch.for_requests(secret, [secret.digests([b"k"])])), "log"
    )
    assert sorted((one.file.name, one.file.rows) for one in found) == [("data/empty.parquet", 0), ("data/torn.parquet", 0)]


def test_a_catalog_that_does_not_answer_java_is_named(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    before, jvm = past.files(), engine_of_process()
    monkeypatch.setattr(jvm, "settings", {**jvm.settings, f"{PROPERTIES}.uri": "jdbc:postgresql://127.0.0.1:1/lake"})
    monkeypatch.delitem(jvm.__dict__, "lake")
    with pytest.raises(CatalogUnavailable, match="refused"):
        past.run()
    assert past.files() == before
