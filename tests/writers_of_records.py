"""Changes by another program, which ignores our state, to a log that is no table: in the files of a folder, or by commands of Redis."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from message_lifecycle.stores.redis_streams.layout import TopicKeys

PLANNED, ANOTHER = 1, 7
"""Offsets of messages that a plan takes, and that stay."""


@dataclass(slots=True)
class Files:
    """The files of one topic. `kept`: copies that the other program took when the log had eight messages."""

    root: Path
    kept: dict[Path, bytes] = field(default_factory=dict)
    aside: Path | None = None

    def own(self) -> list[Path]:
        """Files that hold messages, in their order."""
        found = [path for path in self.root.rglob("*") if path.is_file() and path.suffix == ".jsonl" and "quarantine" not in path.name]
        return sorted(found)

    def keep(self) -> None:
        self.kept = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def change(self, offset: int, new: Callable[[bytes], bytes]) -> None:
        """Change the line of a message, if it is there."""
        for path in self.own():
            lines = path.read_bytes().splitlines(keepends=True)
            changed = [new(line) if f'"offset":{offset},'.encode() in line else line for line in lines]
            if changed != lines:
                path.write_bytes(b"".join(changed))

    def extend(self, line: bytes) -> None:
        with self.own()[-1].open("ab") as file:
            file.write(line)

    def last_line(self) -> bytes:
        return self.own()[-1].read_bytes().splitlines(keepends=True)[-1]


def append_a_message(by: Files) -> None:
    by.extend(by.last_line().replace(b'"offset":9,', b'"offset":10,'))


def append_a_message_again(by: Files) -> None:
    by.extend(by.last_line())


def append_an_older_offset(by: Files) -> None:
    by.extend(by.last_line().replace(b'"offset":9,', b'"offset":3,'))


def append_no_message(by: Files) -> None:
    by.extend(b'{"theirs": 1}\n\x00\xff broken\n')


def append_half_a_line(by: Files) -> None:
    by.extend(by.last_line()[:20])


def remove_a_planned_line(by: Files) -> None:
    by.change(PLANNED, lambda _: b"")


def remove_another_line(by: Files) -> None:
    by.change(ANOTHER, lambda _: b"")


def change_another_line(by: Files) -> None:
    by.change(ANOTHER, lambda line: line.replace(b"value 7", b"VALUE 7"))


def change_a_planned_line(by: Files) -> None:
    by.change(PLANNED, lambda line: line.replace(b"value 1", b"VALUE 1"))


def break_a_planned_line(by: Files) -> None:
    by.change(PLANNED, lambda line: b"x" + line[1:])


def cut_the_last_line(by: Files) -> None:
    path, content = by.own()[-1], by.own()[-1].read_bytes()
    path.write_bytes(content[: -len(by.last_line())])


def cut_within_a_line(by: Files) -> None:
    path = by.own()[-1]
    path.write_bytes(path.read_bytes()[:-15])


def cut_to_nothing(by: Files) -> None:
    by.own()[0].write_bytes(b"")


def delete_a_file(by: Files) -> None:
    by.own()[0].unlink()


def delete_the_folder(by: Files) -> None:
    shutil.rmtree(by.own()[0].parent)


def put_an_older_copy_back(by: Files) -> None:
    for path in by.root.rglob("*.jsonl"):
        path.unlink()
    for path, content in by.kept.items():
        path.write_bytes(content)


def put_another_file_there(by: Files) -> None:
    by.own()[-1].write_bytes(b'{"a": 1}\n{"b": 2}\n')


def write_the_same_again(by: Files) -> None:
    """As an editor saves a file."""
    for path in by.own():
        new = path.with_suffix(".saved")
        new.write_bytes(path.read_bytes())
        new.replace(path)


def move_aside(by: Files) -> None:
    path = by.own()[0]
    by.aside = path.rename(path.with_suffix(".aside"))


def move_aside_and_back(by: Files) -> None:
    path = by.own()[0]
    path.rename(path.with_suffix(".aside")).rename(path)


FILES: Mapping[str, Callable[[Files], None]] = {
    made.__name__.replace("_", " "): made
    for made in (
        append_a_message, append_a_message_again, append_an_older_offset, append_no_message, append_half_a_line, remove_a_planned_line,
        remove_another_line, change_another_line, change_a_planned_line, break_a_planned_line, cut_the_last_line, cut_within_a_line, cut_to_nothing,
        delete_a_file, delete_the_folder, put_an_older_copy_back, put_another_file_there, write_the_same_again, move_aside, move_aside_and_back,
    )
}  # fmt: skip


@dataclass(slots=True)
class Commands:
    """A client of the server that has one topic's stream."""

    client: Any  # a redis.Redis, whose types know answers that are awaited
    keys: TopicKeys
    kept: list[tuple[bytes, Any]] = field(default_factory=list)

    @property
    def stream(self) -> str:
        return self.keys.stream(0)

    def keep(self) -> None:
        self.kept = [(key, self.client.dump(key)) for key in self.client.scan_iter(match=f"{self.keys.prefix}:*")]


