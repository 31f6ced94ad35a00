"""Ledgers as earlier versions recorded them (`tests/data/plan_formats`), and what their plans have done, done again on the store in memory."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from sqlalchemy import Connection, create_engine, text

from message_lifecycle.app import changes, steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy, topic_settings
from message_lifecycle.operations.verdict import Verdict, decide
from message_lifecycle.stores.memory import MemoryStore
from tests.ledgers import StandingClock
from tests.record_plans import message_of, write_changes
from tests.verdicts import by

FOLDER = Path(__file__).parent / "data" / "plan_formats"
FILES = ("format_3", "format_4_first", "format_4", "format_5", "format_6")
OLDER = FILES[:3]
"""Before undo, erasure and holds."""


@cache
def recorded_in(name: str) -> dict[str, Any]:
    """To be read alone: `plan_format`, `schema`, `rows` by table, `story`."""
    return cast(dict[str, Any], json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())))


def as_it_was(name: str, folder: Path) -> str:
    """The address of a database with the ledger's tables and rows as that version left them."""
    url, found = f"sqlite:///{folder}/{name}.db", recorded_in(name)
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in found["schema"]:
            connection.execute(text(statement))
        insert_all(connection, found["rows"])
    engine.dispose()
    return url


def insert_all(connection: Connection, rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Rows by table, as `recorded_in` has them."""
    for table, found in rows.items():
        for row in found:
            columns = ", ".join(f'"{column}"' for column in row)
            connection.execute(text(f"insert into {table} ({columns}) values ({', '.join(f':{c}' for c in row)})"), row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """The ledger of an earlier version in today's program, beside topics that hold what they held then."""

    world: World
    clock: StandingClock
    ids: Mapping[tuple[str, str], str]

    @property
    def s(self) -> Services:
        return self.world.services

    def id_of(self, topic: str, operation: str) -> str:
        """Of the topic's first plan of the operation."""
        return self.ids[topic, operation]

    def record(self, topic: str, operation: str) -> PlanRecord:
        return self.s.ledger.record(self.id_of(topic, operation))

    def stored(self, topic: str) -> list[int]:
        return [message.offset for message in self.s.reader.messages(TopicName.parse(topic))]


def upgraded(name: str, folder: Path) -> Upgraded:
    told, file, clock = _told(name), folder / f"{name}.db", StandingClock()
    file.write_bytes(told.ledger)
    world, clock.now = memory_world({}), told.now
    world.set_now(clock.now)
    s = replace(world.services, ledger=open_ledger(f"sqlite:///{file}", clock=clock))
    assert isinstance(s.stores.log, MemoryStore)
    s.stores.log.tables |= pickle.loads(told.tables)  # written a moment ago
    return Upgraded(world=replace(world, services=s), clock=clock, ids=dict(told.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What `upgraded` is made of: the ledger's file, and the tables of the store in memory."""

    ledger: bytes
    tables: bytes
    now: Instant
    ids: Mapping[tuple[str, str], str]


@cache
def _told(name: str) -> _Told:
    """Told again, once for all tests: messages come as they came, and each plan takes what it took, as far as it came."""
    with TemporaryDirectory() as folder:
        url, clock = as_it_was(name, Path(folder)), StandingClock()
        migrate_ledger(url)
        world = memory_world({})
        s = replace(world.services, ledger=open_ledger(url, clock=clock))
        ids = _tell(name, replace(world, services=s), clock)
        s.ledger.close()
        assert isinstance(s.stores.log, MemoryStore)
        tables, ledger = pickle.dumps(s.stores.log.tables), Path(url.removeprefix("sqlite:///")).read_bytes()
    return _Told(ledger=ledger, tables=tables, now=clock.now, ids=ids)


def _tell(name: str, world: World, clock: StandingClock) -> dict[tuple[str, str], str]:
    s, ids = world.services, dict[tuple[str, str], str]()
    for told in recorded_in(name)["story"]:
        if told["do"] == "now":
            clock.now = Instant(told["at"])
            world.set_now(clock.now)
            continue
        topic = TopicName.parse(told["topic"])
        match told["do"]:
            case "topic":
                settings = topic_settings(told["settings"], where=str(topic))
                s.topics.create(topic, partitions=1, settings=settings, ledger=s.ledger.next_identity(topic))
            case "append":
                world.writer.append(topic, [message_of(one) for one in told["messages"]], policy_of(s, topic))
                if told["seal"]:
                    world.writer.seal(topic, 0)
            case "foreign_delete":
                world.writer.foreign_delete(topic, [(0, told["offset"])])
            case "changes":
                write_changes(s, topic, told["document"], told["last"], synced=told["synced"], at=clock.now)
            case "run":
                record = s.ledger.record(told["plan_id"])
                ids.setdefault((told["topic"], record.plan.operation), told["plan_id"])
                _carry_out(s, record, told["until"])
    return ids


def _carry_out(s: Services, record: PlanRecord, until: str) -> None:
    plan = record.plan
    _name_tables(s, plan)
    if until == "plan":
        return
    staged = changes.make(s, plan)
    if steps.marks(s, plan):
        staged = s.stores.log.mark(plan, staged, Policy.of_values(plan.policy))
    assert staged == record.staged, "what it stages is what it staged then"
    if until in ("stage", "gate", "approve") or steps.changes_nothing(plan, staged):
        return
    if until == "refuse":
        changes.drop(s, plan)
        return
    verdict, ledger = _verdict(record), s.ledger.next_identity(plan.topic)
    if until != "halfway":
        done = changes.commit(s, verdict)
        assert record.outcome is None or (dict(done.removed), done.markers) == (dict(record.outcome.removed), record.outcome.markers)
    elif plan.of_documents:
        s.stores.snapshots.publish(verdict, by(ledger))
    else:
        s.stores.view.publish(verdict, by(ledger))


def _verdict(record: PlanRecord) -> Verdict:
    """As the version that published it came to it."""
    assert record.staged is not None and record.report is not None and record.reported_at is not None
    found = decide(
        record.plan,
        record.staged,
        record.report,
        record.approval,
        asked_at=record.reported_at,
        now=record.reported_at,
        approval_ttl_us=Policy.of_values(record.plan.policy).approval_ttl_us,
    )
    assert isinstance(found, Verdict), found
    return found


def _name_tables(s: Services, plan: Plan) -> None:
    """Tables are known by ids that were drawn then."""
    assert isinstance(s.stores.log, MemoryStore)
    tables = s.stores.log.of(plan.topic)
    tables.topic = replace(tables.topic, uuid=plan.requirements.table_uuid)
    tables.main.uuid = plan.requirements.table_uuid
    if plan.snapshots is not None:
        tables.snapshots.uuid = plan.snapshots.table_uuid or tables.snapshots.uuid
    if plan.view is not None and plan.view.table_uuid is not None:
        tables.view.uuid = plan.view.table_uuid
