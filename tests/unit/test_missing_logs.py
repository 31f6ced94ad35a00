"""A log of a backend that the ledger knows and that is away is missing: no look creates it again, and no erasure ends over it (OBL-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lifecycle_local.redis import Address
from message_lifecycle.app.backends import with_backends
from message_lifecycle.app.backends_config import BackendKind, BackendTopic, ConfiguredBackend, Folder, RedisServer
from message_lifecycle.app.due import due
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.known import all_topics, forget_topic
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.model.errors import UnknownTopic, code_of
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.rotating_file import RotatingFiles
from tests.errors import raises

GONE, HERE, NEW = (TopicName(stream="web", topic=topic) for topic in ("gone", "here", "new"))
KEY = b"customer 17 of the north"
KINDS = ("json_file", "rotating_file", pytest.param("redis_streams", marks=pytest.mark.redis))
FILES = ("json_file", "rotating_file")
DATABASE = 7


def yes(*_: object) -> tuple[bool, str, str]:
    return True, "ada", "a letter"


@dataclass(frozen=True, slots=True)
class Place:
    """A backend of one kind, whose logs a test takes away and puts back as an administrator would."""

    kind: BackendKind
    lake: Services
    root: Path
    server: RedisServer | None = None
    client: Any = None

    def services(self, *topics: TopicName) -> Services:
        """As a new process opens it."""
        place = self.server or Folder(root=self.root, max_bytes=100 if self.kind == "rotating_file" else None)
        named = {name: BackendTopic(partitions=1, settings={}) for name in topics}
        return with_backends(self.lake, (ConfiguredBackend(name="audit", kind=self.kind, place=place, topics=named),))

    def append(self, name: TopicName) -> None:
        s = self.services(name)
        writer: Any = s.stores.log.store_of(name)
        writer.append(name, [NewMessage(append_time=None, key=KEY, value=b"v")] * 3, policy_of(s, name))

    def take_away(self, name: TopicName) -> Callable[[], None]:
        """One log; the answer puts it back."""
        if self.client is None:
            file = JsonFiles(self.root).file(name) if self.kind == "json_file" else RotatingFiles(self.root).folder(name)
            away = file.rename(self.root.parent / "away")

            def back() -> None:
                assert not file.exists(), "nothing was created in its place"
                away.rename(file)

            return back
        kept = [(key, self.client.dump(key)) for key in sorted(self.client.keys(f"*{{{name}}}*")) if not key.endswith(b":lock")]
        self.client.delete(*(key for key, _ in kept))

        def restore() -> None:
            for key, value in kept:
                self.client.restore(key, 0, value)

        return restore

    def take_all_away(self, *, leaves_folder: bool) -> Callable[[], None]:
        """The whole place: a disk that is not mounted, over an empty folder or none, or a server that lost its data."""
        if self.client is None:
            away = self.root.rename(self.root.parent / "away")
            if leaves_folder:
                self.root.mkdir()

            def back() -> None:
                if leaves_folder:
                    assert list(self.root.iterdir()) == [], "nothing was written below the mount point"
                    self.root.rmdir()
                assert not self.root.exists(), "no folder was made in the place of the disk"
                away.rename(self.root)

            return back
        kept = [(key, self.client.dump(key)) for key in self.client.scan_iter() if not key.endswith(b":lock")]
        self.client.flushdb()

        def restore() -> None:
            assert list(self.client.scan_iter()) == []
            for key, value in kept:
                self.client.restore(key, 0, value)

        return restore


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    lake = replace(memory_world({}).services, gate=GreatExpectationsGate())
    if request.param != "redis_streams":
        yield Place(request.param, lake, tmp_path / "audit")
        return
    import redis

    address: Address = request.getfixturevalue("redis_server")
    (tmp_path / "password").write_text(address.password)
    url = f"{address.url.rstrip('/').rsplit('/', 1)[0] if address.url.count('/') > 2 else address.url}/{DATABASE}"
    with closing(redis.Redis.from_url(url, password=address.password)) as client:
        yield Place("redis_streams", lake, tmp_path, RedisServer(url=url, password_file=tmp_path / "password"), client)
        client.flushdb()


def problems(s: Services) -> dict[str, str]:
    """By topic; empty: it is ok."""
    return {str(entry.topic): "; ".join(entry.problems) for entry in status(s)}


def test_one_log_that_is_away_is_missing_and_an_erasure_waits_for_it(place: Place) -> None:
    place.append(GONE)
    place.append(HERE)
    put_back = place.take_away(GONE)
    s = place.services(GONE, HERE)
    assert all_topics(s) == [GONE, HERE]
    found = problems(s)
    assert found.pop(str(GONE)).startswith("TopicMissing: topic web/gone is missing")
    assert found == {str(HERE): ""}
    assert {one.topic: code_of(one.error) for one in due(s, [GONE, HERE], as_of=s.ledger.now(), work="retention") if one.error} == {
        GONE: "TopicMissing"
    }
    request = ask(s, [KEY], topics=[], forbid=False, by="ada", why="a letter").request_id
    assert {one.topic: one.is_done for one in carry_out(s, request, approver=yes)} == {GONE: False, HERE: True}
    kept = s.ledger.erasure(request)
    assert (kept.state, "web/gone: TopicMissing" in kept.detail) == ("requested", True)
    with pytest.raises(UnknownTopic):
        s.topics.describe(GONE)
    with raises("TopicMissing"):
        create_topic(s, GONE, settings={})
    put_back()
    s = place.services(GONE, HERE)
    assert all(one.is_done for one in carry_out(s, request, approver=yes))
    assert s.ledger.erasure(request).state == "erased"
    assert list(s.reader.messages(GONE)) == []


@pytest.mark.parametrize("leaves_folder", [True, False])
def test_a_place_that_is_away_gets_no_topic_and_every_log_in_it_is_missing(place: Place, leaves_folder: bool) -> None:
    place.append(GONE)
    place.append(HERE)
    put_back = place.take_all_away(leaves_folder=leaves_folder)
    s = place.services(GONE, HERE, NEW)
    found = problems(s)
    assert {topic: told.partition(":")[0] for topic, told in found.items()} == {
        str(GONE): "TopicMissing",
        str(HERE): "TopicMissing",
        str(NEW): "BackendUnavailable",
    }
    assert "web/gone, web/here" in found[str(NEW)]
    request = ask(s, [KEY], topics=[], forbid=False, by="ada", why="a letter").request_id
    assert not any(one.is_done for one in carry_out(s, request, approver=yes))
    put_back()
    s = place.services(GONE, HERE, NEW)
    assert problems(s) == {str(GONE): "", str(HERE): "", str(NEW): ""}
    assert [len(list(s.reader.messages(name))) for name in (GONE, HERE, NEW)] == [3, 3, 0]


def test_what_a_person_says_is_meant_to_be_gone_is_created_again(place: Place) -> None:
    place.append(GONE)
    place.take_away(GONE)
    s = place.services(GONE)
    with pytest.raises(UnknownTopic):
        s.topics.describe(GONE)
    forget_topic(s, GONE, by="ada", text="the disk broke")
    assert (s.topics.describe(GONE).partitions, list(s.reader.messages(GONE))) == (1, [])
    assert problems(s) == {str(GONE): ""}


@pytest.mark.parametrize("place", FILES, indirect=True)
def test_a_log_that_is_damaged_hides_no_other_of_its_backend(place: Place) -> None:
    place.append(GONE)
    place.append(HERE)
    file = JsonFiles(place.root).file(GONE) if place.kind == "json_file" else RotatingFiles(place.root).folder(GONE) / "manifest.json"
    file.write_bytes(b"no log")
    found = problems(place.services(GONE, HERE))
    assert (found[str(GONE)].partition(":")[0], found[str(HERE)]) == ("DamagedLog", "")


@pytest.mark.parametrize("place", FILES, indirect=True)
def test_a_look_creates_no_root(place: Place) -> None:
    s = place.services(HERE)
    assert not place.root.exists()
    assert s.strays() == [
        f"backend audit: StorageRefused: {place.root}: No such file or directory. " + s.strays()[0].partition("directory. ")[2]
    ]
    assert not place.root.exists()


def test_files_of_messages_without_their_manifest_are_no_leftovers(tmp_path: Path) -> None:
    """Another ledger does not know the topic: creating it would remove the messages of the log that lost its manifest."""
    place = Place("rotating_file", memory_world({}).services, tmp_path / "audit")
    place.append(HERE)
    folder = RotatingFiles(place.root).folder(HERE)
    before = sorted((path.name, path.read_bytes()) for path in folder.glob("0*.jsonl"))
    (folder / "manifest.json").unlink()
    fresh = replace(place, lake=memory_world({}).services)
    with raises("DamagedLog", match=r"no manifest that names their file"):
        fresh.services(HERE).topics.describe(HERE)
    assert sorted((path.name, path.read_bytes()) for path in folder.glob("0*.jsonl")) == before
