"""Every figure that the documents state. A process of its own runs each benchmark. Exit status 1 if a figure misses its limit.

The command starts the database if it does not run, and then stops it again. One benchmark: `python -m bench compaction --only log`. Four
long benchmarks run by name only: `python -m bench breakages`, `python -m bench dag_run`, `python -m bench faults`,
`python -m bench large`.

`python -m bench smoke` runs every benchmark at a twentieth of its size (`bench.smoke`).
"""

from __future__ import annotations

import subprocess
import sys

from bench import smoke
from lifecycle_local import embedded, stack
from lifecycle_local.layout import find_layout

BENCHMARKS = (
    "compaction",
    "object_store",
    "documents",
    "due",
    "commands",
    "segment_drop",
    "gate_cost",
    "markers",
    "json_file",
    "ttl_parsing",
    "ttl_rows",
    "retention",
    "erasure",
    "reclaim",
)
BY_NAME = ("breakages", "dag_run", "faults", "large")
"""What takes long, and starts itself what it needs."""


def main() -> int:
    chosen = [sys.argv[1:]] if len(sys.argv) > 1 else [[name] for name in BENCHMARKS]
    if chosen[0][0] in BY_NAME:
        name, *options = chosen[0]
        return subprocess.run([sys.executable, "-m", f"bench.{name}", *options]).returncode
    layout = find_layout()
    ran = stack.status(layout).postgres
    embedded.up(layout, with_airflow=False)
    try:
        if chosen[0][0] == "smoke":
            return smoke.run(chosen[0][1:] or BENCHMARKS, skipped=BY_NAME)
        failed = [name for name, *options in chosen if subprocess.run([sys.executable, "-m", f"bench.{name}", *options]).returncode]
    finally:
        if not ran:
            stack.down(layout)
    if failed:
        print(f"missed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
