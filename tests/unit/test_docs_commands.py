"""Each command that a document or a page shows can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from message_lifecycle.app.cli import tree

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
TEMPLATES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "include").rglob("*.html"))]
AT_THE_BEGINNING = re.compile(r"^\s*(?:\$ )?(?:printf [^|]*\| *)?(lifecycle .*)$")
CONSENT = {"--by", "--why"}
NEEDED_WITH = {"--give-up-tables": CONSENT, "--accept-rollback": CONSENT, "--remap": CONSENT, "--accept": {"--by"}}
"""Options that the command requires only next to another option. The command's declaration does not have this rule."""


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


def has_argument(command: Any, rest: list[str]) -> bool:
    """True if a word after the command is neither an option nor the value of an option."""
    valued = {name for part in command.params if not getattr(part, "is_flag", False) for name in part.opts}
    return any(not word.strip("[]").startswith("-") and before not in valued for before, word in pairwise(["", *rest]))


def why_not_typed(words: list[str]) -> str:
    """Return why the command ends with a usage error. A command without an argument is only a name, which may stand without options."""
    command, rest = subcommand(words)
    known = {"--help"}.union(*(part.opts for part in command.params))
    named = {word.strip("[]").partition("=")[0] for word in rest if word.strip("[]").startswith("-")}
    if unknown := named - known:
        return f"{' '.join(words)!r} takes no {', '.join(sorted(unknown))}"
    required = {part.opts[0] for part in command.params if part.required and part.param_type_name == "option"}
    required = required.union(*(NEEDED_WITH.get(name, set()) for name in named))
    if has_argument(command, rest) and (left_out := required - named):
        return f"{' '.join(words)!r} needs {', '.join(sorted(left_out))}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_document_can_be_typed(page: str) -> None:
    assert [why for words in typed(page) if (why := why_not_typed(words))] == []


def shown(template: str) -> Iterator[list[str]]:
    """Each command of a page's template, as words after `lifecycle`."""
    text = re.sub(r"{{.*?}}", "{}", (ROOT / template).read_text(encoding="utf-8"))
    for command in re.findall(r"<code>(lifecycle [^<]+)</code>", text):
        yield shlex.split(command)[1:]


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_command_of_a_page_can_be_typed(template: str) -> None:
    assert [why for words in shown(template) if (why := why_not_typed(words))] == []


def test_commands_are_found_in_documents_and_pages() -> None:
    assert sum(1 for page in PAGES for _ in typed(page)) > 100
    assert sum(1 for template in TEMPLATES for _ in shown(template)) > 3


def described(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    yield path, command.help or ""
    for name, child in getattr(command, "commands", {}).items():
        yield from described(child, (*path, name))


def test_what_a_list_of_commands_says_of_each_is_one_line() -> None:
    told = dict(described(tree(), ("lifecycle",)))
    assert [path for path, text in told.items() if "\n" in text.strip().partition("\n\n")[0]] == []
