"""`lifecycle doctor`: check that every part that a run needs exists and works with the others.

The check removes everything that it creates.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from message_lifecycle.app import steps
from message_lifecycle.app.config import config_file, load_config
from message_lifecycle.app.scenario import MakeWorld, World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages, UndoPlan

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from message_lifecycle.stores.iceberg.reach import Machine

_AIRFLOW_SECONDS = 120
_CONNECTION = "spark_default"
_NO_CONNECTION = "Connection not found"
_SETTINGS_HINT = "docs/clusters.md has the settings of both files."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of checking one part.

    Attributes:
        ok: None: the part was not checked, or does not exist; `found` says why.
        seconds: The duration of the check.
    """

    part: str
    ok: bool | None
    found: str
    seconds: float = 0.0


class _CheckedPartBroken(Exception):
    """The checked part exists, but is not as it should be."""


class _CheckedPartMissing(Exception):
    """The part does not exist, so there is nothing to check."""


def examine(make_world: MakeWorld) -> Iterator[Finding]:
    """Check each part and yield its finding.

    Args:
        make_world: Builds the world of the configured lake, for a temporary topic.
    """
    configured = _check_part("settings", _settings)
    yield configured
    if not configured.ok:
        return
    yield _check_part("ledger", _ledger)
    yield (catalog := _check_part("catalog", _catalog))
    with ExitStack() as ending:
        trial = _TrialTopic(make_world, ending)
        tables = _check_part("tables", trial.tables) if catalog.ok else _skipped_finding("tables", "the catalog")
        yield tables
        yield _check_part("tasks", trial.tasks) if tables.ok else _skipped_finding("tasks", "the tables")
        # Also remove everything that was created before the check of the tables failed.
        yield _check_part("cleanup", trial.check_cleanup) if trial.has_begun else _skipped_finding("cleanup", "the tables")
    yield _check_part("Airflow", _airflow)


def _skipped_finding(part: str, first: str) -> Finding:
    return Finding(part=part, ok=None, found=f"not checked: correct {first} first")


def _check_part(part: str, check: Callable[[], str]) -> Finding:
    began = perf_counter()
    ok: bool | None = False
    try:
        found, ok = check(), True
    except _CheckedPartMissing as absent:
        found, ok = str(absent), None
    except _CheckedPartBroken as reason:
        found = str(reason)
    except LifecycleError as error:
        found = f"{error.code}: {error}"
    except Exception as error:  # noqa: BLE001  # a person needs the library's own message about a wrong setting
        found = f"{type(error).__name__}: {error}".partition("\n")[0] + f". {_SETTINGS_HINT}"
    return Finding(part=part, ok=ok, found=found, seconds=round(perf_counter() - began, 2))


def _settings() -> str:
    load_config()
    return f"{config_file()}" if config_file().is_file() else f"defaults, because {config_file()} does not exist"


def _ledger() -> str:
    from message_lifecycle.ledger import open_ledger

    with open_ledger(load_config().ledger_url) as ledger:
        ledger.now()
        return ledger.place


def _catalog() -> str:
    from message_lifecycle.stores.iceberg.catalog import Tables
    from message_lifecycle.stores.iceberg.reach import at_once, one_catalog

    if not one_catalog(Tables()):
        difference = (
            "Java (spark-defaults.conf) created a namespace that Python (.pyiceberg.yaml) does not find: the files name two catalogs"
        )
        raise _CheckedPartBroken(f"{difference}. {_SETTINGS_HINT}")
    several = ". By its configuration, the catalog commits several tables at once" if at_once() else ""
    return f"Java and Python use the same catalog{several}"


