"""A log of records that was put back to an older state between plan and publish: nothing goes by the plan, and the next one is exact."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import record_log_world
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.rotating_file import RotatingFiles
from tests.errors import raises

NAME = TopicName(stream="web", topic="clicks")
NOW = Instant(1_000_000_000)
KEY = b"customer 17 of the north"
PutBack = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Log:
    """`keep` saves the log as it is; what it returns puts that state back, as an administrator or a restart of a server does."""

    world: World
    keep: Callable[[], PutBack]

    def append(self, count: int, *, value: bytes = b"v", key: bytes = b"k") -> None:
        new = [NewMessage(append_time=NOW, key=key, value=value) for _ in range(count)]
        self.world.writer.append(NAME, new, policy_of(self.world.services, NAME))

    def judged(self, work: Work = "retention") -> str:
        """All but publish; the plan's id."""
        s = self.world.services
        plan_id = steps.plan(s, NAME, as_of=NOW, work=work).plan.plan_id
        steps.stage(s, plan_id)
        if steps.gate(s, plan_id).judgement == "needs_approval":
            steps.approve(s, plan_id, granted=True, by="ada", text="as expected")
        return plan_id

    def run(self) -> str:
        return steps.run(self.world.services, NAME, as_of=NOW, work="retention", approver=lambda *_: (True, "ada", "as expected")).name

    @property
    def values(self) -> list[tuple[int, bytes | None]]:
        return [(message.offset, message.value) for message in self.world.services.reader.messages(NAME)]


@pytest.fixture(params=["json_file", "rotating_file", pytest.param("redis_streams", marks=pytest.mark.redis)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    if request.param == "redis_streams":
        yield from _on_redis(request)
        return
    root = tmp_path / "logs"
    logs = JsonFiles(root) if request.param == "json_file" else RotatingFiles(root, max_bytes=1_000)

    def keep() -> PutBack:
        kept = shutil.copytree(root, tmp_path / "kept")

        def put_back() -> None:
            shutil.rmtree(root)
            shutil.copytree(kept, root)

        return put_back

    yield _made(record_log_world(logs, {}, lambda: None), keep)


def _on_redis(request: pytest.FixtureRequest) -> Iterator[Log]:
    from contextlib import closing

    from lifecycle_local.redis import Address
    from message_lifecycle.stores.redis_streams.log import RedisLogs, Server

    address: Address = request.getfixturevalue("redis_server")
    server = Server(name="tests", url=address.url, password=lambda: address.password)
    with closing(server.connect()) as client:
        logs = RedisLogs(server, prefix="put-back", client=client)

        def keep() -> PutBack:
            found: Any = [(key, client.dump(key)) for key in client.scan_iter(match="put-back:*")]

            def put_back() -> None:
                for key, value in found:
                    client.restore(key, 0, value, replace=True)

            return put_back

        try:
            yield _made(record_log_world(logs, {}, lambda: None, groups=logs), keep)
        finally:
            for key in client.scan_iter(match="put-back:*"):
                client.delete(key)


def _made(world: World, keep: Callable[[], PutBack]) -> Log:
    world.set_now(NOW)
    create_topic(world.services, NAME, settings={"max_records": 50, "max_removed_fraction": 1.0})
    return Log(world, keep)


def test_a_shorter_log_loses_nothing_by_the_plan_of_the_longer_one(log: Log) -> None:
    log.append(40)
    put_back = log.keep()
    log.append(30)
    plan_id = log.judged()
    put_back()
    with pytest.raises(PlanConflict, match="older state of the log was put back"):
        steps.publish(log.world.services, plan_id)
    assert len(log.values) == 40
    assert log.run() == "no_op"
    assert len(log.values) == 40


def test_a_log_that_has_grown_again_with_others_is_planned_again(log: Log) -> None:
    log.append(40)
    put_back = log.keep()
    log.append(30)
    plan_id = log.judged()
    put_back()
    log.append(35, value=b"other")
    with pytest.raises(PlanConflict, match="other messages than when it was staged"):
        steps.publish(log.world.services, plan_id)
    assert len(log.values) == 75
    assert log.run() == "published"
    assert log.values == [(at, b"v" if at < 40 else b"other") for at in range(25, 75)]


@pytest.mark.parametrize("grown", [0, 60])
def test_between_plan_and_stage(log: Log, grown: int) -> None:
    log.append(40)
    put_back = log.keep()
    log.append(30)
    s = log.world.services
    plan_id = steps.plan(s, NAME, as_of=NOW, work="retention").plan.plan_id
    put_back()
    log.append(grown, value=b"other")
    if not grown:
        with pytest.raises(PlanConflict, match="older state"):
            steps.stage(s, plan_id)
        return
    assert log.run() == "published"
    assert [at for at, _ in log.values] == list(range(40 + grown - 50, 40 + grown))


def test_what_was_appended_since_is_no_other_state(log: Log) -> None:
    log.append(70)
    plan_id = log.judged()
    log.append(30, value=b"later")
    assert steps.publish(log.world.services, plan_id) is not None
    assert [at for at, _ in log.values] == list(range(20, 100))


def test_an_erasure_is_searched_again(log: Log) -> None:
    log.append(10)
    put_back = log.keep()
    log.append(1, key=KEY)
    request = ask(log.world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter").request_id
    plan_id = log.judged(EraseKey(request_id=request))
    put_back()
    log.append(3, value=b"other")
    with pytest.raises(PlanConflict, match="other messages"):
        steps.publish(log.world.services, plan_id)
    assert len(log.values) == 13


@pytest.mark.parametrize("gone_on", [False, True], ids=["put back", "put back, and another removal since"])
def test_verify_does_not_repeat_the_record_of_a_deletion_that_is_gone(log: Log, gone_on: bool) -> None:  # DEL-6
    log.append(60)
    put_back = log.keep()
    plan_id = log.judged()
    assert steps.publish(log.world.services, plan_id) is not None
    assert steps.verify(log.world.services, plan_id).name == "published"
    assert steps.verify(log.world.services, plan_id).name == "published"
    put_back()
    if gone_on:
        log.append(1)
        assert log.run() == "published"
    with raises("CommitNotOnMain"):
        steps.verify(log.world.services, plan_id)
