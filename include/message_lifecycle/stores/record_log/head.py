"""What a log knows of itself beside its messages: one value, kept where one step of the backend replaces it with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from message_lifecycle.model.errors import InvalidName, damaged_log
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value

HEAD_FORMAT = 1
COMMITS_KEPT = 100
"""Commits that a log remembers, newest last. An older plan was closed long ago, and the ledger answers for it (DEL-5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One removal. `plan_id` None: by another writer, outside our rules. `files`: as the plan's selection names them."""

    generation: int
    plan_id: str | None
    removed: tuple[tuple[str, int], ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A log's state. `generation` rises with every commit that takes messages out; with `end_offsets` it names one state of the log.

    `end_offsets`: the next offset to be given, per partition (MSG-4); `segments`: base offset of the segment that takes messages now.
    `quarantined`: damaged records that are no messages any more, kept beside the log and counted (RET-6)."""

    uuid: str
    partitions: int
    settings: Mapping[str, Value]
    ledger: tuple[str, int] | None
    end_offsets: Mapping[int, int]
    segments: Mapping[int, int]
    generation: int = 1
    commits: tuple[Commit, ...] = ()
    quarantined: int = field(default=0, compare=False)

    def commit_of(self, plan_id: str) -> Commit | None:
        return next((commit for commit in self.commits if commit.plan_id == plan_id), None)

    def with_commit(self, **what: Any) -> tuple[Commit, ...]:
        """The commits that are kept when this one is added, as the next generation."""
        return (*self.commits, Commit(generation=self.generation + 1, **what))[-COMMITS_KEPT:]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `head_of` reads them back. What is counted anew at every look is no part of it."""
        return {
            "format": HEAD_FORMAT,
            "uuid": self.uuid,
            "partitions": self.partitions,
            "generation": self.generation,
            "end_offsets": {str(partition): offset for partition, offset in self.end_offsets.items()},
            "segments": {str(partition): base for partition, base in self.segments.items()},
            "settings": dict(self.settings),
            "ledger": None if self.ledger is None else list(self.ledger),
            "commits": [
                {"generation": c.generation, "plan_id": c.plan_id, "removed": [list(pair) for pair in c.removed], "files": list(c.files)}
                for c in self.commits
            ],
        }


def head_of(given: Any) -> Head:
    """Of `Head.to_json`. Raises ValueError where anything of it is not as it must be."""
    try:
        if given["format"] != HEAD_FORMAT:
            raise ValueError(f"format {given['format']!r}, where this program writes and reads {HEAD_FORMAT}")
        ledger = given["ledger"]
        return Head(
            uuid=str(given["uuid"]),
            partitions=int(given["partitions"]),
            settings=dict(given["settings"]),
            ledger=None if ledger is None else (str(ledger[0]), int(ledger[1])),
            end_offsets={int(partition): int(offset) for partition, offset in given["end_offsets"].items()},
            segments={int(partition): int(base) for partition, base in given["segments"].items()},
            generation=int(given["generation"]),
            commits=tuple(
                Commit(
                    generation=int(c["generation"]),
                    plan_id=c["plan_id"],
                    removed=tuple((str(reason), int(rows)) for reason, rows in c["removed"]),
                    files=tuple(str(name) for name in c["files"]),
                )
                for c in given["commits"]
            ),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"a head that lacks something: {error}") from error


def check_topic(place: Path, found: TopicName, wanted: TopicName | None) -> None:
    """A log that was copied or moved to another topic's place is not that topic's. Raises DamagedLog."""
    if wanted not in (None, found):
        raise damaged_log(str(place), f"the log of topic {found}", f"the log of topic {wanted}")


def check_place(found: TopicName, at: Path, *, own: Path) -> None:
    """What lies where no topic looks for it would be left out of all that is done to its topic. Raises DamagedLog."""
    if at != own:
        raise damaged_log(str(at), f"the log of topic {found}", f"the log of the topic whose place it is; that of {found} is {own}")


# A log's head as a line of JSON in a file: `{"lifecycle": {"topic": ..., "written": ..., ...}}`.


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
