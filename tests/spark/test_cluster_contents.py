"""The demo's data on a disk, and on the embedded cluster: each operation's plan has the same content."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.effort import hunt

from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import CLUSTER, DISK, STACK, Layout, find_layout, venv_bin, venv_python
from lifecycle_local.stack import down

pytestmark = [hunt, pytest.mark.spark, pytest.mark.postgres]

SECONDS = 900
OPERATIONS = ["compaction", "message_cleaner", "message_cleaner", "undo", "message_request", "snapshot_with_purge"]


def contents(kind: str, folder: Path, as_of: str) -> list[str]:
    """A line of each plan that the demo's operations publish there."""
    usual = find_layout()
    layout = Layout(project=usual.project, state=folder, shared_tools=usual.tools, is_cluster=kind == CLUSTER)
    named = {"LIFECYCLE_HOME": str(layout.state), "LIFECYCLE_TOOLS": str(layout.tools), STACK: kind}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LIFECYCLE_", "SPARK_", "PYSPARK_", "PYICEBERG_"))}
    with stop_at_exit(down, layout):
        subprocess.run([venv_bin() / "lifecycle", "up", "--no-airflow"], env=environ | named, check=True, timeout=SECONDS)
        command = [venv_python(), "-m", "tests.spark.demo_contents", as_of]
        told = subprocess.run(
            command, env=environ | named, cwd=layout.project, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    assert told.returncode == 0, told.stderr[-3000:]
    return [line for line in told.stdout.splitlines() if line.startswith("content of ")]


def test_plans_on_a_disk_and_on_a_cluster_have_the_same_content(tmp_path: Path) -> None:
    as_of = datetime.now(UTC).isoformat()
    on_disk, on_cluster = (contents(kind, tmp_path / kind, as_of) for kind in (DISK, CLUSTER))
    assert [line.split()[2] for line in on_disk] == OPERATIONS
    assert on_cluster == on_disk
