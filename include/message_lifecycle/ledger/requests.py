"""Requests of people that the ledger records: legal holds, undone plans, erasures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import assert_never

from sqlalchemy import Column, ColumnElement, Connection, Table, bindparam, delete, insert, select, union, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import canonical, corrupt_record, plan_id_of
from message_lifecycle.ledger.database import LedgerPart, add_if_absent, add_rows, claim_topic, key_of, next_event, put, topic_of
from message_lifecycle.ledger.tables import FoundRow, Query
from message_lifecycle.model.document import ACCEPTED_OWN
from message_lifecycle.model.erasure import ErasureRequest, ErasureState, KeyDigest, KeyDigests, Lifted
from message_lifecycle.model.errors import (
    ambiguous_erasure,
    hold_released,
    invalid_hold,
    no_receipt,
    not_undone,
    nothing_forbidden,
    unexplained_erasure,
    unknown_erasure,
    unknown_hold,
)
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold, What
from message_lifecycle.model.in_values import InValues
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName, words_of
from message_lifecycle.model.people import person_of
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.undo import Range, Undone

# Messages that the rules must not remove: legal holds (DEL-8), and restored messages of undone plans (DEL-7).
#
# The ledger stores a key only while its hold is active. A release leaves only its digest, because the key may be erased later.


_holds = tables.holds
_undone, _ranges = tables.undone, tables.undone_ranges


@cache
def _all_holds(*, released: bool) -> Query:
    query = select(_holds).order_by(_holds.c.placed_at, _holds.c.hold_id)
    return query if released else query.where(_holds.c.released_at.is_(None))


_PLANS_AT_ONCE = 1_000
_ALL_UNDONE = select(_undone).order_by(_undone.c.undone_at, _undone.c.plan_id)


class Holds(LedgerPart):
    """Holds and undone plans.

    A named person places and releases a hold once each, with a reason. A plan is undone once: the first finished undo counts. No plan
    removes its messages again before a person releases them.
    """

    def holds(self, topic: TopicName | None = None, *, released: bool = False) -> Sequence[Hold]:
        """Return the active holds of one topic or of all topics, oldest first.

        Args:
            topic: The topic. None: all topics.
            released: Include released holds.
        """
        every = _all_holds(released=released)
        return [_hold_of(row) for row in (self._rows(every) if topic is None else self._of_topic(every, topic))]

    def hold(self, hold_id: str) -> Hold:
        """Return a hold by its id or by a unique beginning of it. Raises UnknownHold."""
        beginning = _holds.c.hold_id.startswith(hold_id, autoescape=True)
        rows = self._rows(select(_holds).where(beginning).order_by(_holds.c.hold_id).limit(5))
        if len(rows) != 1 or not hold_id:
            raise unknown_hold(hold_id, [row.hold_id for row in rows])
        return _hold_of(rows[0])

    def add_hold(self, hold: Hold) -> Hold:
        """Record the hold. Repeating the call changes nothing. The caller has the topic's lock, and thereby waits for a publish in flight.

        Raises:
            InvalidHold: The reason is missing.
            UnnamedPerson, MixedScripts: The name is not valid.
        """
        placed_by = _person_with_reason(hold.placed_by, hold.why)
        with self._database.writing() as connection:
            add_if_absent(
                connection,
                _holds,
                hold_id=hold.hold_id,
                topic=key_of(hold.topic),
                **_columns(hold.what),
                placed_by=placed_by,
                why=hold.why,
                placed_at=hold.placed_at,
            )
        return self.hold(hold.hold_id)

    def release_hold(self, hold_id: str, *, by: str, why: str) -> Hold:
        """Release the hold. Repeating the same release returns the first.

        Raises:
            UnknownHold: The ledger has no such hold.
            InvalidHold: The reason is missing.
            UnnamedPerson, MixedScripts: The name is not valid.
            HoldReleased: Another person released it first, or with another reason.
        """
        by = _person_with_reason(by, why)
        found = self.hold(hold_id)
        with self._database.writing() as connection:
            row = connection.execute(select(_holds).where(_holds.c.hold_id == found.hold_id).with_for_update()).one()
            if row.released_at is None:
                word = {"released_by": by, "released_why": why, "released_at": self._database.now(connection), "held_key": None}
                connection.execute(update(_holds).where(_holds.c.hold_id == found.hold_id).values(**word))
            elif (row.released_by, row.released_why) != (by, why):
                raise hold_released(found.hold_id, row.released_by, format_to_second(Instant(row.released_at)))
        return self.hold(found.hold_id)

    def set_undone(self, topic: TopicName, plan_id: str, undone_by: str, ranges: Iterable[Range], *, instead_of: str | None = None) -> None:
        """Record that the plan `undone_by` took the plan back, and the restored ranges. Repeating the call changes nothing.

        Args:
            topic: The topic of both plans.
            plan_id: The id of the plan that was undone.
            undone_by: The id of the undo's plan.
            ranges: The offsets that came back.
            instead_of: The undo that this undo replaces. The former undo made only the first of its two commits, and this one restored the
                rest. Or an older catalog has lost the former undo. A release of its messages is void.
        """
        with self._database.writing() as connection:
            claim_topic(connection, topic)  # two runs of one undo may call this at once
            row, at = _row(connection, plan_id), self._database.now(connection)
            if row is not None:
                if row.undone_by == instead_of:
                    anew = {"undone_by": undone_by, "undone_at": at, "released_at": None, "released_by": None, "word": None}
                    connection.execute(update(_undone).where(_undone.c.plan_id == plan_id).values(anew))
                return
            connection.execute(insert(_undone).values(plan_id=plan_id, topic=key_of(topic), undone_by=undone_by, undone_at=at))
            rows = [
                {"plan_id": plan_id, "partition": partition, "first_offset": first, "last_offset": last}
                for partition, first, last in ranges
            ]
            add_rows(connection, _ranges, rows)

    def undone(self, topic: TopicName, *, at: tuple[int, int] | None = None) -> Sequence[Undone]:
        """Return the topic's undone plans, the oldest first, released ones too.

        Args:
            topic: The topic of the plans.
            at: A partition and an offset. Return only plans whose undo restored this message, with the one range that covers it.
        """
        rows = self._of_topic(_ALL_UNDONE, topic)
        with self._database.reading() as connection:
            found = [_read(connection, row, at) for row in rows]
        return found if at is None else [known for known in found if known.ranges]

    def undone_by(self, plan_id: str) -> str | None:
        """Return the plan that took this plan back, or None. Reads no ranges, because there may be a million."""
        with self._database.reading() as connection:
            row = _row(connection, plan_id)
            return None if row is None else str(row.undone_by)

    def find_undone(self, plan_ids: Collection[str]) -> frozenset[str]:
        """Return the undone plans among these plans."""
        found = set[str]()
        wanted = sorted(set(plan_ids))
        for at in range(0, len(wanted), _PLANS_AT_ONCE):
            some = wanted[at : at + _PLANS_AT_ONCE]
            found.update(row.plan_id for row in self._rows(select(_undone.c.plan_id).where(_undone.c.plan_id.in_(some))))
        return frozenset(found)

    def release_undone(self, plan_id: str, *, by: str, text: str) -> Undone:
        """Let the rules remove the plan's messages again. The first release counts. Raises NotUndone, UnnamedPerson, MixedScripts."""
        by = person_of(by)
        with self._database.writing() as connection:
            first = (_undone.c.plan_id == plan_id) & _undone.c.released_at.is_(None)
            at = self._database.now(connection)
            connection.execute(update(_undone).where(first).values(released_at=at, released_by=by, word=text))
            row = _row(connection, plan_id)
            if row is None:
                raise not_undone(plan_id)
            return _read(connection, row)


