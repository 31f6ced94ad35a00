"""Whether a message may be appended with the lifetime it states, and when it then dies (TTL-2 to TTL-6)."""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, known_time
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.ttl import INVALID_TTL, TTL_DISABLED, InvalidTtl, OwnTtl, expires_at, parse_ttl, ttl_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """As `Message.expires_at` and `Message.never`."""

    expires_at: Instant | None = None
    never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A message that is not appended: the server's code, and why."""

    code: int
    reason: str


def lifetime(message: NewMessage, policy: Policy) -> Lifetime | Refusal:
    """Of a message that is published; one that was copied from an origin is never refused (TTL-4)."""
    value = ttl_header(message.headers)
    copied = message.origin_offset is not None
    if value is None:
        return Lifetime()
    try:
        own = parse_ttl(value, reject_zero=policy.reject_zero_ttl)
    except InvalidTtl:
        if not copied:
            return Refusal(code=INVALID_TTL, reason=f"the TTL {value[:40]!r} is not valid")
        own = OwnTtl()
    if not (policy.allow_msg_ttl or copied):
        return Refusal(code=TTL_DISABLED, reason="the topic does not allow per-message TTL")
    return Lifetime(expires_at=expires_at(known_time(message.append_time), own), never=own.never)
