"""Cost of a whole process tree: wall and CPU seconds and the peak of memory, also of processes that no parent waited for."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SUBREAPER = 36
_ENDED = (FileNotFoundError, ProcessLookupError)
"""The kernel has no process or thread of this number any more."""
_INTERVAL = 0.1
_LOOKS = 3
"""One in so many is at memory, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`memory_mb`: highest sum of proportional set sizes, shared pages counted once. `said`: its last line, if that is JSON; else None."""

    wall: float
    cpu: float
    memory_mb: float
    said: Any


def cost_of(*command: str, given: str = "") -> Cost:
    """Run the command to its end. `given`: its standard input."""
    measured = [sys.executable, "-m", "bench.process_tree", *command]
    done = subprocess.run(measured, input=given, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Cost(**found)


def cost_of_module(module: str, *arguments: str) -> Cost:
    """Run one of our own modules to its end."""
    return cost_of(sys.executable, "-m", module, *arguments)


def cpu_of_tree() -> float:
    """Return the CPU seconds so far of this process and its running descendants, and of ended descendants that a parent waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    alive = sum(_cpu_seconds(pid) or 0.0 for pid in (os.getpid(), *_below(os.getpid())))
    return alive + ended.ru_utime + ended.ru_stime


@dataclass(slots=True, kw_only=True)
class Used:
    """CPU seconds of all processes of a group that were seen, and the highest sum of its proportional set sizes."""

    cpu: float = 0.0
    memory_mb: float = 0.0


@contextmanager
def watching(roots: Callable[[], Mapping[str, Sequence[int]]], *, interval: float = 0.25, looks: int = 4) -> Iterator[dict[str, Used]]:
    """Measure groups of process trees during the block. The result, by the group's name, is complete after the block.

    `roots`: the processes of each group now, because trees may appear and end. CPU time before the block does not count."""
    found, seen, over = dict[str, Used](), dict[int, tuple[str, float]](), threading.Event()

    def look(*, memory: bool) -> None:
        for name, pids in roots().items():
            used = found.setdefault(name, Used())
            every = [one for pid in pids for one in (pid, *_below(pid))]
            seen.update({pid: (name, cpu) for pid in every if (cpu := _cpu_seconds(pid)) is not None})
            if memory:
                used.memory_mb = max(used.memory_mb, sum(map(_memory_mb, every)))

    def watch() -> None:
        looked = 0
        while not over.wait(interval):
            look(memory=looked % looks == 0)
            looked += 1

    look(memory=False)
    before = {pid: cpu for pid, (_, cpu) in seen.items()}
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        look(memory=False)
        for pid, (name, cpu) in seen.items():
            found[name].cpu += cpu - before.get(pid, 0.0)


def children(pid: int) -> list[int]:
    """Return the running processes that a process has started. Empty if it has ended itself."""
    found: list[int] = []
    with suppress(*_ENDED):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_ENDED):
                found += map(int, (thread / "children").read_text().split())
    return found


def _main() -> int:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    peak, seen, over = [0.0], dict[int, float](), threading.Event()
    started = time.perf_counter()
    process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
    watch = threading.Thread(target=_watch, args=(peak, seen, over))
    watch.start()
    assert process.stdout is not None
    said = process.stdout.read().strip().splitlines()
    status = process.wait()
    wall = time.perf_counter() - started
    over.set()
    watch.join()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    # Spark's Python daemon ignores the end of its workers, and the kernel then adds their time to no process. So a thread reads their time
    # while they run, and misses less than an interval for each process.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = max(used.ru_utime + used.ru_stime, sum(seen.values()))
    print(json.dumps({"wall": wall, "cpu": cpu, "memory_mb": peak[0], "said": _parsed(said[-1]) if said and not status else None}))
    return status


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _watch(peak: list[float], seen: dict[int, float], over: threading.Event) -> None:
    looks = 0
    while not over.wait(_INTERVAL):
        processes = _below(os.getpid())
        seen |= {pid: cpu for pid in processes if (cpu := _cpu_seconds(pid)) is not None}
        # The kernel walks through all of a process's memory to answer, which takes what is measured away from it.
        if looks % _LOOKS == 0:
            peak[0] = max(peak[0], sum(map(_memory_mb, processes)))
        looks += 1


def _below(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *_below(child))]


def _cpu_seconds(pid: int) -> float | None:
    """Return the CPU seconds of the process itself, without children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    sys.exit(_main())
