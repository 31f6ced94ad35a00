"""Printing: text for people, with numbers and times in words, and JSON for programs.

On a terminal, rich formats the text. Otherwise the text is plain and unwrapped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

from message_lifecycle.app.rendering import ABSENT, Block, Cell, Heading, Line, Notes, Rows, Table, as_json, type_name_of
from message_lifecycle.app.wording import count
from message_lifecycle.model.instants import format_to_second
from message_lifecycle.model.names import safe
from message_lifecycle.model.phrases import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

# Wide enough that nothing is ever wrapped in a file or a pipe.
_UNWRAPPED = 10_000
# Narrower terminals get times to the minute and fewer columns, so that tables keep their shape.
_WIDE = 110
_INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*Z")
_NUMBERS: Mapping[str, Callable[[int], str]] = {"Count": count, "Number": str, "Size": size}


class Output(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


def emit(output: Output, answer: Any, shown: str | Table | Iterable[Block] | None = None) -> None:
    """Print one answer: a JSON document for programs, and text for people.

    Args:
        output: Prints for people or for programs.
        answer: The answer to print.
        shown: A line, the table of a list of views, or parts. None: the answer is a view, which has its own parts.
    """
    if output is Output.json:
        print(json.dumps(as_json(answer), ensure_ascii=False, indent=2))
        return
    parts = answer.screen_blocks() if shown is None else shown
    Screen().draw([parts] if isinstance(parts, str) else [parts.of(answer)] if isinstance(parts, Table) else parts)


def emit_line(data: object) -> None:
    """One object of a stream."""
    print(json.dumps(as_json(data), ensure_ascii=False))


def emit_long(head: Mapping[str, object], name: str, rows: Iterable[object], tail: Callable[[], Mapping[str, object]]) -> None:
    """Print one JSON document row by row, so that it is never whole in memory.

    The document has the fields of `head`, then the list `name`, then the fields of `tail`, which is called after the last row. An error in
    between leaves the document incomplete.
    """
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
    """Headings, facts, tables and notes on standard output. Text is never read as markup; `written` replaces unprintable characters."""

    def __init__(self, written: Callable[[str], str] = safe) -> None:
        self.written = written

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        wide = None if sys.stdout.isatty() else _UNWRAPPED
        return Console(highlight=False, markup=False, emoji=False, soft_wrap=False, width=wide)

    def draw(self, blocks: Iterable[Block]) -> None:
        """Print the parts of a view, one below the other."""
        for block in blocks:
            match block:
                case str():
                    self._line(block)
                case Line(text, style, wraps):
                    self._line(text, style, wraps=wraps)
                case Heading(text):
                    self._heading(text)
                case Notes(texts, style, title):
                    self._notes(texts, style, title)
                case Rows(table, rows):
                    self._rows(table, rows)
                case values:
                    self._facts(values)

    def _line(self, text: str = "", style: str | None = None, *, wraps: bool = False) -> None:
        """Print one line. Without `wraps`, only the terminal's edge breaks it, because people copy commands and names whole."""
        self.console.print(self.written(text), style=style, soft_wrap=not wraps)

    def _heading(self, text: str) -> None:
        self._line()
        self._line(text, style="bold")

    def _facts(self, values: Mapping[str, str | None]) -> None:
        grid = self._grid()
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        self._print(grid, [(name, value) for name, value in values.items() if value])

    def _notes(self, texts: Sequence[str], style: str | None, title: str) -> None:
        if texts and title:
            self._heading(title)
        grid = self._grid()
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold", style=style)
        self._print(grid, [("  -", text) for text in texts], between=1)

    def _rows(self, table: Table, rows: Sequence[object]) -> None:
        if not rows:
            if table.none:
                self._line(table.none)
            return
        if table.title:
            self._heading(table.title)
        shown = {header: cell for header, cell in table.columns.items() if self.console.width >= _WIDE or header not in table.wide}
        cells = [[self._cell(row, value) for value in shown.values()] for row in rows[: table.most]]
        # Leave out columns without a value.
        filled = [at for at, header in enumerate(shown) if header in table.absent or any(row[at][0] for row in cells)]
        columns, cells = [[*shown][at] for at in filled], [[row[at] for at in filled] for row in cells]
        grid = self._grid(header_style="dim")
        for number, header in enumerate(columns):
            is_number = header in table.right or any(row[number][1] in _NUMBERS for row in cells)
            gives_way = header in (table.wrap or columns[-1:])
            grid.add_column(header, justify="right" if is_number else "left", no_wrap=not gives_way, overflow="fold")
        absent = [table.absent.get(header, "") for header in columns]
        self._print(grid, [[text or nothing for (text, _), nothing in zip(row, absent, strict=True)] for row in cells])
        if table.most is not None and len(rows) > table.most:
            self._line(f"... and {len(rows) - table.most:,} more; --output json has all")

    def _cell(self, view: object, value: Cell) -> tuple[str, str]:
        """Return a cell by the type of the view's field, and the type's name. A field without a value makes an empty cell."""
        if callable(value):
            return self._shorten_times(value(view)), ""
        found, kind = cast(Any, view), ""
        for name in value.split("."):
            found, kind = getattr(found, name), type_name_of(found, name)
            if found is None or found is ABSENT:
                return "", kind
        if kind == "Instant":
            return self._shorten_times(format_to_second(found)), kind
        return _NUMBERS[kind](found) if kind in _NUMBERS else str(found), kind

    def _shorten_times(self, text: str) -> str:
        """Shorten the times in a cell if there is little room."""
        return text if self.console.width >= _WIDE else _INSTANT.sub(r"\1 \2", text)

    def _grid(self, header_style: str | None = None) -> Grid:
        from rich.table import Table as Grid

        return Grid(box=None, pad_edge=False, show_header=header_style is not None, header_style=header_style)

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


def render_text(blocks: Iterable[Block]) -> str:
    """Return the blocks as text for a file. Names stay unchanged, so that a reader of the file can search for them."""
    with redirect_stdout(StringIO()) as text:
        Screen(written=str).draw(blocks)
    return text.getvalue()


@contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Show progress on standard error during slow work, but only on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(safe(what)):
        yield
