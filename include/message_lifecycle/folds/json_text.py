"""JSON as folds read and keep it: strict in, canonical out; and the folds that need no library for it."""

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
"""Lists and objects within each other, at most: whoever writes or shows a value goes down as deep, on a stack that others use too."""
_TOO_DEEP = f"lists and objects are nested more than {DEPTH} deep"

_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def read_json(payload: bytes) -> object:
    """The value of JSON text in UTF-8. Raises ValueError, also for half of a surrogate pair, which no text can hold, and beyond `DEPTH`."""
    text = payload.decode("utf-8")
    try:
        value: object = _decoder.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Most text opens too few brackets to be deep, wherever they stand.
    if text.count("[") + text.count("{") > DEPTH:
        check_depth(value)
    return value


def check_depth(value: object) -> None:
    """Raises ValueError beyond `DEPTH`. Level by level, so that no depth is too much for the check itself."""
    if depth_of(value) > DEPTH:
        raise ValueError(_TOO_DEEP)


def depth_of(value: object) -> int:
    """How many lists and objects are within each other; of plain values 0. It looks no further than just beyond `DEPTH`."""
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level and depth <= DEPTH:
        depth += 1
        level = [
            part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole) if isinstance(part, dict | list)
        ]
    return depth


def is_canonically(canonical: bytes, stored: bytes) -> bool:
    """Whether `stored` is the value of that canonical JSON, however it is written."""
    try:
        return stored == canonical or canonical_json(read_json(stored)) == canonical
    except ValueError:
        return False


def canonical_json(value: object) -> bytes:
    """Sorted keys, no white space, ASCII alone: equal values are equal bytes. Raises ValueError for a value nested too deeply."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


# What the folds whose state is a JSON value share: the state is kept as canonical JSON (SNP-10).


Step = Callable[[object, object], object]
"""(state, change) -> state; may work in place. Raises ValueError, also where the state would be deeper than what can be read back."""


class JsonFolding:
    """One document. After an error it is of no use: a step may have been half done in place."""

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
        """A copy: steps go on in place. By way of text: `deepcopy` goes down in Python, twice as deep as the state."""
        shown: object = json.loads(json.dumps(self._state))
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFold:
    """A fold by a step, beginning with null."""

    step: Step

    def start(self, stored: bytes | None) -> JsonFolding:
        return JsonFolding(None if stored is None else read_json(stored), self.step)


def merge(target: object, patch: object) -> object:
    """JSON Merge Patch (RFC 7396): members of the change take the place of the state's, null takes a member away. The algorithm of section 2,
    on `target` itself where it is an object."""
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def last_write(_state: object, change: object) -> object:
    """The last change is the state."""
    return change


# The fold whose state is text


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
    """Text, and changes that are lists of `[position, deleted, inserted]`, applied in order (SNP-10). Begins with empty text.

    Positions count Unicode code points, as Python's text does: one splice is two slices."""

    def start(self, stored: bytes | None) -> TextSplice:
        if stored is None:
            return TextSplice("")
        text = read_json(stored)
        if not isinstance(text, str):
            raise ValueError(f"a stored {type(text).__name__} is no text")
        return TextSplice(text)
