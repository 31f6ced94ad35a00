"""A topic that is known and cannot be found is not the same as one that never was: nothing is well, due or erased without it."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.known import all_topics, forget_topic
from message_lifecycle.app.requests import delete_topic
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.state import status
from message_lifecycle.model.errors import FileLost, FileUnreadable, HeldByLegalHold, UnknownTopic, code_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.memory import MemoryStore
from tests.contract.conftest import MakeWorld, on
from tests.errors import raises

SECOND = 1_000_000
NOW = Instant(100 * SECOND)
KEY = b"anna"


def yes(*_: object) -> tuple[bool, str, str]:
    return True, "bob", "yes"


def make(make_world: MakeWorld, *topics: str) -> tuple[World, list[TopicName]]:
    world = make_world({})
    world.set_now(NOW)
    s = world.services
    names = [TopicName(stream=f"{world.scratch}.known", topic=topic) for topic in topics]
    for name in names:
        create_topic(s, name, settings={"max_removed_fraction": 1.0})
        world.writer.append(name, [NewMessage(append_time=Instant(SECOND), key=KEY, value=b"v")], policy_of(s, name))
    return world, names


def drop_unseen(world: World, name: TopicName) -> None:
    """As another program does it."""
    if isinstance(world.services.topics, MemoryStore):
        del world.services.topics.tables[name]
        return
    from message_lifecycle.stores.iceberg.catalog import Tables

    Tables().catalog.drop_table((name.namespace, name.table()))


def told(world: World) -> dict[str, tuple[bool, str]]:
    return {entry["topic"]: (entry["ok"], " ".join(entry["problems"]).partition(":")[0][:12]) for entry in status(world.services)}


def test_one_that_another_program_dropped_is_missed_by_status_due_and_erasures(make_world: MakeWorld) -> None:
    world, (here, gone) = make(make_world, "here", "gone")
    s = world.services
    drop_unseen(world, gone)
    assert all_topics(s) == [gone, here]
    assert told(world) == {str(here): (True, ""), str(gone): (False, "TopicMissing")}
    judged = {one.topic: code_of(one.error) for one in due(s, all_topics(s), as_of=NOW) if one.error}
    assert judged == {gone: "TopicMissing"}
    request = ask(s, KEY, topics=[], forbid=False, by="ada", why="a letter")
    ended = {one.topic: one.is_done for one in carry_out(s, request.request_id, approver=yes)}
    assert ended == {here: True, gone: False}
    after = s.ledger.erasure(request.request_id)
    assert after.state == "requested"
    assert f"{gone}: TopicMissing" in after.detail


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
def test_one_that_cannot_be_read_hides_no_other_and_an_erasure_waits_for_it(make_world: MakeWorld) -> None:
    from message_lifecycle.stores.iceberg.catalog import Tables
    from message_lifecycle.stores.iceberg.table_folder import local_path

    world, (away, here) = make(make_world, "away", "here")
    s, metadata = world.services, local_path(Tables().location(away))
    unmounted = metadata.rename(metadata.with_suffix(".away"))
    assert told(world) == {str(away): (False, "TableUnreada"), str(here): (True, "")}
    judged = {one.topic: code_of(one.error) for one in due(s, all_topics(s), as_of=NOW) if one.error}
    assert judged == {away: "TableUnreadable"}
    request = ask(s, KEY, topics=[], forbid=False, by="ada", why="a letter")
    assert {one.topic: one.is_done for one in carry_out(s, request.request_id, approver=yes)} == {away: False, here: True}
    after = s.ledger.erasure(request.request_id)
    assert (after.state, f"{away}: TableUnreadable" in after.detail) == ("requested", True)
    unmounted.rename(metadata)
    assert all(one.is_done for one in carry_out(s, request.request_id, approver=yes))
    ended = s.ledger.erasure(request.request_id)
    assert ended.state == "erased", ended.detail


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
@pytest.mark.parametrize(("cut", "error"), [(None, FileLost), (40, FileUnreadable), (0, FileUnreadable)])
@pytest.mark.parametrize("of", ["data", "manifest", "manifest list"])
def test_a_file_that_is_lost_or_torn_is_told_as_that(make_world: MakeWorld, of: str, cut: int | None, error: type[FileUnreadable]) -> None:
    from message_lifecycle.stores.iceberg.catalog import Tables
    from message_lifecycle.stores.iceberg.table_folder import local_path

    world, (torn, here) = make(make_world, "torn", "whole")
    table = Tables().load(torn)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    places = {"data": entry.data_file.file_path, "manifest": manifest.manifest_path, "manifest list": snapshot.manifest_list}
    path = local_path(places[of])
    if cut is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FileUnreadable, match=table.location()) as found:
        list(world.services.reader.messages(torn))
    assert type(found.value) is error
    assert told(world)[str(here)] == (True, "")
    (problem,) = [entry["problems"] for entry in status(world.services, [torn])] if of != "data" else [[path.name]]
    assert path.name in problem[0], "status reads manifests alone"
    assert told(world)[str(torn)] == ((True, "") if of == "data" else (False, error.__name__[:12]))


def test_one_that_a_plan_deleted_is_not_missed_and_one_that_came_back_and_went_is(make_world: MakeWorld) -> None:
    world, (name,) = make(make_world, "deleted")
    s = world.services
    deleted = delete_topic(s, name, by="ada", text="no use")
    assert (deleted.name, all_topics(s), told(world)) == ("published", [], {})
    assert deleted.plan_id is not None
    world.set_now(Instant(NOW + SECOND))
    back = UndoPlan(plan_id=deleted.plan_id)
    steps.run(s, name, as_of=Instant(NOW + SECOND), approver=lambda *_: (True, "ada", "a mistake"), work=back)
    assert all_topics(s) == [name]
    drop_unseen(world, name)
    assert told(world) == {str(name): (False, "TopicMissing")}


def test_one_that_was_made_again_after_its_deletion_is_missed_too(make_world: MakeWorld) -> None:
    world, (name,) = make(make_world, "again")
    delete_topic(world.services, name, by="ada", text="no use")
    world.set_now(Instant(NOW + SECOND))
    create_topic(world.services, name, settings={})
    drop_unseen(world, name)
    assert told(world) == {str(name): (False, "TopicMissing")}


def test_a_person_may_say_that_it_is_meant_to_be_gone(make_world: MakeWorld) -> None:
    world, (here, gone) = make(make_world, "here", "gone")
    s = world.services
    with raises("TopicExists"):
        forget_topic(s, here, by="ada", text="why not")
    with pytest.raises(UnknownTopic):
        forget_topic(s, TopicName(stream="known", topic="never"), by="ada", text="why not")
    place_hold(s, gone, by="ada", why="a court")
    drop_unseen(world, gone)
    with pytest.raises(HeldByLegalHold):
        forget_topic(s, gone, by="ada", text="dropped in May")
    (hold,) = s.ledger.holds(gone)
    s.ledger.release_hold(hold.hold_id, by="ada", why="closed")
    assert "dropped in May" in forget_topic(s, gone, by="ada", text="dropped in May").detail
    assert (all_topics(s), told(world)) == ([here], {str(here): (True, "")})
    assert next(outcome.detail for _, outcome in s.ledger.history(gone)).endswith("dropped in May")
    create_topic(s, gone, settings={})
    assert all_topics(s) == [gone, here]
