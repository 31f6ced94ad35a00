"""An erasure from files that dies between any two file operations: whoever carries it out again ends with no byte of the key (DEL-4, DEL-5)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from message_lifecycle.app import receipts
from message_lifecycle.app.backends import record_log
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.operations.registry import operations_on_records
from message_lifecycle.app.parts import with_parts
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import record_log_world
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.stores.record_log.disk import Disk
from message_lifecycle.stores.record_log.eraser import RecordLogEraser
from message_lifecycle.stores.record_log.store import RecordLogStore
from tests.record_files import KINDS, NAME, Crash, CrashingDisk, WatchedDisk, files, first_file, logs_of, spoil

pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.usefixtures("no_loss_of_power")]
AS_OF = Instant(1_000_000_000)
KEY = b"customer 17 of the north"
LATER = b"customer 18 of the north"
YES = (True, "ada", "a letter of 3 May")
MOST_OPERATIONS = 200


def filled(kind: str, root: Path, *, damaged: bool) -> World:
    """Messages of the key in several files; `damaged`: and a line that is none and tells it."""
    world = record_log_world(logs_of(kind, root), {}, close=lambda: None)
    world.set_now(AS_OF)
    create_topic(world.services, NAME, partitions=1, settings={})
    for keys in ((b"a", b"x", KEY), (b"b", KEY, KEY), (b"c", b"d")):
        append(world, *keys)
    file, lines = first_file(kind, root)
    if damaged:
        spoil(file, lines + 1, b'{"partition":0,"offset":1,"key":"' + KEY + b'","val')
    return world


def append(world: World, *keys: bytes) -> None:
    new = [NewMessage(append_time=AS_OF, key=key, value=b"v") for key in keys]
    world.writer.append(NAME, new, policy_of(world.services, NAME))


def over(world: World, kind: str, root: Path, disk: Disk) -> Services:
    """The same ledger, over another disk: as of a process that is to die."""
    logs, s = logs_of(kind, root, disk=disk), world.services
    eraser = RecordLogEraser(logs, server={})
    made = record_log(
        RecordLogStore(logs, server={}, operations=operations_on_records),
        logs,
        {},
        ledger=s.ledger,
        gate=s.gate,
        eraser=eraser,
        groups=None,
    )
    return with_parts(made, key_secret=s.key_secret)


def asked(world: World, key: bytes = KEY) -> str:
    return ask(world.services, [key], topics=[NAME], forbid=False, by="ada", why="a letter of 3 May").request_id


def erase(s: Services, request_id: str) -> None:
    (found,) = carry_out(s, request_id, approver=lambda _plan, _report: YES)
    assert found.is_done, found.why_not_done()


def keys(world: World) -> list[bytes | None]:
    return [message.key for message in world.services.reader.messages(NAME)]


def telling(root: Path, key: bytes = KEY) -> list[str]:
    return [name for name, content in files(root).items() if key in content]


def deaths(kind: str, root: Path, *, damaged: bool = False) -> Iterator[tuple[World, CrashingDisk, Path]]:
    """A filled log for each place at which what is done with it may die."""
    for at in range(MOST_OPERATIONS):
        for torn in (False, True) if damaged else (False,):
            folder, disk = root / f"{at}-{torn}", CrashingDisk(at, torn=torn)
            yield filled(kind, folder, damaged=damaged), disk, folder
            if disk.stopped_in != "write":
                break
    raise AssertionError("it never ends")


def test_an_erasure_that_dies_anywhere_is_brought_to_its_end(kind: str, tmp_path: Path) -> None:
    for world, disk, folder in deaths(kind, tmp_path, damaged=True):
        request_id, died = asked(world), True
        with suppress(Crash):
            erase(over(world, kind, folder, disk), request_id)
            died = False
        if died:
            assert [key for key in keys(world) if key != KEY] == [b"a", b"b", b"c", b"d"]
            erase(world.services, request_id)
        assert keys(world) == [b"a", b"b", b"c", b"d"]
        assert telling(folder) == []
        assert receipts.verify(world.services, request_id) == []
        if not died:
            assert disk.done > 10, "it was cut everywhere"
            return


def test_what_a_removal_that_died_has_left_is_found_though_the_log_has_lost_it(kind: str, tmp_path: Path) -> None:
    for world, disk, folder in deaths(kind, tmp_path):
        died = True
        with suppress(Crash):
            RecordLogStore(logs_of(kind, folder, disk=disk), server={}, operations=operations_on_records).foreign_delete(
                NAME, [(0, at) for at in (2, 4, 5)]
            )
            died = False
        erase(world.services, asked(world))
        assert keys(world) == [b"a", b"x", b"b", b"c", b"d"]
        assert telling(folder) == []
        if not died:
            return


def test_what_an_append_that_died_has_left_is_found_though_the_log_never_had_it(kind: str, tmp_path: Path) -> None:
    for world, disk, folder in deaths(kind, tmp_path):
        store, died = RecordLogStore(logs_of(kind, folder, disk=disk), server={}, operations=operations_on_records), True
        new = [NewMessage(append_time=AS_OF, key=LATER, value=b"v")] * 8
        with suppress(Crash):
            store.append(NAME, new, policy_of(world.services, NAME))
            died = False
        erase(world.services, asked(world, LATER))
        assert telling(folder, LATER) == []
        if not died:
            return


def test_a_disk_that_refuses_anywhere_leaves_the_request_open_and_is_named(kind: str, tmp_path: Path) -> None:
    for at in range(MOST_OPERATIONS):
        operations = count()

        def refuse(_operation: str, _about: object, at: int = at, operations: Iterator[int] = operations) -> None:
            if next(operations) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        folder = tmp_path / str(at)
        world = filled(kind, folder, damaged=True)
        request_id = asked(world)
        (found,) = carry_out(over(world, kind, folder, WatchedDisk(refuse)), request_id, approver=lambda _plan, _report: YES)
        if found.is_done:
            assert next(operations) <= at
            return
        assert code_of(found.error) in ("StorageFull", "CommitUnknown")
        assert world.services.ledger.erasure(request_id).state == "requested"
        erase(world.services, request_id)
        assert keys(world) == [b"a", b"b", b"c", b"d"]
        assert telling(folder) == []
    raise AssertionError("it never ends")


def test_files_that_went_do_not_come_back_with_the_machine(kind: str, tmp_path: Path) -> None:
    """Their names are off the disk before anything says that they are gone."""
    world, done = filled(kind, tmp_path, damaged=False), list[str]()
    request_id = asked(world)
    erase(over(world, kind, tmp_path, WatchedDisk(lambda operation, _about: done.append(operation))), request_id)
    assert done[-1] == "sync_folder"
