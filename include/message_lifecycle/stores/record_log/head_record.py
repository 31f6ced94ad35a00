"""A log's head as a line of JSON in a file: `{"lifecycle": {"topic": ..., "written": ..., ...}}`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from message_lifecycle.model.errors import InvalidName, damaged_log
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log.head import Head, check_topic, head_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """A head as a file holds it. `written`: how often it was written anew, so that no two states of it are taken for one."""

    topic: TopicName
    written: int
    head: Head
    size: int

    @property
    def source(self) -> str:
        """Names the file among all that had its name, for the quarantine."""
        return f"written {self.written}"


def head_line(name: TopicName, head: Head, *, written: int) -> bytes:
    return orjson.dumps({"lifecycle": {"topic": str(name), "written": written, **head.to_json()}}, option=orjson.OPT_APPEND_NEWLINE)


def read_head(file: BinaryIO, *, of: TopicName | None = None) -> HeadRecord:
    """Off a file's first line; `of`: the topic that it must be of, if that is known. Raises DamagedLog."""
    line = file.readline()
    try:
        given = orjson.loads(line)["lifecycle"]
        topic = TopicName.parse(given["topic"])
        record = HeadRecord(topic=topic, written=int(given["written"]), head=head_of(given), size=len(line))
    except (ValueError, KeyError, TypeError, InvalidName) as error:
        raise damaged_log(file.name, f"a first line that is no head of a log ({error})", 'one line {"lifecycle": {...}}') from error
    check_topic(Path(file.name), record.topic, of)
    return record
