"""Topics read without a JVM: a second implementation of Iceberg sees what the first has written.

Logs come from manifests alone; only messages, and the times of segments that reach into the future (CLK-4), are data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import LogStateLost, PlanConflict, TableUnreadable, undo_source_gone
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import Message, Place, RowAnswer, RowQuestion
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.undo import Range, Returning
from message_lifecycle.stores.iceberg import parsed
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import (
    AT_ONCE,
    CANCELLED_MARKERS,
    COUNTS,
    END_OFFSETS,
    MARKERS,
    PLAN_ID,
    REMOVED,
    UNDOES,
    LogSummary,
    ancestors,
    of_plan,
    partitions_of,
)
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.pointers import Place as TablePlace
from message_lifecycle.stores.iceberg.pointers import is_looking
from message_lifecycle.stores.iceberg.segments import FileMetrics, InTime, log_state, may_share_offsets
from message_lifecycle.stores.iceberg.table_folder import TableDocument, absolute, location_prefix
from message_lifecycle.stores.iceberg.witness import state_of_document, state_of_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from message_lifecycle.stores.iceberg.engine import Engine


class IcebergReader(WithNamedErrors):
    """`ports.MessageReader` through PyIceberg."""

    def __init__(self, tables: Tables | None = None, *, engine: Callable[[], Engine | None] = lambda: None) -> None:
        """Create a reader.

        Args:
            tables: The tables of the catalog.
            engine: Returns the engine whose tasks read many files. None: this process reads them.
        """
        self._tables, self._engine_at_hand = tables or Tables(), engine
        self._last_files: tuple[str, Sequence[FileMetrics]] | None = None
        self._apart: tuple[str, tuple[tuple[str, int], ...]] | None = None
        """Files that were read, and share no offset."""

    def marker(self, name: TopicName) -> str:
        """The location of the table's metadata: every change writes a new one."""
        return self._tables.metadata_location(name)

    def log(self, name: TopicName, *, latest_allowed_time: Instant | None = None) -> LogState:
        document, place = self._tables.message_topic(name), (name.namespace, name.table())
        files = self._files(place, document)
        found = log_state(
            name,
            table_uuid=document.uuid,
            snapshot_id=next(document.main_ids(), None),
            partitions=partitions_of(document.properties),
            files=files,
            summary=self._newest_state(place, document),
            latest_allowed_time=latest_allowed_time,
            read_late=lambda names, late: _read_late(self._tables.table(place, document), names, late),
        )
        self._require_offsets_once(place, document, files)
        return found

    def _require_offsets_once(self, place: TablePlace, document: TableDocument, files: Sequence[FileMetrics]) -> None:
        """Raises OffsetGivenTwice, MessageWithoutPlace."""
        suspects = may_share_offsets(files)
        key = document.uuid, tuple((file.name, file.deleted) for file in suspects)
        if suspects and self._apart != key:
            from message_lifecycle.stores.iceberg.other_writers import require_offsets_once

            table = self._tables.table(place, document)
            snapshot = table.current_snapshot()
            assert snapshot is not None, "the suspects are its files"
            require_offsets_once(table, snapshot, suspects)
            self._apart = key

    def _files(self, place: TablePlace, document: TableDocument) -> Sequence[FileMetrics]:
        """Return the data files of the table's head. In a look, the second question about the same metadata reads no manifest again."""
        kept = self._last_files
        if kept is None or kept[0] != document.location or not is_looking():
            kept = document.location, self._read_files(place, document)
        if is_looking():
            self._last_files = kept
        return kept[1]

    def _read_files(self, place: TablePlace, document: TableDocument) -> Sequence[FileMetrics]:
        from message_lifecycle.stores.iceberg.manifests import files_in

        head = next(document.main(), None)
        if head is None:
            return ()
        manifest_list = head.get("manifest-list")
        if not isinstance(manifest_list, str):
            raise TableUnreadable(".".join(place), document.location, f"snapshot {document.current_id} has no manifest list")
        io = self._tables.pointers.file_io(place, document.location)
        return list(files_in(io, str(document.content["location"]), manifest_list))

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        document, place = self._tables.message_topic(name), (name.namespace, name.table())
        return dict.fromkeys(range(partitions_of(document.properties)), 0) | dict(self._newest_state(place, document).end_offsets)

    def _newest_state(self, place: TablePlace, document: TableDocument) -> LogSummary:
        """Return the log's state as `newest_state` does, by the metadata document where it has the whole state."""
        found = state_of_document(document, ".".join(place), END_OFFSETS, lambda: self._tables.pointers.file_io(place, document.location))
        if found is not None and found.bringing:
            return newest_state(self._tables.table(place, document))
        state = None if found is None else LogSummary.from_properties(found.state)
        if state is None:
            raise _log_state_lost(".".join(place))
        return state

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        from message_lifecycle.stores.iceberg.due_rows import due_rows

        if log.snapshot_id is None:
            return RowAnswer()
        return due_rows(self._tables.log(log.topic), log.snapshot_id, question, unsealed=_unsealed(log), engine=self._engine_at_hand)

    def find_requested_rows(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        from message_lifecycle.stores.iceberg.due_rows import requested_rows

        table = self._tables.log(log.topic)
        snapshot = None if log.snapshot_id is None else table.snapshot_by_id(log.snapshot_id)
        if snapshot is None:
            return RowAnswer()
        return requested_rows(table, snapshot, request, as_of=as_of, unsealed=_unsealed(log), engine=self._engine_at_hand)

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        table = self._tables.log(log.topic)
        found: list[int] = []
        ours: set[int] = set()
        snapshot = None if log.snapshot_id is None else table.snapshot_by_id(log.snapshot_id)
        while snapshot is not None and snapshot.snapshot_id != since:
            parent = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
            # Appends and rewrites take no message away; what a plan of ours took has its markers.
            if PLAN_ID in _summary(snapshot):
                ours |= of_plan(snapshot.snapshot_id, snapshot.parent_snapshot_id, _summary(snapshot))[1]
            if snapshot.summary is None or snapshot.summary.operation.value not in ("append", "replace"):
                if parent is None:
                    return None
                if snapshot.snapshot_id not in ours:
                    found.append(snapshot.snapshot_id)
            snapshot = parent
        return None if snapshot is None else tuple(reversed(found))

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,
    ) -> Iterator[Message]:
        """In order of (partition, offset); holds the files of one stretch of offsets at a time."""
        from message_lifecycle.stores.iceberg.data_rows import messages_of, rows_in_order

        table, snapshot_id = self._tables.log(name), None if at is None else at.snapshot_id
        if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is None:
            raise PlanConflict("not yet made", f"snapshot {snapshot_id} of the log is gone")
        for rows in rows_in_order(table, snapshot_id=snapshot_id, partition=partition, start=start, after=after):
            yield from messages_of(rows)

    def find_published(self, plan: Plan) -> Published | None:
        snapshot = self._commit_of(self._tables.load(plan.topic), plan.plan_id)
        if snapshot is None:
            return None
        summary = _summary(snapshot)
        return replace(published_from_summary(plan.plan_id, snapshot.snapshot_id, summary), at_once=AT_ONCE in summary)

    def removed_files(self, plan: Plan) -> Sequence[str]:
        from message_lifecycle.stores.iceberg.manifests import files_removed_by

        table = self._tables.load(plan.topic)
        snapshot = self._commit_of(table, plan.plan_id)
        if snapshot is None:
            return ()
        _, own = of_plan(snapshot.snapshot_id, snapshot.parent_snapshot_id, _summary(snapshot))
        return tuple(files_removed_by(table, snapshot, own))

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        from message_lifecycle.stores.iceberg.undo_sources import marker_ranges

        return marker_ranges(self._tables.load(name), plan_id)

    def has_begun(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_committed

        return has_committed(self._tables.load(plan.topic), plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_lost

        return has_lost(self._tables.load(plan.topic), plan, plan.requirements.snapshot_id)

    def find_returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        from message_lifecycle.stores.iceberg.undo_sources import find_returning_messages

        try:
            return find_returning_messages(self._tables.load(log.topic), log.snapshot_id, plan, staged, own=own, without=without)
        except FileNotFoundError as lost:
            raise undo_source_gone(plan.plan_id, f"a file of the table's history is not there any more: {lost.filename or lost}") from lost

    @staticmethod
    def _commit_of(table: Table, plan_id: str) -> Snapshot | None:
        return next((snapshot for snapshot in ancestors(table) if _summary(snapshot).get(PLAN_ID) == plan_id), None)


def _unsealed(log: LogState) -> frozenset[Place]:
    return frozenset((segment.partition, segment.base_offset) for segment in log.segments if not segment.sealed)


def published_from_summary(plan_id: str, snapshot_id: int, summary: Mapping[str, str]) -> Published:
    """Return the plan's outcome as the summary of its commit records it."""
    if UNDOES in summary:
        return _undo_from_summary(plan_id, snapshot_id, summary)
    return Published(
        plan_id=plan_id,
        snapshot_id=snapshot_id,
        removed=removed_counts(summary),
        markers=parsed.count(summary, MARKERS),
        cancelled_markers=parsed.count(summary, CANCELLED_MARKERS),
    )


def _undo_from_summary(plan_id: str, snapshot_id: int, summary: Mapping[str, str]) -> Published:
    """The markers that an undo takes are the plan's word; that as many messages more have come back is Iceberg's."""
    removed = parsed.counts(summary, COUNTS)
    restored = sum(removed.values()) - removed_rows(summary)
    return Published(plan_id=plan_id, snapshot_id=snapshot_id, removed=tuple(removed.items()), restored=restored)


def removed_counts(summary: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Messages that a commit took out, by reason: the total is Iceberg's count of the difference, the plan's counts only divide it."""
    removed = removed_rows(summary)
    if removed <= 0:
        return ()  # nothing but markers
    planned = parsed.counts(summary, COUNTS)
    if sum(planned.values()) == removed:
        return tuple(planned.items())
    # The summary cannot split the count by reason if there are several. A name that no plan uses makes verify notice the difference.
    return ((next(iter(planned)) if len(planned) == 1 else "not as planned", removed),)


def removed_rows(summary: Mapping[str, str]) -> int:
    """By Iceberg's own count of the difference; rows of dropped files that a deletion vector had removed before do not go twice."""

    def total(key: str) -> int:
        return parsed.whole(summary.get(key, "0"), key, least=-INT64_MAX)

    if REMOVED in summary:  # this one has no files of its own
        return total(REMOVED)
    return total("deleted-records") + total("added-position-deletes") - total("removed-position-deletes") - total("added-records")


def newest_state(table: Table, snapshot: Snapshot | None = None) -> LogSummary:
    """Return the log's state at a snapshot of main (None: its head) (MSG-4).

    The state comes from summaries, the table's own witness, and the files that other engines have added since.

    Raises:
        LogStateLost: No state is left, or the table's witnesses disagree.
        LogRolledBack: Main goes back past our newest commit.
        Refused: As `other_writers.log_state`.
    """
    found = state_of_table(table, END_OFFSETS, snapshot)
    if found is None:
        raise _log_state_lost(".".join(table.name()))
    if found.bringing:
        from message_lifecycle.stores.iceberg.other_writers import log_state as with_others

        state = with_others(table, snapshot, found)
    else:
        state = LogSummary.from_properties(found.state)
    if state is None:
        raise _log_state_lost(".".join(table.name()))
    return state


def _log_state_lost(table: str) -> LogStateLost:
    return LogStateLost(table, "no snapshot and no table property says where the log ends")


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _read_late(table: Table, names: Mapping[Place, list[str]], latest_allowed_time: Instant) -> Mapping[Place, InTime]:
    """Return the newest time in the named files that is not late, and the late messages that are still there.

    The newest time includes removed messages (EXP-4).
    """
    import numpy as np

    from message_lifecycle.stores.iceberg.data_rows import UNKNOWN, Vectors, read_rows

    snapshot = table.current_snapshot()
    if snapshot is None or not names:
        return {}
    prefix, vectors = location_prefix(table.location()), Vectors(table, snapshot)
    found = {}
    for place, group in names.items():
        newest, late = None, np.empty(0, np.int64)
        for path in (absolute(prefix, name) for name in group):
            rows = read_rows(table.io, path, vectors[path], ("append_time",))
            times = np.asarray(rows.columns["append_time"], np.int64)
            known = times[times != UNKNOWN]
            in_time = known[known <= latest_allowed_time]
            late = np.append(late, rows.offsets[rows.alive & (times != UNKNOWN) & (times > latest_allowed_time)])
            newest = max((int(time) for time in (newest, in_time.max() if len(in_time) else None) if time is not None), default=None)
        found[place] = InTime(newest, len(late), int(late.min()) if len(late) else None)
    return found
