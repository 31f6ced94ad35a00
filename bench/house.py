"""The size of the code base, and the places where code asks which operation or table it has. The figures come from the code itself.

`python -m bench.house` prints the figures that CONTRIBUTING states; `--places` names each place that asks.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import FrameType
from typing import get_args, get_type_hints

from lifecycle_local.layout import project_root
from message_lifecycle.app import steps
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.model.change import Change
from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.settings import resolve
from message_lifecycle.stores.iceberg.layout import BESIDE

FOLDERS = ("include", "plugins", "spark_apps", "dags")
PACKAGE = "message_lifecycle"
EMBEDDED = "lifecycle_local"
PLANNED = frozenset({"plan", "change", "commit", "planned"})
"""Names that hold a plan or one of its changes. A field belongs to a plan, too, if it is read from a field `plan`."""
PARTS = frozenset(name for kind in (Plan, *get_args(Change)) for name in (*dir(kind), *(field.name for field in fields(kind))))
"""Fields, properties and methods of a plan and of its changes. A document's change, for example, has other fields."""
KINDS = frozenset({
    "archives", "changes_log", "erasure", "is_beside", "is_irreversible", "log_commit", "log_return", "of_documents", "past_horizon",
    "rewrites_of", "snapshots", "snapshots_commit", "sweep", "takes_back", "view", "view_commit", "view_removal", "view_return",
})  # fmt: skip
"""The fields of these that say which commits a plan has and what kind it is. The others are identities, times, counts and lists."""
TOLD_APART = {
    "include/message_lifecycle/app/operations/registry.py": "where alone an operation is meant to be told from another by its name",
}
"""Modules that ask by design, with the reason. All other modules decide by the data."""
ROOT_ERROR = "LifecycleError"
OPERATIONS = frozenset(get_args(Operation))
TABLES = frozenset((*get_args(TableKind), *BESIDE))
"""Kinds of tables, as plans name them and as the catalog does."""
CHANGES = {kind.__name__: get_args(get_type_hints(kind)["kind"])[0] for kind in get_args(Change)}
"""Classes of changes, and the words for them."""
WORDS = OPERATIONS | TABLES | frozenset(CHANGES.values()) | {store for kind in get_args(Change) for store in kind.later_stores}
LISTS = {"Operation": OPERATIONS, "TableKind": TABLES}
UNMISTAKABLE = frozenset(word for word in OPERATIONS if "_" in word)
"""Words that no other list has."""
REST = frozenset({"else", "other", "rest", "default", "*", ""})
"""Words for "every other word", which belong to no list."""
TESTS = ("startswith", "endswith", "removeprefix", "removesuffix", "in_", "not_in", "is_", "isin", "index", "count", "contains", "fromkeys")
"""Methods that test by what they are given, of texts, collections and columns."""
OTHER_LISTS = {
    "holder": "who holds what is overdue (`plan.Holder`); compaction is one of them",
    "READER": "the reader for whose progress the log waits; compaction is one of them",
    "reason": "why a message goes (`model.reasons`); compacted is one of them",
    "reasons": "the same",
    "family": "what kind of reason it is (`model.reasons.Family`); view is one of them",
    "on_remove": "the setting; archive is one of its values",
    "field_name": "a field that a scenario expects; changes is one of them",
}
"""Names of what holds a word of another list, which only looks like one of ours."""
SECOND = 1_000_000


