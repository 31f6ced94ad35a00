"""What errors tell a person to do: every command that a text names is there, and no advice is lost when errors are written anew."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.unit.test_docs_commands import ROOT, subcommand

PACKAGES = ROOT / "include"
ADVICE = (Path(__file__).parent / "error_advice.txt").read_text(encoding="utf-8").splitlines()
COMMAND = re.compile(r"`lifecycle ([a-z][^`]*)`")
MAKE = re.compile(r"`make ([a-z-]+)`")


def _text(node: ast.AST) -> str | None:
    """A text of the source, `{}` where a value stands in it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return "".join(_text(part) or "{}" for part in node.values) if isinstance(node, ast.JoinedStr) else None


@cache
def _texts() -> tuple[tuple[Path, str], ...]:
    return tuple(
        (module.relative_to(PACKAGES), text)
        for module in sorted(PACKAGES.rglob("*.py"))
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if (text := _text(node)) is not None
    )


def test_what_to_do_is_still_said() -> None:
    """A sentence a line. One that is meant to be said otherwise is changed in the list as well."""
    said = {sentence for _, text in _texts() for sentence in re.split(r"(?<=[.;]) ", text)}
    assert [advice for advice in ADVICE if advice not in said] == []


def test_every_target_of_make_that_a_text_names_is_there() -> None:
    named = {(str(module), target) for module, text in _texts() for target in MAKE.findall(text)}
    assert named
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert [(module, target) for module, target in sorted(named) if target not in targets] == []


def test_every_command_that_a_text_names_is_there() -> None:
    named = {(str(module), command) for module, text in _texts() for command in COMMAND.findall(text)}
    assert len(named) > 50
    for module, command in sorted(named):
        words = [word for word in command.split() if word != "..."]
        found, rest = subcommand(words)
        assert words[: len(words) - len(rest)], f"{module} names `lifecycle {command}`, which is no command"
        known = {option for part in found.params for option in part.opts} | {"--help"}
        given = {word.strip("[]").partition("=")[0] for word in rest if word.startswith("-")}
        assert given <= known, f"{module} names `lifecycle {command}`: there is no {', '.join(sorted(given - known))}"
