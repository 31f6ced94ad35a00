"""The files that belong to the project: what git has or would take, and without git, what .gitignore leaves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _by_git() -> list[Path] | None:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    return [ROOT / name for name in listing.stdout.split("\0") if name] if listing.returncode == 0 else None


def _by_walking() -> list[Path]:
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if line]
    return [
        path
        for path in ROOT.rglob("*")
        if not any(part == ".git" or any(fnmatch(part, pattern) for pattern in ignored) for part in path.relative_to(ROOT).parts)
    ]


def project_files() -> list[Path]:
    """Every file of the project, in order."""
    found = _by_git()
    return sorted(path for path in (_by_walking() if found is None else found) if path.is_file())


def project_texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the project and what it says."""
    for path in project_files():
        try:
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
