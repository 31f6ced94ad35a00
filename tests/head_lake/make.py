"""Make the fixture: `python -m tests.head_lake.make [CASE ...]`, on the embedded default of this clone; some minutes. See README.md."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from message_lifecycle.app import embedded, steps
from message_lifecycle.app.services import Services
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.local.layout import Layout, find_layout
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.ports import MessageWriter
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.writer import IcebergWriter
from tests.head_lake import archive
from tests.head_lake.avro import uncompress
from tests.head_lake.cases import CASES, FAR, LATER, Case, grant
from tests.head_lake.world import STREAM, past, record_logs, seen, services, work_text
from tests.ledgers import StandingClock
from tests.spark.lake import tables


class Died(BaseException):
    """What a run meets where a kill would end it: nothing of the project catches it."""


@dataclass(slots=True)
class _Made:
    """What the cases are made with, on tables or on logs of single records; `ends_at` is the step at which the next run dies."""

    session: SparkSession
    clock: StandingClock
    ledger: Ledger
    folder: Path
    ends_at: str | None = None
    s: Services = field(init=False)
    writer: MessageWriter = field(init=False)

    def work_on(self, case: Case) -> None:
        if case.on_records:
            self.s, self.writer = record_logs(self.folder, self.ledger)
        else:
            self.s, self.writer = services(lambda: self.session, self.ledger, steps=self.step), IcebergWriter(lambda: self.session)

    def step(self, name: str) -> None:
        if name == self.ends_at:
            self.ends_at = None
            raise Died(name)


def main(*chosen: str) -> None:
    layout = find_layout()
    embedded.up(layout, with_airflow=False)
    folder = layout.state / "head_lake_made"
    shutil.rmtree(folder, ignore_errors=True)
    warehouse = archive.padded(folder)
    warehouse.mkdir(parents=True)
    _configure(layout, folder, warehouse)
    session = spark_session("head_lake")
    session.sql("SHOW NAMESPACES IN lake")
    archive.forget(tables().catalog)
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate_ledger(url)
    clock = StandingClock(Instant(0))
    with open_ledger(url, clock=clock) as ledger:
        made = _Made(session=session, clock=clock, ledger=ledger, folder=warehouse)
        expected = _all(made, warehouse, chosen or tuple(CASES))
        ledger.backup(folder / "ledger.gz")
    uncompress(warehouse)
    archive.save(tables().catalog, warehouse, folder / "ledger.gz", expected)
    session.stop()


def _configure(layout: Layout, folder: Path, warehouse: Path) -> None:
    """This process's lake lies in the warehouse, whose path is as long as that of every restored one."""
    conf = folder / "spark"
    shutil.copytree(layout.spark_conf, conf)
    for old, new in ((layout.state / ".pyiceberg.yaml", folder / ".pyiceberg.yaml"), (conf / "spark-defaults.conf",) * 2):
        text = old.read_text(encoding="utf-8")
        assert str(layout.warehouse) in text
        new.write_text(text.replace(str(layout.warehouse), str(warehouse)), encoding="utf-8")
    os.environ |= {"PYICEBERG_HOME": str(folder), "SPARK_CONF_DIR": str(conf)}


def _all(made: _Made, warehouse: Path, chosen: tuple[str, ...]) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    topics: dict[str, Any] = {}
    for title in chosen:
        case = CASES[title]
        made.work_on(case)
        told: dict[str, Any] = {}
        # The one that went to its end comes first: it says what the others must come to.
        for state in sorted(case.states, key=lambda state: state not in ("published", "undone")):
            name = TopicName(stream=STREAM, topic=f"{title}.{state}")
            print(name, flush=True)
            topics[name.topic] = {"case": title, "state": state, **_one(made, case, name, state, warehouse, told)}
        cases[title] = told
    return {"cases": cases, "topics": topics}


def _one(m: _Made, case: Case, name: TopicName, state: str, warehouse: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The topic in its state; what it is about is added to `told`, and must be the same in every state."""
    m.clock.now = Instant(0)
    work = case.make(m, name)
    if case.at == FAR:
        uncompress(warehouse)  # the plan names files with their sizes
    m.clock.now = case.at
    _same(told, "before", _seen(m, case, name))
    plan_id = _bring(m, case, name, state, work)
    if state == "undone":
        m.clock.now = LATER
        outcome = steps.run(m.s, name, as_of=LATER, approver=grant, work=UndoPlan(plan_id=plan_id))
        assert outcome.name == "published", outcome
    now = _seen(m, case, name)
    if state in ("unverified", "published"):
        _same(told, "after", now)
    elif state == "undone":
        _same(told, "undone", now)
    elif state not in case.halfway:
        # What is staged is in the archive: no reader of the topic sees it there.
        _same(told, "before", {**now, "archive": []} if case.on_records else now)
    record = m.s.ledger.record(plan_id)
    return {
        "plan_id": plan_id,
        "format": record.plan.format,
        "operation": record.plan.operation,
        "work": work_text(work),
        "as_of": case.at,
        "now": m.clock.now,
        "seen": now,
        "outcome": None if record.outcome is None else record.outcome.name,
    }


def _seen(m: _Made, case: Case, name: TopicName) -> dict[str, Any]:
    found = seen(m.s, name)
    return {**found, "past": past(name)} if case is CASES["reclaim"] else found


def _same(told: dict[str, Any], when: str, found: Any) -> None:
    found = json.loads(json.dumps(found))
    assert told.setdefault(when, found) == found, (when, told[when], found)


def _bring(m: _Made, case: Case, name: TopicName, state: str, work: Any) -> str:
    """The plan's id."""
    record = steps.plan(m.s, name, as_of=case.at, work=work, requested_by="bert")
    plan_id = record.plan.plan_id
    assert record.outcome is None and not record.plan.is_empty, record
    if state == "open":
        return plan_id
    steps.stage(m.s, plan_id)
    steps.mark(m.s, plan_id)
    if state == "staged":
        return plan_id
    report = steps.gate(m.s, plan_id)
    assert report.judgement == ("needs_approval" if case.asks else "passed"), (name, report)
    if state in ("waiting", "passed"):
        return plan_id
    if case.asks:
        steps.approve(m.s, plan_id, granted=True, by="ada", text="as expected")
    if state == "approved":
        return plan_id
    with _dying(m, case.halfway.get(state)):
        steps.publish(m.s, plan_id)
    if state not in case.halfway and state != "unverified":
        outcome = steps.verify(m.s, plan_id)
        assert outcome.name == "published", outcome
    return plan_id


@contextmanager
def _dying(m: _Made, step: str | None) -> Iterator[None]:
    m.ends_at = step
    with suppress(Died):
        yield
    assert m.ends_at is None, f"the step {step} was not met"


if __name__ == "__main__":
    main(*sys.argv[1:])