@cache
def modules(root: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its path from the root."""
    found = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in found}


def _module(path: str) -> str:
    return path.removeprefix("include/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def places(trees: Mapping[str, ast.Module]) -> dict[str, list[int]]:
    """Return the lines that ask, by the path and the function or constant around them. `TOLD_APART` is left out."""
    found: dict[str, list[int]] = defaultdict(list)
    words = Words({_module(path): tree for path, tree in trees.items()})
    for path, tree in trees.items():
        for line in sorted(set(asking(words, _module(path)))) if path not in TOLD_APART else ():
            found[f"{path.removeprefix(f'include/{PACKAGE}/')} {_owner(tree, line)}"].append(line)
    return dict(found)


def asking(words: Words, module: str) -> Iterator[int]:
    """Yield lines that decide by the name of an operation, a table's kind, a change's kind, or a change's class.

    Such a line compares, matches, looks up, collects or tests, by such a name or by a constant with the name. A call with a name as its
    argument, and a type that lists the names, do not count.

    Three cases belong to other lists and do not count:

    - the names in `OTHER_LISTS`;
    - a dict or set whose names are not ours by half or more, unless a name is `UNMISTAKABLE`;
    - a key of a record: the same module reads other keys of the record, too, so the record has fields."""
    tree = words.trees[module]
    fields = [(of, key.value) for of, key in _reads(tree) if isinstance(key, ast.Constant)]
    records = {_holds(of) for of, key in fields if isinstance(key, str) and key not in WORDS} - {""}

    def ours(node: ast.AST | None) -> bool:
        return node is not None and not WORDS.isdisjoint(words.of(module, node))

    def lists(parts: Iterable[ast.AST | None], more: int) -> bool:
        texts = [words.of(module, part) for part in parts if part is not None]
        others = sum(bool(text) and WORDS.isdisjoint(text) and REST.isdisjoint(text) for text in texts)
        among = sum(not WORDS.isdisjoint(text) for text in texts)
        return among >= max(1, others + more) or any(not UNMISTAKABLE.isdisjoint(text) for text in texts)

    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                parts = (node.left, *node.comparators)
                asked = any(map(ours, parts)) and not any(_holds(part) in OTHER_LISTS for part in parts)
                asked |= any(_named(part) in CHANGES for part in parts)
            case ast.match_case():
                asked = False
                yield from (
                    part.lineno for part in ast.walk(node.pattern) if isinstance(part, ast.MatchClass) and _named(part.cls) in CHANGES
                )
                yield from (
                    part.lineno for part in ast.walk(node.pattern) if isinstance(part, ast.MatchMapping) and any(map(ours, part.keys))
                )
            case ast.Match() if _holds(node.subject) not in OTHER_LISTS:
                asked = False
                values = [part for case in node.cases for part in ast.walk(case.pattern) if isinstance(part, ast.MatchValue)]
                yield from (part.lineno for part in values if ours(part.value))
            case ast.Dict(keys=keys):
                asked = lists(keys, 1) or any(key is not None and _named(key) in CHANGES for key in keys)
            case ast.Call(func=ast.Name(id="dict"), keywords=[_, *_] as given):
                asked = lists([ast.Constant(one.arg) for one in given], 1)
            case ast.Set(elts=parts) | ast.Call(func=ast.Name(id="frozenset" | "set"), args=[ast.Tuple(elts=parts) | ast.List(elts=parts)]):
                asked = lists(parts, 0)
            case ast.Call(func=ast.Name(id="frozenset" | "set"), args=[whole]):
                asked = ours(whole)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                asked = any(_named(part) in CHANGES for part in ast.walk(kinds))
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, name, *_]):
                asked = ours(name)
            case ast.Call(func=ast.Attribute(attr=test), args=given) if test in TESTS:
                asked = any(map(ours, given))
            case _:
                asked = False
        if asked and isinstance(node, ast.expr):
            yield node.lineno
    yield from (key.lineno for of, key in _reads(tree) if ours(key) and _holds(of) not in records | OTHER_LISTS.keys())


def _reads(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each expression that is read or written by a key, with the key."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=of, slice=key) if _named(of) != "Literal":
                yield of, key
            case ast.Call(func=ast.Attribute(value=of, attr="get" | "pop" | "setdefault"), args=[key, *_]):
                yield of, key
            case _:
                pass


class Words:
    """The texts that an expression stands for. Follows names of the module, of its classes, and of its imports."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self._known = {module: dict(_constants(tree)) for module, tree in trees.items()}
        self._from = {module: dict(_origins(tree)) for module, tree in trees.items()}

    def of(self, module: str, node: ast.AST, seen: frozenset[tuple[str, str]] = frozenset()) -> frozenset[str]:
        """Return the texts of an expression: a text itself, the items of a collection, or the texts of both branches."""
        match node:
            case ast.Constant(value=str(text)):
                return frozenset({text})
            case ast.Call(func=ast.Name(id="get_args"), args=[ast.Name(id=name) | ast.Attribute(attr=name)]):
                return LISTS.get(name, frozenset())
            case ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.List(elts=parts) | ast.Dict(keys=parts):
                inner = [part for part in parts if part is not None]
            case (
                ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "list" | "sorted" | "str"), args=[part]) | ast.Starred(value=part)
            ):
                inner = [part]
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                inner = [one, other]
            case ast.Name() | ast.Attribute():
                return self._named(module, _dotted(node), seen)
            case _:
                return frozenset()
        return frozenset[str]().union(*(self.of(module, part, seen) for part in inner))

    def _named(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> frozenset[str]:
        if (module, name) in seen or module not in self.trees:
            return frozenset()
        seen |= {(module, name)}
        if name in self._known[module]:
            return self.of(module, self._known[module][name], seen)
        of, dot, attr = name.partition(".")
        if of in self._from[module]:  # a name of another module, or of a class there, or that module itself
            origin, _, inner = self._from[module][of].rpartition(".")
            return self._named(origin, f"{inner}{dot}{attr}", seen) | self._named(f"{origin}.{inner}", attr, seen)
        bases = [base for node in self.trees[module].body if isinstance(node, ast.ClassDef) and node.name == of for base in node.bases]
        return frozenset[str]().union(*(self._named(module, f"{_named(base)}{dot}{attr}", seen) for base in bases if dot))


def _dotted(node: ast.AST) -> str:
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else _named(node)


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module or one of its classes assigns at its top, with the values."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for within, body in [("", tree.body), *((f"{of.name}.", of.body) for of in classes)]:
        for node in body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    yield within + name, value
                case _:
                    pass


def _origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that are imported, and where each comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _holds(node: ast.AST) -> str:
    """The name of a variable, an attribute, or a key that is read."""
    match node:
        case (
            ast.Subscript(slice=ast.Constant(value=str(key)))
            | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_])
        ):
            return key
        case _:
            return _named(node)


