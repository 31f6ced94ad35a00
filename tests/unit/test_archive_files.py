"""An archive's files: what is told to be gone is gone from the disk (RET-7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.stores.archive import ParquetArchive
from tests.record_files import NAME, WatchedDisk, message


@pytest.mark.parametrize("deed", ["erase", "drop"])
def test_a_file_that_went_does_not_come_back_with_the_machine(tmp_path: Path, deed: str) -> None:
    done = list[str]()
    archive = ParquetArchive(tmp_path, disk=WatchedDisk(lambda operation, _about: done.append(operation)))
    archive.write(NAME, "p1", [message(0)])
    if deed == "erase":
        assert archive.erase(NAME, "p1", lambda key: key == b"k") == 1
    else:
        archive.drop(NAME, "p1")
    assert archive.plans(NAME) == []
    assert done[-2:] == ["unlink", "sync_folder"]
