"""Whether any key of a topic may stand for several (MSG-1). Runs that look at a topic read the keys of what is new there; whatever tells of it
asks the ledger what they have found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from message_lifecycle.app.due import Due
from message_lifecycle.app.known import of_it_alone
from message_lifecycle.app.operations.registry import names_of
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import LifecycleError, UnknownTopic
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.message import DoubtfulKeys, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import KeyLook
from message_lifecycle.model.request import RemoveMessages

_MOST_BYTES = 1 << 30
"""Of the segments whose keys one look reads of a topic; the next look goes on behind them."""


def read_keys(s: Services, names: Iterable[TopicName]) -> list[Due]:
    """Read the keys that are new in these topics of messages, and keep what was found. The topics whose keys cannot be read, with why: they hide
    no other, and what was known of them stays. One that has gone meanwhile is nobody's loss."""
    found, failed = dict[TopicName, KeyLook](), list[Due]()
    for name in names:
        try:
            found[name] = _look(s, name)
        except LifecycleError as error:
            told = of_it_alone(s, name, error)
            if not isinstance(told, UnknownTopic):
                failed.append(Due(topic=name, due=False, reason=f"its keys cannot be read: {told.code}: {told}", error=told))
    s.ledger.set_key_looks(found)
    return failed


def _look(s: Services, name: TopicName) -> KeyLook:
    at, marker, kept = s.ledger.now(), s.reader.marker(name), s.ledger.key_look(name)
    # What an undo brings back may never have been read.
    if kept is not None and s.ledger.published_since(name, names_of(lambda one: one.gives_back), published_after=kept.looked_at):
        kept = None
    if kept is not None and kept.is_known and kept.marker == marker:
        return replace(kept, looked_at=at)
    log, view = s.reader.log(name), s.stores.view.view(name)
    if kept is not None and not _goes_on(s, log, kept):
        kept = None
    if kept is not None and kept.found is not None:
        if _is_there(s, log, view, kept.found):
            return replace(kept, snapshot_id=log.snapshot_id, marker=marker, looked_at=at)
        kept = None  # behind the one that was found nothing was looked for
    before = {} if kept is None else kept.read
    read, whole = _next(log, before)
    return KeyLook(
        table_uuid=log.table_uuid,
        snapshot_id=log.snapshot_id,
        marker=marker,
        read=read,
        whole=whole,
        found=_found(s, log, view, before, read),
        looked_at=at,
    )


def _goes_on(s: Services, log: LogState, kept: KeyLook) -> bool:
    """Whether what was read then is what the log had before what is new in it. History may not tell it any more."""
    if kept.table_uuid != log.table_uuid:
        return False
    if kept.snapshot_id is None or log.snapshot_id is None:
        return not kept.read
    return s.reader.removed_by_others(log, kept.snapshot_id) is not None


def _is_there(s: Services, log: LogState, view: ViewState | None, place: tuple[int, int]) -> bool:
    if s.reader.requested(log, RemoveMessages(positions=(place,)), as_of=Instant(0)).due:
        return True
    return view is not None and bool(s.stores.view.places_of(log.topic, view, offsets={place[0]: {place[1]}}, keys=()))


def _next(log: LogState, before: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """Up to where the keys are read now, by partition, and whether that is all there is."""
    left, read = float(_MOST_BYTES), dict(before)
    for segment in log.segments:
        first = max(segment.base_offset, read.get(segment.partition, 0))
        if first > segment.last_offset:
            continue
        if left <= 0:
            return read, False
        left -= segment.size_bytes * (segment.last_offset + 1 - first) / (segment.last_offset + 1 - segment.base_offset)
        read[segment.partition] = segment.last_offset + 1
    return dict(log.end_offsets), True


def _found(
    s: Services, log: LogState, view: ViewState | None, before: Mapping[int, int], read: Mapping[int, int]
) -> tuple[int, int] | None:
    """The newest message with such a key among those that are read now: in the log, or else in its compacted view."""
    question = DoubtfulKeys(spans={partition: range(before.get(partition, 0), end) for partition, end in read.items()})
    places = [(entry.partition, entry.last_offset) for entry in s.reader.requested(log, question, as_of=Instant(0)).due]
    if not places and view is not None and any(view.horizon(partition) >= span.start for partition, span in question.spans.items() if span):
        places = [(partition, offset) for partition, offset, _ in s.stores.view.places_of(log.topic, view, offsets={}, keys=question)]
    return max(places, key=lambda place: place[1], default=None)


def doubtful_keys(s: Services, name: TopicName) -> dict[str, Any]:
    """`any`: whether any key does; None: not known (yet). `message`: PARTITION:OFFSET of one. `told`: the same in words, None
    where no key does."""
    kept = s.ledger.key_look(name)
    known = kept is not None and kept.is_known
    message = None if kept is None or kept.found is None else f"{kept.found[0]}:{kept.found[1]}"
    told = None
    if not known:
        told = f"it is not known whether a key has U+FFFD in it and may stand for several: {_not_read(kept)}"
    elif message is not None:
        told = (
            f"message {message}, and maybe others, has U+FFFD in its key, which may stand for several keys of before keys were kept as bytes: "
            "compaction, purge and erasure of such a key ask a person"
        )
    return {
        "any": message is not None if known else None,
        "message": message,
        "looked_at": None if kept is None else format_instant(kept.looked_at),
        "told": told,
    }


def _not_read(kept: KeyLook | None) -> str:
    return "no run has read its keys yet" if kept is None else "no run has read all of its keys yet"