def _owner(tree: ast.Module, line: int) -> str:
    """Return the name of the function or constant around the line."""
    names: list[str] = []
    body: Sequence[ast.stmt] = tree.body
    while inner := next((node for node in body if node.lineno <= line <= (node.end_lineno or node.lineno)), None):
        match inner:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
                body = inner.body
            case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)) if not names:
                return name
            case _:
                break
    return ".".join(names)


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def import_lines(tree: ast.Module) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
    )


def error_classes(trees: Mapping[str, ast.Module]) -> set[str]:
    """Return the names of all classes below the root error."""
    bases: dict[str, set[str]] = {
        node.name: {_named(base) for base in node.bases}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {ROOT_ERROR}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def port_methods(trees: Mapping[str, ast.Module]) -> tuple[int, int]:
    """Protocols, and the methods that they declare."""
    protocols = [
        node
        for path, tree in trees.items()
        if "/ports" in path
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(isinstance(part, ast.FunctionDef) for part in node.body)
    ]
    return len(protocols), sum(isinstance(part, ast.FunctionDef) for node in protocols for part in node.body)


def circles(trees: Mapping[str, ast.Module]) -> list[set[str]]:
    """Modules that import each other, imports within functions included and those for types alone left out."""
    names = {_module(path): tree for path, tree in trees.items()}
    imports = {name: set(_imported(tree, names)) - {name} for name, tree in names.items()}
    reach: dict[str, set[str]] = {}
    for name in imports:
        seen, waiting = set[str](), list(imports[name])
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting += imports[one]
        reach[name] = seen
    found: dict[str, set[str]] = defaultdict(set)
    for name in sorted(reach):
        if name in reach[name]:
            found[min(other for other in reach[name] if name in reach[other])].add(name)
    return list(found.values())


def _imported(node: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    if isinstance(node, ast.If) and _named(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom) and node.module in known:
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from inner & known.keys()
        if inner - known.keys():
            yield str(node.module)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child, known)


def _conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that decide between branches."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield test
            case ast.comprehension(ifs=tests):
                yield from tests
            case ast.match_case(guard=ast.expr() as guard):
                yield guard
            case _:
                pass


def conditions_on_plans(tree: ast.AST, fields: frozenset[str] = PARTS) -> list[int]:
    """Return the lines of conditions that read one of these fields of a plan or of a change."""
    return [test.lineno for test in _conditions(tree) if any(_reads_plan(node, fields) for node in ast.walk(test))]


def _reads_plan(node: ast.AST, fields: frozenset[str]) -> bool:
    return isinstance(node, ast.Attribute) and _named(node.value) in PLANNED and node.attr in fields


def functions_named(tree: ast.AST, name: str) -> int:
    return sum(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


def uses_of_any(tree: ast.AST) -> int:
    """Count the types that are `Any`."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def casts_to(tree: ast.AST, kind: str) -> int:
    """Count the values that are cast to this type without a check."""
    return sum(
        isinstance(node, ast.Call)
        and _named(node.func) == "cast"
        and bool(node.args)
        and (_named(node.args[0]) == kind or (isinstance(node.args[0], ast.Constant) and node.args[0].value == kind))
        for node in ast.walk(tree)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """Counts of one run: `functions` that it enters, by file, line and name, and `moves`, the calls from one of our files to another."""

    functions: frozenset[tuple[str, int, str]]
    moves: int

    @property
    def modules(self) -> set[str]:
        return {path for path, _, _ in self.functions}


def entered(root: Path) -> Entered:
    """Return what runs of ours while a `run` takes two of three messages on the memory store."""
    world = memory_world({})
    name = TopicName(stream="house", topic="messages")
    world.set_now(Instant(100 * SECOND))
    create_topic(world.services, name, partitions=1, settings={"message_expiry": 10, "max_removed_fraction": 1.0})
    policy = resolve(topic=world.services.topics.describe(name).settings, server={})
    times = [(1, 0), (2, 0), (99, 2)]
    messages = [NewMessage(append_time=Instant(t * SECOND), key=b"k", value=b"v", segment=base) for t, base in times]
    world.writer.append(name, messages, policy)
    assert not isinstance(world.services.gate, GreatExpectationsGate), "the memory store's judge is in plain Python"
    ours, functions, moves = str(root / "include" / PACKAGE), set[tuple[str, int, str]](), 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal moves
        code, caller = frame.f_code, frame.f_back
        if event != "call" or not code.co_filename.startswith(ours) or code.co_name.startswith("<"):
            return
        functions.add((code.co_filename, code.co_firstlineno, code.co_name))
        moves += caller is not None and caller.f_code.co_filename.startswith(ours) and caller.f_code.co_filename != code.co_filename

    sys.setprofile(note)
    try:
        outcome = steps.run(world.services, name, as_of=Instant(100 * SECOND))
    finally:
        sys.setprofile(None)
    assert (outcome.name, dict(outcome.removed)) == ("published", {"expiry": 2}), outcome
    return Entered(functions=frozenset(functions), moves=moves)


def main() -> int:
    root = project_root()
    trees = modules(root)
    lines = {path: len((root / path).read_text(encoding="utf-8").splitlines()) for path in trees}
    asked = places(trees)
    protocols, methods = port_methods(trees)
    total = sum(lines.values())
    core = {path: tree for path, tree in trees.items() if path.startswith(f"include/{PACKAGE}/")}
    embedded = [path for path in trees if path.startswith(f"include/{EMBEDDED}/")]
    ran = entered(root)
    figures = {
        "lines": total,
        "modules": len(lines),
        "lines of the product": sum(lines[path] for path in core),
        "modules of the product": len(core),
        "lines of the embedded default": sum(lines[path] for path in embedded),
        "modules of the embedded default": len(embedded),
        "lines of a module, median": sorted(lines.values())[len(lines) // 2],
        "import lines, %": round(100 * sum(import_lines(tree) for tree in trees.values()) / total, 1),
        "places that ask which operation, table or change": sum(map(len, asked.values())),
        "conditions on fields of a plan or a change": sum(len(conditions_on_plans(tree)) for tree in core.values()),
        "of these, on the kind of plan or commit": sum(len(conditions_on_plans(tree, KINDS)) for tree in core.values()),
        "functions named `evidence`": sum(functions_named(tree, "evidence") for tree in core.values()),
        "uses of `Any`": sum(map(uses_of_any, core.values())),
        "casts to SparkSession": sum(casts_to(tree, "SparkSession") for tree in core.values()),
        "protocols": protocols,
        "methods of protocols": methods,
        "error classes": len(error_classes(trees)),
        "circles of imports": len(circles(trees)),
        "modules that a run on the memory store enters": len(ran.modules),
        "functions that it enters": len(ran.functions),
        "calls of it from one file to another": ran.moves,
    }
    for name, figure in figures.items():
        print(f"{figure:>8,}  {name}" if isinstance(figure, int) else f"{figure:>8}  {name}")
    if "--places" in sys.argv:
        for place, where in asked.items():
            print(f"{len(where):>4}  {place}: {', '.join(map(str, where))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
