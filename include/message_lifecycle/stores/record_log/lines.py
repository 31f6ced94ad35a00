"""Messages as lines of JSON, one object each, and files of such lines with good and damaged lines.

Bytes are UTF-8 text, or `{"base64": "..."}` for other bytes. Times are integer microseconds since 1970, UTC. Null means a missing field. So
a message of unknown time has no `append_time`, or 0 (CLK-4).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import orjson

from message_lifecycle.model.errors import damaged_log
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import Header, Message, known_time
from message_lifecycle.stores.record_log import Removal
from message_lifecycle.stores.record_log.disk import Disk, open_to_append, open_to_read

Met = TypeVar("Met")
_FIELDS = frozenset(("partition", "offset", "append_time", "event_time", "key", "value", "headers", "segment", "origin_offset"))


def line_of(message: Message) -> bytes:
    """Return the message as a line with its end."""
    record: dict[str, object] = {"partition": message.partition, "offset": message.offset}
    if message.append_time is not None:
        record["append_time"] = message.append_time
    if message.event_time is not None:
        record["event_time"] = message.event_time
    if message.key is not None:
        record["key"] = text_of(message.key)
    if message.value is not None:
        record["value"] = text_of(message.value)
    if message.headers:
        record["headers"] = [[name, text_of(content)] for name, content in message.headers]
    if message.segment:
        record["segment"] = message.segment
    if message.origin_offset is not None:
        record["origin_offset"] = message.origin_offset
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def text_of(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def message_of(line: bytes) -> Message:
    """Return the message in the line. Raises ValueError with the reason."""
    record = orjson.loads(line)
    if type(record) is not dict:
        raise ValueError("not a JSON object")
    if not record.keys() <= _FIELDS:
        raise ValueError(f"unknown field {min(record.keys() - _FIELDS)!r}")
    get = record.get
    time, event_time, headers = get("append_time"), get("event_time"), get("headers")
    origin = get("origin_offset")
    return Message(
        partition=_whole("partition", get("partition")),
        offset=_whole("offset", get("offset")),
        append_time=None if time is None else known_time(_time("append_time", time)),
        key=decode_bytes("key", get("key")),
        value=decode_bytes("value", get("value")),
        segment=_whole("segment", get("segment", 0)),
        headers=() if headers is None else _headers(headers),
        event_time=None if event_time is None else _time("event_time", event_time),
        origin_offset=None if origin is None else _whole("origin_offset", origin),
    )


Place = tuple[int, int, int]
"""(partition, offset, segment)"""
_PLAIN = frozenset(("partition", "offset", "append_time", "key", "value", "segment"))
_TEXT = frozenset((str, type(None)))


def message_place_in_line(line: bytes) -> Place:
    """Return the place of a line's message, mostly without making the message. Enough for a check of the line.

    Raises ValueError as `message_of` does.
    """
    record = orjson.loads(line)
    if type(record) is dict and record.keys() <= _PLAIN:
        get = record.get
        partition, offset, segment = get("partition"), get("offset"), get("segment", 0)
        if (
            type(partition) is int
            and type(offset) is int
            and type(segment) is int
            and 0 <= partition < INT64_MAX
            and 0 <= offset < INT64_MAX
            and 0 <= segment < INT64_MAX
            and type(time := get("append_time", 0)) is int
            and INT64_MIN <= time <= INT64_MAX
            and type(get("key")) in _TEXT
            and type(get("value")) in _TEXT
        ):
            return partition, offset, segment
    return _place(message_of(line))


def _place(message: Message) -> Place:
    return message.partition, message.offset, message.segment


def _whole(name: str, value: object) -> int:
    # The greatest integer is not a valid offset, because no offset could follow it (MSG-1).
    if type(value) is not int or not 0 <= value < INT64_MAX:
        raise ValueError(f"{name} is no whole number from 0 to 2^63 - 2")
    return value


def _time(name: str, value: object) -> Instant:
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{name} is no whole number of microseconds that 64 bits hold")
    return Instant(value)


def decode_bytes(name: str, value: object) -> bytes | None:
    if type(value) is str:
        return value.encode()
    if value is None:
        return None
    if type(value) is dict and value.keys() == {"base64"} and type(value["base64"]) is str:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}: {error}") from None
    raise ValueError(f"{name} is neither text nor base64")


def _headers(value: object) -> tuple[Header, ...]:
    if type(value) is not list:
        raise ValueError("headers are no list")
    found: list[Header] = []
    for pair in value:
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str:
            raise ValueError("a header is no pair of name and value")
        found.append((pair[0], decode_bytes("a header's value", pair[1]) or b""))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A line that is not a message.

    Attributes:
        position: The position of its first byte in the file.
        content: The line without its end.
    """

    position: int
    content: bytes
    reason: str


