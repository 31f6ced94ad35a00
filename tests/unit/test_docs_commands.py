"""What the documents tell people to type is what the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.app.cli import tree

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
AT_THE_BEGINNING = re.compile(r"^\s*(?:\$ )?(?:printf [^|]*\| *)?(lifecycle .*)$")


def typed(page: str) -> Iterator[list[str]]:
    """Each command of a page, in a block or between backticks, as words after `lifecycle`."""
    for line in (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        whole = AT_THE_BEGINNING.match(line)
        for command in [whole[1]] if whole and "`" not in line else re.findall(r"`(lifecycle [^`]+)`", line):
            yield shlex.split(command, comments=True)[1:]


def subcommand(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words after it."""
    found: Any = tree()
    for place, word in enumerate(words):
        if not (commands := getattr(found, "commands", None)) or word.startswith("-") or not word[0].isalpha():
            return found, words[place:]
        alternatives = word.split("|")
        assert set(alternatives) <= set(commands), f"there is no command {word!r} in {' '.join(words)!r}"
        found = commands[alternatives[-1]]
    return found, []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_document_is_there_with_its_options(page: str) -> None:
    for words in typed(page):
        command, rest = subcommand(words)
        known = {"--help"}.union(*(part.opts for part in command.params))
        named = {word.strip("[]").partition("=")[0] for word in rest if word.strip("[]").startswith("-")}
        assert named <= known, f"{' '.join(words)!r} takes no {', '.join(sorted(named - known))}"


def test_commands_are_found_in_the_documents() -> None:
    assert sum(1 for page in PAGES for _ in typed(page)) > 100


def described(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    yield path, command.help or ""
    for name, child in getattr(command, "commands", {}).items():
        yield from described(child, (*path, name))


def test_what_a_list_of_commands_says_of_each_is_one_line() -> None:
    told = dict(described(tree(), ("lifecycle",)))
    assert [path for path, text in told.items() if "\n" in text.strip().partition("\n\n")[0]] == []
