"""Views: the answers of commands and pages, each a frozen dataclass, and what every rendering of one has in common.

The type of a field says how it is written: `Instant` as a time, `Count` with its thousands marked, `Size` in bytes, `Number` as it is, because
it names a thing. `as_json` makes the document for programs; `Screen.draw` of the command and the templates of the pages show a view to people.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Self

from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value, typed

Document = dict[str, Any]
"""A view that is no dataclass yet."""
Count = int
"""An amount of things."""
Number = int
"""A number that names a thing: a partition, an offset, a snapshot."""
Size = int
"""Bytes."""

ROWS = 20
"""A long table shows so many rows."""
SHORT = 12
"""So many characters of a plan's id are enough to name it."""
_SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def size(number: int | None) -> str:
    """Decimal units, as disks are sold."""
    if number is None:
        return "unknown"
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} bytes" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def share(fraction: float | None) -> str:
    """Never rounded to a false 0 % or 100 %."""
    if fraction is None:
        return "unknown"
    percent = fraction * 100
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    return f"{percent:.1f} %"


def reasons(counts: Mapping[str, int]) -> str:
    """`1,234 by expiry`; nothing for nothing."""
    return ", ".join(f"{count(number)} by {reason}" for reason, number in counts.items())


def said(value: Value | None, unit: str) -> str:
    """Return a setting's value as a person types it. A duration needs no unit beside it: `1d12h`."""
    return "unset" if value is None else typed(value, unit)


def unit_beside(unit: str) -> str:
    """Return the unit that a value of a setting still needs beside it."""
    return "" if unit == "seconds" else unit


def ends(end_offsets: Mapping[int, int]) -> str:
    """`0:168387, 1:168389`: the next offset of each partition, spelled as `lifecycle explain` takes a message's place."""
    return ", ".join(f"{partition}:{end}" for partition, end in sorted(end_offsets.items()))


class _Absent:
    """The value of a field that the view does not have: the JSON document is without the field, and a condition takes it for false."""

    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()


# The parts of a view as people see it, from top to bottom. A plain text among them is one line.


@dataclass(frozen=True, slots=True)
class Line:
    """One line, broken at the terminal's edge alone; with `wraps` a sentence, broken between words."""

    text: str
    style: str | None = None
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and their values; a name without a value is left out."""

    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Notes:
    """A list of sentences, under its title; neither is shown where there are no sentences."""

    texts: Sequence[str]
    style: str | None = None
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of views of one class.

    Args:
        columns: By header: the name of the view's field or property, or a function of the view that returns text.
        wrap: Headers of the columns that give way on a narrow terminal; by default the last.
        right: Headers of texts that are aligned as numbers are.
        most: The rows that are shown; the others are counted.
        none: Stands in place of a table without rows.
        title: The heading of a table that has rows.
    """

    columns: Mapping[str, str | Callable[[Any], str]]
    wrap: Sequence[str] = ()
    right: Sequence[str] = ()
    most: int | None = None
    none: str = ""
    title: str = ""

    def of(self, rows: Iterable[object]) -> Rows:
        return Rows(self, tuple(rows))


@dataclass(frozen=True, slots=True)
class Rows:
    """A table with its rows."""

    table: Table
    rows: Sequence[object]


Block = str | Line | Heading | Facts | Notes | Rows


class View:
    """The base of every view."""

    __slots__ = ()
    table: ClassVar[Table]
    """How a list of such views is shown."""

    @classmethod
    def of(cls, source: object, **given: object) -> Self:
        """Make the view of an object: `given` has some of its fields, `source` names the origin of others, and the rest have the same names."""
        for each in fields(cls):  # type: ignore[arg-type]  # every view is a dataclass
            if each.name not in given and (each.metadata.get("at") or hasattr(source, each.name)):
                value = getattr(source, each.metadata.get("at") or each.name)
                make = each.metadata.get("make")
                given[each.name] = value if make is None or value is None else make(value)
        return cls(**given)

    def shown(self) -> Iterator[Block]:
        """Yield what a person sees of this view alone."""
        yield from ()


def source(name: str = "", make: Callable[[Any], object] | None = None, *, key: str = "") -> Any:
    """Declare a view's field that is taken from `name` of the source by `View.of`, converted by `make`; `key`: its name in the JSON document."""
    return field(metadata={"at": name, "make": make, "key": key})


def hidden(default: object) -> Any:
    """Declare a field that people see and programs do not get."""
    return field(default=default, metadata={"hidden": True})


def each(view: type[View]) -> Callable[[Iterable[Any]], tuple[View, ...]]:
    """For `source`: a view of each object."""
    return lambda found: tuple(view.of(one) for one in found)


def kind_of(view: object, name: str) -> str:
    """The name of the type of a field, or of what a property returns, without `None`; empty for any other attribute."""
    declared = getattr(type(view), "__dataclass_fields__", {}).get(name)
    found = getattr(type(view), name, None)
    text = declared.type if declared is not None else found.fget.__annotations__.get("return", "") if isinstance(found, property) else ""
    return str(text).removesuffix(" | None")


def as_json(value: Any) -> Any:
    """Return what `json.dumps` writes for a view, or for a part of one, by its fields."""
    if isinstance(value, TopicName):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            one.metadata.get("key") or one.name.rstrip("_"): _field_as_json(value, one.name)
            for one in fields(value)
            if not one.metadata.get("hidden") and getattr(value, one.name) is not ABSENT
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(one) for one in value]
    return text_of(value) if isinstance(value, bytes) else value


def _field_as_json(view: object, name: str) -> Any:
    value = getattr(view, name)
    return format_instant(value) if value is not None and kind_of(view, name) == "Instant" else as_json(value)


def text_of(content: bytes | None) -> object:
    """Bytes as scenario files write them, too."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
