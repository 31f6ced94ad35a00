"""Plain lines where there is no terminal, and a failure that is both said and passed on."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from lifecycle_local.progress import Progress


def test_plain_lines() -> None:
    output = StringIO()
    progress = Progress(console=Console(file=output, width=20))
    with progress.step("Something with a long name that is not wrapped, and [brackets] in [/a/folder]"):
        pass
    progress.say("an outcome's [red] reason")
    first, second, third = output.getvalue().splitlines()
    assert first == "Something with a long name that is not wrapped, and [brackets] in [/a/folder] ..."
    assert second.startswith("done    Something with a long name that is not wrapped, and [brackets] in [/a/folder] (")
    assert third == "an outcome's [red] reason"


def test_a_failure_is_said_and_passed_on() -> None:
    output = StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(console=Console(file=output)).step("[/Work]"):
        raise KeyboardInterrupt
    assert "failed  [/Work]" in output.getvalue()
