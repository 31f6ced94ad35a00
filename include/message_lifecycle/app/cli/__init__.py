"""The `lifecycle` command: one module per group of commands (`commands`), one boundary for errors, one answer to Ctrl-C (`interrupts`)."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress

from message_lifecycle.app.cli import interrupts

TYPE_CHECKING = False  # importing `typing` takes longer than all other imports before Ctrl-C is answered
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from message_lifecycle.app.cli.context import Wiring

__all__ = ["main", "program", "tree"]


# Most objects of a short command belong to modules, and stay. Collecting garbage at Python's own thresholds (700, 10, 10) takes a fifth of
# the command's time, and a single collection takes 50 ms. `status` of twenty topics ends with 220,000 objects, before the first collection.
_LOOKS_FOR_GARBAGE = (500_000, 5, 5)


def program() -> int:
    """Run one command as a process of its own. The last exit handler ends the process, with the status that this function returns.

    Ctrl-C is answered before the commands are imported, which takes most of a second.
    """
    gc.set_threshold(*_LOOKS_FOR_GARBAGE)
    ending = _Ending()
    atexit.register(ending.end_process)  # registered before all others, so it runs after them
    answer = interrupts.handle_interrupts(sys.argv[1:])
    try:
        from message_lifecycle.app.cli.commands import as_process

        status = as_process()
    except BaseException as error:  # Ctrl-C may end an import with any error; without Ctrl-C the error goes on
        if isinstance(error, KeyboardInterrupt):
            ending.status = interrupts.INTERRUPTED
        if not answer.came:
            raise
        status = interrupts.INTERRUPTED
    answer.end()
    ending.status = status
    return status


class _Ending:
    """Ends the process without freeing each object. Freeing takes one to two seconds after a gate. The kernel frees all memory at once."""

    status = 1
    """Python's own status after an exception that nothing caught."""

    def end_process(self) -> NoReturn:
        """End the process. The other exit handlers have run, and all threads except daemon threads have ended."""
        for output in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # closed, or its reader has gone
                output.flush()
        os._exit(self.status)


def main(arguments: Sequence[str] | None = None, *, wiring: Wiring | None = None) -> int:
    """Run one command in this process; see `commands.main`."""
    from message_lifecycle.app.cli.commands import main as run

    return run(arguments, wiring=wiring)


def tree() -> Any:
    """Return the command group `lifecycle`; see `commands.tree`."""
    from message_lifecycle.app.cli.commands import tree as made

    return made()
