"""What another program does to a log of records between our verbs: nothing goes that the plan does not name, and errors have names (DEL-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from lifecycle_local.redis import Address
from message_lifecycle.app import steps
from message_lifecycle.app.due import due
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.app.wiring import record_log_world
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.redis_streams.layout import TopicKeys
from message_lifecycle.stores.redis_streams.log import RedisLogs, Server
from message_lifecycle.stores.rotating_file import RotatingFiles
from tests.commits_of_others import carry_out, named, run_again
from tests.effort import sample
from tests.writers_of_records import COMMANDS, FILES, PLANNED, Commands, Files

NAME, NEIGHBOUR = TopicName(stream="web", topic="clicks"), TopicName(stream="shop", topic="orders")
AS_OF = Instant(1_000_000_000)
KEY = b"customer 17 of the north"
KEPT_ROWS = 5
GAPS = ("before", "plan", "stage", "gate", "publish")
WORKS = ("retention", "erasure")


def cases(acts: Iterable[str]) -> list[Any]:
    """All works, gaps and acts. `make test` runs each act once, each gap and each work by turns."""
    every = list(acts)
    return sample(product(WORKS, GAPS, every), *((WORKS[at % 2], GAPS[at % len(GAPS)], act) for at, act in enumerate(every)))


Rows = list[tuple[int, bytes | None, bytes | None]]


@dataclass(slots=True)
class Log:
    """A topic of ten messages, the work on it, and what another program does to it."""

    world: World
    others: Callable[[], object]

    def rows(self) -> Rows | str:
        """The messages, or the code of the error that a reader gets."""
        try:
            return [(one.offset, one.key, one.value) for one in self.world.services.reader.messages(NAME)]
        except LifecycleError as error:
            return named(error)

    def append(self, *offsets: int) -> None:
        for offset in offsets:
            new = NewMessage(append_time=AS_OF, key=KEY if offset == PLANNED else b"k", value=b"value %d" % offset)
            self.world.writer.append(NAME, [new], policy_of(self.world.services, NAME))

    def work(self, name: str) -> Work:
        if name == "retention":
            return "retention"
        asked = ask(self.world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter of 3 May")
        return EraseKey(request_id=asked.request_id)

    def look(self) -> None:
        """The neighbour's answers are as ever, and this topic's have names."""
        s = self.world.services
        found = {entry["topic"]: entry for entry in as_json(status(s, [NAME, NEIGHBOUR]))}
        assert found[str(NEIGHBOUR)]["ok"], found[str(NEIGHBOUR)]["problems"]
        assert "InternalError" not in str(found), found
        for one in due(s, [NAME, NEIGHBOUR], as_of=AS_OF, work="retention"):
            assert one.error is None or (one.topic == NAME and named(one.error))


def made(world: World, keep: Callable[[], None], others: Callable[[], object]) -> Log:
    world.set_now(AS_OF)
    settings = {"max_records": KEPT_ROWS, "max_removed_fraction": 1.0}
    for name in (NAME, NEIGHBOUR):
        create_topic(world.services, name, settings=settings)
    log = Log(world, others)
    log.append(*range(8))
    keep()
    log.append(8, 9)
    return log


def taken(rows: Rows, work: str) -> Rows:
    """What the work takes of these messages."""
    return [row for row in rows if row[1] == KEY] if work == "erasure" else rows[:-KEPT_ROWS]


def require(log: Log, work: str, gap: str) -> None:
    planned = log.rows()
    assert isinstance(planned, list)
    planned, met, given = taken(planned, work), list[Rows | str](), log.work(work)

    def meddle() -> None:
        log.others()
        met.append(log.rows())
        log.look()

    s = log.world.services
    if gap == "before":
        meddle()
    try:
        record = steps.plan(s, NAME, as_of=AS_OF, work=given)
    except LifecycleError as error:
        assert gap == "before", error
        ended = named(error)
    else:
        ended = carry_out(s, record, gap, meddle)
    (just_after,) = met
    after = log.rows()
    if gap == "before" and isinstance(just_after, list):
        planned = taken(just_after, work)
    check(just_after, after, planned, done=ended == "published" and gap != "publish")
    if ended != "published":
        log.world.set_now(Instant(AS_OF + 1))
        ended = run_again(s, NAME, given, Instant(AS_OF + 1))
        again = log.rows()
        check(after, again, taken(after, work) if isinstance(after, list) else [], done=ended == "published")
    log.look()


def check(before: Rows | str, after: Rows | str, goes: Rows, *, done: bool) -> None:
    """Nothing has gone but what goes, by its offset; where it is done, all of that."""
    if isinstance(before, str) or isinstance(after, str):
        assert before == after, "what nobody can read is not written"
        return
    gone = [row for row in before if row not in after]
    assert all(row in before for row in after), "nothing comes"
    named_offsets = {offset for offset, *_ in goes}
    assert {offset for offset, *_ in gone} <= named_offsets, gone
    if done:
        assert not named_offsets & {offset for offset, *_ in after}


@pytest.fixture(params=["json_file", "rotating_file"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[World, Path]:
    root = tmp_path / "logs"
    logs = JsonFiles(root) if request.param == "json_file" else RotatingFiles(root, max_bytes=300)
    return record_log_world(logs, {}, lambda: None), root


@pytest.mark.parametrize(("work", "gap", "act"), cases(FILES))
def test_another_program_at_the_files(files: tuple[World, Path], work: str, gap: str, act: str) -> None:
    world, root = files
    other = Files(root / NAME.stream)
    require(made(world, other.keep, lambda: FILES[act](other)), work, gap)


@pytest.fixture
def commands(redis_server: Address) -> Iterator[tuple[World, Commands]]:
    server = Server(name="tests", url=redis_server.url, password=lambda: redis_server.password)
    prefix = f"others-{token_hex(4)}"
    with closing(server.connect()) as client:
        logs = RedisLogs(server, prefix=prefix, client=client)
        try:
            yield record_log_world(logs, {}, lambda: None, groups=logs), Commands(client, TopicKeys(prefix=prefix, name=NAME))
        finally:
            for key in client.scan_iter(match=f"{prefix}:*"):
                client.delete(key)


@pytest.mark.redis
@pytest.mark.parametrize(("work", "gap", "act"), cases(COMMANDS))
def test_another_client_of_the_server(commands: tuple[World, Commands], work: str, gap: str, act: str) -> None:
    world, other = commands
    require(made(world, other.keep, lambda: COMMANDS[act](other)), work, gap)
