"""`lifecycle scenario run --store iceberg` where nothing is set up or runs: in a lake of its own, of which nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lifecycle_local.layout import find_layout, venv_bin
from lifecycle_local.postgres import PLACE
from lifecycle_local.processes import find_process, wait_until_ended

pytestmark = pytest.mark.spark

STEPS = [
    {"append": [{"append_time": 1000000, "segment": 0}, {"append_time": 9000000, "segment": 1}]},
    {"run": {"operation": "message_cleaner", "as_of": 2000000}},
]
HOLDS = {"id": "holds", "config": {"message_expiry": 1}, "steps": [*STEPS, {"expect": {"outcome": "published", "kept": [1]}}]}
DIFFERS = {**HOLDS, "id": "differs", "steps": [*STEPS, {"expect": {"kept": [0, 1]}}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command, and where it keeps what is for a while."""

    command: list[str]
    environment: dict[str, str]
    state: Path
    temporary: Path


@pytest.fixture
def scenarios(embedded: Path, tmp_path: Path) -> Run:
    """The jars are the clone's: the run is told of another state folder, in which there is none of them and no server."""
    state, temporary, file = tmp_path / "state", tmp_path / "temporary", tmp_path / "both.jsonl"
    temporary.mkdir()
    file.write_text("\n".join(map(json.dumps, (HOLDS, DIFFERS))), encoding="utf-8")
    places = {"LIFECYCLE_HOME": str(state), "LIFECYCLE_JARS": str(find_layout().jars), "TMPDIR": str(temporary)}
    bare = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    command = [str(venv_bin() / "lifecycle"), "scenario", "run", str(file), "--store", "iceberg"]
    return Run(command=command, environment=bare | places, state=state, temporary=temporary)


def test_a_scenario_on_tables_needs_nothing_that_runs_and_leaves_nothing(scenarios: Run) -> None:
    elsewhere = set(Path("/var/lib").glob("message-lifecycle-*"))  # where root's database may lie
    done = subprocess.run(scenarios.command, env=scenarios.environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    assert "ok      holds" in done.stdout
    assert "step 2 (expect): kept: expected [0, 1], found [1]" in done.stdout
    assert "1 of 2 scenarios passed" in done.stdout
    assert list(scenarios.temporary.iterdir()) == [], "the lake and its server's files are gone"
    assert set(Path("/var/lib").glob("message-lifecycle-*")) <= elsewhere
    assert not (scenarios.state / "environment.json").exists(), "nothing was set up for others"
    assert list((scenarios.state / "warehouse").iterdir()) == []


def test_where_it_is_killed_its_server_and_its_lake_go_with_it(scenarios: Run) -> None:
    ends = time.monotonic() + 120
    with subprocess.Popen(scenarios.command, env=scenarios.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not (lock := next(locks(scenarios.temporary), None)):
            assert run.poll() is None, "it has ended before its server ran"
            assert time.monotonic() < ends, "no server within 120 s"
            time.sleep(0.05)  # the server tells only its own parent when it is ready
        server = find_process(int(lock.read_text().split()[0]))
        assert server is not None
        run.kill()
    assert wait_until_ended([server], 30.0) == ()
    while list(scenarios.temporary.iterdir()) or lock.exists():
        assert time.monotonic() < ends, f"left: {lock} in {list(scenarios.temporary.iterdir())}"
        time.sleep(0.05)  # the guard is not our child: nothing tells its end


def locks(temporary: Path) -> Iterator[Path]:
    """The lock file of the run's server, once that takes connections: in the lake, or as root where its user can reach it."""
    for lake in temporary.glob("lifecycle-*"):
        place = lake / PLACE
        folder = Path(json.loads(place.read_text())["folder"]) if place.exists() else lake / "postgres"
        if (lock := folder / "data/postmaster.pid").exists() and "ready" in lock.read_text():
            yield lock
