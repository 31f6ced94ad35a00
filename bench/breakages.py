"""Deliberate breakages of the product, and whether the tests notice them: every patch of `tests/breakages` breaks one rule.

`python -m bench breakages [NAME ...] [--write]`: each selection of tests in the index must pass in a copy of the project, and fail in a
copy with the patch. Exit status 1 if the tests miss a breakage. Only pytest's exit status 1 counts as noticed: a file that cannot be
imported, or a missing test, does not. `--write` writes `docs/breakages.md` again, and is allowed only for all breakages together.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from lifecycle_local.layout import find_layout, project_root
from lifecycle_local.processes import end_process_trees, find_process

FOLDER = Path("tests/breakages")
PAGE = Path("docs/breakages.md")
# The limit for one run of pytest. The longest run starts a Spark session and kills processes.
LIMIT_SECONDS = 1800
# The tests of `make test`, with the same generated logs each time: a property that notices a breakage once notices it in every run.
ARGUMENTS = ("-p", "no:cacheprovider", "--tb=no", "--hypothesis-profile=ci", "-m", "not hunt")
PASSED, FAILED = 0, 1
# Lines to show of a run that ended in an unexpected way.
SHOWN = 15
HEAD = """# Deliberate breakages

After reading this page you know which mistakes in the code the tests notice, and which tests notice each one.

Each breakage is a patch in `tests/breakages`. It breaks one rule of the product, as a mistake in a refactoring would. The tests next to it
fail with the patch. `.venv/bin/python -m bench breakages` applies every patch to a copy of the project, and runs the tests that the index
names. `--write` writes this page. If code has moved, make the patch again at the new place from its text.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Tests by file or node id; `only`: pytest's `-k`."""

    tests: tuple[str, ...]
    only: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.tests, *(("-k", self.only) if self.only else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """`promise`: an id of the index. `breaks`: the wrong behaviour of the product, in one or two sentences."""

    name: str
    promise: str
    breaks: str
    selection: Selection

    @property
    def patch(self) -> Path:
        return FOLDER / f"{self.name}.patch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The end of one run of pytest. `status` None: not within the time. `said`: the end of its output."""

    status: int | None
    failed: tuple[str, ...]
    seconds: float
    said: tuple[str, ...]


def index(root: Path) -> tuple[Mapping[str, str], tuple[Breakage, ...]]:
    """The promises by id, and every breakage."""
    found = tomllib.loads((root / FOLDER / "index.toml").read_text(encoding="utf-8"))
    return found["promises"], tuple(
        Breakage(
            name=entry["name"],
            promise=entry["promise"],
            breaks=entry["breaks"],
            selection=Selection(tests=tuple(entry["tests"]), only=entry.get("only", "")),
        )
        for entry in found["breakage"]
    )


def applies(root: Path, breakage: Breakage, *, check: bool) -> str:
    """Apply the patch to the tree, or only check whether it fits. Return git's error, or an empty text."""
    command = ["git", "apply", *(["--check"] if check else []), str((root / breakage.patch).resolve())]
    # The copy may be below another repository. Without the ceiling, git would apply the patch to that repository's paths.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """The project's files, without what is made at run time."""
    ignored = [line.rstrip("/") for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines() if line]
    with tempfile.TemporaryDirectory(prefix="breakage-") as folder:
        # Byte code comes along: it knows its source by size and time, and a patched file is younger.
        patterns = shutil.ignore_patterns(".git", *(pattern for pattern in ignored if pattern != "__pycache__"))
        tree = Path(shutil.copytree(root, Path(folder) / "project", symlinks=True, ignore=patterns))
        # The embedded default keeps PYTHONPATH from what a test starts; that finds the packages in its working directory then.
        for package in ("message_lifecycle", "lifecycle_local"):
            link = tree / package
            if not link.is_symlink():
                link.symlink_to(Path("include") / package)
        yield tree


def run(tree: Path, selection: Selection) -> Ran:
    """Run the tests with the tree's own code. Tests that need an embedded default get one of their own."""
    layout, report = find_layout(), tree / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "LIFECYCLE_TOOLS"},
        "PYTHONPATH": str(tree / "include"),
        # The folder stays from one run to the next. A tree never writes to this project's own state folder.
        "LIFECYCLE_HOME": str(layout.state / "breakages"),
        "LIFECYCLE_JARS": os.environ.get("LIFECYCLE_JARS", str(layout.jars)),
    }
    command = [sys.executable, "-m", "pytest", *ARGUMENTS, f"--junitxml={report}", *selection.arguments]
    began, log = time.monotonic(), tree / "report.log"
    with log.open("wb") as told, subprocess.Popen(command, cwd=tree, env=environment, stdout=told, stderr=subprocess.STDOUT) as pytest:
        leader = find_process(pytest.pid)
        try:
            status: int | None = pytest.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if leader is not None:
                end_process_trees([leader], polite_seconds=5.0)
    return Ran(
        status=status,
        failed=tuple(_failed(report)) if status == FAILED else (),
        seconds=time.monotonic() - began,
        said=tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN:]),
    )


