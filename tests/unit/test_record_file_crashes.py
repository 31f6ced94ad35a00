"""A crash between every two file operations: no message that stays is lost, none is there twice, nothing is half done (RET-6)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.stores.record_log import RecordLog
from tests.record_files import (
    HEAD,
    KINDS,
    NAME,
    Crash,
    CrashingDisk,
    WatchedDisk,
    append,
    first_file,
    log_of,
    logs_of,
    offsets,
    remove,
    spoil,
)

pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.usefixtures("no_loss_of_power")]
Deed = Callable[[RecordLog], None]
MOST_OPERATIONS = 200


def every_crash(kind: str, root: Path, *, before: Callable[[RecordLog, Path], None], deed: Deed, check: Callable[[RecordLog], None]) -> int:
    """Do the deed on what `before` left, stopping before each operation in turn, and in the middle of each write; `check` sees the log as the
    next process opens it. Returns how many operations the deed has."""
    for at in range(MOST_OPERATIONS):
        for torn in (False, True):
            folder = root / f"{at}-{torn}"
            before(log_of(kind, folder), folder)
            disk = CrashingDisk(at, torn=torn)
            try:
                deed(log_of(kind, folder, disk=disk))
            except Crash:
                check(log_of(kind, folder))
                if disk.stopped_in == "write":
                    continue
                break
            assert disk.done <= at
            check(log_of(kind, folder))
            return disk.done
    raise AssertionError("the deed never ends")


def test_an_append_is_there_up_to_some_message_and_can_go_on(kind: str, tmp_path: Path) -> None:
    def check(log: RecordLog) -> None:
        found = offsets(log)
        assert found[:4] == [0, 1, 2, 3]
        assert found == list(range(len(found))) and len(found) <= 12
        torn = log.head().quarantined
        assert torn <= 1
        append(log, 2)
        # A torn line may have been any message: its offset is not given again.
        assert offsets(log) == [*found, len(found) + torn, len(found) + torn + 1]
        remove(log, range(2))
        assert offsets(log)[0] == 2
        assert log.head().quarantined == torn

    operations = every_crash(kind, tmp_path, before=lambda log, _: append(log, 4), deed=lambda log: append(log, 8), check=check)
    assert operations >= (2 if kind == "json_file" else 10), "the batch goes through several rotations"


def test_a_removal_is_done_whole_or_not_at_all_and_again_is_the_same(kind: str, tmp_path: Path) -> None:
    runs = (range(4), range(7, 8))
    kept = [4, 5, 6, 8, 9, 10, 11]

    def check(log: RecordLog) -> None:
        done = log.head().commit_of("p1") is not None
        assert offsets(log) == (kept if done else list(range(12)))
        assert log.head().end_offsets == {0: 12}
        remove(log, *runs)
        assert offsets(log) == kept
        append(log, 1)
        assert offsets(log) == [*kept, 12]
        assert [commit.plan_id for commit in log.head().commits] == ["p1"]

    def before(log: RecordLog, _root: Path) -> None:
        for _ in range(4):
            append(log, 3)

    operations = every_crash(kind, tmp_path, before=before, deed=lambda log: remove(log, *runs), check=check)
    assert operations >= 6


def test_a_removal_of_everything(kind: str, tmp_path: Path) -> None:
    def check(log: RecordLog) -> None:
        assert offsets(log) in ([], list(range(6)))
        remove(log, range(6))
        assert offsets(log) == []
        assert log.head().end_offsets == {0: 6}
        append(log, 1)
        assert offsets(log) == [6]

    every_crash(kind, tmp_path, before=lambda log, _: append(log, 6), deed=lambda log: remove(log, range(6)), check=check)


def test_a_damaged_line_is_in_quarantine_once_whatever_stops_when(kind: str, tmp_path: Path) -> None:
    def check(log: RecordLog) -> None:
        assert log.head().quarantined == 1
        assert offsets(log) in ([0, 2, 3], [2, 3])
        remove(log, range(1))
        assert log.head().quarantined == 1
        assert offsets(log) == [2, 3]

    def before(log: RecordLog, root: Path) -> None:
        append(log, 4)
        file, lines = first_file(kind, root)
        spoil(file, lines + 1, b'{"partition":0,"of')

    every_crash(kind, tmp_path, before=before, deed=lambda log: remove(log, range(1)), check=check)


def test_new_settings_are_the_old_ones_or_the_new_ones(kind: str, tmp_path: Path) -> None:
    def alter(log: RecordLog) -> None:
        with log.lock():
            log.replace(replace(log.head(), settings={"max_records": 3}))

    def check(log: RecordLog) -> None:
        assert log.head().settings in ({}, {"max_records": 3})
        assert offsets(log) == [0, 1, 2, 3]

    every_crash(kind, tmp_path, before=lambda log, _: append(log, 4), deed=alter, check=check)


def test_a_topic_is_made_or_not_there(kind: str, tmp_path: Path) -> None:
    for at in range(MOST_OPERATIONS):
        disk = CrashingDisk(at, torn=False)
        try:
            logs_of(kind, tmp_path / str(at), disk=disk).create(NAME, HEAD)
        except Crash:
            logs = logs_of(kind, tmp_path / str(at))
            assert logs.names() in ([], [NAME])
            if not logs.names():
                logs.create(NAME, HEAD)
            append(logs.open(NAME), 2)
            assert offsets(logs.open(NAME)) == [0, 1]
            continue
        assert disk.done > 4
        return
    raise AssertionError("it never ends")


def test_a_replacement_that_may_not_outlast_the_machine_is_no_failure_but_unknown(kind: str, tmp_path: Path) -> None:
    append(log_of(kind, tmp_path), 4)
    replaced = False

    def before(operation: str, _about: object) -> None:
        nonlocal replaced
        if operation == "sync_folder" and replaced:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replaced = replaced or operation == "replace"

    with pytest.raises(CommitUnknown, match="the disk did not confirm the commit"):
        remove(log_of(kind, tmp_path, disk=WatchedDisk(before)), range(2))
    log = log_of(kind, tmp_path)
    assert replaced and offsets(log) == [2, 3]
    assert log.head().commit_of("p1") is not None, "whoever looks again finds it done"


def test_everything_is_on_disk_before_it_counts(kind: str, tmp_path: Path) -> None:
    """By the order of the operations: what a file says is synced before it takes another's name, the name before anything goes."""
    done: list[tuple[str, object]] = []
    log = log_of(kind, tmp_path, disk=WatchedDisk(lambda operation, about: done.append((operation, about))))
    for _ in range(4):
        append(log, 3)
        assert done[-1][0] in ("sync", "sync_folder"), "an append that returns is on disk"
    remove(log, range(4))
    unsynced: set[object] = set()
    replaced = False
    for operation, about in done:
        if operation == "write":
            unsynced.add(about)
        if operation == "sync":
            unsynced.discard(about)
        if operation == "replace":
            assert not unsynced
            replaced = True
        if operation == "sync_folder":
            replaced = False
        if operation == "unlink":
            assert not replaced, "a file goes only when the new names are on disk"
    assert not unsynced and not replaced
