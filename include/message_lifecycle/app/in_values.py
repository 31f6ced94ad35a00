"""A search for keys inside the values and headers of messages with other keys. The search only reads; a person acts on its findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from message_lifecycle.app import archiving
from message_lifecycle.app.known import error_of_one_topic
from message_lifecycle.app.operations.registry import undoable_operations
from message_lifecycle.app.receipts import eraser_of
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.errors import unusable_key
from message_lifecycle.model.in_values import InValues, Needle, TopicValues, topic_values
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName


def check_searchable(keys: Collection[bytes]) -> None:
    """Raises UnusableKey for the empty key, which every value holds."""
    if b"" in keys:
        raise unusable_key("the empty key stands inside every value, so --in-values finds nothing of use")


def find_in_values(s: Services, keys: Collection[bytes], topics: Iterable[TopicName]) -> InValues:
    """Search the topics and their copies, with all tables, archives and quarantines. A topic that cannot be searched is named, and stops no other.

    Raises:
        UnusableKey: A key is empty.
    """
    check_searchable(keys)
    needle = Needle(frozenset(keys))
    return InValues(searched_at=s.ledger.now(), topics=tuple(_search(s, name, needle) for name in add_copies(s, topics)))


def add_copies(s: Services, topics: Iterable[TopicName]) -> list[TopicName]:
    """The topics, each followed by its copies and theirs, once."""
    found: dict[TopicName, None] = {}
    replicas = list(s.ledger.replicas())
    left = list(topics)[::-1]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = None
            left += sorted((replica for origin, replica in replicas if origin == name), reverse=True)
    return list(found)


def _search(s: Services, name: TopicName, needle: Needle) -> TopicValues:
    try:
        policy = policy_of(s, name)
        open_undo = s.ledger.published_since(name, undoable_operations(), published_after=Instant(s.ledger.now() - policy.undo_window_us))
        places = list(eraser_of(s, name).find_in_values(name, needle, policy, as_of=s.ledger.now(), undoable=open_undo))
        return topic_values(str(name), [*places, *archiving.find_in_values(s, name, needle)])
    except Exception as error:  # noqa: BLE001 - the barrier of one topic
        topic_error = error_of_one_topic(s, name, error)
        return TopicValues(topic=str(name), error=f"{topic_error.code}: {topic_error}")
