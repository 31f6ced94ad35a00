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

from message_lifecycle.model.names import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

View = dict[str, Any]
"""What `app.views` makes."""
Told = TypeVar("Told")

ROWS = 20
"""Of a long table so many rows are shown."""

# Wide enough that nothing is ever wrapped in a file or a pipe.
_UNWRAPPED = 10_000
# Narrower terminals get times to the minute, so that tables keep their shape.
_ROOM_FOR_SECONDS = 110
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


class Output(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


def emit(output: Output, told: Told, shown: str | Callable[[Screen, Told], None]) -> None:
    """Print one document: `told` for programs; for people a line, or how it is drawn."""
    if output is Output.json:
        print(json.dumps(told, ensure_ascii=False, indent=2))
    elif isinstance(shown, str):
        Screen().line(shown)
    else:
        shown(Screen(), told)


def emit_line(data: Any) -> None:
    """One object of a stream."""
    print(json.dumps(data, ensure_ascii=False))


def emit_long(head: View, name: str, rows: Iterable[Any], tail: Callable[[], View]) -> None:
    """Print one JSON document row by row, never whole in memory: `head`, then a list `name`, then what `tail` makes once the rows are out.

    An error on the way leaves it without its end."""
    print("{")
    for key, value in head.items():
        print(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},")
    print(f"  {json.dumps(name)}: [", end="")
    separator = ""
    for row in rows:
        print(f"{separator}\n    {json.dumps(row, ensure_ascii=False)}", end="")
        separator = ","
    print("]", end="")
    for key, value in tail().items():
        print(f",\n  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}", end="")
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

    def _grid(self, **options: Any) -> Table:
        from rich.table import Table

        return Table(box=None, pad_edge=False, **{"show_header": False, **options})

    def _print(self, grid: Table, rows: Iterable[Sequence[str]], between: int = 2) -> None:
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


def count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def size(number: int | None) -> str:
    """Decimal units, as disks are sold."""
    if number is None:
        return "unknown"
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} bytes" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


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


def said(value: object) -> str:
    """A setting's value."""
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def ends(end_offsets: Mapping[int, int] | Mapping[str, int]) -> str:
    """`0:168387, 1:168389`: the next offset of each partition, spelled as `lifecycle explain` takes a message's place."""
    return ", ".join(f"{partition}:{end}" for partition, end in sorted(end_offsets.items(), key=lambda pair: int(pair[0])))
