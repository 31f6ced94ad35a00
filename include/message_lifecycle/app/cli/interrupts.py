"""Ctrl-C ends a command with one line and status 130, without a trace, and leaves no Java process behind.

The first signal prints the line, silences both outputs and raises KeyboardInterrupt, so that the command removes its temporary files. A
command that is not out after `GRACE_SECONDS`, or that is interrupted again, ends at once. An end at once is safe at every point: the next run
finds what was staged or committed, as it does after a machine died.

The process imports this module before any other, so the module imports little.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130
GRACE_SECONDS = 5.0
MESSAGE = "published changes stay, and no change is half done. Show open plans: `lifecycle status`"
_JAVA = "message_lifecycle.stores.iceberg.java"
_TIDY_UP = frozenset(("up", "down", "demo"))
"""Commands that stop the servers they have started. They say what they stop, and take their time."""
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"


def wants_json(given: Sequence[str]) -> bool:
    """True if the command line asks for JSON. The answer is needed before the arguments are parsed."""
    beside = [*given[1:], ""]
    return any(
        one in ("--output=json", "-ojson") or (one in ("--output", "-o") and value == "json")
        for one, value in zip(given, beside, strict=False)
    )


def handle_interrupts(given: Sequence[str]) -> Interrupts:
    """Answer SIGINT from now on. If the shell has set SIGINT to be ignored, as in a background job, it stays ignored.

    Args:
        given: The command line without the program's name.
    """
    answer = Interrupts(as_json=wants_json(given), tidies_up=bool(given) and given[0] in _TIDY_UP)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, answer.handle_signal)
        signal.signal(signal.SIGALRM, answer.end_process)
        sys.unraisablehook = answer.handle_unraisable
    return answer


class Interrupts:
    """The answer of one process to SIGINT."""

    def __init__(self, *, as_json: bool, tidies_up: bool) -> None:
        self.came = False
        self._as_json, self._tidies_up = as_json, tidies_up

    def handle_signal(self, _signal: int, _frame: FrameType | None) -> NoReturn:
        """Handle SIGINT. Raises KeyboardInterrupt."""
        if self._tidies_up:
            raise KeyboardInterrupt
        if self.came:
            self.end_process()
        self.came = True
        self._say()
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        raise KeyboardInterrupt

    def handle_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Handle an exception that Python cannot raise. A KeyboardInterrupt in a finalizer would be lost there."""
        if self.came:
            self.end_process()
        sys.__unraisablehook__(unraisable)

    def end(self) -> None:
        """Leave if a signal came. A later signal changes nothing: the command has ended."""
        if self.came:
            self.end_process()
        if signal.getsignal(signal.SIGINT) == self.handle_signal:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_process(self, *_: object) -> NoReturn:
        """Kill the Java processes of this process, and end it."""
        java = sys.modules.get(_JAVA)
        if java is not None and hasattr(java, "kill"):
            java.kill()
        os._exit(INTERRUPTED)

    def _say(self) -> None:
        """Print the line. Later output of other threads, engines or the cleanup is hidden, except for debugging."""
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, _SHOW_CURSOR)
        import json
        from contextlib import suppress

        text = json.dumps({"error": "Interrupted", "message": MESSAGE}) if self._as_json else f"Interrupted: {MESSAGE}"
        with suppress(OSError):  # the reader has gone
            os.write(1 if self._as_json else 2, f"{text}\n".encode())
        if os.environ.get("LIFECYCLE_DEBUG", "") in ("", "0"):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for output in (1, 2):
                os.dup2(nowhere, output)
