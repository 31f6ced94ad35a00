"""The count of places that ask which operation, table or change it is: each way of asking is seen, and nothing else."""

from __future__ import annotations

import ast

import pytest
from bench.house import asking, circles, error_classes, modules

from message_lifecycle.local.layout import project_root

ASKS = (
    'plan.operation == "compaction"',
    'operation in ("undo", "erasure")',
    'table.kind != "quarantine"',
    'operation.startswith("undo")',
    'frozenset(("undo", "erasure"))',
    '{"undo": 1}',
    "isinstance(change, Commit | Move)",
    "match action:\n    case change.Commit(): pass",
    'match operation:\n    case "undo": pass',
)


@pytest.mark.parametrize("text", ASKS)
def test_asking_is_seen(text: str) -> None:
    assert len(list(asking(ast.parse(text)))) == 1


@pytest.mark.parametrize("text", ['say("undo")', "isinstance(found, str)", 'outcome == "published"', "{1: 'undo'}", "Commit(rows=1)"])
def test_naming_is_no_asking(text: str) -> None:
    assert list(asking(ast.parse(text))) == []


def test_errors_are_counted_however_deep() -> None:
    text = "class LifecycleError(Exception): ...\nclass Refused(LifecycleError): ...\nclass Held(Refused): ...\nclass Other(Exception): ..."
    assert error_classes({"a.py": ast.parse(text)}) == {"LifecycleError", "Refused", "Held"}


def test_a_circle_is_found_through_a_function_and_not_through_types() -> None:
    trees = {
        "include/a.py": ast.parse("import sys\ndef f():\n    from b import g"),
        "include/b.py": ast.parse("from c import h"),
        "include/c.py": ast.parse("from a import f"),
        "include/d.py": ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from e import x"),
        "include/e.py": ast.parse("from d import y"),
    }
    assert circles(trees) == [{"a", "b", "c"}]


def test_no_module_of_the_house_imports_another_in_a_circle() -> None:
    assert circles(modules(project_root())) == []
