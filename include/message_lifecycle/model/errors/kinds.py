"""The kinds of errors, by which the exit status is chosen, and the code by which each error is shown."""

from __future__ import annotations

from typing import ClassVar

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_UNAVAILABLE = 4
EXIT_INTERNAL = 70


class LifecycleError(Exception):
    """Root of all our errors: a text that says what to do, and a code. The code of a class that somebody catches is its name."""

    exit_code: ClassVar[int] = EXIT_INTERNAL

    def __init__(self, text: str = "", *, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code or type(self).__name__


class BadInput(LifecycleError):
    """Something that was given to us is wrong; nothing was changed."""

    exit_code = EXIT_BAD_INPUT


class Refused(LifecycleError):
    """The request is well formed, but a rule forbids it now; nothing was changed."""

    exit_code = EXIT_REFUSED


class Unavailable(LifecycleError):
    """A system that we need does not answer; nothing was changed, try again."""

    exit_code = EXIT_UNAVAILABLE


def code_of(error: object) -> str:
    """The name that an error is shown by: one of ours by its code, another by its type."""
    return error.code if isinstance(error, LifecycleError) else type(error).__name__
