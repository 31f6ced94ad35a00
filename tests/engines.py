"""The engine of a test's process, changed as a test says."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from message_lifecycle.stores.iceberg.engine import Engine, SparkEngine, ThreadEngine
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.shares import Resources, done


def change_tables(patched: pytest.MonkeyPatch, change: Callable[[Java, str], Java]) -> None:
    """Give stores another object for each table. `change` gets the table and its kind."""
    real = Engine.table
    patched.setattr(Engine, "table", lambda engine, name, *, kind="": change(real(engine, name, kind=kind), kind))


def change_tasks(
    patched: pytest.MonkeyPatch, change: Callable[[Callable[..., list[Any]], Sequence[Any], Callable[..., Any]], list[Any]]
) -> None:
    """Run tasks as `change` says. `change` gets the engine's own way to run them, the items and the work."""
    for kind in (ThreadEngine, SparkEngine):

        def run(engine: Engine, items: Sequence[Any], work: Callable[..., Any], *, _real: Any = kind.run, **given: Any) -> list[Any]:
            return change(lambda items, work: _real(engine, items, work, **given), items, work)

        patched.setattr(kind, "run", run)


class ForeignTasks:
    """Runs tasks one after the other, as in other processes: all values are pickled, and errors do not come back whole.

    Attributes:
        counts: The number of tasks of each call.
    """

    def __init__(self) -> None:
        self.counts = list[int]()

    def run(self, items: Sequence[Any], work: Callable[..., Any], *, description: str) -> list[Any]:
        assert ": " in description, "a user finds the topic or the plan"
        self.counts.append(len(items))
        share = Resources(spill_folder="/unused")
        return [_copied(done(work, share, _copied(item))) for item in items]

    def engine(self) -> Engine:
        return cast("Engine", self)


def _copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))
