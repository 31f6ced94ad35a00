"""A driver whose parent was killed leaves before it writes anything else: real processes, and a real SIGKILL."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from lifecycle_local.processes import end_processes, find_process, wait_until_ended
from message_lifecycle.app.applications import EXIT_ORPHANED, watch_parent

# It tells that it works only after the watch has looked more than once, and would go on for a minute.
APPLICATION = """
import sys, time
from pathlib import Path
from message_lifecycle.app.applications import run_application

def main():
    time.sleep(1.5)
    Path(sys.argv[1]).touch()
    time.sleep(60)
    return 0

run_application(main)
"""
# As a task is: it starts the driver and waits for it.
PARENT = """
import subprocess, sys
from pathlib import Path
with open(sys.argv[2], "wb") as log:
    driver = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[3], "--without-spark"], stderr=log, start_new_session=True)
print(driver.pid, flush=True)
driver.wait()
"""


def test_a_driver_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    log, works = tmp_path / "log", tmp_path / "works"
    command = [sys.executable, "-c", PARENT, APPLICATION, str(log), str(works)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        driver = find_process(int(parent.stdout.readline()))
        assert driver is not None
        ends = time.monotonic() + 60
        while not works.exists():
            assert driver.is_alive(), log.read_text()
            assert time.monotonic() < ends, "it has not begun within 60 s"
            time.sleep(0.05)
        parent.kill()
    left = wait_until_ended([driver], 20.0)
    end_processes(left, polite_seconds=0.0)
    assert left == (), "the driver goes on"
    assert "the parent process is gone" in log.read_text()


def test_the_watch_leaves_once_with_its_own_status() -> None:
    left: list[int] = []
    parents = iter([7, 7, 1])
    watch_parent(left.append, lambda: next(parents)).join(20.0)
    assert left == [EXIT_ORPHANED]
