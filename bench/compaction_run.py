"""One compaction in a fresh process, by the same functions as in the applications.

Run: `python -m bench.compaction_run TOPIC AS_OF TO_GATE FROM_GATE`.

The process plans and stages, and writes the run's name to the file TO_GATE. The gate, which is an application of its own, answers in the
file FROM_GATE. Then the process publishes, and prints the wall seconds of each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def ours(topic: str, as_of: str, to_gate: str, from_gate: str) -> dict[str, float]:
    took, run = dict[str, float](), f"bench {topic} {as_of}"
    began = started_at()
    with timed(took, "imports"):
        from message_lifecycle.app import applications
    with timed(took, "plan and stage"):
        assert applications.plan_and_stage(run=run, as_of=as_of, topics=[topic], work="compaction") == 0
    with timed(took, "gate"):
        Path(to_gate).write_text(run, encoding="utf-8")
        assert Path(from_gate).read_text(encoding="utf-8") == "judged"
    with timed(took, "publish"):
        assert applications.publish_all(run=run) == 0
    # After the commit, no user waits for the JVM's end. The JVM's CPU time still counts.
    took["until committed"] = time.time() - began - took["gate"]
    return took


def started_at() -> float:
    """When this process began, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def timed(took: dict[str, float], step: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    took[step] = time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(ours(*sys.argv[1:])))
    sys.stdout.flush()
    # As an application leaves (`app.applications`).
    os._exit(0)
