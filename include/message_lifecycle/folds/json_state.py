"""What the folds whose state is a JSON value share: the state is kept as canonical JSON (SNP-10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from message_lifecycle.folds.json_text import canonical_json, is_canonically, read_json

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
