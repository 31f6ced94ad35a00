"""The manifest of a rotating log: its files in order, and its head. Every change but an append replaces this one file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from message_lifecycle.model.errors import InvalidName, damaged_log
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log import Head, check_topic, head_of
from message_lifecycle.stores.record_log.disk import Disk, commit, open_to_read

NAME = "manifest.json"
LINES = re.compile(r"[0-9]{8,}\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`files`: the log's, oldest first; the last takes messages. `following`: the number of the next file; none is given twice."""

    topic: TopicName
    head: Head
    files: tuple[str, ...]
    following: int


def file_name(number: int) -> str:
    return f"{number:08d}.jsonl"


def read_manifest(folder: Path, *, of: TopicName | None = None) -> Manifest:
    """`of`: the topic that it must be of, if that is known. Raises FileNotFoundError, DamagedLog."""
    with open_to_read(folder / NAME) as file:
        content = file.read()
    try:
        given = orjson.loads(content)["lifecycle"]
        files = tuple(given["files"])
        if not files or not all(isinstance(name, str) and LINES.fullmatch(name) for name in files):
            raise ValueError("files that are none of a rotating log")
        manifest = Manifest(topic=TopicName.parse(given["topic"]), head=head_of(given), files=files, following=int(given["following"]))
    except (ValueError, KeyError, TypeError, InvalidName) as error:
        raise damaged_log(str(folder / NAME), f"no manifest of a log ({error})", 'one object {"lifecycle": {...}}') from error
    check_topic(folder / NAME, manifest.topic, of)
    return manifest


def write_manifest(folder: Path, manifest: Manifest, disk: Disk) -> None:
    """In one step, from which on the log is what it says; the files that it names must be on disk by then."""
    record = {"topic": str(manifest.topic), "files": manifest.files, "following": manifest.following, **manifest.head.to_json()}
    new = folder / f"{NAME}.new"
    disk.unlink(new)
    into = disk.create(new)
    try:
        disk.write(into, orjson.dumps({"lifecycle": record}, option=orjson.OPT_APPEND_NEWLINE))
        disk.sync(into)
    finally:
        os.close(into)
    commit(disk, new, folder / NAME)


def leftovers(folder: Path, manifest: Manifest) -> list[Path]:
    """What a crash has left behind: files of lines that are not yet in the manifest, or not any more, and the next manifest."""
    new = f"{NAME}.new"
    return sorted(path for path in folder.iterdir() if path.name == new or (LINES.fullmatch(path.name) and path.name not in manifest.files))
