"""Create and alter topics, keep their SQL views up to date, and copy sources and mirrors from their origins (MSG-5)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from message_lifecycle.app.erasure_secret import forbidden_keys
from message_lifecycle.app.holds import record_ledger
from message_lifecycle.app.known import require_not_missing
from message_lifecycle.app.services import Services, find_topic, policy_of
from message_lifecycle.app.witness import note, require_intact
from message_lifecycle.model.document import ACCEPTED_OWN
from message_lifecycle.model.errors import (
    BadInput,
    CatalogUnavailable,
    CompactedTableMissing,
    ForeignTable,
    InvalidSetting,
    PartlyUnavailable,
    Refused,
    TableBusy,
    topic_exists,
)
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.setting_list import Value, check_messages
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.topic import (
    RECORD_LOGS,
    altered_settings,
    check_documents,
    check_overdue,
    new_topic_settings,
    origin_of,
    values_stored_at_creation,
)
from message_lifecycle.operations.admission import check_origin, new_in_origin
from message_lifecycle.ports import Topic


def create_topic(s: Services, name: TopicName, *, partitions: int | None = None, settings: Mapping[str, Value]) -> Topic:
    """Create the topic. Its first settings count as accepted, because creating is no tightening (DEL-3).

    A source or mirror binds its origin from now on: the origin removes no message before it is copied (TTL-6).

    Args:
        s: The stores, the ledger and the settings.
        name: The new topic's name.
        partitions: The number of partitions. None: as many as the origin has, or one.
        settings: The settings that differ from the defaults.

    Raises:
        InvalidName, InvalidSetting: An argument is wrong.
        TopicExists: A topic has this name.
        PartlyUnavailable: The ledger knows a topic of this name, and it is missing (OBL-1).
        UnknownTopic: The origin does not exist.
    """
    name = TopicName(stream=normalise_name(name.stream), topic=normalise_name(name.topic))
    if find_topic(s, name) is not None:
        raise topic_exists(str(name))
    require_not_missing(s, name)
    own = new_topic_settings(settings, where=f"topic {name}")
    settings = {**values_stored_at_creation(s.server, own), **own}
    check_documents(resolve(topic=settings, server=s.server), where=f"topic {name}")
    check_overdue(settings, s.server, where=f"topic {name}")
    origin = origin_of(name, settings)
    if origin is not None:
        partitions = _checked_origin(s, name, origin, partitions)
    s.ledger.check_host_clock()
    # Write to the ledger before the table exists: a creation that dies in between may keep messages too long, but never loses one.
    s.ledger.reset_topic(name)
    s.ledger.set_accepted_view(name, None)
    if origin is not None and partitions is not None:
        record_ledger(s, origin)
        s.ledger.register_replica(origin, name, partitions)
    topic = s.topics.create(
        name, partitions=1 if partitions is None else partitions, settings=settings, ledger=s.ledger.next_identity(name)
    )
    s.ledger.forget_former(name)
    s.ledger.set_accepted(name, resolve(topic=topic.settings, server=s.server).values)
    s.ledger.note_topic(name, anew=True)
    note(s, name)
    update_views(s, name)
    return topic


def _checked_origin(s: Services, name: TopicName, origin: TopicName, partitions: int | None) -> int:
    """How many partitions a copy of the origin has. Raises UnknownTopic, InvalidSetting."""
    where = f"topic {name}"
    seen: TopicName | None = origin
    while seen is not None:
        if seen == name:
            raise InvalidSetting(where=where, key="origin", value=str(origin), allowed="a topic that does not copy from this one (MSG-5)")
        found = s.topics.describe(origin) if seen == origin else find_topic(s, seen)
        seen = None if found is None else origin_of(seen, found.settings)
    found = s.topics.describe(origin)
    check_messages(found.settings, origin)
    there = found.partitions
    if partitions not in (None, there):
        raise InvalidSetting(where=where, key="partitions", value=partitions, allowed=f"{there}, as its origin {origin} has (MSG-5)")
    return there


def alter_topic(s: Services, name: TopicName, changes: Mapping[str, Value | None], *, accept: tuple[str, str] | None = None) -> Topic:
    """Change settings. The value None unsets a setting.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        changes: The new values by the settings' names.
        accept: Name and reason of a person who accepts the tightened settings (DEL-3).
    """
    from message_lifecycle.app.documents import check_levels  # each plan renews a view by this module, and needs no documents

    before = s.topics.describe(name).settings
    after = altered_settings(before, changes, where=f"topic {name}")
    check_overdue(changes, s.server, where=f"topic {name}")
    effective = resolve(topic=after, server=s.server)
    check_documents(effective, where=f"topic {name}")
    check_levels(effective, s.ledger.settings_below_topic(name), where=str(name))
    changed = {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    s.ledger.check_host_clock()
    topic = s.topics.alter(name, changed)
    if changed:
        s.ledger.note_topic(name, anew=False)
    if accept is not None:
        values = resolve(topic=topic.settings, server=s.server).values
        # The acceptance does not cover settings below the topic's, so keep their earlier acceptance.
        below = {key: value for key, value in (s.ledger.accepted(name) or {}).items() if key == ACCEPTED_OWN}
        s.ledger.set_accepted(name, {**values, **below}, by=accept[0], text=accept[1])
    update_views(s, name)
    return topic


# The SQL view next to each topic's table follows the settings, and hides dead messages from every reader at once.


log = logging.getLogger("lifecycle")


def update_live_view(s: Services, name: TopicName) -> str | None:
    """Update the SQL view to the current settings of the topic and the server.

    Returns:
        The view's name. None: this store has no such view.

    Raises:
        UnknownTopic, ForeignTable, TableBusy, CatalogUnavailable: The view was not updated.
    """
    return s.topics.update_live_view(name, resolve(topic=s.topics.describe(name).settings, server=s.server))


def update_latest_view(s: Services, name: TopicName) -> str | None:
    """Update the SQL view for compacted reads to the newest compaction and the current settings.

    Returns:
        The view's name. None: the topic has no such view.

    Raises:
        UnknownTopic, CompactedTableMissing, ForeignTable, TableBusy, CatalogUnavailable: The view was not updated.
    """
    if s.backend_of(name) in RECORD_LOGS:
        return None
    return s.stores.view.update_sql_view(name, resolve(topic=s.topics.describe(name).settings, server=s.server))


def update_views(s: Services, name: TopicName) -> None:
    """Update both SQL views of the topic after settings may have changed. Log errors, because an old view must not stop the caller."""
    with s.topics.look():
        if s.topics.describe(name).has_documents:
            return  # a topic of documents has no messages to read
        try:
            update_live_view(s, name)
            update_latest_view(s, name)
        except (ForeignTable, TableBusy, CatalogUnavailable, CompactedTableMissing) as error:
            log.warning("%s: a view beside the topic is not as the settings say: %s", name, error)


# Sources and mirrors follow their origins. New messages of the origin are copied, and the origin may then remove them (MSG-5, TTL-6).


_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of a copy.

    Attributes:
        messages: The number of new messages.
        copied: By partition, the last offset of the origin that is copied or left out.
        erased: Messages that were left out because their key is forbidden. None: not counted.
        span_seconds: See `ports.Copied`.
    """

    topic: TopicName
    origin: TopicName
    messages: int
    copied: Mapping[int, int]
    erased: int | None = 0
    span_seconds: int | None = None


