"""Files of single records: who may write, where they lie, and what of damage is kept."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from message_lifecycle.model.errors import (
    CommitUnknown,
    PlanConflict,
    UnknownTopic,
    UnsafePath,
)
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.record_log import Head, Removal
from tests.errors import raises
from tests.record_files import (
    HEAD,
    KINDS,
    MAX_BYTES,
    NAME,
    FullDisk,
    WatchedDisk,
    append,
    files,
    first_file,
    is_run,
    log_of,
    logs_of,
    offsets,
    remove,
    spoil,
)

NEW_MANIFEST = "manifest.json.new"
on_both = pytest.mark.parametrize("kind", KINDS)


@on_both
@pytest.mark.parametrize("offset", [2**63 - 1, 2**64 - 1])
def test_an_offset_that_no_log_gives_does_not_end_the_log(kind: str, tmp_path: Path, offset: int) -> None:
    log = log_of(kind, tmp_path)
    append(log, 1)
    with first_file(kind, tmp_path)[0].open("ab") as file:
        file.write(b'{"partition":0,"offset":%d}\n' % offset)
    append(log, 1)
    remove(log, range(1))
    assert (offsets(log), log.head().quarantined) == ([2], 1)


@on_both
def test_a_second_process_is_locked_out_and_told_by_whom(kind: str, tmp_path: Path) -> None:
    log = log_of(kind, tmp_path, wait_seconds=0)
    append(log, 2)
    holder = "import sys; from pathlib import Path; from tests.record_files import log_of\nwith log_of(sys.argv[1], Path(sys.argv[2])).lock():\n    print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, kind, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with raises("LogLocked", match=f"process {other.pid}"):
            append(log, 1)
        assert offsets(log) == [0, 1], "readers need no lock"
        other.kill()
    append(log, 1)
    assert offsets(log) == [0, 1, 2]


ROUNDS = 60


def appending(kind: str, root: Path) -> None:
    log = log_of(kind, root)
    for _ in range(ROUNDS):
        append(log, 2)


def removing(kind: str, root: Path) -> None:
    """All but the newest ten, again and again, until the last message has come."""
    log = log_of(kind, root)
    while True:
        with log.lock():
            head = log.head()
            end = head.end_offsets[0]
            after = replace(head, generation=head.generation + 1, commits=head.with_commit(plan_id=None))
            log.replace(after, Removal(plan_id=None, offsets={0: (range(max(0, end - 10)),)}))
        if end == 2 * ROUNDS:
            return
        time.sleep(0.001)  # or the one that appends, which asks for the lock now and then, might never find it free


@on_both
def test_appends_and_removals_of_two_processes_lose_nothing(kind: str, tmp_path: Path) -> None:
    log = log_of(kind, tmp_path)
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(kind, tmp_path)) for work in (appending, removing)]
    for worker in workers:
        worker.start()
    seen = 0
    while any(worker.is_alive() for worker in workers) and not any(worker.exitcode for worker in workers):
        found = offsets(log)
        assert is_run(found), "a reader has one state of the log"
        assert not found or found[-1] >= seen
        seen = found[-1] if found else seen
    for worker in workers:
        worker.join(60)
        worker.kill()
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert offsets(log) == list(range(2 * ROUNDS - 10, 2 * ROUNDS))
    assert log.head().quarantined == 0


@on_both
def test_a_reader_goes_on_with_what_it_began(kind: str, tmp_path: Path) -> None:
    log = log_of(kind, tmp_path)
    append(log, 12)
    _, messages = log.scan()
    first = next(messages)
    remove(log, range(11))
    assert [first.offset, *(message.offset for message in messages)] == list(range(12))
    assert offsets(log) == [11]


def test_a_log_remembers_its_newest_removals() -> None:  # DEL-5
    """Older plans were closed long ago, and the ledger answers for them."""
    head = HEAD
    for at in range(101):
        head = replace(head, generation=head.generation + 1, commits=head.with_commit(plan_id=f"p{at}"))
    assert [commit.plan_id for commit in head.commits] == [f"p{at}" for at in range(1, 101)]
    assert (head.commit_of("p0"), head.commit_of("p1")) == (None, head.commits[0])


@on_both
def test_a_removal_that_would_take_other_than_it_names_changes_nothing(kind: str, tmp_path: Path) -> None:
    log = log_of(kind, tmp_path)
    append(log, 4)
    before = files(tmp_path)
    with pytest.raises(PlanConflict, match="2 of the 3 messages"), log.lock():
        log.replace(replace(log.head(), generation=2), Removal(plan_id="p1", offsets={0: (range(2),)}, rows=3))
    assert files(tmp_path) == before


@on_both
def test_a_full_disk_changes_nothing(kind: str, tmp_path: Path) -> None:
    append(log_of(kind, tmp_path), 4)
    before = files(tmp_path)
    full = log_of(kind, tmp_path, disk=FullDisk())
    with raises("StorageFull"):
        append(full, 1)
    assert offsets(log_of(kind, tmp_path)) == [0, 1, 2, 3]
    with raises("StorageFull"):
        remove(full, range(2))
    log = log_of(kind, tmp_path)
    assert offsets(log) == [0, 1, 2, 3]
    remove(log, range(1))
    assert offsets(log) == [1, 2, 3]
    assert log.head().quarantined == 0
    assert len(files(tmp_path)) <= len(before) + 1


@on_both
@pytest.mark.parametrize("why", [errno.EACCES, errno.EROFS, errno.EIO])
def test_a_file_system_that_refuses_is_named_and_changes_nothing(kind: str, tmp_path: Path, why: int) -> None:
    append(log_of(kind, tmp_path), 2)

    def before(operation: str, _about: object) -> None:
        if operation in ("create", "write"):
            raise OSError(why, os.strerror(why))

    refused = log_of(kind, tmp_path, disk=WatchedDisk(before))
    for change in (lambda: append(refused, 1), lambda: remove(refused, range(1))):
        with raises("StorageRefused", match=os.strerror(why)):
            change()
    assert offsets(log_of(kind, tmp_path)) == [0, 1]


@pytest.mark.parametrize("fails", ["create", "write", "sync", "replace"])
def test_a_batch_over_several_files_is_there_whole_or_not_at_all_where_the_disk_is_full(tmp_path: Path, fails: str) -> None:
    append(log_of("rotating_file", tmp_path), 1)
    done: list[str] = []

    def before(operation: str, about: object) -> None:
        if operation == fails and (fails == "replace" or f"create {NEW_MANIFEST}" in done or about == NEW_MANIFEST):
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(f"{operation} {about}")

    with raises("StorageFull"):
        append(log_of("rotating_file", tmp_path, disk=WatchedDisk(before)), 6)
    log = log_of("rotating_file", tmp_path)
    assert offsets(log) == [0]
    append(log, 6)
    assert offsets(log) == list(range(7))


@on_both
def test_what_others_wrote_is_read_on_as_it_is(kind: str, tmp_path: Path) -> None:
    """One process keeps what it has read; whatever another does, it comes to the same as one that reads all."""
    kept, other = log_of(kind, tmp_path), log_of(kind, tmp_path)

    def same() -> Head:
        assert kept.head() == log_of(kind, tmp_path).head()
        assert kept.head().quarantined == log_of(kind, tmp_path).head().quarantined
        return kept.head()

    append(kept, 3)
    append(other, 5)
    assert same().end_offsets == {0: 8}
    remove(other, range(3))
    assert same().generation == 2
    append(kept, 1)
    remove(kept, range(4, 5), plan_id="p2")
    assert offsets(other) == [3, 5, 6, 7, 8]
    file, lines = first_file(kind, tmp_path)
    spoil(file, lines, b"a hand has put something much longer than it was into the place of a message, and nobody was told of it")
    assert same().quarantined == 1
    append(kept, 1)
    assert offsets(other) == [5, 6, 7, 8, same().end_offsets[0] - 1]


@on_both
def test_damage_is_kept_with_its_place_and_reason(kind: str, tmp_path: Path) -> None:
    log = log_of(kind, tmp_path)
    append(log, 3)
    file, lines = first_file(kind, tmp_path)
    spoil(file, lines + 1, b"\xff\x00 torn")
    remove(log, range(1))
    (quarantine,) = (path for path in tmp_path.rglob("*quarantine*"))
    (entry,) = (orjson.loads(line) for line in quarantine.read_bytes().splitlines())
    assert entry["line"] == {"base64": "/wAgdG9ybg=="}
    assert entry["position"] > 0 and entry["reason"]
    assert b"torn" not in first_file(kind, tmp_path)[0].read_bytes()
    assert quarantine.stat().st_mode & 0o777 == 0o600


@on_both
def test_a_last_line_without_its_end_is_a_message_if_it_is_whole(kind: str, tmp_path: Path) -> None:
    append(log_of(kind, tmp_path), 2)
    file, _ = first_file(kind, tmp_path)
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    log = log_of(kind, tmp_path)
    assert offsets(log) == [0, 1]
    append(log, 1)
    assert offsets(log) == [0, 1, 2]
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    remove(log, range(1))
    append(log, 1)
    assert offsets(log) == [1, 2, 3]
    assert log.head().quarantined == 0


@on_both
def test_a_log_in_another_topics_place_is_not_its_log(kind: str, tmp_path: Path) -> None:
    append(log_of(kind, tmp_path), 2)
    other = TopicName(stream=NAME.stream, topic="other")
    logs = logs_of(kind, tmp_path)
    logs.create(other, HEAD)
    mine, its = ((logs.file(n) if isinstance(logs, JsonFiles) else logs.folder(n)) for n in (NAME, other))
    if its.is_dir():
        shutil.rmtree(its)
        shutil.copytree(mine, its)
    else:
        shutil.copy(mine, its)
    with raises("DamagedLog", match=rf"{re.escape(str(its))}.*the log of topic {NAME}"):
        logs_of(kind, tmp_path).open(other).head()
    with raises("DamagedLog", match=rf"{re.escape(str(its))}: found the log of topic {NAME}.*that of {NAME} is {re.escape(str(mine))}"):
        logs_of(kind, tmp_path).names()


@on_both
def test_links_are_refused(kind: str, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    log = log_of(kind, root)
    append(log, 1)
    file, _ = first_file(kind, root)
    elsewhere.mkdir()
    file.rename(elsewhere / "real")
    file.symlink_to(elsewhere / "real")
    with pytest.raises(UnsafePath):
        list(log.scan()[1])
    with pytest.raises(UnsafePath):
        append(log_of(kind, root), 1)
    assert (elsewhere / "real").read_bytes().count(b"v0") == 1
    (root / "linked").symlink_to(elsewhere)
    with pytest.raises(UnsafePath):
        logs_of(kind, root).create(TopicName(stream="linked", topic="t"), HEAD)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["real"]


@on_both
def test_names_stay_below_the_root(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    logs = logs_of(kind, root)
    names = [TopicName(stream="a..b", topic="x.y"), TopicName(stream="a_", topic="éa"), TopicName(stream="s", topic="t" * 255)]
    for name in names:
        logs.create(name, HEAD)
    assert set(logs.names()) == set(names)
    assert {path.name for path in tmp_path.iterdir()} == {"root"}


@on_both
def test_files_are_their_owners_and_keep_a_mode_that_was_given(kind: str, tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        log = log_of(kind, tmp_path / "root")
        append(log, 8)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "root").rglob("*") if path.is_file()}
        assert modes == {0o600}
        file, _ = first_file(kind, tmp_path / "root")
        file.chmod(0o640)
        remove(log, range(1))
    finally:
        os.umask(previous)
    assert 0o640 in {path.stat().st_mode & 0o777 for path in (tmp_path / "root").rglob("*.jsonl")}


@on_both
def test_a_topic_is_made_once_and_not_found_before(kind: str, tmp_path: Path) -> None:
    logs = logs_of(kind, tmp_path)
    with pytest.raises(UnknownTopic):
        logs.open(NAME)
    logs.create(NAME, HEAD)
    with raises("TopicExists"):
        logs_of(kind, tmp_path).create(NAME, HEAD)


@on_both
@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"lifecycle":{}}\n', b"\xff\n", b'{"lifecycle":{"format":2}}\n'])
def test_a_damaged_head_stops_everything(kind: str, tmp_path: Path, content: bytes) -> None:
    log = log_of(kind, tmp_path)
    append(log, 1)
    file = first_file(kind, tmp_path)[0] if kind == "json_file" else tmp_path / "test" / "messages" / "manifest.json"
    file.write_bytes(content)
    before = files(tmp_path)
    for deed in (log.head, log.scan, lambda: append(log, 1), lambda: remove(log, range(1))):
        with raises("DamagedLog"):
            deed()
    assert files(tmp_path) == before


def test_a_manifest_that_names_a_file_that_is_not_there_is_damage(tmp_path: Path) -> None:
    log = log_of("rotating_file", tmp_path)
    append(log, 12)
    first_file("rotating_file", tmp_path)[0].unlink()
    for deed in (lambda: list(log.scan()[1]), log.head):
        with raises("DamagedLog", match="no file"):
            deed()


def test_only_files_that_lose_something_are_written_anew(tmp_path: Path) -> None:
    log = log_of("rotating_file", tmp_path)
    append(log, 12)

    def inodes() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in (tmp_path / "test" / "messages").glob("0*.jsonl")}

    before = inodes()
    assert len(before) > 3
    sizes = [path.stat().st_size for path in (tmp_path / "test" / "messages").glob("0*.jsonl")]
    assert max(sizes) <= MAX_BYTES
    remove(log, range(4))
    kept = before.items() & inodes().items()
    assert len(kept) == len(before) - 2, "one was dropped whole, one lost a message"
    assert offsets(log) == list(range(4, 12))


@pytest.mark.parametrize("refused", ["unlink", "sync_folder"])
def test_old_files_that_cannot_be_dropped_after_the_swap_are_no_failure_but_unknown(refused: str, tmp_path: Path) -> None:  # DEL-4
    """A later change, which looks first, drops what is left of them."""
    append(log_of("rotating_file", tmp_path), 4)
    done: list[str] = []

    def before(operation: str, _about: object) -> None:
        swapped = "replace" in done and "sync_folder" in done[done.index("replace") :]
        if swapped and operation == refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done.append(operation)

    with pytest.raises(CommitUnknown, match="the disk did not confirm"):
        remove(log_of("rotating_file", tmp_path, disk=WatchedDisk(before)), range(2))
    log = log_of("rotating_file", tmp_path)
    assert offsets(log) == [2, 3]
    assert log.head().commit_of("p1") is not None, "whoever looks again finds it done"
