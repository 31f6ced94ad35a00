"""Our own faults at every boundary of every operation: the result of the next run is compared with the result of an undisturbed run.

`python -m bench faults [--operation X ...] [--each N] [--seconds S] [--seed S] [--jobs N]`. A *point* is an operation, a boundary and a
fault (`bench.fault_point`). `bench/faults.tsv` lists the points of earlier runs with their commits. The command skips these points, except
with `--again`, which runs the points of the named operations again. Exit status 1 if there is a difference. The output gives the command
that reproduces it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import get_args

from bench.fault_operations import OPERATIONS
from bench.fault_point import FAULTS, MISSED, SAME, Point, Trial, mixed, start_java
from bench.fault_watch import GIVES_WAY, Kind, die_with_parent
from bench.fault_world import World
from lifecycle_local import embedded, postgres, stack
from lifecycle_local.layout import Layout, find_layout, project_root
from lifecycle_local.processes import hold_file_lock

_TITLES = "operation\tfault\tboundary\tcommit\tseed\tseconds\tfound\n"
PAGE, RESULTS = Path("docs/faults.md"), Path("bench/faults.tsv")
HEAD = """# Faults at every boundary

After reading this page you know at which boundaries runs were interrupted, and what these faults have found.

A *boundary* is a call that is about to write a file, the catalog or the ledger, or to ask Java. A *point* is one operation, one of its
boundaries, and a fault there. `.venv/bin/python -m bench faults` runs the points:

1. The run meets the fault. Every point begins with the same small lake.
2. A fresh process repeats the same command.
3. The program compares the result with an undisturbed run: rows, refs, ledger, leftover files, and the output of `status`.

`bench/faults.tsv` lists each point with its commit, and `--write` makes this page from it. The tests run a sample
(`tests/spark/test_faults.py`). `make hunt` runs a tenth of a whole campaign, with other points each time.

The disturbed run may fail, but its error must have a name. The next run finds a commit of unknown result.

These differences do not count:

| Fault or operation | Difference | Reason |
|---|---|---|
| any | the number of files that a reclaim in the far future would remove | it is only a figure |
| any | metadata files of the SQL view | each write of the view leaves one |
| any | metadata of a table without messages | the run died before the catalog had the table |
| documents | the number of commits on the table of snapshots | a plan that died between its two commits is planned again |
| **writer** | the number of plans that handle the new message, and whether the new message or a marker has the lower offset | both orders are correct |
| **older** | a removal that was published twice, and files of a table that the catalog has lost | the catalog forgot the first commit |
| **older**, **clock** | times that the run wrote | the run wrote them again, or with a clock that is behind |
| **away**, **half** | a plan that the gate blocked | the gate noticed the damaged file, and the next run plans again |

## Findings

Each of these faults of the program is fixed, and has a test of its own:

- **lost**: py4j repeated a call that had no answer, so a commit could happen twice. It also ended an iteration where the connection broke,
  so a list of files was too short.
- **full**, **readonly**, **refused**: the errors of four operations had no name: publishing a view, an erasure, a reclaim, and a deletion.
  The causes were a full disk, a read-only disk, and a Java process that had ended.
- **kill**, **torn**: an erasure took half a file of its own stage for the file of another writer. Nobody can search half a file, so the
  erasure waited three days.
- **half**: a search for keys without messages met a torn file, and ended with an internal error.
- **older**: a first compaction died, and the catalog lost the table of its view. Nobody could compact the topic any more.
- **older**: a run was repeated for the same time. It reported `published`, although all removed messages were back in the table.
- **older**: after a deletion, the catalog still had the views of the topic, but their files were gone. The next run stopped at these views.
- **older**: the catalog lost an undo, and the next run still reported the undo as done. For a deleted topic, it also reported a new deletion.
- **full**, **readonly**: a compaction writes the SQL view of its topic. A full disk at this point caused an internal error.
- **full**, **readonly**: Java could not create a folder for a view, or for a topic that came back. The error had no name.
- **second**: two runners had one plan. The ledger could keep the report of one runner with the stage of the other, and the plan ended as
  `blocked`.
- **second**: two undos of one plan could both be about to record it. One of them ended with an error of the database.
- **second**: one runner staged a change again, and the gate judged the change before it had its markers. For both runners the plan ended as
  `blocked`.
