"""Where messages go that are archived instead of deleted (RET-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from message_lifecycle.model.erasure import HeldFile, KeySearchResult, Matches
from message_lifecycle.model.errors import PlanConflict, damaged_log
from message_lifecycle.model.in_values import Needle, ValuePlace, places_of_messages
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.stores.archive_place import place_at
from message_lifecycle.stores.record_log.disk import Disk

# One file of Parquet a plan, with every field of a message.


SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("append_time", pa.timestamp("us", tz="UTC")),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())])), nullable=False),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("origin_offset", pa.int64()),
        pa.field("expires_at", pa.timestamp("us", tz="UTC")),
        pa.field("never", pa.bool_(), nullable=False),
    ]
)
_TIMES = ("append_time", "event_time", "expires_at")
_ROWS_AT_ONCE = 10_000


class ParquetArchive:
    """`to`: as the setting `archive_to` has it; the folder is made if it is not there."""

    def __init__(self, to: str | Path, *, disk: Disk | None = None) -> None:
        self.to, self._place = str(to), place_at(str(to), disk=disk)

    def folder(self, name: TopicName) -> str:
        """The topic's own, which nobody has looked at: a path, or a URI."""
        return self._place.folder(name)

    def file(self, name: TopicName, plan_id: str) -> str:
        """Where the plan's file is: its path, or its URI. Raises UnsafePath where the topic's folder leads elsewhere."""
        return self._place.path_text(name, plan_id)

    def write(self, name: TopicName, plan_id: str, messages: Iterable[Message]) -> None:
        """Durable when it returns, whole; what was there of the plan is replaced. Raises StorageFull, StorageRefused, UnsafePath."""

        def fill(sink: IO[bytes]) -> None:
            with pq.ParquetWriter(sink, SCHEMA) as writer:
                waiting = iter(messages)
                while rows := list(islice(waiting, _ROWS_AT_ONCE)):
                    writer.write_table(_table(rows))

        self._place.write(name, plan_id, fill)

    def read(self, name: TopicName, plan_id: str) -> Iterator[Message]:
        """Yield the messages in the order of their writing.

        Raises:
            FileNotFoundError: The plan has no file.
            StorageRefused: The store does not hand the file out.
            ArrowInvalid, OSError: The file is none of ours.
        """
        with self._place.open(name, plan_id) as source, pq.ParquetFile(source) as file:
            if not file.schema_arrow.equals(SCHEMA):
                raise pa.ArrowInvalid("columns other than an archive's")
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                times = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in _TIMES}
                for at, row in enumerate(batch.drop_columns(list(_TIMES)).to_pylist()):
                    yield Message(
                        partition=row["partition"],
                        offset=row["offset"],
                        append_time=_instant(times["append_time"][at]),
                        key=row["key"],
                        value=row["value"],
                        segment=row["segment"],
                        headers=tuple((header["name"], header["value"]) for header in row["headers"]),
                        event_time=_instant(times["event_time"][at]),
                        origin_offset=row["origin_offset"],
                        expires_at=_instant(times["expires_at"][at]),
                        never=row["never"],
                    )

    def plans(self, name: TopicName) -> list[str]:
        """Plans that have a file here. Raises UnsafePath, StorageRefused."""
        return self._place.plans(name)

    def list_half_written_plans(self, name: TopicName) -> list[str]:
        """Plans of which a crash has left a part of a file, or an upload that nobody completed. Raises UnsafePath, StorageRefused."""
        return self._place.list_half_written_plans(name)

    def count_matching(self, name: TopicName, plan_id: str, matches: Callable[[bytes], bool]) -> int:
        """How many messages of the plan's file have such a key. Raises FileNotFoundError, DamagedLog."""
        with _named_damage(self.file(name, plan_id)):
            return sum(_has(message, matches) for message in self.read(name, plan_id))

    def find_in_values(self, name: TopicName, plan_id: str, needle: Needle) -> list[ValuePlace]:
        """Where other messages of the plan's file tell the key in their values. Raises FileNotFoundError, DamagedLog."""
        file = self.file(name, plan_id)
        with _named_damage(file):
            found = places_of_messages("archive", filter(needle.is_in_message, self.read(name, plan_id)), is_live=False)
        return [replace(place, file=file) for place in found]

    def erase(self, name: TopicName, plan_id: str, matches: Callable[[bytes], bool]) -> int:
        """Write the plan's file anew without the messages of such a key, or take it away where none is left; how many there were."""
        gone, rows = 0, 0
        with _named_damage(self.file(name, plan_id)):
            for message in self.read(name, plan_id):
                rows += 1
                gone += _has(message, matches)
        if gone == rows:
            self.drop(name, plan_id)
        elif gone:
            self.write(name, plan_id, (message for message in self.read(name, plan_id) if not _has(message, matches)))
        return gone

    def drop(self, name: TopicName, plan_id: str) -> None:
        """Also what a crash has left half-written. Nothing there is success."""
        self._place.drop(name, plan_id)

    def drop_half_written(self, name: TopicName) -> None:
        """Of every plan; none may be writing."""
        self._place.drop_half_written(name)

    def is_there(self, name: TopicName) -> bool:
        """Whether it can be looked into for what it has of the topic, where it was written to."""
        return self._place.is_there(name)

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:
        """What a bucket keeps of files that were written until then and have been replaced or removed, in words; empty: nothing."""
        return self._place.describe_old_copies(name, until)


