"""The topics of a folder: `<stream>/<topic>.jsonl`, both encoded as catalog names are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from message_lifecycle.model.backends import Backend
from message_lifecycle.model.errors import UnknownTopic, topic_exists
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.json_file.log import JsonFileLog
from message_lifecycle.stores.record_log.disk import Disk, commit, named_failures, open_to_read
from message_lifecycle.stores.record_log.folders import make_folder, root_of, stream_folder, streams
from message_lifecycle.stores.record_log.head import Head, check_place
from message_lifecycle.stores.record_log.head_record import head_line, read_head
from message_lifecycle.stores.record_log.lock import WAIT_SECONDS


class JsonFiles:
    """RecordLogs of one root. `wait_seconds`: how long a writer waits for another."""

    backend: Backend = "json_file"

    def __init__(self, root: Path, *, disk: Disk | None = None, wait_seconds: float = WAIT_SECONDS) -> None:
        self._root, self._disk, self._wait_seconds = root_of(root), disk or Disk(), wait_seconds
        self._open: dict[TopicName, JsonFileLog] = {}

    def names(self) -> Sequence[TopicName]:
        """Raises DamagedLog, also where a file carries another topic's name."""
        found = []
        for folder in streams(self._root):
            for path in sorted(folder.glob("*.jsonl")):
                with open_to_read(path) as file:
                    found.append(read_head(file).topic)
                check_place(found[-1], path, own=self.file(found[-1]))
        return found

    def create(self, name: TopicName, head: Head) -> None:
        log, file = self._log(name), self.file(name)
        with named_failures():
            make_folder(file.parent, self._disk)
            with log.lock():
                if os.path.lexists(file):
                    raise topic_exists(str(name))
                new = file.with_name(f"{file.name}.new")
                self._disk.unlink(new)
                into = self._disk.create(new)
                try:
                    self._disk.write(into, head_line(name, head, written=1))
                    self._disk.sync(into)
                finally:
                    os.close(into)
                commit(self._disk, new, file)

    def open(self, name: TopicName) -> JsonFileLog:
        """Raises UnknownTopic."""
        if not os.path.lexists(self.file(name)):
            raise UnknownTopic(str(name))
        return self._log(name)

    def file(self, name: TopicName) -> Path:
        """Where the topic's log lies, there or not."""
        return stream_folder(self._root, name) / f"{name.table()}.jsonl"

    def _log(self, name: TopicName) -> JsonFileLog:
        if name not in self._open:
            self._open[name] = JsonFileLog(name, self.file(name), self._disk, wait_seconds=self._wait_seconds)
        return self._open[name]
