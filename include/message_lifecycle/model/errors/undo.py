"""Why a published plan cannot be taken back (any more), or its undone messages not be released (DEL-7)."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused


class CannotUndo(Refused):
    """A plan that cannot be taken back; each reason is a leaf of its own."""

    def __init__(self, plan_id: str, reason: str) -> None:
        self.plan_id, self.reason = plan_id, reason
        super().__init__(f"plan {plan_id} cannot be undone: {reason}. Nothing was changed.")


class NotPublished(CannotUndo):
    """Nothing of the plan was ever published, so there is nothing to bring back."""

    def __init__(self, plan_id: str, found: str) -> None:
        self.found = found
        super().__init__(plan_id, f"it is {found}, and only a published plan has removed anything")


class NotUndoable(CannotUndo):
    """A plan of a kind that is not taken back."""


class UndoWindowPassed(CannotUndo):
    """`undo_window` has passed since the plan was published, by the ledger's clock."""

    def __init__(self, plan_id: str, *, published_at: str, ended_at: str, now: str) -> None:
        self.published_at, self.ended_at, self.now = published_at, ended_at, now
        super().__init__(plan_id, f"it was published at {published_at} and its undo_window ended at {ended_at}; it is {now} now")


class UndoSourceGone(CannotUndo):
    """What the plan removed is not in the table's history, or not in its files, any more."""


class LaterPlan(CannotUndo):
    """A plan that was published later builds on what this one removed."""

    def __init__(self, plan_id: str, later: str, reason: str) -> None:
        self.later = later
        super().__init__(plan_id, f"plan {later} came after it and {reason}")


class NameTaken(CannotUndo):
    """A deleted topic comes back under its own name, and another topic has it."""

    def __init__(self, plan_id: str, topic: str) -> None:
        self.topic = topic
        super().__init__(plan_id, f"another topic has the name {topic} now. It can be undone once that one is deleted")


class NotDeletable(BadInput):
    """Only topics of tables are deleted whole by a plan."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic} lies in no table: it goes whole with its files, or its streams, once it is in lifecycle.toml no more. "
            "Nothing was changed."
        )


class NotUndone(BadInput):
    """Only a plan that was taken back has messages to release."""

    def __init__(self, plan_id: str) -> None:
        self.plan_id = plan_id
        super().__init__(
            f"plan {plan_id} was not undone, so none of its messages wait to be released. `lifecycle undo {plan_id}` undoes it."
        )
