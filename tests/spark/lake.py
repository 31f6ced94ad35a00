"""Small topics on the lake, written as a test states them: row by row, by segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from tests.judges import PlainGateOfTables
from tests.verdicts import by, let_pass

from message_lifecycle.app.operations.registry import undoable_operations
from message_lifecycle.app.services import Services, Stores
from message_lifecycle.ledger import open_ledger
from message_lifecycle.ledger.database import Clock
from message_lifecycle.model.facts import ActiveSegment, Facts, LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.operations import message_cleaner
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.sources.lifetimes import with_own_lifetimes
from message_lifecycle.stores.iceberg import layout
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables, ledger_text
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction.store import IcebergViewRemovals, IcebergViewReturns, IcebergViewStore
from message_lifecycle.stores.iceberg.copying import IcebergCopier
from message_lifecycle.stores.iceberg.documents.store import (
    IcebergChangeReturns,
    IcebergChanges,
    IcebergDocuments,
    IcebergSnapshotReturns,
    IcebergSnapshots,
)
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.erasure.store import IcebergEraser
from message_lifecycle.stores.iceberg.fence import Walk, fenced_commit
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity
from message_lifecycle.stores.iceberg.read import IcebergReader, newest_state
from message_lifecycle.stores.iceberg.reclaiming import IcebergReclaimer
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.store import IcebergLogReturns, IcebergStore
from message_lifecycle.stores.iceberg.view_file import drop_stream
from message_lifecycle.stores.iceberg.writer import write_rows

SECOND = 1_000_000
EXPIRY_S = 60
LEDGER = ("ledger", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Messages of one segment: offsets from `base` on, one per time (seconds; None: unknown)."""

    base: int
    times: tuple[float | None, ...]
    partition: int = 0
    segment: int | None = None

    @property
    def place(self) -> int:
        return self.base if self.segment is None else self.segment


@cache
def tables() -> Tables:
    """One for all tests of a process: each holds connections to the catalog's database."""
    return Tables()


