"""Files that only their owner can read: secrets, and configuration that contains a secret."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

PRIVATE_FILE = 0o600
# 64 characters, because Airflow's strongest signature needs a key of that length.
RANDOM_BYTES = 32


def write_private(path: Path, text: str) -> bool:
    """Replace the file's content in one step, with mode 0600 from the first byte on. Return False if the file had this content before."""
    if path.is_file() and path.stat().st_mode & 0o777 == PRIVATE_FILE and path.read_text(encoding="utf-8") == text:
        return False
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # O_EXCL, and the mode given at creation: at no moment could another user open it.
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)
    return True


def secret(path: Path) -> str:
    """The secret kept in this file; made at random the first time, and of two who make it at once the first one's stays."""
    if not path.is_file():
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        write_private(part, secrets.token_hex(RANDOM_BYTES))
        with suppress(FileExistsError):
            path.hardlink_to(part)
        part.unlink()
    return path.read_text(encoding="utf-8").strip()
