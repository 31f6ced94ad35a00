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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.head_lake.cases import CASES, FAR, grant
from tests.head_lake.world import STREAM, seen, services, work_of, work_text
from tests.ledgers import StandingClock

from message_lifecycle.app import steps, views
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.services import Services
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.local import postgres
from message_lifecycle.local.layout import Layout
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.ports import MessageWriter
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import KINDS
from message_lifecycle.stores.iceberg.session import end_session, spark_session
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter

OPERATIONS: Mapping[str, str] = {
    "expiry": "cleaner",
    "ttl": "cleaner_markers",
    "ttl_past_lag": "cleaner_past_lag",
    "limits": "retention",
    "request": "request",
    "request_view": "request_view",
    "key_purge": "purge",
    "key_purge_view": "purge_view",
    "sweep": "marker_generation",
    "first_compaction": "first_compaction",
    "compaction": "compaction",
    "purge_compacted": "purge_compacted",
    "documents": "snapshot_with_purge",
    "quarantine": "quarantine",
    "erasure": "erasure",
    "reclaim": "reclaim",
    "topic_delete": "topic_delete",
    "reclaim_deleted": "reclaim_deleted",
    "undo": "undo_cleaner",
    "undo_view": "undo_view",
    "undo_documents": "undo_documents",
    "undo_quarantine": "undo_quarantine",
    "undo_topic_delete": "undo_topic_delete",
}
"""What is killed, by name: the case of `tests/head_lake/cases.py` that says how its topic comes about, and what is asked of it."""
DATABASE = "faults"
# A run that published is asked again until it finds nothing; a plan may leave more to the next.
_RUNS = 4
_NAMED_ANEW = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![a-z])[0-9a-f]{12,}|\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One lake at one place. `folder`: warehouse, configuration and templates; `layout`: the embedded default, whose server serves."""

    layout: Layout
    folder: Path
    address: postgres.Address

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
            new.write_text(re.sub(rf"(:{self.address.port})/\w+", rf"\1/{DATABASE}", text), encoding="utf-8")
        os.environ |= {"PYICEBERG_HOME": str(self.folder), "SPARK_CONF_DIR": str(conf), "LIFECYCLE_LEDGER_URL": self.address.url(DATABASE)}

    def make(self, operation: str, in_process: Callable[[Callable[[], None]], None]) -> None:
        """The template of the operation's lake, with what is asked of it beside."""
        self._database(f"CREATE DATABASE {DATABASE}")
        shutil.rmtree(self.warehouse, ignore_errors=True)
        self.warehouse.mkdir(parents=True)
        in_process(lambda: self._fill(operation))
        shutil.rmtree(self.template(operation), ignore_errors=True)
        self.template(operation).mkdir(parents=True)
        (self.folder / "work.json").rename(self.template(operation) / "work.json")
        self.warehouse.rename(self.template(operation) / "lake")
        template = f"{DATABASE}_{operation}"
        self._execute(f"DROP DATABASE IF EXISTS {template} WITH (FORCE)", f"ALTER DATABASE {DATABASE} RENAME TO {template}")

    def restore(self, operation: str) -> None:
        """The lake as it was made."""
        shutil.rmtree(self.warehouse, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.template(operation) / "lake"), str(self.warehouse)], check=True)
        self._database(f"CREATE DATABASE {DATABASE} TEMPLATE {DATABASE}_{operation}")

    def forget(self) -> None:
        """All of it goes."""
        names = [DATABASE, *(f"{DATABASE}_{operation}" for operation in OPERATIONS)]
        self._execute(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in names))
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, operation: str) -> str:
        """The operation's own command, by a process that has done nothing else; how it ended."""
        with self._opened(operation) as (s, at):
            work = work_of(json.loads((self.template(operation) / "work.json").read_text(encoding="utf-8")))
            outcome = steps.run(s, name_of(operation), as_of=at, approver=grant, work=work, requested_by="bert")
            return outcome.name

    def finish(self, operation: str) -> list[str]:
        """As a user goes on: the same command, until it finds nothing to do. How each ended."""
        ended: list[str] = []
        while not ended or (ended[-1] in ("published", "starved") and len(ended) < _RUNS):
            try:
                ended.append(self.run(operation))
            except LifecycleError as error:
                ended.append(error.code)
        return ended

    def look(self, operation: str) -> dict[str, Any]:
        """What there is to see after all runs, names made anew and times left out."""
        name = name_of(operation)
        with self._opened(operation) as (s, _):
            of_lake = Tables()
            status = views.status(s, [name] if of_lake.pointers.one((name.namespace, name.table())) else None)
            outcomes = [one for _, one in s.ledger.history(name)]
            found = {
                "rows": seen(s, name, of_lake),
                "tables": _tables(name, of_lake),
                "outcomes": _ended(outcomes),
                "open": [] if (record := s.ledger.open_plan(name)) is None else [record.state],
                "uncleared": len(s.ledger.uncleared(name)),
                "erasures": sorted(one.state for one in s.ledger.erasures(limit=9)),
                "status": _plain(status),
            }
        return {**found, **self._left(operation)}

    def _left(self, operation: str) -> dict[str, Any]:
        """What a reclaim far from now says, and which files are there that it would not take and no table names."""
        name = name_of(operation)
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
            there = {path for path in self.warehouse.rglob("*") if path.is_file() and not path.name.endswith(".crc")}
            left = Counter(_NUMBERS.sub("*", _NAMED_ANEW.sub("*", str(path.relative_to(self.warehouse)))) for path in there - taken - named)
        return {"left": dict(left), "takeable": len(taken - named)}

    def _fill(self, operation: str) -> None:
        url = self.address.url(DATABASE)
        migrate_ledger(url)
        clock = StandingClock(Instant(0))
        session = spark_session("faults")
        session.sql("SHOW NAMESPACES IN lake")
        with open_ledger(url, clock=clock) as ledger:
            made = _Maker(session=session, ledger=ledger, clock=clock, folder=self.folder)
            work = CASES[OPERATIONS[operation]].make(made, name_of(operation))
        (self.folder / "work.json").write_text(json.dumps(work_text(work)), encoding="utf-8")
        end_session()

    @contextmanager
    def _opened(self, operation: str, at: Instant | None = None) -> Iterator[tuple[Services, Instant]]:
        at = CASES[OPERATIONS[operation]].at if at is None else at
        with open_ledger(self.address.url(DATABASE), clock=StandingClock(at)) as ledger:
            yield services(lambda: spark_session("faults"), ledger, of_lake=Tables()), at

    def _database(self, create: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)", create)

    def _execute(self, *statements: str) -> None:
        with self.address.connect("postgres") as connection:
            for statement in statements:
                connection.execute(statement.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What a case is made with."""

    session: SparkSession
    ledger: Ledger
    clock: StandingClock
    folder: Path

    @property
    def s(self) -> Services:
        return services(lambda: self.session, self.ledger)

    @property
    def writer(self) -> MessageWriter:
        return IcebergWriter(lambda: self.session)


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
            found[kind or "log"] = {"refs": refs, "main": [summary.get("operation") for summary in document.summaries()]}
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


def differences(found: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """Where the two are not the same, in a line each. How much a reclaim would take is a figure, and no difference."""
    return [
        f"{part}: {_short(found.get(part))} where an undisturbed run has {_short(undisturbed.get(part))}"
        for part in undisturbed
        if part != "takeable" and found.get(part) != undisturbed.get(part)
    ]


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) < 600 else f"{text[:600]} ..."
