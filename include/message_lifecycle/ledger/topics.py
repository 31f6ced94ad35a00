"""What is kept per topic between runs: who has read how far (EXP-6, TTL-6), the settings last accepted (DEL-3), what is due next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, delete, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, pairs_from_json, settings_from_json, settings_to_json
from message_lifecycle.ledger.database import Part, key_of, lock_row, put, topic_of
from message_lifecycle.model.errors import invalid_progress, replica_progress, unknown_consumer
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName, normalise_name, reader_name
from message_lifecycle.model.records import DueState
from message_lifecycle.model.settings import Value

_consumers = tables.consumers
_INT32_MAX = 2**31 - 1
_NOTHING_YET = -1


class TopicState(Part):
    """Progress stands per topic, consumer and partition; a consumer is registered by its first commit, and a replica stands under its
    `stream/topic`, which no consumer can have as its name. Of all else each value replaces the one before."""

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

        A lower offset than before is taken as it is: consumers may reset, as in Kafka, and then need the older messages.
        `at` never moves back, as a commit that comes late must not make a consumer look silent; None (unknown) stays for
        as long as it is given, and never falls silent. `end_offset`: the partition's, where the caller knows it.
        Raises InvalidName, InvalidProgress for a negative number or an offset that the log has not given yet, and
        ReplicaProgress for a replica's name.
        """
        if "/" in consumer:
            self._refuse_replica(topic, consumer)
        name = normalise_name(consumer)
        if not 0 <= partition <= _INT32_MAX:
            raise invalid_progress(name, f"partition {partition}; allowed: 0 to {_INT32_MAX}")
        if not 0 <= offset <= INT64_MAX:
            raise invalid_progress(name, f"offset {offset} of partition {partition}; allowed: 0 to {INT64_MAX}")
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
        """From now on nothing of the topic goes before the replica has copied it; one that is registered stays as it is (TTL-6)."""
        with self._database.writing() as connection:
            for partition in range(partitions):
                row = {"topic": key_of(topic), "consumer": str(replica), "partition": partition}
                lock_row(connection, _consumers, **row, offset=_NOTHING_YET, at=None, replica=1)

    def set_copied(self, topic: TopicName, replica: TopicName, copied: Mapping[int, int]) -> None:
        """The last offset of the topic by partition that the replica's table holds or has passed. It never falls silent."""
        with self._database.writing() as connection:
            for partition, offset in sorted(copied.items()):
                row = {"topic": key_of(topic), "consumer": str(replica), "partition": partition}
                put(connection, _consumers, **row, offset=offset, at=None, replica=1)

    def _refuse_replica(self, topic: TopicName, consumer: str) -> None:
        name = str(TopicName.parse(consumer))
        with self._database.reading() as connection:
            if connection.execute(select(_consumers.c.offset).where(*_is(topic, name))).first() is not None:
                raise replica_progress(str(topic), name)

    def remove(self, topic: TopicName, consumer: str) -> None:
        """Forget the consumer or replica in every partition: it keeps no message any more. Raises UnknownConsumer, InvalidName."""
        name = reader_name(consumer)
        with self._database.writing() as connection:
            gone = connection.execute(delete(_consumers).where(*_is(topic, name)))
            if gone.rowcount == 0:
                raise unknown_consumer(str(topic), name)

    def consumers(self, topic: TopicName) -> Sequence[Progress]:
        """In order of (consumer, partition); none registered: empty."""
        query = select(_consumers).where(_consumers.c.topic == key_of(topic)).order_by(_consumers.c.consumer, _consumers.c.partition)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [
            Progress(
                consumer=row.consumer, partition=row.partition, offset=row.offset, at=row.at, kind="replica" if row.replica else "consumer"
            )
            for row in rows
        ]

    def replicas(self) -> Sequence[tuple[TopicName, TopicName]]:
        """(origin, replica) of all that are registered, in order."""
        pair = (_consumers.c.topic, _consumers.c.consumer)
        with self._database.reading() as connection:
            rows = connection.execute(select(*pair).where(_consumers.c.replica == 1).distinct().order_by(*pair)).all()
        return [(topic_of(row.topic), topic_of(row.consumer)) for row in rows]

    def set_accepted(self, topic: TopicName, values: Mapping[str, Value | None], *, by: str | None = None, text: str | None = None) -> None:
        """Keep the settings under which the topic's removals are accepted now; `by`, `text`: a person's word for them (DEL-3)."""
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
        """None: not known, so that the first removal needs a person's word."""
        kept = tables.accepted_settings.c
        with self._database.reading() as connection:
            text = connection.execute(select(kept.settings).where(kept.topic == key_of(topic))).scalar_one_or_none()
        return None if text is None else settings_from_json(text)

    def set_accepted_view(self, topic: TopicName, values: Mapping[str, Value | None] | None) -> None:
        """Keep the settings under which the topic's compacted view is as it is; None: forget that there was one."""
        with self._database.writing() as connection:
            connection.execute(delete(tables.accepted_views).where(tables.accepted_views.c.topic == key_of(topic)))
            if values is not None:
                put(connection, tables.accepted_views, topic=key_of(topic), settings=settings_to_json(values))

    def accepted_view(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """None: nothing of the topic was ever compacted, as far as this ledger knows."""
        kept = tables.accepted_views.c
        with self._database.reading() as connection:
            text = connection.execute(select(kept.settings).where(kept.topic == key_of(topic))).scalar_one_or_none()
        return None if text is None else settings_from_json(text)

    def set_swept(self, topic: TopicName, snapshot_id: int) -> None:
        """Keep up to which snapshot markers owed for other writers' removals have been made (MRK-2)."""
        with self._database.writing() as connection:
            put(connection, tables.swept, topic=key_of(topic), snapshot_id=snapshot_id)

    def swept(self, topic: TopicName) -> int | None:
        """None: no sweep yet."""
        kept = tables.swept.c
        with self._database.reading() as connection:
            found: int | None = connection.execute(select(kept.snapshot_id).where(kept.topic == key_of(topic))).scalar_one_or_none()
        return found

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
        """All topics in one query: the due check must stay cheap."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.due_states)).all()
        return {
            topic_of(row.topic): DueState(
                marker=row.marker,
                policy_hash=row.policy_hash,
                next_due_at=row.next_due_at,
                holders=pairs_from_json(row.holders),
            )
            for row in rows
        }


def forget_progress(connection: Connection, topic: TopicName) -> None:
    """All that is registered for the topic or for what it copies goes on from nothing; who is registered, stays (EXP-6, TTL-6).

    Offsets of a log that is gone name other messages now: taken for progress, they would let go what nobody has read."""
    own = (_consumers.c.consumer == str(topic)) & (_consumers.c.replica == 1)
    connection.execute(update(_consumers).where((_consumers.c.topic == key_of(topic)) | own).values(offset=_NOTHING_YET))


def _is(topic: TopicName, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _consumers.c.topic == key_of(topic), _consumers.c.consumer == name