@dataclass(slots=True, kw_only=True)
class FileState:
    """The content of one file's lines, up to the read position.

    `ends`, `segments` and `last` are per partition and rise with the messages, through all files of a log. A line that does not raise the
    offset is damaged, because an offset is given once (MSG-1).

    Attributes:
        last: The last offset of each partition.
        bounds: First and last offset by partition in this file.
        open_end: The last line has no end, like after a torn append. The line may still be complete.
        tail: The last line.
    """

    ends: dict[int, int]
    segments: dict[int, int]
    last: dict[int, int] = field(default_factory=dict)
    position: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    open_end: bool = False
    tail: bytes = b""

    def is_continued_by(self, file: BinaryIO) -> bool:
        """Return True if the file up to here is unchanged, by its last line. The file may have grown."""
        if self.open_end:
            return False
        file.seek(self.position - len(self.tail))
        return file.read(len(self.tail)) == self.tail

    def messages(self, file: BinaryIO) -> Iterator[Message]:
        """Yield the messages in the rest of the file, from `position` on."""
        return self._parse_lines(file, message_of, _place)

    def read_on(self, file: BinaryIO) -> None:
        """Read the rest of the file, from `position` on."""
        for _ in self._parse_lines(file, message_place_in_line, _itself):
            pass

    def _parse_lines(self, file: BinaryIO, parse: Callable[[bytes], Met], place: Callable[[Met], Place]) -> Iterator[Met]:
        last, ends, line = self.last, self.ends, self.tail
        for line in file:
            try:
                met = parse(line)
                partition, offset, segment = place(met)
                if partition not in ends:
                    raise ValueError(f"no partition {partition}")
                if offset <= last.get(partition, -1):
                    raise ValueError("its offset was given before")
            except ValueError as error:
                if line.strip():
                    # The damaged line may have been any partition's next message, and no offset is given twice (MSG-1). Gaps are allowed.
                    for partition in ends:
                        ends[partition] += 1
                    self.damaged.append(Damaged(position=self.position, content=line.rstrip(b"\n"), reason=str(error)))
            else:
                last[partition] = offset
                first = self.bounds[partition][0] if partition in self.bounds else offset
                self.bounds[partition] = first, offset
                if offset >= ends[partition]:
                    ends[partition] = offset + 1
                if segment > self.segments[partition]:
                    self.segments[partition] = segment
                yield met
            self.position += len(line)
            self.open_end = not line.endswith(b"\n")
            if self.open_end:
                break  # the end of the file at that time: a later append would look like a line that begins in the middle
        self.tail = line


def _itself(place: Place) -> Place:
    return place


def start_state(partitions: int) -> FileState:
    """Return the state before the first line."""
    return FileState(ends=dict.fromkeys(range(partitions), 0), segments=dict.fromkeys(range(partitions), 0))


def closing(file: BinaryIO, found: FileState) -> Iterator[Message]:
    """Yield the messages in the rest of the file, then close the file."""
    with file:
        yield from found.messages(file)


# Rewriting a file of lines without the removed messages. Remaining lines keep every byte.
#
# The lines up to the last removed one are parsed for their place. The rest is copied without parsing.


