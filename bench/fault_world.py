"""The small lakes of `bench faults`: one topic for each operation, made once, put back as it was before each run; and what is compared.

A lake's folder and its one database, which holds the catalog and the ledger, are copied whole. They lie at the same place and have the same
name each time, as tables name their files by whole paths.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.head_lake.cases import CASES, ERASED, FAR, Case, Maker, grant
from tests.head_lake.world import SECOND, SECRET, STREAM, record_logs, seen, services, work_of, work_text
from tests.ledgers import StandingClock
from tests.spark.documents import typed

from message_lifecycle.app import steps, views
from message_lifecycle.app.erasures import carry_out
from message_lifecycle.app.ingest import IngestOptions, Intake, take_files
from message_lifecycle.app.operations.registry import Work, preview
from message_lifecycle.app.requests import delete_topic, reclaim_deleted
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.local import postgres
from message_lifecycle.local.layout import Layout
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import DeleteTopic, EraseKey, ReclaimDeleted
from message_lifecycle.ports import MessageWriter
from message_lifecycle.sources.messages import FieldMapping
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import KINDS, SNAPSHOTS
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.session import engine, spark_session
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter


@dataclass(frozen=True, slots=True)
class Asked:
    """`case`: of `tests/head_lake/cases.py`, says how the topic comes about, and what is asked of it. `on_records`: it is a log of single
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
# A run that published is asked again until it finds nothing; a plan may leave more to the next.
_RUNS = 4
# So many differences are told of each part.
_TOLD = 4
_NAMED_ANEW = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![a-z])[0-9a-f]{8,}|\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One lake at one place. `folder`: warehouse, configuration and templates; `layout`: the embedded default, whose server serves."""

    layout: Layout
    folder: Path
    address: postgres.Address
    database: str

    @property
    def warehouse(self) -> Path:
        return self.folder / "lake"

    def template(self, operation: str) -> Path:
        return self.folder / "templates" / operation

    def configure(self) -> None:
        """This process's lake, and that of all that it forks."""
        conf = self.folder / "spark"
        shutil.copytree(self.layout.spark_conf, conf, dirs_exist_ok=True)
        for old, new in ((self.layout.state / ".pyiceberg.yaml", self.folder / ".pyiceberg.yaml"), (conf / "spark-defaults.conf",) * 2):
            text = old.read_text(encoding="utf-8")
            text = text.replace(str(self.layout.warehouse), str(self.warehouse))
            new.write_text(re.sub(rf"(:{self.address.port})/\w+", rf"\1/{self.database}", text), encoding="utf-8")
        os.environ |= {
            "PYICEBERG_HOME": str(self.folder),
            "SPARK_CONF_DIR": str(conf),
            "LIFECYCLE_LEDGER_URL": self.address.url(self.database),
        }

    def make(self, operation: str, in_process: Callable[[Callable[[], None]], None]) -> None:
        """The template of the operation's lake, with what is asked of it beside."""
        self._database(f"CREATE DATABASE {self.database}")
        shutil.rmtree(self.warehouse, ignore_errors=True)
        self.warehouse.mkdir(parents=True)
        in_process(lambda: self._fill(operation))
        shutil.rmtree(self.template(operation), ignore_errors=True)
        self.template(operation).mkdir(parents=True)
        (self.folder / "work.json").rename(self.template(operation) / "work.json")
        self.warehouse.rename(self.template(operation) / "lake")
        template = f"{self.database}_{operation}"
        self._execute(f"DROP DATABASE IF EXISTS {template} WITH (FORCE)", f"ALTER DATABASE {self.database} RENAME TO {template}")

    def restore(self, operation: str) -> None:
        """The lake as it was made."""
        shutil.rmtree(self.warehouse, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.template(operation) / "lake"), str(self.warehouse)], check=True)
        self._database(f"CREATE DATABASE {self.database} TEMPLATE {self.database}_{operation}")

    def files(self, operation: str) -> dict[str, Path]:
        """Those of the lake as it was made, by a name that is the same whenever it is made."""
        made = self.template(operation) / "lake"
        there = sorted((path.stat().st_mtime_ns, path) for path in made.rglob("*") if path.is_file() and path.suffix != ".crc")
        seen: Counter[str] = Counter()
        found = {}
        for _, path in there:
            told = "there: " + told_path(path.relative_to(made))
            seen[told] += 1
            found[f"{told} #{seen[told]}"] = self.warehouse / path.relative_to(made)
        return found

    @contextmanager
    def catalog_kept(self, kept: bool) -> Iterator[None]:
        """Afterwards the catalog is as it is now."""
        if kept:
            self._execute("CREATE TABLE catalog_of_before AS TABLE iceberg_tables", database=self.database)
        yield
        if kept:
            self._execute(
                "DELETE FROM iceberg_tables", "INSERT INTO iceberg_tables TABLE catalog_of_before", "DROP TABLE catalog_of_before",
                database=self.database,
            )  # fmt: skip

    def forget(self, operation: str) -> None:
        """All of it goes."""
        self._execute(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in (self.database, f"{self.database}_{operation}")))
        shutil.rmtree(self.template(operation))

    def run(self, operation: str, *, seconds_late: int = 0) -> str:
        """The operation's own command, by a process that has done nothing else; how it ended. `seconds_late`: so much its clock, and its as-of, stand
        behind."""
        with self._opened(operation, Instant(case_of(operation).at - seconds_late * SECOND)) as (s, at):
            if operation == INGEST:
                return _ingest(s, self.folder / "landing")
            work = work_of(json.loads((self.template(operation) / "work.json").read_text(encoding="utf-8")))
            return _carried_out(s, name_of(operation), work, at)

    def append(self, operation: str) -> None:
        """One message more, of a key of its own; of a topic of documents one change."""
        with self._opened(operation) as (s, at):
            name = name_of(operation)
            if OPERATIONS[operation].on_records:
                writer: MessageWriter = record_logs(self.warehouse, s.ledger)[1]
            else:
                writer = IcebergWriter(engine)
            if not policy_of(s, name).fold:
                writer.append(name, [NewMessage(append_time=Instant(at - 1), key=b"beside", value=b"v")], policy_of(s, name))
            else:
                seq = max((change.server_seq for change in s.documents.changes(name, "one")), default=0) + 1
                s.documents.add(name, typed("one", seq, seq), ledger=s.ledger.next_identity(name))

    def status(self, operation: str) -> None:
        """As a person looks: what cannot be read has a named error."""
        with self._opened(operation) as (s, _), suppress(LifecycleError):
            views.status(s, None)

    def finish(self, operation: str, *, seconds_late: int = 0) -> list[str]:
        """As a user goes on: the same command, until it finds nothing to do. How each ended. `seconds_late`: of the first alone."""
        ended: list[str] = []
        while not ended or (ended[-1] in ("published", "starved") and len(ended) < _RUNS):
            try:
                ended.append(self.run(operation, seconds_late=seconds_late))
            except LifecycleError as error:
                ended.append(error.code)
            if seconds_late:
                seconds_late, ended = 0, []
        return ended

    def look(self, operation: str) -> dict[str, Any]:
        """What there is to see after all runs, names made anew and times left out."""
        name = name_of(operation)
        with self._opened(operation) as (s, _):
            of_lake = Tables()
            there = OPERATIONS[operation].on_records or of_lake.pointers.one((name.namespace, name.table()))
            status = views.status(s, [name] if there else None)
            outcomes = [one for _, one in s.ledger.history(name)]
            found = {
                "rows": _plain(seen(s, name, of_lake)),
                "tables": _tables(name, of_lake),
                "outcomes": _ended(outcomes),
                "open": [] if (record := s.ledger.open_plan(name)) is None else [record.state],
                "erasures": sorted(one.state for one in s.ledger.erasures(limit=9)),
                "status": _plain(status),
            }
        return {**found, **self._left(operation)}

    def _left(self, operation: str) -> dict[str, Any]:
        """What a reclaim far from now says, and which files are there that it would not take and no table names."""
        name = name_of(operation)
        # A view has a file of metadata each time that it is told, and keeps them all.
        there = {path for path in self.warehouse.rglob("*") if path.is_file() and not path.name.endswith((".crc", ".gz.metadata.json"))}
        if OPERATIONS[operation].on_records:
            return {"left": Counter(told_path(path.relative_to(self.warehouse)) for path in there)}
        with self._opened(operation, FAR) as (s, _):
            of_lake = Tables()
            tables = {kind: location for kind in KINDS if (location := of_lake.pointers.one((name.namespace, name.table(kind))))}
            if not tables:
                return {"left": {}, "takeable": None}
            try:
                plan = preview(s, name, as_of=FAR, work="reclaim")
            except LifecycleError as error:
                return {"left": {error.code: 1}, "takeable": None}
            taken: set[Path] = set()
            named: set[Path] = set()
            for kind in tables:
                folder = local_path(of_lake.load(name, kind=kind).location())
                taken |= {folder / file for one in plan.forgets if one.table == kind for files in one.files for file in files.files}
                named |= _named(of_lake, name, kind)
            left = Counter(told_path(path.relative_to(self.warehouse)) for path in there - taken - named)
        return {"left": dict(left), "takeable": len(taken - named)}

    def _fill(self, operation: str) -> None:
        url = self.address.url(self.database)
        migrate_ledger(url)
        clock = StandingClock(Instant(0))
        with open_ledger(url, clock=clock) as ledger:
            asked = OPERATIONS[operation]
            made = _Maker(ledger=ledger, clock=clock, folder=self.warehouse, asked=asked)
            work = case_of(operation).make(made, name_of(operation))
        (self.folder / "work.json").write_text(json.dumps(work_text(work)), encoding="utf-8")

    @contextmanager
    def _opened(self, operation: str, at: Instant | None = None) -> Iterator[tuple[Services, Instant]]:
        at = case_of(operation).at if at is None else at
        with open_ledger(self.address.url(self.database), clock=StandingClock(at)) as ledger:
            yield _services(OPERATIONS[operation], self.warehouse, ledger), at

    def _database(self, create: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)", create)

    def _execute(self, *statements: str, database: str = "postgres") -> None:
        with self.address.connect(database) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def _services(asked: Asked, warehouse: Path, ledger: Ledger) -> Services:
    if asked.on_records:
        return replace(record_logs(warehouse, ledger)[0], key_secret=lambda _: SECRET)
    return services(lambda: spark_session("faults"), ledger, of_lake=Tables())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What a case is made with."""

    ledger: Ledger
    clock: StandingClock
    folder: Path
    asked: Asked

    @property
    def session(self) -> SparkSession:
        return spark_session("faults")

    @property
    def s(self) -> Services:
        return _services(self.asked, self.folder, self.ledger)

    @property
    def writer(self) -> MessageWriter:
        if self.asked.on_records:
            return record_logs(self.folder, self.ledger)[1]
        return IcebergWriter(lambda: self.session if self.asked.by_sql else engine())


def _landing(m: Maker, name: TopicName) -> Work:
    """Two files are to be taken; a line of each is none."""
    create_topic(m.s, name, partitions=2, settings={"segment_max_seconds": 3})
    folder = m.folder.parent / "landing"
    folder.mkdir(exist_ok=True)
    for file in ("one", "two"):
        lines = [json.dumps({"key": f"{file} {at}", "at": at, "value": "v" * 50}) for at in range(6)]
        (folder / f"{file}.jsonl").write_text("\n".join([*lines[:3], "no message", *lines[3:], ""]), encoding="utf-8")
    return "message_cleaner"  # what is asked is no plan: the word stands for it, and nobody reads it


def _ingest(s: Services, landing: Path) -> str:
    intake = Intake(
        topics=s.topics, ledger=s.ledger, server={}, session=lambda: spark_session("faults"),
        end_offsets=lambda name: newest_state(Tables().load(name)).end_offsets,
    )  # fmt: skip
    mapping = FieldMapping(key="key", value="value", append_time="at", append_time_unit="s")
    options = IngestOptions(mapping=mapping, allow_implausible_times=True)
    return "published" if take_files(intake, name_of(INGEST), str(landing), options).files else "no_op"


def _erasure_of_records(m: Maker, name: TopicName) -> Work:
    create_topic(m.s, name, partitions=1, settings={})
    for keys in ((ERASED, b"a"), (ERASED, b"b", ERASED), (b"c",)):
        new = [NewMessage(append_time=Instant(SECOND), key=key, value=b"v") for key in keys]
        m.writer.append(name, new, policy_of(m.s, name))
    m.s.ledger.add_erasure(name.topic, SECRET.digest(ERASED), topics=[name], forbid=False, requested_by="bert", why="asked by letter")
    return EraseKey(request_id=name.topic)


_OF_OURS = {INGEST: Case(make=_landing), "files_erasure": Case(make=_erasure_of_records)}


def case_of(operation: str) -> Case:
    case = OPERATIONS[operation].case
    return _OF_OURS[case] if case in _OF_OURS else CASES[case]


def told_path(path: Path) -> str:
    """The same whenever it is made: what is named anew left out."""
    return _NUMBERS.sub("*", _NAMED_ANEW.sub("*", str(path)))


def _carried_out(s: Services, name: TopicName, work: Work, at: Instant) -> str:
    """What the command of the work does; how it ended."""
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


def _ended(outcomes: Iterable[Outcome]) -> list[str]:
    """Those that changed something, or that a person must see. How many reclaims it takes, where one has died among its files, is no difference."""
    told = [one for one in outcomes if one.name in ("published", "failed", "blocked")]
    reclaims = {f"{one.operation} {one.name}" for one in told if one.operation == "reclaim"}
    others = [
        f"{one.operation} {one.name} {sorted(one.removed)} {one.markers} {one.restored}" for one in told if one.operation != "reclaim"
    ]
    return sorted([*reclaims, *others])


def _tables(name: TopicName, of_lake: Tables) -> dict[str, Any]:
    """By kind: the refs, and what each snapshot of main is that this reader can walk to."""
    found = {}
    for kind in KINDS:
        if of_lake.pointers.one((name.namespace, name.table(kind))) is not None:
            document = (
                of_lake.document(name, kind=kind)
                if not kind
                else of_lake.at((name.namespace, name.table(kind)), of_lake.location(name, kind=kind))
            )
            refs = sorted(_NAMED_ANEW.sub("*", ref) for ref in document.content.get("refs") or {})
            main = [summary.get("operation") for summary in document.summaries()]
            # A plan of documents that died after its snapshots' commit is planned again, and what it made stays.
            found[kind or "log"] = {"refs": refs, "main": [one for one, _ in groupby(main)] if kind == SNAPSHOTS else main}
    return found


def _named(of_lake: Tables, name: TopicName, kind: str) -> set[Path]:
    """Every file that the table's metadata names, itself and its own past included."""
    table = of_lake.load(name, kind=kind)
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    found |= {file.statistics_path for file in table.metadata.statistics}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)}
    return {local_path(one) for one in found}


