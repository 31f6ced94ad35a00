"""What `make demo` says of its topics: figures that a person can add up, nothing as Python prints it."""

from __future__ import annotations

import io
from typing import cast

import pytest
from rich.console import Console

from message_lifecycle.app import demo, demo_data, steps, tasks, wiring
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import policy_of
from message_lifecycle.local.airflow import AirflowApi
from message_lifecycle.local.progress import Progress
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from tests.worlds import NOW, Lake, make_lake


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


def run(lake: Lake, work: Work) -> list[dict[str, object]]:
    return [tasks.told(steps.run(lake.services, demo.FLIGHTS, as_of=NOW, work=work))]


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
