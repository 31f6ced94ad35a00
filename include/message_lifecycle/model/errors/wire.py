"""Bytes of another system's layout."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput


class WireError(BadInput):
    """Bytes that break their layout, or a value that has no place in it: which field, at which byte, what is there, what may be."""

    def __init__(self, *, layout: str, field: str, offset: int, found: str, allowed: str) -> None:
        self.layout, self.field, self.offset, self.found, self.allowed = layout, field, offset, found, allowed
        super().__init__(f"{layout}: {field} at byte {offset}: found {found}. Allowed: {allowed}.")