_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The number of removed messages. `empty`: no line was left to write."""

    removed: int
    empty: bool


def rewrite(file: BinaryIO, into: int, disk: Disk, *, position: int, removal: Removal, damaged: Set[int]) -> Rewritten:
    """Copy the rest of `file`, which is at `position`, without the lines at the positions `damaged` and without the removed messages.

    Raises:
        DamagedLog: A line is not a message and not in `damaged`, so the file has changed since the last look.
    """
    loads, takes = orjson.loads, removal.taker()
    last_damaged = max(damaged, default=-1)
    removed = waiting = 0
    empty = True
    chunk: list[bytes] = []
    for line in file:
        here, position = position, position + len(line)
        if here in damaged:
            continue
        try:
            record = loads(line)
            goes = takes(record["partition"], record["offset"])
        except (ValueError, KeyError, TypeError) as error:
            if not line.strip():
                continue
            raise damaged_log(file.name, f"at byte {here}: {error}", "what was there when the log was looked at") from error
        if goes:
            removed += 1
            if removed == removal.rows and here > last_damaged:
                break
            continue
        chunk.append(line)
        waiting += len(line)
        if waiting >= _CHUNK_BYTES:
            disk.write(into, b"".join(chunk))
            empty, waiting = False, 0
            chunk.clear()
    last = b"\n" if not chunk else chunk[-1]
    if chunk:
        disk.write(into, b"".join(chunk))
        empty = False
    while content := file.read(_CHUNK_BYTES):
        disk.write(into, content)
        empty, last = False, content
    if not last.endswith(b"\n"):
        disk.write(into, b"\n")
    return Rewritten(removed=removed, empty=empty)


def content_of(files: Iterable[tuple[BinaryIO, int]], earlier: str | None) -> str:
    """Name the lines of a log's files by the number of their bytes and their digest. See `RecordLog.content` for `earlier`.

    Args:
        files: The files in order, each with the position of its first line.
        earlier: An earlier result, or None.
    """
    most = None if earlier is None else int(earlier.partition(":")[0])
    digest, size = hashlib.blake2b(digest_size=20), 0
    for file, start in files:
        file.seek(start)
        while chunk := file.read(_CHUNK_BYTES if most is None else min(_CHUNK_BYTES, most - size)):
            digest.update(chunk)
            size += len(chunk)
    return f"{size}:{digest.hexdigest()}"


# Damaged lines, next to the log that had them. The quarantine keeps all their bytes and counts each line once (RET-6).
#
# One JSON object a line. `file` and `position` are its place, `reason` is the fault, and `line` is its content, as text or base64.


LinePlace = tuple[str, int, bytes]


class Quarantine:
    """The quarantine file of one log."""

    def __init__(self, file: Path, disk: Disk) -> None:
        self._file, self._disk = file, disk
        self._seen: tuple[tuple[int, int, int], set[LinePlace], bool] | None = None

    def held(self) -> set[LinePlace]:
        """Return file, position and content of each line in the quarantine."""
        return self._look()[0]

    def add(self, file: str, damaged: Iterable[Damaged]) -> None:
        """Add new lines durably, so that the log may lose them afterwards. Call it under the log's lock."""
        held, torn = self._look()
        new = [entry for entry in damaged if (file, entry.position, entry.content) not in held]
        if not new:
            return
        fresh = not self._file.exists()
        descriptor = self._disk.create(self._file) if fresh else open_to_append(self._file)
        try:
            # A line that a crash has torn stays, and gets an end. Its content is added again.
            content = b"\n" if torn else b""
            for entry in new:
                record = {"file": file, "position": entry.position, "reason": entry.reason, "line": text_of(entry.content)}
                content += orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
            self._disk.write(descriptor, content)
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)
        if fresh:
            self._disk.sync_folder(self._file.parent)

    def count_matching(self, tells: Callable[[bytes], bool]) -> int:
        """Return how many lines pass the test, torn lines included."""
        return sum(map(tells, self._contents()))

    def erase(self, tells: Callable[[bytes], bool]) -> int:
        """Rewrite the file durably without the lines that pass the test, and return their number. Call it under the log's lock."""
        new = self._file.with_name(f"{self._file.name}.new")
        self._disk.unlink(new)  # a crash may have left it
        if not self.count_matching(tells):
            return 0
        gone = 0
        with open_to_read(self._file) as file:
            into = self._disk.create(new, os.fstat(file.fileno()).st_mode & 0o777)
            try:
                for line in file:
                    if tells(_content_of(line)):
                        gone += 1
                    else:
                        self._disk.write(into, line)
                self._disk.sync(into)
            finally:
                os.close(into)
        self._disk.replace(new, self._file)
        self._disk.sync_folder(self._file.parent)
        return gone

    def _contents(self) -> Iterator[bytes]:
        try:
            file = open_to_read(self._file)
        except FileNotFoundError:
            return
        with file:
            yield from map(_content_of, file)

    def _look(self) -> tuple[set[LinePlace], bool]:
        """Return the lines, and True if the last line was torn."""
        try:
            file = open_to_read(self._file)
        except FileNotFoundError:
            return set(), False
        with file:
            status = os.fstat(file.fileno())
            identity = status.st_ino, status.st_size, status.st_mtime_ns
            if self._seen is not None and self._seen[0] == identity:
                return self._seen[1], self._seen[2]
            held: set[LinePlace] = set()
            torn = False
            for line in file:
                torn = not line.endswith(b"\n")
                place = None if torn else quarantined_line_place(line)
                if place is not None:
                    held.add(place)
        self._seen = identity, held, torn
        return held, torn


def _content_of(line: bytes) -> bytes:
    """Return the content of the damaged line. For a torn record, return the record itself."""
    place = quarantined_line_place(line)
    return line.rstrip(b"\n") if place is None else place[2]


def quarantined_line_place(line: bytes) -> LinePlace | None:
    """Return the place of the line. None for a torn line of an earlier crash, which a complete line follows."""
    try:
        record = orjson.loads(line)
        return record["file"], record["position"], decode_bytes("line", record["line"]) or b""
    except (ValueError, KeyError, TypeError):
        return None
