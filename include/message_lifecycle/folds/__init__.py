"""Folds: changes become the state of a document (SNP-10). `fold_of` finds a fold by its name.

A fold starts from a stored state or from nothing and applies payloads in order of server_seq. The state is bytes to continue from, and a
JSON value for people. The fold itself compares stored states, because a comparison of JSON values could miss invisible differences (SNP-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from message_lifecycle.folds.json_text import JsonFold, TextSpliceFold, fold_last_write, merge
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.errors import InvalidChange


class Folding(Protocol):
    """One document during folding."""

    def apply(self, payload: bytes) -> None:
        """Apply one change. Raises ValueError with the reason if the change cannot be applied. The folding is then unusable."""

    def stored(self) -> bytes:
        """Return the state, to continue from."""

    def shown(self) -> object:
        """Return the state as a JSON value. Before the first change null, or empty text for `text_splice`."""

    def same_as(self, stored: bytes) -> bool:
        """Return True if a stored state equals this one in everything that further changes build on. False for an invalid state."""


class Fold(Protocol):
    """A way of folding, with its settings. Spark can send it to a task."""

    def start(self, stored: bytes | None) -> Folding:
        """Start from a stored state, or before the first change if None. Raises ValueError if the state is not one of this fold."""


def fold_of(name: str, *, yjs_roots: Mapping[str, str]) -> Fold:
    """Return the fold of that name (setting `fold`). Imports only its library."""
    match name:
        case "json_merge_patch":
            return JsonFold(step=merge)
        case "json_patch":
            from message_lifecycle.folds.json_patch import patch

            return JsonFold(step=patch)
        case "last_write":
            return JsonFold(step=fold_last_write)
        case "text_splice":
            return TextSpliceFold()
        case "yjs":
            from message_lifecycle.folds.yjs import Yjs

            return Yjs(roots=tuple(sorted(yjs_roots.items())))
        case _:
            raise ValueError(f"no fold {name!r}")


# Fold stored changes in order, and prove that a snapshot with the remaining changes gives the same state (SNP-6).
#
# The code handles one document only. A store brings the changes in order of server_seq, in one pass, with any engine.


class Numbered(Protocol):
    """The part of a change that folding needs. A store that reads many changes need not make a `Change` of each."""

    @property
    def server_seq(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class Replay:
    """A folding that knows its position, and accepts only the next change."""

    def __init__(self, fold: Fold, document: str, *, after: int, stored: bytes | None) -> None:
        """Raises InvalidChange if `stored` is not a state of this fold."""
        self.seq, self._document = after, document
        try:
            self.folding: Folding = fold.start(stored)
        except ValueError as error:
            raise InvalidChange(document, after, f"the snapshot to go on from cannot be read: {error}") from error

    def apply_change(self, server_seq: int, payload: bytes) -> None:
        """Apply the change. Raises InvalidChange if it is out of order, or not applicable."""
        if server_seq != self.seq + 1:
            raise InvalidChange(self._document, server_seq, f"it does not follow {self.seq}")
        try:
            self.folding.apply(payload)
        except ValueError as error:
            raise InvalidChange(self._document, server_seq, str(error)) from error
        self.seq = server_seq

    def stored(self) -> bytes:
        """Return the state. Raises InvalidChange if the state cannot be stored."""
        try:
            return self.folding.stored()
        except ValueError as error:
            raise InvalidChange(self._document, self.seq, str(error)) from error

    def same_as(self, stored: bytes) -> bool:
        """Return True if a stored state equals this one. Raises InvalidChange if this one cannot be stored."""
        try:
            return self.folding.same_as(stored)
        except ValueError as error:
            raise InvalidChange(self._document, self.seq, str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The result for one document of a plan.

    Attributes:
        state: The state of its new snapshot.
        blocked: Why the plan may remove no change of the document.
    """

    state: bytes | None = None
    blocked: str | None = None


def fold_document(action: SnapshotDocument, fold: Fold, *, newest: int, stored: Mapping[int, bytes], changes: Iterable[Numbered]) -> Folded:
    """Make the document's new snapshot, and check the stored data: every change up to its seq must apply.

    Args:
        action: The plan's action on the document.
        fold: How changes become a state.
        newest: The newest snapshot, new or stored.
        stored: States of stored snapshots, at least of `after` and `newest`.
        changes: Changes past `after`, ascending. Changes past the document's seq are ignored.
    """
    try:
        replay = Replay(fold, action.document, after=action.after, stored=stored[action.after] if action.after else None)
        state = None
        for change in changes:
            if change.server_seq > action.seq:
                break
            replay.apply_change(change.server_seq, change.payload)
            if change.server_seq == action.snapshot:
                state = replay.stored()
            elif change.server_seq == newest and not replay.same_as(stored[newest]):
                return Folded(blocked=f"the stored snapshot at server_seq {newest} is not what the changes after {action.after} give")
        if replay.seq != action.seq:
            return Folded(blocked=f"changes {replay.seq + 1} to {action.seq} are missing")
    except InvalidChange as error:
        return Folded(blocked=f"server_seq {error.server_seq}: {error.reason}")
    except KeyError as error:
        return Folded(blocked=f"the stored snapshot at server_seq {error.args[0]} is missing")
    return Folded(state=state)


def find_fold_difference(
    action: SnapshotDocument,
    fold: Fold,
    *,
    newest: int,
    base: bytes | None,
    snapshot: bytes | None,
    changes: Iterable[Numbered],
    left: Iterable[Numbered],
) -> str | None:
    """Return why the staged document differs from the original. None: it is the same (SNP-6).

    The proof trusts no result of the staging.

    Args:
        action: The plan's action on the document.
        fold: How changes become a state.
        newest: The newest snapshot, new or stored.
        base: The state at `after`.
        snapshot: The state of the newest snapshot, as staged.
        changes: The changes past `after`, before any change left.
        left: The staged changes past the newest snapshot.
    """
    if snapshot is None:
        return f"there is no snapshot at server_seq {newest}"
    try:
        replay = Replay(fold, action.document, after=action.after, stored=base)
        same = newest > action.after or replay.same_as(snapshot)
        for change in changes:
            if change.server_seq > action.seq:
                break
            replay.apply_change(change.server_seq, change.payload)
            if change.server_seq == newest:
                same = replay.same_as(snapshot)
        rest = Replay(fold, action.document, after=newest, stored=snapshot)
        for change in left:
            if change.server_seq > action.seq:
                break
            rest.apply_change(change.server_seq, change.payload)
        if replay.seq != action.seq or rest.seq != action.seq:
            return f"changes are missing after server_seq {min(replay.seq, rest.seq)}"
        if not same:
            return f"the changes up to server_seq {newest} do not give its snapshot"
        if not replay.same_as(rest.stored()):
            return f"the snapshot at server_seq {newest} and the changes left after it do not give the state at {action.seq}"
    except InvalidChange as error:
        return f"server_seq {error.server_seq}: {error.reason}"
    return None
