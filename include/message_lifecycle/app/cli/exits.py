"""Exit statuses beside those of errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from message_lifecycle.model.errors import EXIT_INTERNAL, EXIT_REFUSED
from message_lifecycle.model.outcome import Judgement, OutcomeName

DIFFERENT = 1
"""Something does not hold: a scenario's expectation, a topic's health."""
WAITS = 5
"""A plan waits for a person."""

_BY_WEIGHT = (EXIT_INTERNAL, EXIT_REFUSED, WAITS, DIFFERENT)


def of_outcome(name: OutcomeName) -> int:
    match name:
        case "published" | "no_op":
            return 0
        case "needs_approval":
            return WAITS
        case "blocked" | "refused" | "starved" | "lapsed" | "superseded":
            return EXIT_REFUSED
        case "failed":
            return EXIT_INTERNAL
        case never:
            assert_never(never)


def waiting_or(judgement: Judgement) -> int:
    match judgement:
        case "passed":
            return 0
        case "needs_approval":
            return WAITS
        case "blocked":
            return EXIT_REFUSED
        case never:
            assert_never(never)


def worst(statuses: Iterable[int]) -> int:
    """Of several topics: the one that most needs a look."""
    found = set(statuses) - {0}
    return next((status for status in _BY_WEIGHT if status in found), max(found, default=0))
