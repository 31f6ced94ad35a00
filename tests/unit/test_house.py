"""The count of places that ask which operation, table or change it is: each way of asking is seen, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from bench import house
from bench.house import (
    KINDS,
    PARTS,
    TOLD_APART,
    Words,
    asking,
    casts_to,
    circles,
    conditions_on_plans,
    error_classes,
    functions_named,
    modules,
    places,
    uses_of_any,
)

from lifecycle_local.layout import project_root
from message_lifecycle.app.operations import registry
from message_lifecycle.app.operations.registry import Operation

ASKS = (
    'plan.operation == "compaction"',
    'operation in ("undo", "erasure")',
    'table.kind != "quarantine"',
    'change.table == "changes"',
    'change.kind == "drop_tables"',
    'one["kind"] != "forget"',
    "type(change) is CommitLog",
    'operation.startswith("undo")',
    'frozenset(("undo", "erasure"))',
    'BEGUN = {"undo", "published"}',
    '{"undo": 1}',
    '{"message_cleaner": "run", "compaction": "compact", "else": "publish"}',
    '{"log": 1, "view": 2}[table]',
    '{"view": 1}.get(table, 2)',
    "isinstance(change, CommitLog | DeleteTables)",
    "match action:\n    case change.CommitLog(): pass",
    'match operation:\n    case "undo": pass',
    'match change.kind:\n    case "drop_tables": pass',
    'NAME = "undo"\nplan.operation == NAME',
    'NAMES = ("undo", "erasure")\nplan.operation in NAMES',
    'class Undo:\n    name = "undo"\nplan.operation == Undo.name',
    'class Base:\n    name = "undo"\nclass Undo(Base): ...\nplan.operation == Undo.name',
    'plan.operation == ("undo" if back else "erasure")',
    "operation in get_args(Operation)",
    'change.kind == "view"',
    'word == "drop_tables"',
    'name.endswith("compacted")',
    'column.in_(("log", "view"))',
    'commits["view"]',
    'commits.get("view", NOTHING)',
    'commits["log"] or commits[0]',
    'told.pop("quarantine")',
    "dict(log=1, view=2)",
    'dict.fromkeys(("log", "view"), 0)',
    'getattr(tables, "view")',
    'hasattr(tables, "quarantine")',
    "{CommitLog: 1}",
    "issubclass(kind, Rewrite)",
    'frozenset(("log", "view"))',
    'match patch:\n    case "drop_tables": pass',
    'match told:\n    case {"drop_tables": to}: pass',
)
SAYS_NOTHING = (
    'say("undo")',
    "isinstance(found, str)",
    'outcome == "published"',
    "{1: 'undo'}",
    "CommitLog(rows=1)",
    'changes.on("view")',
    'kind: Literal["log"] = "log"',
    'found["at"] or found["changes"]',
    '{"since", "raw", "compacted"}',
    '{"topic": name, "view": found}',
    '{"due": 1, "run": 2, "undo": 3}',
    'entry.holder == "compaction"',
    'policy["on_remove"] == "archive"',
    'settings.get("on_remove") == "archive"',
    'run.reason == "compacted"',
)


def lines_of(text: str) -> set[int]:
    return set(asking(Words({"one": ast.parse(text)}), "one"))


@pytest.mark.parametrize("text", ASKS)
def test_asking_is_seen(text: str) -> None:
    assert len(lines_of(text)) == 1


@pytest.mark.parametrize(
    "asks",
    [
        "from of.layout import SNAPSHOTS as THESE\nkind == THESE",
        "from of.layout import KINDS\nkind in KINDS",
        "from of import layout\nkind == layout.SNAPSHOTS",
        "from of.layout import Kind\nkind == Kind.VIEW",
        "from of import layout\nkind in layout.Kind.ALL",
    ],
)
def test_a_word_of_another_module_is_seen_through_its_name(asks: str) -> None:
    layout = 'SNAPSHOTS = "snapshots"\nKINDS = (SNAPSHOTS, "")\nclass Kind:\n    VIEW = "view"\n    ALL = KINDS'
    assert set(places({"include/of/layout.py": ast.parse(layout), "include/asks.py": ast.parse(asks)})) == {"include/asks.py "}


@pytest.mark.parametrize("text", SAYS_NOTHING)
def test_naming_is_no_asking(text: str) -> None:
    assert lines_of(text) == set()


def test_a_place_is_told_by_its_function_or_its_constant() -> None:
    text = 'class Way:\n    def go(self):\n        if a == "undo":\n            return {"undo": 1}\nUNDOABLE = {"retention"}'
    assert places({"include/message_lifecycle/x.py": ast.parse(text)}) == {"x.py Way.go": [3, 4], "x.py UNDOABLE": [5]}
    assert places(dict.fromkeys(TOLD_APART, ast.parse(text))) == {}


@pytest.fixture(scope="module")
def asked() -> dict[str, list[int]]:
    return places(modules(project_root()))


def test_nobody_but_the_registry_asks_which_operation_table_or_change_it_is(asked: dict[str, list[int]]) -> None:
    """A new place is to be said by the data."""
    assert modules(project_root()).keys() >= TOLD_APART.keys()
    assert asked == {}


def test_each_other_list_tells_something_apart(asked: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(house.OTHER_LISTS)
    monkeypatch.setattr(house, "OTHER_LISTS", {})
    apart = {place for place, lines in places(modules(project_root())).items() if lines != asked.get(place)}
    texts = [(project_root() / _path(place)).read_text(encoding="utf-8") for place in apart]
    assert {name for name in known if not any(re.search(rf"\b{name}\b", text) for text in texts)} == set()


def _path(place: str) -> str:
    path = place.split(" ")[0]
    return path if path.startswith(("include/", "plugins/", "spark_apps/", "dags/")) else f"include/message_lifecycle/{path}"


def answered_once(base: type, kinds: dict[str, type]) -> Iterator[str]:
    """Names of `base` for which exactly one of the kinds has an answer of its own."""
    for name, answer in vars(base).items():
        if not name.startswith("__") and sum(getattr(kind, name) is not answer for kind in kinds.values()) == 1:
            yield name


def test_a_name_that_one_kind_alone_answers_is_found() -> None:
    class Base:
        slow, fast = False, False

        def go(self) -> None: ...

    class One(Base):
        slow, fast = True, True

        def go(self) -> None: ...

    class Other(Base):
        fast = True

    assert list(answered_once(Base, {"one": One, "other": Other})) == ["slow", "go"]


def test_what_one_operation_alone_answers_is_said_by_its_plan_or_its_request() -> None:
    operations = {name: type(registry.operation_named(name)) for name in registry.OPERATIONS}
    assert set(answered_once(Operation, operations)) == set()


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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("if plan.of_documents:\n    pass", [1]),
        ("x = 1 if not verdict.plan.restored_tables else 2", [1]),
        ("[c for c in changes if c.rows and change.mark]", [1]),
        ("x = 1 if change.server_seq else 2", []),
        ("while True:\n    if change.mark is None: pass", [2]),
        ("match x:\n    case 1 if planned.rows: pass", [2]),
        ("x = plan.rows", []),
        ("if policy.rows:\n    plan.check()", []),
    ],
)
def test_a_condition_on_a_plan_is_counted(text: str, lines: list[int]) -> None:
    assert conditions_on_plans(ast.parse(text)) == lines


def test_the_fields_that_say_what_kind_a_plan_is_are_there() -> None:
    assert KINDS <= PARTS
    assert conditions_on_plans(ast.parse("if plan.view is None or plan.topic == name:\n    x = 1 if plan.topic else 2"), KINDS) == [1]


def test_open_types_and_functions_of_a_name_are_counted() -> None:
    tree = ast.parse(
        "from typing import Any\ndef evidence(x: Any) -> dict[str, Any]:\n    return cast('SparkSession', x), cast(SparkSession, x), cast('Any', x)"
    )
    assert (functions_named(tree, "evidence"), uses_of_any(tree), casts_to(tree, "SparkSession")) == (1, 2, 2)
