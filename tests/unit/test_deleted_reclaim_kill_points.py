"""The reclaim of a deleted topic killed at any step, or run twice at once, leaves what an uninterrupted one leaves (DEL-4, DEL-5)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import cast

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.erasures import describe_unsearched_places
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.operations import registry
from message_lifecycle.app.operations.reclaim import end_lost, find_lost_reclaims
from message_lifecycle.app.topics import create_topic
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.erasure import ErasureRequest, KeyDigest, KeyDigests
from message_lifecycle.model.errors import UnsafePath
from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.iceberg.deleted_reclaim import IcebergDeletedReclaimer, namespace_properties
from message_lifecycle.stores.iceberg.layout import DELETED
from message_lifecycle.stores.iceberg.topic_delete import deleted_table_place
from tests.deleted_topics import names_in, topic_in
from tests.effort import hunt, sample
from tests.errors import raises
from tests.histories import ON_OWN_CATALOG, folder_of, names_below
from tests.past_and_die import dies, ended, start
from tests.reclaiming import DAY, NAME, NOW, Past, past_in

pytestmark = ON_OWN_CATALOG

AFTER_COMMIT = ["after_commit", "while_deleting", "after_delete"]
STEPS = ["before_commit", "inside_commit", "inside_commit 2", *AFTER_COMMIT]
EVERYWHERE = ErasureRequest(
    request_id="r",
    keys=KeyDigests(secret="s", each=(KeyDigest(digest="d", mark="abc"),)),
    topics=(),
    forbid=False,
    requested_by="ada",
    why="asked",
    requested_at=NOW,
    state="requested",
)


def made(folder: Path) -> tuple[Past, str, str]:
    """A deleted topic, as old as its window by every clock that reads its ledger; the ledger, and the plan."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate_ledger(url)
    past = topic_in(folder, ledger_url=url)
    past.clock.now = Instant(NOW - 8 * DAY)
    plan_id = past.delete_whole().plan_id
    past.clock.now = NOW
    return past, url, plan_id or ""


def files(past: Past) -> set[str]:
    return {name for table in past.made.values() for name in names_below(folder_of(table))}


def is_as_after_one_run(past: Past) -> None:
    assert (files(past), names_in(past, DELETED)) == (set(), set())
    assert not [name for name in namespace_properties(past.tables.catalog) if name.startswith("lifecycle.")]
    reclaims = past.ledger.history(NAME, operations=("reclaim",))
    assert [outcome.name for _, outcome in reclaims if outcome.name != "no_op"] == ["published"]


@pytest.mark.parametrize("step", sample(STEPS, "inside_commit", "while_deleting"))
def test_the_next_run_brings_it_to_its_end(tmp_path: Path, step: str) -> None:
    past, url, plan_id = made(tmp_path)
    before = files(past)
    dies(tmp_path, url, step, "reclaim", plan_id)
    assert len(names_in(past, DELETED)) == {"before_commit": 2, "inside_commit": 1}.get(step, 0)
    assert (files(past) == before) is (step not in ("while_deleting", "after_delete"))
    outcome = past.reclaim_deleted(plan_id)
    assert (outcome.name, outcome.detail) == ("published", "")
    is_as_after_one_run(past)
    assert past.reclaim_deleted(plan_id).name == "no_op"


@hunt
def test_a_run_that_dies_when_its_outcome_is_written_leaves_no_word(tmp_path: Path) -> None:
    """The plan is closed by then, so no plan of the name would find it; and an erasure would wait for its files for ever."""
    past, url, plan_id = made(tmp_path)
    dies(tmp_path, url, "before_close", "reclaim", plan_id)
    assert describe_unsearched_places(past.services, EVERYWHERE) == []
    judge(past.services, [], as_of=NOW, work="reclaim")
    is_as_after_one_run(past)


@hunt
def test_what_a_ledger_restored_from_before_does_not_know_is_ended_by_a_person(tmp_path: Path) -> None:
    past, url, plan_id = made(tmp_path)
    (tmp_path / "backup.db").write_bytes((tmp_path / "ledger.db").read_bytes())
    dies(tmp_path, url, "while_deleting", "reclaim", plan_id)
    restored = past_in(tmp_path, ledger_url=f"sqlite:///{tmp_path / 'backup.db'}")
    (reclaim_id,) = find_lost_reclaims(restored.services)
    assert f"lifecycle reclaim run --deleted {reclaim_id[:12]}" in " ".join(describe_unsearched_places(restored.services, EVERYWHERE))
    judge(restored.services, [], as_of=NOW, work="reclaim")
    before = files(past)
    first = [f"{table.location()}/{name}" for table in past.made.values() for name in sorted(names_below(folder_of(table)))[:3]]
    with raises("FilesLeft", match=re.escape(first[-1])) as left:
        end_lost(restored.services, reclaim_id)
    assert sorted(str(left.value).partition("Left: ")[2].partition(". Nothing")[0].split(", ")) == sorted(first), (
        "in whatever order a file system lists them"
    )
    assert files(past) == before, "nobody has a plan that names them"
    for table in past.made.values():
        shutil.rmtree(folder_of(table))
    assert end_lost(restored.services, reclaim_id).name == "no_op"
    assert describe_unsearched_places(restored.services, EVERYWHERE) == []
    assert not [name for name in namespace_properties(past.tables.catalog) if name.startswith("lifecycle.")]


