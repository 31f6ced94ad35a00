"""Ingest records: a topic ingests each file of a source exactly once, in batches. Also refused rows, and settings for later runs.

The path within the source folder identifies a file. The SHA-256 shows if the file has changed. The same path with the same content was
ingested before. The same path with other content is an error (ChangedFile), because nobody can ingest part of a growing or rewritten file.
The same content under another path is another file and is ingested, because two days may well bring the same lines. A file counts as not
ingested if every row was refused: it may return under its name with other content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, settings_from_json
from message_lifecycle.ledger.database import LedgerPart, add_rows, claim_topic, key_of, next_event, put
from message_lifecycle.ledger.tables import FoundRow
from message_lifecycle.model.errors import batch_not_open, changed_file, open_batch, repeated_file, unknown_batch
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Batch, RefusedBatch, SettledAs, SourceFile, TakenBatch
from message_lifecycle.model.setting_list import Value

_batches = tables.batches
_files = tables.batch_files
_refused = tables.refused_files
_settings = tables.ingest_settings
_NAMES_AT_ONCE = 5_000

_ALL_DONE = select(_batches.c.topic, _batches.c.ended_at, _batches.c.rows).where(_batches.c.state == "done").order_by(_batches.c.event)
_ALL_REFUSED = select(_batches).where(_batches.c.state == "done", _batches.c.quarantined > 0).order_by(_batches.c.event)


class Ingest(LedgerPart):
    """Batches. A batch is open, then done (the table has its commit) or abandoned (the table never gets its commit)."""

    def begin_batch(
        self,
        topic: TopicName,
        batch_id: str,
        files: Iterable[SourceFile],
        *,
        mapping: str | None = None,
        instead_of: InsteadOf | None = None,
    ) -> Sequence[SourceFile]:
        """Open a batch of the files that no batch has ingested, and return these files.

        Return nothing and open no batch if no file is left.
        Calling again for the same open batch returns its files.

        Args:
            topic: The topic that ingests the files.
            batch_id: The id of the new batch, or of the batch that is still open.
            files: The files of the batch.
            mapping: How records become messages, as JSON.
            instead_of: Batches whose messages were removed. The same transaction frees their files.

        Raises:
            OpenBatch: Another batch of the topic is open. The table may have its commit: check, then finish or abandon it.
            BatchNotOpen: The batch is done, but files are left.
            ChangedFile: A batch has ingested a file with other content.
            RepeatedFile: The batch names a file twice.
        """
        wanted = _files_by_path(topic, files)
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            if instead_of is not None:
                _free_files(connection, topic, instead_of, self._database.now(connection))
            same = _find(connection, batch_id)
            if same is not None and same.state == "open":
                connection.execute(update(_batches).where(_batches.c.batch_id == batch_id).values(mapping=mapping))
                return _files_of(connection, batch_id)
            _refuse_second(connection, topic)
            fresh = _files_to_ingest(connection, topic, wanted)
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
                mapping=mapping,
                instead_of=None if instead_of is None else instead_of.plan_id,
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

    def changed_files(self, topic: TopicName, files: Iterable[SourceFile]) -> Sequence[SourceFile]:
        """Return the files that a batch has ingested with other content, in order of their path. Raises RepeatedFile."""
        wanted = _files_by_path(topic, files)
        with self._database.reading() as connection:
            others = {row.path for row in _rows_of_batches(connection, topic, wanted) if row.sha256 != wanted[row.path].sha256}
            refused = [row for row in _rows_in_table(connection, _refused, topic, wanted) if row.sha256 != wanted[row.path].sha256]
            others |= {row.path for row in refused if _is_replayed(connection, row.batch_id)}
            return tuple(wanted[path] for path in sorted(others))

    def find_batches_of_files(self, topic: TopicName, paths: Iterable[str]) -> Mapping[str, str]:
        """Return, by path, the batch that ingested the file. Files that no batch has ingested are left out."""
        with self._database.reading() as connection:
            return {row.path: row.batch_id for row in _rows_in_table(connection, _files, topic, paths)}

    def find_refused_files(self, topic: TopicName, files: Iterable[SourceFile]) -> frozenset[str]:
        """Return the paths of files that a batch refused whole and that have not changed since."""
        wanted = _files_by_path(topic, files)
        with self._database.reading() as connection:
            found = _rows_in_table(connection, _refused, topic, wanted)
            return frozenset(row.path for row in found if row.sha256 == wanted[row.path].sha256)

    def open_batches(self, topic: TopicName) -> Sequence[Batch]:
        """Return the batches with an unknown end, at most one."""
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

    def taken_batches(self, topic: TopicName, paths: Iterable[str]) -> Sequence[TakenBatch]:
        """Return the batches that ingested or refused a file of these names, in order of their id.

        Batches that replayed refused rows of such a file are included.
        """
        wanted = list(paths)
        with self._database.reading() as connection:
            ids = {row.batch_id for table in (_files, _refused) for row in _rows_in_table(connection, table, topic, wanted)}
            for batch_id in sorted(ids):
                of_replay = (_files.c.topic == key_of(topic)) & _files.c.path.startswith(
                    ledger_path_of_replay(batch_id, ""), autoescape=True
                )
                ids |= set(connection.execute(select(_files.c.batch_id).where(of_replay)).scalars())
            return [_taken_batch(connection, batch_id) for batch_id in sorted(ids)]

    def record_remap(self, topic: TopicName, batch_ids: Sequence[str], plan_id: str) -> None:
        """Record the plan that removes the messages of these batches."""
        of_topic = (_batches.c.topic == key_of(topic)) & _batches.c.batch_id.in_(batch_ids)
        with self._database.writing() as connection:
            connection.execute(update(_batches).where(of_topic).values(remap_plan=plan_id))

    def batches_ingested_instead(self, topic: TopicName, plan_id: str) -> Sequence[str]:
        """Return the batches that ingested the plan's removed messages again, the oldest first."""
        found = select(_batches.c.batch_id).where(_batches.c.topic == key_of(topic), _batches.c.instead_of == plan_id)
        return [row.batch_id for row in self._rows(found.where(_batches.c.state == "done").order_by(_batches.c.event))]

    def taken_batch(self, topic: TopicName, batch_id: str) -> TakenBatch:
        """Raises UnknownBatch."""
        with self._database.reading() as connection:
            row = connection.execute(select(_batches.c.topic).where(_batches.c.batch_id == batch_id)).first()
            if row is None or row.topic != key_of(topic):
                raise unknown_batch(batch_id)
            return _taken_batch(connection, batch_id)

    def finish_batch(
        self,
        batch_id: str,
        *,
        snapshot_id: int | None,
        rows: int,
        quarantined: int,
        refused: Mapping[str, int] | None = None,
        ranges: Sequence[tuple[int, int, int]] | None = None,
    ) -> None:
        """Record that the table has the batch's commit. Repeating the call changes nothing.

        Args:
            batch_id: The id of the batch that has ended.
            snapshot_id: None: every row went to the quarantine.
            rows: Messages that the batch appended.
            quarantined: Rows that the batch refused.
            refused: By path, the number of rows of each file that was refused whole. Such a file may come in again with other content.
            ranges: Its messages, as (partition, first offset, last offset). None: unknown.

        Raises:
            UnknownBatch, BatchNotOpen
        """
        with self._database.writing() as connection:
            if not self._end(
                connection, batch_id, "done", snapshot_id=snapshot_id, rows=rows, quarantined=quarantined, unsettled=quarantined
            ):
                return
            if ranges is not None:
                text = canonical([list(one) for one in ranges])
                connection.execute(update(_batches).where(_batches.c.batch_id == batch_id).values(ranges=text))
            whole = {} if refused is None else refused
            for file in connection.execute(select(_files).where(_files.c.batch_id == batch_id)).all():
                if file.path in whole:
                    kept = {"topic": file.topic, "path": file.path, "batch_id": batch_id, "sha256": file.sha256, "rows": whole[file.path]}
                    add_rows(connection, _refused, [kept])
                    connection.execute(delete(_files).where(_files.c.topic == file.topic, _files.c.path == file.path))
                else:
                    _settle_mended(connection, file.topic, file.path)

    def abandon_batch(self, batch_id: str) -> None:
        """Record that the table has no commit of the batch, so its files are free again. Raises UnknownBatch, BatchNotOpen."""
        with self._database.writing() as connection:
            if self._end(connection, batch_id, "abandoned"):
                connection.execute(delete(_files).where(_files.c.batch_id == batch_id))

    def ingested(self, topic: TopicName) -> Sequence[tuple[Instant, int]]:
        """Return when each batch ended, and the messages that it appended, oldest first."""
        return [(Instant(row.ended_at), int(row.rows or 0)) for row in self._of_topic(_ALL_DONE, topic) if row.ended_at is not None]

    def refused_batches(self, topic: TopicName) -> Sequence[RefusedBatch]:
        """Return the batches with refused rows, the oldest first."""
        return [_refused_batch(topic, row) for row in self._of_topic(_ALL_REFUSED, topic)]

    def settle_batch(self, topic: TopicName, batch_id: str, how: SettledAs, *, by: str | None, why: str | None) -> RefusedBatch:
        """Record who settled the batch's refused rows, and why. A settled batch does not change.

        Raises:
            UnknownBatch: No batch of that id refused rows of this topic.
        """
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            row = _find(connection, batch_id)
            if row is None or row.topic != key_of(topic) or row.state != "done" or not row.quarantined:
                raise unknown_batch(batch_id)
            if row.settled_as is None:
                values = {
                    "unsettled": 0,
                    "settled_as": how,
                    "settled_at": self._database.now(connection),
                    "settled_by": by,
                    "settled_why": why,
                }
                connection.execute(update(_batches).where(_batches.c.batch_id == batch_id).values(values))
            return _refused_batch(topic, connection.execute(select(_batches).where(_batches.c.batch_id == batch_id)).one())

    def set_ingest_setting(self, topic: TopicName, name: str, value: Value) -> None:
        """Record a value that later ingests of the topic need, for example `shift_us`."""
        with self._database.writing() as connection:
            put(connection, _settings, topic=key_of(topic), name=name, value=canonical(value))

    def ingest_settings(self, topic: TopicName) -> Mapping[str, Value]:
        kept = _settings.c
        rows = self._rows(select(kept.name, kept.value).where(kept.topic == key_of(topic)))
        found = settings_from_json("{" + ",".join(f"{canonical(row.name)}:{row.value}" for row in rows) + "}")
        return {name: value for name, value in found.items() if value is not None}

    def _end(self, connection: Connection, batch_id: str, state: str, **result: int | None) -> bool:
        """Return False if the batch has ended in this state already."""
        row = _find(connection, batch_id)
        if row is None:
            raise unknown_batch(batch_id)
        if row.state == state:
            return False
        if row.state != "open":
            raise batch_not_open(batch_id, row.state)
        values = {"state": state, "ended_at": self._database.now(connection), **result}
        connection.execute(update(_batches).where(_batches.c.batch_id == batch_id).values(values))
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class InsteadOf:
    """Batches whose files come in again, because the plan has removed their messages. `by` and `why`: the person and the reason."""

    batch_ids: tuple[str, ...]
    plan_id: str
    by: str
    why: str


