"""Whether a message may be appended: its key is not forbidden, and the lifetime that it states is allowed."""

from __future__ import annotations

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.lifetime import Lifetime, Refusal, lifetime

ERASED = Refusal(code=410, reason="erased")
"""The key was erased and may not come in again. Such a message goes nowhere, not into quarantine either, and gets no offset."""


def admission(message: NewMessage, policy: Policy, forbidden: KeyMatch | None) -> Lifetime | Refusal:
    """`forbidden` None: no key is, and none is looked at. A copy of an origin's message is refused for its key alone (TTL-4)."""
    if forbidden is not None and forbidden.matches(message.key):
        return ERASED
    return lifetime(message, policy)
