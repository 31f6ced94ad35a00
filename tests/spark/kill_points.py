"""A run in a process of its own that dies at a step, and what every operation must come to after it; three kill-point suites share it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from tests.spark import dying

from message_lifecycle.app.services import Services
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.view_file import drop_stream

ROOT = Path(__file__).parents[2]
LIVES = "none"
# Of a process with a JVM of its own, on a machine that does other things as well.
_ENDS_WITHIN_SECONDS = 300

# Of an erasure: those before its commit, at which nothing of it is seen yet, and those after it.
BEFORE_ERASED = ("after_stage", "before_commit", "inside_commit")
ERASURE_STEPS = (*BEFORE_ERASED, "after_commit", "before_delete", "inside_delete", "after_delete")


class Run(Protocol):
    """A process, as `subprocess.Popen` has it."""

    @property
    def returncode(self) -> int | None: ...

    def communicate(self, *, timeout: float) -> tuple[str, str]:
        """Its output, once it has ended."""
        ...


class Topic(Protocol):
    """A topic of a suite, with something to remove and a ledger of its own."""

    name: TopicName

    def start(self, last_step: str) -> Run:
        """A run that dies at the step, or lives (`LIVES`)."""
        ...

    def run(self) -> Outcome:
        """The next run, uninterrupted."""
        ...

    def is_as_after_one_run(self) -> None: ...


Made = TypeVar("Made", bound=Topic)


def start_dying(name: TopicName, as_of: Instant, last_step: str, *operation: str, ledger_url: str) -> Run:
    """`last_step`: where it dies by SIGKILL; `none`: it lives, as `start_whole` starts it. `operation`: none is the message cleaner."""
    if last_step == LIVES:
        return start_whole(name, as_of, last_step, *operation, ledger_url=ledger_url)
    return dying.start([str(name), str(as_of), last_step, *operation], {**os.environ, "LIFECYCLE_LEDGER_URL": ledger_url})


def start_whole(name: TopicName, as_of: Instant, last_step: str, *operation: str, ledger_url: str) -> Run:
    """The same with a Java of its own, which dies with it."""
    command = [sys.executable, "-m", "tests.spark.run_and_die", str(name), str(as_of), last_step, *operation]
    environment = {**os.environ, "LIFECYCLE_LEDGER_URL": ledger_url}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def with_ledger(make: Callable[[str], Made], folder: Path) -> Iterator[Made]:
    """A topic made with the address of a ledger, in a file that other processes open too."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate_ledger(url)
    made = make(url)
    yield made
    drop_stream(Tables().catalog, made.name.namespace)


def dies(topic: Topic, step: str) -> None:
    """A run of the topic comes to the step, and no further."""
    is_killed(topic.start(step))


def is_killed(run: Run) -> None:
    """It has come to the step at which it was to die."""
    _, log = run.communicate(timeout=_ENDS_WITHIN_SECONDS)
    assert run.returncode == -signal.SIGKILL, log


def next_run_finishes(topic: Topic) -> None:
    assert topic.run().name in ("published", "no_op")
    topic.is_as_after_one_run()


def two_at_once_publish_once(topic: Topic) -> None:
    """One does it; the other finds it done, or is refused and says so."""
    both = [topic.start(LIVES) for _ in range(2)]
    ends = [(process.communicate(timeout=_ENDS_WITHIN_SECONDS), process.returncode) for process in both]
    told = [out.split()[-1] if out.split() else f"exit {status}" for (out, _), status in ends]
    logs = "\n".join(log for (_, log), _ in ends)
    assert all(status in (0, 3) for _, status in ends), logs
    assert "published" in told, logs
    assert all(word in ("published", "no_op", "exit 3") for word in told), logs
    topic.is_as_after_one_run()


def published(s: Services, name: TopicName) -> list[tuple[str | None, tuple[tuple[str, int], ...]]]:
    """Plan and removals of every outcome that the ledger has as published."""
    return [(outcome.plan_id, outcome.removed) for _, outcome in s.ledger.history(name) if outcome.name == "published"]
