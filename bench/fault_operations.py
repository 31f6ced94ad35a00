"""The operations of `bench faults`: how the topic of each comes about, what is asked of it, and by what command it is carried out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from tests.ledgers import StandingClock

from bench.fault_cases import CASES, ERASED, Case, Maker, grant
from bench.fault_lake import SECOND, SECRET, STREAM, record_logs, services
from message_lifecycle.app import steps
from message_lifecycle.app.erasures import carry_out
from message_lifecycle.app.intake import IngestOptions, Intake, take_files
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.requests import delete_topic, reclaim_deleted
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.ledger import Ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import DeleteTopic, EraseKey, ReclaimDeleted
from message_lifecycle.ports import MessageWriter
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.writer import IcebergWriter


@dataclass(frozen=True, slots=True)
class Asked:
    """`case`: of `bench/fault_cases.py`, says how the topic comes about, and what is asked of it. `on_records`: it is a log of single
    records in files. `by_sql`: it is made with Spark's, which lasts."""

    case: str
    on_records: bool = False
    by_sql: bool = False


INGEST = "ingest"
OPERATIONS: Mapping[str, Asked] = {
    "expiry": Asked("cleaner"),
    "ttl": Asked("cleaner_markers"),
    "ttl_past_lag": Asked("cleaner_past_lag"),
    "limits": Asked("retention"),
    "request": Asked("request"),
    "request_view": Asked("request_view"),
    "key_purge": Asked("purge"),
    "key_purge_view": Asked("purge_view"),
    "sweep": Asked("marker_generation", by_sql=True),
    "first_compaction": Asked("first_compaction"),
    "compaction": Asked("compaction"),
    "purge_compacted": Asked("purge_compacted"),
    "documents": Asked("snapshot_with_purge"),
    "quarantine": Asked("quarantine"),
    "erasure": Asked("erasure", by_sql=True),
    "reclaim": Asked("reclaim"),
    "topic_delete": Asked("topic_delete"),
    "reclaim_deleted": Asked("reclaim_deleted"),
    "undo": Asked("undo_cleaner"),
    "undo_view": Asked("undo_view"),
    "undo_documents": Asked("undo_documents"),
    "undo_quarantine": Asked("undo_quarantine"),
    "undo_topic_delete": Asked("undo_topic_delete"),
    INGEST: Asked(INGEST),
    "files_limits": Asked("archive", on_records=True),
    "files_request": Asked("request", on_records=True),
    "files_erasure": Asked("files_erasure", on_records=True),
}
"""What is killed, by name."""
FILES_GO = ("erasure", "reclaim", "reclaim_deleted")
"""They delete files for good, which a catalog of before still names."""
TOPIC_GOES = ("topic_delete", "reclaim_deleted", "undo_topic_delete")
"""The topic is not there before, or after."""


def services_of(asked: Asked, warehouse: Path, ledger: Ledger) -> Services:
    if asked.on_records:
        return replace(record_logs(warehouse, ledger)[0], key_secret=lambda _: SECRET)
    return services(engine_of_process, ledger, of_lake=Tables())


@dataclass(frozen=True, slots=True, kw_only=True)
class OnLake:
    """A case is made with it."""

    ledger: Ledger
    clock: StandingClock
    folder: Path
    asked: Asked

    @property
    def session(self) -> SparkSession:
        return spark_session("faults")

    @property
    def s(self) -> Services:
        return services_of(self.asked, self.folder, self.ledger)

    @property
    def writer(self) -> MessageWriter:
        if self.asked.on_records:
            return record_logs(self.folder, self.ledger)[1]
        return IcebergWriter(engine_of_process)


def _landing(m: Maker, name: TopicName) -> Work:
    """Make two files to ingest, with one invalid line each."""
    create_topic(m.s, name, partitions=2, settings={"segment_max_seconds": 3})
    folder = m.folder.parent / "landing"
    folder.mkdir(exist_ok=True)
    for file in ("one", "two"):
        lines = [json.dumps({"key": f"{file} {at}", "at": at, "value": "v" * 50}) for at in range(6)]
        (folder / f"{file}.jsonl").write_text("\n".join([*lines[:3], "no message", *lines[3:], ""]), encoding="utf-8")
    return "message_cleaner"  # an ingest has no plan: the value only fills the place, and no code reads it


def ingest(s: Services, landing: Path) -> str:
    intake = Intake(
        topics=s.topics, ledger=s.ledger, server={}, engine=engine_of_process,
        end_offsets=lambda name: newest_state(Tables().load(name)).end_offsets,
        witnesses=IcebergLogIntegrity(Tables(), engine_of_process),
    )  # fmt: skip
    mapping = FieldMapping(key="key", value="value", append_time="at", append_time_unit="s")
    options = IngestOptions(mapping=mapping, allow_implausible_times=True)
    return "published" if take_files(intake, name_of(INGEST), str(landing), options).files else "no_op"


def _erasure_of_records(m: Maker, name: TopicName) -> Work:
    create_topic(m.s, name, partitions=1, settings={})
    for keys in ((ERASED, b"a"), (ERASED, b"b", ERASED), (b"c",)):
        new = [NewMessage(append_time=Instant(SECOND), key=key, value=b"v") for key in keys]
        m.writer.append(name, new, policy_of(m.s, name))
    m.s.ledger.add_erasure(name.topic, SECRET.digests([ERASED]), topics=[name], forbid=False, requested_by="bert", why="asked by letter")
    return EraseKey(request_id=name.topic)


_OF_OURS = {INGEST: Case(make=_landing), "files_erasure": Case(make=_erasure_of_records)}


def case_of(operation: str) -> Case:
    case = OPERATIONS[operation].case
    return _OF_OURS[case] if case in _OF_OURS else CASES[case]


def carried_out(s: Services, name: TopicName, work: Work, at: Instant) -> str:
    """Run the command for the work, and return how it ended."""
    if isinstance(work, DeleteTopic):
        return delete_topic(s, name, by="ada", text="as expected").name
    if isinstance(work, ReclaimDeleted):
        return reclaim_deleted(s, work.plan_id, as_of=at, approver=grant).name
    if isinstance(work, EraseKey):
        (one,) = carry_out(s, work.request_id, approver=grant)
        if one.error is not None:
            raise one.error
        assert one.outcome is not None
        return one.outcome.name
    return steps.run(s, name, as_of=at, approver=grant, work=work, requested_by="bert").name


def name_of(operation: str) -> TopicName:
    return TopicName(stream=STREAM, topic=operation)
