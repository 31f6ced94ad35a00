"""Seam to the ledger's legal holds (DEL-8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from message_lifecycle.model.hold import Hold
from message_lifecycle.model.names import TopicName


class HoldMemory(Protocol):
    """Who holds what, and why. Whoever adds a hold has the topic's lock: it then waits for a publish in flight."""

    def holds(self, topic: TopicName | None = None, *, released: bool = False) -> Sequence[Hold]:
        """Of one topic, or of all, in the order in which they were placed; those that stand, or with those that were released."""
        ...

    def hold(self, hold_id: str) -> Hold:
        """By id or a unique beginning of one. Raises UnknownHold."""
        ...

    def add_hold(self, hold: Hold) -> Hold:
        """The same again changes nothing. Raises InvalidHold where nobody or no reason is named."""
        ...

    def release_hold(self, hold_id: str, *, by: str, why: str) -> Hold:
        """From now on it keeps nothing; its key is replaced by a digest. The same word again returns the first.

        Raises UnknownHold, InvalidHold, HoldReleased."""
        ...
