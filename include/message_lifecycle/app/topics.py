"""Creating and altering topics: the table, and what the ledger must know of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from message_lifecycle.app.documents import check_levels
from message_lifecycle.app.services import Services
from message_lifecycle.model.document import ACCEPTED_OWN
from message_lifecycle.model.errors import (
    CatalogUnavailable,
    CompactedTableMissing,
    ForeignTable,
    InvalidSetting,
    TableBusy,
    UnknownTopic,
    is_a_document_topic,
    topic_exists,
)
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value, resolve
from message_lifecycle.model.topic_config import altered, check_documents, created, origin_of
from message_lifecycle.ports import Topic


def create_topic(s: Services, name: TopicName, *, partitions: int | None = None, settings: Mapping[str, Value]) -> Topic:
    """Make the topic. Its first settings count as accepted: creating is no tightening (DEL-3).

    `partitions` None: as many as its origin has, or one. A source or mirror binds its origin from here on: nothing goes there
    before it is copied (TTL-6). Raises TopicExists, InvalidSetting, and UnknownTopic for an origin that is not there.
    """
    settings = created(settings, where=f"topic {name}")
    if "fold" in settings:
        check_documents(resolve(topic=settings, server=s.server), where=f"topic {name}")
    origin = origin_of(name, settings)
    if origin is not None:
        partitions = _checked_origin(s, name, origin, partitions)
    if _find(s, name) is not None:
        raise topic_exists(str(name))
    # Before the table: a creation that dies in between may hold messages, but never lose one.
    s.ledger.start_anew(name)
    s.ledger.set_accepted_view(name, None)
    if origin is not None and partitions is not None:
        s.ledger.register_replica(origin, name, partitions)
    topic = s.topics.create(
        name, partitions=1 if partitions is None else partitions, settings=settings, ledger=s.ledger.next_identity(name)
    )
    s.ledger.forget_former(name)
    s.ledger.set_accepted(name, resolve(topic=topic.settings, server=s.server).values)
    keep_view(s, name)
    return topic


def _checked_origin(s: Services, name: TopicName, origin: TopicName, partitions: int | None) -> int:
    """How many partitions a copy of the origin has. Raises UnknownTopic, InvalidSetting."""
    where = f"topic {name}"
    seen: TopicName | None = origin
    while seen is not None:
        if seen == name:
            raise InvalidSetting(where=where, key="origin", value=str(origin), allowed="a topic that does not copy from this one (MSG-5)")
        found = s.topics.describe(origin) if seen == origin else _find(s, seen)
        seen = None if found is None else origin_of(seen, found.settings)
    found = s.topics.describe(origin)
    if "fold" in found.settings:
        raise is_a_document_topic(str(origin))
    there = found.partitions
    if partitions not in (None, there):
        raise InvalidSetting(where=where, key="partitions", value=partitions, allowed=f"{there}, as its origin {origin} has (MSG-5)")
    return there


def _find(s: Services, name: TopicName) -> Topic | None:
    try:
        return s.topics.describe(name)
    except UnknownTopic:
        return None


def alter_topic(s: Services, name: TopicName, changes: Mapping[str, Value | None], *, accept: tuple[str, str] | None = None) -> Topic:
    """Set and unset (None) settings. `accept`: (name, text) of the person who answers for what is tightened (DEL-3)."""
    before = s.topics.describe(name).settings
    after = altered(before, changes, where=f"topic {name}")
    if "fold" in after:
        check_documents(resolve(topic=after, server=s.server), where=f"topic {name}")
        check_levels(resolve(topic=after, server=s.server), s.ledger.own_settings(name), where=str(name))
    topic = s.topics.alter(name, {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)})
    if accept is not None:
        values = resolve(topic=topic.settings, server=s.server).values
        # Settings below the topic's are another matter: what was accepted of them stays.
        below = {key: value for key, value in (s.ledger.accepted(name) or {}).items() if key == ACCEPTED_OWN}
        s.ledger.set_accepted(name, {**values, **below}, by=accept[0], text=accept[1])
    keep_view(s, name)
    return topic


# The view beside each topic's table that hides dead messages from every reader at once, kept as the settings say.


log = logging.getLogger("lifecycle")


def live_view(s: Services, name: TopicName) -> str | None:
    """Make the view hide what the topic's settings, and the server's, hide now; its name. None: this store has none.

    Raises UnknownTopic, ForeignTable, TableBusy, CatalogUnavailable."""
    return s.topics.live_view(name, resolve(topic=s.topics.describe(name).settings, server=s.server))


def latest_view(s: Services, name: TopicName) -> str | None:
    """Make the view that reads the topic compacted say what its newest compaction and the settings say; its name. None: there is none.

    Raises UnknownTopic, CompactedTableMissing, ForeignTable, TableBusy, CatalogUnavailable."""
    return s.stores.view.keep_sql_view(name, resolve(topic=s.topics.describe(name).settings, server=s.server))


def keep_view(s: Services, name: TopicName) -> None:
    """The same in passing, and of the view that reads the topic compacted, wherever settings may have changed: what goes wrong with a
    view is no reason to stop there."""
    if "fold" in s.topics.describe(name).settings:
        return  # no message of it is read, by whatever way
    try:
        live_view(s, name)
        latest_view(s, name)
    except (ForeignTable, TableBusy, CatalogUnavailable, CompactedTableMissing) as error:
        log.warning("%s: a view beside the topic is not as the settings say: %s", name, error)