def copy_topic(s: Services, name: TopicName) -> CopyResult:
    """Copy new messages of the topic's origin, and register the copied offsets. Without new messages, no engine starts.

    Raises:
        InvalidSetting: The topic has no origin.
        UnknownTopic, OriginBehind, AnotherOrigin, LedgerMismatch, TopicBusy: Nothing was copied. Errors from writing are raised, too.
    """
    topic = s.topics.describe(name)
    origin = origin_of(name, topic.settings)
    if origin is None:
        raise InvalidSetting(where=f"topic {name}", key="origin", value=None, allowed="a topic that is a source or a mirror (MSG-5)")
    s.ledger.check(name, topic.ledger)
    for one in (origin, name):
        require_intact(s, one)
    with s.ledger.lock(name, wait_seconds=_LOCK_SECONDS, purpose="copy"):
        before = s.copier.copy_state(name)
        # Check before registering: a replica that can never be copied must not return to its origin's list, if a person has removed it.
        check_origin(name, s.reader.log(origin), before)
        s.ledger.register_replica(origin, name, topic.partitions)
        there, copied, rows = s.reader.log(origin), before.offsets, 0
        erased: int | None = 0
        doubled: int | None = None
        if new_in_origin(name, there, before):
            # Read the forbidden keys under the lock: an erasure that forbids a key waits for this lock (see `erasures`).
            forbidden = forbidden_keys(s.ledger, s.key_secret, name)
            policy, identity = policy_of(s, name), s.ledger.next_identity(name)
            latest_allowed_time = policy.latest_allowed_time(s.ledger.now())
            done = s.copier.copy_new_messages(
                name, there, policy, ledger=identity, latest_allowed_time=latest_allowed_time, forbidden=forbidden
            )
            copied, rows, erased, doubled = done.copied, done.rows, done.erased, done.span_seconds
        # Register after the commit, because the origin may remove copied messages at once.
        s.ledger.set_copied(origin, name, copied)
        note(s, name)
    return CopyResult(topic=name, origin=origin, messages=rows, copied=copied, erased=erased, span_seconds=doubled)


def replicas_to_copy(s: Services, names: Collection[TopicName] = ()) -> list[TopicName]:
    """Return the replicas with something new to copy, each after its own origin. Reads metadata only.

    A replica that a person removed from its origin's list is left out, and so is a replica that cannot be judged. A copy of such a replica
    by name raises the reason.

    Args:
        s: The stores, the ledger and the settings.
        names: Consider only these topics and their copies. Empty: all replicas.
    """
    pairs = s.ledger.replicas()
    origins = {replica: origin for origin, replica in pairs}
    found: dict[TopicName, None] = {}
    for origin, replica in sorted(pairs, key=lambda pair: len(line_of(origins, pair[1]))):
        wanted = not names or replica in names or origin in names or origin in found
        # An origin that receives messages in this pass passes them on in the same pass.
        if wanted and (origin in found or _is_behind(s, origin, replica)):
            found[replica] = None
    return list(found)


def line_of(origins: Mapping[TopicName, TopicName], replica: TopicName) -> list[TopicName]:
    """Return the replica, its origin, the origin's origin, and so on."""
    line = [replica]
    while (origin := origins.get(line[-1])) is not None and origin not in line:
        line.append(origin)
    return line


def _is_behind(s: Services, origin: TopicName, replica: TopicName) -> bool:
    """Return whether there are messages to copy, or copied messages that the ledger does not know yet."""
    known = {progress.partition: progress.offset for progress in s.ledger.consumers(origin) if progress.consumer == str(replica)}
    try:
        if origin_of(replica, s.topics.describe(replica).settings) != origin:
            return False  # created again as a copy of another topic; the old registration stays until a person removes it
        ends = s.reader.log(origin).end_offsets
    except (BadInput, Refused, PartlyUnavailable) as error:
        log.warning("%s: %s: %s", replica, error.code, error)
        return False
    return any(end - 1 > known.get(partition, -1) for partition, end in ends.items())
