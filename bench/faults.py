"""Faults of our own at every boundary of every operation: what the next run makes of them, compared with a run that nothing disturbed.

`python -m bench faults [--operation X ...] [--points N] [--seconds S] [--seed S]`. A *point* is an operation, a boundary and a fault. An undisturbed
run of the operation tells its boundaries (`bench.fault_watch`): each call by which Python, Java or a library is about to write a file, the
catalog, the ledger's database, or to ask something of Java. The same run over the same lake then meets the fault at one of them; a fresh process
goes on as a user does, by the same command; and rows, refs, ledger, files and `status` are compared. Points that were run before, and are in
`bench/faults.tsv` with the commit that they ran at, are not run again (`--again`: those of the named operations are). Exit status 1 where there is
a difference, each told with the command that shows it again.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from bench.fault_watch import Boundary, Kind, Tree
from bench.fault_world import OPERATIONS, World, differences
from message_lifecycle.app import embedded
from message_lifecycle.local import postgres, stack
from message_lifecycle.local.layout import Layout, find_layout, project_root
from message_lifecycle.local.processes import only_one
from message_lifecycle.model.errors import LifecycleError

PAGE, RESULTS = Path("docs/faults.md"), Path("bench/faults.tsv")
FAULTS: Mapping[str, str] = {
    "kill": "SIGKILL of the whole process tree, Java included, before the call is made",
    "torn": "the same, and of each file that was not brought to disk half is lost, as by a loss of power",
    "missing": "the same, and each new file whose folder was not brought to disk is gone",
    "lost": "the call is made, and its answer never arrives: the connection breaks",
    "full": "from this call on the disk is full, to the end of the run",
    "second": "a second runner carries out the same command, to its end, while the first is held there",
}
_SAME, _MISSED = "same", "not reached"
_DISK_FULL = ("open", "write", "mkdir", "sync")
_ENDS_WITHIN_SECONDS = 300
HEAD = """# Faults at every boundary

A *point* is an operation, a boundary at which its run writes a file, the catalog or the ledger, or asks something of Java, and a fault there.
`python -m bench faults` runs them: over the same small lake the run meets the fault, a fresh process goes on by the same command, and rows, refs,
ledger, leftover files and what `status` says are compared with an undisturbed run. Each point is in `bench/faults.tsv`, with its commit;
`--write` makes this page from it. A cell has points and differences; empty: that fault has no such boundary, or none was run. Not among them:
ingest, copies, a writer beside the run, and logs of single records.

What no difference is worth is shown by breakages that are made on purpose. One was noticed so far: Java's files not brought to disk. Two of
`tests/breakages` were not, by the one or two points each that met them: a commit of unknown result that is not looked up, and one that drops
its stage. Until such breakages are noticed, the table says little.
"""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Point:
    """`boundary`: as the undisturbed run tells it, with its number among those that look alike."""

    operation: str
    boundary: str
    fault: str

    @property
    def command(self) -> str:
        return f'python -m bench faults --operation {self.operation} --fault {self.fault} --at "{self.boundary}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """`found`: `same`, `not reached`, or the differences. `commit`: of the project, short; with `+` where files were changed since."""

    point: Point
    commit: str
    seed: int
    seconds: float
    found: str


class Boundaries:
    """Tells those of a run apart that look alike."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def name(self, boundary: Boundary) -> str:
        told = f"{boundary.kind}: {boundary.what}"
        self._seen[told] += 1
        return f"{told} #{self._seen[told]}"


def points_of(operation: str, run: Sequence[tuple[str, Boundary]]) -> Iterator[Point]:
    """Which faults a boundary can have. Killed before a question is as killed after what was before it; what is asked of Java is more than a
    question where Java then does something by which it can be seen."""
    for (name, boundary), following in zip(run, [*(boundary for _, boundary in run[1:]), None], strict=True):
        does = boundary.kind != "java" or (following is not None and following.process != boundary.process)
        faults = ["kill", "second", "torn", "missing"] if boundary.writes and does else []
        if boundary.kind != "file":
            faults.append("lost")
        elif boundary.what.split()[0] in _DISK_FULL:
            faults.append("full")
        yield from (Point(operation=operation, boundary=name, fault=fault) for fault in faults)


