"""Draw the terminal pictures of the tutorial: `python docs/pictures.py`, after `make demo` and `make up`.

The script types every command of docs/tutorial.md and draws the output of those that a picture follows.
"""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
WIDTH = 100
# Without rich's web font, so that a picture loads nothing.
SVG = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
BLOCK = re.compile(r"```sh\n(?P<lines>.*?)```\n(?:\n!\[[^\]]*\]\((?P<picture>images/tutorial-[a-z]+\.svg)\))?", re.DOTALL)
NOT_TYPED = ("make ", "alias ")


def walk() -> list[tuple[str, str | None]]:
    """Return each command of the tutorial with its picture."""
    found: list[tuple[str, str | None]] = []
    for block in BLOCK.finditer((DOCS / "tutorial.md").read_text(encoding="utf-8")):
        lines = [line.partition("  #")[0].rstrip() for line in re.sub(r" \\\n +", " ", block["lines"]).splitlines()]
        *others, last = [line for line in lines if line and not line.startswith(NOT_TYPED)] or [""]
        found += [*((line, None) for line in others), (last, block["picture"])]
    return [(line, picture) for line, picture in found if line]


def draw(command: str, output: str) -> str:
    """Return a terminal with the command and its output, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {command}"))
    console.print(Text.from_ansi(output))
    return console.export_svg(title="", code_format=SVG, unique_id="terminal")


def type_command(command: str) -> str:
    """Return the output of the command in a terminal, without the line that shows that it works."""
    typed = f"stty cols {WIDTH}; shopt -s expand_aliases; {command}"
    done = subprocess.run(
        ["script", "-qec", f"bash -c {typed!r}", "/dev/null"], cwd=DOCS.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.replace("\r\n", "\n").rpartition("\x1b[1A\x1b[2K")[2].rpartition("\r")[2]


def main() -> None:
    """Type every command, and write the pictures."""
    plan = ""
    for command, picture in walk():
        output = type_command(command.replace("lifecycle ", ".venv/bin/lifecycle ", 1).replace("PLAN", plan))
        print(f"$ {command}\n{output}", flush=True)
        waits = re.search(r"lifecycle approve ([0-9a-f]{8,})", output)
        plan = waits[1] if waits else plan
        if picture:
            (DOCS / picture).write_text(draw(command, output), encoding="utf-8")


if __name__ == "__main__":
    main()