- **lost**: the catalog created the branch of a stage, and refused the repeated request. The run ended with Iceberg's own message.
- **missing**: the name of an archive's folder was not synced to disk. A power loss could remove the archive after the removal was published.
- **readonly**: the lock of a log in files caused an internal error on a read-only disk.
- **half**: Spark met a torn list of manifests during an ingest, which caused an internal error.
- **refused**: the connection to Java broke while the Spark session started. The session had no catalogs, and an ingest ended with Spark's
  own message.

The points cannot notice a broken rule that their lakes and commands never use. Thirteen patches of `tests/breakages` were tried, with
eight points of one operation each. The points noticed one of them (`kill-record-file-renamed-before-synced`). [Breakages](breakages.md)
names the tests that notice the others.
"""
RUNS = """Each cell has the number of points and the number of differences. An empty cell: the operation has no such boundary, or no point was run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """`found`: `same`, `not reached`, or the differences. `commit`: of the project, short; with `+` where files were changed since."""

    point: Point
    commit: str
    seed: int
    seconds: float
    found: str


def results(file: Path) -> dict[Point, Ran]:
    """Return the results of earlier runs."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
    found = {}
    for line in lines:
        operation, fault, boundary, commit, seed, seconds, said = line.split("\t")
        point = Point(operation=operation, boundary=boundary, fault=fault)
        found[point] = Ran(point=point, commit=commit, seed=int(seed), seconds=float(seconds), found=said)
    return found


def keep(file: Path, ran: Iterable[Ran]) -> None:
    """Write all results in order, so that two files can be compared."""
    part = file.with_suffix(".part")
    part.write_text("".join([_TITLES, *map(_line, sorted(ran, key=lambda one: one.point))]), encoding="utf-8")
    part.replace(file)


def note(file: Path, ran: Ran) -> None:
    """At the end of what was kept, by any of those at work."""
    with file.open("a", encoding="utf-8") as kept:
        kept.write(_line(ran))


def _line(ran: Ran) -> str:
    point, said = ran.point, " ".join(ran.found.split())
    return f"{point.operation}\t{point.fault}\t{point.boundary}\t{ran.commit}\t{ran.seed}\t{ran.seconds:.1f}\t{said}\n"


def commit_of(root: Path) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "--", "include") else "")


def page(ran: Iterable[Ran]) -> str:
    """Points and differences of each operation by fault."""
    rows: dict[str, list[Ran]] = {}
    for one in ran:
        if one.found != MISSED:
            rows.setdefault(one.point.operation, []).append(one)
    lines = [HEAD, "## The faults\n", *(f"- **{fault}**: {says}." for fault, says in FAULTS.items()), "", "## Runs\n", RUNS]
    lines += [f"| operation | {' | '.join(FAULTS)} | all | seconds a point | commits |", f"|---|{'---|' * (len(FAULTS) + 3)}"]
    for operation in (name for name in OPERATIONS if name in rows):
        lines.append(_row(operation, rows[operation]))
    every = [one for found in rows.values() for one in found]
    lines.append(_row("all", every))
    different = sorted((one for one in every if one.found != SAME), key=lambda one: one.point)
    if different:
        lines += ["", "## Differences\n", *(f"- `{one.point.command}` at {one.commit}: {one.found}" for one in different)]
    return "\n".join(lines) + "\n"


def _row(operation: str, ran: Sequence[Ran]) -> str:
    def cell(found: Sequence[Ran]) -> str:
        return f"{len(found):,} / {sum(one.found != SAME for one in found)}" if found else ""

    cells = [cell([one for one in ran if one.point.fault == fault]) for fault in FAULTS]
    seconds = sum(one.seconds for one in ran) / len(ran) if ran else 0.0
    commits = ", ".join(sorted({one.commit for one in ran}))
    return f"| {operation} | {' | '.join(cells)} | {cell(ran)} | {seconds:.1f} | {commits} |"


_world: World


def begin(layout: Layout, address: postgres.Address, begun: Synchronized[int]) -> None:
    """Make this worker's own lake, which its runs use one after another."""
    die_with_parent()
    with suppress(PermissionError):
        os.nice(-GIVES_WAY)
    global _world  # a pool passes no value from the beginning of a worker to its work
    with begun:
        begun.value += 1
        number = begun.value
    folder = layout.state / "faults" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    _world = World(layout=layout, folder=folder, address=address, database=f"faults_{number}")
    _world.configure()
    start_java()


