"""What a plan took out of the quarantine, found in its history and brought back (DEL-7, QUA-1).

Refused rows have no offsets, and an erasure gives a file another name and keeps the times of the rows that stay. So a file is known by its
name; one that an erasure has written anew, by times that lie within those of a file that went; and a copy by its times and number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from message_lifecycle.model.change import QuarantinedFile
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.tables import QuarantineFile, QuarantineReturning
from message_lifecycle.stores.iceberg.copies_back import copied_from, copies, originals
from message_lifecycle.stores.iceberg.file_copies import digest_of
from message_lifecycle.stores.iceberg.file_names import absolute, is_erased_copy, location_prefix
from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession


def returning(
    plan: Plan, *, source_id: int, rewritten: bool, source: Iterable[QuarantineFile], now: Iterable[QuarantineFile]
) -> QuarantineReturning:
    """What the plan took and is not there `now`. `rewritten`: an erasure has come since, and made the source."""
    dropped = plan.on_quarantine.files
    names, there = {action.file for action in dropped}, {file.name: _known_by(file) for file in now}
    copies_there = set(there.values())
    files, present = [], 0
    for file in source:
        if file.oldest_at is None or file.newest_at is None or file.name in there:
            continue
        if file.name not in names and not (rewritten and is_erased_copy(file.name) and _within(file, dropped)):
            continue
        if _known_by(file) in copies_there:
            present += file.rows
        else:
            files.append((file, (file.oldest_at, file.newest_at)))
    return QuarantineReturning(source_id=source_id, files=tuple(files), present=present)


def returned(plan: Plan, before: Iterable[QuarantineFile], after: Iterable[QuarantineFile]) -> int:
    """How many of an undo's rows its commit has brought, each file known by its times and its number of rows."""
    old = {file.name for file in before}
    new = Counter(_known_by(file) for file in after if file.name not in old)
    named = Counter((action.oldest_at, action.newest_at, action.rows) for action in plan.on_quarantine.files_back)
    return sum(min(many, new[oldest, newest, rows]) * rows for (oldest, newest, rows), many in named.items())


def bringing_back(session: SparkSession, io: FileIO, table: Java, plan: Plan) -> Java:
    """The update that adds a copy of each of the plan's files. Raises UndoSourceGone."""
    prefix, undone = location_prefix(str(table.location())), plan.parent or plan.plan_id
    wanted = {absolute(prefix, action.file): at for at, action in enumerate(plan.on_quarantine.files_back)}
    update = table.newAppend()
    found = originals(session, io, table, plan.on_quarantine.source_id, wanted, undone=undone)
    for _, (_, file) in copies(session, io, table, found, undone=undone):
        update.appendFile(file)
    return update


def looked_at(io: FileIO, prefix: str, plan: Plan, rows: Iterable[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """The frame `back` of `gates.quarantine`. `rows`: new files by name, and how many rows each was read to hold."""
    named = dict(enumerate(plan.on_quarantine.files_back))
    for name, count in rows:
        at = copied_from(name)
        action = None if at is None else named.pop(at, None)  # each of them once
        same = action is not None and digest_of(io, absolute(prefix, name)) == digest_of(io, absolute(prefix, action.file))
        yield {"rows": count, "planned": action is not None, "same": same}


def _known_by(file: QuarantineFile) -> tuple[int | None, int | None, int]:
    return file.oldest_at, file.newest_at, file.rows


def _within(file: QuarantineFile, dropped: Iterable[QuarantinedFile]) -> bool:
    oldest, newest = file.oldest_at, file.newest_at
    assert oldest is not None and newest is not None, "asked of known times alone"
    return any(action.oldest_at <= oldest and newest <= action.newest_at for action in dropped)
