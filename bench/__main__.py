"""Every figure that the documents state, each benchmark in a process of its own; exit status 1 when one misses its limit."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("bench.compaction", "bench.due", "bench.segment_drop", "bench.gate_cost", "bench.ttl_parsing", "bench.ttl_rows")

if __name__ == "__main__":
    failed = [name for name in BENCHMARKS if subprocess.run([sys.executable, "-m", name]).returncode]
    if failed:
        print(f"missed: {', '.join(failed)}", file=sys.stderr)
    sys.exit(1 if failed else 0)
