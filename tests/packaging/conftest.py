"""A stack of these tests' own, in a folder that any user can walk to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifecycle_local import stack
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import Layout, project_root
from lifecycle_local.postgres import find_place


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """A state folder with a space in its name; all that was started in it is stopped, and it is removed."""
    # Not pytest's own folder: as root that one is closed to the user whom PostgreSQL runs as.
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o711)
        found = Layout(project=project_root(), state=Path(outer) / "a state")
        found.prepare()
        with stop_at_exit(stack.down, found):
            yield found
        shutil.rmtree(find_place(found).folder, ignore_errors=True)
