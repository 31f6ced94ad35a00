"""A topic of documents with purges and their undo. Tests of every store of documents use it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from message_lifecycle.app import documents, steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.setting_list import Value
from tests.documents import PURGING, text_at
from tests.logs import SECOND
from tests.undone import approved

Make = Callable[..., "Topic"]
Shown = tuple[list[Change], list[tuple[int, bytes]]]


@dataclass
class Topic:
    world: World
    name: TopicName

    @property
    def s(self) -> Services:
        return self.world.services

    def write(self, document: str, seqs: Sequence[int]) -> None:
        """Every change puts its number before the text."""
        payloads = [(seq, f'[[0, 0, "{seq} "]]'.encode()) for seq in seqs]
        changes = [Change(document=document, server_seq=seq, client="x", at=Instant(seq), payload=payload) for seq, payload in payloads]
        documents.add_changes(self.s, self.name, changes)

    def sync(self, document: str, seq: int, client: str = "ann") -> None:
        documents.sync(self.s, self.name, document, client=client, server_seq=seq, at=Instant(0))

    def run(self, at_s: int, work: Work = "snapshot_with_purge", s: Services | None = None) -> Outcome:
        self.world.set_now(Instant(at_s * SECOND))
        return steps.run(s or self.s, self.name, as_of=Instant(at_s * SECOND), approver=approved, work=work)

    def purged(self, at_s: int) -> str:
        """The id of the plan."""
        outcome = self.run(at_s)
        assert outcome.name == "published" and outcome.plan_id is not None, outcome.detail
        return outcome.plan_id

    def undone(self, at_s: int, plan_id: str) -> Outcome:
        outcome = self.run(at_s, UndoPlan(plan_id=plan_id))
        assert outcome.name == "published", outcome.detail
        return outcome

    def shown(self, document: str = "a") -> Shown:
        """Every column of every change, and every snapshot."""
        snapshots = self.s.documents.snapshots(self.name, document)
        return list(self.s.documents.changes(self.name, document)), [(one.server_seq, one.state) for one in snapshots]

    def stored(self, document: str = "a") -> list[int]:
        return [change.server_seq for change in self.shown(document)[0]]

    def snapshots(self, document: str = "a") -> list[int]:
        return [seq for seq, _ in self.shown(document)[1]]

    def epoch(self, document: str = "a") -> int:
        return documents.describe(self.s, self.name, document)[0].state.epoch

    def is_whole(self, last: int, document: str = "a") -> None:
        """P8, and the history is complete from the first change."""
        found = list(documents.history(self.s, self.name, document))
        assert found == [(seq, text_at(seq)) for seq in range(1, last + 1)]
        for seq, state in self.shown(document)[1]:
            assert json.loads(state) == text_at(seq)


def made(world: World, topic: str = "drafts", /, **settings: Value) -> Topic:
    name = TopicName(stream=f"{world.scratch}.undone" if world.scratch else "undone", topic=topic)
    create_topic(world.services, name, settings={**PURGING, "client_deactivate_after": 100_000, **settings})
    world.set_now(Instant(0))
    return Topic(world, name)


def due(world: World) -> Topic:
    """One of its own: a snapshot is due, and seven of ten changes can go."""
    topic = made(world, f"t{random.getrandbits(64):x}")
    topic.write("a", range(1, 11))
    topic.sync("a", 8)
    return topic


def purged(topic: Topic) -> tuple[list[str], Shown]:
    """Purge changes 1 to 7, then 8 to 17, then 18 to 29 with the snapshot at 10. Return the plans, and the contents before the last one."""
    plans = []
    for first, last, synced in ((1, 10, 8), (11, 24, 18), (25, 34, 30)):
        topic.write("a", range(first, last + 1))
        topic.sync("a", synced)
        was = topic.shown()
        plans.append(topic.purged(len(plans) + 1))
    assert (topic.stored(), topic.snapshots(), topic.epoch()) == (list(range(30, 35)), [24, 34], 3)
    return plans, was
