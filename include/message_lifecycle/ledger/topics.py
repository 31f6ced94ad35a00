"""The ledger's state of each topic between runs.

Progress of readers (EXP-6, TTL-6), the last accepted settings (DEL-3), and the next due work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, select, tuple_, union_all, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, corrupt_record, pairs_from_json, settings_from_json, settings_to_json
from message_lifecycle.ledger.database import LedgerPart, add_if_absent, claim_topic, key_of, lock_row, put, topic_of
from message_lifecycle.model.document import OwnChanges, OwnSettings, Synced
from message_lifecycle.model.errors import InvalidSetting, invalid_progress, invalid_server_seq, replica_progress, unknown_consumer
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName, normalise_name, reader_name
from message_lifecycle.model.obligation import OF_TOPIC, Look
from message_lifecycle.model.outcome import DueState
from message_lifecycle.model.people import person_of
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.setting_list import OWN_SETTINGS, Value
from message_lifecycle.model.settings import BY_NAME

_consumers = tables.consumers
_INT32_MAX = 2**31 - 1
_NOTHING_YET = -1


_ALL_CONSUMERS = select(_consumers).order_by(_consumers.c.consumer, _consumers.c.partition)
_ALL_LOOKS = select(tables.looks)


@cache
def _all_settings(table: Table) -> Select[str, str]:
    return select(table.c.topic, table.c.settings)


class TopicState(LedgerPart):
    """Progress of readers, accepted settings, looks and due states.

    Progress is stored by topic, consumer and partition. A consumer's first commit registers it. A replica has the name `stream/topic`,
    which no consumer can have. Any other new value replaces the old value.
    """

    def commit(
        self,
        topic: TopicName,
        consumer: str,
        partition: int,
        offset: int,
        at: Instant | None,
        *,
        end_offset: int | None = None,
    ) -> Progress:
        """Record the last offset that the consumer has processed (Kafka's committed offset minus one), and when.

        Offset -1 registers a consumer that has processed nothing yet. A lower offset is accepted: consumers may reset, as in Kafka, and
        then need the older messages.

        Args:
            topic: The topic that the consumer reads.
            consumer: The consumer's name.
            partition: The partition that the offset belongs to.
            offset: The last processed offset.
            at: Never moves back, because a late commit must not make a consumer look silent. None (unknown) lasts until a commit gives a
                time. Meanwhile the consumer never falls silent.
            end_offset: The partition's end offset, if the caller knows it.

        Raises:
            InvalidName: The consumer's name breaks NAME-1.
            InvalidProgress: The offset is below -1, or the log has not reached it yet.
            ReplicaProgress: The name is a replica's.
        """
        if "/" in consumer:
            self._refuse_replica(topic, consumer)
        name = normalise_name(consumer)
        if not 0 <= partition <= _INT32_MAX:
            raise invalid_progress(name, f"partition {partition}; allowed: 0 to {_INT32_MAX}")
        if not _NOTHING_YET <= offset <= INT64_MAX:
            raise invalid_progress(name, f"offset {offset} of partition {partition}; allowed: {_NOTHING_YET} to {INT64_MAX}")
        if end_offset is not None and offset >= end_offset:
            given = f"offsets below {end_offset}" if end_offset else "no offset"
            raise invalid_progress(name, f"offset {offset} of partition {partition}; the log has given {given} yet")
        key = {"topic": key_of(topic), "consumer": name, "partition": partition}
        with self._database.writing() as connection:
            lock_row(connection, _consumers, **key, offset=offset, at=at, replica=0)
            before = connection.execute(
                select(_consumers.c.at).where(*(_consumers.c[column] == value for column, value in key.items()))
            ).scalar_one()
            latest = at if at is None or before is None else Instant(max(at, before))
            put(connection, _consumers, **key, offset=offset, at=latest, replica=0)
        return Progress(consumer=name, partition=partition, offset=offset, at=latest)

    def register_replica(self, topic: TopicName, replica: TopicName, partitions: int) -> None:
        """Register a replica, unless it is registered. From now on no message of the topic leaves before the replica has copied it (TTL-6)."""
        with self._database.writing() as connection:
            for partition in range(partitions):
                row = {"topic": key_of(topic), "consumer": str(replica), "partition": partition}
                lock_row(connection, _consumers, **row, offset=_NOTHING_YET, at=None, replica=1)

    def set_copied(self, topic: TopicName, replica: TopicName, copied: Mapping[int, int]) -> None:
        """Record by partition the last offset of the topic that the replica's table holds or has passed. A replica never falls silent."""
        with self._database.writing() as connection:
            for partition, offset in sorted(copied.items()):
                row = {"topic": key_of(topic), "consumer": str(replica), "partition": partition}
                put(connection, _consumers, **row, offset=offset, at=None, replica=1)

    def _refuse_replica(self, topic: TopicName, consumer: str) -> None:
        name = reader_name(consumer)
        with self._database.reading() as connection:
            if connection.execute(select(_consumers.c.offset).where(*_is_topic_row(topic, name))).first() is not None:
                raise replica_progress(str(topic), name)

    def remove(self, topic: TopicName, consumer: str) -> str:
        """Forget the consumer or replica in every partition, so that it keeps no message any more. Return its name.

        Raises UnknownConsumer, InvalidName.
        """
        name = reader_name(consumer)
        with self._database.writing() as connection:
            gone = connection.execute(delete(_consumers).where(*_is_topic_row(topic, name)))
            if gone.rowcount == 0:
                raise unknown_consumer(str(topic), name)
        return name

    def consumers(self, topic: TopicName) -> Sequence[Progress]:
        """Return the readers in order of (consumer, partition)."""
        rows = self._of_topic(_ALL_CONSUMERS, topic)
        return [
            Progress(
                consumer=row.consumer, partition=row.partition, offset=row.offset, at=row.at, kind="replica" if row.replica else "consumer"
            )
            for row in rows
        ]

    def replicas(self) -> Sequence[tuple[TopicName, TopicName]]:
        """Return (origin, replica) of every registered replica, in order."""
        pair = (_consumers.c.topic, _consumers.c.consumer)
        rows = self._rows(select(*pair).where(_consumers.c.replica == 1).distinct().order_by(*pair))
        return [(topic_of(row.topic), topic_of(row.consumer)) for row in rows]

    def set_accepted(self, topic: TopicName, values: Mapping[str, Value | None], *, by: str | None = None, text: str | None = None) -> None:
        """Record the settings that are accepted for the topic's removals. `by`, `text`: the person who accepted them, and why (DEL-3).

        Raises UnnamedPerson, MixedScripts.
        """
        by = None if by is None else person_of(by)
        with self._database.writing() as connection:
            at = self._database.now(connection)
            put(
                connection,
                tables.accepted_settings,
                topic=key_of(topic),
                settings=settings_to_json(values),
                at=at,
                accepted_by=by,
                word=text,
            )

    def accepted(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """Return the accepted settings. None: unknown, so the first removal needs a person's approval."""
        return self._settings_in(tables.accepted_settings, topic)

    def known_topics(self) -> Mapping[TopicName, Instant]:
        """Return the topics that were made or accepted under this ledger, with the time of the last such record."""
        said = union_all(*(select(kept.c.topic, kept.c.at) for kept in (tables.accepted_settings, tables.accepted_ledgers))).subquery()
        rows = self._rows(select(said.c.topic, said.c.at).order_by(said.c.at))
        return {topic_of(row.topic): Instant(row.at) for row in rows}

    def forget_topic(self, topic: TopicName) -> None:
        """Forget that the topic exists. Its history stays."""
        with self._database.writing() as connection:
            for kept in (tables.accepted_settings, tables.accepted_ledgers):
                connection.execute(delete(kept).where(kept.c.topic == key_of(topic)))

    def set_accepted_view(self, topic: TopicName, values: Mapping[str, Value | None] | None) -> None:
        """Record the settings that shaped the topic's compacted view. None: forget the view."""
        with self._database.writing() as connection:
            connection.execute(delete(tables.accepted_views).where(tables.accepted_views.c.topic == key_of(topic)))
            if values is not None:
                put(connection, tables.accepted_views, topic=key_of(topic), settings=settings_to_json(values))

    def accepted_view(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """Return the settings that shaped the topic's compacted view. None: this ledger knows no compaction of the topic."""
        return self._settings_in(tables.accepted_views, topic)

    def _settings_in(self, table: Table, topic: TopicName) -> Mapping[str, Value | None] | None:
        return next((settings_from_json(row.settings) for row in self._of_topic(_all_settings(table), topic)), None)

    def set_last_swept_snapshot(self, topic: TopicName, snapshot_id: int) -> None:
        """Record the last snapshot whose removals by other writers have their markers (MRK-2)."""
        with self._database.writing() as connection:
            put(connection, tables.swept, topic=key_of(topic), snapshot_id=snapshot_id)

    def last_swept_snapshot(self, topic: TopicName) -> int | None:
        """Return the last swept snapshot. None: no sweep yet."""
        kept = tables.swept.c
        return self._scalar(select(kept.snapshot_id).where(kept.topic == key_of(topic)))

    def set_looks(self, operation: Operation, found: Mapping[TopicName, bool], *, as_of: Instant) -> None:
        """Record that a run has looked at these topics now.

        Args:
            operation: The operation of the run.
            found: True: the topic had nothing due at `as_of` and nothing held. That time never moves back.
            as_of: The instant by which the run judged.
        """
        with self._database.writing() as connection:
            at = self._database.now(connection)
            for topic, settled in sorted(found.items()):
                _note(connection, topic, operation, looked_at=at, settled_at=as_of if settled else None)

    def note_topic(self, topic: TopicName, *, anew: bool) -> None:
        """Record that the topic has its present form since now: it is new, has other settings, or was restored.

        Args:
            topic: The topic that is new or has changed.
            anew: The topic is new, so nothing was due before now.
        """
        with self._database.writing() as connection:
            at = self._database.now(connection)
            _note(connection, topic, OF_TOPIC, looked_at=at, settled_at=at if anew else None)

    def looks(self, topic: TopicName) -> Mapping[str, Look]:
        """Return the looks by operation.

        The look `OF_TOPIC` has the time of the topic's present form, and the time when the topic was made. None: older than this record.
        """
        rows = self._of_topic(_ALL_LOOKS, topic)
        return {row.operation: Look(looked_at=row.looked_at, settled_at=row.settled_at) for row in rows}

    def set_due_state(self, topic: TopicName, state: DueState) -> None:
        with self._database.writing() as connection:
            put(
                connection,
                tables.due_states,
                topic=key_of(topic),
                marker=state.marker,
                policy_hash=state.policy_hash,
                next_due_at=state.next_due_at,
                holders=canonical(state.holders),
            )

    def due_states(self) -> Mapping[TopicName, DueState]:
        """Return the due states of all topics in one query, because the due check must stay cheap."""
        rows = self._rows(select(tables.due_states))
        return {
            topic_of(row.topic): DueState(
                marker=row.marker,
                policy_hash=row.policy_hash,
                next_due_at=row.next_due_at,
                holders=pairs_from_json(row.holders),
            )
            for row in rows
        }


def _note(connection: Connection, topic: TopicName, operation: str, *, looked_at: Instant, settled_at: Instant | None) -> None:
    key = {"topic": key_of(topic), "operation": operation}
    lock_row(connection, tables.looks, **key, looked_at=looked_at, settled_at=settled_at)
    kept = tables.looks.c
    row = update(tables.looks).where(*(kept[column] == value for column, value in key.items()))
    connection.execute(row.values(looked_at=looked_at))
    if settled_at is not None:
        connection.execute(row.where(kept.settled_at.is_(None) | (kept.settled_at < settled_at)).values(settled_at=settled_at))


def forget_progress(connection: Connection, topic: TopicName) -> None:
    """Reset the progress of every reader of the topic, and of the topic as a replica. Readers stay registered (EXP-6, TTL-6).

    Offsets of a vanished log name other messages now. As progress they would release messages that nobody has read. The topic's looks are
    deleted, too.
    """
    connection.execute(delete(tables.looks).where(tables.looks.c.topic == key_of(topic)))
    own = (_consumers.c.consumer == str(topic)) & (_consumers.c.replica == 1)
    connection.execute(update(_consumers).where((_consumers.c.topic == key_of(topic)) | own).values(offset=_NOTHING_YET))


def _is_topic_row(topic: TopicName, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _consumers.c.topic == key_of(topic), _consumers.c.consumer == name


# Progress of clients on each document (SNP-3), and settings of users and documents with owners (SNP-9).
#
# Every look at a topic reads all of it: as many rows as the topic has documents and clients. So this code must be fast and light.


_synced = tables.synced_seqs
_settings = tables.document_settings
_owners = tables.document_owners
_LEVELS = ("user", "document")
_ROWS_AT_ONCE = 500


class Documents(LedgerPart):
    """Progress of clients and settings of documents. Every name of a document, client or user is normalised here (NAME-1)."""

    def synced(self, topic: TopicName, document: str | None = None) -> Sequence[Synced]:
        """Return the progress of clients, grouped by document, clients in order. None: of every document."""
        query = select(_synced.c.document, _synced.c.client, _synced.c.server_seq, _synced.c.at).where(_synced.c.topic == key_of(topic))
        if document is not None:
            query = query.where(_synced.c.document == normalise_name(document))
        rows = self._rows(query.order_by(_synced.c.document, _synced.c.client))
        return [Synced(document=row.document, client=row.client, server_seq=row.server_seq, at=row.at) for row in rows]

    def replace_synced(self, topic: TopicName, document: str, client: str, *, seen: Synced | None, to: Synced | None) -> bool:
        """Replace the client's row `seen` with `to` in one statement. Return False if the row is no longer `seen`.

        None means no row. A client at 0 has no row either, because it does not pin (SNP-5). `to` may have a lower server_seq or an earlier
        time: the caller has seen the row and decides.

        Raises InvalidName, InvalidServerSeq.
        """
        key = _row_of(topic, document, client)
        if to is not None and not 1 <= to.server_seq <= INT64_MAX:
            raise invalid_server_seq(key["document"], to.server_seq, f"1 to {INT64_MAX}")
        was = {} if seen is None else {"server_seq": seen.server_seq, "at": seen.at}
        with self._database.writing() as connection:
            if seen is None and to is None:
                return connection.execute(select(_synced.c.client).filter_by(**key)).first() is None
            if to is None:
                return connection.execute(delete(_synced).filter_by(**key, **was)).rowcount > 0
            if seen is None:
                return add_if_absent(connection, _synced, **key, server_seq=to.server_seq, at=to.at)
            return connection.execute(update(_synced).filter_by(**key, **was).values(server_seq=to.server_seq, at=to.at)).rowcount > 0

    def record_client_seen(self, topic: TopicName, document: str, client: str, at: Instant) -> bool:
        """Move the time of the client's row forward, because the client has asked for something (SNP-3). Its proved server_seq stays.

        Return True if the row had an older time. Raises InvalidName.
        """
        key = _row_of(topic, document, client)
        with self._database.writing() as connection:
            return connection.execute(update(_synced).filter_by(**key).where(_synced.c.at < at).values(at=at)).rowcount > 0

    def detach(self, topic: TopicName, document: str, client: str) -> bool:
        """Delete the client's row. Return True if the row existed. Raises InvalidName."""
        key = _row_of(topic, document, client)
        with self._database.writing() as connection:
            return connection.execute(delete(_synced).filter_by(**key)).rowcount > 0

    def detach_silent(self, topic: TopicName, rows: Sequence[Synced]) -> int:
        """Delete these rows in one transaction and return the number of deleted rows.

        A row is deleted only if it is unchanged, because its client may have come back since. A row with an unknown time is never silent,
        and stays.
        """
        found = 0
        columns = tuple_(_synced.c.document, _synced.c.client, _synced.c.server_seq, _synced.c.at)
        with self._database.writing() as connection:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                some = [(row.document, row.client, row.server_seq, row.at) for row in rows[start : start + _ROWS_AT_ONCE]]
                gone = delete(_synced).where(_synced.c.topic == key_of(topic), columns.in_(some))
                found += connection.execute(gone).rowcount
        return found

    def settings_below_topic(self, topic: TopicName) -> OwnSettings:
        """Return every setting below the topic. Raises CorruptRecord."""
        with self._database.reading() as connection:
            return _settings_below_topic(connection, topic)

    def alter_own_settings(self, topic: TopicName, changes: OwnChanges, *, check: Callable[[OwnSettings], None]) -> None:
        """Apply every change in one transaction, or none.

        Args:
            topic: The topic of the documents.
            changes: The changes of settings and owners below the topic, of users and documents.
            check: Receives the settings after the changes, and raises if they do not fit together (SNP-5). Concurrent changes wait or are
                included. `check` must not query the ledger.

        Raises InvalidName, InvalidSetting, CorruptRecord, and the errors of `check`.
        """
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            for level, named in (("user", changes.users), ("document", changes.documents)):
                for name, settings in named.items():
                    for setting, value in settings.items():
                        _set(connection, topic, level, normalise_name(name), setting, value)
            for document, owner in changes.owners.items():
                _set_owner(connection, topic, document, owner)
            check(_settings_below_topic(connection, topic))


def _row_of(topic: TopicName, document: str, client: str) -> dict[str, str]:
    """Raises InvalidName."""
    return {"topic": key_of(topic), "document": normalise_name(document), "client": normalise_name(client)}


def forget_documents(connection: Connection, topic: TopicName) -> None:
    """Forget clients, settings and owners of the topic's documents.

    A server_seq of a vanished document names another change now. As progress it would release changes that no client has.
    """
    for table in (_synced, _settings, _owners):
        connection.execute(delete(table).where(table.c.topic == key_of(topic)))


def _parse_setting(setting: str, text: str, where: str) -> Value:
    """Parse without pydantic, because every due check reads settings.

    Raises:
        CorruptRecord: The value is not readable. Without an error, the setting would keep nothing.
    """
    known = BY_NAME.get(setting)
    if known is None:
        raise corrupt_record(f"a setting of {where}", f"this program knows no {setting}")
    try:
        return known.check(json.loads(text), where=where)
    except (ValueError, InvalidSetting) as error:
        raise corrupt_record(f"{setting} of {where}", str(error)) from error


def _settings_below_topic(connection: Connection, topic: TopicName) -> OwnSettings:
    found: dict[str, dict[str, dict[str, Value]]] = {level: {} for level in _LEVELS}
    settings = connection.execute(
        select(_settings.c.level, _settings.c.name, _settings.c.setting, _settings.c.value).where(_settings.c.topic == key_of(topic))
    ).all()
    owners = connection.execute(select(_owners.c.document, _owners.c.owner).where(_owners.c.topic == key_of(topic))).all()
    for level, name, setting, text in settings:
        if level not in found:
            raise corrupt_record(f"a setting of {topic}", f"level {level!r}")
        found[level].setdefault(name, {})[setting] = _parse_setting(setting, text, f"{level} {name} of {topic}")
    return OwnSettings(users=found["user"], documents=found["document"], owners=dict(owners))


def _set(connection: Connection, topic: TopicName, level: str, name: str, setting: str, value: Value | None) -> None:
    where = f"{level} {name} of {topic}"
    if setting not in OWN_SETTINGS:
        raise InvalidSetting(where=where, key=setting, value=value, allowed=f"one of {', '.join(OWN_SETTINGS)} (SNP-9)")
    key = {"topic": key_of(topic), "level": level, "name": name, "setting": setting}
    if value is None:
        connection.execute(delete(_settings).filter_by(**key))
    else:
        put(connection, _settings, **key, value=canonical(BY_NAME[setting].check(value, where=where)))


def _set_owner(connection: Connection, topic: TopicName, document: str, owner: str | None) -> None:
    key = {"topic": key_of(topic), "document": normalise_name(document)}
    if owner is None:
        connection.execute(delete(_owners).filter_by(**key))
    else:
        put(connection, _owners, **key, owner=normalise_name(owner))