def _person_with_reason(by: str, why: str) -> str:
    if not why.strip():
        raise invalid_hold("why", why, "a reason")
    return person_of(by)


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


def _hold_of(row: FoundRow) -> Hold:
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


def _what_of(row: FoundRow) -> What:
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
    """Forget the undone plans of the name, because a new topic of that name begins. Runs in the caller's transaction."""
    of_topic = select(_undone.c.plan_id).where(_undone.c.topic == key_of(topic))
    connection.execute(delete(_ranges).where(_ranges.c.plan_id.in_(of_topic)))
    connection.execute(delete(_undone).where(_undone.c.topic == key_of(topic)))


def _row(connection: Connection, plan_id: str) -> FoundRow | None:
    return connection.execute(select(_undone).where(_undone.c.plan_id == plan_id)).first()


def _read(connection: Connection, row: FoundRow, at: tuple[int, int] | None = None) -> Undone:
    of_plan = select(_ranges).where(_ranges.c.plan_id == row.plan_id).order_by(_ranges.c.partition, _ranges.c.first_offset)
    if at is not None:
        partition, offset = at
        of_plan = of_plan.where(_ranges.c.partition == partition, _ranges.c.first_offset <= offset, _ranges.c.last_offset >= offset)
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


# Requests of erasure, forbidden keys and receipts. Also the removal of erased documents' names from the ledger's records.
#
# The ledger stores only the keyed hashes of keys, and does not know a document's name. A caller finds either by its hash.


