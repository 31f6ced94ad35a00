"""What `make demo` says of its topics: figures that a person can add up, nothing as Python prints it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from lifecycle_local import demo, demo_data
from lifecycle_local.airflow import AirflowApi
from lifecycle_local.progress import Progress
from message_lifecycle.app import steps, tasks, wiring
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.views.state import OutcomeView, outcome_view
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.stores.iceberg import engine
from tests.worlds import HOUR, NOW, SECOND, Lake, make_lake


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The demo's topics with a few messages: of two aircraft, and of none."""
    made = make_lake(capsys)
    monkeypatch.setattr(wiring, "lake", lambda: made.services)
    flights = made.topic(str(demo.FLIGHTS), partitions=2, **demo.SETTINGS)
    made.topic(str(demo.WITH_TTL), **demo.TTL_SETTINGS)
    new = [NewMessage(append_time=NOW, key=key, value=b"{}", partition=0) for key in (b"N1", b"N2", b"N2", None, None, None)]
    made.world.writer.append(flights, new, policy_of(made.services, flights))
    return made


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


def progress(said: io.StringIO) -> Progress:
    return Progress(console=Console(file=said, width=10_000))


def landed(lake: Lake) -> dict[TopicName, demo.Landed]:
    ends = lake.services.reader.end_offsets
    return {name: demo.Landed(end_offsets=dict(ends(name)), shift_days=0) for name in (demo.FLIGHTS, demo.WITH_TTL)}


def run(lake: Lake, work: Work) -> list[OutcomeView]:
    return [outcome_view(steps.run(lake.services, demo.FLIGHTS, as_of=NOW, work=work))]


def test_the_messages_in_the_view_are_those_of_aircraft_and_those_of_none(
    lake: Lake, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_data, "latest_expected", lambda *_, **__: dict.fromkeys(("N1", "N2"), ("None",) * 5))
    demo._report_view(progress(said), run(lake, "compaction"), landed(lake)[demo.FLIGHTS])
    told = said.getvalue()
    assert "5 messages in the view" in told
    assert "2 are each an aircraft's latest flight" in told
    assert "3 name no aircraft: without a key, each of them is kept" in told


def test_end_offsets_are_told_by_partition(lake: Lake, said: io.StringIO) -> None:
    demo._report(progress(said), run(lake, "message_cleaner"), landed(lake))
    told = said.getvalue()
    assert "demo/flights: 6 messages are left; end offsets 0:6, 1:0\n" in told
    assert "{" not in told


class Owing:
    """Airflow whose scheduler makes the runs of two intervals as soon as the DAG is unpaused; the older does nothing."""

    def __init__(self) -> None:
        self.paused, self.ended = True, list[str]()

    def wait_for_dag(self, _dag_id: str, *, seconds: float) -> None:
        assert seconds

    def set_paused(self, _dag_id: str, paused: bool) -> None:
        self.paused = paused

    def request(self, _method: str, _path: str) -> dict[str, list[dict[str, str]]]:
        runs = [] if self.paused else ["newer", "older"]
        return {"dag_runs": [{"dag_run_id": run, "run_type": "scheduled", "data_interval_end": "2026-01-01T00:00:00Z"} for run in runs]}

    def wait_for_run(self, _dag_id: str, run_id: str, *, seconds: float) -> str:
        assert not self.paused, f"a paused DAG's run would never end, in {seconds} s or ever"
        self.ended.append(run_id)
        return "success"


