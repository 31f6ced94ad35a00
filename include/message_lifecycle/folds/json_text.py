"""JSON for folds: strict parser, canonical writer, and the folds that need no library."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


DEPTH = 200
"""The most lists and objects within each other. Writing a value recurses as deep, on a stack that other code uses too."""
_TOO_DEEP = f"lists and objects are nested more than {DEPTH} deep"

_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def read_json(payload: bytes) -> object:
    """Return the value of JSON text in UTF-8. Raises ValueError.

    Half of a surrogate pair, which no text can hold, and a value beyond `DEPTH` are errors, too.
    """
    text = payload.decode("utf-8")
    try:
        value: object = _decoder.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Most texts have too few brackets to be deep.
    if text.count("[") + text.count("{") > DEPTH:
        check_depth(value)
    return value


def check_depth(value: object) -> None:
    """Raise ValueError beyond `DEPTH`. Works level by level, so that no depth is too much for the check itself."""
    if depth_of(value) > DEPTH:
        raise ValueError(_TOO_DEEP)


def depth_of(value: object) -> int:
    """Return how many lists and objects are within each other, 0 for a plain value. The count stops just beyond `DEPTH`."""
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level and depth <= DEPTH:
        depth += 1
        level = [
            part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole) if isinstance(part, dict | list)
        ]
    return depth


def is_canonically(canonical: bytes, stored: bytes) -> bool:
    """Return True if `stored` is the value of that canonical JSON, in any spelling."""
    try:
        return stored == canonical or canonical_json(read_json(stored)) == canonical
    except ValueError:
        return False


def canonical_json(value: object) -> bytes:
    """Return JSON with sorted keys, without white space, in ASCII. Equal values have equal bytes.

    Raises:
        ValueError: The value is nested too deeply.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


# Folds with a JSON value as state. The state is stored as canonical JSON (SNP-10).


Step = Callable[[object, object], object]
"""(state, change) -> state. May work in place. Raises ValueError, also for a state that would be too deep to read back."""


class JsonFolding:
    """One document. Unusable after an error, because a step may be half done in place."""

    def __init__(self, state: object, step: Step) -> None:
        self._state, self._step = state, step

    def apply(self, payload: bytes) -> None:
        try:
            self._state = self._step(self._state, read_json(payload))
        except RecursionError:
            raise ValueError("the state is nested too deeply") from None

    def stored(self) -> bytes:
        return canonical_json(self._state)

    def same_as(self, stored: bytes) -> bool:
        return is_canonically(self.stored(), stored)

    def shown(self) -> object:
        """Return a copy, because steps work in place. The copy goes through text, because `deepcopy` recurses twice as deep as the state."""
        shown: object = json.loads(json.dumps(self._state))
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFold:
    """A fold by a step, starting with null."""

    step: Step

    def start(self, stored: bytes | None) -> JsonFolding:
        return JsonFolding(None if stored is None else read_json(stored), self.step)


def merge(target: object, patch: object) -> object:
    """Apply a JSON Merge Patch (RFC 7396, section 2): the change's members replace the state's, and null removes a member.

    Works on `target` itself if it is an object.
    """
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def fold_last_write(_state: object, change: object) -> object:
    """The last change is the state."""
    return change


# The fold whose state is text


_ALLOWED = "a list of [position, deleted, inserted]"


class TextSplice:
    """One text during folding."""

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
            # Exactly int: true and 1.0 equal 1, but are not positions.
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
    """Text, with changes that are lists of `[position, deleted, inserted]`, applied in order (SNP-10). Starts with empty text.

    Positions count Unicode code points, like Python's text, so one splice is two slices.
    """

    def start(self, stored: bytes | None) -> TextSplice:
        if stored is None:
            return TextSplice("")
        text = read_json(stored)
        if not isinstance(text, str):
            raise ValueError(f"a stored {type(text).__name__} is no text")
        return TextSplice(text)