def ledger_path_of_replay(batch_id: str, file: str) -> str:
    """Return the ledger's path for the refused rows of one file that come in again."""
    return f"replay {batch_id}/{file}"


def _free_files(connection: Connection, topic: TopicName, given: InsteadOf, now: Instant) -> None:
    """Free the files of the batches. Their refused rows come in again with the files and count as settled (QUA-2)."""
    for table in (_files, _refused):
        connection.execute(delete(table).where(table.c.topic == key_of(topic), table.c.batch_id.in_(given.batch_ids)))
    settled = {"unsettled": 0, "settled_as": "replayed", "settled_at": now, "settled_by": given.by, "settled_why": given.why}
    of_batches = (_batches.c.topic == key_of(topic)) & _batches.c.batch_id.in_(given.batch_ids) & (_batches.c.quarantined > 0)
    connection.execute(update(_batches).where(of_batches, _batches.c.settled_as.is_(None)).values(settled))


def _taken_batch(connection: Connection, batch_id: str) -> TakenBatch:
    row = connection.execute(select(_batches).where(_batches.c.batch_id == batch_id)).one()
    refused = connection.execute(select(_refused.c.path, _refused.c.sha256).where(_refused.c.batch_id == batch_id)).all()
    whole = [SourceFile(path=one.path, size_bytes=0, sha256=one.sha256) for one in refused]
    return TakenBatch(
        batch_id=batch_id,
        is_open=row.state == "open",
        mapping=row.mapping,
        ranges=None if row.ranges is None else tuple((one[0], one[1], one[2]) for one in json.loads(row.ranges)),
        rows=row.rows or 0,
        refused=row.quarantined or 0,
        files=(*_files_of(connection, batch_id), *whole),
        remap_plan=row.remap_plan,
    )


