"""A Redis server whose disk is full, and one that was started again from an older file (RDB or AOF): nothing is lost, and each is refused by name."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from lifecycle_local.processes import choose_port
from lifecycle_local.redis import find_server
from message_lifecycle.app import steps
from message_lifecycle.model.errors import BackendUnavailable, PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.redis_streams.log import Server
from tests.errors import raises
from tests.redis_streams.streams import AS_OF, Streams
from tests.redis_streams.test_server import _until, _until_it_answers

pytestmark = pytest.mark.redis


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server that a test ends and starts again; `appends` to its file with each write (AOF), or is saved when a test says so (RDB)."""

    folder: Path
    port: int
    appends: bool = False

    @contextmanager
    def running(self) -> Iterator[Streams]:
        command = [find_server(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        if self.appends:
            command += ["--appendonly", "yes", "--appendfsync", "no"]
        # The server then hears of a file that may not grow as of a full disk, and is not ended by the signal.
        with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, env={"PATH": os.defpath}, restore_signals=False) as process:
            try:
                server = Server(name="own", url=f"redis://127.0.0.1:{self.port}/0")
                with closing(server.connect()) as client:
                    _until_it_answers(client, process)
                    yield Streams(server=server, client=client, prefix="tests")
            finally:
                process.kill()  # as a machine ends: nothing is saved

    def keep(self, streams: Streams) -> Callable[[], None]:
        """Save the server's file as it is now; the answer puts that file back while the server does not run."""
        if not self.appends:
            streams.client.save()
            return lambda: None
        kept = shutil.copytree(self.folder, self.folder.with_name("kept"))

        def put_back() -> None:
            shutil.rmtree(self.folder)
            kept.rename(self.folder)

        return put_back


@pytest.fixture(params=[False])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> OwnServer:
    (tmp_path / "data").mkdir()
    return OwnServer(tmp_path / "data", choose_port(tmp_path / "ports.json", "own"), appends=request.param)


EACH_FILE = pytest.mark.parametrize("own", [False, True], ids=["RDB", "AOF"], indirect=True)


@EACH_FILE
def test_a_plan_made_before_a_restart_from_an_older_file_takes_nothing(own: OwnServer) -> None:
    with own.running() as streams:
        topic = streams.topic(max_records=5)
        topic.append(*[AS_OF] * 8)
        put_back = own.keep(streams)
        topic.append(*[AS_OF] * 4)
        plan_id = topic.planned()
    put_back()
    with own.running() as again:
        services = topic.over(again.client)
        with pytest.raises(PlanConflict, match="older state of the log was put back"):
            steps.publish(services, plan_id)
        assert [message.offset for message in services.reader.messages(topic.name)] == list(range(8))
        assert topic.run(services).name == "published"
        assert [message.offset for message in services.reader.messages(topic.name)] == list(range(3, 8))


def test_a_server_whose_disk_is_full_takes_no_writes_and_says_so(own: OwnServer) -> None:
    with own.running() as streams:
        topic = streams.topic(max_records=5)
        topic.append(*[AS_OF] * 8)
        plan_id = topic.planned()
        # What the server does where it cannot save: its folder is gone.
        shutil.rmtree(own.folder)
        streams.client.config_set("save", "3600 1")
        streams.client.config_set("stop-writes-on-bgsave-error", "yes")
        streams.client.bgsave()
        _until(lambda: streams.client.info("persistence")["rdb_last_bgsave_status"] == "err")  # type: ignore[index]  # as one of it answers
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            streams.client.set("tests:other", "x")
        with pytest.raises(BackendUnavailable, match=r"takes no writes.*MISCONF"):
            topic.append(AS_OF)
        with pytest.raises(BackendUnavailable, match="takes no writes"):
            steps.publish(topic.services, plan_id)
        assert topic.offsets() == list(range(8))
        own.folder.mkdir()
        streams.client.config_set("stop-writes-on-bgsave-error", "no")
        assert steps.publish(topic.services, plan_id) is not None
        assert topic.offsets() == list(range(3, 8))


@EACH_FILE
@pytest.mark.parametrize("verified", [False, True])
def test_a_publish_that_a_restart_lost_is_done_again_by_the_next_run(own: OwnServer, verified: bool) -> None:
    with own.running() as streams:
        topic = streams.topic(max_records=5)
        topic.append(*[AS_OF] * 8)
        put_back = own.keep(streams)
        plan_id = topic.planned()
        assert steps.publish(topic.services, plan_id) is not None
        assert topic.offsets() == list(range(3, 8))
        if verified:
            assert steps.verify(topic.services, plan_id).name == "published"
    put_back()
    with own.running() as again:
        services = topic.over(again.client)
        assert [message.offset for message in services.reader.messages(topic.name)] == list(range(8))
        with raises("CommitNotOnMain" if verified else "NotReady"):
            steps.verify(services, plan_id)
        assert topic.run(services, as_of=Instant(AS_OF + 1)).name == "published"
        assert [message.offset for message in services.reader.messages(topic.name)] == list(range(3, 8))


@pytest.mark.parametrize("own", [True], ids=["AOF"], indirect=True)
def test_a_server_whose_own_file_cannot_grow_takes_no_writes_and_says_so(own: OwnServer) -> None:
    with own.running() as streams:
        topic = streams.topic(max_records=5)
        topic.append(*[AS_OF] * 8)
        plan_id = topic.planned()
        process = int(streams.client.info("server")["process_id"])  # type: ignore[index]  # as one of it answers
        resource.prlimit(process, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        streams.client.set("tests:other", "x")
        _until(lambda: streams.client.info("persistence")["aof_last_write_status"] == "err")  # type: ignore[index]  # as one of it answers
        with pytest.raises(BackendUnavailable, match=r"takes no writes.*MISCONF"):
            topic.append(AS_OF)
        with pytest.raises(BackendUnavailable, match="takes no writes"):
            steps.publish(topic.services, plan_id)
        assert topic.offsets() == list(range(8))
        resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        _until(lambda: streams.client.info("persistence")["aof_last_write_status"] == "ok")  # type: ignore[index]  # as one of it answers
        assert steps.publish(topic.services, plan_id) is not None
        assert topic.offsets() == list(range(3, 8))


def test_a_server_without_memory_takes_no_messages_and_can_be_trimmed(own: OwnServer) -> None:
    with own.running() as streams:
        topic = streams.topic(max_records=5)
        topic.append(*[AS_OF] * 8)
        streams.client.config_set("maxmemory-policy", "noeviction")
        streams.client.config_set("maxmemory", "1")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            streams.client.set("tests:other", "x")
        with pytest.raises(BackendUnavailable, match=r"takes no writes: .*OOM.*see to .*the memory"):
            topic.append(AS_OF)
        assert topic.offsets() == list(range(8))
        streams.client.xdel(streams.client.scan(match="*:0", _type="stream")[1][0], "8-0")  # another writer's removal is noted there, too
        assert topic.run(topic.services).name == "published"
        assert topic.offsets() == list(range(2, 7))
        streams.client.config_set("maxmemory", "0")
        topic.append(AS_OF)
        assert topic.offsets() == [*range(2, 7), 8]
