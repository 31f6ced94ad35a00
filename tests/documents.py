"""A topic of documents in memory, driven as its clients and its runs do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from message_lifecycle.app import documents, steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.memory.documents import MemoryDocuments
from message_lifecycle.stores.memory.tables import TopicTables

NAME = TopicName.parse("notes/drafts")
PURGING: dict[str, Value] = {
    "fold": "text_splice",
    "snapshot_interval": 10,
    "snapshot_threshold": 5,
    "snapshot_with_purging_changes": True,
    "snapshots_keep": 1,
    "client_deactivate_after": 1_000_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The topic, with its clock."""

    world: World = field(default_factory=lambda: memory_world({}))

    @property
    def s(self) -> Services:
        return self.world.services

    @property
    def log(self) -> TopicTables:
        """The tables themselves, to damage them."""
        store = self.s.documents
        assert isinstance(store, MemoryDocuments)
        return store.of(NAME)

    def write(self, document: str, seqs: Iterable[int], *, client: str = "x", at: int | None = 0, payload: object = None) -> None:
        """Every change puts its number before the text, unless a payload is given."""
        changes = [
            Change(
                document=document,
                server_seq=seq,
                client=client,
                at=None if at is None else Instant(at),
                payload=json.dumps([[0, 0, f"{seq} "]] if payload is None else payload).encode(),
            )
            for seq in seqs
        ]
        documents.add_changes(self.s, NAME, changes)

    def sync(self, document: str, client: str, seq: int, *, at: int = 0, epoch: int | None = None) -> None:
        documents.sync(self.s, NAME, document, client=client, server_seq=seq, at=Instant(at), epoch=epoch)

    def run(self, as_of: int = 0) -> Outcome:
        self.world.set_now(Instant(as_of))
        return steps.run(
            self.s, NAME, as_of=Instant(as_of), approver=lambda _plan, _report: (True, "tests", ""), work="snapshot_with_purge"
        )

    def asked(self, as_of: int = 0) -> str:
        """Run without an approver, and return the outcome's name."""
        self.world.set_now(Instant(as_of))
        return steps.run(self.s, NAME, as_of=Instant(as_of), work="snapshot_with_purge").name

    def planned(self, as_of: int = 0) -> str:
        """Id of a plan made now."""
        self.world.set_now(Instant(as_of))
        return steps.plan(self.s, NAME, as_of=Instant(as_of), work="snapshot_with_purge").plan.plan_id

    def gated(self, as_of: int = 0) -> str:
        plan_id = self.planned(as_of)
        steps.stage(self.s, plan_id)
        assert steps.gate(self.s, plan_id).judgement == "passed"
        return plan_id

    def stored(self, document: str) -> list[int]:
        return [change.server_seq for change in self.s.documents.changes(NAME, document)]

    def snapshots(self, document: str) -> list[int]:
        return [snapshot.server_seq for snapshot in self.s.documents.snapshots(NAME, document)]

    def epoch(self, document: str) -> int:
        return documents.describe(self.s, NAME, document)[0].state.epoch


def drafts(**settings: Value) -> Drafts:
    made = Drafts()
    create_topic(made.s, NAME, settings={**PURGING, **settings})
    return made


def ten_changes() -> Drafts:
    """A document `a` of ten changes, and a client `ann` that has eight."""
    made = drafts()
    made.write("a", range(1, 11))
    made.sync("a", "ann", 8)
    return made


class Died(BaseException):
    """The process went away here."""


def die() -> None:
    raise Died


def text_at(seq: int) -> str:
    """Return the text after the changes of `Drafts.write` up to `seq`."""
    return "".join(f"{each} " for each in range(seq, 0, -1))