def test_of_two_runs_at_once_both_are_waited_for_and_told(said: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "outcomes_of_run", lambda *, run: [{"of": run}] if run.endswith("newer") else [])
    api = Owing()
    assert demo._run(cast(AirflowApi, api), progress(said), demo.CLEANER) == [{"of": "message_cleaner/newer"}]
    assert (api.ended, api.paused) == (["older", "newer"], True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What ran before: nothing."""

    address: str | None = None
    cluster: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """What came in."""

    rows: int
    shift_days: int


def typed(*, document: str, client: str) -> demo_data.Trace:
    """Two thousand times one letter."""
    changes = (Change(document=document, server_seq=seq, client=client, at=NOW, payload=b'[[0,0,"a"]]') for seq in range(1, 2_001))
    return demo_data.Trace(changes=tuple(changes), text="a" * 2_000)


@pytest.fixture
def whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    """The demo without servers: a lake in memory, a few flights, and each DAG's run by the verbs."""
    made = make_lake(capsys)
    s = made.services

    def land(name: TopicName, *, shift_to: date | None) -> Landing:
        assert shift_to is None, "they end today"
        ages = (300, 299, 250, 20, 10, 5) if name == demo.FLIGHTS else (5, 4, 3)
        for number, days in enumerate(ages):
            key, at = (b"N1", b"N2", None)[number % 3], Instant(NOW - days * 24 * HOUR)
            ttl = (("Nats-TTL", b"1h" if number else b"never"),) if name == demo.WITH_TTL else ()
            message = NewMessage(append_time=at, key=key, value=b"{}", partition=0, headers=ttl)
            made.world.writer.append(name, [message], policy_of(s, name))
            made.world.writer.seal(name, 0)
        return Landing(rows=len(ages), shift_days=0)

    def ran(_api: object, shown: Progress, dag: demo.Shown) -> list[OutcomeView]:
        works: dict[str, Work] = {"log_compaction": "compaction", "snapshot_with_purge": "snapshot_with_purge"}
        topics = [demo.COMPONENTS] if dag == demo.DOCUMENTS else [demo.FLIGHTS] if dag != demo.CLEANER else [demo.FLIGHTS, demo.WITH_TTL]
        with shown.step(dag.title):
            made.world.set_now(Instant(s.ledger.now() + 10 * SECOND))
            if dag == demo.RECLAIM:  # what lies in memory has no files
                gone = Outcome(name="published", operation="reclaim", topic=demo.FLIGHTS, as_of=NOW, plan_id="f" * 32)
                gone = replace(gone, reclaimed_files=12, reclaimed_bytes=9_000_000)
                return [outcome_view(s.ledger.record_run_outcome(None, gone))]
            return [
                outcome_view(steps.run(s, name, as_of=s.ledger.now(), work=works.get(dag.dag_id, "message_cleaner"))) for name in topics
            ]

    monkeypatch.setattr(wiring, "lake", lambda: s)
    monkeypatch.setattr(demo.embedded, "up", lambda _layout: None)
    monkeypatch.setattr(demo.stack, "status", lambda _layout: Ran())
    monkeypatch.setattr(demo.stack, "down", lambda _layout: None)
    monkeypatch.setattr(demo.airflow, "connect_to_airflow", lambda _layout: None)
    monkeypatch.setattr(demo, "_run", ran)
    monkeypatch.setattr(demo.stack, "bytes_of_tables", lambda _layout: 61_000_000)
    monkeypatch.setattr(engine, "end_engine", lambda: None)  # it is other tests'
    monkeypatch.setattr(demo_data, "TRANSACTIONS", 2_000)
    monkeypatch.setattr(demo, "PHONE_HAS", 1_200)
    monkeypatch.setattr(demo_data, "editing_trace", typed)
    monkeypatch.setattr(demo_data, "ingest_flights", land)
    monkeypatch.setattr(demo_data, "ingest_flights_with_ttl", land)
    monkeypatch.setattr(demo_data, "differences", lambda *_: [])
    monkeypatch.setattr(demo_data, "latest_expected", lambda *_, **__: {})
    return made


def test_the_whole_demo_is_told_in_forty_lines_and_ends_with_what_to_try(whole: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    told = capsys.readouterr().err
    lines = told.splitlines()
    assert len(lines) <= 40, told
    assert re.search(r"^demo/flights: published, removed 3 of 6 messages \(3 by expiry\), [\d.]+ \w+ of [\d.]+ \w+$", told, re.M)
    assert re.search(r"^why demo/flights 0:0 went: plan \w+ removed it by expiry", told, re.M)
    assert re.search(r"^why demo/flights 0:3 stayed: ", told, re.M)
    assert "12 files are gone, 9 MB of the 61 MB that all topics had on disk" in told
    tried = [line.strip().partition("lifecycle ")[2].partition("#")[0].split() for line in lines[-3:]]
    assert [words[0] for words in tried] == ["status", "explain", "plan"]
    assert "`make up` starts it again" in lines[-4]
    for words in tried:
        assert whole.say(*words).status in (0, 1), "each of them is a command that works on what the demo leaves"


@pytest.mark.parametrize(
    ("ran", "stopped"),
    [(Ran(), 1), (Ran(address="http://127.0.0.1:1"), 0), (Ran(cluster={"lake-server": True}), 0), (Ran(cluster={"lake-server": False}), 1)],
)
@pytest.mark.usefixtures("whole")
def test_the_demo_stops_what_it_has_started(monkeypatch: pytest.MonkeyPatch, ran: Ran, stopped: int) -> None:
    """With a cluster's store all that its tables have would be gone, whether or not Airflow ran with it."""
    calls: list[object] = []
    monkeypatch.setattr(demo.stack, "status", lambda _layout: ran)
    monkeypatch.setattr(demo.stack, "down", calls.append)
    assert demo.main() == 0
    assert len(calls) == stopped
