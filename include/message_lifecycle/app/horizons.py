"""What a topic's compacted view means to everybody else: its horizon is one more reader of the log (CMP-9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, assert_never

from message_lifecycle.model.facts import LogState, Progress
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Held
from message_lifecycle.model.request import PurgeKey, RemoveMessages
from message_lifecycle.model.rows import offsets_of
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import Tail, ViewState
from message_lifecycle.operations import compaction
from message_lifecycle.operations.barriers import READER

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def readers_of(s: Services, name: TopicName) -> list[Progress]:
    """Who needs the topic's messages: consumers, those of the store's own, replicas, and compaction where the topic has a view; it never falls silent."""
    own = () if s.groups is None else s.groups.progress(name)
    return [*s.ledger.consumers(name), *own, *_compaction(s.views.view(name))]


def _compaction(view: ViewState | None) -> list[Progress]:
    # Partitions without a horizon lose nothing: a reader has read nothing of what it does not name.
    horizons = {} if view is None else view.horizons
    return [Progress(consumer=READER, partition=p, offset=offset, at=None, kind="compaction") for p, offset in sorted(horizons.items())]


def horizons_of(s: Services, name: TopicName) -> Mapping[int, int]:
    """The last offset compacted by partition; empty: nothing yet."""
    view = s.views.view(name)
    return {} if view is None else view.horizons


# Held messages of which the compacted view has the only copy: their raw messages had gone before the hold was placed (DEL-8).


_KEYS_ASKED = 100
"""Of more keys than that nobody looks whether each has a newer message: one may, and that is enough for the view to wait."""


class Copy(NamedTuple):
    """A held message of the view."""

    partition: int
    offset: int
    key: bytes | None
    hold: Hold


def of_key(s: Services, name: TopicName, view: ViewState, held: HeldKey) -> Sequence[tuple[int, int, bytes | None]]:
    """Where the view has messages of the key."""
    assert held.key is not None, "the ledger keeps the key for as long as its hold stands"
    return s.views.places_of(name, view, offsets={}, keys={held.key})


def at_risk(
    s: Services, log: LogState, view: ViewState, tails: Iterable[Tail], policy: Policy, *, as_of: Instant, holds: Iterable[Hold]
) -> tuple[Held, ...]:
    """What a compaction now would take, or may: of each hold and partition, one entry."""
    tails = list(tails)
    due = compaction.is_due(view, policy, as_of=as_of)
    if not due and not any(tail.rows for tail in tails):
        return ()
    copies = [copy for hold in holds for copy in _copies(s, log.topic, view, hold)]
    if not copies:
        return ()
    positions = tuple(sorted({(copy.partition, copy.offset) for copy in copies}))
    in_log = {
        (entry.partition, offset)
        for entry in s.reader.requested(log, RemoveMessages(positions=positions), as_of=as_of).due
        for offset in offsets_of(entry.taken)
    }
    alone = [copy for copy in copies if (copy.partition, copy.offset) not in in_log]
    if not due:
        newer = _with_newer(s, log, view, {copy.key for copy in alone if copy.key is not None}, as_of)
        alone = [copy for copy in alone if newer is None or copy.key in newer]
    ordered = sorted(alone, key=lambda copy: (copy.hold.hold_id, copy.partition, copy.offset))
    return tuple(_held(list(group)) for _, group in groupby(ordered, key=lambda copy: (copy.hold.hold_id, copy.partition)))


def _copies(s: Services, name: TopicName, view: ViewState, hold: Hold) -> Iterator[Copy]:
    match hold.what:
        case HeldKey():
            yield from (Copy(partition, offset, key, hold) for partition, offset, key in of_key(s, name, view, hold.what))
        case HeldTopic():
            for row in s.views.view_rows(name, view):
                if not row.remembered:
                    yield Copy(row.message.partition, row.message.offset, row.message.key, hold)
        case HeldRange(partition=partition, first=first, last=last):
            for row in s.views.view_rows(name, view, partition=partition, start=first):
                if row.message.offset > (INT64_MAX if last is None else last):
                    break
                if not row.remembered:
                    yield Copy(partition, row.message.offset, row.message.key, hold)
        case never:
            assert_never(never)


def _with_newer(s: Services, log: LogState, view: ViewState, keys: set[bytes], as_of: Instant) -> set[bytes | None] | None:
    """Keys with a message past the horizon; None: too many to look."""
    if len(keys) > _KEYS_ASKED:
        return None
    return {
        key
        for key in keys
        if any(entry.last_offset > view.horizon(entry.partition) for entry in s.reader.requested(log, PurgeKey(key=key), as_of=as_of).due)
    }


def _held(copies: Sequence[Copy]) -> Held:
    return Held(
        partition=copies[0].partition,
        first_base=copies[0].offset,
        last_offset=copies[-1].offset,
        rows=len(copies),
        overdue_since=None,
        holder="hold",
        detail=copies[0].hold.told,
        reason="superseded",
    )
