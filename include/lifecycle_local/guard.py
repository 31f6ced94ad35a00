"""Stop what a process started for itself when the process ends, also if it is killed.

`python -m lifecycle_local.guard STOP PROJECT STATE` waits on its standard input. The kernel closes that input when the guarded process is
gone, and the guard then calls STOP. Any input from the guarded process means that nothing is left to stop.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name

from lifecycle_local.layout import Layout, venv_python


@contextmanager
def stop_at_exit(stop: Callable[[Layout], object], layout: Layout) -> Iterator[None]:
    """`stop(layout)` is called at the end of the block, or by another process if this one dies in it. A function at the top of its module."""
    command: list[str | Path] = [venv_python(), "-m", __name__, f"{stop.__module__}:{stop.__qualname__}", layout.project, layout.state]
    # A Ctrl-C at our terminal is for us to answer, so it has its own session. Whatever else we start does not inherit the pipe.
    with subprocess.Popen(
        command, cwd=layout.project, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as guard:
        try:
            yield
        finally:
            try:
                stop(layout)
            finally:
                guard.communicate(b"stopped")


def main() -> int:
    stop, project, state = sys.argv[1:]
    if not sys.stdin.buffer.read():
        resolve_name(stop)(Layout(project=Path(project), state=Path(state)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
