"""The count of places that ask which operation, table or change it is: each way of asking is seen, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from bench.house import TOLD_APART, asking, circles, error_classes, modules, places

from message_lifecycle.app.operations import registry
from message_lifecycle.app.operations.base import Operation
from message_lifecycle.local.layout import project_root

ASKS = (
    'plan.operation == "compaction"',
    'operation in ("undo", "erasure")',
    'table.kind != "quarantine"',
    'change.table == "changes"',
    'change.kind == "move"',
    'one["kind"] != "forget"',
    "type(change) is Commit",
    'operation.startswith("undo")',
    'frozenset(("undo", "erasure"))',
    'BEGUN = {"undo", "published"}',
    '{"undo": 1}',
    '{"message_cleaner": "run", "compaction": "compact", "else": "publish"}',
    '{"log": 1, "view": 2}[table]',
    '{"view": 1}.get(table, 2)',
    "isinstance(change, Commit | Move)",
    "match action:\n    case change.Commit(): pass",
    'match operation:\n    case "undo": pass',
    'match change.kind:\n    case "move": pass',
    'NAME = "undo"\nplan.operation == NAME',
    'NAMES = ("undo", "erasure")\nplan.operation in NAMES',
)
SAYS_NOTHING = (
    'say("undo")',
    "isinstance(found, str)",
    'outcome == "published"',
    "{1: 'undo'}",
    "Commit(rows=1)",
    'commits["view"]',
    '{"topic": name, "view": found}',
    '{"due": 1, "run": 2, "undo": 3}',
    'entry.holder == "compaction"',
    'policy["on_remove"] == "archive"',
    'settings.get("on_remove") == "archive"',
    'match patch:\n    case "move": pass',
)
ALLOWED = {
    "model/erasure.py TABLE_KINDS": (1, "the list of kinds of tables, with what is true of each"),
    "model/backends.py check_operation": (1, "what logs of records can do, which stores refuse by; they lie below the registry"),
    "operations/undo.py TAKEN_BACK": (
        1,
        "a table's history names operations, and the store reads it; the registry says the same (a test holds it)",
    ),
    "ledger/erasures.py Erasures.document_topics": (1, "a question to the database, whose rows name operations"),
    "stores/iceberg/compaction/store.py IcebergViews.has_begun": (1, "a table's history names the operation that has ended it"),
    "stores/iceberg/erasure/heads.py Heads.of": (1, "the same list of `operations/undo.py`, asked of a table's history"),
    "stores/iceberg/erasure/store.py _KINDS": (1, "where this store has the tables of each kind"),
    "stores/memory/eraser.py MemoryEraser.evidence": (1, "where this store has the messages of each kind of table"),
    "stores/memory/eraser.py _documents_evidence": (1, "where this store has the tables of documents, by kind"),
}
"""Places that ask all the same, how often, and why."""
ONCE = {
    "works_beside": "only compaction lets the topic's other operations go on (CMP-10), also where it has nothing to do",
    "check_place": "only retention is for topics of backends alone (RET-5)",
    "work_on": "only where space is reclaimed may a name stand for a topic that was deleted",
    "after": "only what an undo gives back to the view makes the SQL view say so, before the log has its part",
    "prepare": "only the purge of what is compacted makes the view's name anew before it is planned",
}
"""What only one operation answers otherwise than the base, and why no plan, change or request says it."""


@pytest.mark.parametrize("text", ASKS)
def test_asking_is_seen(text: str) -> None:
    assert len(set(asking(ast.parse(text)))) == 1


def test_a_word_of_another_module_is_seen_through_its_name() -> None:
    layout, asks = ast.parse('SNAPSHOTS = "snapshots"'), ast.parse("from layout import SNAPSHOTS as THESE\nkind == THESE")
    assert set(places({"include/layout.py": layout, "include/asks.py": asks})) == {"include/asks.py "}


@pytest.mark.parametrize("text", SAYS_NOTHING)
def test_naming_is_no_asking(text: str) -> None:
    assert list(asking(ast.parse(text))) == []


def test_a_place_is_told_by_its_function_or_its_constant() -> None:
    text = 'class Way:\n    def go(self):\n        if a == "undo":\n            return {"undo": 1}\nUNDOABLE = {"retention"}'
    assert places({"include/message_lifecycle/x.py": ast.parse(text)}) == {"x.py Way.go": [3, 4], "x.py UNDOABLE": [5]}
    assert places(dict.fromkeys(TOLD_APART, ast.parse(text))) == {}


def test_nobody_but_the_registry_asks_which_operation_table_or_change_it_is() -> None:
    """A new place is to be said by the data; one that has gone leaves the list."""
    trees = modules(project_root())
    assert trees.keys() >= TOLD_APART.keys()
    assert {place: len(lines) for place, lines in places(trees).items()} == {place: count for place, (count, _) in ALLOWED.items()}


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
    operations = {name: type(registry.named(name)) for name in registry.OPERATIONS}
    assert set(answered_once(Operation, operations)) == ONCE.keys()


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
