"""One point of `bench faults`: an operation, a boundary, and a fault there. The point shows what the next run makes of the fault.

An undisturbed run of the operation gives the list of its boundaries (`bench.fault_watch`). The same run over the same lake then meets the
fault at one of them. A fresh process continues as a user does, with the same command. The results of both are compared.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import select
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway

from bench.fault_operations import FILES_GO, OPERATIONS, TOPIC_GOES
from bench.fault_watch import GIVES_WAY, Boundary, Tree
from bench.fault_world import World, differences
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.stores.iceberg import java

FAULTS: Mapping[str, str] = {
    "kill": "SIGKILL ends the whole process tree, Java included, before the call is made",
    "torn": "as `kill`, and each file that was not synced to disk loses half, as in a power loss",
    "missing": "as `kill`, and each new file whose folder was not synced to disk is gone",
    "clock": "as `kill`, and the next run's clock and as-of are half a minute behind; later runs have the right time",
    "older": "as `kill`, and the catalog is put back to its state before the run; ledger and files stay",
    "refused": "the connection breaks before the call is made",
    "lost": "the call is made, but the connection breaks before the answer arrives",
    "full": "the disk is full from this call to the end of the run",
    "readonly": "the lake is read-only from this call to the end of the run",
    "second": "the run waits at the call for at most three seconds while a second runner executes the same command; then both continue",
    "writer": "the run waits at the call for at most three seconds while a writer appends to the topic; then both continue",
    "away": "a file that the lake had before the run is missing while the command and `status` run; then it is back",
    "half": "a file that the lake had before the run has lost half while the command and `status` run; then it is whole again",
}
_KILLS = ("kill", "torn", "missing", "clock", "older")
_DISK_CALLS = ("open", "write", "mkdir", "sync")
_DISK = {"full": errno.ENOSPC, "readonly": errno.EROFS}
_WRITING_CALLS = {"full": _DISK_CALLS, "readonly": (*_DISK_CALLS, "rename", "unlink", "rmdir", "link", "truncate")}
_DAMAGES = ("away", "half")
_CLOCK_STEP_SECONDS = 30
_HELD_SECONDS = 3.0
SAME, MISSED = "same", "not reached"
_UNNAMED = 70


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Point:
    """`boundary`: its name in the undisturbed run, with a number if several boundaries look alike."""

    operation: str
    boundary: str
    fault: str

    @property
    def command(self) -> str:
        return f'python -m bench faults --operation {self.operation} --fault {self.fault} --at "{self.boundary}"'


class Boundaries:
    """Number the boundaries of a run that look alike."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def name(self, boundary: Boundary) -> str:
        boundary_text = f"{boundary.kind}: {boundary.what}"
        self._seen[boundary_text] += 1
        return f"{boundary_text} #{self._seen[boundary_text]}"


def points_of(operation: str, run: Sequence[tuple[str, Boundary]]) -> Iterator[Point]:
    """Yield the points of a run: each boundary with each fault that it can have.

    A kill before a call that only reads is the same as a kill after the call before it, so such a call gets no kill. A call of Java counts
    as a change only if Java then does something visible. The fault `older` restores an earlier catalog. An operation that deletes files
    that the earlier catalog names has no such fault, and neither has a log of single records, which has no catalog. A topic that appears or
    disappears has no writer."""
    no_older = operation in FILES_GO or OPERATIONS[operation].on_records
    kills = ("kill", "second", "torn", "missing", "clock", *(() if no_older else ("older",)))
    beside = () if operation in TOPIC_GOES else ("writer",)
    for (name, boundary), following in zip(run, [*(boundary for _, boundary in run[1:]), None], strict=True):
        does = boundary.kind != "java" or (following is not None and following.process != boundary.process)
        faults = [*kills, *beside] if boundary.writes and does else []
        if boundary.kind != "file":
            faults += ["refused", "lost"]
        else:
            faults += [fault for fault, calls in _WRITING_CALLS.items() if boundary.what.split()[0] in calls]
        yield from (Point(operation=operation, boundary=name, fault=fault) for fault in faults)


def mixed(points: Sequence[Point], seed: int) -> list[Point]:
    """Shuffle the points, with one point of each fault at each kind of boundary in turn.

    Otherwise the few lasting calls would be lost among the many calls of Java."""
    shuffled = sorted(points)
    random.Random(seed).shuffle(shuffled)
    turns: Counter[tuple[str, str]] = Counter()
    order: list[tuple[int, int, Point]] = []
    for point in shuffled:
        sort = point.fault, point.boundary.partition(":")[0]
        turns[sort] += 1
        order.append((turns[sort], len(order), point))
    return [point for *_, point in sorted(order)]


# One point.