def _settle_mended(connection: Connection, topic: str, path: str) -> None:
    """Settle the refused rows of earlier batches of this file, because a file of that name came in."""
    here = (_refused.c.topic == topic, _refused.c.path == path)
    for row in connection.execute(select(_refused.c.batch_id, _refused.c.rows).where(*here)).all():
        left = {"unsettled": _batches.c.unsettled - row.rows}
        connection.execute(update(_batches).where(_batches.c.batch_id == row.batch_id, _batches.c.settled_as.is_(None)).values(left))
    connection.execute(delete(_refused).where(*here))


def _refused_batch(topic: TopicName, row: FoundRow) -> RefusedBatch:
    return RefusedBatch(
        batch_id=row.batch_id,
        topic=topic,
        begun_at=Instant(row.begun_at),
        ended_at=Instant(row.ended_at),
        rows=row.rows,
        refused=row.quarantined,
        unsettled=row.unsettled or 0,
        settled_as=row.settled_as,
        settled_at=None if row.settled_at is None else Instant(row.settled_at),
        settled_by=row.settled_by,
        settled_why=row.settled_why,
    )


def forget_ingest(connection: Connection, topic: TopicName) -> None:
    """Forget every file, batch and setting of the name, because a new topic of that name starts empty. Runs in the caller's transaction."""
    for table in (_files, _refused, _batches, _settings):
        connection.execute(delete(table).where(table.c.topic == key_of(topic)))


