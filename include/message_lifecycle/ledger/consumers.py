"""Registered consumers and how far each has read (EXP-6); replicas and how far each has copied (TTL-6).

A replica stands here under its `stream/topic`, which no consumer can have as its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, delete, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import lock_row, put
from message_lifecycle.ledger.part import Part, key_of, topic_of
from message_lifecycle.model.errors import InvalidProgress, ReplicaProgress, UnknownConsumer
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName, normalise_name, reader_name

_consumers = tables.consumers
_INT32_MAX = 2**31 - 1
_NOTHING_YET = -1


class Consumers(Part):
    """Progress per topic, consumer and partition; a consumer is registered by its first commit."""

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
            raise InvalidProgress(name, f"partition {partition}; allowed: 0 to {_INT32_MAX}")
        if not 0 <= offset <= INT64_MAX:
            raise InvalidProgress(name, f"offset {offset} of partition {partition}; allowed: 0 to {INT64_MAX}")
        if end_offset is not None and offset >= end_offset:
            given = f"offsets below {end_offset}" if end_offset else "no offset"
            raise InvalidProgress(name, f"offset {offset} of partition {partition}; the log has given {given} yet")
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
                raise ReplicaProgress(str(topic), name)

    def remove(self, topic: TopicName, consumer: str) -> None:
        """Forget the consumer or replica in every partition: it keeps no message any more. Raises UnknownConsumer, InvalidName."""
        name = reader_name(consumer)
        with self._database.writing() as connection:
            gone = connection.execute(delete(_consumers).where(*_is(topic, name)))
            if gone.rowcount == 0:
                raise UnknownConsumer(str(topic), name)

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


def forget_progress(connection: Connection, topic: TopicName) -> None:
    """All that is registered for the topic or for what it copies goes on from nothing; who is registered, stays (EXP-6, TTL-6).

    Offsets of a log that is gone name other messages now: taken for progress, they would let go what nobody has read."""
    own = (_consumers.c.consumer == str(topic)) & (_consumers.c.replica == 1)
    connection.execute(update(_consumers).where((_consumers.c.topic == key_of(topic)) | own).values(offset=_NOTHING_YET))


def _is(topic: TopicName, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _consumers.c.topic == key_of(topic), _consumers.c.consumer == name