def try_operation(operation: str, given: argparse.Namespace, commit: str, ends: float) -> int:
    """Run points of the operation until those asked for are done; how many differ."""
    began, wrong = time.monotonic(), 0
    if began > ends:
        return 0
    trial = Trial(world=_world, operation=operation)
    trial.prepare()
    every, done = trial.points(), results(given.results)
    if given.tell:
        boundaries = Counter(point.boundary for point in every)
        print("\n".join(f"{count} {name}" for name, count in boundaries.items()))
        return 0
    before = [point for point in every if point in done and not given.again]
    chosen = [point for point in every if point.fault in given.fault and (point.boundary in given.at if given.at else point not in before)]
    share = len(chosen) if given.each is None else max(0, given.each - len(before))
    kinds = Counter(boundary.kind for _, boundary in trial.run)
    told_of = ", ".join(f"{kinds[kind]} {kind}" for kind in get_args(Kind))
    print(
        f"{operation}: {len(trial.run)} boundaries ({told_of}), {len(every)} points, {len(chosen[:share])} to run; "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    for point in mixed(chosen, given.seed)[:share]:
        began = time.monotonic()
        if began > ends:
            break
        found = trial.meets(point)
        note(given.results, Ran(point=point, commit=commit, seed=given.seed, seconds=time.monotonic() - began, found=found))
        if found != SAME:
            wrong += found != MISSED
            print(f"{found}\n    {point.command}", flush=True)
    print(f"{operation}: done, {wrong} differ", flush=True)
    if not given.keep:
        trial.world.forget(operation)
    return wrong


def campaign(root: Path, given: argparse.Namespace, layout: Layout) -> int:
    """Run the campaign, and return the number of points with a difference."""
    address = postgres.find_running(layout)
    assert address is not None
    context = get_context("fork")
    again = given.operation if given.again else ()
    keep(given.results, [one for one in results(given.results).values() if one.point.operation not in again])
    commit, ends = commit_of(root), time.monotonic() + given.seconds
    with ProcessPoolExecutor(given.jobs, context, begin, (layout, address, context.Value("i"))) as pool:
        begun = [pool.submit(try_operation, operation, given, commit, ends) for operation in given.operation]
        wrong = sum(one.result() for one in begun)
    found = results(given.results)
    keep(given.results, found.values())
    print(f"{len(found)} points are on file, {sum(one.found not in (SAME, MISSED) for one in found.values())} of them differ")
    return wrong


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m bench faults", description="Faults at every boundary of every operation.")
    asked.add_argument("--operation", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), help="only these operations")
    asked.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), help="only these faults")
    asked.add_argument("--tell", action="store_true", help="print the boundaries of the operations, and run no point")
    asked.add_argument("--at", nargs="+", metavar="BOUNDARY", help="only these boundaries, as a difference names them; they are run again")
    asked.add_argument("--each", type=int, help="stop when this many points of each operation are on file")
    asked.add_argument("--jobs", type=int, default=1, help="number of lakes that run at the same time")
    asked.add_argument("--seconds", type=float, default=1e9, help="begin no point after this time")
    asked.add_argument("--seed", type=int, default=1, help="seed of the order of the points")
    asked.add_argument("--keep", action="store_true", help="keep the lake and the logs of the last point")
    asked.add_argument("--again", action="store_true", help="also run the points of the named operations that are on file")
    asked.add_argument("--results", type=Path, default=project_root() / RESULTS, help="the file with the results")
    asked.add_argument("--write", action="store_true", help=f"write {PAGE} from the results on file, and run nothing")
    given, root = asked.parse_args(), project_root()
    if given.write:
        (root / PAGE).write_text(page(results(given.results).values()), encoding="utf-8")
        return 0
    layout = find_layout()
    ran = stack.status(layout).postgres
    embedded.up(layout, with_airflow=False)
    try:
        with hold_file_lock(layout.state / "faults.lock", wait_seconds=0):
            wrong = campaign(root, given, layout)
            if not given.keep:
                shutil.rmtree(layout.state / "faults")
            return 1 if wrong else 0
    finally:
        if not ran:
            stack.down(layout)


if __name__ == "__main__":
    sys.exit(main())
