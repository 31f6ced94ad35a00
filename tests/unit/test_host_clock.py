"""Each deed that writes to a table is refused where this machine's clock differs from the ledger's by more than `clock_skew` (CLK-1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import allow_keys_again, ask
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.known import all_topics
from message_lifecycle.app.reading import commit_progress
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import alter_topic, copy_topic, create_topic
from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from tests.errors import raises
from tests.worlds import NOW, SECOND, Lake, make_lake

TOPIC, COPY = (TopicName(stream="shop", topic=topic) for topic in ("orders", "copy"))


def run(s: Services) -> object:
    return steps.run(s, TOPIC, as_of=NOW, approver=lambda *_: (True, "ada", "as planned"))


def forbid(s: Services) -> str:
    return ask(s, [b"key"], topics=[TOPIC], forbid=True, by="ada", why="a letter").request_id


DEEDS: dict[str, Callable[[Services], object]] = {
    "create a topic": lambda s: create_topic(s, TopicName(stream="shop", topic="new"), settings={}),
    "alter a topic": lambda s: alter_topic(s, TOPIC, {"message_expiry": 60}),
    "run": run,
    "copy": lambda s: copy_topic(s, COPY),
    "place a hold": lambda s: place_hold(s, TOPIC, by="ada", why="case 8"),
    "release a hold": lambda s: release_hold(s, s.ledger.holds(COPY)[0].hold_id, by="ada", why="closed"),
    "register a consumer": lambda s: commit_progress(s, TOPIC, "billing", 0, 0, NOW),
    "forbid a key": forbid,
    "allow a key": lambda s: allow_keys_again(s, s.ledger.erasures()[0].request_id, by="ada", why="a contract"),
}


@pytest.mark.parametrize("ahead", [3_600, -3_600, 365 * 86_400])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_deed_on_a_wrong_clock_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, deed: str, ahead: int) -> None:
    lake: Lake = make_lake(capsys)
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)

    def on(host: Instant) -> Services:
        ledger = open_ledger(url, clock=lambda: NOW, host_clock=lambda: host, skew_us=60 * SECOND)
        return replace(lake.services, ledger=ledger)

    s = on(NOW)
    create_topic(s, TOPIC, settings={"message_expiry": 3_600})
    create_topic(s, COPY, settings={"role": "source", "origin": str(TOPIC)})
    lake.append(TOPIC, 5, 4, 0)
    hold, request = place_hold(s, COPY, by="ada", why="case 7"), forbid(s)
    before = state(s)
    with raises("ClockSkewed"):
        DEEDS[deed](on(Instant(NOW + ahead * SECOND)))
    assert state(s) == before
    assert (hold.hold_id, request) == (s.ledger.holds(COPY)[0].hold_id, s.ledger.erasures()[0].request_id)
    DEEDS[deed](s)


def state(s: Services) -> object:
    """What the ledger and the logs hold."""
    ledger = s.ledger
    topics = [s.topics.describe(name) for name in all_topics(s)]
    messages = [list(s.reader.messages(topic.name)) for topic in topics]
    return topics, messages, ledger.holds(TOPIC), ledger.holds(COPY), ledger.erasures(), ledger.consumers(TOPIC), ledger.history(TOPIC)
