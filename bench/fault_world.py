"""The small lakes of `bench faults`: one topic for each operation, made once and restored before each run; and the comparison of results.

A lake is a folder and one database for the catalog and the ledger, both copied whole. The folder has the same place and the database the
same name each time, because tables name their files by whole paths.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.ledgers import StandingClock
from tests.spark.documents import typed

from bench.fault_cases import FAR
from bench.fault_lake import SECOND, record_logs, seen, work_of, work_text
from bench.fault_operations import INGEST, OPERATIONS, OnLake, carried_out, case_of, ingest, name_of, services_of
from lifecycle_local import postgres
from lifecycle_local.layout import Layout
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.status import status as status_of
from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.ports import MessageWriter
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import KINDS, SNAPSHOTS
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.writer import IcebergWriter

# A run that published is asked again until it finds nothing; a plan may leave more to the next.
_RUNS = 4
# The number of differences to report in each part.
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
        """Point this process and its children to this lake."""
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
        """Make the template of the operation's lake, and store the requested work with it."""
        self._database(f"CREATE DATABASE {self.database}")
        shutil.rmtree(self.warehouse, ignore_errors=True)
        self.warehouse.mkdir(parents=True)
        in_process(lambda: self._fill(operation))
        shutil.rmtree(self.template(operation), ignore_errors=True)
        self.template(operation).mkdir(parents=True)
        (self.folder / "work.json").rename(self.template(operation) / "work.json")
        self.warehouse.rename(self.template(operation) / "lake")
        template = f"{self.database}_{operation}"
        # The Java that made it is still connected.
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.database}'")
        self._execute(f"DROP DATABASE IF EXISTS {template} WITH (FORCE)", f"ALTER DATABASE {self.database} RENAME TO {template}")

    def restore(self, operation: str) -> None:
        """Restore the lake from its template."""
        shutil.rmtree(self.warehouse, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.template(operation) / "lake"), str(self.warehouse)], check=True)
        self._database(f"CREATE DATABASE {self.database} TEMPLATE {self.database}_{operation}")

    def files(self, operation: str) -> dict[str, Path]:
        """Return the files of the template by names that are the same in each template."""
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
        """Remove the operation's databases and template."""
        self._execute(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in (self.database, f"{self.database}_{operation}")))
        shutil.rmtree(self.template(operation))

    def run(self, operation: str, *, seconds_late: int = 0) -> str:
        """Run the operation's own command in a fresh process, and return how it ended.

        `seconds_late`: how far the process's clock and its as-of are behind."""
        with self._opened(operation, Instant(case_of(operation).at - seconds_late * SECOND)) as (s, at):
            if operation == INGEST:
                return ingest(s, self.folder / "landing")
            work = work_of(json.loads((self.template(operation) / "work.json").read_text(encoding="utf-8")))
            return carried_out(s, name_of(operation), work, at)

    def append(self, operation: str) -> None:
        """One message more, of a key of its own; of a topic of documents one change."""
        with self._opened(operation) as (s, at):
            name = name_of(operation)
            if OPERATIONS[operation].on_records:
                writer: MessageWriter = record_logs(self.warehouse, s.ledger)[1]
            else:
                writer = IcebergWriter(engine_of_process)
            if not policy_of(s, name).fold:
                writer.append(name, [NewMessage(append_time=Instant(at - 1), key=b"beside", value=b"v")], policy_of(s, name))
            else:
                seq = max((change.server_seq for change in s.documents.changes(name, "one")), default=0) + 1
                s.documents.add(name, typed("one", seq, seq), ledger=s.ledger.next_identity(name))

    def status(self, operation: str) -> None:
        """As a person looks: what cannot be read has a named error."""
        with self._opened(operation) as (s, _), suppress(LifecycleError):
            status_of(s, None)

    def finish(self, operation: str, *, seconds_late: int = 0) -> list[str]:
        """Continue as a user does: repeat the command until it finds nothing to do. Return how each run ended.

        If an error asks for a later time, the next run is later. `seconds_late`: of the first run only."""
        ended: list[str] = []
        late = seconds_late
        while not ended or (ended[-1] in ("published", "starved", "CommitLost") and len(ended) < _RUNS):
            try:
                ended.append(self.run(operation, seconds_late=late))
            except LifecycleError as error:
                ended.append(error.code)
            late = -1 if ended[-1] == "CommitLost" else min(late, 0)
            if seconds_late:
                seconds_late, ended = 0, []
        return ended

    def look(self, operation: str) -> dict[str, Any]:
        """Return everything visible after all runs, without times and without the parts of names that differ from run to run."""
        name = name_of(operation)
        with self._opened(operation) as (s, _):
            of_lake = Tables()
            there = OPERATIONS[operation].on_records or of_lake.pointers.one((name.namespace, name.table()))
            status = status_of(s, [name] if there else None)
            outcomes = [one for _, one in s.ledger.history(name)]
            found = {
                "rows": _plain(seen(s, name, of_lake)),
                "tables": _tables(name, of_lake),
                "outcomes": _ended(outcomes),
                "open": [] if (record := s.ledger.open_plan(name)) is None else [record.state],
                "erasures": sorted(one.state for one in s.ledger.erasures(limit=9)),
                "status": _plain(as_json(status)),
            }
        return {**found, **self._left(operation)}

    def _left(self, operation: str) -> dict[str, Any]:
        """Return the result of a reclaim in the far future, and the leftover files that it would not remove and that no table names.

        Leftover files of tables that the catalog does not have are counted separately."""
        name = name_of(operation)
        # A view gets a new metadata file each time it is written, and keeps all of them.
        there = {path for path in self.warehouse.rglob("*") if path.is_file() and not path.name.endswith((".crc", ".gz.metadata.json"))}
        if OPERATIONS[operation].on_records:
            return {"left": Counter(told_path(path.relative_to(self.warehouse)) for path in there)}
        lost = self._of_no_table(there)
        there -= lost
        # A run that died while it created a table leaves metadata that no catalog has. Such files have no messages, so they do not count.
        lost = {path for path in lost if any(one.suffix == ".parquet" for one in lost if one.is_relative_to(self._table_folder(path)))}
        found = {"lost": Counter(told_path(path.relative_to(self.warehouse)) for path in lost)}
        with self._opened(operation, FAR) as (s, _):
            of_lake = Tables()
            tables = {kind: location for kind in KINDS if (location := of_lake.pointers.one((name.namespace, name.table(kind))))}
            if not tables:
                return {**found, "left": {}, "takeable": None}
            try:
                plan = preview(s, name, as_of=FAR, work="reclaim")
            except LifecycleError as error:
                return {**found, "left": {error.code: 1}, "takeable": None}
            taken: set[Path] = set()
            named: set[Path] = set()
            for kind in tables:
                folder = local_path(of_lake.load(name, kind=kind).location())
                taken |= {folder / file for one in plan.forgets if one.table == kind for files in one.files for file in files.files}
                named |= _named(of_lake, name, kind)
            left = Counter(told_path(path.relative_to(self.warehouse)) for path in there - taken - named)
        return {**found, "left": dict(left), "takeable": len(taken - named)}

    def _of_no_table(self, files: set[Path]) -> set[Path]:
        known = {self._table_folder(local_path(location)) for _, location in Tables().pointers.all(None)}
        return {path for path in files if self._table_folder(path) not in known}

    def _table_folder(self, path: Path) -> Path:
        return self.warehouse / path.relative_to(self.warehouse).parts[0]

    def _fill(self, operation: str) -> None:
        url = self.address.url(self.database)
        migrate_ledger(url)
        clock = StandingClock(Instant(0))
        with open_ledger(url, clock=clock) as ledger:
            asked = OPERATIONS[operation]
            made = OnLake(ledger=ledger, clock=clock, folder=self.warehouse, asked=asked)
            work = case_of(operation).make(made, name_of(operation))
        (self.folder / "work.json").write_text(json.dumps(work_text(work)), encoding="utf-8")

    @contextmanager
    def _opened(self, operation: str, at: Instant | None = None) -> Iterator[tuple[Services, Instant]]:
        at = case_of(operation).at if at is None else at
        with open_ledger(self.address.url(self.database), clock=StandingClock(at)) as ledger:
            yield services_of(OPERATIONS[operation], self.warehouse, ledger), at

    def _database(self, create: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)", create)

    def _execute(self, *statements: str, database: str = "postgres") -> None:
        with self.address.connect(database) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def told_path(path: Path) -> str:
    """Return the path without the parts that differ from run to run."""
    return _NUMBERS.sub("*", _NAMED_ANEW.sub("*", str(path)))