_erasures = tables.erasures
_receipts = tables.erasure_receipts
_SHOWN = 10
_TELLING = frozenset(("asks", "blocked", "detail", "document", "found", "text", "warnings"))
"""Fields of plans, stages, reports, approvals and outcomes that hold a document's name, or a text that may contain one."""
_STATE: tuple[tuple[Column[str], ColumnElement[bool] | None], ...] = (
    (tables.synced_seqs.c.document, None),
    (tables.document_owners.c.document, None),
    (tables.document_settings.c.name, tables.document_settings.c.level == "document"),
)
"""Columns with a document's name, and the condition for rows about a document."""


class Erasures(LedgerPart):
    """Requests of erasure. Only the state of a request changes, and repeating a request changes nothing.

    An erasure of documents removes their clients, settings and owners from the ledger. Other records
    stay, with a substitute for each name.
    """

    def add_erasure(
        self, request_id: str, keys: KeyDigests, *, topics: Sequence[TopicName], forbid: bool, requested_by: str, why: str
    ) -> ErasureRequest:
        """Record the request at the ledger's own time. Raises UnexplainedErasure, UnnamedPerson, MixedScripts."""
        requested_by = _person_who_asks(requested_by, why)
        with self._database.writing() as connection:
            if connection.execute(select(_erasures.c.request_id).where(_erasures.c.request_id == request_id)).first() is None:
                at = self._database.now(connection)
                connection.execute(
                    insert(_erasures).values(
                        request_id=request_id,
                        event=next_event(connection),
                        keys=canonical([[one.digest, one.mark] for one in keys.each]),
                        secret=keys.secret,
                        topics=canonical(sorted({key_of(topic) for topic in topics})),
                        forbid=int(forbid),
                        requested_by=requested_by,
                        why=why.strip(),
                        requested_at=at,
                        state="requested",
                        detail="",
                    )
                )
            return _find(connection, request_id)

    def erasure(self, request_id: str) -> ErasureRequest:
        """Return a request by its id or by a unique beginning of it. Raises UnknownErasure, AmbiguousErasure."""
        with self._database.reading() as connection:
            return _find(connection, request_id)

    def erasures(self, *, limit: int | None = None) -> Sequence[ErasureRequest]:
        """Return the newest requests first, up to the limit."""
        query = select(_erasures).order_by(_erasures.c.event.desc()).limit(limit)
        return [_request_of_row(row) for row in self._rows(query)]

    def set_erasure_state(self, request_id: str, state: ErasureState, *, detail: str = "") -> None:
        """Raises UnknownErasure, AmbiguousErasure."""
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            connection.execute(update(_erasures).where(_erasures.c.request_id == found.request_id).values(state=state, detail=detail))

    def record_in_values(self, request_id: str, found: InValues) -> ErasureRequest:
        """Record where a key was found inside values, without names of documents and files. Raises UnknownErasure, AmbiguousErasure."""
        with self._database.writing() as connection:
            request = _find(connection, request_id)
            kept = update(_erasures).where(_erasures.c.request_id == request.request_id).values(in_values=found.without_names().to_json())
            connection.execute(kept)
            return _find(connection, request.request_id)

    def forbidden(self, topic: TopicName) -> Sequence[ErasureRequest]:
        """Return the requests that forbid keys in the topic, oldest first. Most topics have none."""
        query = select(_erasures).where(_erasures.c.forbid == 1, _erasures.c.lifted.is_(None)).order_by(_erasures.c.event)
        found = [_request_of_row(row) for row in self._rows(query)]
        return [request for request in found if request.forbids(topic)]

    def allow_keys_again(self, request_id: str, *, by: str, why: str) -> ErasureRequest:
        """Allow the request's keys again. Raises UnknownErasure, NothingForbidden, UnexplainedErasure, UnnamedPerson, MixedScripts."""
        by = _person_who_asks(by, why)
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            if not found.forbid:
                raise nothing_forbidden(found.request_id, "it was made without --forbid")
            if found.lifted is not None:
                raise nothing_forbidden(found.request_id, f"{found.lifted.by} has lifted it before")
            lifted = canonical({"by": by, "why": why.strip(), "at": self._database.now(connection)})
            connection.execute(update(_erasures).where(_erasures.c.request_id == found.request_id).values(lifted=lifted))
            return _find(connection, found.request_id)

    def keep_receipt(self, request_id: str, made: Callable[[str | None], str]) -> None:
        """Replace the request's receipt. Other callers wait meanwhile, because several topics of a request may finish at once.

        Args:
            request_id: The request's id, or a unique beginning of the id.
            made: Makes the new receipt from the present one, or from None. JSON, without a key.

        Raises UnknownErasure, AmbiguousErasure.
        """
        with self._database.writing() as connection:
            found = _find(connection, request_id)
            connection.execute(select(_erasures.c.request_id).where(_erasures.c.request_id == found.request_id).with_for_update())
            receipt = made(_kept_text(connection, found))
            put(connection, _receipts, request_id=found.request_id, receipt=receipt, at=self._database.now(connection))

    def receipt(self, request_id: str) -> str:
        """Raises UnknownErasure, AmbiguousErasure, NoReceipt."""
        with self._database.reading() as connection:
            found = _find(connection, request_id)
            kept = _kept_text(connection, found)
        if kept is None:
            raise no_receipt(found.request_id, found.state)
        return kept

    def receipts(self, *, limit: int) -> Sequence[tuple[Instant, str]]:
        """Return each receipt as JSON with the time of its last change, the newest first."""
        rows = self._rows(select(_receipts).order_by(_receipts.c.at.desc(), _receipts.c.request_id).limit(limit))
        return [(Instant(row.at), row.receipt) for row in rows]

    def document_topics(self, operations: Sequence[Operation]) -> Sequence[TopicName]:
        """Return the topics whose records may name documents, by their state and by plans of these operations.

        Includes topics that were deleted since, and names that a topic of messages has now.
        """
        of_documents = [select(column.table.c.topic) for column, _ in _STATE]
        of_documents += [select(kept.c.topic).where(kept.c.operation.in_(operations)) for kept in (tables.plans, tables.outcomes)]
        with self._database.reading() as connection:
            return [topic_of(key) for key in sorted(connection.execute(union(*of_documents)).scalars())]

    def forget_documents(self, topic: TopicName, substitute: Callable[[bytes], str | None]) -> None:
        """Remove documents' names from the records of a topic, in one transaction. Repeating the call changes nothing.

        Args:
            topic: The topic that had the documents.
            substitute: Returns the text to record in place of a name, which must not be a name itself. None: the name stays.
        """
        names = _Names(substitute)
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            _forget_state(connection, topic, names)
            for plan_id in connection.execute(select(tables.plans.c.plan_id).where(tables.plans.c.topic == key_of(topic))).scalars().all():
                _tell_plan(connection, plan_id, names)
            of_topic = tables.outcomes.c.topic == key_of(topic)
            for event, text in connection.execute(select(tables.outcomes.c.event, tables.outcomes.c.outcome).where(of_topic)).all():
                _update_changed(connection, tables.outcomes, tables.outcomes.c.event == event, outcome=(text, names.replace_in_json(text)))
            # An idle run's detail has the reason of each topic, and a preview's detail has its removals.
            idle = tables.runs.c.detail.contains(key_of(topic), autoescape=True)
            for run_id, text in connection.execute(select(tables.runs.c.run_id, tables.runs.c.detail).where(idle)).all():
                _update_changed(connection, tables.runs, tables.runs.c.run_id == run_id, detail=(text, names.replace_in_text(text)))


