"""The fence: leave to commit, asked inside every attempt of a commit, on the snapshots that the attempt really builds on.

Iceberg retries a commit when another one came first; whatever was checked before the first attempt is then out of date.
`validateWith` runs inside each attempt. It also runs before the attempt writes its summary, so a judge may still set
properties that depend on the real base (end offsets, active segments). Anything that goes wrong in here refuses the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from message_lifecycle.model.errors import CommitRefused, CommitUnknown, LifecycleError, TableBusy
from message_lifecycle.stores.iceberg.java import Java, java_class, java_message, result_unknown, take_calls
from message_lifecycle.stores.iceberg.layout import STATE_KEYS, LogSummary
from message_lifecycle.stores.iceberg.session import gateway_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Ancestor:
    """One snapshot that the commit attempt builds on; reads from Java only what is asked for."""

    def __init__(self, snapshot: Java) -> None:
        self._snapshot = snapshot

    @property
    def snapshot_id(self) -> int:
        return int(self._snapshot.snapshotId())

    @property
    def operation(self) -> str:
        """`append`, `delete`, `overwrite` or `replace`."""
        return str(self._snapshot.operation())

    def get(self, key: str) -> str | None:
        """A property of the snapshot's summary."""
        value = self._snapshot.summary().get(key)
        return None if value is None else str(value)

    @property
    def summary(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in self._snapshot.summary().items()}

    @property
    def state(self) -> LogSummary | None:
        """The log's state, where this snapshot carries it (MSG-4)."""
        carried = {key: value for key in STATE_KEYS if (value := self.get(key)) is not None}
        return LogSummary.from_properties(carried)


def main_ancestors(table: Java) -> Iterator[Ancestor]:
    """Snapshots of main, newest first, as far back as the table remembers them."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        yield Ancestor(snapshot)
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def newest_state(ancestors: Iterator[Ancestor]) -> LogSummary:
    """The state carried by the newest ancestor that carries any; an empty one where none does (MSG-4)."""
    return next((state for ancestor in ancestors if (state := ancestor.state) is not None), LogSummary())


Judge = Callable[[Callable[[], Iterator[Ancestor]]], None]
"""Given a function that walks the ancestors, newest first; returns to let the attempt pass, raises a LifecycleError to refuse it."""


class Fence:
    """Iceberg's SnapshotAncestryValidator, asking a judge."""

    class Java:  # the name is py4j's
        implements: ClassVar = ["org.apache.iceberg.SnapshotAncestryValidator"]

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.refusal: LifecycleError | None = None
        self.attempts = 0

    def validate(self, ancestors: Any) -> bool:
        """Called by Iceberg in every commit attempt."""
        self.attempts += 1
        self.refusal = None

        def walk() -> Iterator[Ancestor]:
            snapshots = ancestors.iterator()
            while snapshots.hasNext():
                yield Ancestor(snapshots.next())

        try:
            self._judge(walk)
        except LifecycleError as refusal:
            self.refusal = refusal
            return False
        return True

    def errorMessage(self) -> str:  # the name is Iceberg's
        return str(self.refusal)


def fenced_commit(session: SparkSession, updates: Iterable[tuple[Java, Judge]], *, what: str, transaction: Java | None = None) -> None:
    """Commit snapshot-producing updates, each under its judge: one by itself, or several as one `transaction` that they are made
    in. A transaction takes up an update only when the one before has been handed over, so they are made one by one. `what` names
    the deed in errors.

    Raises a judge's own refusal; CommitRefused where Iceberg's own checks saw a conflict first; TableBusy when other commits
    always came first (nothing was changed); CommitUnknown when the catalog did not say how it ended (DEL-4: look for the
    commit, clean nothing up).
    """
    from py4j.protocol import Py4JError

    take_calls(gateway_of(session))
    fences: list[Fence] = []
    try:
        for update, judge in updates:
            fences.append(Fence(judge))
            update.validateWith(fences[-1]).commit()
        if transaction is not None:
            transaction.commitTransaction()
    except Py4JError as error:
        for fence in fences:
            if fence.refusal is not None:
                raise fence.refusal from None
        if result_unknown(error):
            raise CommitUnknown(what) from error
        kind = java_class(error)
        if kind == "CommitFailedException":
            raise TableBusy(what, max(fence.attempts for fence in fences)) from error
        if kind == "ValidationException":
            raise CommitRefused(what, java_message(error)) from error
        raise
