"""The seam of a record log: what a backend must do so that `RecordLogStore` makes a full store of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from message_lifecycle.model.backends import Backend
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log.head import Head


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
