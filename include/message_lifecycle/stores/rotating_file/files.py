"""The topics of a folder: `<stream>/<topic>/`, both encoded as catalog names are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from message_lifecycle.model.backends import Backend
from message_lifecycle.model.errors import UnknownTopic, topic_exists
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log.disk import Disk, check_folder, named_failures
from message_lifecycle.stores.record_log.folders import make_folder, root_of, stream_folder, streams
from message_lifecycle.stores.record_log.head import Head, check_place
from message_lifecycle.stores.record_log.lock import WAIT_SECONDS
from message_lifecycle.stores.rotating_file.log import RotatingLog
from message_lifecycle.stores.rotating_file.manifest import NAME, Manifest, file_name, leftovers, read_manifest, write_manifest

MAX_BYTES = 64 * 1024 * 1024
"""Large enough that few files are open, small enough that writing one anew takes a second or two."""


class RotatingFiles:
    """RecordLogs of one root. `max_bytes`: at which a file is closed; `wait_seconds`: how long a writer waits for another."""

    backend: Backend = "rotating_file"

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES, disk: Disk | None = None, wait_seconds: float = WAIT_SECONDS) -> None:
        self._root, self._max_bytes, self._disk, self._wait_seconds = root_of(root), max_bytes, disk or Disk(), wait_seconds
        self._open: dict[TopicName, RotatingLog] = {}

    def names(self) -> Sequence[TopicName]:
        """Raises DamagedLog, also where a manifest carries another topic's name."""
        found = []
        for stream in streams(self._root):
            for folder in streams(stream):
                # Without a manifest a crash has come before the topic was made.
                if os.path.lexists(folder / NAME):
                    found.append(read_manifest(folder).topic)
                    check_place(found[-1], folder, own=self.folder(found[-1]))
        return found

    def create(self, name: TopicName, head: Head) -> None:
        folder = self.folder(name)
        with named_failures():
            make_folder(folder.parent, self._disk)
            make_folder(folder, self._disk)
            with self._log(name).lock():
                if os.path.lexists(folder / NAME):
                    raise topic_exists(str(name))
                manifest = Manifest(topic=name, head=head, files=(file_name(1),), following=2)
                for path in [*leftovers(folder, manifest), folder / file_name(1)]:
                    self._disk.unlink(path)
                into = self._disk.create(folder / file_name(1))
                try:
                    self._disk.sync(into)
                finally:
                    os.close(into)
                self._disk.sync_folder(folder)
                write_manifest(folder, manifest, self._disk)

    def open(self, name: TopicName) -> RotatingLog:
        """Raises UnknownTopic, UnsafePath."""
        if not os.path.lexists(self.folder(name) / NAME):
            raise UnknownTopic(str(name))
        return self._log(name)

    def folder(self, name: TopicName) -> Path:
        """Where the topic's log lies, there or not. Raises UnsafePath."""
        folder = stream_folder(self._root, name) / name.table()
        check_folder(folder)
        return folder

    def _log(self, name: TopicName) -> RotatingLog:
        if name not in self._open:
            folder = self.folder(name)
            self._open[name] = RotatingLog(name, folder, self._disk, max_bytes=self._max_bytes, wait_seconds=self._wait_seconds)
        return self._open[name]