def _failed(report: Path) -> Iterator[str]:
    """Tests that failed, once each, whatever the number of their cases."""
    seen = set()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is None and case.find("error") is None:
            continue
        name = f"{case.get('classname', '')}.{case.get('name', '').partition('[')[0]}"
        if name not in seen:
            seen.add(name)
            yield name


def trial(sound: Path, breakage: Breakage) -> Ran:
    """The breakage's tests in a copy with its patch."""
    with copy_of(sound) as tree:
        against = applies(tree, breakage, check=False)
        if against:
            raise SystemExit(f"{breakage.patch} does not apply: {against}")
        return run(tree, breakage.selection)


def page(promises: Mapping[str, str], noticed: Mapping[Breakage, Sequence[str]]) -> str:
    """Return the page that describes every breakage and names the tests that notice it."""
    lines = [HEAD]
    for promise, says in promises.items():
        lines += [f"## {says[0].upper()}{says[1:]}\n", "| breakage | what it breaks | tests that notice |", "|---|---|---|"]
        for breakage, tests in noticed.items():
            if breakage.promise == promise:
                lines.append(f"| {breakage.name} | {breakage.breaks} | {', '.join(f'`{test}`' for test in tests)} |")
        lines.append("")
    return "\n".join(lines)


def tell(breakage: Breakage, ran: Ran, *, against: str = "") -> None:
    """One line, and below it the tests that notice, or what pytest said last where that is `against` it."""
    print(f"{breakage.name:<42} {ran.seconds:6.0f} s  {against or 'noticed by'}", flush=True)
    for line in ran.said if against else ran.failed:
        print(f"{'':<53}{line}", flush=True)


def main() -> int:
    root = project_root()
    promises, known = index(root)
    asked = argparse.ArgumentParser(prog="python -m bench breakages", description="Check that the tests notice every deliberate breakage.")
    asked.add_argument("names", nargs="*", metavar="NAME", help="a breakage of tests/breakages; default: all")
    asked.add_argument("--write", action="store_true", help=f"write {PAGE}")
    given = asked.parse_args()
    unknown = set(given.names) - {breakage.name for breakage in known}
    if unknown:
        asked.error(f"unknown breakage: {', '.join(sorted(unknown))}")
    if given.write and given.names:
        asked.error("--write needs all breakages; name none")
    chosen = [breakage for breakage in known if not given.names or breakage.name in given.names]
    noticed: dict[Breakage, Sequence[str]] = {}
    with copy_of(root) as sound:
        without: dict[Selection, Ran] = {}
        for breakage in chosen:
            if breakage.selection not in without:
                without[breakage.selection] = run(sound, breakage.selection)
            before = without[breakage.selection]
            if before.status != PASSED:
                tell(breakage, before, against=f"NOT SOUND WITHOUT IT: pytest ended with {before.status}")
                continue
            ran = trial(sound, breakage)
            if ran.status == FAILED:
                noticed[breakage] = ran.failed
            tell(breakage, ran, against="" if ran.status == FAILED else f"NOT NOTICED: pytest ended with {ran.status}")
    print(f"{len(noticed)} of {len(chosen)} breakages are noticed")
    if len(noticed) < len(chosen):
        return 1
    if given.write:
        (root / PAGE).write_text(page(promises, noticed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
