"""A key in the archive of what has gone from a topic (RET-7): found, and taken out of the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from message_lifecycle.model.erasure import HeldFile, KeyInTable, Matches
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Value, resolve
from message_lifecycle.stores.archive.parquet import ParquetArchive


def archive_of(settings: Mapping[str, Value], server: Mapping[str, Value]) -> ParquetArchive | None:
    """Where the topic's policy archives to now; None: it does not."""
    folder = resolve(topic=settings, server=server)["archive_to"]
    return None if folder is None else ParquetArchive(Path(str(folder)))


def key_in_archive(archive: ParquetArchive, name: TopicName, uuid: str, matches: Matches) -> KeyInTable:
    """`uuid`: the topic's. Raises UnsafePath, DamagedLog: what cannot be read may hold the key."""
    rows = {f"{plan_id}.parquet": archive.telling(name, plan_id, matches) for plan_id in archive.plans(name)}
    files = tuple(beside(file, count) for file, count in rows.items() if count)
    return KeyInTable(
        table="archive",
        table_uuid=uuid,
        snapshot_id=None,
        files=files,
        refs=(),
        undo=(),
        snapshots=(),
        rows=0,
        size_bytes=0,
        clean=not files and not archive.half_written(name),
    )


def told_in_archive(archive: ParquetArchive, plan: Plan, file: str, matches: Matches) -> int:
    """How many messages of the key the file has. Raises PlanConflict where it is gone: with a plan that this one took the place of."""
    try:
        return archive.telling(plan.topic, file.removesuffix(".parquet"), matches)
    except FileNotFoundError:
        raise PlanConflict(plan.plan_id, f"the archive has {file} no more") from None


def beside(name: str, rows: int) -> HeldFile:
    """A file beside the log with so many records of the key: none is at an offset that readers see."""
    return HeldFile(name=name, partition=0, base_offset=0, offsets="", rows=rows, live=0, size_bytes=0, needed=True)


def erase_archive(archive: ParquetArchive, name: TopicName, matches: Matches) -> None:
    """Each file in one step, and on disk on return; done before, it changes nothing. What is half-written goes unread."""
    archive.drop_half_written(name)
    for plan_id in archive.plans(name):
        archive.erase(name, plan_id, matches)
