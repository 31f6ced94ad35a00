"""Few messages put on a topic's table by this process: what a scenario states."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import TableBusy, invalid_append, is_a_document_topic
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant
from message_lifecycle.model.message import NewMessage, known_time, ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.admission import Lifetime, Refusal, admission, admit, opens_too_many, policies_by_span
from message_lifecycle.stores.iceberg.append import (
    TRIES,
    AlreadyThere,
    MovedOn,
    Written,
    base_of,
    commit_staged,
    merge_states,
    span_property,
)
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import DICTIONARY_COLUMNS, SCHEMA
from message_lifecycle.stores.iceberg.data_files import data_file, delete_rows
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Walk, fenced_commit, newest_state
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import FOLD_PROPERTY, INGEST_ID, ROLE_PROPERTY, LogSummary
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.shares import MEBIBYTE
from message_lifecycle.stores.iceberg.tasks import NewFile

Row = dict[str, Any]
"""A row by the names of its columns."""


# Rows of this process become data files of a topic's table: PyArrow writes the files, and Iceberg describes them.


def write_rows(engine: Engine, table: Java, rows: pa.Table) -> list[Java]:
    """Write rows of a topic's columns, a file for each segment in the order of offsets.

    Return Iceberg's descriptions of the files. No snapshot names the files yet.
    """
    import pyarrow.parquet as pq

    files: list[Java] = []
    rows = rows.sort_by([(column, "ascending") for column in ("partition", "segment", "offset")])
    counts = rows.group_by(["partition", "segment"]).aggregate([([], "count_all")]).to_pylist()
    at = 0
    for partition, segment, count in sorted((place["partition"], place["segment"], place["count_all"]) for place in counts):
        mine = rows.slice(at, count)
        at += count
        content = pa.BufferOutputStream()
        pq.write_table(mine, content, compression="zstd", use_dictionary=DICTIONARY_COLUMNS)
        folder = f"partition={partition}/segment={segment}"
        path = str(table.locationProvider().newDataLocation(f"{folder}/{uuid.uuid4()}.parquet"))
        size = _write(table, path, content.getvalue())
        files.append(data_file(engine, table, folder, NewFile(path=path, rows=len(mine), bytes=size)))
    return files


def _write(table: Java, path: str, content: pa.Buffer) -> int:
    stream = table.io().newOutputFile(path).create()
    for at in range(0, content.size, MEBIBYTE):
        stream.write(bytes(content.slice(at, min(MEBIBYTE, content.size - at))))
    stream.close()
    return int(content.size)


def _of_partitions(state: LogSummary, partitions: Collection[int]) -> LogSummary:
    ends = {partition: end for partition, end in state.end_offsets.items() if partition in partitions}
    return LogSummary(end_offsets=ends, active={partition: state.active[partition] for partition in partitions})


class IcebergWriter(WithNamedErrors):
    """ports.MessageWriter on a table. One writer at a time."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    def append(
        self,
        name: TopicName,
        messages: Iterable[NewMessage],
        policy: Policy,
        forbidden: KeyMatch | None = None,
        *,
        latest_allowed_time: Instant | None = None,
    ) -> Sequence[tuple[int, int] | Refusal]:
        engine, batch_id, waiting = self._engine(), secrets.token_hex(8), tuple(messages)
        given: Sequence[tuple[int, int] | Refusal] = ()
        for _ in range(TRIES):
            table = engine.table(name)
            engine.forget(name)  # the next caller loads the table again: with this commit, or another table that has the name
            if table.properties().containsKey(FOLD_PROPERTY):
                raise is_a_document_topic(str(name))
            if table.properties().get(ROLE_PROPERTY) == "mirror":
                raise invalid_append(f"topic {name} is a mirror; it takes messages from its origin alone")
            base, before = base_of(table), newest_state(table)
            if base.found(batch_id) is not None:
                return given
            for by in policies_by_span(policy):
                given, rows, after = _numbered(before, waiting, by, forbidden, latest_allowed_time)
                if not opens_too_many((row["offset"], row["segment"]) for row in rows):
                    break
            if not rows:
                return given
            doubled = by.segment_max_us != policy.segment_max_us
            written = Written(
                files=write_rows(engine, table, pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow())),
                rows=len(rows),
                state=_of_partitions(after, {row["partition"] for row in rows}),
                span_seconds=by.segment_max_us // MICROS_PER_SECOND if doubled else None,
            )
            with suppress(MovedOn, AlreadyThere):
                commit_staged(
                    base,
                    written,
                    batch_id=batch_id,
                    properties=span_property(written),
                    may_commit=lambda: None,
                    state=partial(merge_states, before, written.state),
                )
        raise TableBusy(f"batch {batch_id} of topic {name}", TRIES)

    def seal(self, name: TopicName, partition: int) -> None:
        base = self._state(name)
        current = base.active.get(partition)
        if current is not None and current.rows:
            self._commit(name, [], base.sealed_at(partition, current.base_offset, base.end_offsets[partition]))

    def foreign_delete(self, name: TopicName, offsets: Sequence[tuple[int, int]]) -> None:
        """As Spark's DELETE leaves a table of ours: deletion vectors, and no word in the summary."""
        log = Tables().load(name)
        snapshot = log.current_snapshot()
        files = [] if snapshot is None else files_of(log, snapshot)
        removals = [
            RemoveRows(
                partition=file.partition,
                base_offset=file.segment,
                file=file.name,
                offsets=ranges_text(found),
                rows=len(found),
                reason="removed",
            )
            for file in files
            if (
                found := sorted(
                    offset for partition, offset in offsets if partition == file.partition and _may_contain_offset(file, offset)
                )
            )
        ]
        delete_rows(self._engine(), log.io, name, "main", removals, description=f"deleting from {name}: {{}}".format)

    def _state(self, name: TopicName) -> LogSummary:
        return newest_state(self._engine().table(name))

    def _commit(self, name: TopicName, rows: list[Row], state: LogSummary) -> None:
        engine = self._engine()
        table = engine.table(name)
        batch_id = secrets.token_hex(8)
        files = write_rows(engine, table, pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow()))

        def make(on: Java, _walk: Walk) -> Iterator[Java]:
            update = on.newAppend()
            for file in files:
                update.appendFile(file)
            for key, value in {**state.to_properties(), INGEST_ID: batch_id}.items():
                update.set(key, value)
            yield update

        fenced_commit(table, lambda _walk: None, make, what=f"batch {batch_id}")
        engine.forget(name)


