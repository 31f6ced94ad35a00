"""The fixture restored: its topics as they were made, over a lake and a ledger of a test's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import Services
from message_lifecycle.ledger import open_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import PLAN_FORMAT
from message_lifecycle.stores.iceberg.catalog import Tables
from tests.head_lake import archive
from tests.head_lake.cases import CASES
from tests.head_lake.world import STREAM, past, record_logs, seen, services, work_of
from tests.ledgers import StandingClock


@cache
def expected() -> dict[str, Any]:
    """What was noted when the fixture was made: by case what is seen before and after, by topic its plan."""
    found: dict[str, Any] = json.loads(archive.EXPECTED.read_text(encoding="utf-8"))
    return found


def topics(*states: str) -> list[str]:
    """Those in one of the states; all, where none is named."""
    return [title for title, one in expected()["topics"].items() if not states or one["state"] in states]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    s: Services
    records: Services
    clock: StandingClock
    of_lake: Tables

    def topic(self, title: str) -> Topic:
        """With the clock where it stood for it."""
        found = Topic(lake=self, title=title, noted=expected()["topics"][title])
        self.clock.now = Instant(found.noted["now"])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic of the fixture, and what was noted of it."""

    lake: Restored
    title: str
    noted: dict[str, Any]

    @property
    def name(self) -> TopicName:
        return TopicName(stream=STREAM, topic=self.title)

    @property
    def s(self) -> Services:
        return self.lake.records if CASES[self.noted["case"]].on_records else self.lake.s

    @property
    def plan_id(self) -> str:
        return str(self.noted["plan_id"])

    @property
    def as_of(self) -> Instant:
        return Instant(self.noted["as_of"])

    @property
    def work(self) -> Work:
        return work_of(self.noted["work"])

    @property
    def is_of_this_format(self) -> bool:
        """Whether its plan can be carried out as it stands. An older one that has begun is finished; any other is asked again."""
        return bool(self.noted["format"] == PLAN_FORMAT)

    def rows(self, when: str) -> Any:
        """What was seen of its case then: `before`, `after`, `undone`."""
        return expected()["cases"][self.noted["case"]][when]

    def seen(self) -> Any:
        found = seen(self.s, self.name, self.lake.of_lake)
        if "past" in self.noted["seen"]:
            found["past"] = past(self.name, self.lake.of_lake)
        return json.loads(json.dumps(found))


@contextmanager
def restored(folder: Path, of_lake: Tables, session: Callable[[], SparkSession]) -> Iterator[Restored]:
    """The lake below the folder, its tables in the catalog of `of_lake` until the end."""
    ledger_url = f"sqlite:///{folder / 'ledger.db'}"
    warehouse = archive.restore(of_lake.catalog, folder, ledger_url)
    clock = StandingClock(Instant(0))
    try:
        with open_ledger(ledger_url, clock=clock) as ledger:
            records, _ = record_logs(warehouse, ledger)
            yield Restored(s=services(session, ledger, of_lake=of_lake), records=records, clock=clock, of_lake=of_lake)
    finally:
        archive.forget(of_lake.catalog)