@contextmanager
def _named_damage(file: str) -> Iterator[None]:
    """A file that cannot be read may hold any key."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise damaged_log(file, str(error), "an archive's file, whole") from error


def _has(message: Message, matches: Callable[[bytes], bool]) -> bool:
    return message.key is not None and matches(message.key)


def _instant(time: int | None) -> Instant | None:
    return None if time is None else Instant(time)


def _table(messages: list[Message]) -> pa.Table:
    found = {
        name: pa.array([getattr(message, name) for message in messages], pa.int64() if name in _TIMES else SCHEMA.field(name).type)
        for name in SCHEMA.names
        if name != "headers"
    }
    found = {name: column.cast(SCHEMA.field(name).type) for name, column in found.items()}
    found["headers"] = pa.array([[{"name": n, "value": v} for n, v in m.headers] for m in messages], SCHEMA.field("headers").type)
    return pa.table([found[name] for name in SCHEMA.names], schema=SCHEMA)


# A key in the archive of what has gone from a topic (RET-7): found, and taken out of the files that hold it.


def archive_of(settings: Mapping[str, Value], server: Mapping[str, Value]) -> ParquetArchive | None:
    """Where the topic's policy archives to now; None: it does not."""
    folder = resolve(topic=settings, server=server)["archive_to"]
    return None if folder is None else ParquetArchive(str(folder))


def key_in_archive(archive: ParquetArchive, name: TopicName, uuid: str, matches: Matches) -> KeySearchResult:
    """`uuid`: the topic's. Raises UnsafePath, DamagedLog: what cannot be read may hold the key."""
    rows = {f"{plan_id}.parquet": archive.count_matching(name, plan_id, matches) for plan_id in archive.plans(name)}
    files = tuple(archived_key_finding(file, count) for file, count in rows.items() if count)
    return KeySearchResult(
        table="archive",
        table_uuid=uuid,
        snapshot_id=None,
        files=files,
        refs=(),
        undo=(),
        snapshots=(),
        rows=0,
        size_bytes=0,
        searched=len(rows),
        clean=not files and not archive.list_half_written_plans(name),
    )


def told_in_archive(archive: ParquetArchive, plan: Plan, file: str, matches: Matches) -> int:
    """How many messages of the key the file has. Raises PlanConflict where it is gone: with a plan that this one took the place of."""
    try:
        return archive.count_matching(plan.topic, file.removesuffix(".parquet"), matches)
    except FileNotFoundError:
        raise PlanConflict(plan.plan_id, f"the archive has {file} no more") from None


def archived_key_finding(name: str, rows: int) -> HeldFile:
    """A file beside the log with so many records of the key: none is at an offset that readers see."""
    return HeldFile(name=name, partition=0, base_offset=0, offsets="", rows=rows, live=0, size_bytes=0, needed=True)


def erase_archive(archive: ParquetArchive, name: TopicName, matches: Matches) -> None:
    """Each file in one step, and on disk on return; done before, it changes nothing. What is half-written goes unread."""
    archive.drop_half_written(name)
    for plan_id in archive.plans(name):
        archive.erase(name, plan_id, matches)
