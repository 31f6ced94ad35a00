"""Sources and mirrors follow their origins: what is new there is copied, and the origin then may let it go (MSG-5, TTL-6)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from message_lifecycle.app.erasure_secret import forbidden_keys
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.errors import BadInput, InvalidSetting, Refused
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.topic_config import origin_of
from message_lifecycle.operations.admission import check_origin, new_in_origin

log = logging.getLogger("lifecycle")

_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """`messages`: new ones; `copied`: the origin's last offset by partition that is copied or was passed; `erased`: messages left out
    because their key may not come in (None: not counted)."""

    topic: TopicName
    origin: TopicName
    messages: int
    copied: Mapping[int, int]
    erased: int | None = 0


def copy_topic(s: Services, name: TopicName) -> CopyResult:
    """Copy what is new in the topic's origin, and register what is copied; nothing new: no engine is started.

    Raises UnknownTopic, InvalidSetting for a topic without an origin, OriginBehind, AnotherOrigin, LedgerMismatch,
    TopicBusy, and what writing raises.
    """
    topic = s.topics.describe(name)
    origin = origin_of(name, topic.settings)
    if origin is None:
        raise InvalidSetting(where=f"topic {name}", key="origin", value=None, allowed="a topic that is a source or a mirror (MSG-5)")
    s.ledger.check(name, topic.ledger)
    with s.ledger.lock(name, wait_seconds=_LOCK_SECONDS, purpose="copy"):
        before = s.copier.copied(name)
        # One that is refused for good is not put back on its origin's list: a person may have taken it off.
        check_origin(name, s.reader.log(origin), before)
        s.ledger.register_replica(origin, name, topic.partitions)
        there, copied, rows = s.reader.log(origin), before.offsets, 0
        erased: int | None = 0
        if new_in_origin(name, there, before):
            # Asked under the lock: whoever forbids a key waits for it (see `erasure_requests`).
            forbidden = forbidden_keys(s.ledger, s.key_secret, name)
            done = s.copier.copy(name, there, policy_of(s, name), ledger=s.ledger.next_identity(name), forbidden=forbidden)
            copied, rows, erased = done.copied, done.rows, done.erased
        # After the commit: what is registered as copied may go in the origin at once.
        s.ledger.set_copied(origin, name, copied)
    return CopyResult(topic=name, origin=origin, messages=rows, copied=copied, erased=erased)


def to_copy(s: Services, names: Collection[TopicName] = ()) -> list[TopicName]:
    """Replicas with something new to copy, each after its own origin; none named: all, else those among the named topics and those
    that copy from them.

    By metadata alone. A replica that a person took off its origin's list is left alone; one that cannot be judged, too: whoever asks
    for it by name is told why.
    """
    pairs = s.ledger.replicas()
    origins = {replica: origin for origin, replica in pairs}
    found: dict[TopicName, None] = {}
    for origin, replica in sorted(pairs, key=lambda pair: len(line_of(origins, pair[1]))):
        wanted = not names or replica in names or origin in names or origin in found
        # What comes to an origin in this pass goes on in this pass.
        if wanted and (origin in found or _is_behind(s, origin, replica)):
            found[replica] = None
    return list(found)


def line_of(origins: Mapping[TopicName, TopicName], replica: TopicName) -> list[TopicName]:
    """A replica, its origin, the origin's origin ..."""
    line = [replica]
    while (origin := origins.get(line[-1])) is not None and origin not in line:
        line.append(origin)
    return line


def _is_behind(s: Services, origin: TopicName, replica: TopicName) -> bool:
    """Whether there is something to copy, or something copied that the ledger does not know yet."""
    known = {progress.partition: progress.offset for progress in s.ledger.consumers(origin) if progress.consumer == str(replica)}
    try:
        if origin_of(replica, s.topics.describe(replica).settings) != origin:
            return False  # made anew as a copy of another topic; what is registered here holds until a person removes it
        ends = s.reader.log(origin).end_offsets
    except (BadInput, Refused) as error:
        log.warning("%s: %s: %s", replica, error.code, error)
        return False
    return any(end - 1 > known.get(partition, -1) for partition, end in ends.items())
