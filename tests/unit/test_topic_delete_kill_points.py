"""A topic's deletion, and its undo, killed at any step leave what an uninterrupted one leaves (DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.schema import Schema

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import describe_unsearched_places
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.requests import deleted_topics
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.erasure import KeyDigest, KeyDigests
from message_lifecycle.model.errors import CommitUnknown, HeldByLegalHold, PlanConflict, UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import DeleteTopic
from message_lifecycle.model.setting_list import Value
from message_lifecycle.ports import TopicDeleter
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction import new_view
from message_lifecycle.stores.iceberg.documents import tables as document_tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import COMPACTED, DELETED
from message_lifecycle.stores.iceberg.topic_delete import deleted_table_place
from tests.deleted_topics import OWN, names_in, offsets, topic_in
from tests.effort import hunt, sample
from tests.errors import raises
from tests.histories import ON_OWN_CATALOG
from tests.past_and_die import dies, ended, start
from tests.reclaiming import NAME, NOW, Past

pytestmark = ON_OWN_CATALOG

STEPS = ["written", "inside_commit", "before_commit", "inside_commit 2", "after_commit"]
"""A deletion's, in order: it moves the view, and then the log. An undo moves the log first, and comes to `before_commit` after both."""


def made(folder: Path, **settings: Value) -> tuple[Past, str]:
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate_ledger(url)
    return topic_in(folder, ledger_url=url, **settings), url


