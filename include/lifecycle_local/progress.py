"""Progress of a long step: a spinner with the elapsed time on a terminal, one plain line otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Announces steps and says how long each took; a step that fails is said to have failed and the error passes on."""

    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    announced: bool = True
    """Print a line at the beginning of a step, too, if there is no terminal. False if every line counts: print only the end."""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step under way, from here to the end of the block."""
        started = time.monotonic()
        try:
            if self.console.is_terminal:
                with self.console.status(Text(what)):
                    yield
            else:
                if self.announced:
                    self.say(f"{what} ...")
                yield
        except BaseException:
            self.say(Text.assemble(("failed", "red"), f"  {what} ({time.monotonic() - started:.1f} s)"))
            raise
        self.say(Text.assemble(("done", "green"), f"    {what} ({time.monotonic() - started:.1f} s)"))

    def say(self, line: str | Text) -> None:
        """One line, never wrapped: addresses and paths must stay whole, and brackets in them are no markup."""
        self.console.print(line, soft_wrap=True, markup=False)


QUIET = Progress(console=Console(quiet=True))
