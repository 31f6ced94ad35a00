"""Requests of erasure, what they forbid, receipts; and how an erased document's name goes from all that the ledger keeps of its topic.

Of a key nothing is kept but its keyed hash, and nobody knows a document's name here: each is asked for by hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Table, delete, insert, select, union, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, plan_id_of
from message_lifecycle.ledger.database import Part, claim_topic, key_of, next_event, put, topic_of
from message_lifecycle.model.document import ACCEPTED_OWN
from message_lifecycle.model.erasure import ErasureRequest, ErasureState, KeyDigest, Lifted, Matches
from message_lifecycle.model.errors import ambiguous_erasure, no_receipt, nothing_forbidden, unknown_erasure, unnamed_erasure
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName, words_of
from message_lifecycle.model.plan import Operation

_erasures = tables.erasures
_receipts = tables.erasure_receipts
_SHOWN = 10
_TELLING = frozenset(("asks", "blocked", "detail", "document", "found", "text", "warnings"))
"""Fields of plans, of what was staged, reports, approvals and outcomes that are a document's name or may have one in their text."""
_STATE: tuple[tuple[Column[Any], ColumnElement[bool] | None], ...] = (
    (tables.synced_seqs.c.document, None),
    (tables.document_owners.c.document, None),
    (tables.document_settings.c.name, tables.document_settings.c.level == "document"),
)
"""Columns that are a document's name, and which rows are about a document."""


class Erasures(Part):
    """Requests are never changed but in their state; the same request again changes nothing.

    What is about an erased document alone goes with it: its clients, its settings, its owner. Records of what was done stay, with a word
    where the name stood."""

    def add_erasure(
        self, request_id: str, key: KeyDigest, *, topics: Sequence[TopicName], forbid: bool, requested_by: str, why: str
    ) -> ErasureRequest:
        """Record that somebody wants the key gone, at the ledger's own time. Raises UnnamedErasure."""
        if not requested_by.strip():
            raise unnamed_erasure("person")
        if not why.strip():
            raise unnamed_erasure("reason")
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
        return [_request(row) for row in self._rows(query)]

    def set_erasure_state(self, request_id: str, state: ErasureState, *, detail: str = "") -> None:
        """Raises UnknownErasure, AmbiguousErasure."""
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            connection.execute(update(_erasures).where(_erasures.c.request_id == found.request_id).values(state=state, detail=detail))

    def forbidden(self, topic: TopicName) -> Sequence[ErasureRequest]:
        """Requests whose key may not come into the topic, oldest first; most topics have none."""
        query = select(_erasures).where(_erasures.c.forbid == 1, _erasures.c.lifted.is_(None)).order_by(_erasures.c.event)
        found = [_request(row) for row in self._rows(query)]
        return [request for request in found if request.forbids(topic)]

    def allow_again(self, request_id: str, *, by: str, why: str) -> ErasureRequest:
        """What the request forbids may come in again. Raises UnknownErasure, NothingForbidden, UnnamedErasure."""
        if not by.strip():
            raise unnamed_erasure("person")
        if not why.strip():
            raise unnamed_erasure("reason")
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            if not found.forbid:
                raise nothing_forbidden(found.request_id, "it was made without --forbid")
            if found.lifted is not None:
                raise nothing_forbidden(found.request_id, f"{found.lifted.by} has lifted it before")
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
            raise no_receipt(found.request_id, found.state)
        return kept

    def document_topics(self, operations: Sequence[Operation]) -> Sequence[TopicName]:
        """Of which it may name documents, as plans of these operations do: also those that were deleted since, or whose name a topic of
        messages has now."""
        of_documents = [select(column.table.c.topic) for column, _ in _STATE]
        of_documents += [select(kept.c.topic).where(kept.c.operation.in_(operations)) for kept in (tables.plans, tables.outcomes)]
        with self._database.reading() as connection:
            return [topic_of(key) for key in sorted(connection.execute(union(*of_documents)).scalars())]

    def forget_document(self, topic: TopicName, matches: Matches, *, word: str) -> None:
        """In one transaction; done before, it changes nothing. `word` takes the name's place: something that is no name."""
        names = _Names(matches, word)
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            _forget_state(connection, topic, names)
            for plan_id in connection.execute(select(tables.plans.c.plan_id).where(tables.plans.c.topic == key_of(topic))).scalars().all():
                _tell_plan(connection, plan_id, names)
            of_topic = tables.outcomes.c.topic == key_of(topic)
            for event, text in connection.execute(select(tables.outcomes.c.event, tables.outcomes.c.outcome).where(of_topic)).all():
                _put(connection, tables.outcomes, tables.outcomes.c.event == event, outcome=(text, names.in_json(text)))
            # A run that found nothing due says why, of every topic.
            idle = tables.runs.c.detail.contains(key_of(topic), autoescape=True)
            for run_id, text in connection.execute(select(tables.runs.c.run_id, tables.runs.c.detail).where(idle)).all():
                _put(connection, tables.runs, tables.runs.c.run_id == run_id, detail=(text, names.in_text(text)))


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
        raise unknown_erasure(beginning)
    if len(rows) > 1 and not exact:
        raise ambiguous_erasure(beginning, tuple(row.request_id for row in rows))
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


