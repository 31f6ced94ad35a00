"""README's walks run as they are written: every line of their blocks, word for word and in order, by a shell in a folder of its own.

Each output that README shows is compared with the output of its command. Times, ids and sizes may differ."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from lifecycle_local.layout import DISK, venv_bin
from tests.e2e.stack import Stack

# They begin with a folder of this machine, which no machine of a cluster has.
pytestmark = pytest.mark.parametrize("stack", [DISK], indirect=True)
ROOT = Path(__file__).parents[2]
SECTION = "Your own data in ten minutes"
# A walk begins in a fresh clone: its `.venv` is linked to, and `make` is called there. What a line has said ends with its status.
BEFORE = 'shopt -s expand_aliases\nmake() { command make --no-print-directory -C "$CLONE" "$@"; }\n'
AFTER = "printf '\\n%s%s\\n' {mark} $?\n"
MARK = "--- ended as "
UNDO = re.compile(r"^lifecycle undo ([0-9a-f]{8}) ")
ELISION = "..."
# What differs from run to run, and the spaces that align it.
VARIABLE = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8,}\b"), "ID"),
    (re.compile(r"\b[\d.]+ k?B\b"), "SIZE"),
    (re.compile(r"\([\d.]+ %\)"), "SHARE"),
    (re.compile(r" +"), " "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a walk, what it printed, and its exit status."""

    typed: str
    said: str
    status: int


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, list[str]]]:
    """Return the language and the lines of each block."""
    return [(language, body.splitlines()) for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)]


def walks() -> list[list[str]]:
    """Return the lines of all command blocks of each part of the section."""
    section = readme().partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    parts = [[line for language, lines in blocks(part) if language == "sh" for line in lines] for part in section.split("\n### ")]
    return [lines for lines in parts if lines]


def shown() -> list[tuple[str, list[str]]]:
    """Return each command whose output README shows, with that output: after `$ COMMAND`, or in the block after the command's own."""
    found: list[tuple[str, list[str]]] = []
    last = ""
    for language, lines in blocks(readme()):
        if language == "text":
            found.append((last, lines))
        for line in lines if language == "console" else []:
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
        last = without_comment(lines[-1])
    return found


def without_comment(line: str) -> str:
    return line.partition("  #")[0].rstrip()


def lasting(lines: list[str]) -> list[str]:
    """Return the lines without what differs from run to run."""
    kept = []
    for line in lines:
        for pattern, name in VARIABLE:
            line = pattern.sub(name, line)
        kept.append(line.strip())
    return [line for line in kept if line]


def walk(lines: list[str], folder: Path, environment: dict[str, str]) -> list[Line]:
    after = AFTER.format(mark=f"'{MARK}'")
    done = subprocess.run(
        ["bash"],
        input=BEFORE + "".join(f"{line}\n{after}" for line in lines),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    told = re.split(rf"^{re.escape(MARK)}(\d+)$", done.stdout, flags=re.M)
    assert len(told) == 2 * len(lines) + 1, f"the walk broke off: {done.stdout[-2000:]}"
    return [Line(typed=line, said=told[2 * at], status=int(told[2 * at + 1])) for at, line in enumerate(lines)]


@pytest.fixture(scope="module")
def walked(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> list[list[Line]]:
    folder = tmp_path_factory.mktemp("walks")
    (folder / ".venv").symlink_to(venv_bin().parent)
    makes = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the `make test` that may have started this
    environment = {name: value for name, value in (os.environ | dict(stack.environment)).items() if name not in makes}
    alias = next(line for lines in walks() for line in lines if line.startswith("alias "))
    environment |= {"CLONE": str(ROOT)}
    done = []
    for lines in walks():
        # All parts are typed into one terminal; each shell is another one only to this test.
        typed = lines if alias in lines else [alias, *lines]
        at_once = [line for line in typed if not UNDO.match(line)]
        part = walk(at_once, folder, environment)
        for line in typed[len(at_once) :]:  # README has the id of another run's plan
            undo = UNDO.sub(f"lifecycle undo {plan_of(part)[:8]} ", line)
            ran = walk([alias, undo], folder, environment)[-1]
            part.append(Line(typed=line, said=ran.said, status=ran.status))
        assert [line.typed for line in part] == typed
        done.append(part)
    return done


def said(lines: list[Line], command: str) -> str:
    return next(line.said for line in reversed(lines) if line.typed.startswith(command))


def plan_of(lines: list[Line]) -> str:
    """Return the id of the plan that `lifecycle run` has published."""
    (plan_id,) = re.findall(r"plan +([0-9a-f]{32})", said(lines, "lifecycle run orders"))
    return str(plan_id)


def test_there_are_two_and_no_line_of_them_fails(walked: list[list[Line]]) -> None:
    assert len(walked) == 2
    assert [line for lines in walked for line in lines if line.status] == []


def test_each_shown_output_is_what_its_command_prints(walked: list[list[Line]]) -> None:
    printed = {without_comment(line.typed): line.said for lines in walked for line in lines}  # the last time that it was typed
    assert len(shown()) > 10
    for command, output in shown():
        expected, actual = lasting(output), lasting(printed[command].splitlines())
        if ELISION not in expected:
            assert actual == expected, f"README shows another output of {command!r}"
        rest = iter(actual)
        missing = [line for line in expected if line != ELISION and line not in rest]
        assert missing == [], f"{command!r} does not print this, or not in this order: {actual}"


def test_the_first_says_why_one_message_stays_and_what_took_another_and_brings_it_back(walked: list[list[Line]]) -> None:
    lines = walked[0]
    assert "http://127.0.0.1:" in said(lines, "make up")
    assert "removes     1 of 3 messages" in said(lines, "lifecycle plan orders --dry-run")
    assert "ok  default/orders         2    0        0" in said(lines, "lifecycle status orders")
    assert "default/orders 1:1 is kept" in said(lines, "lifecycle explain orders 1:1")
    assert f"Plan {plan_of(lines)[:12]} removed it by expiry" in said(lines, "lifecycle explain orders 1:0")
    assert UNDO.match(lines[-1].typed)
    assert "default/orders: brought back 1 message, 3 kept" in lines[-1].said


def test_the_second_ends_with_what_became_of_an_older_value(walked: list[list[Line]]) -> None:
    lines = walked[1]
    first_read, second_read = (line.said for line in lines if line.typed.startswith("lifecycle read prices --compacted"))
    assert first_read.strip() == ""
    assert [entry.split()[0] for entry in second_read.strip().splitlines()] == ["0:1"]
    assert '"price": 4' in second_read
    assert "SUCCESS" in said(lines, "lifecycle compact prices --status")
    assert lines[-1].typed.startswith("lifecycle explain prices 0:0")
    assert "Not in the view: a newer message" in lines[-1].said
