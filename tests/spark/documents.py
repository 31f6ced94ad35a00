"""A topic of documents on the lake, driven by the verbs, with a ledger of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from secrets import token_hex

from tests.spark.lake import Lake, tables

from message_lifecycle.app import steps
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.document import Change, Synced
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.documents.store import IcebergChanges, IcebergSnapshots
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import PLAN_ID, SNAPSHOTS
from message_lifecycle.stores.iceberg.shapes import bucket_of

SECOND = 1_000_000
AS_OF, LATER = Instant(100 * SECOND), Instant(200 * SECOND)
SETTINGS: Mapping[str, Value] = {
    "fold": "text_splice",
    "snapshot_interval": 10,
    "snapshot_threshold": 5,
    "snapshot_with_purging_changes": True,
    "client_deactivate_after": 100_000,
    "snapshots_keep": 1,
}
KINDS = ("", SNAPSHOTS)


def splice(at: int, deleted: int, inserted: str) -> bytes:
    return json.dumps([[at, deleted, inserted]]).encode()


def typed(document: str, first: int, last: int, *, at: int | None = 1) -> list[Change]:
    """Changes that each put the last digit of their number at the end of the text."""
    return [
        Change(
            document=document,
            server_seq=seq,
            client="a",
            at=None if at is None else Instant(at * SECOND),
            payload=splice(seq - 1, 0, str(seq % 10)),
        )
        for seq in range(first, last + 1)
    ]


def text_at(seq: int) -> bytes:
    """The stored state of a document of `typed` changes."""
    return json.dumps("".join(str(number % 10) for number in range(1, seq + 1))).encode()


def name_beside(document: str) -> str:
    """A random name of 32 bytes, in hex, whose document lies in the files of the other."""
    return next(name for name in (token_hex(32) for _ in count()) if bucket_of(name) == bucket_of(document))


class Documents:
    """`s`: the verbs' services over the lake."""

    def __init__(self, s: Services, stream: str, **settings: Value) -> None:
        self.s = s
        self.name = TopicName(stream=stream, topic=f"d {token_hex(4)}".replace(" ", "."))
        create_topic(s, self.name, partitions=1, settings={**SETTINGS, **settings})

    @classmethod
    def on(cls, lake: Lake, **settings: Value) -> Documents:
        return cls(lake.services(), lake.stream, **settings)

    def stepping(self, step: Callable[[str], None]) -> Services:
        snapshots, changes = (kind(engine_of_process, tables=tables(), steps=step) for kind in (IcebergSnapshots, IcebergChanges))
        return replace(self.s, stores=replace(self.s.stores, snapshots=snapshots, changes=changes))

    def add(self, *changes: Change) -> None:
        self.s.documents.add(self.name, changes, ledger=self.s.ledger.next_identity(self.name))

    def sync(self, document: str, **clients: int) -> None:
        for client, seq in clients.items():
            before = next((row for row in self.s.ledger.synced(self.name, document) if row.client == client), None)
            after = Synced(document=document, client=client, server_seq=seq, at=Instant(1))
            assert self.s.ledger.replace_synced(self.name, document, client, seen=before, to=after)

    def run(self, as_of: Instant = AS_OF, s: Services | None = None) -> Outcome:
        return steps.run(
            s or self.s, self.name, as_of=as_of, approver=lambda _plan, _report: (True, "tester", "as expected"), work="snapshot_with_purge"
        )

    def staged(self, as_of: Instant = AS_OF) -> tuple[Plan, Staged]:
        plan = steps.plan(self.s, self.name, as_of=as_of, work="snapshot_with_purge").plan
        return plan, steps.stage(self.s, plan.plan_id)

    def stored(self, document: str) -> list[int]:
        return [change.server_seq for change in self.s.documents.changes(self.name, document)]

    def snapshots(self, document: str) -> list[tuple[int, int, bytes]]:
        return [(one.server_seq, one.epoch, one.state) for one in self.s.documents.snapshots(self.name, document)]

    def epoch(self, document: str) -> int:
        (state,) = self.s.documents.states(self.name, self.s.documents.tables(self.name), only=[document])
        return state.epoch

    def heads(self) -> list[int | None]:
        found = self.s.documents.tables(self.name)
        return [found.changes_id, found.snapshots_id]

    def plans(self, kind: str) -> list[str]:
        """Ids of the plans that the table's commits carry."""
        table = tables().load(self.name, kind=kind)
        return [plan_id for snapshot in table.snapshots() if snapshot.summary and (plan_id := snapshot.summary[PLAN_ID])]

    def branches(self) -> set[str]:
        return {ref for kind in KINDS for ref in tables().load(self.name, kind=kind).metadata.refs}
