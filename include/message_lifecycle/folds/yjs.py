"""Updates of a Yjs document, by `pycrdt`. The stored state is the document as one update, and its JSON value shows its roots (SNP-10)."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pycrdt

ROOT_TYPES = {"Text": pycrdt.Text, "Map": pycrdt.Map, "Array": pycrdt.Array}


class YjsFolding:
    """One document. Updates come in the order of the server, so each finds every update that it builds on."""

    def __init__(self, roots: tuple[tuple[str, str], ...], stored: bytes | None) -> None:
        self._doc: pycrdt.Doc[Any] = pycrdt.Doc()
        self._roots, self._empty = roots, stored is None
        if stored is not None:
            self.apply(stored)

    def apply(self, payload: bytes) -> None:
        try:
            self._doc.apply_update(payload)
        except BaseException as error:  # the core's panic is not an Exception; any other error is raised again
            # A panic of the library's core must not end a run that folds other documents as well.
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError("the library cannot apply the update") from error
        if not self._has_taken(payload):
            # The library keeps such an update aside, outside its state, so a stored state would lose the update.
            raise ValueError("the update builds on others that are not there")
        self._empty = False

    def _has_taken(self, update: bytes) -> bool:
        """Return True if the document has every addition and every deletion of the update."""
        state, there = self._doc.get_state(), self._clocks()
        if any(clock > there.get(client, 0) for client, clock in _pairs(_numbers(pycrdt.get_state(update)))):
            return False
        # Without the parts that the state has, only the deletions of an update remain.
        rest = _numbers(pycrdt.get_update(update, state))
        if next(rest):
            return False
        for _ in range(next(rest)):
            client = next(rest)
            for clock, length in _pairs(rest):
                if clock + length > there.get(client, 0):
                    return False
        return True

    def stored(self) -> bytes:
        return self._doc.get_update()

    def same_as(self, stored: bytes) -> bool:
        """Compare every writer's clock and the whole content, under any roots.

        The comparison reads both states again. Updates taken one by one may have another layout than updates taken at once.
        """
        ours = self.stored()
        if stored == ours:
            return True
        try:
            mine, other = YjsFolding((), ours), YjsFolding((), stored)
        except ValueError:
            return False
        return mine._clocks() == other._clocks() and mine.stored() == other.stored()

    def _clocks(self) -> dict[int, int]:
        return dict(_pairs(_numbers(self._doc.get_state())))

    def shown(self) -> object:
        if self._empty:
            return None
        return {name: _json(self._doc.get(name, type=ROOT_TYPES[kind]).to_py()) for name, kind in self._roots}


@dataclass(frozen=True, slots=True, kw_only=True)
class Yjs:
    """`roots`: the shown parts of the document, as (name, type)."""

    roots: tuple[tuple[str, str], ...]

    def start(self, stored: bytes | None) -> YjsFolding:
        return YjsFolding(self.roots, stored)


def _numbers(encoded: bytes) -> Iterator[int]:
    """Yield the variable-length numbers of the Yjs encoding: seven bits a byte, the lowest first."""
    value = shift = 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def _pairs(numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield as many pairs as the first number says."""
    for _ in range(next(numbers)):
        yield next(numbers), next(numbers)


def _json(value: object) -> object:
    """Return the value like JavaScript writes it: whole numbers without a point, null for NaN and infinity, bytes as base64."""
    if isinstance(value, dict):
        return {str(name): _json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, float):
        return None if not math.isfinite(value) else int(value) if value.is_integer() else value
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    return value if value is None or isinstance(value, str | int) else str(value)
