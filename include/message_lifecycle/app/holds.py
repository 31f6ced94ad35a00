"""Legal holds on a topic (DEL-8): place, release and list them. The module `sparing` finds the messages that holds keep."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from secrets import token_hex
from typing import assert_never

from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import (
    InvalidName,
    UnknownTopic,
    invalid_hold,
    unknown_document,
    unknown_partition,
)
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold, What, held_key
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.tables import Deletion
from message_lifecycle.operations.snapshot_with_purge import EVERY_DOCUMENT
from message_lifecycle.ports import Topic


def place_hold(s: Services, name: TopicName, *, by: str, why: str, key: bytes | None = None, offsets: HeldRange | None = None) -> Hold:
    """Hold the topic, the messages of a key, or a range of offsets. In a topic of documents, the key is a document's name.

    The call waits for a running publish of the topic, as long as it takes. Every later publish respects the hold.

    Raises:
        UnknownTopic, LedgerMismatch, InvalidHold, UnknownPartition, UnknownDocument, InvalidName: No hold was placed.
    """
    topic = _topic_or_deletion(s, name)
    s.ledger.check(name, topic.ledger)
    if key is not None and offsets is not None:
        raise invalid_hold("what", "a key and offsets", "the topic, or a key, or a range of offsets of one partition")
    if isinstance(topic, Deletion):
        pass  # only an undo can read the content of a deleted topic
    elif topic.has_documents:
        key = _document(s, name, key, offsets)
    elif offsets is not None and offsets.partition not in (ends := s.reader.end_offsets(name)):
        raise unknown_partition(str(name), offsets.partition, sorted(ends))
    hold_id = token_hex(8)
    what: What = held_key(hold_id, key) if key is not None else offsets if offsets is not None else HeldTopic()
    with s.ledger.lock(name, wait_seconds=None):
        record_ledger(s, name)
        return s.ledger.add_hold(Hold(hold_id=hold_id, topic=name, what=what, placed_by=by, why=why.strip(), placed_at=s.ledger.now()))


def _topic_or_deletion(s: Services, name: TopicName) -> Topic | Deletion:
    """A deleted topic can be held as well: it could go for good. Raises UnknownTopic."""
    try:
        return s.topics.describe(name)
    except UnknownTopic:
        found = next((one for one in s.stores.deletions() if one.topic == name), None)
        if found is None:
            raise
        return found


def release_hold(s: Services, hold_id: str, *, by: str, why: str) -> Hold:
    """Release the hold, so that the next run may remove its messages. Raises UnknownHold, InvalidHold, HoldReleased, ClockSkewed."""
    s.ledger.check_host_clock()
    released = s.ledger.release_hold(hold_id, by=by, why=why.strip())
    with suppress(UnknownTopic):  # a topic that is gone has no messages to protect from an older ledger
        record_ledger(s, released.topic)
    return released


def record_ledger(s: Services, name: TopicName) -> None:
    """Write the ledger's next number next to the topic's log, before the ledger records a hold or another ban on deletions (DEL-8).

    A ledger restored from an earlier backup does not know the ban, and then deletes nothing from the topic (LedgerMismatch).

    Raises:
        UnknownTopic: The topic does not exist, and no undo can bring it back.
        ClockSkewed: This machine's clock would be written into the table.
    """
    s.ledger.check_host_clock()
    topic = _topic_or_deletion(s, name)
    number = s.ledger.next_identity(name)
    if isinstance(topic, Deletion):
        assert s.stores.delete_tables is not None, "a deletion comes from there"
        s.stores.delete_tables.record_ledger(topic.plan_id, number)
    else:
        s.topics.record_ledger(name, number)


def find_hold_on(s: Services, name: TopicName, *, key: bytes | None = None, offsets: HeldRange | None = None) -> Hold | None:
    """Return the current hold on exactly this topic, key or range, or None."""
    for hold in s.ledger.holds(name):
        same = hold.what.key == key if isinstance(hold.what, HeldKey) else key is None and hold.what == (offsets or HeldTopic())
        if same:
            return hold
    return None


def _document(s: Services, name: TopicName, key: bytes | None, offsets: HeldRange | None) -> bytes | None:
    if offsets is not None:
        raise invalid_hold(
            "offsets", f"{offsets.partition}:{offsets.first}", f"the topic {name}, or one of its documents by name: it has no offsets"
        )
    if key is None:
        return None
    try:
        document = normalise_name(key.decode())
    except UnicodeDecodeError:
        raise InvalidName(repr(key), "a document's name is text in UTF-8") from None
    if not s.documents.states(name, s.documents.tables(name), only=[document]):
        raise unknown_document(str(name), document)
    return document.encode()


def holds_of(s: Services, name: TopicName) -> tuple[Hold, ...]:
    """Return the current legal holds on the topic, sorted by id."""
    return tuple(sorted(s.ledger.holds(name), key=lambda hold: hold.hold_id))


def ids_of(holds: Iterable[Hold]) -> tuple[str, ...]:
    """As `Requirements.heeded`."""
    return tuple(sorted(hold.hold_id for hold in holds))


def held_documents(holds: Iterable[Hold]) -> dict[str, str]:
    """As `DocumentFacts.held`: a hold names the topic, or a document by its key."""
    found: dict[str, str] = {}
    for hold in holds:
        match hold.what:
            case HeldKey(key=key):
                found[(key or b"").decode(errors="replace")] = hold.description
            case HeldTopic() | HeldRange():
                found[EVERY_DOCUMENT] = hold.description
            case never:
                assert_never(never)
    return found