def _ended(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the outcomes that changed something or that a person must see.

    The number of reclaims is no difference, because a reclaim that died among its files needs another one."""
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
                else of_lake.at((name.namespace, name.table(kind)), of_lake.metadata_location(name, kind=kind))
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


# Results that may differ without a fault. The size of a future reclaim is only a figure. A plan that did not see a writer's append leaves
# it to the next plan: there are then two plans, and markers get numbers before or after the append. With an earlier catalog, a second run
# removes lost messages again, and creates lost tables again.
_NOT_COMPARED = {
    "": ("takeable",),
    "writer": ("takeable", "outcomes", "tables", "ended"),
    "older": ("takeable", "outcomes", "lost"),
}


def differences(found: Mapping[str, Any], undisturbed: Mapping[str, Any], *, fault: str = "") -> list[str]:
    """Return the differences between the two, one line each."""
    left_out = _NOT_COMPARED.get(fault, _NOT_COMPARED[""])
    if fault in ("clock", "older"):
        found, undisturbed = _without(_TIMES, found), _without(_TIMES, undisturbed)
    if fault in ("away", "half"):
        # A gate that misses the file reports that, and the next run makes a new plan.
        found = {**found, "outcomes": [one for one in found.get("outcomes", ()) if one.split()[1] != "blocked"]}
    if fault == "writer":
        found, undisturbed = _in_any_order(found), _in_any_order(undisturbed)
    return [
        line
        for part in undisturbed
        if part not in left_out
        for line in list(_apart(part, json.loads(json.dumps(found.get(part), default=str)), undisturbed[part]))[:_TOLD]
    ]


def _in_any_order(found: Mapping[str, Any]) -> dict[str, Any]:
    """The log's messages without their numbers: whether a marker or what a writer appended came first is no difference."""
    rows = found.get("rows") or {}
    if "log" not in rows:
        return dict(found)
    return {**found, "rows": {**rows, "log": sorted(_without(("offset",), rows["log"]), key=repr)}}


_TIMES = ("append_time", "expires_at")
"""What a run writes by a clock that stands behind, or is made again later, has its time: markers, and how long they stay."""


def _without(keys: Sequence[str], found: Any) -> Any:
    if isinstance(found, Mapping):
        return {key: _without(keys, value) for key, value in found.items() if key not in keys}
    return [_without(keys, one) for one in found] if isinstance(found, list) else found


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
