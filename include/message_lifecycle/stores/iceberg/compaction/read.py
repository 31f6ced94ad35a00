"""Read compacted views without a JVM: their state from metadata, their messages by PyIceberg.

Every question about a topic needs its view's state, so functions that read data import their libraries late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CompactedTableMissing, undo_source_gone
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import OlderRows, Tail, ViewRow, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.undo import ReturningView
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.view_table import columns_of, files_by_partition, state_of
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.named import WithNamedErrors

if TYPE_CHECKING:
    import pyarrow as pa


class IcebergViewReader(WithNamedErrors):
    """Implements `ports.ViewReader`."""

    def __init__(self, tables: Tables | None = None) -> None:
        self._tables = tables or Tables()

    def view(self, name: TopicName) -> ViewState | None:
        return state_of(self._tables, name)

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant, latest_allowed_time: Instant) -> Sequence[Tail]:
        from message_lifecycle.stores.iceberg.compaction.tails import tails_of

        return tails_of(self._tables.load(log.topic), log, after, as_of=as_of, latest_allowed_time=latest_allowed_time)

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        from message_lifecycle.stores.iceberg.compaction.tails import oldest_past

        return oldest_past(self._tables.load(log.topic), log, view.horizons)

    def find_older_rows(self, view: ViewState, plan: Plan) -> OlderRows:
        from message_lifecycle.stores.iceberg.compaction.tails import find_older_rows

        return find_older_rows(self._tables, plan, view.horizons, view_id=view.snapshot_id)

    def find_returning(self, view: ViewState, plan: Plan) -> ReturningView:
        from message_lifecycle.stores.iceberg.compaction.removals import find_returning_rows

        try:
            return find_returning_rows(self._tables.load(plan.topic, kind=COMPACTED), view.snapshot_id, plan)
        except FileNotFoundError as lost:
            raise undo_source_gone(plan.plan_id, f"a file of the view's history is not there any more: {lost.filename or lost}") from lost
        except (OSError, ValueError) as damaged:  # PyArrow's errors are ValueErrors
            reason = f"a file of the view or of its history cannot be read: {str(damaged).splitlines()[0]}"
            raise undo_source_gone(plan.plan_id, reason) from damaged

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        from message_lifecycle.stores.iceberg.data_rows import rows_in_order

        try:
            table = self._tables.load(name, kind=COMPACTED)
            for rows in rows_in_order(table, snapshot_id=view.snapshot_id, partition=partition, start=start):
                yield from _view_rows(rows)
        except (OSError, ValueError) as error:  # a file that is gone, or damaged; PyArrow's errors are ValueErrors
            raise CompactedTableMissing(str(name), f"{type(error).__name__}: {str(error).splitlines()[0]}") from error

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        found: list[tuple[int, int, bytes | None]] = []
        try:
            table = self._tables.load(name, kind=COMPACTED)
            for partition, files in files_by_partition(table, table.snapshot_by_id(view.snapshot_id)).items():
                for file in files:
                    rows = columns_of(table.io, file, ("offset", "key", "remembered"))
                    at = pc.is_in(rows["offset"], value_set=pa.array(sorted(offsets.get(partition, ())), pa.int64()))
                    of = pc.is_in(rows["key"], value_set=pa.array(sorted(keys), rows["key"].type), skip_nulls=True)
                    message = pc.invert(pc.fill_null(rows["remembered"], False))
                    mine = rows.filter(pc.and_(pc.or_(at, of), message))
                    pairs = zip(mine["offset"].to_pylist(), mine["key"].to_pylist(), strict=True)
                    found += [(partition, offset, key) for offset, key in pairs]
        except (OSError, ValueError) as error:
            raise CompactedTableMissing(str(name), f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        return sorted(found, key=lambda place: place[:2])


def _view_rows(rows: pa.Table) -> Iterator[ViewRow]:
    from message_lifecycle.stores.iceberg.data_rows import messages_of, micros

    horizons, remembered = micros(rows["delete_horizon"]), rows["remembered"].to_pylist()
    for message, until, memory in zip(messages_of(rows), horizons, remembered, strict=True):
        yield ViewRow(message=message, delete_horizon=until, remembered=bool(memory))
