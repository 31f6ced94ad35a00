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
from lifecycle_local.processes import only_one

_TITLES = "operation\tfault\tboundary\tcommit\tseed\tseconds\tfound\n"
PAGE, RESULTS = Path("docs/faults.md"), Path("bench/faults.tsv")
HEAD = """# Faults at every boundary

After reading this page you know at which boundaries runs were interrupted, and what these faults have found.

A *point* is an operation, a boundary at which its run writes a file, the catalog or the ledger, or asks something of Java, and a fault there.
`python -m bench faults` runs them: over the same small lake the run meets the fault, a fresh process goes on by the same command, and rows, refs,
ledger, leftover files and what `status` says are compared with an undisturbed run. Each point is in `bench/faults.tsv`, with its commit;
`--write` makes this page from it. A cell has points and differences; empty: that fault has no such boundary, or none was run. A sample is a test
(`tests/spark/test_faults.py`), and `make hunt` runs a tenth of a whole campaign, other points each time.

Not compared, with the reason: how much a reclaim would take (a figure); after a writer, in how many plans what it appended went, and whether
it or a marker has the lower offset; after an older catalog, that a removal was published twice, and what was in a table that it has lost; after
that and a late clock, times that it wrote; where a file was away or half of it lost, that a gate blocked the plan of that run; how many snapshots a plan of documents made that died between its two commits (it is planned again);
files of a view's metadata (each telling leaves one); the metadata, without any message, of a table whose making died before the catalog had it.
That the disturbed run itself ends well is not asked, only that its error has a name: a commit of unknown result that is not looked up at once
is found by the next run.

## Findings

Each is mended, and has a test of its own:

- **lost**: py4j sends a call again whose answer was empty, so that a commit could be made twice; it ends an iteration where the line breaks, so
  that a list of files was a shorter list.
- **full**, **readonly**, **refused**: publishing a view, an erasure, a reclaim and a deletion named neither a full disk, nor one that may be read
  alone, nor a Java that has ended.
- **kill**, **torn**: half a file of an erasure's own stage, which nobody can search, was taken for a writer's, and the erasure waited three days.
- **half**: a torn file that the question about emptied keys met was a fault of the program.
- **older**: where a first compaction had died, the topic could not be compacted any more, as its view's table was gone; and asked again for the
  same time, a run said `published` of what was all there again.
  After a deletion it had still its views, whose files had gone, and the next run stopped at them. An undo that it had lost was told as done, and
  of a deleted topic as done and deleted again.
- **full**, **readonly**: where a compaction writes the SQL view beside it anew, a full disk was a fault of the program.
- **second**: of two runners of one plan the report of the one could be kept beside what the other had staged, and the plan ended as `blocked`;
  two undos of one plan at once could both be about to keep it, and one ended in the database's own error. A change that another runner had
  staged anew was judged before it had its markers, and the plan of both ended as `blocked`.
- **lost**: a stage whose branch the catalog had made, and refused when it was asked again, ended in Iceberg's own words.
- **full**, **readonly**: nor had a folder that Java cannot make a name, where a view is written beside a compaction or a topic comes back.
- **missing**: the name of an archive's own folder was not brought to disk, so that a loss of power could take what was archived after the
  removal was published.
- **readonly**: a lock of a log in files that may be read alone was a fault of the program.
- **half**: a torn list of manifests that Spark met within an ingest was a fault of the program.
- **refused**: a line to Java that broke while Spark's session was made left it without its catalogs, and an ingest ended in Spark's own words.

What it cannot notice are rules that its lakes and commands never come to: of thirteen patches of `tests/breakages`, tried with eight points of one
operation each, one was noticed (`kill-record-file-renamed-before-synced`); the others are for the tests that [breakages](breakages.md) names.
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
    lines = [HEAD, "## The faults\n", *(f"- **{fault}**: {says}." for fault, says in FAULTS.items()), "", "## Runs\n"]
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
        told = Counter(point.boundary for point in every)
        print("\n".join(f"{count} {name}" for name, count in told.items()))
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
    address = postgres.running(layout)
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
    asked.add_argument("--operation", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), help="those alone")
    asked.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), help="those alone")
    asked.add_argument("--tell", action="store_true", help="tell the boundaries of the operations, and run no point")
    asked.add_argument("--at", nargs="+", metavar="BOUNDARY", help="those alone, as a difference names them; they are run again")
    asked.add_argument("--each", type=int, help="until so many of each operation are on file")
    asked.add_argument("--jobs", type=int, default=1, help="so many lakes beside each other")
    asked.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    asked.add_argument("--seed", type=int, default=1, help="in which order")
    asked.add_argument("--keep", action="store_true", help="leave the lake and the logs of the last point there")
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
            wrong = campaign(root, given, layout)
            if not given.keep:
                shutil.rmtree(layout.state / "faults")
            return 1 if wrong else 0
    finally:
        if not ran:
            stack.down(layout)


if __name__ == "__main__":
    sys.exit(main())