def mixed(points: Sequence[Point], seed: int) -> list[Point]:
    """In an order of chance, but one of each fault at each kind of boundary in turn: the few calls that last are not lost among the many that
    ask Java for something."""
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
    """What a loss of power would take: content that was not brought to disk, and names that were not."""

    def __init__(self) -> None:
        self._contents: set[Path] = set()
        self._names: set[Path] = set()

    def see(self, boundary: Boundary) -> None:
        path = boundary.path
        if path is None:
            return
        if boundary.syncs:
            self._contents.discard(path)
            self._names = {name for name in self._names if name.parent != path}
        else:
            self._contents.add(path)
            if not path.exists():
                self._names.add(path)

    def tear(self) -> None:
        for path in self._contents:
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)

    def lose(self) -> None:
        for path in self._names:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    world: World

    @property
    def log(self) -> Path:
        return self.world.folder / "run.log"

    def undisturbed(self, operation: str) -> tuple[list[tuple[str, Boundary]], dict[str, Any]]:
        """The boundaries of the operation's run, and what there is to see after it. The template is made first."""
        self.world.make(operation, in_process)
        self.world.restore(operation)
        names = Boundaries()
        tree = self._started(operation)
        run = [(names.name(boundary), boundary) for boundary in tree.boundaries()]
        if status := tree.close():
            raise SystemExit(f"undisturbed, {operation} ended with {status}:\n{self.log.read_text(encoding='utf-8')}")
        found = self._afterwards(operation)
        import_noted(self.world)
        return run, found

    def meets(self, point: Point, undisturbed: Mapping[str, Any]) -> str:
        """What comes of the fault: `same`, `not reached`, or the differences."""
        self.world.restore(point.operation)
        tree = self._started(point.operation)
        names, unsynced, met, full = Boundaries(), Unsynced(), False, False
        for boundary in tree.boundaries():
            if full and boundary.kind == "file" and boundary.what.split()[0] in _DISK_FULL:
                tree.fail(errno.ENOSPC)
                continue
            if met or names.name(boundary) != point.boundary:
                unsynced.see(boundary)
                continue
            met = True
            match point.fault:
                case "kill" | "torn" | "missing":
                    tree.kill()
                    break
                case "lost":
                    tree.lose_answer()
                case "full":
                    full = True
                    tree.fail(errno.ENOSPC)
                case "second":
                    in_process(lambda: told(self.world, point.operation), log=self.world.folder / "second.log")
        status = tree.close()
        if not met:
            return _MISSED
        if point.fault == "torn":
            unsynced.tear()
        elif point.fault == "missing":
            unsynced.lose()
        found = differences(self._afterwards(point.operation), undisturbed)
        if status == _UNNAMED:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            found.append(f"the run ended in an error that has no name: {said[-1] if said else ''}")
        return "; ".join(found).replace(str(self.world.folder), "") or _SAME

    def _started(self, operation: str) -> Tree:
        self.log.unlink(missing_ok=True)
        tree = Tree(folder=self.world.warehouse, database=self.world.address.port, log=self.log)
        tree.start(lambda: told(self.world, operation))
        return tree

    def _afterwards(self, operation: str) -> dict[str, Any]:
        """By a fresh process, as a user goes on."""
        seen = self.world.folder / "seen.json"
        seen.unlink(missing_ok=True)

        def look() -> None:
            ended = self.world.finish(operation)
            found = {"ended": ended[-1], **self.world.look(operation)}
            note_modules(self.world)
            seen.write_text(json.dumps(found, default=str), encoding="utf-8")

        try:
            in_process(look, log=self.world.folder / "next.log")
        except RuntimeError as error:  # what the next run has left cannot be looked at: a difference, and no end of the campaign
            return {"ended": str(error).strip().splitlines()[-1]}
        found: dict[str, Any] = json.loads(seen.read_text(encoding="utf-8"))
        return found