def _may_contain_offset(file: FileMetrics, offset: int) -> bool:
    first, last = file.first_offset, file.last_offset
    return first is None or last is None or first <= offset <= last


def _numbered(
    base: LogSummary, messages: Iterable[NewMessage], policy: Policy, forbidden: KeyMatch | None, latest_allowed_time: Instant | None
) -> tuple[list[tuple[int, int] | Refusal], list[Row], LogSummary]:
    """Return the offset or the refusal of each message, the rows to write, and the log's state with them."""
    ends, active = dict(base.end_offsets), deepcopy(dict(base.active))
    given: list[tuple[int, int] | Refusal] = []
    rows = []
    for message in messages:
        own = admission(message, policy, forbidden)
        if isinstance(own, Refusal):
            given.append(own)
            continue
        partition = message.partition
        end = ends.get(partition, 0)
        mine = active.setdefault(partition, ActiveSegment(base_offset=end))
        offset, segment = admit(message, end_offset=end, active=mine, policy=policy, latest_allowed_time=latest_allowed_time)
        ends[partition] = offset + 1
        given.append((partition, offset))
        rows.append(row_of(message, offset, segment, own))
    return given, rows, replace(base, end_offsets=ends, active=active)


def row_of(message: NewMessage, offset: int, segment: int, own: Lifetime) -> Row:
    """A message as a row of the topic's table."""
    return {
        "partition": message.partition,
        "offset": offset,
        "append_time": known_time(message.append_time),
        "event_time": message.event_time,
        "key": message.key,
        "value": message.value,
        "headers": [{"name": header, "value": content} for header, content in message.headers],
        "size_bytes": message.size_bytes,
        "segment": segment,
        "expires_at": own.expires_at,
        "never": own.never or None,
        "origin_offset": message.origin_offset,
    }