def _kept_text(connection: Connection, request: ErasureRequest) -> str | None:
    kept: str | None = connection.execute(
        select(_receipts.c.receipt).where(_receipts.c.request_id == request.request_id)
    ).scalar_one_or_none()
    return kept


def _person_who_asks(by: str, why: str) -> str:
    if not why.strip():
        raise unexplained_erasure()
    return person_of(by)


def _find(connection: Connection, beginning: str) -> ErasureRequest:
    exact = connection.execute(_whole_request(), {"of_request": beginning}).first()
    if exact is not None:
        return _request_of_row(exact)
    begins = _erasures.c.request_id.startswith(beginning, autoescape=True)
    rows = connection.execute(select(_erasures).where(begins).order_by(_erasures.c.request_id).limit(_SHOWN)).all()
    if not beginning or not rows:
        raise unknown_erasure(beginning)
    if len(rows) > 1:
        raise ambiguous_erasure(beginning, tuple(row.request_id for row in rows))
    return _request_of_row(rows[0])


@cache
def _whole_request() -> Query:
    return select(_erasures).where(_erasures.c.request_id == bindparam("of_request"))


def _request_of_row(row: FoundRow) -> ErasureRequest:
    lifted = None if row.lifted is None else json.loads(row.lifted)
    return ErasureRequest(
        request_id=row.request_id,
        keys=KeyDigests(secret=row.secret, each=tuple(KeyDigest(digest=digest, mark=mark) for digest, mark in json.loads(row.keys))),
        topics=tuple(topic_of(key) for key in json.loads(row.topics)),
        forbid=bool(row.forbid),
        requested_by=row.requested_by,
        why=row.why,
        requested_at=Instant(row.requested_at),
        state=row.state,
        detail=row.detail,
        lifted=None if lifted is None else Lifted(by=lifted["by"], why=lifted["why"], at=Instant(lifted["at"])),
        in_values=None if row.in_values is None else InValues.from_json(row.in_values),
    )


