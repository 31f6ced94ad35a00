"""Whether any key of a topic may stand for several (MSG-1). Runs that look at a topic read the keys of what is new there; whatever tells of it
asks the ledger what they have found."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from message_lifecycle.app.operations.registry import names_of
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import LifecycleError, code_of
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.message import DoubtfulKeys, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import KeyLook
from message_lifecycle.model.request import RemoveMessages

log = logging.getLogger("lifecycle")
_MOST_BYTES = 1 << 30
"""Of the segments whose keys one look reads of a topic; the next look goes on behind them."""
_MOST_SECONDS = 60.0
"""After so long a run begins with no further topic; the next run goes on with it, as those come first that were not looked at for longest."""


def read_keys(s: Services, names: Iterable[TopicName]) -> None:
    """Read the keys that are new in these topics of messages, and keep of each what was found. No operation takes more or less by it: where
    keys cannot be read, that is logged, what was known stays, and no other topic suffers."""
    ends = monotonic() + _MOST_SECONDS
    kept = {name: s.ledger.key_look(name) for name in names}
    for name in sorted(kept, key=lambda name: (-1 if (look := kept[name]) is None else look.looked_at, name)):
        if monotonic() > ends:
            log.info("keys of further topics are read by the next run")
            return
        try:
            s.ledger.set_key_look(name, _look(s, name, kept[name]))
        except (LifecycleError, OSError) as error:
            log.warning("%s: its keys cannot be read: %s: %s", name, code_of(error), error)


def _brought_back(s: Services, name: TopicName, kept: KeyLook) -> bool:
    """What an undo brings back may never have been read."""
    return bool(s.ledger.published_since(name, names_of(lambda one: one.gives_back), published_after=kept.looked_at))


def _look(s: Services, name: TopicName, kept: KeyLook | None) -> KeyLook:
    at, marker = s.ledger.now(), s.reader.marker(name)
    if kept is not None and _brought_back(s, name, kept):
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
    if kept is not None and _brought_back(s, name, kept):
        kept = None
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
    return "no scheduled run has read its keys yet" if kept is None else "no scheduled run has read all of its keys yet"
