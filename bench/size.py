"""The size at which the benchmarks run: whole, or a part of it, at which only errors count.

`python -m bench smoke` sets the variable, and every process that a benchmark starts inherits it.
"""

from __future__ import annotations

import os

PART = "LIFECYCLE_BENCH_PART"
"""The environment variable with the divisor of every size. Unset: 1."""


def divisor() -> int:
    return int(os.environ.get(PART, "1"))


def of(whole: int) -> int:
    """Return the size to use in place of the whole one; at least 1."""
    return max(1, whole // divisor())


def repeats(whole: int) -> int:
    """Return how often a benchmark repeats its steps. Once is enough to find an error."""
    return whole if divisor() == 1 else 1


def status(*, kept: bool) -> int:
    """Return the exit status of a benchmark that ran to its end: 1 if it missed a limit at its whole size.

    At a part of it no limit counts, because the fixed costs outweigh the rest. An error raises, at any size.
    """
    return 0 if kept or divisor() > 1 else 1
