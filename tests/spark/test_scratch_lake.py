"""`lifecycle scenario run --store iceberg` where nothing is set up or runs: in a lake of its own, of which nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from message_lifecycle.local.layout import find_layout, venv_bin

pytestmark = pytest.mark.spark

STEPS = [
    {"append": [{"append_time": 1000000, "segment": 0}, {"append_time": 9000000, "segment": 1}]},
    {"run": {"operation": "message_cleaner", "as_of": 2000000}},
]
HOLDS = {"id": "holds", "config": {"message_expiry": 1}, "steps": [*STEPS, {"expect": {"outcome": "published", "kept": [1]}}]}
DIFFERS = {**HOLDS, "id": "differs", "steps": [*STEPS, {"expect": {"kept": [0, 1]}}]}


def test_a_scenario_on_tables_needs_nothing_that_runs_and_leaves_nothing(embedded: Path, tmp_path: Path) -> None:
    """The jars are the clone's: the run is told of another state folder, in which there is none of them and no server."""
    elsewhere = set(Path("/var/lib").glob("message-lifecycle-*"))  # where root's database may lie
    state, temporary, file = tmp_path / "state", tmp_path / "temporary", tmp_path / "both.jsonl"
    temporary.mkdir()
    file.write_text("\n".join(map(json.dumps, (HOLDS, DIFFERS))), encoding="utf-8")
    places = {"LIFECYCLE_HOME": str(state), "LIFECYCLE_JARS": str(find_layout().jars), "TMPDIR": str(temporary)}
    bare = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    command = [str(venv_bin() / "lifecycle"), "scenario", "run", str(file), "--store", "iceberg"]
    done = subprocess.run(command, env=bare | places, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    assert "ok      holds" in done.stdout
    assert "step 2 (expect): kept: expected [0, 1], found [1]" in done.stdout
    assert "1 of 2 scenarios held" in done.stdout
    assert list(temporary.iterdir()) == [], "the lake and its server's files are gone"
    assert set(Path("/var/lib").glob("message-lifecycle-*")) <= elsewhere
    assert not (state / "environment.json").exists(), "nothing was set up for others"
    assert list((state / "warehouse").iterdir()) == []