def left(past: Past) -> object:
    """What a topic and its deletion come to, whichever plan did it: names, rows, refs and history, and what the ledger has of it."""
    found = ((place[0] == DELETED, past.tables.at(place, location).content) for place, location in past.tables.pointers.all(None))
    tables = sorted((is_deleted, len(document["snapshots"]), sorted(document["refs"])) for is_deleted, document in found)
    outcomes = [(o.operation, o.name, o.removed, o.restored) for _, o in past.ledger.history(NAME) if o.name != "no_op"]
    return tables, outcomes, [(topic.rows, len(topic.tables)) for topic in deleted_topics(past.services)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What is left, by operation."""
    past, _ = made(tmp_path_factory.mktemp("whole"))
    plan_id = past.delete_whole().plan_id
    found = {"delete": left(past)}
    past.undo(plan_id or "")
    return {**found, "undo": left(past)}


@pytest.mark.parametrize("step", sample(STEPS, "inside_commit", "after_commit"))
def test_a_deletion_killed_at_any_step_leaves_the_log_or_nothing_and_is_ended(
    tmp_path: Path, uninterrupted: dict[str, object], step: str
) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, step, "delete")
    here, away = names_in(past, NAME.namespace), names_in(past, DELETED)
    is_gone, of_log = step in ("inside_commit 2", "after_commit"), {NAME.table()}
    assert (here, len(away)) == ((set(), 2) if is_gone else (OWN, 0) if step == "written" else (of_log, 1))
    outcome = past.delete_whole()
    assert outcome.name == ("no_op" if is_gone else "published"), outcome.detail
    assert left(past) == uninterrupted["delete"]
    assert past.delete_whole().name == "no_op"


@pytest.mark.parametrize("step", sample(STEPS, "inside_commit"))
def test_an_undo_killed_at_any_step_leaves_nothing_or_the_log_and_is_ended(
    tmp_path: Path, uninterrupted: dict[str, object], step: str
) -> None:
    past, url = made(tmp_path)
    plan_id = past.delete_whole().plan_id
    assert plan_id is not None
    dies(tmp_path, url, step, "undo", plan_id)
    assert names_in(past, NAME.namespace) == {"written": set(), "inside_commit": {NAME.table()}}.get(step, OWN)
    outcome = past.undo(plan_id)
    assert outcome.name == ("no_op" if step == "after_commit" else "published"), outcome.detail
    assert (offsets(past), offsets(past, COMPACTED)) == ([0, 1, 2, 3, 4], [1, 4])
    assert past.ledger.undone_by(plan_id) is not None
    assert left(past) == uninterrupted["undo"]


@hunt
def test_half_a_deletion_that_somebody_has_written_to_is_taken_back(tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, "before_commit", "delete")
    past.append(5, days_old=0)
    first = past.ledger.open_plan(NAME)
    assert first is not None
    with pytest.raises(PlanConflict, match="changed since"):
        steps.publish(past.services, first.plan.plan_id)
    assert (names_in(past, NAME.namespace), names_in(past, DELETED)) == (OWN, set())
    assert (offsets(past), offsets(past, COMPACTED)) == ([0, 1, 2, 3, 4, 5], [1, 4])
    outcome = past.delete_whole()
    assert (outcome.name, dict(outcome.removed)) == ("published", {"removed": 6}), outcome.detail
    assert len(names_in(past, DELETED)) == 2


def test_half_a_deletion_is_ended_before_anything_else_is_planned(tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, "before_commit", "delete")
    with pytest.raises(UnknownTopic):
        steps.plan(past.services, NAME, as_of=NOW)
    assert left(past) == uninterrupted["delete"]


def test_half_a_deletion_that_is_given_up_leaves_the_topic_whole(tmp_path: Path) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, "before_commit", "delete")
    first = past.ledger.open_plan(NAME)
    assert first is not None
    steps.close(past.services, first.plan, "superseded", "given up")
    assert (names_in(past, NAME.namespace), names_in(past, DELETED)) == (OWN, set())
    assert (offsets(past), offsets(past, COMPACTED)) == ([0, 1, 2, 3, 4], [1, 4])


def test_half_a_deletion_past_a_hold_leaves_the_topic_whole(tmp_path: Path) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, "before_commit", "delete")
    place_hold(past.services, NAME, by="ada", why="case 7")
    with pytest.raises(HeldByLegalHold):
        steps.run(past.services, NAME, as_of=NOW, work=DeleteTopic())
    assert (names_in(past, NAME.namespace), names_in(past, DELETED)) == (OWN, set())


def test_half_a_deletion_that_cannot_be_taken_back_yet_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for what a closed plan has away."""
    past, url = made(tmp_path)
    dies(tmp_path, url, "before_commit", "delete")
    first = past.ledger.open_plan(NAME)
    assert first is not None

    def dead(*_: object) -> None:
        raise Py4JNetworkError("the line went dead")

    with monkeypatch.context() as patched, pytest.raises(CommitUnknown, match="moving the table"):
        patched.setattr(engine_of_process().lake, "renameTable", dead)
        steps.close(past.services, first.plan, "superseded", "given up")
    assert past.ledger.open_plan(NAME) == first
    with pytest.raises(PlanConflict, match="changed since"):
        past.append(5, days_old=0)
        steps.publish(past.services, first.plan.plan_id)
    assert (names_in(past, NAME.namespace), names_in(past, DELETED)) == (OWN, set())


def _unreached(past: Past) -> str:
    keys = KeyDigests(secret="s", each=(KeyDigest(digest="d", mark="abc"),))
    return " ".join(
        describe_unsearched_places(
            past.services, past.ledger.add_erasure("r", keys, topics=[], forbid=False, requested_by="ada", why="asked")
        )
    )


@pytest.mark.parametrize("make", sample([new_view.create, document_tables.create], new_view.create), ids=["a view", "snapshots"])
def test_no_table_is_made_beside_half_a_deletion(tmp_path: Path, make: Callable[[Tables, TopicName], None]) -> None:
    """It would have the name of one that is away, and that one nobody could put back any more."""
    past, url = made(tmp_path, **({"fold": "text_splice"} if make is document_tables.create else {}))
    dies(tmp_path, url, "before_commit", "delete")
    first = past.ledger.open_plan(NAME)
    assert first is not None
    with raises("DeletionBegun", match=f"`lifecycle publish {first.plan.plan_id[:12]}`"):
        make(past.tables, NAME)
    assert names_in(past, NAME.namespace) == {NAME.table()}
    assert f"begun to delete the topic. Its moved tables were not searched: {DELETED}." in (told := _unreached(past))
    assert f"Finish or reverse the deletion: `lifecycle publish {first.plan.plan_id[:12]}`" in told and "with their files" not in told
    steps.publish(past.services, first.plan.plan_id)
    assert f"its tables were not searched, because plan {first.plan.plan_id[:12]} deleted the topic" in _unreached(past)
    assert past.undo(first.plan.plan_id).name == "published"
    assert _unreached(past) == ""
    make(past.tables, NAME)


@hunt
def test_what_half_a_deletion_cannot_put_back_is_not_told_as_a_topic_that_went(tmp_path: Path) -> None:
    past, url = made(tmp_path)
    dies(tmp_path, url, "before_commit", "delete")
    past.table(COMPACTED, location=(tmp_path / "another").as_uri())
    first = past.ledger.open_plan(NAME)
    assert first is not None
    steps.close(past.services, first.plan, "superseded", "given up")
    assert (names_in(past, NAME.namespace), len(names_in(past, DELETED))) == (OWN, 1)
    output = _unreached(past)
    assert (
        f"plan {first.plan.plan_id[:12]} did not delete the topic" in output
        and "the topic exists" in output
        and "dropped its log" not in output
    )


def test_half_an_undo_is_told_as_that_and_no_table_is_made_beside_it(tmp_path: Path) -> None:
    past, url = made(tmp_path)
    deletion = past.delete_whole().plan_id or ""
    dies(tmp_path, url, "inside_commit", "undo", deletion)
    with raises("DeletionBegun", match=f"Finish an undo: `lifecycle undo {deletion[:12]} --by NAME --why WHY`"):
        new_view.create(past.tables, NAME)
    output = _unreached(past)
    assert (
        "an undo has begun to bring it back" in output
        and f"Finish the undo: `lifecycle undo {deletion[:12]} --by NAME --why WHY`" in output
        and "with their files" not in output
    )
    assert past.undo(deletion).name == "published"
    assert _unreached(past) == ""


def test_what_is_left_of_a_deletion_is_told_though_another_engines_table_has_the_name(tmp_path: Path) -> None:
    past, _ = made(tmp_path)
    past.delete_whole()
    (gone,) = cast(TopicDeleter, past.services.stores.delete_tables).deletions()
    past.catalog.drop_table(deleted_table_place(gone.table_uuid))
    past.catalog.create_table((NAME.namespace, NAME.table()), schema=Schema())
    assert "someone dropped its log later" in _unreached(past)


@hunt
@pytest.mark.parametrize("given_up", [True, False], ids=["given up", "asked again"])
def test_half_an_undo_is_ended_past_a_hold(tmp_path: Path, uninterrupted: dict[str, object], given_up: bool) -> None:
    """What gives back is not stopped by a hold, and a topic that is back is told as back (DEL-7)."""
    past, url = made(tmp_path)
    deletion = past.delete_whole().plan_id or ""
    dies(tmp_path, url, "inside_commit", "undo", deletion)
    place_hold(past.services, NAME, by="ada", why="case 7")
    half = past.ledger.open_plan(NAME)
    assert half is not None
    outcome = steps.close(past.services, half.plan, "superseded", "given up") if given_up else past.undo(deletion)
    assert (outcome.name, outcome.plan_id) == ("published", half.plan.plan_id), outcome.detail
    assert past.ledger.undone_by(deletion) == half.plan.plan_id
    assert left(past) == uninterrupted["undo"]
    assert past.undo(deletion).name == "no_op"


@hunt
@pytest.mark.parametrize("work", ["undo", "reclaim"])
def test_half_an_undo_of_which_a_name_was_taken_meanwhile_is_told_as_back(tmp_path: Path, work: str) -> None:
    past, url = made(tmp_path)
    past.table("quarantine")
    deletion = past.delete_whole().plan_id or ""
    dies(tmp_path, url, "inside_commit", "undo", deletion)
    half = past.ledger.open_plan(NAME)
    assert half is not None
    past.table("quarantine", location=(tmp_path / "another").as_uri())
    if work == "undo":
        past.undo(deletion)
    else:
        past.run()
    outcome = past.ledger.record(half.plan.plan_id).outcome
    assert outcome is not None and (outcome.name, "quarantine" in outcome.detail) == ("failed", True), outcome
    assert (names_in(past, NAME.namespace), len(names_in(past, DELETED))) == (OWN | {NAME.table("quarantine")}, 1)
    assert past.ledger.undone_by(deletion) is not None
    assert f"plan {deletion[:12]} was undone, and the topic exists. These moved tables could not move back" in _unreached(past)
    assert past.undo(deletion).name == "no_op"


@pytest.mark.parametrize("operation", sample(["delete", "undo"], "delete"))
def test_of_two_at_once_one_does_it(tmp_path: Path, uninterrupted: dict[str, object], operation: str) -> None:
    past, url = made(tmp_path)
    given = [past.delete_whole().plan_id or ""] if operation == "undo" else []
    output = ended([start(tmp_path, url, "none", operation, *given) for _ in range(2)])
    assert "published" in output, output
    assert left(past) == uninterrupted[operation]
