"""How changes become the state of a document (SNP-10). `fold_of` finds a fold by its name.

A fold starts from a stored state or from nothing, applies payloads in order of server_seq, and gives the state back: as bytes to store
(from which it can go on), and as the JSON value that a person reads. Whether a stored state is the same is for the fold to say: a
proof that looked only at what is shown could not fail for what is not (SNP-6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from message_lifecycle.folds.json_text import JsonFold, TextSpliceFold, last_write, merge


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
