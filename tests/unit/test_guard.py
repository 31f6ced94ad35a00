"""What a process has started is stopped once: by itself at the end of its block, by the guard where it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lifecycle_local.layout import Layout, project_root

PROGRAM = """
import sys
from pathlib import Path
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import Layout
from tests.unit.test_guard import stop

with stop_at_exit(stop, Layout(project=Path(sys.argv[1]), state=Path(sys.argv[2]))):
    print("within", flush=True)
    exec(sys.stdin.readline())
"""


def stop(layout: Layout) -> None:
    with (layout.state / "stopped").open("a") as file:
        file.write(f"{os.getpid()} ")


@pytest.mark.parametrize(("what", "by_itself"), [("", True), ("sys.exit('a fault')", True), ("import os; os.kill(os.getpid(), 9)", False)])
def test_it_is_stopped_once_however_the_process_ends(tmp_path: Path, what: str, by_itself: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, project_root(), tmp_path]
    with subprocess.Popen(command, cwd=project_root(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"within\n"
        assert not (tmp_path / "stopped").exists()
        process.communicate(what.encode() + b"\n", timeout=60)
    stopped, ends = tmp_path / "stopped", time.monotonic() + 60
    while not stopped.exists() or not stopped.read_text():
        assert time.monotonic() < ends, "nobody has stopped it within 60 s"
        time.sleep(0.05)  # the guard is not our child: nothing tells its end
    by = stopped.read_text().split()
    assert (by == [str(process.pid)]) == by_itself
    assert len(by) == 1
