"""The size of property tests: `make test` runs a part of the unlimited and the slow tests, `make hunt` all of them on many more logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

HUNT = "hunt"
_HUNTED = 20
_far = ContextVar("far", default=False)

generated = pytest.mark.generated
hunt = pytest.mark.hunt
"""`make test` leaves it out."""


def sample(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters: `make test` takes those kept, `make hunt` all of them. A tuple is one case of several arguments."""
    every = list(values)
    assert set(kept) <= set(every), "what is kept is one of them"
    return [value if value in kept else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=hunt) for value in every]


def hunting() -> bool:
    return settings.get_current_profile_name() == HUNT


@contextmanager
def far() -> Iterator[None]:
    """Mark the block's tables as behind servers, where a log costs many times as much. A hunt then takes no more logs than any run."""
    before = _far.set(True)
    try:
        yield
    finally:
        _far.reset(before)


def effort(store_kind: str, logs: int, *, on_tables: int = 0) -> settings:
    """Return settings for a property: many logs in memory, few if each takes seconds, and more of both in a hunt for failures.

    Shrinking would run a failing log hundreds of times. That is quick in memory, and takes an hour on tables."""
    tables = store_kind == "iceberg"
    examples = on_tables if tables else logs
    return settings(
        max_examples=examples * _HUNTED if hunting() and not _far.get() else examples,
        phases=[Phase.generate] if tables else list(Phase),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
