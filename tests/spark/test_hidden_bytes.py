"""How much of a topic's disk only its past needs, by summaries: each file once, however often it was named on its way to main."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import iceberg_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.reclaiming import hidden_bytes
from message_lifecycle.stores.iceberg.table_folder import TableDocument

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

SECOND = 1_000_000
NAME = "topic"


@pytest.fixture
def world(embedded: Path) -> Iterator[World]:
    made = iceberg_world({})
    yield made
    made.close()


def test_of_a_topic_that_never_lost_anything_nothing_is_hidden_and_then_what_went(world: World) -> None:
    name, s = TopicName(stream=f"{world.scratch}.hidden", topic=NAME), world.services
    world.set_now(Instant(100 * SECOND))
    create_topic(s, name, settings={"message_expiry": 10, "max_removed_fraction": 1.0})
    for segment, times in [(0, (1, 2)), (2, (3,)), (3, (99,))]:
        messages = [NewMessage(append_time=Instant(time * SECOND), key=b"k", value=b"v" * 100, segment=segment) for time in times]
        world.writer.append(name, messages, policy_of(s, name))
        assert s.stores.forget.hidden_bytes(name) == 0
    going = steps.run(s, name, as_of=Instant(100 * SECOND))
    assert (going.name, dict(going.removed)) == ("published", {"expiry": 3})
    assert s.stores.forget.hidden_bytes(name) == going.removed_bytes > 0


def snapshot(number: int, parent: int | None, *, added: int = 0, total: int = 0, files: int = 1) -> dict[str, object]:
    numbers = {"added-data-files": files, "added-records": 1, "added-files-size": added, "total-files-size": total}
    summary = {key: str(value) for key, value in numbers.items()}
    return {"snapshot-id": number, "parent-snapshot-id": parent, "sequence-number": number, "summary": summary}


@pytest.mark.parametrize(
    ("later", "hidden"),
    [
        ([snapshot(2, 1, added=7), snapshot(3, 1, added=7, total=17)], 0),
        ([snapshot(2, 1, added=7), snapshot(3, 1, added=8, total=18)], 7),
        ([snapshot(2, 1, added=7), snapshot(3, 1, added=7), snapshot(4, 1, added=7, total=17)], 7),
        ([snapshot(2, 1, added=7, files=2), snapshot(3, 1, added=7, total=17)], 7),
        ([snapshot(2, 1, added=7), snapshot(3, 1, added=7, total=17), snapshot(4, 3, total=7)], 10),
    ],
    ids=["published", "never published", "staged twice, published once", "others of one size", "published, then the first went"],
)
def test_what_was_staged_and_published_counts_once_and_what_was_only_staged_counts(later: list[dict[str, object]], hidden: int) -> None:
    content = {"snapshots": [snapshot(1, None, added=10, total=10), *later], "current-snapshot-id": later[-1]["snapshot-id"]}
    assert hidden_bytes(TableDocument(location="", content=content)) == hidden