def _files_by_path(topic: TopicName, files: Iterable[SourceFile]) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    for file in files:
        if file.path in found:
            raise repeated_file(str(topic), file.path)
        found[file.path] = file
    return found


def _find(connection: Connection, batch_id: str) -> FoundRow | None:
    return connection.execute(select(_batches).where(_batches.c.batch_id == batch_id).with_for_update()).first()


def _files_of(connection: Connection, batch_id: str) -> tuple[SourceFile, ...]:
    rows = connection.execute(select(_files).where(_files.c.batch_id == batch_id).order_by(_files.c.path))
    return tuple(SourceFile(path=row.path, size_bytes=row.size_bytes, sha256=row.sha256) for row in rows)


def _refuse_second(connection: Connection, topic: TopicName) -> None:
    query = select(_batches).where(_batches.c.topic == key_of(topic), _batches.c.state == "open")
    other = connection.execute(query).first()
    if other is not None:
        raise open_batch(str(topic), other.batch_id, format_to_second(other.begun_at))


def _files_to_ingest(connection: Connection, topic: TopicName, wanted: dict[str, SourceFile]) -> tuple[SourceFile, ...]:
    """Return the files to ingest, in order of their path. A refused file is among them if its content has changed. Raises ChangedFile."""
    taken = set()
    for row in _rows_in_table(connection, _refused, topic, wanted):
        if row.sha256 == wanted[row.path].sha256:
            taken.add(row.path)
        elif _is_replayed(connection, row.batch_id):
            raise changed_file(str(topic), row.path, row.batch_id)
    for row in _rows_of_batches(connection, topic, wanted):
        if row.sha256 != wanted[row.path].sha256:
            raise changed_file(str(topic), row.path, row.batch_id)
        taken.add(row.path)
    return tuple(wanted[path] for path in sorted(wanted) if path not in taken)


def _rows_of_batches(connection: Connection, topic: TopicName, wanted: Iterable[str]) -> Iterator[FoundRow]:
    """Yield the rows of batches with those paths, in order of their path."""
    return _rows_in_table(connection, _files, topic, wanted)


def _is_replayed(connection: Connection, batch_id: str) -> bool:
    """Return True if a replay brought in the batch's refused rows. A mended file would bring them a second time."""
    found = connection.execute(select(_batches.c.settled_as).where(_batches.c.batch_id == batch_id)).scalar_one()
    return bool(found == "replayed")


def _rows_in_table(connection: Connection, table: Table, topic: TopicName, wanted: Iterable[str]) -> Iterator[FoundRow]:
    paths = sorted(wanted)
    for start in range(0, len(paths), _NAMES_AT_ONCE):
        some = paths[start : start + _NAMES_AT_ONCE]
        yield from connection.execute(select(table).where(table.c.topic == key_of(topic), table.c.path.in_(some)).order_by(table.c.path))
