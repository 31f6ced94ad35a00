"""What the parts of the ledger share: the database, numbering, and topics as text."""

from __future__ import annotations

from sqlalchemy import Connection, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import Database, lock_row
from message_lifecycle.model.names import TopicName


class Part:
    """One concern of the ledger; `ledger.SqlLedger` is all of them over one database."""

    def __init__(self, database: Database) -> None:
        self._database = database


def key_of(topic: TopicName) -> str:
    """`stream/topic`; no name holds a slash, so two topics never share a key."""
    return str(topic)


def topic_of(key: str) -> TopicName:
    """Not parsed again: the name was normalised when it was recorded, under the rules of that day."""
    stream, _, topic = key.partition("/")
    return TopicName(stream=stream, topic=topic)


def next_event(connection: Connection) -> int:
    """A number greater than that of every row committed before. Waits for other writers' ends: take it last."""
    grown = update(tables.meta).values(event=tables.meta.c.event + 1).returning(tables.meta.c.event)
    return int(connection.execute(grown).scalar_one())


def claim_topic(connection: Connection, topic: TopicName) -> None:
    """Until the transaction ends, no other one records a plan or a batch of this topic."""
    lock_row(connection, tables.topics, topic=key_of(topic), last_sequence=0)