class _Names:
    """Finds the name by its hash, each word once: a plan may name 100,000 documents, and the next one names them again."""

    def __init__(self, matches: Matches, word: str) -> None:
        self._matches, self._word = matches, word
        self._known: dict[str, bool] = {}

    def is_it(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = self._matches(name.encode())
        return self._known[name]

    def in_text(self, text: str) -> str:
        return "".join(self._said(part) if is_name else part for part, is_name in words_of(text))

    def _said(self, part: str) -> str:
        """A point after the name may be the sentence's."""
        for name in (part, part.rstrip(".")):
            if self.is_it(name):
                return self._word + part[len(name) :]
        return part

    def in_json(self, text: str) -> str:
        return canonical(self._in_value(json.loads(text), tells=False))

    def _in_value(self, value: Any, *, tells: bool) -> Any:
        match value:
            case str():
                return self.in_text(value) if tells else value
            case list():
                return [self._in_value(one, tells=tells) for one in value]
            case dict():
                return {field: self._in_value(one, tells=tells or field in _TELLING) for field, one in value.items()}
            case _:
                return value


def _forget_state(connection: Connection, topic: TopicName, names: _Names) -> None:
    for column, among in _STATE:
        of_topic = [column.table.c.topic == key_of(topic), *(() if among is None else (among,))]
        for name in connection.execute(select(column).where(*of_topic).distinct()).scalars().all():
            if names.is_it(name):
                connection.execute(delete(column.table).where(*of_topic, column == name))
    # What was seen last is a digest of names too, and is looked at anew.
    connection.execute(delete(tables.due_states).where(tables.due_states.c.topic == key_of(topic)))
    accepted, of_topic = tables.accepted_settings, [tables.accepted_settings.c.topic == key_of(topic)]
    for settings, word in connection.execute(select(accepted.c.settings, accepted.c.word).where(*of_topic)).all():
        said = None if word is None else names.in_text(word)
        _put(connection, accepted, *of_topic, settings=(settings, _accepted(settings, names)), word=(word, said))


def _accepted(text: str, names: _Names) -> str:
    """Accepted settings without the document's own and its owner."""
    settings = json.loads(text)
    if ACCEPTED_OWN in settings:
        own = json.loads(settings[ACCEPTED_OWN])
        for level in ("documents", "owners"):
            own[level] = {name: one for name, one in own[level].items() if not names.is_it(name)}
        settings[ACCEPTED_OWN] = json.dumps(own, sort_keys=True)
    return canonical(settings)


def _tell_plan(connection: Connection, plan_id: str, names: _Names) -> None:
    documents, plans = tables.plan_documents, tables.plans
    document = connection.execute(select(documents.c.document).where(documents.c.plan_id == plan_id)).scalar_one()
    told = names.in_json(document)
    if told != document:
        connection.execute(update(documents).where(documents.c.plan_id == plan_id).values(document=told, text_id=plan_id_of(told)))
    row = connection.execute(select(plans.c.staged, plans.c.report, plans.c.approval).where(plans.c.plan_id == plan_id)).one()
    texts = {column: (text, names.in_json(text)) for column, text in row._mapping.items() if text is not None}
    _put(connection, plans, plans.c.plan_id == plan_id, **texts)


def _put(connection: Connection, table: Table, *where: ColumnElement[bool], **texts: tuple[str | None, str | None]) -> None:
    """Columns whose text is another now, as (was, is)."""
    changed = {column: now for column, (was, now) in texts.items() if now != was}
    if changed:
        connection.execute(update(table).where(*where).values(**changed))
