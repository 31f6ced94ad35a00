"""The kinds of errors, by which the exit status is chosen."""

from __future__ import annotations

from typing import ClassVar

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_UNAVAILABLE = 4
EXIT_INTERNAL = 70


class LifecycleError(Exception):
    """Root of all our errors; leaves carry data and say what to do."""

    exit_code: ClassVar[int] = EXIT_INTERNAL


class BadInput(LifecycleError):
    """Something that was given to us is wrong; nothing was changed."""

    exit_code = EXIT_BAD_INPUT


class Refused(LifecycleError):
    """The request is well formed, but a rule forbids it now; nothing was changed."""

    exit_code = EXIT_REFUSED


class Unavailable(LifecycleError):
    """A system that we need does not answer; nothing was changed, try again."""

    exit_code = EXIT_UNAVAILABLE
