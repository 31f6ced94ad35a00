"""Every benchmark at a twentieth of its size or less, two at a time, to find out whether it still runs: `python -m bench smoke [NAME ...]`.

An error, a blocked plan or a topic that a benchmark leaves behind fails the run. A time never does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from bench import size
from lifecycle_local.environment import load_environment
from message_lifecycle.stores.iceberg.catalog import Tables

DIVISOR = 20
AT_ONCE = 2
ALONE = ("commands",)
"""Benchmarks that look at every topic of the catalog: others would make and drop topics meanwhile. They run first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One benchmark's run. `said`: its output."""

    name: str
    status: int
    seconds: float
    said: str


def run(names: Sequence[str], *, skipped: Collection[str]) -> int:
    """Run the benchmarks and print one line for each, and the output of each that failed.

    Args:
        names: The benchmarks to run, by module.
        skipped: Benchmarks that start servers or a cluster of their own, so that no run of this command has them.

    Returns:
        1 if a benchmark failed or left a topic behind.
    """
    load_environment()
    before, started = streams(), time.perf_counter()
    for name in skipped:
        print(f"skipped  {name}: starts servers of its own; run `python -m bench {name}`")
    ended = []
    for some, at_once in (([name for name in names if name in ALONE], 1), ([name for name in names if name not in ALONE], AT_ONCE)):
        with ThreadPoolExecutor(at_once) as threads:
            for done in as_completed([threads.submit(_run, name) for name in some]):
                one = done.result()
                ended.append(one)
                print(f"{'FAILED' if one.status else 'ok':7}  {one.name:14} {one.seconds:6.1f} s", flush=True)
    failed = [one for one in ended if one.status]
    for one in failed:
        print(f"\n{one.name} ended with {one.status}:\n{one.said}")
    left = streams() - before
    if left:
        print(f"\ntopics left behind, in the namespaces {', '.join(sorted(left))}")
    print(f"{len(ended) - len(failed)} of {len(ended)} benchmarks ran to their end in {time.perf_counter() - started:.0f} s", flush=True)
    return 1 if failed or left else 0


def streams() -> set[str]:
    """Return the catalog's namespaces."""
    return {".".join(namespace) for namespace in Tables().catalog.list_namespaces()}


def _run(name: str) -> Ended:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}"],
        env={**os.environ, size.PART: str(DIVISOR)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Ended(name=name, status=done.returncode, seconds=time.perf_counter() - started, said=done.stdout)
