"""A topic that is known and cannot be found is not the same as one that never was: nothing is well, due or erased without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.known import all_topics, forget_topic, why_absent
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.receipts import verify
from message_lifecycle.app.requests import delete_topic
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.errors import FileLost, FileUnreadable, HeldByLegalHold, UnknownTopic, code_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.iceberg import lake_io
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.pointers import CatalogPointers
from message_lifecycle.stores.iceberg.tasks import Store
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


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of a topic's table, where it lies, by the keys of the table as it is now."""

    store: Store
    path: str

    @classmethod
    def of(cls, name: TopicName, path: str) -> Stored:
        return cls(Store.of(Tables().load(name)), path)

    @classmethod
    def metadata(cls, name: TopicName) -> Stored:
        return cls.of(name, Tables().metadata_location(name))

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def content(self) -> bytes:
        with self.store.open(self.path) as file:
            return file.read()

    def write(self, content: bytes) -> None:
        lake_io._kept.clear()  # as in a process that has not read it yet
        self.store.write(self.path, content)

    def take_away(self) -> bytes:
        """What it held."""
        found = self.content()
        self.store.remove(self.path)
        lake_io._kept.clear()
        return found


def drop_unseen(world: World, name: TopicName) -> None:
    """As another program does it."""
    if isinstance(world.services.topics, MemoryStore):
        del world.services.topics.tables[name]
        return
    Tables().catalog.drop_table((name.namespace, name.table()))


def known(world: World, s: Services | None = None) -> list[TopicName]:
    """Of this world: a lake has those of others, too."""
    return [name for name in all_topics(s or world.services) if name.stream.startswith(f"{world.scratch}.")]


def told(world: World) -> dict[str, tuple[bool, str]]:
    return {str(entry.topic): (entry.ok, " ".join(entry.problems).partition(":")[0][:12]) for entry in status(world.services, known(world))}


def test_one_that_another_program_dropped_is_missed_by_status_due_and_erasures(make_world: MakeWorld) -> None:
    world, (here, gone) = make(make_world, "here", "gone")
    s = world.services
    drop_unseen(world, gone)
    assert known(world) == [gone, here]
    with raises("TopicMissing", match="lifecycle topic forget"):
        create_topic(s, gone, settings={})
    assert told(world) == {str(here): (True, ""), str(gone): (False, "TopicMissing")}
    judged = {one.topic: code_of(one.error) for one in due(s, known(world), as_of=NOW) if one.error}
    assert judged == {gone: "TopicMissing"}
    request = ask(s, [KEY], topics=[], forbid=False, by="ada", why="a letter")
    ended = {one.topic: one.is_done for one in carry_out(s, request.request_id, approver=yes) if one.topic in (here, gone)}
    assert ended == {here: True, gone: False}
    after = s.ledger.erasure(request.request_id)
    assert after.state == "requested"
    assert f"{gone}: TopicMissing" in after.detail


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
def test_one_that_cannot_be_read_hides_no_other_and_an_erasure_waits_for_it(make_world: MakeWorld) -> None:
    world, (away, here) = make(make_world, "away", "here")
    s = world.services
    request = ask(s, [KEY], topics=[away, here], forbid=False, by="ada", why="a letter")
    metadata = Stored.metadata(away)
    unmounted = metadata.take_away()
    tables: Any = s.stores.drop_tables
    tables._tables._documents.clear()  # as of another process, which has not read the metadata
    assert told(world) == {str(away): (False, "TableUnreada"), str(here): (True, "")}
    judged = {one.topic: code_of(one.error) for one in due(s, known(world), as_of=NOW) if one.error}
    assert judged == {away: "TableUnreadable"}
    ended = {one.topic: one for one in carry_out(s, request.request_id, approver=yes)}
    assert {name: one.is_done for name, one in ended.items()} == {away: False, here: True}, ended[here].why_not_done()
    after = s.ledger.erasure(request.request_id)
    assert (after.state, f"{away}: TableUnreadable" in after.detail) == ("requested", True)
    metadata.write(unmounted)
    assert all(one.is_done for one in carry_out(s, request.request_id, approver=yes))
    ended = s.ledger.erasure(request.request_id)
    assert ended.state == "erased", ended.detail


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
@pytest.mark.parametrize(("cut", "error"), [(None, FileLost), (40, FileUnreadable), (0, FileUnreadable), (-60, FileUnreadable)])
@pytest.mark.parametrize("of", ["data", "manifest", "manifest list"])
def test_a_file_that_is_lost_or_torn_is_told_as_that(make_world: MakeWorld, of: str, cut: int | None, error: type[FileUnreadable]) -> None:
    world, (torn, here) = make(make_world, "torn", "whole")
    table = Tables().load(torn)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    places = {"data": entry.data_file.file_path, "manifest": manifest.manifest_path, "manifest list": snapshot.manifest_list}
    path = Stored.of(torn, places[of])
    whole = path.take_away()
    if cut is not None:
        path.write(whole[:cut] + b"\xff" * max(0, -cut))
    with pytest.raises(FileUnreadable, match=table.location()) as found:
        list(world.services.reader.messages(torn))
    assert type(found.value) is error
    assert told(world)[str(here)] == (True, "")
    (problem,) = [entry.problems for entry in status(world.services, [torn])] if of != "data" else [[path.name]]
    assert path.name in problem[0], "status reads manifests alone"
    assert told(world)[str(torn)] == ((True, "") if of == "data" else (False, error.__name__[:12]))


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
def test_an_erasure_goes_on_past_a_topic_of_which_a_data_file_is_lost(make_world: MakeWorld) -> None:
    world, (torn, whole) = make(make_world, "torn", "whole")
    (task,) = Tables().load(torn).scan().plan_files()
    Stored.of(torn, task.file.file_path).take_away()
    request = ask(world.services, [KEY], topics=[torn, whole], forbid=False, by="ada", why="a letter")
    found = {one.topic: one for one in carry_out(world.services, request.request_id, approver=yes)}
    assert (found[whole].is_done, code_of(found[torn].error)) == (True, "FileLost")
    assert "FileLost" in world.services.ledger.erasure(request.request_id).detail


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
@pytest.mark.parametrize("work", get_args(Scheduled))
def test_no_operation_lets_one_that_cannot_be_read_hide_the_others(make_world: MakeWorld, work: Scheduled) -> None:
    world, (away, here) = make(make_world, "away", "here")
    metadata = Stored.metadata(away)
    unmounted = metadata.take_away()
    judged = {one.topic: code_of(one.error) for one in due(world.services, [away, here], as_of=NOW, work=work) if one.error}
    metadata.write(unmounted)
    # What takes files that nothing names does not guess where a table lies of which its catalog cannot tell.
    guesses = work == "reclaim" and isinstance(Tables().pointers, CatalogPointers)
    assert judged.get(here) == ("TableNotTold" if guesses else None)
    assert judged.get(away) in ("TableUnreadable", None)


