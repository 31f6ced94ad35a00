"""Legal holds as people and programs see them."""

from __future__ import annotations

import base64
from typing import assert_never

from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import holds_of
from message_lifecycle.app.views.values import View, when
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName


def hold_view(hold: Hold, *, keys: bool = False) -> View:
    """`keys`: with the key itself, which otherwise its digest alone stands for."""
    return {
        "hold_id": hold.hold_id,
        "topic": str(hold.topic),
        **_what(hold, keys=keys),
        "placed_by": hold.placed_by,
        "placed_at": when(hold.placed_at),
        "why": hold.why,
        "released_by": hold.released_by,
        "released_at": when(hold.released_at),
        "released_why": hold.released_why,
    }


def holds_view(s: Services, name: TopicName | None, *, released: bool = False, keys: bool = False) -> list[View]:
    """Of one topic, or of all, in the order in which they were placed."""
    return [hold_view(hold, keys=keys) for hold in s.ledger.holds(name, released=released)]


def holds_on(s: Services, message: Message, name: TopicName) -> list[Hold]:
    """The holds that keep this very message."""
    return [hold for hold in holds_of(s, name) if _is_on(hold, message)]


def _is_on(hold: Hold, message: Message) -> bool:
    match hold.what:
        case HeldTopic():
            return True
        case HeldKey(key=key):
            return key == message.key
        case HeldRange(partition=partition, first=first, last=last):
            return partition == message.partition and first <= message.offset and (last is None or message.offset <= last)
        case never:
            assert_never(never)


def _what(hold: Hold, *, keys: bool) -> View:
    match hold.what:
        case HeldTopic():
            return {"holds": "topic"}
        case HeldKey(key=key, digest=digest):
            shown = {"key": _text(key)} if keys and key is not None else {}
            return {"holds": "key", "key_digest": digest, **shown}
        case HeldRange(partition=partition, first=first, last=last):
            return {"holds": "range", "partition": partition, "from": first, "to": last}
        case never:
            assert_never(never)


def _text(key: bytes) -> object:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(key).decode()}
