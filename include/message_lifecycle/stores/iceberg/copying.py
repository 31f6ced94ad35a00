"""Fill a source or mirror from its origin: copy all new messages of one snapshot in one commit (MSG-5, TTL-6).

The commit with the copies also records the copied offsets in its summary. A copier that dies before the commit has copied nothing; after
the commit it repeats nothing. The commit succeeds only if no other copy came first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import TableBusy
from message_lifecycle.model.facts import ActiveSegment, CopyState, LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.admission import new_in_origin
from message_lifecycle.ports import Copied
from message_lifecycle.stores.iceberg import read
from message_lifecycle.stores.iceberg.append import (
    TRIES,
    AlreadyThere,
    MovedOn,
    base_of,
    commit_staged,
    merge_states,
    new_files_place,
    remove_leftovers,
    store_of,
    write_batch,
)
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction.view_table import files_by_partition
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import newest_state
from message_lifecycle.stores.iceberg.incoming import CutRules, Numbering, OriginPlaces
from message_lifecycle.stores.iceberg.key_mask import key_mask
from message_lifecycle.stores.iceberg.layout import LEDGER, ROLE_PROPERTY, LogSummary
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.puffin import marked
from message_lifecycle.stores.iceberg.relations import duckdb_types, live_rows, opened
from message_lifecycle.stores.iceberg.shares import Resources
from message_lifecycle.stores.iceberg.tasks import InputFile

_ROWS = 10_000
Lifetimes = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(slots=True, kw_only=True)
class _Origin:
    """Messages of one partition of an origin that are not copied yet.

    Attributes:
        files: The data files that hold these messages.
        after: The last copied offset.
        own_lifetimes: See `IcebergCopier`.
    """

    partition: int
    files: list[InputFile]
    after: int
    own_lifetimes: Lifetimes
    forbidden: KeyMatch | None = field(repr=False)  # contains the secret of the keyed hashes
    left_out: int = 0

    @property
    def partitions(self) -> Collection[int]:
        return (self.partition,)

    def read(self, _partition: int, share: Resources) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(f'f."{name}"' for name, _ in duckdb_types(SCHEMA) if name != "origin_offset")
        with opened(share) as (connection, names):
            vectors = {at: marked(file.vector) for at, file in enumerate(self.files) if file.vector is not None}
            gone = [pa.table({"file": pa.repeat(at, len(rows)), "row": pa.array(rows)}) for at, rows in vectors.items()]
            connection.register("gone", pa.concat_tables(gone) if gone else pa.table({"file": [0], "row": [-1]}))
            rows = connection.sql(
                f'SELECT {columns}, f."offset" AS origin_offset FROM {live_rows(self.files, "gone" if gone else None, names)} '
                f'WHERE f."offset" > {self.after} ORDER BY f."offset"'
            )
            for batch in rows.to_arrow_reader(_ROWS):
                allowed = batch
                if self.forbidden is not None:
                    allowed = batch.filter(pc.invert(key_mask(batch["key"], self.forbidden)))
                    self.left_out += batch.num_rows - allowed.num_rows
                if allowed.num_rows:
                    yield self.own_lifetimes(allowed)


class IcebergCopier(WithNamedErrors):
    """Implements `ports.Copier`. The engine starts only if there are messages to copy.

    Args:
        own_lifetimes: Sets `expires_at` and `never` from the headers of messages, as ingest does, and refuses no message.
    """

    def __init__(self, engine: Callable[[], Engine], *, own_lifetimes: Lifetimes, tables: Tables | None = None) -> None:
        self._engine, self._own_lifetimes, self._tables = engine, own_lifetimes, tables or Tables()

    def copy_state(self, name: TopicName) -> CopyState:
        return read.newest_state(self._tables.load(name)).copy_state

    def copy_new_messages(
        self,
        name: TopicName,
        origin: LogState,
        policy: Policy,
        *,
        ledger: tuple[str, int],
        latest_allowed_time: Instant,
        forbidden: KeyMatch | None = None,
    ) -> Copied:
        engine = self._engine()
        batch_id = secrets.token_hex(16)
        erased = span_seconds = None
        rules = CutRules.of(policy, latest_allowed_time=latest_allowed_time)
        for number in range(TRIES):
            engine.forget(name)
            table = engine.table(name)
            base, before = base_of(table), newest_state(table)
            found = base.found(batch_id)
            new = new_in_origin(name, origin, before.copy_state)
            if found is not None or not new:
                if found is not None and number > 1:
                    remove_leftovers(engine, name, found)
                return Copied(copied=before.copied, rows=0 if found is None else found.rows, erased=erased, span_seconds=span_seconds)
            mirror = table.properties().get(ROLE_PROPERTY) == "mirror"
            written = write_batch(
                engine,
                table,
                new_files_place(table, store_of(name), batch_id),
                self._sources(origin, before, new, forbidden),
                before,
                # A mirror has its origin's segments, without a limit on their number.
                replace(rules, max_us=0) if mirror else rules,
                description=f"copy of {origin.topic} into {name}",
                places=OriginPlaces if mirror else Numbering,
            )
            erased, span_seconds = written.left_out, written.span_seconds
            ours = _mirror_after(written.state, before, origin, new) if mirror else written.state
            ours = replace(ours, copied={**before.copied, **new}, copied_from=origin.table_uuid)
            with suppress(MovedOn, AlreadyThere):
                commit_staged(
                    base,
                    written,
                    batch_id=batch_id,
                    properties={LEDGER: ledger_text(ledger)},
                    may_commit=lambda: None,
                    state=partial(_after, before, ours),
                )
        raise TableBusy(f"copy of topic {origin.topic} into {name}", TRIES)

    def _sources(self, origin: LogState, base: LogSummary, new: Mapping[int, int], forbidden: KeyMatch | None) -> list[_Origin]:
        """Return the messages after the copied offsets. The bounds of files avoid reading other files."""
        table = self._tables.load(origin.topic)
        after = {partition: base.copied.get(partition, -1) for partition in new}
        files = files_by_partition(
            table,
            table.snapshot_by_id(origin.snapshot_id or 0),
            lambda file: file.partition in after and (file.last_offset is None or file.last_offset > after[file.partition]),
        )
        return [
            _Origin(
                partition=partition,
                files=of_partition,
                after=after[partition],
                own_lifetimes=self._own_lifetimes,
                forbidden=forbidden,
            )
            for partition, of_partition in sorted(files.items())
        ]


def _mirror_after(written: LogSummary, base: LogSummary, origin: LogState, new: Mapping[int, int]) -> LogSummary:
    """Return the mirror's state: its log ends where the origin's ends, and its last segment is closed if the origin's is."""
    ends = {partition: max(last + 1, base.end_offsets.get(partition, 0)) for partition, last in new.items()}
    active = dict(written.active)
    closed = {(segment.partition, segment.base_offset) for segment in origin.segments if segment.sealed}
    for partition, state in active.items():
        if (partition, state.base_offset) in closed:
            active[partition] = ActiveSegment(base_offset=ends[partition])
    return LogSummary(end_offsets=ends, active=active)


def _after(base: LogSummary, ours: LogSummary, now: LogSummary) -> LogSummary:
    """Join the states like `append.merge_states`.

    Raises:
        MovedOn: Another copy came first, or another writer was first in our partitions. A commit would add the messages twice.
    """
    if now.copy_state != base.copy_state:
        raise MovedOn
    return replace(merge_states(base, ours, now), copied=ours.copied, copied_from=ours.copied_from)
