"""Requests of erasure, what they forbid, and the receipts of what was erased. Of a key nothing is kept but its keyed hash."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical
from message_lifecycle.ledger.database import put
from message_lifecycle.ledger.part import Part, key_of, next_event, topic_of
from message_lifecycle.model.erasure import ErasureRequest, ErasureState, KeyDigest, Lifted
from message_lifecycle.model.errors import AmbiguousErasure, NoReceipt, NothingForbidden, UnknownErasure, UnnamedErasure
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName

_erasures = tables.erasures
_receipts = tables.erasure_receipts
_SHOWN = 10


class Erasures(Part):
    """Requests are never changed but in their state; the same request again changes nothing."""

    def add_erasure(
        self, request_id: str, key: KeyDigest, *, topics: Sequence[TopicName], forbid: bool, requested_by: str, why: str
    ) -> ErasureRequest:
        """Record that somebody wants the key gone, at the ledger's own time. Raises UnnamedErasure."""
        if not requested_by.strip():
            raise UnnamedErasure("person")
        if not why.strip():
            raise UnnamedErasure("reason")
        with self._database.writing() as connection:
            if connection.execute(select(_erasures.c.request_id).where(_erasures.c.request_id == request_id)).first() is None:
                at = self._database.now(connection)
                connection.execute(
                    insert(_erasures).values(
                        request_id=request_id,
                        event=next_event(connection),
                        digest=key.digest,
                        secret=key.secret,
                        topics=canonical(sorted({key_of(topic) for topic in topics})),
                        forbid=int(forbid),
                        requested_by=requested_by.strip(),
                        why=why.strip(),
                        requested_at=at,
                        state="requested",
                        detail="",
                    )
                )
            return _find(connection, request_id)

    def erasure(self, request_id: str) -> ErasureRequest:
        """By id or a unique beginning of one. Raises UnknownErasure, AmbiguousErasure."""
        with self._database.reading() as connection:
            return _find(connection, request_id)

    def erasures(self, *, limit: int | None = None) -> Sequence[ErasureRequest]:
        """Newest first; all of them, or so many."""
        query = select(_erasures).order_by(_erasures.c.event.desc()).limit(limit)
        with self._database.reading() as connection:
            return [_request(row) for row in connection.execute(query)]

    def set_erasure_state(self, request_id: str, state: ErasureState, *, detail: str = "") -> None:
        """Raises UnknownErasure, AmbiguousErasure."""
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            connection.execute(update(_erasures).where(_erasures.c.request_id == found.request_id).values(state=state, detail=detail))

    def forbidden(self, topic: TopicName) -> Sequence[ErasureRequest]:
        """Requests whose key may not come into the topic, oldest first; most topics have none."""
        query = select(_erasures).where(_erasures.c.forbid == 1, _erasures.c.lifted.is_(None)).order_by(_erasures.c.event)
        with self._database.reading() as connection:
            found = [_request(row) for row in connection.execute(query)]
        return [request for request in found if request.forbids(topic)]

    def allow_again(self, request_id: str, *, by: str, why: str) -> ErasureRequest:
        """What the request forbids may come in again. Raises UnknownErasure, NothingForbidden, UnnamedErasure."""
        if not by.strip():
            raise UnnamedErasure("person")
        if not why.strip():
            raise UnnamedErasure("reason")
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            if not found.forbid:
                raise NothingForbidden(found.request_id, "it was made without --forbid")
            if found.lifted is not None:
                raise NothingForbidden(found.request_id, f"{found.lifted.by} has lifted it before")
            lifted = canonical({"by": by.strip(), "why": why.strip(), "at": self._database.now(connection)})
            connection.execute(update(_erasures).where(_erasures.c.request_id == found.request_id).values(lifted=lifted))
            return _find(connection, found.request_id)

    def keep_receipt(self, request_id: str, made: Callable[[str | None], str]) -> None:
        """`made`: from the receipt that there is, None where there is none, the one that replaces it; JSON, without the key. Others wait
        meanwhile, for topics of a request may be done at one time. Raises UnknownErasure, AmbiguousErasure."""
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            connection.execute(select(_erasures.c.request_id).where(_erasures.c.request_id == found.request_id).with_for_update())
            receipt = made(_kept(connection, found))
            put(connection, _receipts, request_id=found.request_id, receipt=receipt, at=self._database.now(connection))

    def receipt(self, request_id: str) -> str:
        """Raises UnknownErasure, AmbiguousErasure, NoReceipt."""
        with self._database.reading() as connection:
            found = _find(connection, request_id)
            kept = _kept(connection, found)
        if kept is None:
            raise NoReceipt(found.request_id, found.state)
        return kept


def _kept(connection: Connection, request: ErasureRequest) -> str | None:
    kept: str | None = connection.execute(
        select(_receipts.c.receipt).where(_receipts.c.request_id == request.request_id)
    ).scalar_one_or_none()
    return kept


def _find(connection: Connection, beginning: str) -> ErasureRequest:
    rows = connection.execute(
        select(_erasures)
        .where(_erasures.c.request_id.startswith(beginning, autoescape=True))
        .order_by(_erasures.c.request_id)
        .limit(_SHOWN)
    ).all()
    exact = [row for row in rows if row.request_id == beginning]
    if not beginning or not rows:
        raise UnknownErasure(beginning)
    if len(rows) > 1 and not exact:
        raise AmbiguousErasure(beginning, tuple(row.request_id for row in rows))
    return _request(exact[0] if exact else rows[0])


def _request(row: Row[Any]) -> ErasureRequest:
    lifted = None if row.lifted is None else json.loads(row.lifted)
    return ErasureRequest(
        request_id=row.request_id,
        key=KeyDigest(digest=row.digest, secret=row.secret),
        topics=tuple(topic_of(key) for key in json.loads(row.topics)),
        forbid=bool(row.forbid),
        requested_by=row.requested_by,
        why=row.why,
        requested_at=Instant(row.requested_at),
        state=row.state,
        detail=row.detail,
        lifted=None if lifted is None else Lifted(by=lifted["by"], why=lifted["why"], at=Instant(lifted["at"])),
    )
