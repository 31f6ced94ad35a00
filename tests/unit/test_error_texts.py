"""Advice of errors: each command in a text can be typed, and no advice is lost when a text is rewritten."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

from tests.unit.test_docs_commands import ROOT, why_not_typed

MODULES = [path for folder in ("include", "plugins") for path in sorted((ROOT / folder).rglob("*.py"))]
ADVICE = (Path(__file__).parent / "error_advice.txt").read_text(encoding="utf-8").splitlines()
COMMAND = re.compile(r"`lifecycle ([a-z][^`]*)`|(?:: | {2,})(?:\.venv/bin/)?lifecycle ([a-z][^`\n]*)$", re.MULTILINE)
"""A command between backticks, or at the end of a line of output."""

MAKE = re.compile(r"`make ([a-z-]+)`")


def _text(node: ast.AST) -> str | None:
    """A text of the source, `{}` where a value stands in it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return "".join(_text(part) or "{}" for part in node.values) if isinstance(node, ast.JoinedStr) else None


@cache
def _texts() -> tuple[tuple[Path, str], ...]:
    """The texts of all modules. An f-string is one text, without its parts."""
    found = []
    for module in MODULES:
        nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        found += [(module.relative_to(ROOT), text) for node in nodes if id(node) not in parts and (text := _text(node)) is not None]
    return tuple(found)


def test_what_to_do_is_still_said() -> None:
    """A sentence a line. One that is meant to be said otherwise is changed in the list as well."""
    said = {sentence for _, text in _texts() for sentence in re.split(r"(?<=[.;]) ", text)}
    assert [advice for advice in ADVICE if advice not in said] == []


def test_every_target_of_make_that_a_text_names_is_there() -> None:
    named = {(str(module), target) for module, text in _texts() for target in MAKE.findall(text)}
    assert named
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert [(module, target) for module, target in sorted(named) if target not in targets] == []


def test_every_command_that_a_text_names_can_be_typed() -> None:
    named = {(str(module), quoted or at_the_end) for module, text in _texts() for quoted, at_the_end in COMMAND.findall(text)}
    assert len(named) > 100
    assert [f"{module}: {why}" for module, command in sorted(named) if (why := why_not_typed(shlex.split(command, comments=True)))] == []
