"""Record a ledger that has a plan of every operation, on the store in memory: what `tests/data/plan_formats` holds.

Run with the code of the version whose plans are wanted, from format 3 on:

    PYTHONPATH=VERSION/include python tests/record_plans.py FILE.json.gz

It is told step by step what the topics hold (`story`), so that `tests.older_plans` can build them again and carry the same plans out.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import text

from message_lifecycle.app import steps
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model import request as requests
from message_lifecycle.model.instants import Instant, parse_instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import PLAN_FORMAT
from message_lifecycle.model.settings import BY_NAME, resolve

NOW = parse_instant("2026-11-21T12:00:00Z")
SECOND = 1_000_000
HOUR = 3600 * SECOND
ENDS = ("plan", "stage", "gate", "approve", "refuse", "halfway", "publish", "verify")
"""How far a plan is brought. `halfway`: its run dies between its two commits. `publish`: before its outcome is written."""


class Died(Exception):
    """The process went away here."""


class Teller:
    """Drives a world, and writes down what it does."""

    def __init__(self) -> None:
        self.world = memory_world({})
        self.s: Any = self.world.services
        self.story: list[dict[str, Any]] = []
        self.now(NOW)

    def now(self, at: int) -> None:
        self.at = Instant(at)
        self.world.set_now(self.at)
        self.story.append({"do": "now", "at": int(at)})

    def topic(self, name: str, **settings: Any) -> str:
        create_topic(self.s, TopicName.parse(name), partitions=1, settings=settings)
        self.story.append({"do": "topic", "topic": name, "settings": settings})
        return name

    def append(self, name: str, *messages: tuple[Any, ...], seal: bool = True) -> None:
        """(hours old, key, value, and a lifetime of its own). `seal`: they are a segment."""
        told = [[int(self.at - hours * HOUR), key, value, *own] for hours, key, value, *own in messages]
        topic = TopicName.parse(name)
        self.world.writer.append(topic, [message_of(one) for one in told], _policy_of(self.s, topic))
        if seal:
            self.world.writer.seal(topic, 0)
        self.story.append({"do": "append", "topic": name, "messages": told, "seal": seal})

    def foreign_delete(self, name: str, offset: int) -> None:
        self.world.writer.foreign_delete(TopicName.parse(name), [(0, offset)])
        self.story.append({"do": "foreign_delete", "topic": name, "offset": offset})

    def changes(self, name: str, document: str, last: int, *, synced: int) -> None:
        """From the first on, and how many of them a client has."""
        write_changes(self.s, TopicName.parse(name), document, last, synced=synced, at=self.at)
        self.story.append({"do": "changes", "topic": name, "document": document, "last": last, "synced": synced})

    def run(self, name: str, work: Any = "message_cleaner", *, until: str = "verify") -> str:
        """The id of the plan."""
        record = steps.plan(self.s, TopicName.parse(name), as_of=self.at, run=f"run-{len(self.story)}", work=work)
        plan_id = record.plan.plan_id
        self.story.append({"do": "run", "topic": name, "until": until, "plan_id": plan_id})
        for end in ENDS[: ENDS.index(until) + 1]:
            self._bring(record.plan, end, until)
        return plan_id

    def _bring(self, plan: Any, end: str, until: str) -> None:
        asked = self.s.ledger.record(plan.plan_id).report
        match end:
            case "stage":
                steps.stage(self.s, plan.plan_id)
                steps.mark(self.s, plan.plan_id)
            case "gate":
                assert steps.gate(self.s, plan.plan_id).judgement != "blocked", plan.operation
            case "approve" if asked.judgement == "needs_approval" and until != "refuse":
                steps.approve(self.s, plan.plan_id, granted=True, by="ann", text="as asked")
            case "refuse" if until == "refuse":
                steps.approve(self.s, plan.plan_id, granted=False, by="ann", text="not now")
            case "halfway" if until == "halfway":
                self._die(plan)
            case "publish" if until != "halfway":
                steps.publish(self.s, plan.plan_id)
            case "verify":
                outcome = steps.verify(self.s, plan.plan_id)
                assert outcome.name in ("published", "no_op"), outcome

    def _die(self, plan: Any) -> None:
        store, verb = (self.s.documents, "purge") if plan.operation == "snapshot_with_purge" else (self.s.stores.log, "publish")

        def die(*_: object, **__: object) -> None:
            raise Died

        setattr(store, verb, die)
        try:
            steps.publish(self.s, plan.plan_id)
        except Died:
            delattr(store, verb)
        else:
            raise AssertionError("it has not come to its second commit")


def _policy_of(s: Any, name: TopicName) -> Any:
    return resolve(topic=s.topics.describe(name).settings, server=s.server)


def message_of(told: list[Any]) -> NewMessage:
    at, key, value, *own = told
    headers = tuple(("Nats-TTL", ttl.encode()) for ttl in own)
    return NewMessage(append_time=Instant(at), key=key.encode(), value=value.encode(), partition=0, headers=headers)


def write_changes(s: Any, name: TopicName, document: str, last: int, *, synced: int, at: Instant) -> None:
    from message_lifecycle.app import documents  # of versions that have documents
    from message_lifecycle.model.document import Change

    payloads = {seq: json.dumps([[0, 0, f"{seq} "]]).encode() for seq in range(1, last + 1)}
    documents.add_changes(s, name, [Change(document=document, server_seq=n, client="x", at=at, payload=p) for n, p in payloads.items()])
    documents.sync(s, name, document, client="ann", server_seq=synced, at=at, epoch=None)


def tell(t: Teller) -> None:
    """Every operation, then open plans as far as plans come."""
    orders = t.topic("shop/orders", message_expiry=36_000, allow_msg_ttl=True, subject_delete_marker_ttl=86_400, max_removed_fraction=1.0)
    _segments(t, orders, 12, 11)
    t.append(orders, (3, "a", "short-lived", "1h"), (3, "c", "kept"), (3, "d", "short-lived", "1h"))
    t.append(orders, (1, "e", "kept"), (1, "f", "kept"))
    t.run(orders)
    t.run(orders, requests.RemoveMessages(positions=((0, 7),)))
    t.run(orders, "marker_generation")
    t.foreign_delete(orders, 8)
    t.run(orders, "marker_generation")
    t.now(t.at + 60 * SECOND)
    t.run(orders)

    idle = t.topic("shop/idle", message_expiry=36_000, max_removed_fraction=1.0)
    t.append(idle, (12, "a", "all are old"), seal=False)
    t.run(idle)
    read = t.topic("shop/read", message_expiry=36_000, max_removed_fraction=1.0)
    _segments(t, read, 12, 11)
    t.s.ledger.commit(TopicName.parse(read), "billing", 0, 1, t.at)
    t.run(read)

    stock = t.topic("shop/stock", cleanup_policy="compact", max_removed_fraction=1.0)
    _segments(t, stock, 9, 8, keys="abc")
    t.run(stock, "compaction")
    t.run(stock, requests.RemoveMessages(positions=((0, 3),)))
    _segments(t, stock, 2)
    t.run(stock, "compaction")
    t.run(stock, "purge_compacted")

    for end in ("verify", "halfway"):
        prices = t.topic(f"prices/{end}", cleanup_policy="compact,delete", max_removed_fraction=1.0)
        _segments(t, prices, 9, 8, keys="abc")
        t.run(prices, "compaction")
        t.run(prices, requests.PurgeKey(key=b"a"), until=end)

    for end in ("plan", "stage", "gate", "approve", "refuse", "publish"):
        name = t.topic(f"open/{end}", message_expiry=3600, max_removed_fraction=0.1)
        _segments(t, name, 9, 8)
        t.append(name, (0, "z", "new"))
        t.run(name, until=end)

    if "max_compaction_lag" in BY_NAME:
        _past_the_lag(t)
    if "max_records" in BY_NAME:
        few = t.topic("shop/few", max_records=2, max_removed_fraction=1.0)
        _segments(t, few, 3, 2, 1)
        t.run(few, "retention")
    if "fold" in BY_NAME:
        for end in ("verify", "halfway"):
            t.run(_drafts(t, f"notes/{end}"), "snapshot_with_purge", until=end)
    if PLAN_FORMAT >= 5:
        _afterwards(t)


def _segments(t: Teller, name: str, *ages: float, keys: str = "ab") -> None:
    """One of each age, with a message of each key."""
    for age in ages:
        t.append(name, *((age, key, f"{key} {age} h") for key in keys))


def _past_the_lag(t: Teller) -> None:
    """Messages go that compaction has not seen, and from the view what is older of their keys."""
    names = ("lag/verify", "lag/halfway")
    for name in names:
        lag = {"message_expiry": 18_000, "max_compaction_lag": 7200}
        t.topic(name, cleanup_policy="compact,delete", max_removed_fraction=1.0, **lag)
        t.append(name, (4, "a", "seen"), (4, "b", "seen"))
        t.run(name, "compaction")
        t.append(name, (3.5, "a", "newer"), (3.5, "c", "newer"))
        t.append(name, (0, "b", "new"))
    t.now(t.at + 3 * HOUR)
    for name in names:
        t.run(name, until=name.partition("/")[2])


def _drafts(t: Teller, name: str) -> str:
    purging = {"snapshot_interval": 10, "snapshot_threshold": 5, "snapshot_with_purging_changes": True, "snapshots_keep": 1}
    t.topic(name, fold="text_splice", client_deactivate_after=1_000_000, max_removed_fraction=1.0, **purging)
    t.changes(name, "plan.a", 12, synced=9)
    return name


def _afterwards(t: Teller) -> None:
    """Undo, erasure, the deletion of topics, holds. What no store in memory does is recorded as it would be planned."""
    from message_lifecycle.app.erasures import ask
    from message_lifecycle.app.holds import place_hold
    from message_lifecycle.model.hold import HeldRange

    back = t.topic("back/orders", message_expiry=36_000, subject_delete_marker_ttl=86_400, max_removed_fraction=1.0)
    _segments(t, back, 12, 11)
    t.append(back, (1, "c", "kept"))
    t.run(back, requests.UndoPlan(plan_id=t.run(back)))
    view = t.topic("back/prices", cleanup_policy="compact,delete", max_removed_fraction=1.0)
    _segments(t, view, 9, 8, keys="abc")
    t.run(view, "compaction")
    t.run(view, requests.UndoPlan(plan_id=t.run(view, requests.PurgeKey(key=b"a"))))
    drafts = _drafts(t, "back/drafts")
    t.run(drafts, requests.UndoPlan(plan_id=t.run(drafts, "snapshot_with_purge")))

    held = t.topic("held/orders", message_expiry=36_000, subject_delete_marker_ttl=86_400, max_removed_fraction=1.0)
    _segments(t, held, 12, 11)
    place_hold(t.s, TopicName.parse(held), by="ann", why="a claim", offsets=HeldRange(partition=0, first=0, last=0))
    t.run(held)

    erased = t.topic("erased/orders", max_removed_fraction=1.0)
    _segments(t, erased, 2, 1)
    asked = ask(t.s, b"a", topics=[TopicName.parse(erased)], forbid=False, by="ann", why="asked by the person")
    t.run(erased, requests.EraseKey(request_id=asked.request_id))

    for name in ("gone/returned", "gone/dropped"):
        _segments(t, t.topic(name, undo_window=60), 2, 1)
        deletion = t.run(name, requests.DeleteTopic())
        if name == "gone/returned":
            t.run(name, requests.UndoPlan(plan_id=deletion))
    t.now(t.at + 120 * SECOND)
    t.run("gone/dropped", requests.ReclaimDeleted(plan_id=deletion))
    _as_planned(t)


def _as_planned(t: Teller) -> None:
    from dataclasses import replace

    from message_lifecycle.model.change import Commit, Forget, QuarantinedFile, RemoveFiles
    from message_lifecycle.model.plan import Selection

    like = t.s.ledger.record(t.run(t.topic("planned/orders"), until="plan")).plan
    files = RemoveFiles(role="data", files=("data/a.parquet",), size_bytes=7)
    expire = Forget(table="", table_uuid="t", snapshots=(1, 2), refs=("old",), kept=(("the branch's own rules", 3),), files=(files,))
    refused = QuarantinedFile(file="data/q.parquet", rows=3, size_bytes=7, oldest_at=NOW, newest_at=t.at)
    named = {
        "kept": replace(like, changes=(replace(like.on_log, keep="/archive"),)),
        "reclaim": replace(like, operation="reclaim", changes=(expire,)),
        "quarantine": replace(
            like,
            operation="quarantine",
            changes=(Commit(table="quarantine", files=(refused,)),),
            selection=Selection(files=(refused.file,)),
        ),
        "undo": replace(
            like, operation="undo", changes=(Commit(table="quarantine", files_back=(refused,), source_id=7),), parent=like.plan_id
        ),
    }
    for name, plan in named.items():
        t.s.ledger.add_plan(replace(plan, topic=TopicName.parse(f"planned/{name}")), requested_by="ann")


def write(t: Teller, path: Path) -> None:
    """The ledger's tables as they were made, and their rows."""
    with t.s.ledger._database.reading() as connection:
        schema = connection.execute(text("select sql from sqlite_master where sql is not null order by rowid")).scalars().all()
        names = connection.execute(text("select name from sqlite_master where type = 'table' order by name")).scalars().all()
        rows = {name: [dict(row._mapping) for row in connection.execute(text(f"select * from {name} order by 1, 2"))] for name in names}
    told = {"plan_format": PLAN_FORMAT, "schema": list(schema), "rows": rows, "story": t.story}
    with path.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file:
        file.write(json.dumps(told, indent=1).encode())


if __name__ == "__main__":
    teller = Teller()
    tell(teller)
    write(teller, Path(sys.argv[1]))
