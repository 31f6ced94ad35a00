"""The view beside each topic's table that hides dead messages from every reader at once, kept as the settings say."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CatalogUnavailable, CompactedTableMissing, ForeignTable, TableBusy
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import resolve

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

log = logging.getLogger("lifecycle")


def live_view(s: Services, name: TopicName) -> str | None:
    """Make the view hide what the topic's settings, and the server's, hide now; its name. None: this store has none.

    Raises UnknownTopic, ForeignTable, TableBusy, CatalogUnavailable."""
    return s.topics.live_view(name, resolve(topic=s.topics.describe(name).settings, server=s.server))


def latest_view(s: Services, name: TopicName) -> str | None:
    """Make the view that reads the topic compacted say what its newest compaction and the settings say; its name. None: there is none.

    Raises UnknownTopic, CompactedTableMissing, ForeignTable, TableBusy, CatalogUnavailable."""
    return s.views.keep_sql_view(name, resolve(topic=s.topics.describe(name).settings, server=s.server))


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
