"""What a bench says that trees of processes have used: each group its own, and nothing from before it looked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bench.process_tree import children, watching

# A child of it works for so long, and then both wait to be ended.
_WORKS = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {0!r}]); time.sleep(60)"  # it is ended
_FOR = "import time; end = time.process_time() + {0}\nwhile time.process_time() < end: pass\nprint('done', flush=True); time.sleep(60)"  # it is ended


@contextmanager
def working(seconds: float) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", _WORKS.format(_FOR.format(seconds))], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            for pid in (*children(process.pid), process.pid):
                subprocess.run(["kill", str(pid)], check=False)


def done(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def test_each_group_has_what_its_own_processes_used_meanwhile() -> None:
    with working(0.5) as early:
        done(early)
        with working(0.3) as late:
            groups = {"early": [early.pid], "late": [late.pid], "none": []}
            with watching(lambda: groups, interval=0.05, looks=1) as used:
                done(late)
                time.sleep(0.1)  # a look at what it has come to
    assert used["late"].cpu == pytest.approx(0.35, abs=0.2)
    assert used["early"].cpu < 0.1
    assert used["none"].cpu == used["none"].memory_mb == 0
    assert used["late"].memory_mb > 5


def test_a_thread_that_ends_meanwhile_hides_no_other_process() -> None:
    over = threading.Event()

    def start_threads() -> None:
        while not over.is_set():
            threading.Thread(target=int).start()

    starter = threading.Thread(target=start_threads)
    with working(0) as process:
        done(process)
        starter.start()
        try:
            assert all(process.pid in children(os.getpid()) for _ in range(100))
            assert starter.is_alive()
        finally:
            over.set()
            starter.join()
    assert children(process.pid) == []
