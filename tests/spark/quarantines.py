"""A topic with refused rows of three batches, and a ledger of its own (QUA-1)."""

from __future__ import annotations

from dataclasses import replace
from secrets import token_hex

import pyarrow as pa

from message_lifecycle.app import steps
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.stores.iceberg.append import Place
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import QUARANTINE
from message_lifecycle.stores.iceberg.refused_rows import REFUSED, quarantine, write_refused_batches
from message_lifecycle.stores.iceberg.session import spark_session, sql_table
from message_lifecycle.stores.iceberg.tasks import NewFile

SECOND = 1_000_000
AGE = 10
AS_OF = Instant(100 * SECOND)
YES = (True, "tester", "as expected")


Row = tuple[str, int, str, str | None, str | None]


def refuse(name: TopicName, *rows: Row, batch_id: str, at: Instant) -> None:
    """Put rows of one batch into the topic's quarantine: file, position, code, reason, raw."""
    batch = pa.RecordBatch.from_pydict(dict(zip(REFUSED, map(list, zip(*rows, strict=True)), strict=True)))

    def write(place: Place) -> list[NewFile]:
        new = write_refused_batches(place, 0, [batch], batch_id=batch_id, at=at)
        assert new is not None
        return [new]

    quarantine(engine_of_process(), name, write, batch_id=batch_id, may_commit=lambda: None)


class Refused:
    """A topic that has refused two batches long ago and one just now."""

    def __init__(self, ledger_url: str) -> None:
        self.ledger_url = ledger_url
        self.s: Services = replace(configured_lake(), ledger=open_ledger(ledger_url))
        self.name = TopicName(stream=f"quarantine-{token_hex(4)}", topic="messages")
        create_topic(self.s, self.name, partitions=1, settings={"quarantine_max_age": AGE})
        for second in (1, 2, 95):
            self.refuse(second)

    def refuse(self, second: int) -> None:
        rows = [("f", 1, "unreadable_line", None, f"raw {second}"), ("f", 2, "unreadable_line", None, f"more {second}")]
        refuse(self.name, *rows, batch_id=f"b{second}", at=Instant(second * SECOND))

    def left(self) -> list[str]:
        session = spark_session("tests")
        engine_of_process().forget(self.name, kind=QUARANTINE)
        return sorted(row["batch"] for row in session.table(sql_table(self.name, kind=QUARANTINE)).select("batch").distinct().collect())

    def run(self) -> Outcome:
        outcome = steps.run(self.s, self.name, as_of=AS_OF, work="quarantine", approver=lambda _plan, _report: YES)
        assert outcome.name != "failed", outcome.detail
        return outcome

    def refs(self) -> set[str]:
        return set(Tables().load(self.name, kind=QUARANTINE).metadata.refs)
