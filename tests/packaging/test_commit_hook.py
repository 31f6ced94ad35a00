"""The hook that checks the subject of a commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.packaging.files import ROOT


@pytest.mark.parametrize(("length", "status"), [(72, 0), (73, 1)])
def test_a_subject_has_at_most_72_characters(tmp_path: Path, length: int, status: int) -> None:
    message = tmp_path / "message"
    message.write_text("S" * length + "\n\n" + "b" * 200 + "\n")
    ran = subprocess.run([ROOT / ".githooks" / "commit-msg", message], capture_output=True, text=True)
    assert ran.returncode == status
    assert ("73 characters" in ran.stderr) == bool(status)