def _entry(offset: int) -> str:
    return f"{offset + 1}-0"


COMMANDS: Mapping[str, Callable[[Commands], object]] = {
    "xtrim a planned entry": lambda by: by.client.xtrim(by.stream, minid=_entry(1), approximate=False),
    "xtrim to one entry": lambda by: by.client.xtrim(by.stream, maxlen=1, approximate=False),
    "xtrim to nothing": lambda by: by.client.xtrim(by.stream, maxlen=0, approximate=False),
    "xdel a planned entry": lambda by: by.client.xdel(by.stream, _entry(PLANNED)),
    "xdel another entry": lambda by: by.client.xdel(by.stream, _entry(ANOTHER)),
    "xdel the last entry": lambda by: by.client.xdel(by.stream, _entry(9)),
    "xadd by the clock": lambda by: by.client.xadd(by.stream, {"k": "theirs", "v": "1", "s": "0"}),
    "xadd the next offset": lambda by: by.client.xadd(by.stream, {"k": "theirs", "v": "1", "s": "0"}, id=_entry(10)),
    "xadd other fields": lambda by: by.client.xadd(by.stream, {"theirs": "1"}, id=_entry(10)),
    "xadd within an id": lambda by: by.client.xadd(by.stream, {"k": "theirs", "v": "1", "s": "0"}, id="10-5"),
    "xsetid": lambda by: by.client.execute_command("XSETID", by.stream, _entry(99)),
    "xgroup create": lambda by: by.client.xgroup_create(by.stream, "theirs", id="0"),
    "del the stream": lambda by: by.client.delete(by.stream),
    "del the topic": lambda by: by.client.delete(by.keys.topic),
    "del all": lambda by: by.client.delete(by.keys.topic, by.stream),
    "rename the stream": lambda by: by.client.rename(by.stream, f"{by.keys.prefix}:aside"),
    "rename the topic": lambda by: by.client.rename(by.keys.topic, f"{by.keys.prefix}:aside"),
    "rename and back": lambda by: (by.client.rename(by.stream, f"{by.keys.prefix}:aside"), by.client.rename(f"{by.keys.prefix}:aside", by.stream)),
    "set another type": lambda by: by.client.set(by.stream, "theirs"),
    "hset a field of theirs": lambda by: by.client.hset(by.keys.topic, "theirs", "1"),
    "hset a head of theirs": lambda by: by.client.hset(by.keys.topic, "head", "{}"),
    "hset a head of no text": lambda by: by.client.hset(by.keys.topic, "head", b"\xff{}"),
    "hdel the head": lambda by: by.client.hdel(by.keys.topic, "head"),
    "hset a number of entries": lambda by: by.client.hset(by.keys.topic, "rows:0", "nine"),
    "put an older copy back": lambda by: [by.client.restore(key, 0, value, replace=True) for key, value in by.kept],
}  # fmt: skip
