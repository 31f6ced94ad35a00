"""The size at which the benchmarks run: whole, or a part of it, at which only errors count.

`python -m bench smoke` sets the variable, and every process that a benchmark starts inherits it.
"""

from __future__ import annotations

import os

PART = "LIFECYCLE_BENCH_PART"
"""The environment variable with the divisor of every size. Unset: 1."""


def divisor() -> int:
    return int(os.environ.get(PART, "1"))


def is_part() -> bool:
    return divisor() > 1


def of(whole: int, *, further: int = 1) -> int:
    """Return the size to use in place of the whole one; at least 1.

    Args:
        further: At a part of the size, divide by this as well: for a benchmark that takes many messages to find no more errors.
    """
    return max(1, whole // (divisor() * further if is_part() else 1))


def repeats(whole: int) -> int:
    """Return how often a benchmark repeats its steps. Once is enough to find an error."""
    return 1 if is_part() else whole


def status(*, kept: bool) -> int:
    """Return the exit status of a benchmark that ran to its end: 1 if it missed a limit at its whole size.

    At a part of it no limit counts, because the fixed costs outweigh the rest. An error raises, at any size.
    """
    return 0 if kept or is_part() else 1
