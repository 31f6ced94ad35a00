"""Printing: for people by rich, plain and unwrapped where no terminal listens; for programs JSON. Numbers and times in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

from message_lifecycle.app.rendering import Block, Facts, Heading, Line, Notes, Rows, Table, View, as_json, count, kind_of, size
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

Told = TypeVar("Told")

# Wide enough that nothing is ever wrapped in a file or a pipe.
_UNWRAPPED = 10_000
# Narrower terminals get times to the minute, so that tables keep their shape.
_ROOM_FOR_SECONDS = 110


_NUMBERS: Mapping[str, Callable[[int], str]] = {"Count": count, "Number": str, "Size": size}


class Output(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


def emit(output: Output, told: Told, shown: str | Table | Callable[[Screen, Told], None] | None = None) -> None:
    """Print one answer: for programs one JSON document; for people by `shown`: a line, the table of a list of views, or how it is drawn. A view
    says itself what is shown."""
    if output is Output.json:
        print(json.dumps(as_json(told), ensure_ascii=False, indent=2))
    elif isinstance(shown, str):
        Screen().line(shown)
    elif isinstance(shown, Table):
        assert isinstance(told, (list, tuple)), "a table shows a list of views"
        Screen().draw([shown.of(told)])
    elif shown is not None:
        shown(Screen(), told)
    else:
        assert isinstance(told, View), "anything else says how it is shown"
        Screen().draw(told.shown())


def emit_line(data: Any) -> None:
    """One object of a stream."""
    print(json.dumps(as_json(data), ensure_ascii=False))


def emit_long(head: Mapping[str, Any], name: str, rows: Iterable[Any], tail: Callable[[], Mapping[str, Any]]) -> None:
    """Print one JSON document row by row, never whole in memory: `head`, then a list `name`, then what `tail` makes once the rows are out.

    An error on the way leaves it without its end."""
    print("{")
    for key, value in head.items():
        print(f"  {json.dumps(key)}: {json.dumps(as_json(value), ensure_ascii=False)},")
    print(f"  {json.dumps(name)}: [", end="")
    separator = ""
    for row in rows:
        print(f"{separator}\n    {json.dumps(as_json(row), ensure_ascii=False)}", end="")
        separator = ","
    print("]", end="")
    for key, value in tail().items():
        print(f",\n  {json.dumps(key)}: {json.dumps(as_json(value), ensure_ascii=False)}", end="")
    print("\n}")


class Screen:
    """Headings, facts, tables and notes on standard output. Texts are taken as they are, never as markup; what is not printable is `written`
    out."""

    def __init__(self, written: Callable[[str], str] = safe) -> None:
        self.written = written

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        wide = None if sys.stdout.isatty() else _UNWRAPPED
        return Console(highlight=False, markup=False, emoji=False, soft_wrap=False, width=wide)

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line, broken by nothing but the terminal's edge: commands and names are copied whole."""
        self.console.print(self.written(text), style=style, soft_wrap=True)

    def sentence(self, text: str, style: str | None = None) -> None:
        """Text that wraps between words."""
        self.console.print(self.written(text), style=style)

    def draw(self, blocks: Iterable[Block]) -> None:
        """Print the parts of a view, one below the other."""
        for block in blocks:
            match block:
                case str():
                    self.line(block)
                case Line(text, style, wraps):
                    self.sentence(text, style) if wraps else self.line(text, style)
                case Heading(text):
                    self.heading(text)
                case Facts(values):
                    self.facts((name, value) for name, value in values.items() if value)
                case Notes(texts, style, title):
                    if texts and title:
                        self.heading(title)
                    self.notes(texts, style)
                case Rows(table, rows):
                    self._rows(table, rows)

    def _rows(self, table: Table, rows: Sequence[object]) -> None:
        if rows and table.title:
            self.heading(table.title)
        numbers = [name for name, value in table.columns.items() if rows and isinstance(value, str) and kind_of(rows[0], value) in _NUMBERS]
        cells = [[self._cell(row, value) for value in table.columns.values()] for row in rows]
        self.table(tuple(table.columns), cells, right=(*numbers, *table.right), wrap=table.wrap, most=table.most, none=table.none)

    def _cell(self, view: object, value: str | Callable[[Any], str]) -> str:
        """A cell by the type of the view's field; one without a value is empty."""
        if callable(value):
            return value(view)
        found, kind = getattr(view, value), kind_of(view, value)
        if found is None:
            return ""
        if kind == "Instant":
            return self.when(format_instant(found))
        return _NUMBERS[kind](found) if kind in _NUMBERS else str(found)

    def when(self, time: Any) -> str:
        """A time of a view, for a table's cell."""
        if not isinstance(time, str):
            return ""
        if self.console.width >= _ROOM_FOR_SECONDS:
            return time
        return time[:16].replace("T", " ") if time[10:11] == "T" else time

    def heading(self, text: str) -> None:
        self.line()
        self.line(text, style="bold")

    def facts(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names on the left, values on the right; those without a value are left out."""
        grid = self._grid()
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        self._print(grid, [(name, value) for name, value in pairs if value])

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[str] = (),
        wrap: Sequence[str] = (),
        most: int | None = None,
        none: str = "",
    ) -> None:
        """`right`: headers of the columns of numbers; `wrap`: of those that give way on a narrow terminal (by default the last);
        `most`: so many rows are shown, and the others counted; `none`: said where there are no rows."""
        rows = list(rows)
        if none and not rows:
            self.line(none)
        grid = self._grid(show_header=True, header_style="dim")
        for header in headers:
            gives_way = header in (wrap or headers[-1:])
            grid.add_column(header, justify="right" if header in right else "left", no_wrap=not gives_way, overflow="fold")
        self._print(grid, rows[:most])
        if most is not None and len(rows) > most:
            self.line(f"... and {len(rows) - most:,} more; --output json has all")

    def titled(self, title: str, texts: Sequence[str]) -> None:
        """A list under a heading; nothing where there are none."""
        if texts:
            self.heading(title)
            self.notes(texts)

    def notes(self, texts: Iterable[str], style: str | None = None) -> None:
        """A list of sentences."""
        grid = self._grid()
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold", style=style)
        self._print(grid, [("  -", text) for text in texts], between=1)

    def _grid(self, **options: Any) -> Grid:
        from rich.table import Table as Grid

        return Grid(box=None, pad_edge=False, **{"show_header": False, **options})

    def _print(self, grid: Grid, rows: Iterable[Sequence[str]], between: int = 2) -> None:
        from rich.text import Text

        grid.padding = (0, between, 0, 0)
        for row in rows:
            grid.add_row(*(Text(self.written(cell)) for cell in row))
        if not grid.row_count:
            return
        if sys.stdout.isatty():
            self.console.print(grid)
            return
        with self.console.capture() as drawn:
            self.console.print(grid)
        for line in drawn.get().splitlines():
            print(line.rstrip())


def printed(draw: Callable[[Screen], None]) -> str:
    """What is drawn, as it would stand in a file, names as they are: who keeps it must find them in it, and who shows it writes them out."""
    with redirect_stdout(StringIO()) as text:
        draw(Screen(written=str))
    return text.getvalue()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on standard error that something takes its time; nothing where no terminal listens."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(safe(what)):
        yield
