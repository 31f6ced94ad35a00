"""Two starts of one stack never overlap, and a dead one blocks nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from message_lifecycle.local.errors import StackBusy
from message_lifecycle.local.processes import only_one


def test_the_holder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with only_one(file), pytest.raises(StackBusy, match=r"process \d+"), only_one(file, wait_seconds=0.0):
        raise AssertionError("entered twice")


def test_it_is_free_again_afterwards_also_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with pytest.raises(RuntimeError), only_one(file):
        raise RuntimeError
    with only_one(file, wait_seconds=0.0):
        pass


def test_sections_do_not_overlap(tmp_path: Path) -> None:
    spans: list[tuple[float, float]] = []

    def section() -> None:
        with only_one(tmp_path / "lock"):
            start = time.monotonic()
            time.sleep(0.05)
            spans.append((start, time.monotonic()))

    threads = [threading.Thread(target=section) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    assert len(spans) == 4
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_a_killed_holder_releases_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from message_lifecycle.local.processes import only_one\n"
        "with only_one(Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StackBusy), only_one(tmp_path / "lock", wait_seconds=0.0):
            pass
        holder.kill()
        holder.wait()
        with only_one(tmp_path / "lock", wait_seconds=0.0):
            pass