class _Names:
    """Finds the names by their hash. Tests each part of a text once, because many plans may name the same 100,000 documents."""

    def __init__(self, substitute: Callable[[bytes], str | None]) -> None:
        self._substitute = substitute
        self._known: dict[str, str | None] = {}

    def substitute(self, name: str) -> str | None:
        if name not in self._known:
            self._known[name] = self._substitute(name.encode())
        return self._known[name]

    def replace_in_text(self, text: str) -> str:
        return "".join(self._replace_in_part(part) if is_name else part for part, is_name in words_of(text))

    def _replace_in_part(self, part: str) -> str:
        """Replace the name. A point after it may be the end of a sentence."""
        for name in (part, part.rstrip(".")):
            if (word := self.substitute(name)) is not None:
                return word + part[len(name) :]
        return part

    def replace_in_json(self, text: str) -> str:
        return canonical(self._replace_in_value(json.loads(text), tells=False))

    def _replace_in_value(self, value: object, *, tells: bool) -> object:
        match value:
            case str():
                return self.replace_in_text(value) if tells else value
            case list():
                return [self._replace_in_value(one, tells=tells) for one in value]
            case dict():
                return {field: self._replace_in_value(one, tells=tells or field in _TELLING) for field, one in value.items()}
            case _:
                return value


def _forget_state(connection: Connection, topic: TopicName, names: _Names) -> None:
    for column, among in _STATE:
        of_topic = [column.table.c.topic == key_of(topic), *(() if among is None else (among,))]
        for name in connection.execute(select(column).where(*of_topic).distinct()).scalars().all():
            if names.substitute(name) is not None:
                connection.execute(delete(column.table).where(*of_topic, column == name))
    # The last due state also has a digest of names. The next check makes a new one.
    connection.execute(delete(tables.due_states).where(tables.due_states.c.topic == key_of(topic)))
    accepted, of_topic = tables.accepted_settings, [tables.accepted_settings.c.topic == key_of(topic)]
    for settings, word in connection.execute(select(accepted.c.settings, accepted.c.word).where(*of_topic)).all():
        said = None if word is None else names.replace_in_text(word)
        _update_changed(connection, accepted, *of_topic, settings=(settings, _accepted(settings, names)), word=(word, said))


def _accepted(text: str, names: _Names) -> str:
    """Return the accepted settings without the documents' own settings and their owners."""
    settings = json.loads(text)
    if ACCEPTED_OWN in settings:
        own = json.loads(settings[ACCEPTED_OWN])
        for level in ("documents", "owners"):
            own[level] = {name: one for name, one in own[level].items() if names.substitute(name) is None}
        settings[ACCEPTED_OWN] = json.dumps(own, sort_keys=True)
    return canonical(settings)


def _tell_plan(connection: Connection, plan_id: str, names: _Names) -> None:
    documents, plans = tables.plan_documents, tables.plans
    document = connection.execute(select(documents.c.document).where(documents.c.plan_id == plan_id)).scalar_one()
    replaced = names.replace_in_json(document)
    if replaced != document:
        connection.execute(update(documents).where(documents.c.plan_id == plan_id).values(document=replaced, text_id=plan_id_of(replaced)))
    row = connection.execute(select(plans.c.staged, plans.c.report, plans.c.approval).where(plans.c.plan_id == plan_id)).one()
    texts = {column: (text, names.replace_in_json(text)) for column, text in row._mapping.items() if text is not None}
    _update_changed(connection, plans, plans.c.plan_id == plan_id, **texts)


def _update_changed(connection: Connection, table: Table, *where: ColumnElement[bool], **texts: tuple[str | None, str | None]) -> None:
    """Update the columns whose text has changed, as (was, is)."""
    changed = {column: now for column, (was, now) in texts.items() if now != was}
    if changed:
        connection.execute(update(table).where(*where).values(**changed))
