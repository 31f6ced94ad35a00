"""The ledger's records of a topic's tables: our newest commit on each, the tables next to the log, and repairs by people (MSG-4)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import LedgerPart, key_of, put
from message_lifecycle.ledger.tables import FoundRow
from message_lifecycle.model.facts import LogWitness
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

_kept = tables.log_witnesses
_EVERY = select(_kept)
_beside = tables.tables_beside


class TableRecords(LedgerPart):
    """The tables that hold a log and its compacted view, and the other tables of a topic."""

    def log_witness(self, table_uuid: str) -> LogWitness | None:
        """Return our newest recorded commit on the table, or None."""
        looked = self._in_look(_EVERY, "table_uuid", table_uuid)
        return next(map(_witness, self._rows(_EVERY.where(_kept.c.table_uuid == table_uuid)) if looked is None else looked), None)

    def log_witnesses(self, topic: TopicName) -> list[LogWitness]:
        """Return the newest commit on each table that was ever the topic's log, as far as the ledger knows."""
        return list(map(_witness, self._rows(select(_kept).where(_kept.c.topic == key_of(topic), _kept.c.kind == ""))))

    def side_tables(self, topic: TopicName) -> dict[str, str]:
        """Return the kind of each table that the topic ever had next to its log, by uuid. Tables that a person gave up are left out."""
        known = (_beside.c.topic == key_of(topic), _beside.c.given_up_at.is_(None))
        rows = self._rows(select(_beside.c.table_uuid, _beside.c.kind).where(*known).order_by(_beside.c.kind, _beside.c.table_uuid))
        return {row.table_uuid: row.kind for row in rows}

    def record_side_tables(self, topic: TopicName, kinds: Mapping[str, str]) -> None:
        """Record these tables next to the topic's log. A table that a person gave up counts again.

        Args:
            topic: The topic that the tables belong to.
            kinds: The kind of each table by its uuid.
        """
        with self._database.writing() as connection:
            for table_uuid, kind in kinds.items():
                put(
                    connection,
                    _beside,
                    table_uuid=table_uuid,
                    topic=key_of(topic),
                    kind=kind,
                    missed_at=None,
                    given_up_by=None,
                    word=None,
                    given_up_at=None,
                )

    def record_missed_tables(self, table_uuids: Iterable[str]) -> None:
        """Record that a search of the topic has missed these tables."""
        with self._database.writing() as connection:
            missed = {"missed_at": self._database.now(connection)}
            connection.execute(update(_beside).where(_beside.c.table_uuid.in_(list(table_uuids))).values(**missed))

    def missed_tables(self, topic: TopicName) -> dict[str, tuple[str, Instant]]:
        """Return, by uuid, the kind of each table that a search has missed, and the time of the last such search."""
        known = (_beside.c.topic == key_of(topic), _beside.c.given_up_at.is_(None), _beside.c.missed_at.is_not(None))
        rows = self._rows(select(_beside.c.table_uuid, _beside.c.kind, _beside.c.missed_at).where(*known).order_by(_beside.c.table_uuid))
        return {row.table_uuid: (row.kind, Instant(row.missed_at)) for row in rows}

    def give_up_table(self, table_uuid: str, *, by: str, text: str) -> None:
        """Record that a missing table will not return.

        Args:
            table_uuid: The missing table.
            by: The person who gave the table up.
            text: Why that person did so.
        """
        with self._database.writing() as connection:
            given_up = {"given_up_by": by, "word": text, "given_up_at": self._database.now(connection)}
            connection.execute(update(_beside).where(_beside.c.table_uuid == table_uuid).values(**given_up))

    def record_log_witnesses(
        self, topic: TopicName, found: Sequence[LogWitness], *, by: str | None = None, text: str | None = None
    ) -> None:
        """Keep these commits as the newest ones of their tables.

        Args:
            topic: The topic that the tables belong to.
            found: The newest commit on each table.
            by: The person who repaired the state or accepted a rollback. Without one, an older commit never replaces a newer one.
            text: Why that person did so.
        """
        with self._database.writing() as connection:
            at = self._database.now(connection)
            for one in found:
                known = connection.execute(select(_kept.c.sequence_number).where(_kept.c.table_uuid == one.table_uuid)).scalar_one_or_none()
                if by is None and known is not None and known >= one.sequence_number:
                    continue
                said = {
                    "topic": key_of(topic),
                    "kind": one.kind,
                    "snapshot_id": one.snapshot_id,
                    "sequence_number": one.sequence_number,
                    "offsets": json.dumps({str(partition): offset for partition, offset in sorted(one.offsets.items())}),
                    "state": json.dumps(dict(one.state), sort_keys=True),
                    "at": at,
                }
                if known is not None and by is None:
                    connection.execute(update(_kept).where(_kept.c.table_uuid == one.table_uuid).values(**said))
                else:
                    repaired = {} if by is None else {"repaired_by": by, "word": text, "repaired_at": at}
                    put(connection, _kept, table_uuid=one.table_uuid, **said, **repaired)

    def set_back_consumers(self, topic: TopicName, read: Mapping[int, int]) -> list[tuple[str, int, int]]:
        """Set back consumers that have read further than these offsets, which are the last offsets of each partition.

        Returns:
            Consumer, partition and former offset of each row that changed.
        """
        consumers, changed = tables.consumers, list[tuple[str, int, int]]()
        with self._database.writing() as connection:
            for partition, last in sorted(read.items()):
                further = (
                    consumers.c.topic == key_of(topic),
                    consumers.c.partition == partition,
                    consumers.c.offset > last,
                    consumers.c.replica == 0,
                )
                rows = connection.execute(
                    select(consumers.c.consumer, consumers.c.offset).where(*further).order_by(consumers.c.consumer)
                ).all()
                changed += [(row.consumer, partition, row.offset) for row in rows]
                connection.execute(update(consumers).where(*further).values(offset=last))
        return changed

    def forget_batches(self, topic: TopicName, snapshots: Sequence[int]) -> list[str]:
        """Forget the batches of these snapshots, so that their files can come in again.

        Returns:
            The files of those batches.
        """
        batches, files, paths = tables.batches, tables.batch_files, list[str]()
        with self._database.writing() as connection:
            of_topic = select(batches.c.batch_id).where(batches.c.topic == key_of(topic), batches.c.snapshot_id.in_(list(snapshots)))
            for batch_id in connection.execute(of_topic).scalars().all():
                paths += connection.execute(select(files.c.path).where(files.c.batch_id == batch_id).order_by(files.c.path)).scalars().all()
                connection.execute(files.delete().where(files.c.batch_id == batch_id))
                connection.execute(update(batches).where(batches.c.batch_id == batch_id).values(state="abandoned"))
        return paths


def _witness(row: FoundRow) -> LogWitness:
    return LogWitness(
        table_uuid=row.table_uuid,
        kind=row.kind,
        snapshot_id=row.snapshot_id,
        sequence_number=row.sequence_number,
        offsets={int(partition): int(offset) for partition, offset in json.loads(row.offsets).items()},
        state=json.loads(row.state),
    )
