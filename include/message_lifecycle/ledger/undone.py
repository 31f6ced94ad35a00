"""Plans that were taken back, and the messages that came back with them: nothing takes those again without a person's word (DEL-7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import add_rows
from message_lifecycle.ledger.part import Part, key_of, topic_of
from message_lifecycle.model.errors import NotUndone, UnnamedApproval
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.undo import Range, Undone

_undone, _ranges = tables.undone, tables.undone_ranges


class UndoneMemory(Part):
    """Each plan is taken back once; the first undo of it stands that came to its end."""

    def set_undone(self, topic: TopicName, plan_id: str, undone_by: str, ranges: Iterable[Range]) -> None:
        """Keep that the plan was taken back by the plan `undone_by`, and what came back. The same again changes nothing; where an undo came
        to the first of its two commits alone, the one that brings the rest takes its place."""
        with self._database.writing() as connection:
            row = _row(connection, plan_id)
            if row is not None:
                if row.undone_by != undone_by and _gave_way(connection, row.undone_by):
                    connection.execute(update(_undone).where(_undone.c.plan_id == plan_id).values(undone_by=undone_by))
                return
            at = self._database.now(connection)
            connection.execute(insert(_undone).values(plan_id=plan_id, topic=key_of(topic), undone_by=undone_by, undone_at=at))
            rows = [
                {"plan_id": plan_id, "partition": partition, "first_offset": first, "last_offset": last}
                for partition, first, last in ranges
            ]
            add_rows(connection, _ranges, rows)

    def undone(self, topic: TopicName) -> Sequence[Undone]:
        """All of the topic's, released ones too, the first first."""
        query = select(_undone).where(_undone.c.topic == key_of(topic)).order_by(_undone.c.undone_at, _undone.c.plan_id)
        with self._database.reading() as connection:
            return [_read(connection, row) for row in connection.execute(query).all()]

    def undoing(self, plan_id: str) -> Undone | None:
        """How the plan was taken back; None: it was not."""
        with self._database.reading() as connection:
            row = _row(connection, plan_id)
            return None if row is None else _read(connection, row)

    def release_undone(self, plan_id: str, *, by: str, text: str) -> Undone:
        """From now on the rules take its messages again; the first release stands. Raises NotUndone, UnnamedApproval."""
        if not by.strip():
            raise UnnamedApproval(plan_id)
        with self._database.writing() as connection:
            first = (_undone.c.plan_id == plan_id) & _undone.c.released_at.is_(None)
            at = self._database.now(connection)
            connection.execute(update(_undone).where(first).values(released_at=at, released_by=by, word=text))
            row = _row(connection, plan_id)
            if row is None:
                raise NotUndone(plan_id)
            return _read(connection, row)


def forget_undone(connection: Connection, topic: TopicName) -> None:
    """Within the caller's transaction: a topic of that name is made anew."""
    of_topic = select(_undone.c.plan_id).where(_undone.c.topic == key_of(topic))
    connection.execute(delete(_ranges).where(_ranges.c.plan_id.in_(of_topic)))
    connection.execute(delete(_undone).where(_undone.c.topic == key_of(topic)))


def _row(connection: Connection, plan_id: str) -> Row[Any] | None:
    return connection.execute(select(_undone).where(_undone.c.plan_id == plan_id)).first()


def _gave_way(connection: Connection, undo_id: str) -> bool:
    """Whether it was closed before all of it was done."""
    found = connection.execute(select(tables.plans.c.outcome_name).where(tables.plans.c.plan_id == undo_id)).scalar_one_or_none()
    return found not in (None, "published", "failed")


def _read(connection: Connection, row: Row[Any]) -> Undone:
    of_plan = select(_ranges).where(_ranges.c.plan_id == row.plan_id).order_by(_ranges.c.partition, _ranges.c.first_offset)
    return Undone(
        plan_id=row.plan_id,
        topic=topic_of(row.topic),
        undone_by=row.undone_by,
        undone_at=Instant(row.undone_at),
        ranges=tuple((found.partition, found.first_offset, found.last_offset) for found in connection.execute(of_plan)),
        released_at=None if row.released_at is None else Instant(row.released_at),
        released_by=row.released_by,
        text=row.word,
    )
