"""What a plan's branch differs in from the plan's snapshot, as one update of main."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`dropped`: the DataFileSet of files that go. `vectors`: deletion vectors that come, `replaced`: those that go, with their
    files or for others.
    `added`: data files that come (markers; of a compaction, the view's)."""

    dropped: Java
    vectors: Sequence[Java]
    replaced: Sequence[Java]
    added: Sequence[Java]

    @property
    def removes(self) -> bool:
        return bool(self.vectors) or not self.dropped.isEmpty()

    @classmethod
    def of_files(cls, dropped: Java) -> Change:
        return cls(dropped=dropped, vectors=(), replaced=(), added=())

    @classmethod
    def of(cls, session: SparkSession, table: Java, staged: list[Java]) -> Change:
        """`staged`: the branch's snapshots, newest first. What one adds and a later one takes away cancels out."""
        jvm: Java = session._jvm
        dropped = jvm.org.apache.iceberg.util.DataFileSet.create()
        vectors: dict[tuple[str, int], Java] = {}
        replaced: list[Java] = []
        added: list[Java] = []
        for snapshot in reversed(staged):
            changes = jvm.org.apache.iceberg.SnapshotChanges.builderFor(table).snapshot(snapshot).build()
            dropped.addAll(jvm.org.apache.iceberg.util.DataFileSet.of(changes.removedDataFiles()))
            for vector in _each(changes.removedDeleteFiles()):
                # Also those of files that go: Iceberg looks for them where it has other vectors to replace, and nowhere else.
                if vectors.pop(_place(vector), None) is None:
                    replaced.append(vector)
            for vector in _each(changes.addedDeleteFiles()):
                vectors[_place(vector)] = vector
            added += _each(changes.addedDataFiles())
        return cls(dropped=dropped, vectors=tuple(vectors.values()), replaced=tuple(replaced), added=tuple(added))

    def update(self, session: SparkSession, on: Java, base_id: int) -> Java:
        """The removals as one update of `on`, a table or a transaction; appends since the plan's snapshot pass, any other change of
        what goes refuses."""
        jvm: Java = session._jvm
        if not self.vectors:
            drop = on.newOverwrite().deleteFiles(self.dropped, jvm.org.apache.iceberg.util.DeleteFileSet.create())
            # A second guard beside the fence: each file must still be there, with the same deletion vector.
            return drop.validateFromSnapshot(base_id).validateNoConflictingDeletes()
        referenced = jvm.java.util.ArrayList()
        for vector in self.vectors:
            referenced.add(vector.referencedDataFile())
        update = self._removals(on.newRowDelta().validateFromSnapshot(base_id))
        return update.validateDataFilesExist(referenced).validateDeletedFiles().validateNoConflictingDeleteFiles()

    def restore(self, session: SparkSession, on: Java, base_id: int) -> Java:
        """All of an undo as one update of `on`; appends since the plan's snapshot pass, any other change of a file that it touches
        refuses."""
        jvm: Java = session._jvm
        referenced = jvm.java.util.ArrayList()
        for vector in (*self.vectors, *self.replaced):
            referenced.add(vector.referencedDataFile())
        update = self.with_added(on.newRowDelta(), base_id)
        return update.validateDataFilesExist(referenced).validateDeletedFiles().validateNoConflictingDeleteFiles()

    def with_added(self, update: Java, base_id: int) -> Java:
        """All of it as one RowDelta; whether the table may have moved on is for the caller's fence."""
        update = self._removals(update.validateFromSnapshot(base_id))
        for file in self.added:
            update.addRows(file)
        return update

    def _removals(self, update: Java) -> Java:
        for file in _each(self.dropped):
            update.removeRows(file)
        for vector in self.vectors:
            update.addDeletes(vector)
        for vector in self.replaced:
            update.removeDeletes(vector)
        return update


def _place(vector: Java) -> tuple[str, int]:
    # A Puffin file holds many vectors.
    return str(vector.location()), int(vector.contentOffset())


def _each(java_iterable: Java) -> Iterator[Java]:
    iterator = java_iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()