class _TrialTopic:
    """A temporary topic that goes through the steps of every operation."""

    def __init__(self, make_world: MakeWorld, ending: ExitStack) -> None:
        self._make_world, self._ending = make_world, ending
        self._at_s = 1
        self._table: Table | None = None
        self._is_made = False
        self.has_begun = False

    def tables(self) -> str:
        from message_lifecycle.stores.iceberg.catalog import Tables

        world = self._make_world({})
        self._ending.callback(world.close)
        self.has_begun = True
        self._name = name = TopicName(stream=world.scratch, topic="doctor")
        create_topic(world.services, name, partitions=1, settings={"max_removed_fraction": 1.0})
        self._is_made = True
        self._table = Tables().load(name)
        messages = [NewMessage(append_time=self._now(), key=key, value=b"v", partition=0) for key in (b"a", b"b")]
        world.writer.append(name, messages, policy_of(world.services, name))
        before = list(world.services.reader.messages(name))
        plan_id = self._published(world, RemoveMessages(positions=((0, 0),)))
        if [message.offset for message in world.services.reader.messages(name)] != [1]:
            raise _CheckedPartBroken("the run should remove the first of two messages, but the table does not have just the second")
        self._published(world, UndoPlan(plan_id=plan_id))
        if list(world.services.reader.messages(name)) != before:
            raise _CheckedPartBroken("after the undo of a removal, the table does not have the same messages as before")
        (self._file, *_) = world.services.reader.log(name).segments[0].files
        return f"created a topic at {self._table.location()}, removed a message, and brought it back"

    def _now(self) -> Instant:
        self._at_s += 1
        return Instant(self._at_s * MICROS_PER_SECOND)

    def _published(self, world: World, request: RemoveMessages | UndoPlan) -> str:
        at = self._now()
        world.set_now(at)
        outcome = steps.run(world.services, self._name, as_of=at, work=request, approver=lambda *_: (True, "doctor", "a trial"))
        if outcome.name != "published" or outcome.plan_id is None:
            raise _CheckedPartBroken(f"the run ended as {outcome.name}: {outcome.detail}")
        return outcome.plan_id

    def tasks(self) -> str:
        from message_lifecycle.stores.iceberg import reach
        from message_lifecycle.stores.iceberg.tasks import Store

        own, at_once = reach.this_machine(), reach.runs_tasks_here()
        if at_once is not None:
            return f"this process runs {at_once} tasks at once (spark.master)"
        assert self._table is not None
        try:
            found, there = reach.machines(Store.of(self._table), f"{self._table.location()}/{self._file}")
        except LifecycleError:
            raise
        except Exception as error:  # Spark or a library on a machine without a package: report with advice
            raise _CheckedPartBroken(_with_advice(str(error), own.python)) from error
        wrong = [difference for one in found if (difference := _describe_difference(own, one))]
        if wrong:
            raise _CheckedPartBroken("; ".join(wrong))
        if len(found) < there:
            raise _CheckedPartBroken(f"only {len(found)} of {there} executors answered: repeat the command when nothing else runs there")
        return f"{len(found)} executors have this package, Python {own.python} and its packages, and read the store"

    def check_cleanup(self) -> str:
        from message_lifecycle.stores.iceberg.table_files import list_files

        self._ending.close()
        if self._table is None and self._is_made:
            raise _CheckedPartBroken("the topic is dropped, but Python could not read it before, so its files were not checked")
        if self._table is None:
            raise _CheckedPartMissing("no topic was created")
        if left := [file.name for file in list_files(self._table.io, self._table.location())]:
            raise _CheckedPartBroken(
                f"{len(left)} files are left below {self._table.location()}, for example {left[0]}. Allow the store's keys to delete"
            )
        return "the topic and all its files are removed"


def _describe_difference(own: Machine, other: Machine) -> str:
    if other.python != own.python:
        return f"{other.name} has Python {other.python}, here it is {own.python}: set LIFECYCLE_PYTHON there, or spark.pyspark.python"
    packages = [
        f"{name} {version} (here {own.versions[name]})" for name, version in other.versions.items() if version != own.versions[name]
    ]
    if packages:
        return f"{other.name} has {', '.join(packages)}: make an archive with `lifecycle cluster pack` and name it in spark.archives"
    return f"{other.name} cannot read the store: {other.refused}" if other.refused else ""


def _with_advice(said: str, python: str) -> str:
    """Return Spark's error about the executors' Python, together with the remedy."""
    if "PYTHON_VERSION_MISMATCH" in said:
        return (
            f"the executors have another Python than {python}, which this machine has: set LIFECYCLE_PYTHON there, or spark.pyspark.python"
        )
    if found := re.search(r"No module named '?([\w.]+)|Cannot run program \"([^\"]+)|exec: ([^\s:]+): not found", said):
        module, *programs = found.groups()
        if module is None:
            program = next(filter(None, programs))
            return f"the executors have no {program}: set LIFECYCLE_PYTHON there, or spark.pyspark.python, to their Python {python}"
        return f"the executors have no {module}: make an archive with `lifecycle cluster pack` and name it in spark.archives"
    causes = [line for line in said.splitlines() if re.search(r"\w(?:Exception|Error): ", line)] or [said]
    return f"a task failed: {causes[-1].strip().removeprefix('Caused by: ')}".partition("\n")[0]


def _airflow() -> str:
    """Check Airflow with its own command, because the package does not import Airflow."""
    from message_lifecycle.stores.iceberg.reach import master

    if "AIRFLOW_HOME" not in os.environ:
        raise _CheckedPartMissing("AIRFLOW_HOME is not set; run the command on the machine of Airflow's workers")
    command = [sys.executable, "-m", "airflow", "connections", "get", _CONNECTION, "--output", "json"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_AIRFLOW_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _CheckedPartBroken(f"Airflow did not return the connection {_CONNECTION} within {_AIRFLOW_SECONDS} s") from None
    if answer.returncode:
        said = [line for line in (answer.stderr or answer.stdout).splitlines() if line.strip()] or ["no output"]
        if _NO_CONNECTION in answer.stderr + answer.stdout:
            raise _CheckedPartBroken(f"Airflow has no connection {_CONNECTION}: create one of type Spark")
        raise _CheckedPartBroken(f"Airflow of {os.environ['AIRFLOW_HOME']} did not answer: {said[-1]}")
    (connection,) = json.loads(answer.stdout[answer.stdout.index("[") :])
    named = _master_of(connection)
    if master() not in (None, named):
        raise _CheckedPartBroken(
            f"the connection {_CONNECTION} names {named}, but the command line's spark.master is {master()}: use the same master in both"
        )
    return f"the connection {_CONNECTION} names {named}"


def _master_of(connection: Mapping[str, object]) -> str:
    """Return the master's address, built as the `spark_submit` hook of Airflow's Spark provider builds it."""
    kind, host, port = connection["conn_type"], str(connection["host"] or ""), connection["port"]
    named = host if kind == "spark" and host and ("://" in host or not port) else f"{kind}://{host}"
    return f"{named}:{port}" if port else named
