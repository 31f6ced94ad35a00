"""Legal holds, and what they keep."""

from __future__ import annotations

from collections.abc import Sequence

from message_lifecycle.model.errors.kinds import BadInput, Refused


class InvalidHold(BadInput):
    """A hold that names nothing that can be held."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        self.field, self.found, self.allowed = field, found, allowed
        super().__init__(f"hold: {field} is {found!r}; allowed: {allowed}. Nothing was changed.")


class UnknownHold(BadInput):
    """No hold of that id in the ledger, or more than one whose id begins so."""

    def __init__(self, hold_id: str, found: Sequence[str] = ()) -> None:
        self.hold_id, self.found = hold_id, tuple(found)
        said = f"is not one hold: {', '.join(found)} begin with it. Give more of the id." if found else "is not in the ledger."
        super().__init__(f"hold {hold_id!r} {said} `lifecycle hold list --all` shows those that are.")


class HoldReleased(Refused):
    """The hold was released before, by another word; that one stands."""

    def __init__(self, hold_id: str, by: str, at: str) -> None:
        self.hold_id, self.by, self.at = hold_id, by, at
        super().__init__(f"hold {hold_id} was released by {by} at {at} already.")


class HeldByLegalHold(Refused):
    """DEL-8: what was asked for names something that a legal hold keeps; all of it is refused."""

    def __init__(self, topic: str, held: int | None, holds: Sequence[str]) -> None:
        self.topic, self.held, self.holds = topic, held, tuple(holds)
        what = "something" if held is None else f"{held} message(s)"
        super().__init__(
            f"topic {topic}: refused as a whole, for it names {what} under {'; '.join(holds)}. Nothing was removed. "
            "`lifecycle hold list` shows the holds; it can be asked again once they are released."
        )
