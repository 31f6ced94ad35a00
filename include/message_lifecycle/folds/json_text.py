"""JSON as folds read and keep it: strict in, canonical out."""

from __future__ import annotations

import json
import math
from typing import NoReturn


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def read_json(payload: bytes) -> object:
    """The value of JSON text in UTF-8. Raises ValueError, also for half of a surrogate pair, which no text can hold."""
    text = payload.decode("utf-8")
    try:
        value: object = _decoder.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def canonical_json(value: object) -> bytes:
    """Sorted keys, no white space, ASCII alone: equal values are equal bytes. Raises ValueError for a value nested too deeply."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