def test_a_deletion_that_the_ledger_does_not_know_is_told_by_the_tables(make_world: MakeWorld) -> None:
    """It was restored from before, or the deletion ended as failed."""
    world, (name,) = make(make_world, "deleted")
    with open_ledger("sqlite://", clock=world.services.ledger.now) as older:
        older.set_accepted(name, {})
        world.set_now(Instant(NOW + SECOND))
        assert delete_topic(world.services, name, by="ada", text="no use").name == "published"
        assert known(world, replace(world.services, ledger=older)) == []


def test_a_topic_that_was_taken_on_is_known(make_world: MakeWorld) -> None:
    world, (name,) = make(make_world, "taken.on")
    ledger = world.services.topics.describe(name).ledger
    assert ledger is not None
    with open_ledger("sqlite://", clock=world.services.ledger.now) as new:
        s = replace(world.services, ledger=new)
        drop_unseen(world, name)
        assert known(world, s) == []
        new.accept(name, ledger)
        assert known(world, s) == [name]


def test_what_is_not_found_beside_a_topic_that_stands_is_not_the_topic(make_world: MakeWorld) -> None:
    world, (name,) = make(make_world, "stands")
    error = UnknownTopic("a table beside it")
    assert why_absent(world.services, name, error) is error


def test_the_receipt_of_one_that_another_program_dropped_does_not_hold(make_world: MakeWorld) -> None:
    """A catalog that drops a table may leave its files, and nobody looks into them."""
    world, (name,) = make(make_world, "dropped")
    request = ask(world.services, [KEY], topics=[name], forbid=False, by="ada", why="a letter")
    carry_out(world.services, request.request_id, approver=yes)
    assert verify(world.services, request.request_id) == []
    drop_unseen(world, name)
    (wrong,) = verify(world.services, request.request_id)
    assert "TopicMissing" in wrong


def test_one_that_a_plan_deleted_is_not_missed_and_one_that_came_back_and_went_is(make_world: MakeWorld) -> None:
    world, (name,) = make(make_world, "deleted")
    s = world.services
    deleted = delete_topic(s, name, by="ada", text="no use")
    assert (deleted.name, known(world), told(world)) == ("published", [], {})
    assert deleted.plan_id is not None
    world.set_now(Instant(NOW + SECOND))
    back = UndoPlan(plan_id=deleted.plan_id)
    steps.run(s, name, as_of=Instant(NOW + SECOND), approver=lambda *_: (True, "ada", "a mistake"), work=back)
    assert known(world) == [name]
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
    assert (known(world), told(world)) == ([here], {str(here): (True, "")})
    assert next(outcome.detail for _, outcome in s.ledger.history(gone)).endswith("dropped in May")
    create_topic(s, gone, settings={})
    assert known(world) == [gone, here]


@pytest.mark.parametrize("store_kind", on("iceberg"), indirect=True)
def test_a_torn_file_whose_keys_are_asked_for_markers_is_told_as_that(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(NOW)
    s, name = world.services, TopicName(stream=f"{world.scratch}.known", topic="marked")
    create_topic(s, name, partitions=1, settings={"message_expiry": 10, "subject_delete_marker_ttl": 90, "max_removed_fraction": 1.0})
    made = [NewMessage(append_time=Instant(SECOND), key=key, value=b"v", segment=segment) for segment, key in enumerate((b"a", b"b"))]
    world.writer.append(name, made, policy_of(s, name))
    path = Stored.of(name, min(task.file.file_path for task in Tables().load(name).scan().plan_files()))
    whole = path.content()
    path.write(whole[: len(whole) // 2])
    with pytest.raises(FileUnreadable, match=path.name):
        steps.run(s, name, as_of=NOW, work="message_cleaner")
    path.write(whole)
    outcome = steps.run(s, name, as_of=NOW, work="message_cleaner", approver=yes)
    assert (outcome.name, outcome.markers) == ("published", 2)