class Unsynced:
    """Play a loss of power: unsynced content and unsynced names are lost. A renamed file has its old name again, and the file that the
    rename replaced is back."""

    def __init__(self) -> None:
        self._contents: set[Path] = set()
        self._names: dict[Path, Path | None] = {}
        self._replaced: dict[Path, bytes] = {}

    def see(self, boundary: Boundary) -> None:
        path, what = boundary.path, boundary.what.split()[0]
        if path is None:
            return
        if boundary.syncs:
            self._contents.discard(path)
            self._names = {name: source for name, source in self._names.items() if name.parent != path}
        elif boundary.source is not None:
            if boundary.source in self._contents:
                self._contents.add(path)
            self._names[path] = self._names.pop(boundary.source, boundary.source)
            if path.is_file():
                self._replaced[path] = path.read_bytes()
        elif what in ("write", "truncate") or not path.exists():
            self._contents.add(path)
            if not path.exists():
                self._names[path] = None

    def tear(self) -> None:
        for path in self._contents:
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)

    def lose(self) -> None:
        for path, source in self._names.items():
            if source is not None and path.exists() and not source.exists():
                path.rename(source)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            if path in self._replaced:
                path.write_bytes(self._replaced[path])


@dataclass(slots=True, kw_only=True)
class Trial:
    """An operation's runs over one lake. `run`: the boundaries of an undisturbed one."""

    world: World
    operation: str
    run: list[tuple[str, Boundary]] = field(default_factory=list)
    _undisturbed: dict[str, Any] = field(default_factory=dict)
    _appended: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.world.folder / "run.log"

    def prepare(self) -> None:
        """Make the lake, and see a run of it that nothing disturbs."""
        self.world.make(self.operation, lambda work: in_process(work, log=self.log))
        self.world.restore(self.operation)
        names, tree = Boundaries(), self._started()
        self.run = [(names.name(boundary), boundary) for boundary in tree.boundaries()]
        if status := tree.close():
            raise SystemExit(f"undisturbed, {self.operation} ended with {status}:\n{self.log.read_text(encoding='utf-8')}")
        self._undisturbed = self._afterwards()
        import_noted(self.world)

    def points(self) -> list[Point]:
        """Return all points of the operation."""
        damaged = [
            Point(operation=self.operation, boundary=name, fault=fault) for name in self.world.files(self.operation) for fault in _DAMAGES
        ]
        return [*points_of(self.operation, self.run), *damaged]

    def meets(self, point: Point) -> str:
        """Return the effect of the fault: `same`, `not reached`, or the differences."""
        self.world.restore(self.operation)
        with self.world.catalog_kept(point.fault == "older"):
            met, status = self._damaged(point) if point.fault in _DAMAGES else self._disturbed(point)
        if not met:
            return MISSED
        expected = self._undisturbed if point.fault != "writer" else self._undisturbed_and_appended()
        late = _CLOCK_STEP_SECONDS if point.fault == "clock" else 0
        found = differences(self._afterwards(seconds_late=late), expected, fault=point.fault)
        if status == _UNNAMED:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            found.append(f"the run ended in an error that has no name: {said[-1] if said else ''}")
        return "; ".join(found).replace(str(self.world.folder), "") or SAME

    def _disturbed(self, point: Point) -> tuple[bool, int]:
        """Return whether the run reached the boundary, and its exit status."""
        tree = self._started()
        names, unsynced, met, beside = Boundaries(), Unsynced(), False, None
        for boundary in tree.boundaries():
            if met and point.fault in _DISK and _is_written(boundary, point.fault):
                tree.fail(_DISK[point.fault])
                continue
            if met or names.name(boundary) != point.boundary:
                unsynced.see(boundary)
                continue
            met = True
            match point.fault:
                case fault if fault in _KILLS:
                    tree.kill()
                    break
                case "refused":
                    tree.break_line()
                case "lost":
                    tree.lose_answer()
                case fault if fault in _DISK:
                    tree.fail(_DISK[fault])
                case "second":
                    beside = Beside(lambda: exit_status(self.world, self.operation), self.world.folder / "second.log")
                    beside.wait(_HELD_SECONDS)
                case "writer":
                    beside = Beside(lambda: self.world.append(self.operation), self.world.folder / "second.log")
                    beside.wait(_HELD_SECONDS)
        status = tree.close()
        if beside is not None:
            beside.end()
        if point.fault == "torn":
            unsynced.tear()
        elif point.fault == "missing":
            unsynced.lose()
        return met, status

    def _damaged(self, point: Point) -> tuple[bool, int]:
        """The same where a file was away, or half of it lost, while it ran."""
        path = self.world.files(self.operation)[point.boundary]
        kept = path.read_bytes()
        if point.fault == "away":
            path.unlink()
        else:
            os.truncate(path, len(kept) // 2)
        self.log.unlink(missing_ok=True)

        def run_and_look() -> int:
            ended = exit_status(self.world, self.operation)
            self.world.status(self.operation)
            return ended

        status = Beside(run_and_look, self.log).end()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kept)
        return True, status

    def _started(self) -> Tree:
        self.log.unlink(missing_ok=True)
        tree = Tree(folder=self.world.warehouse, database=self.world.address.port, log=self.log)
        tree.start(lambda: exit_status(self.world, self.operation))
        return tree

    def _undisturbed_and_appended(self) -> dict[str, Any]:
        """Return the expected result if the writer appends after the run. The result is computed once."""
        if not self._appended:
            self.world.restore(self.operation)
            in_process(lambda: exit_status(self.world, self.operation), log=self.log)
            in_process(lambda: self.world.append(self.operation), log=self.log)
            self._appended = self._afterwards()
        return self._appended

    def _afterwards(self, *, seconds_late: int = 0) -> dict[str, Any]:
        """Continue in a fresh process, as a user does, and return the result."""
        seen = self.world.folder / "seen.json"
        seen.unlink(missing_ok=True)

        def look() -> None:
            ended = self.world.finish(self.operation, seconds_late=seconds_late)
            found = {"ended": ended[-1], **self.world.look(self.operation)}
            note_modules(self.world)
            seen.write_text(json.dumps(found, default=str), encoding="utf-8")

        try:
            in_process(look, log=self.world.folder / "next.log")
        except RuntimeError as error:  # the next run left an unreadable state: that is a difference, and no end of the campaign
            return {"ended": str(error).strip().splitlines()[-1]}
        found: dict[str, Any] = json.loads(seen.read_text(encoding="utf-8"))
        return found


