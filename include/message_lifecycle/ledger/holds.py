"""Legal holds: who keeps what, and why (DEL-8).

A key stands here only while its hold does: on release its digest alone is left, for the key itself may be erased later.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, assert_never

from sqlalchemy import Row, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.database import add_if_absent
from message_lifecycle.ledger.errors import CorruptRecord
from message_lifecycle.ledger.part import Part, key_of, topic_of
from message_lifecycle.model.errors import HoldReleased, InvalidHold, UnknownHold
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold, What
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName

_holds = tables.holds


class Holds(Part):
    """Each is placed once and released once, by a named person with a reason."""

    def holds(self, topic: TopicName | None = None, *, released: bool = False) -> Sequence[Hold]:
        """In the order in which they were placed."""
        query = select(_holds).order_by(_holds.c.placed_at, _holds.c.hold_id)
        if topic is not None:
            query = query.where(_holds.c.topic == key_of(topic))
        if not released:
            query = query.where(_holds.c.released_at.is_(None))
        with self._database.reading() as connection:
            return [_hold_of(row) for row in connection.execute(query)]

    def hold(self, hold_id: str) -> Hold:
        """By id or a unique beginning of one. Raises UnknownHold."""
        beginning = _holds.c.hold_id.startswith(hold_id, autoescape=True)
        with self._database.reading() as connection:
            rows = connection.execute(select(_holds).where(beginning).order_by(_holds.c.hold_id).limit(5)).all()
        if len(rows) != 1 or not hold_id:
            raise UnknownHold(hold_id, [row.hold_id for row in rows])
        return _hold_of(rows[0])

    def add_hold(self, hold: Hold) -> Hold:
        """Keep it. Raises InvalidHold where nobody or no reason is named."""
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
        """End it. Raises UnknownHold, InvalidHold, HoldReleased where somebody else, or with another reason, was first."""
        _check_word(by, why)
        found = self.hold(hold_id)
        with self._database.writing() as connection:
            row = connection.execute(select(_holds).where(_holds.c.hold_id == found.hold_id).with_for_update()).one()
            if row.released_at is None:
                word = {"released_by": by, "released_why": why, "released_at": self._database.now(connection), "held_key": None}
                connection.execute(update(_holds).where(_holds.c.hold_id == found.hold_id).values(**word))
            elif (row.released_by, row.released_why) != (by, why):
                raise HoldReleased(found.hold_id, row.released_by, format_instant(Instant(row.released_at)))
        return self.hold(found.hold_id)


def _check_word(by: str, why: str) -> None:
    if not by.strip():
        raise InvalidHold("by", by, "the name of the person who answers for it")
    if not why.strip():
        raise InvalidHold("why", why, "a reason")


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
            raise CorruptRecord(f"hold {row.hold_id}", "it stands, and its key is not there")
        return HeldKey(key=None if row.held_key is None else base64.b64decode(row.held_key, validate=True), digest=row.key_digest)
    if row.kind == "range":
        return HeldRange(partition=row.partition, first=row.first_offset, last=row.last_offset)
    raise CorruptRecord(f"hold {row.hold_id}", f"its kind is {row.kind!r}, this program knows topic, key and range")
