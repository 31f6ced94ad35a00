"""One setting: its kind, its limits, where it may stand, and how a value is checked and read (NUM-1)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.names import is_topic

U32_MAX = 2**32 - 1
U63_MAX = 2**63 - 1
# Of a number of seconds: times are whole microseconds.
_DECIMALS = 6
PROPERTY_PREFIX = "lifecycle."

Value = int | float | bool | str
# Months and years are calendar units: how long they are depends on when one counts from.
_PERIOD = re.compile(r"permanent|[1-9][0-9]{0,5} (second|minute|hour|day|week|month|year)s?")


def _is_object_of_texts(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and all(isinstance(value, str) for value in found.values())


def _text_of(value: dict[object, object]) -> object:
    """Equal objects are equal text; what is no JSON stays as it is, to be refused."""
    if not all(isinstance(part, str) for pair in value.items() for part in pair):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `section` None: a topic setting only; `on_topic` False: a server setting only."""

    name: str
    section: str | None
    on_topic: bool
    kind: Literal["int", "float", "bool", "text", "name", "period", "object", "folder"]
    default: Value | None
    minimum: float = 0
    maximum: float = U63_MAX
    unit: str = ""
    choices: tuple[str, ...] = ()
    server_key: str = ""
    """Its key in the server file, where that is not the name."""
    help: str
    reason: str
    # Bigger result = removes more. A setting with none cannot remove anything by itself.
    tightness: Callable[[Any], float] | None = None

    @property
    def key(self) -> str:
        return self.server_key or self.name

    @property
    def allowed(self) -> str:
        if self.kind == "bool":
            return "true or false"
        if self.kind == "text":
            return "one of " + ", ".join(self.choices)
        if self.kind == "name":
            return "a topic as stream/topic"
        if self.kind == "period":
            return f"whole seconds from {self.minimum:g} to {int(self.maximum)}, or text such as 10 days, 1 month, 2 years, or permanent"
        if self.kind == "folder":
            return "the absolute path of a folder"
        if self.kind == "object":
            return 'a JSON object of texts, such as {"text": "Text"}'
        number = "a whole number" if self.kind == "int" else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        decimals = f" with at most {_DECIMALS} decimals" if self.kind == "float" and self.unit == "seconds" else ""
        return f"{number}{unit} from {self.minimum:g} to {int(self.maximum) if self.kind == 'int' else self.maximum}{decimals}"

    def check(self, value: object, *, where: str) -> Value:
        """Return the value if it may stand here, an object as its JSON text. Raises InvalidSetting."""
        ok = False
        if self.kind == "object" and isinstance(value, dict):
            value = _text_of(value)
        if self.kind == "bool":
            ok = isinstance(value, bool)
        elif self.kind == "text":
            ok = isinstance(value, str) and value in self.choices
        elif self.kind == "name":
            ok = isinstance(value, str) and is_topic(value)
        elif self.kind == "folder":
            ok = isinstance(value, str) and value.startswith("/") and "\0" not in value
        elif self.kind == "object":
            ok = isinstance(value, str) and _is_object_of_texts(value)
        elif self.kind == "period" and isinstance(value, str):
            ok = _PERIOD.fullmatch(value) is not None
        elif self.kind in ("int", "period"):
            ok = isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum
        elif isinstance(value, int | float) and not isinstance(value, bool):
            ok = self.minimum <= value <= self.maximum  # NaN compares false
            # Rounded, an age below a microsecond would be none at all, and every message too old.
            ok = ok and (self.unit != "seconds" or round(value, _DECIMALS) == value)
        if not ok:
            raise InvalidSetting(where=where, key=self.name, value=value, allowed=self.allowed)
        assert isinstance(value, bool | int | float | str)
        return float(value) if self.kind == "float" else value

    def parse(self, text: str, *, where: str) -> Value:
        """Read the text of a table property or of the command line. Raises InvalidSetting."""
        try:
            value: object = text if self.kind in ("text", "name", "object", "folder") else json.loads(text)
        except ValueError:
            value = text
        return self.check(value, where=where)
