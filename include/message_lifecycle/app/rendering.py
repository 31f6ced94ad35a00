"""Views: the answers of commands and pages, as frozen dataclasses, and the common parts of their renderings.

The type of a field decides its format: `Instant` as a time, `Count` with thousands separators, `Size` in bytes. A `Number` is written as it
is, because it identifies something. `as_json` makes the document for programs. `Screen.draw` and the templates of the pages show a view to
people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from message_lifecycle.app.wording import text_of
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import TopicName

Count = int
"""An amount of things."""
Number = int
"""A number that names a thing: a partition, an offset, a snapshot."""
Size = int
"""Bytes."""


class _Absent:
    """The value of a field that the view does not have: the JSON document is without the field, and a condition takes it for false."""

    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()


# The parts of a view as people see it, from top to bottom. A plain text is one line. A mapping is names and their values; a name without a
# value is left out.


@dataclass(frozen=True, slots=True)
class Line:
    """One line, broken only at the terminal's edge. With `wraps`, a sentence, broken between words."""

    text: str
    style: str | None = None
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a part of the screen."""

    text: str


@dataclass(frozen=True, slots=True)
class Notes:
    """A list of sentences under a title. An empty list shows no title either."""

    texts: Sequence[str]
    style: str | None = None
    title: str = ""


Cell = str | Callable[[Any], str]
"""What a column shows of a view: a field or property by its name, dotted for a part of a part, or a function of the view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of views of one class.

    Args:
        columns: The cells of each column, by header.
        wrap: Headers of the columns that give way on a narrow terminal; by default the last.
        wide: Headers of the columns that a narrow terminal leaves out.
        right: Headers of texts that are aligned as numbers are.
        absent: By header, the text of a cell without a value; by default it is empty.
        most: The number of rows to show; the others are counted.
        none: The text instead of a table without rows.
        title: The heading of a table that has rows.
    """

    columns: Mapping[str, Cell]
    wrap: Sequence[str] = ()
    wide: Sequence[str] = ()
    right: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
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


Block = str | Mapping[str, str | None] | Line | Heading | Notes | Rows


def source(name: str = "", make: Callable[[Any], object] | None = None, *, key: str = "") -> Any:
    """Declare a view's field that is taken from `name` of the source by `View.of`, converted by `make`; `key`: its name in the JSON document."""
    return field(metadata={"at": name, "make": make, "key": key})


def hidden(default: object) -> Any:
    """Declare a field that people see and programs do not get."""
    return field(default=default, metadata={"hidden": True})


One = TypeVar("One", bound="View")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(source, hidden))
class View:
    """The base of every view, which makes each subclass a frozen, keyword-only dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    table: ClassVar[Table]
    """How a list of such views is shown."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def of(cls, source: object, **given: object) -> Self:
        """Make the view of an object: `given` has some of its fields, `source` names the origin of others, and the rest have the same names."""
        for each in fields(cls):
            if each.name not in given and (each.metadata.get("at") or hasattr(source, each.name)):
                value = getattr(source, each.metadata.get("at") or each.name)
                make = each.metadata.get("make")
                given[each.name] = value if make is None or value is None else make(value)
        return cls(**given)

    def screen_blocks(self) -> Iterator[Block]:
        """Yield the parts of this view for a person, when the view is shown by itself."""
        yield from ()


def each(view: type[One]) -> Callable[[Iterable[object]], tuple[One, ...]]:
    """For `source`: a view of each object."""
    return lambda found: tuple(view.of(one) for one in found)


def type_name_of(view: object, name: str) -> str:
    """Return the name of a field's type, or of a property's return type, without `None`. Empty for any other attribute."""
    declared = getattr(type(view), "__dataclass_fields__", {}).get(name)
    found = getattr(type(view), name, None)
    text = declared.type if declared is not None else found.fget.__annotations__.get("return", "") if isinstance(found, property) else ""
    return str(text).removesuffix(" | None")


def as_json(value: object) -> Any:
    """Return the JSON document of a view, or of a part of one, by its fields."""
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


def _field_as_json(view: object, name: str) -> object:
    value = getattr(view, name)
    return format_instant(value) if value is not None and type_name_of(view, name) == "Instant" else as_json(value)
