"""What stands against the erasure of a key from a store."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import Refused


class UnsupportedErasure(Refused):
    """A key cannot be erased from all of a topic, so nothing of it is."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: a key cannot be erased here: {reason}. Nothing was changed.")


class ErasureUnfinished(Refused):
    """Of what an erasure was to leave nothing, something is still there."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: the erasure has not ended: {reason}. Run it again: it goes on where it stopped.")


class InvalidReceipt(Refused):
    """What is kept as a receipt is none."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the receipt is not one of an erasure: {reason}.")
