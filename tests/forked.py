"""Work in a forked process that a test can kill by SIGKILL. The forking server has imported all modules, so no process imports them again.

A killed process behaves as the kernel makes it behave: no `finally` runs, locks are released, connections break. The server is forked
before any test has state: it has imported modules and opened nothing. A process gets the directory and the environment of a new process.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import mkdtemp

_ROOT = Path(__file__).parents[1]
# One server serves all suites of a process. The engine of the gate takes most of the time: three seconds of computing.
_IMPORTED = ["tests.past_and_die", "tests.spark.run_and_die", "message_lifecycle.gates.engine"]


@dataclass(frozen=True, slots=True)
class Forked:
    """As `subprocess.Popen`, as far as the suites ask."""

    process: ForkServerProcess
    folder: Path

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.process.join(timeout)
        in_time = self.process.exitcode is not None
        if not in_time:  # nothing of it stays in the way of other tests
            self.process.kill()
            self.process.join()
        assert in_time, "it did not end in time"
        told = (self.folder / "out").read_text(), (self.folder / "err").read_text()
        shutil.rmtree(self.folder)
        return told

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def start(work: Callable[[list[str]], int], arguments: list[str], environment: Mapping[str, str]) -> Forked:
    """`work` is a function of a module; its result is the exit status."""
    folder = Path(mkdtemp(prefix="forked-"))
    process = _server().Process(target=_run, args=(work, arguments, dict(environment), folder), daemon=True)
    process.start()
    return Forked(process, folder)


def _run(work: Callable[[list[str]], int], arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(_ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(work(arguments))