def _is_written(boundary: Boundary, fault: str) -> bool:
    return boundary.kind == "file" and boundary.what.split()[0] in _WRITING_CALLS[fault]


def exit_status(world: World, operation: str) -> int:
    """The exit status of the operation's command."""
    try:
        print(world.run(operation))
    except LifecycleError as error:
        print(f"{error.code}: {error}")
        return error.exit_code
    finally:
        note_modules(world)
    return 0


def note_modules(world: World) -> None:
    """Note the modules that this process has imported, for `import_noted`."""
    with (world.folder / "modules").open("a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in list(sys.modules))


def import_noted(world: World) -> None:
    """Import the noted modules once, here, before the next runs are forked. Otherwise imports take half of a run's time."""
    file = world.folder / "modules"
    for name in dict.fromkeys(file.read_text(encoding="utf-8").splitlines()):
        if name.partition(".")[0] not in ("__main__", "__mp_main__", "bench"):
            with suppress(Exception):  # a name that another module has put there, and no file has
                import_module(name)
    file.unlink()
    gc.collect()
    gc.freeze()  # otherwise each forked process visits all of these objects again, and copies the pages


_java: java.Jvm | None = None


def start_java() -> None:
    """Start one Java process for all unwatched processes below this one, so that they need not start their own.

    That saves a third of a point's time. Java keeps no state from one process to the next, because each of them opens the catalog again."""
    global _java
    _java = java.Jvm(java.settings())
    _ = _java.gateway


def _ask_that_one() -> None:
    if _java is not None:
        parameters = _java.gateway.gateway_parameters
        given = GatewayParameters(
            port=parameters.port, auth_token=parameters.auth_token, auto_convert=True, read_timeout=java.DEADLINE_SECONDS
        )
        java.start = lambda _: (JavaGateway(gateway_parameters=given), None)


class Beside:
    """Work in a process of its own, forked from this one, which has imported all and opened nothing."""

    def __init__(self, work: Callable[[], object], log: Path | None) -> None:
        self._log, self._status = log, None
        self._pid = os.fork()
        if self._pid == 0:
            self._work(work)

    def _work(self, work: Callable[[], object]) -> None:
        status = _UNNAMED
        try:
            os.nice(GIVES_WAY)
            if self._log is not None:
                out = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                for number in (1, 2):
                    os.dup2(out, number)
            _ask_that_one()
            found = work()
            status = found if isinstance(found, int) else 0
        except BaseException:  # noqa: BLE001  # a fork must never return into its parent's code: it is told, and the process ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    def wait(self, seconds: float) -> None:
        """Until it has ended, and no longer than so long."""
        handle = os.pidfd_open(self._pid)
        select.select([handle], [], [], seconds)
        os.close(handle)

    def end(self) -> int:
        """Its exit status, once it has ended; negative: the signal's number."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def in_process(work: Callable[[], object], *, log: Path | None = None) -> None:
    """Do it in a process of its own, and wait."""
    if status := Beside(work, log).end():
        said = "" if log is None else log.read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"a process of the campaign ended with {status}\n{said}")