@hunt
def test_files_that_another_table_has_taken_in_are_its_orphans(tmp_path: Path) -> None:
    past, url, plan_id = made(tmp_path)
    (tmp_path / "backup.db").write_bytes((tmp_path / "ledger.db").read_bytes())
    dies(tmp_path, url, "after_commit", "reclaim", plan_id)
    restored = past_in(tmp_path, ledger_url=f"sqlite:///{tmp_path / 'backup.db'}")
    for kind, table in past.made.items():
        restored.table(kind, location=table.location())
    (reclaim_id,) = find_lost_reclaims(restored.services)
    assert end_lost(restored.services, reclaim_id).name == "no_op"


def test_what_was_begun_is_due_and_no_erasure_passes_it_over(tmp_path: Path) -> None:
    past, url, plan_id = made(tmp_path)
    dies(tmp_path, url, "while_deleting", "reclaim", plan_id)
    (due,) = judge(past.services, [NAME], as_of=NOW, work="reclaim")
    assert (due.due, "has begun" in due.reason) == (True, True)
    assert registry.work_on(past.services, NAME, "reclaim", as_of=NOW) != "reclaim"
    assert "has begun to remove them" in " ".join(describe_unsearched_places(past.services, EVERYWHERE))
    past.reclaim_deleted(plan_id)
    assert describe_unsearched_places(past.services, EVERYWHERE) == []


def test_another_plan_of_the_name_finishes_it_first(tmp_path: Path) -> None:
    """Whatever is planned next: no table tells of the files any more, and a closed plan would leave them for ever."""
    past, url, plan_id = made(tmp_path)
    dies(tmp_path, url, "after_commit", "reclaim", plan_id)
    create_topic(past.services, NAME, partitions=1, settings={})
    assert steps.run(past.services, NAME, as_of=NOW, work="reclaim").name == "no_op"
    is_as_after_one_run(past)


def test_a_word_that_lapsed_and_a_hold_that_came_too_late_do_not_leave_it_half_done(tmp_path: Path) -> None:
    past, url, plan_id = made(tmp_path)
    dies(tmp_path, url, "while_deleting", "reclaim", plan_id)
    past.clock.pass_us(2 * DAY)
    create_topic(past.services, NAME, partitions=1, settings={})
    place_hold(past.services, NAME, by="ada", why="case 7")
    begun = past.ledger.open_plan(NAME)
    assert begun is not None
    steps.publish(past.services, begun.plan.plan_id)
    assert steps.verify(past.services, begun.plan.plan_id).name == "published"
    is_as_after_one_run(past)


def test_a_hold_that_came_before_a_table_was_forgotten_keeps_them_all(tmp_path: Path) -> None:  # DEL-8
    """The word is told by then, and nothing has begun."""
    past, url, plan_id = made(tmp_path)
    before = files(past)
    dies(tmp_path, url, "before_commit", "reclaim", plan_id)
    place_hold(past.services, NAME, by="ada", why="case 7")
    assert past.reclaim_deleted(plan_id).name == "no_op"
    after = files(past)
    assert before <= after
    assert [name for name in after - before if ".metadata.json" not in name] == []  # the hold's mark (DEL-8)
    assert len(names_in(past, DELETED)) == 2
    assert not [name for name in namespace_properties(past.tables.catalog) if name.startswith("lifecycle.")]


@pytest.mark.parametrize("step", sample(["before_commit", "inside_commit"], "inside_commit"))
def test_a_table_that_was_given_another_name_meanwhile_keeps_its_files(tmp_path: Path, step: str) -> None:
    """It lives, though it is not where a deleted table lies: past the ledger, as by a RENAME in Spark, after the word was told."""
    past, _, plan_id = made(tmp_path)
    before, reclaimer = files(past), cast(IcebergDeletedReclaimer, past.services.stores.drop_tables)
    moved = deleted_table_place(str(past.made["compacted"].metadata.table_uuid))

    def rename(reached: str) -> None:
        if reached == step and past.tables.pointers.one(moved) is not None:
            past.tables.catalog.rename_table(moved, (DELETED, "rescued"))

    reclaimer._steps = rename
    for _ in range(2):  # the next run, too, which finds the word and takes it for begun
        with pytest.raises(UnsafePath, match="rescued"):
            past.reclaim_deleted(plan_id)
    assert files(past) == before


def test_of_two_at_once_one_does_it(tmp_path: Path) -> None:
    past, url, plan_id = made(tmp_path)
    told = ended([start(tmp_path, url, "none", "reclaim", plan_id) for _ in range(2)])
    assert "published" in told, told
    is_as_after_one_run(past)


def test_a_scenario_and_the_lake_do_not_finish_each_others(tmp_path: Path) -> None:
    _, url, plan_id = made(tmp_path)
    dies(tmp_path, url, "after_commit", "reclaim", plan_id)
    reclaimer = past_in(tmp_path, ledger_url=url).services.stores.drop_tables
    assert reclaimer is not None
    assert len(reclaimer.unfinished()) == 1
    object.__setattr__(reclaimer, "_scratch", False)
    assert not reclaimer.unfinished()