class Lake:
    """The Iceberg stores over a scratch stream."""

    def __init__(self, session: SparkSession, *, stream: str) -> None:
        self.session, self.stream = session, stream
        self.topics = IcebergTopics(tables())
        self.reader = IcebergReader(tables())

    def store(self, steps: Callable[[str], None] | None = None) -> IcebergStore:
        return IcebergStore(engine_of_process, tables=tables(), server={}, steps=steps)

    def log_returns(self, steps: Callable[[str], None] | None = None) -> IcebergLogReturns:
        return IcebergLogReturns(engine_of_process, tables=tables(), server={}, steps=steps)

    def copier(self) -> IcebergCopier:
        return IcebergCopier(engine_of_process, own_lifetimes=with_own_lifetimes, tables=tables())

    def documents(self, steps: Callable[[str], None] | None = None) -> IcebergDocuments:
        return IcebergDocuments(engine_of_process, tables=tables(), steps=steps)

    def services(self, clock: Clock | None = None) -> Services:
        """What the verbs work with, over this lake and a ledger of its own in memory."""
        documents = self.documents()
        return Services(
            topics=self.topics,
            reader=self.reader,
            stores=Stores(
                backend="iceberg",
                log=self.store(),
                log_return=self.log_returns(),
                view=IcebergViewStore(engine_of_process, tables=tables()),
                view_removal=IcebergViewRemovals(engine_of_process, tables=tables()),
                view_return=IcebergViewReturns(engine_of_process, tables=tables()),
                snapshots=IcebergSnapshots(engine_of_process, tables=tables()),
                snapshots_return=IcebergSnapshotReturns(engine_of_process, tables=tables()),
                changes=IcebergChanges(engine_of_process, tables=tables()),
                changes_return=IcebergChangeReturns(engine_of_process, tables=tables()),
                rewrite=IcebergEraser(tables(), undoable=undoable_operations),
                forget=IcebergReclaimer(tables()),
            ),
            copier=self.copier(),
            witnesses=IcebergLogIntegrity(tables(), engine_of_process),
            documents=documents,
            gate=PlainGateOfTables(),
            ledger=open_ledger("sqlite://", clock=clock) if clock else open_ledger("sqlite://"),
            server={},
        )

    def topic(self, *, partitions: int = 1, **settings: Value) -> TopicName:
        name = TopicName.parse(f"{self.stream}/t {token_hex(4)}")
        self.topics.create(name, partitions=partitions, settings={"message_expiry": EXPIRY_S, **settings}, ledger=LEDGER)
        return name

    def policy(self, name: TopicName) -> Policy:
        return resolve(topic=self.topics.describe(name).settings, server={})

    def append(self, name: TopicName, *segments: Rows, with_state: bool = True) -> None:
        """One commit, one file per segment. `with_state` False: as a writer appends that knows nothing of us."""
        written = [
            {
                "partition": rows.partition, "offset": offset, "append_time": None if time is None else int(time * SECOND),
                "key": b"k%d" % offset, "value": b"v%d" % offset, "headers": [{"name": "h", "value": b"x"}], "size_bytes": 10,
                "segment": rows.place,
            }
            for rows in segments
            for offset, time in enumerate(rows.times, start=rows.base)
        ]  # fmt: skip
        table = engine_of_process().table(name)
        files = write_rows(engine_of_process(), table, pa.Table.from_pylist(written, schema=SCHEMA.as_arrow()))
        ours = {**self._state_with(name, segments).to_properties(), layout.LEDGER: ledger_text(LEDGER)} if with_state else {}

        def make(on: Java, _walk: Walk) -> Iterator[Java]:
            update = on.newAppend()
            for file in files:
                update.appendFile(file)
            for key, value in ours.items():
                update.set(key, value)
            yield update

        fenced_commit(table, lambda _: None, make, what="appending")
        engine_of_process().forget(name)

    def _state_with(self, name: TopicName, segments: Iterable[Rows]) -> LogSummary:
        state = newest_state(tables().load(name))
        ends, active = dict(state.end_offsets), dict(state.active)
        for rows in segments:
            ends[rows.partition] = max(ends.get(rows.partition, 0), rows.base + len(rows.times))
            if rows.place >= active.get(rows.partition, ActiveSegment(base_offset=0)).base_offset:
                active[rows.partition] = ActiveSegment(base_offset=rows.place, rows=len(rows.times), size_bytes=10 * len(rows.times))
        return LogSummary(end_offsets=ends, active=active)

    def delete(self, name: TopicName, where: str) -> None:
        """A delete by another writer."""
        self.session.sql(f"DELETE FROM {sql_table(name)} WHERE {where}")
        engine_of_process().forget(name)

    def plan(self, name: TopicName, as_of: float, **facts: Any) -> Plan:
        policy = self.policy(name)
        at = Instant(int(as_of * SECOND))
        store = self.store()
        log = store.log(name, latest_allowed_time=Instant(at + policy.clock_skew_us))
        known = replace(Facts(log=log, accepted=policy.values), **facts)
        return message_cleaner.plan(known, policy, as_of=at, ask=partial(store.rows, log))

    def verdict(self, plan: Plan, staged: Staged) -> Verdict:
        return let_pass(plan, staged)

    def publish(self, plan: Plan, *, store: IcebergStore | None = None) -> Published:
        store = store or self.store()
        return store.publish(self.verdict(plan, store.stage(plan)), by(("ledger", 2)))

    def offsets(self, name: TopicName, partition: int = 0) -> list[int]:
        """By PyIceberg, so that a second implementation reads what the first wrote."""
        return [message.offset for message in self.reader.messages(name, partition=partition)]

    def log(self, name: TopicName) -> LogState:
        return self.reader.log(name)

    def drop(self) -> None:
        """Take the scratch stream away."""
        drop_stream(tables().catalog, TopicName.parse(f"{self.stream}/any").namespace)
