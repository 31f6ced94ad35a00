"""How changes become the state of a document (SNP-10). `fold_of` finds a fold by its name.

A fold starts from a stored state or from nothing, applies payloads in order of server_seq, and gives the state back: as bytes to store
(from which it can go on), and as the JSON value that a person reads. Whether a stored state is the same is for the fold to say: a
proof that looked only at what is shown could not fail for what is not (SNP-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from message_lifecycle.folds.json_text import JsonFold, TextSpliceFold, last_write, merge
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.errors import InvalidChange


class Folding(Protocol):
    """One document while it is folded."""

    def apply(self, payload: bytes) -> None:
        """Apply one change. Raises ValueError (or a kind of it) that says why it cannot be applied; the folding is then of no use."""

    def stored(self) -> bytes:
        """The state, to go on from."""

    def shown(self) -> object:
        """The state as a JSON value: null before the first change, of `text_splice` empty text."""

    def same_as(self, stored: bytes) -> bool:
        """Whether a stored state is this one, in all that further changes build on; what is no state of the fold is not."""


class Fold(Protocol):
    """A way of folding, with its settings. Can be sent to a Spark task."""

    def start(self, stored: bytes | None) -> Folding:
        """From a stored state; None: from before the first change. Raises ValueError where it is not a state of this fold."""


def fold_of(name: str, *, yjs_roots: Mapping[str, str]) -> Fold:
    """The fold of that name (setting `fold`). Imports its library only then."""
    match name:
        case "json_merge_patch":
            return JsonFold(step=merge)
        case "json_patch":
            from message_lifecycle.folds.json_patch import patch

            return JsonFold(step=patch)
        case "last_write":
            return JsonFold(step=last_write)
        case "text_splice":
            return TextSpliceFold()
        case "yjs":
            from message_lifecycle.folds.yjs import Yjs

            return Yjs(roots=tuple(sorted(yjs_roots.items())))
        case _:
            raise ValueError(f"no fold {name!r}")


# Folding stored changes in order, and the proof that a snapshot and what is left give the same (SNP-6).
#
# Of one document, and of nothing else: a store brings the changes in order of server_seq, in one pass, whatever engine reads them.


class Numbered(Protocol):
    """As much of a change as folding needs: stores that read many need not make a `Change` of each."""

    @property
    def server_seq(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class Replay:
    """A folding that knows where it stands, and takes nothing but the next change."""

    def __init__(self, fold: Fold, document: str, *, after: int, stored: bytes | None) -> None:
        """Raises InvalidChange where `stored` is no state of this fold."""
        self.seq, self._document = after, document
        try:
            self.folding: Folding = fold.start(stored)
        except ValueError as error:
            raise InvalidChange(document, after, f"the snapshot to go on from cannot be read: {error}") from error

    def take(self, server_seq: int, payload: bytes) -> None:
        """Raises InvalidChange: out of order, or not applicable."""
        if server_seq != self.seq + 1:
            raise InvalidChange(self._document, server_seq, f"it does not follow {self.seq}")
        try:
            self.folding.apply(payload)
        except ValueError as error:
            raise InvalidChange(self._document, server_seq, str(error)) from error
        self.seq = server_seq

    def stored(self) -> bytes:
        """Raises InvalidChange where the state cannot be kept."""
        try:
            return self.folding.stored()
        except ValueError as error:
            raise InvalidChange(self._document, self.seq, str(error)) from error

    def same_as(self, stored: bytes) -> bool:
        """Whether a stored state is this one. Raises InvalidChange where this one cannot be kept."""
        try:
            return self.folding.same_as(stored)
        except ValueError as error:
            raise InvalidChange(self._document, self.seq, str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What became of one document of a plan. `state`: of its new snapshot. `blocked`: why nothing of it may go."""

    state: bytes | None = None
    blocked: str | None = None


def fold_document(action: SnapshotDocument, fold: Fold, *, newest: int, stored: Mapping[int, bytes], changes: Iterable[Numbered]) -> Folded:
    """Make the document's new snapshot, and hold what is stored to it: every change up to its seq must apply.

    `newest`: the newest snapshot, new or stored. `stored`: states of the stored ones, at least `after` and `newest`. `changes`: those
    after `after`, ascending; later ones than the document's seq are passed over."""
    try:
        replay = Replay(fold, action.document, after=action.after, stored=stored[action.after] if action.after else None)
        state = None
        for change in changes:
            if change.server_seq > action.seq:
                break
            replay.take(change.server_seq, change.payload)
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


def proof(
    action: SnapshotDocument,
    fold: Fold,
    *,
    newest: int,
    base: bytes | None,
    snapshot: bytes | None,
    changes: Iterable[Numbered],
    left: Iterable[Numbered],
) -> str | None:
    """Why the staged document is not what it was; None: it is (SNP-6).

    `base`: the state at `after`; `changes`: those after it, before anything went; `snapshot`: the newest one's state, as staged;
    `left`: the staged changes after it. Nothing of what staging made is taken on trust."""
    if snapshot is None:
        return f"there is no snapshot at server_seq {newest}"
    try:
        replay = Replay(fold, action.document, after=action.after, stored=base)
        same = newest > action.after or replay.same_as(snapshot)
        for change in changes:
            if change.server_seq > action.seq:
                break
            replay.take(change.server_seq, change.payload)
            if change.server_seq == newest:
                same = replay.same_as(snapshot)
        rest = Replay(fold, action.document, after=newest, stored=snapshot)
        for change in left:
            if change.server_seq > action.seq:
                break
            rest.take(change.server_seq, change.payload)
        if replay.seq != action.seq or rest.seq != action.seq:
            return f"changes are missing after server_seq {min(replay.seq, rest.seq)}"
        if not same:
            return f"the changes up to server_seq {newest} do not give its snapshot"
        if not replay.same_as(rest.stored()):
            return f"the snapshot at server_seq {newest} and the changes left after it do not give the state at {action.seq}"
    except InvalidChange as error:
        return f"server_seq {error.server_seq}: {error.reason}"
    return None
