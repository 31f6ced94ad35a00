"""A request that an earlier version ended as erased, though a topic could not be read then, is searched once more there (DEL-7, OBL-1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import create_engine, text

from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.requests import delete_topic
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.ledger.migrations import STEPS
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.memory import MemoryStore
from tests.ledgers import AS_OF, StandingClock

KEY = b"customer-17"
HERE, AWAY = TopicName.parse("shop/here"), TopicName.parse("shop/away")
DAY = 86_400_000_000


def yes(*_: object) -> tuple[bool, str, str]:
    return True, "ada", "yes"


@dataclass(slots=True, kw_only=True)
class Lake:
    """Beside a ledger that an earlier version may have written last."""

    world: World
    s: Services
    url: str
    clock: StandingClock

    def write(self, name: TopicName) -> None:
        self.world.writer.append(name, [NewMessage(append_time=AS_OF, key=KEY, value=b"v")], policy_of(self.s, name))

    def make(self, name: TopicName) -> None:
        create_topic(self.s, name, settings={})
        self.write(name)

    def erased_by_an_earlier_version(self, *, topics: tuple[TopicName, ...] = (), away: bool = True) -> str:
        """What it could not read it left out; it ended as erased, and kept no list of what was searched."""
        assert isinstance(self.s.stores.log, MemoryStore)
        tables = self.s.stores.log.tables
        request = ask(self.s, KEY, topics=topics, forbid=False, by="ada", why="a letter")
        unmounted = tables.pop(AWAY) if away else None
        carry_out(self.s, request.request_id, approver=yes)
        if unmounted is not None:
            tables[AWAY] = unmounted
        self.s.ledger.set_erasure_state(request.request_id, "erased")
        engine = create_engine(self.url)
        with engine.begin() as connection:
            (kept,) = connection.execute(text("select receipt from lifecycle_erasure_receipts")).scalars()
            receipt = json.loads(kept)
            receipt["topics"] = [topic for topic in receipt["topics"] if not topic.pop("found_nowhere")]
            connection.execute(text("update lifecycle_erasure_receipts set receipt = :told"), {"told": json.dumps(receipt)})
            connection.execute(text("update lifecycle_meta set version = :before"), {"before": len(STEPS) - 1})
        engine.dispose()
        return request.request_id

    def upgraded(self, request_id: str) -> ErasureRequest:
        assert migrate_ledger(self.url) == (len(STEPS) - 1, len(STEPS))
        self.clock.pass_us(30 * DAY)
        return self.s.ledger.erasure(request_id)

    def told(self, name: TopicName) -> list[str]:
        (entry,) = status(self.s, [name])
        return [one for one in entry["problems"] if one.startswith("erasure")]


@pytest.fixture
def lake(url: str) -> Iterator[Lake]:
    clock, world = StandingClock(), memory_world({})
    with open_ledger(url, clock=clock) as ledger:
        lake = Lake(world=world, s=replace(world.services, ledger=ledger), url=url, clock=clock)
        lake.make(HERE)
        lake.make(AWAY)
        yield lake


@pytest.mark.parametrize("topics", [(), (HERE, AWAY)], ids=["all", "named"])
def test_what_could_not_be_read_is_searched_once_more_and_then_in_the_receipt(lake: Lake, topics: tuple[TopicName, ...]) -> None:
    request_id = lake.erased_by_an_earlier_version(topics=topics)
    assert lake.told(AWAY) == [], "so it was"
    assert [message.key for message in lake.s.reader.messages(AWAY)] == [KEY]
    again = lake.upgraded(request_id)
    assert (again.state, again.detail) == (
        "requested",
        f"it ended as erased, and no plan of it has searched {AWAY}: carry it out once more",
    )
    (problem,) = lake.told(AWAY)
    assert "is not carried out here: no run has looked for the key here yet" in problem
    assert all(one.is_done for one in carry_out(lake.s, request_id, approver=yes))
    assert lake.s.ledger.erasure(request_id).state == "erased"
    assert (list(lake.s.reader.messages(AWAY)), lake.told(AWAY)) == ([], [])
    receipt = {topic["topic"]: topic["rows"] for topic in json.loads(lake.s.ledger.receipt(request_id))["topics"]}
    assert receipt == {str(HERE): 1, str(AWAY): 1}
    assert migrate_ledger(lake.url) == (len(STEPS), len(STEPS))


@pytest.mark.parametrize("later", ["nothing", "made", "deleted", "not meant"])
def test_what_was_searched_or_was_not_there_opens_nothing(lake: Lake, later: str) -> None:
    """Deleted ones keep a request open by themselves, as long as their tables are there."""
    if later == "deleted":
        lake.s.ledger.forget_topic(AWAY)
        lake.make(other := TopicName.parse("shop/other"))
        lake.clock.pass_us(1)
        assert delete_topic(lake.s, other, by="ada", text="old").name == "published"
        lake.clock.pass_us(1)
    topics = (HERE,) if later == "not meant" else ()
    request_id = lake.erased_by_an_earlier_version(topics=topics, away=later in ("deleted", "not meant"))
    lake.clock.pass_us(1)
    if later == "made":
        lake.make(TopicName.parse("shop/new"))
    assert lake.upgraded(request_id).state == "erased"
