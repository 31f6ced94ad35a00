"""Ingest: each file of a source is taken exactly once per topic, in batches; and what later runs go on with.

A file is known by its path within the source folder; its SHA-256 tells whether it is still the same file. So: the same path
with the same content was taken; the same path with other content is an error (ChangedFile), for a file that grows or is
written again cannot be taken in part; the same content under another path is another file, and is taken, for two days may
well bring the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, settings_from_json
from message_lifecycle.ledger.database import Part, add_rows, claim_topic, key_of, next_event, put
from message_lifecycle.model.errors import batch_not_open, changed_file, open_batch, repeated_file, unknown_batch
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.records import Batch, SourceFile
from message_lifecycle.model.settings import Value

_batches = tables.batches
_files = tables.batch_files
_settings = tables.ingest_settings
_NAMES_AT_ONCE = 5_000


class Ingest(Part):
    """open -> done (its commit is in the table) or abandoned (it is not, and never will be)."""

    def begin_batch(self, topic: TopicName, batch_id: str, files: Iterable[SourceFile]) -> Sequence[SourceFile]:
        """Open a batch of those files that no batch has taken, and return them; none left: no batch, an empty answer.

        The same open batch again returns its files. Raises OpenBatch where another one of the topic is open (its commit may
        be in the table: look there, then finish or abandon it), BatchNotOpen for a done one with files left, ChangedFile,
        RepeatedFile.
        """
        wanted = _by_path(topic, files)
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            same = _find(connection, batch_id)
            if same is not None and same.state == "open":
                return _files_of(connection, batch_id)
            _refuse_second(connection, topic)
            fresh = _not_taken(connection, topic, wanted)
            if not fresh:
                return ()
            if same is not None and same.state == "done":
                raise batch_not_open(batch_id, "done")
            put(
                connection,
                _batches,
                batch_id=batch_id,
                topic=key_of(topic),
                state="open",
                begun_at=self._database.now(connection),
                ended_at=None,
                event=next_event(connection),
            )
            rows = [
                {
                    "topic": key_of(topic),
                    "path": file.path,
                    "sha256": file.sha256,
                    "size_bytes": file.size_bytes,
                    "batch_id": batch_id,
                }
                for file in fresh
            ]
            add_rows(connection, _files, rows)
            return fresh

    def open_batches(self, topic: TopicName) -> Sequence[Batch]:
        """Batches whose end is not known: at most one."""
        query = select(_batches).where(_batches.c.topic == key_of(topic), _batches.c.state == "open")
        with self._database.reading() as connection:
            return [
                Batch(
                    batch_id=row.batch_id,
                    topic=topic,
                    begun_at=Instant(row.begun_at),
                    files=_files_of(connection, row.batch_id),
                )
                for row in connection.execute(query).all()
            ]

    def finish_batch(self, batch_id: str, *, snapshot_id: int | None, rows: int, quarantined: int) -> None:
        """Its commit is in the table. `snapshot_id` None: every row went to quarantine. The same again changes nothing.
        Raises UnknownBatch, BatchNotOpen."""
        self._end(batch_id, "done", snapshot_id=snapshot_id, rows=rows, quarantined=quarantined)

    def abandon_batch(self, batch_id: str) -> None:
        """Its commit is not in the table: its files may be taken again. Raises UnknownBatch, BatchNotOpen."""
        self._end(batch_id, "abandoned")

    def set_ingest_setting(self, topic: TopicName, name: str, value: Value) -> None:
        """Keep what later runs of the topic's ingest must go on with, such as `shift_us`."""
        with self._database.writing() as connection:
            put(connection, _settings, topic=key_of(topic), name=name, value=canonical(value))

    def ingest_settings(self, topic: TopicName) -> Mapping[str, Value]:
        kept = _settings.c
        rows = self._rows(select(kept.name, kept.value).where(kept.topic == key_of(topic)))
        found = settings_from_json("{" + ",".join(f"{canonical(row.name)}:{row.value}" for row in rows) + "}")
        return {name: value for name, value in found.items() if value is not None}

    def _end(self, batch_id: str, state: str, **result: int | None) -> None:
        with self._database.writing() as connection:
            row = _find(connection, batch_id)
            if row is None:
                raise unknown_batch(batch_id)
            if row.state == state:
                return
            if row.state != "open":
                raise batch_not_open(batch_id, row.state)
            if state == "abandoned":
                connection.execute(delete(_files).where(_files.c.batch_id == batch_id))
            values = {"state": state, "ended_at": self._database.now(connection), **result}
            connection.execute(update(_batches).where(_batches.c.batch_id == batch_id).values(values))


def forget_ingest(connection: Connection, topic: TopicName) -> None:
    """Within the caller's transaction: a topic of that name is made anew: it has nothing of any file, and goes on with nothing."""
    for table in (_files, _batches, _settings):
        connection.execute(delete(table).where(table.c.topic == key_of(topic)))


def _by_path(topic: TopicName, files: Iterable[SourceFile]) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    for file in files:
        if file.path in found:
            raise repeated_file(str(topic), file.path)
        found[file.path] = file
    return found


def _find(connection: Connection, batch_id: str) -> Row[Any] | None:
    return connection.execute(select(_batches).where(_batches.c.batch_id == batch_id).with_for_update()).first()


def _files_of(connection: Connection, batch_id: str) -> tuple[SourceFile, ...]:
    rows = connection.execute(select(_files).where(_files.c.batch_id == batch_id).order_by(_files.c.path))
    return tuple(SourceFile(path=row.path, size_bytes=row.size_bytes, sha256=row.sha256) for row in rows)


def _refuse_second(connection: Connection, topic: TopicName) -> None:
    query = select(_batches).where(_batches.c.topic == key_of(topic), _batches.c.state == "open")
    other = connection.execute(query).first()
    if other is not None:
        raise open_batch(str(topic), other.batch_id, format_instant(other.begun_at))


def _not_taken(connection: Connection, topic: TopicName, wanted: dict[str, SourceFile]) -> tuple[SourceFile, ...]:
    """Those that stand in no batch, in order of their path. Raises ChangedFile."""
    paths = sorted(wanted)
    taken: set[str] = set()
    for start in range(0, len(paths), _NAMES_AT_ONCE):
        some = paths[start : start + _NAMES_AT_ONCE]
        query = select(_files).where(_files.c.topic == key_of(topic), _files.c.path.in_(some)).order_by(_files.c.path)
        for row in connection.execute(query):
            if row.sha256 != wanted[row.path].sha256:
                raise changed_file(str(topic), row.path, row.batch_id)
            taken.add(row.path)
    return tuple(wanted[path] for path in paths if path not in taken)
