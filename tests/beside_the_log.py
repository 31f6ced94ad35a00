"""Topics with a plan's work on the tables next to their log: the compacted view, documents, refused rows, and the past of all of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

from message_lifecycle.app import documents, steps
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import EraseKey, PurgeKey, RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg import new_table, shapes
from message_lifecycle.stores.iceberg.catalog import side_table_properties
from message_lifecycle.stores.iceberg.documents.tables import digest_of
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import entries
from message_lifecycle.stores.iceberg.layout import COMPACTED, KINDS, QUARANTINE, SNAPSHOTS
from message_lifecycle.stores.iceberg.refused_rows import _PROPERTIES as QUARANTINE_PROPERTIES
from tests.commits_of_others import Other, Pick, Row, append
from tests.documents import PURGING
from tests.undone import approved

SECOND = 1_000_000
DAY = 86_400 * SECOND
AT_S = 100
START = Instant(AT_S * SECOND)
Rows = Counter[str]
"""Rows of a table, each with every column that is not null."""


def never(_: Row) -> bool:
    return False


@dataclass(slots=True)
class Scene:
    """A topic, and the work of a plan on it.

    Attributes:
        work: The plan's work.
        goes: By kind of table, the rows that the plan removes.
        comes: By kind of table, the rows that the plan brings, and how many.
        others: By kind of table, another engine there.
    """

    world: World
    s: Services
    name: TopicName
    now: Instant = START
    work: Work = "message_cleaner"
    goes: dict[str, Pick] = field(default_factory=dict)
    comes: dict[str, tuple[Pick, int]] = field(default_factory=dict)
    others: dict[str, Other] = field(default_factory=dict)

    def at(self, now: int) -> Instant:
        self.now = Instant(now)
        self.world.set_now(self.now)
        return self.now

    def run(self, work: Work) -> str:
        outcome = steps.run(self.s, self.name, as_of=self.now, approver=approved, work=work)
        assert outcome.name == "published" and outcome.plan_id is not None, outcome
        return outcome.plan_id

    def rows(self) -> dict[str, list[Row]]:
        """By kind, of the tables that are there."""
        found: dict[str, list[Row]] = {}
        for kind in KINDS:
            try:
                found[kind] = Other(name=self.name, kind=kind).rows()
            except UnknownTopic:
                continue
        return found

    def messages(self, *keys: bytes, at_s: int = 1) -> None:
        new = [NewMessage(append_time=Instant(at_s * SECOND), key=key, value=b"v") for key in keys]
        self.world.writer.append(self.name, new, policy_of(self.s, self.name))

    def changes(self, document: str, seqs: Sequence[int]) -> None:
        changes = [
            Change(document=document, server_seq=seq, client="x", at=Instant(seq), payload=f'[[0, 0, "{seq} "]]'.encode()) for seq in seqs
        ]
        documents.add_changes(self.s, self.name, changes)

    def undo_of(self, work: Work) -> None:
        """Make the plan an undo of the work: the plan brings back the rows that the work removed, and removes nothing."""
        before, plan_id = self.rows(), self.run(work)
        after = self.rows()
        self.comes.clear()
        for kind in self.goes:
            back = counted(before[kind]) - counted(after[kind])
            self.comes[kind] = _one_of(back), back.total()
        self.goes.clear()
        self.work = UndoPlan(plan_id=plan_id)
        self.at(self.now + SECOND)


def _one_of(rows: Rows) -> Pick:
    return lambda row: shown(row) in rows


def shown(row: Row) -> str:
    return repr(sorted((name, value) for name, value in row.items() if value is not None))


def counted(rows: Sequence[Row]) -> Rows:
    return Counter(map(shown, rows))


def _made(world: World, *, of_documents: bool = False, settings: Mapping[str, Value]) -> Scene:
    name = TopicName(stream=f"{world.scratch}.beside", topic=f"t{token_hex(4)}")
    s = world.services
    create_topic(s, name, settings={"max_removed_fraction": 1.0, **settings}, **({} if of_documents else {"partitions": 1}))
    made = Scene(world=world, s=s, name=name)
    made.at(AT_S * SECOND)
    return made


# A log with a compacted view.


def _view(world: World, **settings: Value) -> Scene:
    """Five messages, all compacted: offsets 2, 3 and 4 of c, a and b are in the view."""
    scene = _made(world, settings={"cleanup_policy": "compact,delete", **settings})
    scene.messages(b"a", b"b", b"c")
    scene.messages(b"a", b"b")
    scene.run("compaction")
    scene.at(scene.now + SECOND)
    theirs = {
        "partition": 0,
        "offset": 90,
        "segment": 90,
        "append_time": SECOND,
        "key": b"theirs",
        "value": b"v",
        "headers": [],
        "size_bytes": 7,
    }
    for kind in ("", COMPACTED):
        scene.others[kind] = Other(
            name=scene.name,
            kind=kind,
            new=[theirs],
            planned=lambda row: row["offset"] == 4,
            another=lambda row: row["offset"] == 2,
            newest=lambda row: row["offset"] == 3,
            edit={"value": b"corrected"},
        )
    return scene


def compaction(world: World) -> Scene:
    scene = _view(world)
    scene.messages(b"b", b"d", at_s=2)
    scene.work = "compaction"
    scene.goes = {COMPACTED: lambda row: row["offset"] == 4}
    scene.comes = {COMPACTED: (lambda row: row["offset"] in (5, 6), 2)}
    return scene


def purge(world: World) -> Scene:
    scene = _view(world)
    scene.work = PurgeKey(key=b"b")
    scene.goes = {kind: lambda row: row["key"] == b"b" for kind in ("", COMPACTED)}
    return scene


def undone_purge(world: World) -> Scene:
    scene = purge(world)
    scene.undo_of(scene.work)
    for other in scene.others.values():  # what the undo brings is not there before
        other.planned = lambda row: row["offset"] == 3
    return scene


def marks_of_the_cleaner(world: World) -> Scene:
    """A newer message of b past the horizon is dead, and hides the one of the view (CMP-9)."""
    scene = _view(world, allow_msg_ttl=True, max_compaction_lag=60)
    new = NewMessage(append_time=Instant(2 * SECOND), key=b"b", value=b"v", headers=(("Nats-TTL", b"1s"),))
    scene.world.writer.append(scene.name, [new], policy_of(scene.s, scene.name))
    scene.at(500 * SECOND)
    scene.goes = {"": lambda row: row["offset"] == 5, COMPACTED: lambda row: row["offset"] == 4}
    return scene


def erasure_of_a_key(world: World) -> Scene:
    scene = purge(world)
    scene.work = _erase(scene, b"b")
    return scene


def _erase(scene: Scene, key: bytes) -> EraseKey:
    return EraseKey(request_id=ask(scene.s, [key], topics=[scene.name], forbid=False, by="ada", why="a letter").request_id)


# Documents: their changes and snapshots.


def document_purge(world: World) -> Scene:
    """Changes 8 to 17 go, and the snapshot at 24 comes."""
    scene = _made(world, of_documents=True, settings={**PURGING, "client_deactivate_after": 100_000})
    scene.changes("b", range(1, 4))
    scene.changes("a", range(1, 11))
    _sync(scene, 8)
    scene.run("snapshot_with_purge")
    scene.changes("a", range(11, 25))
    _sync(scene, 18)
    scene.at(scene.now + SECOND)
    scene.work = "snapshot_with_purge"
    scene.goes = {"": lambda row: row["document"] == "a" and row["server_seq"] < 18}
    scene.comes = {SNAPSHOTS: (_came_by_purge, 1)}
    state = json.dumps("2 1 ").encode()
    new: Mapping[str, list[Row]] = {
        "": [{"document": "theirs", "server_seq": seq, "at": 0, "client": "y", "payload": b'[[0, 0, "x"]]'} for seq in (1, 2)],
        SNAPSHOTS: [{"document": "theirs", "server_seq": 2, "epoch": 0, "state": state, "digest": digest_of(state)}],
    }
    for kind, planned, another in (("", ("a", 12), ("b", 2)), (SNAPSHOTS, ("b", 0), ("a", 10))):
        scene.others[kind] = Other(
            name=scene.name,
            kind=kind,
            new=new[kind],
            planned=_document(*planned),
            another=_document(*another),
            newest=_document("a", 23 if not kind else 10),
            edit={"payload": b'[[0, 0, "corrected"]]'} if not kind else {"state": b'"corrected"'},
        )
    return scene


def _document(document: str, seq: int) -> Pick:
    return lambda row: (row["document"], row["server_seq"]) == (document, seq)


def _came_by_purge(row: Row) -> bool:
    """The snapshot at 24. Or, where another engine has rolled the changes back to 10, the row that raises the epoch without one (SNP-7)."""
    return _document("a", 24)(row) or (_document("a", 10)(row) and row["state"] is None)


def _sync(scene: Scene, seq: int) -> None:
    documents.sync(scene.s, scene.name, "a", client="ann", server_seq=seq, at=Instant(0))


def undone_document_purge(world: World) -> Scene:
    scene = document_purge(world)
    scene.undo_of(scene.work)
    scene.others[""].planned, scene.others[SNAPSHOTS].planned = _document("a", 19), _document("a", 24)
    return scene


def erasure_of_a_document(world: World) -> Scene:
    scene = document_purge(world)
    scene.work = _erase(scene, b"a")
    scene.goes = {kind: lambda row: row["document"] == "a" for kind in ("", SNAPSHOTS)}
    scene.comes = {}
    return scene


# Refused rows.


def quarantine_age(world: World) -> Scene:
    """Make a quarantine of three batches: two are older than their age, and one of their rows has the key k."""
    scene = _made(world, settings={"quarantine_max_age": 10})
    scene.messages(b"k")
    properties = {**QUARANTINE_PROPERTIES, **side_table_properties(scene.name, entries(engine_of_process().table(scene.name).properties()))}
    new_table.create((scene.name.namespace, scene.name.table(QUARANTINE)), shapes.QUARANTINE_SHAPE, properties=properties, summary={})
    scene.others[QUARANTINE] = other = Other(
        name=scene.name,
        kind=QUARANTINE,
        planned=lambda row: row["batch"] == "b1",
        another=lambda row: row["batch"] == "b95",
        newest=lambda row: row["batch"] == "b95",
        edit={"raw": "corrected"},
    )
    for second in (1, 2, 95):
        row = {"at": second * SECOND, "batch": f"b{second}", "file": "f", "code": "unreadable_line", "reason": None}
        other.new = [{**row, "position": position, "raw": f"raw {second} {position}"} for position in (1, 2)]
        append(other)
    other.new = [{**row, "batch": "theirs", "position": 1, "raw": "theirs"}]
    scene.work = "quarantine"
    scene.goes = {QUARANTINE: lambda row: row["batch"] in ("b1", "b2")}
    return scene


def undone_quarantine_age(world: World) -> Scene:
    scene = quarantine_age(world)
    scene.undo_of(scene.work)
    scene.others[QUARANTINE].planned = lambda row: row["batch"] == "b95"
    return scene


def erasure_of_refused_rows(world: World) -> Scene:
    scene = quarantine_age(world)
    other = scene.others[QUARANTINE]
    theirs, other.new = other.new, [{**other.new[0], "batch": "of k", "raw": '{"key": "kkkk"}'}]
    append(other)
    other.new = theirs
    scene.messages(b"kkkk")
    scene.work = _erase(scene, b"kkkk")
    scene.goes = {QUARANTINE: lambda row: row["batch"] == "of k", "": lambda row: row["key"] == b"kkkk"}
    return scene


# The past of a log and of its view.


def reclaim(world: World) -> Scene:
    """Files and snapshots of the past go, and no row."""
    scene = _view(world, undo_window=7 * 86_400)
    scene.run(RemoveMessages(positions=((0, 0),)))
    scene.messages(b"b", at_s=2)
    scene.at(scene.now + SECOND)
    scene.run("compaction")
    for other in scene.others.values():
        other.planned = lambda row: row["offset"] == 5
    scene.at(time.time_ns() // 1_000 + 30 * DAY)
    scene.work = "reclaim"
    return scene


SCENES: Mapping[str, Callable[[World], Scene]] = {
    made.__name__.replace("_", " "): made
    for made in (
        compaction, purge, undone_purge, marks_of_the_cleaner, erasure_of_a_key, document_purge, undone_document_purge, erasure_of_a_document,
        quarantine_age, undone_quarantine_age, erasure_of_refused_rows, reclaim,
    )
}  # fmt: skip
