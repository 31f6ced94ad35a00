"""Where the logs of a file store lie: under its root alone, by names that no topic can choose (NAME-1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from message_lifecycle.model.errors import UnsafePath, storage_refused
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log.disk import Disk, check_folder


def root_of(given: Path) -> Path:
    """The root as it really lies; made if it is not there. Raises UnsafePath where it is no folder, StorageRefused where none can be made."""
    try:
        given.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UnsafePath(str(given), "no folder") from error
    except OSError as error:
        raise storage_refused(str(given), str(error.strerror)) from error
    return given.resolve(strict=True)


def stream_folder(root: Path, name: TopicName) -> Path:
    """Raises UnsafePath where the stream's folder leads elsewhere."""
    folder = root / name.namespace
    check_folder(folder)
    return folder


def make_folder(folder: Path, disk: Disk) -> None:
    """With its name on disk; there already is as good."""
    if not check_folder(folder):
        try:
            disk.make_folder(folder)
        except FileExistsError:
            check_folder(folder)
    disk.sync_folder(folder.parent)


def streams(root: Path) -> Iterator[Path]:
    """Folders of streams, in order; links are none."""
    with os.scandir(root) as entries:
        yield from sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
