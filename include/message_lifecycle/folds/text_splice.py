"""Text, and changes that are lists of `[position, deleted, inserted]`, applied in order (SNP-10).

Positions count Unicode code points, as Python's text does: one splice is two slices.
"""

from __future__ import annotations

from message_lifecycle.folds.json_text import canonical_json, is_canonically, read_json

_ALLOWED = "a list of [position, deleted, inserted]"


class TextSplice:
    """One text while it is folded."""

    def __init__(self, text: str) -> None:
        self._text = text

    def apply(self, payload: bytes) -> None:
        splices = read_json(payload)
        if not isinstance(splices, list):
            raise ValueError(f"{type(splices).__name__} is not {_ALLOWED}")
        text = self._text
        for splice in splices:
            if not isinstance(splice, list) or len(splice) != 3:
                raise ValueError(f"{splice!r} is not [position, deleted, inserted]")
            position, deleted, inserted = splice
            # Exactly int: true and 1.0 are equal to 1, and no positions.
            if type(position) is not int or type(deleted) is not int or not isinstance(inserted, str):
                raise ValueError(f"{splice!r} is not two whole numbers and a text")
            end = position + deleted
            if position < 0 or deleted < 0 or end > len(text):
                raise ValueError(f"[{position}, {deleted}, ...] lies outside a text of {len(text)} code points")
            text = text[:position] + inserted + text[end:]
        self._text = text

    def stored(self) -> bytes:
        return canonical_json(self._text)

    def same_as(self, stored: bytes) -> bool:
        return is_canonically(self.stored(), stored)

    def shown(self) -> object:
        return self._text


class TextSpliceFold:
    """Begins with empty text."""

    def start(self, stored: bytes | None) -> TextSplice:
        if stored is None:
            return TextSplice("")
        text = read_json(stored)
        if not isinstance(text, str):
            raise ValueError(f"a stored {type(text).__name__} is no text")
        return TextSplice(text)


FOLD = TextSpliceFold()
