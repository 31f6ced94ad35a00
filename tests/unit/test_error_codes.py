"""The codes of errors: each is there once, a function is named as the error that it makes, and no scenario expects one that is not there."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.house import error_classes, modules

from lifecycle_local.layout import project_root
from message_lifecycle.model.errors import EXIT_BAD_INPUT, LifecycleError, UnknownPlan, code_of, unknown_hold
from tests.errors import raises, suppressed

TWICE = {"UnreadableFile"}
"""A file that is given, and a file of a table."""


def _made() -> Iterator[tuple[str, str]]:
    """Function and code of each error that is no class of its own."""
    for tree in modules(project_root()).values():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                        yield function.name, str(node.value.value)


def test_a_code_names_one_error() -> None:
    codes = Counter([*error_classes(modules(project_root())), *(code for _, code in _made())])
    assert len(codes) > 100
    assert {code for code, count in codes.items() if count > 1} == TWICE


def test_a_function_is_named_as_the_error_that_it_makes() -> None:
    assert [(name, code) for name, code in _made() if name.replace("_", "") != code.lower()] == []


def test_scenarios_expect_errors_that_are_there() -> None:
    codes = error_classes(modules(project_root())) | {code for _, code in _made()}
    texts = [path.read_text(encoding="utf-8") for path in (Path(__file__).parents[1] / "scenarios").glob("*.jsonl")]
    expected = {code for text in texts for code in re.findall(r'"error": *"([^"]*)"', text)}
    assert expected
    assert expected - codes == set()


def test_an_error_is_shown_by_its_code_and_a_foreign_one_by_its_type() -> None:
    assert (code_of(unknown_hold("h")), code_of(UnknownPlan("p")), code_of(KeyError("k"))) == ("UnknownHold", "UnknownPlan", "KeyError")


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copied", "pickled"])
def test_an_error_outlives_a_copy(again: object) -> None:
    error = unknown_hold("h")
    copied = again(error)
    assert (type(copied), str(copied), copied.code, copied.exit_code) == (type(error), str(error), "UnknownHold", EXIT_BAD_INPUT)


def test_what_tests_expect_is_one_code_and_no_other() -> None:
    with raises("UnknownBatch", "UnknownHold", match="hold 'h'"):
        raise unknown_hold("h")
    with pytest.raises(AssertionError), raises("UnknownBatch"):
        raise unknown_hold("h")
    with pytest.raises(AssertionError), raises("UnknownHold", match="hold 'i'"):
        raise unknown_hold("h")
    with suppressed("UnknownHold"):
        raise unknown_hold("h")
    with pytest.raises(LifecycleError, match="hold 'h'"), suppressed("UnknownBatch"):
        raise unknown_hold("h")
