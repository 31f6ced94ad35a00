"""Cases of the fixture: how a topic gets the contents that a plan is about, and where a run of the plan can die.

Everything is small and always the same: times come from the standing clock, and keys and values are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession
from tests.ledgers import StandingClock
from tests.spark.documents import SETTINGS as OF_DOCUMENTS
from tests.spark.documents import typed
from tests.spark.quarantines import refuse

from bench.fault_lake import SECOND, SECRET, archive_of
from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.document import Change, Synced
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import DeleteTopic, EraseKey, PurgeKey, ReclaimDeleted, RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.ports import MessageWriter

AS_OF = Instant(100 * SECOND)
LATER = Instant(200 * SECOND)
# Far ahead of every time that a table notes by itself: then all of its past is old.
FAR = Instant(4_000_000_000 * SECOND)
DAY = 86_400
ERASED = b"the key that goes"
TTL = (("Nats-TTL", b"1s"),)


class Maker(Protocol):
    """The services, session, writer, folder and clock that a case needs."""

    @property
    def s(self) -> Services: ...

    @property
    def session(self) -> SparkSession: ...

    @property
    def writer(self) -> MessageWriter: ...

    @property
    def folder(self) -> Path: ...

    @property
    def clock(self) -> StandingClock: ...


def grant(*_: object) -> tuple[bool, str, str]:
    return True, "ada", "as expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`make` fills the topic and says what is asked of it. `asks`: the gate leaves it to a person. `halfway`: by state, the step at which
    a run of it dies after something of it was committed. `undone`: its undo has a state here. `on_records`: its topic is a log of single
    records, and no table."""

    make: Callable[[Maker, TopicName], Work]
    at: Instant = AS_OF
    asks: bool = True
    undone: bool = False
    on_records: bool = False
    halfway: Mapping[str, str] = field(default_factory=dict)

    @property
    def states(self) -> tuple[str, ...]:
        judged = ("waiting", "approved") if self.asks else ("passed",)
        return ("open", "staged", *judged, *self.halfway, "unverified", "published", *(("undone",) if self.undone else ()))


def _topic(m: Maker, name: TopicName, **settings: Value) -> None:
    create_topic(m.s, name, partitions=1, settings={"max_removed_fraction": 0.0, **settings})


def _append(m: Maker, name: TopicName, at_s: float, *keys: bytes | None, ttl: bool = False, segment: int | None = None) -> None:
    new = [
        NewMessage(append_time=Instant(int(at_s * SECOND)), key=key, value=b"v", headers=TTL if ttl else (), segment=segment)
        for key in keys
    ]
    m.writer.append(name, new, policy_of(m.s, name))


def run(m: Maker, name: TopicName, at: Instant, work: Work) -> str:
    """Run all steps with a person's approval, and return the plan's id."""
    m.clock.now = at
    outcome = steps.run(m.s, name, as_of=at, approver=grant, work=work)
    assert outcome.name == "published" and outcome.plan_id is not None, (name, outcome)
    return outcome.plan_id


def _cleaner(m: Maker, name: TopicName) -> Work:
    _topic(m, name, message_expiry=10)
    _append(m, name, 1, b"a", b"b", segment=0)
    _append(m, name, 2, b"c", segment=2)
    _append(m, name, 99, b"a", None, segment=3)
    return "message_cleaner"