def _plain(found: Any) -> Any:
    """Without ids, times and snapshots; what was hidden, in bytes, differs by what a stage has left to reclaim."""
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items() if key not in ("hidden_bytes", "snapshot_id", "last_run", "looked_at")}
    if isinstance(found, list | tuple):
        return [_plain(one) for one in found]
    return _NAMED_ANEW.sub("*", found) if isinstance(found, str) else found


# What is not compared where it is no difference: how much a reclaim would take is a figure; a plan that did not see what a writer appended
# leaves it to the next, so that there are two; what a catalog of before has lost is removed a second time.
_NOT_COMPARED = {
    "": ("takeable",),
    "writer": ("takeable", "outcomes", "tables", "ended"),
    "older": ("takeable", "outcomes"),
}


def differences(found: Mapping[str, Any], undisturbed: Mapping[str, Any], *, fault: str = "") -> list[str]:
    """Where the two are not the same, in a line each."""
    left_out = _NOT_COMPARED.get(fault, _NOT_COMPARED[""])
    if fault == "clock":
        found, undisturbed = _without_times(found), _without_times(undisturbed)
    return [
        line
        for part in undisturbed
        if part not in left_out
        for line in list(_apart(part, json.loads(json.dumps(found.get(part), default=str)), undisturbed[part]))[:_TOLD]
    ]


def _without_times(found: Any) -> Any:
    """What a run writes by a clock that stands behind has its time: markers, and how long they stay."""
    if isinstance(found, Mapping):
        return {key: _without_times(value) for key, value in found.items() if key not in ("append_time", "expires_at")}
    return [_without_times(one) for one in found] if isinstance(found, list) else found


def _apart(where: str, found: Any, undisturbed: Any) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(undisturbed, dict):
        for key in sorted({*found, *undisturbed}):
            yield from _apart(f"{where}.{key}", found.get(key), undisturbed.get(key))
    elif isinstance(found, list) and isinstance(undisturbed, list) and len(found) == len(undisturbed):
        for at, (one, other) in enumerate(zip(found, undisturbed, strict=True)):
            yield from _apart(f"{where}[{at}]", one, other)
    elif found != undisturbed:
        yield f"{where}: {_short(found)} where an undisturbed run has {_short(undisturbed)}"


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) < 600 else f"{text[:600]} ..."
