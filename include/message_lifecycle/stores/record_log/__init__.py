"""Logs of single records that are no tables: one store over a small protocol, which files and Redis Streams implement."""

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

# What a log knows of itself beside its messages: one value, kept where one step of the backend replaces it with them.


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


# The seam of a record log: what a backend must do so that `RecordLogStore` makes a full store of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Messages that go, by name. `offsets`: ascending runs that do not overlap, per partition.

    `rows`: exactly so many are there; None: as many as there are (another writer's delete)."""

    plan_id: str | None
    offsets: Mapping[int, Sequence[range]]
    rows: int | None = None

    def taker(self) -> Callable[[int, int], bool]:
        """Whether the message at (partition, offset) goes. Asked once for every message of a log: mostly a partition loses one run."""
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
        """As it is now; cheap where nothing has changed since the last look. Raises DamagedLog."""

    def scan(self) -> tuple[int, Iterator[Message]]:
        """The generation, and its messages in the order in which they were appended, offsets ascending in each partition.

        A removal meanwhile changes nothing of what comes, or ends it with LogReplaced. Messages that are appended meanwhile may come."""

    def content(self, earlier: str | None = None) -> str:
        """Name the messages that the log holds now.

        Args:
            earlier: An earlier answer. The result then names as much of the log as that answer did, without messages that were
                appended since. It differs from `earlier` if a shorter or another log was put in the place of the log.
        """

    def append(self, messages: Sequence[Message], head: Head) -> None:
        """At the end; durable on return. `head`: as it is with them. Under `lock`."""

    def replace(self, head: Head, removal: Removal | None = None) -> None:
        """One step that is done whole or not at all: the messages of `removal` are gone and the head is this one. Under `lock`.

        Raises PlanConflict where not exactly `removal.rows` would go; nothing is changed then."""

    def lock(self) -> AbstractContextManager[None]:
        """Held against every other writer, of this process or another. Raises LogLocked."""


@runtime_checkable
class DamagedRecords(Protocol):
    """What a log that keeps lines does with those that are no messages, in the log or in quarantine beside it, and with files that
    are nobody's."""

    def drop_leftovers(self) -> None:
        """Take away, durably, what a change that died may have left beside the log. Waits for `lock` where there is any."""

    def telling(self, tells: Callable[[bytes], bool]) -> int:
        """How many of them tell what `tells` looks for."""

    def erase_damaged(self, tells: Callable[[bytes], bool]) -> None:
        """Take those away, durably; no damaged line is left in the log itself. Under `lock`."""


class RecordLogs(Protocol):
    """The logs of one backend."""

    @property
    def backend(self) -> Backend: ...

    def names(self) -> Sequence[TopicName]: ...

    def create(self, name: TopicName, head: Head) -> None:
        """An empty log. Raises TopicExists."""

    def open(self, name: TopicName) -> RecordLog:
        """Raises UnknownTopic."""
