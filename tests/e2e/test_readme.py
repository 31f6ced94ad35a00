"""README's walks run as they are written: every line of their blocks, word for word and in order, by a shell in a folder of its own."""

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
SECTION = "Your own topic, from the command line to the Airflow page"
# A walk begins in a fresh clone: its `.venv` is linked to, and `make` is called there. What a line has said ends with its status.
BEFORE = 'shopt -s expand_aliases\nmake() { command make --no-print-directory -C "$CLONE" "$@"; }\n'
AFTER = "printf '\\n%s%s\\n' {mark} $?\n"
MARK = "--- ended as "


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a walk, what it printed, and its exit status."""

    typed: str
    said: str
    status: int


def walks() -> list[list[str]]:
    """The lines of each block of the section."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    return [[line for line in block.splitlines() if line.strip()] for block in re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)]


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
    # Both are typed into one terminal; the second shell is another one only to this test.
    return [walk(lines if alias in lines else [alias, *lines], folder, environment | {"CLONE": str(ROOT)}) for lines in walks()]


def said(lines: list[Line], command: str) -> str:
    return next(line.said for line in reversed(lines) if line.typed.startswith(command))


def test_there_are_two_and_no_line_of_them_fails(walked: list[list[Line]]) -> None:
    assert len(walked) == 2
    assert [line for lines in walked for line in lines if line.status] == []


def test_the_first_ends_with_why_one_message_stays_and_what_took_another(walked: list[list[Line]]) -> None:
    lines = walked[0]
    assert "http://127.0.0.1:" in said(lines, "make up")
    assert "removes       1 of 3 messages" in said(lines, "lifecycle plan orders --dry-run")
    (plan_id,) = re.findall(r"plan +([0-9a-f]{32})", said(lines, "lifecycle run orders"))
    assert "ok  default/orders         2    0     0" in said(lines, "lifecycle status orders")
    assert "default/orders 1:1 is there" in said(lines, "lifecycle explain orders 1:1")
    assert lines[-1].typed.startswith("lifecycle explain orders 1:0")
    assert f"Plan {plan_id} removed it by expiry" in lines[-1].said


def test_the_second_ends_with_what_became_of_an_older_value(walked: list[list[Line]]) -> None:
    lines = walked[1]
    first_read, second_read = (line.said for line in lines if line.typed.startswith("lifecycle read prices --compacted"))
    assert first_read.strip() == ""
    assert [entry.split()[0] for entry in second_read.strip().splitlines()] == ["0:1"]
    assert '"price": 4' in second_read
    assert "SUCCESS" in said(lines, "lifecycle compact prices --status")
    assert lines[-1].typed.startswith("lifecycle explain prices 0:0")
    assert "Not in the view: superseded" in lines[-1].said