def _cleaner_markers(m: Maker, name: TopicName) -> Work:
    _topic(m, name, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    _append(m, name, 1, b"a", b"b", ttl=True)
    _append(m, name, 2, b"b", b"c")
    return "message_cleaner"


def _compacted(m: Maker, name: TopicName, **settings: Value) -> None:
    _topic(m, name, **settings)
    _append(m, name, 1, b"a", b"b", b"a", b"c")
    run(m, name, Instant(2 * SECOND), "compaction")


def _cleaner_past_lag(m: Maker, name: TopicName) -> Work:
    _compacted(m, name, allow_msg_ttl=True, max_compaction_lag=60)
    _append(m, name, 3, b"a", ttl=True)
    _append(m, name, 3, b"d")
    return "message_cleaner"


def _retention(m: Maker, name: TopicName) -> Work:
    _topic(m, name, max_records=2)
    _append(m, name, 1, b"a", b"b", b"c")
    _append(m, name, 2, b"d")
    return "retention"


def _archive(m: Maker, name: TopicName) -> Work:
    _topic(m, name, max_records=2, on_remove="archive", archive_to=str(archive_of(m.folder)))
    _append(m, name, 1, b"a", b"b", b"c")
    _append(m, name, 2, b"d")
    return "retention"


def _request(m: Maker, name: TopicName) -> Work:
    _topic(m, name, max_removed_fraction=1.0)
    _append(m, name, 1, b"a", b"b", b"c")
    _append(m, name, 2, b"d")
    return RemoveMessages(positions=((0, 0), (0, 2)))


def _request_view(m: Maker, name: TopicName) -> Work:
    _compacted(m, name)
    _append(m, name, 3, b"d")
    return RemoveMessages(positions=((0, 1), (0, 3)))


def _purge(m: Maker, name: TopicName) -> Work:
    _topic(m, name, subject_delete_marker_ttl=600)
    _append(m, name, 1, b"a", b"b", b"a")
    _append(m, name, 2, b"c")
    return PurgeKey(key=b"a")


def _purge_view(m: Maker, name: TopicName) -> Work:
    _compacted(m, name, subject_delete_marker_ttl=600)
    _append(m, name, 3, b"d")
    return PurgeKey(key=b"a")


def _marker_generation(m: Maker, name: TopicName) -> Work:
    _topic(m, name, subject_delete_marker_ttl=600)
    _append(m, name, 1, b"a", b"b", b"c")
    m.clock.now = Instant(2 * SECOND)
    assert steps.run(m.s, name, as_of=m.clock.now, work="marker_generation").name == "no_op", "nothing is owed before the first sweep"
    m.writer.foreign_delete(name, [(0, 0), (0, 2)])
    return "marker_generation"


def _compaction(m: Maker, name: TopicName) -> Work:
    _compacted(m, name)
    _append(m, name, 3, b"a", b"d")
    return "compaction"


def _first_compaction(m: Maker, name: TopicName) -> Work:
    _topic(m, name)
    _append(m, name, 1, b"a", b"b", b"a", b"c")
    return "compaction"


def _purge_compacted(m: Maker, name: TopicName) -> Work:
    _topic(m, name, cleanup_policy="compact")
    _append(m, name, 1, b"a", b"b", segment=0)
    _append(m, name, 2, b"a", segment=2)
    _append(m, name, 3, b"c", segment=3)
    run(m, name, Instant(5 * SECOND), "compaction")
    return "purge_compacted"


def _add(m: Maker, name: TopicName, *changes: Change) -> None:
    m.s.documents.add(name, changes, ledger=m.s.ledger.next_identity(name))


def _sync(m: Maker, name: TopicName, document: str, seq: int) -> None:
    before = next((row for row in m.s.ledger.synced(name, document) if row.client == "a"), None)
    after = Synced(document=document, client="a", server_seq=seq, at=Instant(1))
    assert m.s.ledger.replace_synced(name, document, "a", seen=before, to=after)


def _documents(m: Maker, name: TopicName) -> Work:
    create_topic(m.s, name, partitions=1, settings={**OF_DOCUMENTS, "max_removed_fraction": 0.0})
    _add(m, name, *typed("one", 1, 12))
    _sync(m, name, "one", 8)
    run(m, name, Instant(50 * SECOND), "snapshot_with_purge")
    _add(m, name, *typed("one", 13, 24), *typed("two", 1, 12))
    _sync(m, name, "one", 18)
    _sync(m, name, "two", 5)
    return "snapshot_with_purge"


def _quarantine(m: Maker, name: TopicName) -> Work:
    create_topic(m.s, name, partitions=1, settings={"quarantine_max_age": 10, "max_removed_fraction": 0.0})
    for second in (1, 95):
        rows = [("f", at, "unreadable_line", None, f"raw {second} {at}") for at in (1, 2)]
        refuse(name, *rows, batch_id=f"batch {second}", at=Instant(second * SECOND))
    return "quarantine"


def _erasure(m: Maker, name: TopicName) -> Work:
    _topic(m, name)
    _append(m, name, 1, ERASED, b"a")
    _append(m, name, 2, ERASED, b"b", ERASED)
    run(m, name, Instant(5 * SECOND), "compaction")
    m.writer.foreign_delete(name, [(0, 0)])
    digests = SECRET.digests([ERASED])
    m.s.ledger.add_erasure(f"{name.topic}", digests, topics=[name], forbid=False, requested_by="bert", why="asked by letter")
    return EraseKey(request_id=name.topic)


def _reclaim(m: Maker, name: TopicName) -> Work:
    _topic(m, name)
    _append(m, name, 1, b"a", b"b")
    _append(m, name, 2, b"c")
    run(m, name, Instant(5 * SECOND), RemoveMessages(positions=((0, 0), (0, 2))))
    return "reclaim"


def _topic_delete(m: Maker, name: TopicName) -> Work:
    _compacted(m, name)
    return DeleteTopic()


def _reclaim_deleted(m: Maker, name: TopicName) -> Work:
    return ReclaimDeleted(plan_id=run(m, name, AS_OF, _topic_delete(m, name)))


def _undo(case: Case) -> Callable[[Maker, TopicName], Work]:
    def make(m: Maker, name: TopicName) -> Work:
        return UndoPlan(plan_id=run(m, name, case.at, case.make(m, name)))

    return make


_VIEW_ALONE = {"halfway": "view:after_commit"}
_LOG_ALONE = {"halfway": "after_commit"}

CLEANER_MARKERS = Case(make=_cleaner_markers)
REQUEST_VIEW = Case(make=_request_view, halfway=_VIEW_ALONE)
SNAPSHOT_WITH_PURGE = Case(make=_documents, asks=False, halfway={"halfway": "after_snapshots_commit"})
QUARANTINE = Case(make=_quarantine, asks=False)
TOPIC_DELETE = Case(make=_topic_delete)

CASES: Mapping[str, Case] = {
    "cleaner": Case(make=_cleaner, undone=True),
    "cleaner_markers": CLEANER_MARKERS,
    "cleaner_past_lag": Case(make=_cleaner_past_lag, undone=True, halfway=_VIEW_ALONE),
    "retention": Case(make=_retention, undone=True),
    "archive": Case(make=_archive, on_records=True),
    "request": Case(make=_request, asks=False, undone=True),
    "request_view": REQUEST_VIEW,
    "purge": Case(make=_purge, undone=True),
    "purge_view": Case(make=_purge_view, undone=True, halfway=_VIEW_ALONE),
    "marker_generation": Case(make=_marker_generation, asks=False),
    "first_compaction": Case(make=_first_compaction, asks=False),
    "compaction": Case(make=_compaction, asks=False),
    "purge_compacted": Case(make=_purge_compacted, undone=True),
    "snapshot_with_purge": SNAPSHOT_WITH_PURGE,
    "quarantine": QUARANTINE,
    "erasure": Case(make=_erasure, halfway={"halfway": "after_commit", "deleting": "inside_delete"}),
    "reclaim": Case(make=_reclaim, at=FAR, halfway={"halfway": "after_expire", "deleting": "while_deleting"}),
    "topic_delete": TOPIC_DELETE,
    "reclaim_deleted": Case(make=_reclaim_deleted, at=FAR, halfway={"halfway": "after_commit", "deleting": "while_deleting"}),
    "undo_cleaner": Case(make=_undo(CLEANER_MARKERS), at=LATER),
    "undo_view": Case(make=_undo(REQUEST_VIEW), at=LATER, halfway=_LOG_ALONE),
    "undo_documents": Case(make=_undo(SNAPSHOT_WITH_PURGE), at=LATER, halfway={"halfway": "after_changes_commit"}),
    "undo_quarantine": Case(make=_undo(QUARANTINE), at=LATER),
    "undo_topic_delete": Case(make=_undo(TOPIC_DELETE), at=LATER),
}

UNDOS: Mapping[str, str | None] = {
    **{title: None for title, case in CASES.items() if case.undone},
    "cleaner_markers": "undo_cleaner",
    "request_view": "undo_view",
    "snapshot_with_purge": "undo_documents",
    "quarantine": "undo_quarantine",
    "topic_delete": "undo_topic_delete",
}
"""What can be taken back: by case the one that takes it back, whose states are here too; None: the case itself has that state."""
