"""Reclaiming what Spark has written: deletion vectors, branches, tags and appends in between; judged by Spark's own readers (DEL-7)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lake import LEDGER, Lake, Rows, tables

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.services import Services
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.history import snapshot_ids
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_files import owner_of
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def topic_with_a_past(lake: Lake) -> TopicName:
    """Appends; deletes by vectors, each of which replaces the vector before it, and of whole files; a branch and a tag on old states.

    Its undo window is a second: all but what something names is past it as soon as the test looks."""
    name = lake.topic(undo_window=1, max_removed_fraction=1.0)
    lake.append(name, Rows(base=0, times=(1, 2, 3, 4)), Rows(base=4, times=(5, 6, 7, 8)))
    lake.session.sql(f"ALTER TABLE {sql_table(name)} CREATE TAG `release`")
    lake.delete(name, "offset IN (1, 5)")
    lake.session.sql(f"ALTER TABLE {sql_table(name)} CREATE BRANCH `audit`")
    lake.append(name, Rows(base=8, times=(9, 10)))
    lake.delete(name, "offset = 2")
    lake.delete(name, "offset = 3")
    lake.delete(name, "segment IN (4, 8)")
    lake.append(name, Rows(base=10, times=(11, 12)))
    return name


def soon() -> Instant:
    """Past the window of what was just written, and within what clocks may differ."""
    return Instant(time.time_ns() // 1_000 + 30_000_000)


def folder_of(name: TopicName) -> Path:
    return local_path(str(tables().document(name).content["location"]))


def sizes(name: TopicName) -> dict[str, int]:
    folder = folder_of(name)
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def by_metadata_tables(lake: Lake, name: TopicName, plan: Plan) -> set[str]:
    """What `expire_snapshots` would remove of data and delete files, as Iceberg's own metadata tables tell."""
    engine_of_process().forget(name)
    table = sql_table(name)
    kept = set(snapshot_ids(tables().document(name).content)).difference(*(action.snapshots for action in plan.forgets))
    reach = " UNION ".join(f"SELECT file_path FROM {table}.files VERSION AS OF {snapshot_id}" for snapshot_id in sorted(kept))
    gone = lake.session.sql(f"SELECT DISTINCT file_path FROM {table}.all_files WHERE file_path NOT IN ({reach})")
    folder = folder_of(name)
    return {str(local_path(row[0]).relative_to(folder)) for row in gone.collect()}


def rows_at(lake: Lake, name: TopicName, ref: str) -> Any:
    return sorted(row[0] for row in lake.session.sql(f"SELECT offset FROM {sql_table(name)} VERSION AS OF {ref}").collect())


def reclaim(s: Services, name: TopicName, as_of: Instant) -> Any:
    return steps.run(s, name, as_of=as_of, work="reclaim", approver=lambda _plan, _report: (True, "tester", "as expected"))


def test_what_goes_is_what_iceberg_itself_finds_unneeded(lake: Lake) -> None:
    name, s = topic_with_a_past(lake), lake.services()
    s.ledger.accept(name, LEDGER)
    as_of = soon()
    plan = preview(s, name, as_of=as_of, work="reclaim")
    listed = {file for removal in plan.file_removals for file in removal.files}
    roles = {role: {owner_of(f) for r in plan.file_removals if r.role == role for f in r.files} for role in ("data", "vector")}
    assert roles["data"] | roles["vector"] == by_metadata_tables(lake, name, plan)
    assert roles["data"] and roles["vector"]
    pinned = lake.session.sql(f"SELECT offset FROM {sql_table(name)} VERSION AS OF 'audit'")
    lake.append(name, Rows(base=12, times=(13,)))
    before = sizes(name)
    outcome = reclaim(s, name, as_of)
    assert (outcome.name, outcome.detail) == ("published", "")
    gone = before.keys() - sizes(name).keys()
    assert outcome.reclaimed_bytes == sum(before[file] for file in gone)
    assert gone >= {file for file in listed if not file.endswith(("metadata.json", "metadata.json.crc"))}
    assert sorted(row[0] for row in pinned.collect()) == [0, 2, 3, 4, 6, 7]
    engine_of_process().forget(name)
    assert rows_at(lake, name, "'release'") == list(range(8))
    assert rows_at(lake, name, "'audit'") == [0, 2, 3, 4, 6, 7]
    assert lake.offsets(name) == [0, 10, 11, 12]
    left = lake.session.sql(f"CALL {CATALOG}.system.remove_orphan_files(table => '{sql_table(name)}', dry_run => true)").collect()
    assert left == []


def test_expire_snapshots_finds_nothing_more_to_remove(lake: Lake) -> None:
    name, s = topic_with_a_past(lake), lake.services()
    s.ledger.accept(name, LEDGER)
    assert reclaim(s, name, soon()).name == "published"
    engine_of_process().forget(name)
    before = sizes(name)
    done = lake.session.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{sql_table(name)}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    ).collect()[0]
    assert [done[at] for at in range(5)] == [0, 0, 0, 0, 0]
    assert {file for file in before if not file.endswith((".json", ".json.crc"))} <= sizes(name).keys()
