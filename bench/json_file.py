"""Messages in one JSON file: a removal against a bare loop that reads, parses and writes; a read under limits against a read without.

The bare loop is the code that anyone would write first: it parses every line with `orjson.loads` and writes it again, without check, lock
or fsync. Our removal writes the remaining messages to a new file, and flushes that file to disk before it replaces the old one.

Two removals run as in `lifecycle run`, in the process that has planned them and so knows the file. One removes the oldest messages, and
need not parse the rest of the file. The other removes single messages up to the end of the file, and has the limit. A third removal, of the
oldest messages, includes the first inspection that another process needs, which checks every line.

The reads are the command's own: all messages, and messages under limits by age, number and bytes. Everything runs in this process, by
turns. Figures are medians.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import orjson

from bench import size
from message_lifecycle.app.reading import read
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import record_log_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.record_log import RecordLog, Removal

RECORDS = size.of(1_000_000)
REPEATS = size.repeats(3)
GOES = RECORDS // 100
"""Messages that one removal takes: nearly all are written again. The oldest in a row, or every second one of the newest."""
BATCH = 50_000
SECOND = 1_000_000
NAME = TopicName(stream="bench", topic="messages")
SLOWEST = 0.7
"""Speed of a removal over that of the bare loop, at the least."""
DEAREST = 1.5
"""Cost of a read under limits over that of one without, at the most."""


@dataclass(slots=True, kw_only=True)
class Took:
    """CPU and wall seconds of each repeat."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def time(self, deed: Callable[[], object]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        deed()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def line(self, what: str, rows: int) -> str:
        return f"  {what:34} {median(self.cpu):6.2f} CPU s {median(self.wall):6.2f} s   {rows / median(self.cpu):12,.0f} records/CPU s"


def bare(file: Path, into: Path) -> None:
    with file.open("rb") as old, into.open("wb") as new:
        for line in old:
            orjson.loads(line)
            new.write(line)


def oldest(turn: int) -> tuple[range, ...]:
    return (range(turn * GOES, (turn + 1) * GOES),)


def scattered(turn: int) -> tuple[range, ...]:
    end = RECORDS - turn * 2 * GOES
    return tuple(range(offset, offset + 1) for offset in range(end - 2 * GOES + 1, end, 2))


def remove(log: RecordLog, runs: tuple[range, ...]) -> None:
    with log.lock():
        head = log.head()
        removal = Removal(plan_id=f"of {runs[0]}", offsets={0: runs}, rows=GOES)
        log.replace(replace(head, generation=head.generation + 1), removal)


def main() -> int:
    """Print CPU and wall seconds; 1 where a limit is missed."""
    with TemporaryDirectory(prefix="bench-") as folder:
        logs = JsonFiles(Path(folder))
        world = record_log_world(logs, {}, lambda: None)
        at = Instant(RECORDS * SECOND)
        world.set_now(at)
        limits = {"max_age_seconds": RECORDS * 0.8, "max_records": RECORDS * 6 // 10, "max_total_bytes": RECORDS * 60}
        create_topic(world.services, NAME, partitions=1, settings=limits)
        policy = policy_of(world.services, NAME)
        for start in range(0, RECORDS, BATCH):
            batch = (
                NewMessage(append_time=Instant((1 + number) * SECOND), key=b"key-%d" % (number % 1000), value=b"v" * 100)
                for number in range(start, min(start + BATCH, RECORDS))
            )
            world.writer.append(NAME, list(batch), policy)
        log, file = logs.open(NAME), logs.file(NAME)
        print(f"{RECORDS:,} records of {file.stat().st_size / RECORDS:.0f} bytes; medians of {REPEATS}")

        shown = {"all": 0, "limited": 0}
        unfiltered, limited = Took(), Took()

        def count(which: str, until: Instant | None) -> None:
            shown[which] = sum(1 for _ in read(world.services, NAME, at=until))

        log.head()
        for _ in range(REPEATS):
            unfiltered.time(lambda: count("all", None))
            limited.time(lambda: count("limited", at))
        assert shown["all"] == RECORDS, shown
        dearer = median(limited.cpu) / median(unfiltered.cpu)
        print(unfiltered.line("read of all", RECORDS))
        print(limited.line(f"read under limits ({shown['limited']:,})", RECORDS))
        print(f"  ratio {dearer:.2f} (wall {median(limited.wall) / median(unfiltered.wall):.2f}), limit {DEAREST}")

        loop, in_a_row, single, fresh = Took(), Took(), Took(), Took()
        for turn in range(REPEATS):
            loop.time(lambda: bare(file, Path(folder) / "bare"))
            log.head()
            in_a_row.time(partial(remove, log, oldest(2 * turn)))
            log.head()
            single.time(partial(remove, log, scattered(turn)))
            anew = JsonFiles(Path(folder)).open(NAME)
            fresh.time(partial(remove, anew, oldest(2 * turn + 1)))
        speed = median(loop.cpu) / median(single.cpu)
        print(loop.line("bare loop", RECORDS))
        print(in_a_row.line("removal of the oldest", RECORDS))
        print(single.line("removal of single ones", RECORDS))
        print(fresh.line("removal of the oldest, first look", RECORDS))
        print(f"  speed {speed:.2f} (wall {median(loop.wall) / median(single.wall):.2f}), limit {SLOWEST}; of the oldest "
              f"{median(loop.cpu) / median(in_a_row.cpu):.2f}, with a first look {median(loop.cpu) / median(fresh.cpu):.2f}")  # fmt: skip
        world.close()
    return size.status(kept=speed >= SLOWEST and dearer <= DEAREST)


if __name__ == "__main__":
    sys.exit(main())