_UNNAMED = 70


def told(world: World, operation: str) -> int:
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
    """What this process has imported, for `import_noted`."""
    with (world.folder / "modules").open("a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in list(sys.modules))


def import_noted(world: World) -> None:
    """What runs have imported is imported once, here, before the next ones are forked: half of their time, else."""
    file = world.folder / "modules"
    for name in dict.fromkeys(file.read_text(encoding="utf-8").splitlines()):
        if name.partition(".")[0] not in ("__main__", "__mp_main__", "bench"):
            with suppress(Exception):  # a name that another module has put there, and no file has
                import_module(name)
    file.unlink()


def in_process(work: Callable[[], object], *, log: Path | None = None) -> None:
    """Do it in a process of its own, forked from this one, which has imported all and opened nothing; and wait."""
    pid = os.fork()
    if pid == 0:
        status = _UNNAMED
        try:
            if log is not None:
                out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                for number in (1, 2):
                    os.dup2(out, number)
            work()
            status = 0
        except BaseException:  # noqa: BLE001  # a fork must never return into its parent's code: it is told, and the process ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if status:
        said = "" if log is None else log.read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"a process of the campaign ended with {os.waitstatus_to_exitcode(status)}\n{said}")


# The campaign.


def results(file: Path) -> dict[Point, Ran]:
    """What was run so far."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
    found = {}
    for line in lines:
        operation, fault, boundary, commit, seed, seconds, said = line.split("\t")
        point = Point(operation=operation, boundary=boundary, fault=fault)
        found[point] = Ran(point=point, commit=commit, seed=int(seed), seconds=float(seconds), found=said)
    return found


def keep(file: Path, ran: Iterable[Ran]) -> None:
    """All of it, in order, so that two files can be compared."""
    lines = ["operation\tfault\tboundary\tcommit\tseed\tseconds\tfound"]
    for one in sorted(ran, key=lambda one: one.point):
        point, said = one.point, " ".join(one.found.split())
        lines.append(f"{point.operation}\t{point.fault}\t{point.boundary}\t{one.commit}\t{one.seed}\t{one.seconds:.1f}\t{said}")
    part = file.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(file)


def commit_of(root: Path) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "--", "include") else "")


def page(ran: Iterable[Ran]) -> str:
    """Points and differences of each operation by fault."""
    rows: dict[str, list[Ran]] = {}
    for one in ran:
        if one.found != _MISSED:
            rows.setdefault(one.point.operation, []).append(one)
    lines = [HEAD, "## The faults\n", *(f"- **{fault}**: {says}." for fault, says in FAULTS.items()), "", "## What was run\n"]
    lines += [f"| operation | {' | '.join(FAULTS)} | all | seconds a point | commits |", f"|---|{'---|' * (len(FAULTS) + 3)}"]
    for operation in (name for name in OPERATIONS if name in rows):
        lines.append(_row(operation, rows[operation]))
    every = [one for found in rows.values() for one in found]
    lines.append(_row("all", every))
    different = sorted((one for one in every if one.found != _SAME), key=lambda one: one.point)
    if different:
        lines += ["", "## Differences\n", *(f"- `{one.point.command}` at {one.commit}: {one.found}" for one in different)]
    return "\n".join(lines) + "\n"


def _row(operation: str, ran: Sequence[Ran]) -> str:
    def cell(found: Sequence[Ran]) -> str:
        return f"{len(found):,} / {sum(one.found != _SAME for one in found)}" if found else ""

    cells = [cell([one for one in ran if one.point.fault == fault]) for fault in FAULTS]
    seconds = sum(one.seconds for one in ran) / len(ran) if ran else 0.0
    commits = ", ".join(sorted({one.commit for one in ran}))
    return f"| {operation} | {' | '.join(cells)} | {cell(ran)} | {seconds:.1f} | {commits} |"


def campaign(root: Path, given: argparse.Namespace, world: World) -> int:
    """Run points until those asked for are done; how many differ."""
    run = Campaign(world=world)
    done, wrong, commit = results(given.results), 0, commit_of(root)
    if given.again:
        done = {point: ran for point, ran in done.items() if point.operation not in given.operation}
    ends, left = time.monotonic() + given.seconds, given.points
    for operation in given.operation:
        if time.monotonic() > ends or not left:
            break
        began = time.monotonic()
        boundaries, undisturbed = run.undisturbed(operation)
        kinds = Counter(boundary.kind for _, boundary in boundaries)
        every = list(points_of(operation, boundaries))
        chosen = [point for point in every if point.fault in given.fault and (point not in done or given.at)]
        if given.at:
            chosen = [point for point in chosen if point.boundary in given.at]
        if given.tell:
            told_points = Counter(point.boundary for point in every)
            print("\n".join(f"{told_points[name]} {name}" for name, _ in boundaries))
            continue
        chosen = mixed(chosen, given.seed)
        told_of = ", ".join(f"{kinds[kind]} {kind}" for kind in get_args(Kind))
        print(
            f"{operation}: {len(boundaries)} boundaries ({told_of}), {len(every)} points, {len(chosen)} to run; {time.monotonic() - began:.0f} s",
            flush=True,
        )
        share = min(len(chosen), left if given.each is None else given.each)
        for point in chosen[:share]:
            began = time.monotonic()
            if began > ends or not left:
                break
            found = run.meets(point, undisturbed)
            left -= 1
            done[point] = Ran(point=point, commit=commit, seed=given.seed, seconds=time.monotonic() - began, found=found)
            keep(given.results, done.values())
            if found != _SAME:
                wrong += found != _MISSED
                print(f"{found}\n    {point.command}", flush=True)
    print(f"{len(done)} points are on file, {sum(one.found not in (_SAME, _MISSED) for one in done.values())} of them differ")
    return wrong


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m bench faults", description="Faults at every boundary of every operation.")
    asked.add_argument("--operation", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), help="those alone")
    asked.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), help="those alone")
    asked.add_argument("--tell", action="store_true", help="tell the boundaries of the operations, and run no point")
    asked.add_argument("--at", nargs="+", metavar="BOUNDARY", help="those alone, as a difference names them; they are run again")
    asked.add_argument("--points", type=int, default=1_000_000, help="no more than so many")
    asked.add_argument("--each", type=int, help="no more than so many of one operation")
    asked.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    asked.add_argument("--seed", type=int, default=1, help="in which order")
    asked.add_argument("--again", action="store_true", help="also what was run before, of the operations named")
    asked.add_argument("--results", type=Path, default=project_root() / RESULTS, help="where it is kept what was run")
    asked.add_argument("--write", action="store_true", help=f"write {PAGE} from all that was run, and run nothing")
    given, root = asked.parse_args(), project_root()
    if given.write:
        (root / PAGE).write_text(page(results(given.results).values()), encoding="utf-8")
        return 0
    layout = find_layout()
    ran = stack.status(layout).postgres
    embedded.up(layout, with_airflow=False)
    try:
        with only_one(layout.state / "faults.lock", wait_seconds=0):
            world = world_of(layout)
            try:
                return 1 if campaign(root, given, world) else 0
            finally:
                world.forget()
    finally:
        if not ran:
            stack.down(layout)


def world_of(layout: Layout) -> World:
    """A lake below the state folder, over the embedded default's server, which runs."""
    address = postgres.running(layout)
    assert address is not None
    world = World(layout=layout, folder=layout.state / "faults", address=address)
    world.folder.mkdir(exist_ok=True)
    world.configure()
    return world


if __name__ == "__main__":
    sys.exit(main())
