"""Who keeps what from the rules: legal holds (DEL-8), and the undo of a plan, whose messages have come back (DEL-7).

A key stands here only while its hold does: on release its digest alone is left, for the key itself may be erased later.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from sqlalchemy import Connection, Row, delete, insert, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import Part, add_if_absent, add_rows, key_of, topic_of
from message_lifecycle.ledger.errors import corrupt_record
from message_lifecycle.model.errors import hold_released, invalid_hold, not_undone, unknown_hold, unnamed_approval
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold, What
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.undo import Range, Undone

_holds = tables.holds
_undone, _ranges = tables.undone, tables.undone_ranges


class Holds(Part):
    """Each hold is placed once and released once, by a named person with a reason. Each plan is taken back once; the first undo of it
    stands that came to its end, and nothing takes its messages again without a person's word."""

    def holds(self, topic: TopicName | None = None, *, released: bool = False) -> Sequence[Hold]:
        """Of one topic or of all, those that stand or `released` ones too, in the order in which they were placed."""
        query = select(_holds).order_by(_holds.c.placed_at, _holds.c.hold_id)
        if topic is not None:
            query = query.where(_holds.c.topic == key_of(topic))
        if not released:
            query = query.where(_holds.c.released_at.is_(None))
        return [_hold_of(row) for row in self._rows(query)]

    def hold(self, hold_id: str) -> Hold:
        """By id or a unique beginning of one. Raises UnknownHold."""
        beginning = _holds.c.hold_id.startswith(hold_id, autoescape=True)
        rows = self._rows(select(_holds).where(beginning).order_by(_holds.c.hold_id).limit(5))
        if len(rows) != 1 or not hold_id:
            raise unknown_hold(hold_id, [row.hold_id for row in rows])
        return _hold_of(rows[0])

    def add_hold(self, hold: Hold) -> Hold:
        """Keep it; the same again changes nothing. Whoever adds one has the topic's lock: it then waits for a publish in flight.

        Raises InvalidHold where nobody or no reason is named."""
        _check_word(hold.placed_by, hold.why)
        with self._database.writing() as connection:
            add_if_absent(
                connection,
                _holds,
                hold_id=hold.hold_id,
                topic=key_of(hold.topic),
                **_columns(hold.what),
                placed_by=hold.placed_by,
                why=hold.why,
                placed_at=hold.placed_at,
            )
        return self.hold(hold.hold_id)

    def release_hold(self, hold_id: str, *, by: str, why: str) -> Hold:
        """From now on it keeps nothing. The same word again returns the first. Raises UnknownHold, InvalidHold, HoldReleased where somebody else, or with another reason, was first."""
        _check_word(by, why)
        found = self.hold(hold_id)
        with self._database.writing() as connection:
            row = connection.execute(select(_holds).where(_holds.c.hold_id == found.hold_id).with_for_update()).one()
            if row.released_at is None:
                word = {"released_by": by, "released_why": why, "released_at": self._database.now(connection), "held_key": None}
                connection.execute(update(_holds).where(_holds.c.hold_id == found.hold_id).values(**word))
            elif (row.released_by, row.released_why) != (by, why):
                raise hold_released(found.hold_id, row.released_by, format_instant(Instant(row.released_at)))
        return self.hold(found.hold_id)

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
            raise unnamed_approval(plan_id)
        with self._database.writing() as connection:
            first = (_undone.c.plan_id == plan_id) & _undone.c.released_at.is_(None)
            at = self._database.now(connection)
            connection.execute(update(_undone).where(first).values(released_at=at, released_by=by, word=text))
            row = _row(connection, plan_id)
            if row is None:
                raise not_undone(plan_id)
            return _read(connection, row)


def _check_word(by: str, why: str) -> None:
    if not by.strip():
        raise invalid_hold("by", by, "the name of the person who answers for it")
    if not why.strip():
        raise invalid_hold("why", why, "a reason")


def _columns(what: What) -> dict[str, object]:
    match what:
        case HeldTopic():
            return {"kind": "topic"}
        case HeldKey(key=key, digest=digest):
            return {"kind": "key", "held_key": None if key is None else base64.b64encode(key).decode(), "key_digest": digest}
        case HeldRange(partition=partition, first=first, last=last):
            return {"kind": "range", "partition": partition, "first_offset": first, "last_offset": last}
        case never:
            assert_never(never)


def _hold_of(row: Row[Any]) -> Hold:
    return Hold(
        hold_id=row.hold_id,
        topic=topic_of(row.topic),
        what=_what_of(row),
        placed_by=row.placed_by,
        why=row.why,
        placed_at=Instant(row.placed_at),
        released_at=None if row.released_at is None else Instant(row.released_at),
        released_by=row.released_by,
        released_why=row.released_why,
    )


def _what_of(row: Row[Any]) -> What:
    if row.kind == "topic":
        return HeldTopic()
    if row.kind == "key":
        if row.held_key is None and row.released_at is None:
            raise corrupt_record(f"hold {row.hold_id}", "it stands, and its key is not there")
        return HeldKey(key=None if row.held_key is None else base64.b64decode(row.held_key, validate=True), digest=row.key_digest)
    if row.kind == "range":
        return HeldRange(partition=row.partition, first=row.first_offset, last=row.last_offset)
    raise corrupt_record(f"hold {row.hold_id}", f"its kind is {row.kind!r}, this program knows topic, key and range")


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
