"""Logs of single records that are not tables: one store over a small protocol, which files and Redis Streams implement."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import orjson

from message_lifecycle.model.errors import InvalidName, damaged_log
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import Backend

# A log's own state next to its messages: one value, which the backend replaces in one step together with messages.


HEAD_FORMAT = 1
COMMITS_KEPT = 100
"""The newest commits that a log remembers, newest last. An older plan was closed long ago, and the ledger answers for it (DEL-5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One removal.

    Attributes:
        plan_id: None: another writer removed the messages, outside our rules.
        files: The files as the plan's selection names them.
    """

    generation: int
    plan_id: str | None
    removed: tuple[tuple[str, int], ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A log's state.

    Attributes:
        generation: Rises with every commit that removes messages. Generation and `end_offsets` together identify one state of the log.
        end_offsets: The next free offset of each partition (MSG-4).
        segments: The base offset of each partition's active segment.
        quarantined: The number of damaged records that are no longer messages and lie next to the log (RET-6).
    """

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
        """Return the remembered commits after adding this one as the next generation."""
        return (*self.commits, Commit(generation=self.generation + 1, **what))[-COMMITS_KEPT:]

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values, which `head_of` reads back. Values that every look counts again are left out."""
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
    """Read the values of `Head.to_json`. Raises ValueError for any invalid value."""
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
    """Raise DamagedLog if the log belongs to another topic. Somebody may have copied or moved it to this place."""
    if wanted not in (None, found):
        raise damaged_log(str(place), f"the log of topic {found}", f"the log of topic {wanted}")


def check_place(found: TopicName, at: Path, *, own: Path) -> None:
    """Raise DamagedLog if the log is not at its topic's own place. Work on its topic would miss such a log."""
    if at != own:
        raise damaged_log(str(at), f"the log of topic {found}", f"the log of the topic whose place it is; that of {found} is {own}")


# A log's head as a line of JSON in a file: `{"lifecycle": {"topic": ..., "written": ..., ...}}`.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """A head as a file holds it. `written` counts the rewrites, so that two states of the file are never confused."""

    topic: TopicName
    written: int
    head: Head
    size: int

    @property
    def source(self) -> str:
        """The quarantine's name for this state of the file."""
        return f"written {self.written}"


def head_line(name: TopicName, head: Head, *, written: int) -> bytes:
    return orjson.dumps({"lifecycle": {"topic": str(name), "written": written, **head.to_json()}}, option=orjson.OPT_APPEND_NEWLINE)


def read_head(file: BinaryIO, *, of: TopicName | None = None) -> HeadRecord:
    """Read the head from a file's first line. Raises DamagedLog.

    Args:
        file: The log's first file.
        of: The expected topic, if known.
    """
    line = file.readline()
    try:
        given = orjson.loads(line)["lifecycle"]
        topic = TopicName.parse(given["topic"])
        record = HeadRecord(topic=topic, written=int(given["written"]), head=head_of(given), size=len(line))
    except (ValueError, KeyError, TypeError, InvalidName) as error:
        raise damaged_log(file.name, f"a first line that is no head of a log ({error})", 'one line {"lifecycle": {...}}') from error
    check_topic(Path(file.name), record.topic, of)
    return record


# The protocol of a record log: the duties of a backend, so that `RecordLogStore` makes a full store of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Messages to remove, by name.

    Attributes:
        offsets: Ascending runs that do not overlap, per partition.
        rows: The exact number of existing messages. None: any number (another writer's delete).
    """

    plan_id: str | None
    offsets: Mapping[int, Sequence[range]]
    rows: int | None = None

    def taker(self) -> Callable[[int, int], bool]:
        """Return a test: the message at (partition, offset) leaves.

        Callers test every message of a log, and a partition usually loses one run. So that case has its own test.
        """
        if all(len(runs) == 1 for runs in self.offsets.values()):
            single = {partition: (runs[0].start, runs[0].stop) for partition, runs in self.offsets.items()}

            def is_in_run(partition: int, offset: int) -> bool:
                run = single.get(partition)
                return run is not None and run[0] <= offset < run[1]

            return is_in_run
        starts = {partition: [run.start for run in runs] for partition, runs in self.offsets.items()}

        def is_in_runs(partition: int, offset: int) -> bool:
            at = bisect_right(starts.get(partition, ()), offset) - 1
            return at >= 0 and offset < self.offsets[partition][at].stop

        return is_in_runs


class RecordLog(Protocol):
    """The log of one topic."""

    def head(self) -> Head:
        """Return the present head. Cheap if the log is unchanged since the last look. Raises DamagedLog."""

    def scan(self) -> tuple[int, Iterator[Message]]:
        """Return the generation and the messages in order of appending. Offsets ascend in each partition.

        A concurrent removal does not change the result, or ends it with LogReplaced. Messages that are appended meanwhile may be included.
        """

    def content(self, earlier: str | None = None) -> str:
        """Name the messages that the log holds now.

        Args:
            earlier: An earlier answer. The result then names as much of the log as that answer did, without messages that were appended
                since. The result differs from `earlier` if a shorter or another log has replaced the log.
        """

    def append(self, messages: Sequence[Message], head: Head) -> None:
        """Append durably, with the new head. Call it under `lock`."""

    def replace(self, head: Head, removal: Removal | None = None) -> None:
        """Remove the messages of `removal` and set the head, in one step, all or nothing. Call it under `lock`.

        Raises:
            PlanConflict: The number of messages is not `removal.rows`. The log is then unchanged.
        """

    def lock(self) -> AbstractContextManager[None]:
        """Lock out every other writer, of this process or another. Raises LogLocked."""


@runtime_checkable
class DamagedRecords(Protocol):
    """The duties of a log that keeps lines, for lines that are not messages, and for stray files.

    Such lines are in the log itself, or in a quarantine next to it.
    """

    def drop_leftovers(self) -> None:
        """Remove, durably, the files that a failed change may have left next to the log. Waits for `lock` if there are any."""

    def count_matching(self, tells: Callable[[bytes], bool]) -> int:
        """Return how many damaged lines pass the test."""

    def erase_damaged_lines(self, tells: Callable[[bytes], bool]) -> None:
        """Remove these lines durably, and every damaged line from the log itself. Call it under `lock`."""


class RecordLogs(Protocol):
    """The logs of one backend."""

    @property
    def backend(self) -> Backend: ...

    def names(self) -> Sequence[TopicName]: ...

    def create(self, name: TopicName, head: Head) -> None:
        """Create an empty log. Raises TopicExists."""

    def open(self, name: TopicName) -> RecordLog:
        """Raises UnknownTopic."""
