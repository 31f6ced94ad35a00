"""What a log in files does on a disk, below its own operations: names that outlast the machine, and a disk that may be read alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from message_lifecycle.stores.record_log.disk import make_root, root_of, writing
from tests.errors import raises


def test_the_names_of_a_root_and_of_what_it_lies_in_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive is told to be kept before what it keeps is removed."""
    synced: list[tuple[int, int]] = []

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))

    monkeypatch.setattr(os, "fsync", sync)
    root = root_of(tmp_path / "of" / "archives")
    assert not root.exists(), "a root that is away is not created by a look"
    make_root(root)
    for folder in (tmp_path, root.parent):
        found = folder.stat()
        assert (found.st_dev, found.st_ino) in synced
    synced.clear()
    make_root(root)
    assert synced == [], "once a process"


def test_a_lock_on_a_disk_that_may_be_read_alone_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _size: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with raises("StorageRefused", match="Read-only file system"), writing(tmp_path / "lock", "shop/orders", wait_seconds=0):
        pass
