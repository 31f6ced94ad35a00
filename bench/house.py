"""How large the house is, and where it asks which operation or which table it is: counted from the code itself, never estimated.

`python -m bench.house` prints the figures that CONTRIBUTING states; `--places` names each place that asks.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import get_args, get_type_hints

from message_lifecycle.app import steps
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.local.layout import project_root
from message_lifecycle.model.change import Change, Commit
from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.settings import resolve

FOLDERS = ("include", "plugins", "spark_apps", "dags")
PACKAGE = "message_lifecycle"
TOLD_APART = {
    "include/message_lifecycle/app/operations/registry.py": "where alone an operation is meant to be told from another by its name",
    "include/message_lifecycle/ledger/older_formats.py": "what an earlier version recorded is told apart by the words of its time",
}
"""Modules that ask by design, and why. All others say what they know by the data."""
ROOT_ERROR = "LifecycleError"
OPERATIONS = frozenset(get_args(Operation))
TABLES = frozenset((*get_args(TableKind), *get_args(get_type_hints(Commit)["table"])))
CHANGES = {kind.__name__: get_args(get_type_hints(kind)["kind"])[0] for kind in get_args(Change)}
"""Classes of changes, and the words for them."""
OTHER_LISTS = {
    "holder": "who holds what is overdue (`plan.Holder`); compaction is one of them",
    "READER": "the reader for whose progress the log waits; compaction is one of them",
    "on_remove": "the setting; archive is one of its values",
    "field_name": "a field that a scenario expects; changes is one of them",
}
"""Names of what holds a word of another list, which only looks like one of ours."""
SECOND = 1_000_000


def modules(root: Path) -> dict[str, ast.Module]:
    """Path from the root -> what stands there."""
    found = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in found}


def _module(path: str) -> str:
    return path.removeprefix("include/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def places(trees: Mapping[str, ast.Module]) -> dict[str, list[int]]:
    """Where it is asked, as path and the function or the constant in it -> lines. `TOLD_APART` is left out."""
    found: dict[str, list[int]] = defaultdict(list)
    named = {_module(path): _constants(tree) for path, tree in trees.items()}
    for path, tree in trees.items():
        for line in sorted(set(asking(tree, named))) if path not in TOLD_APART else ():
            found[f"{path.removeprefix(f'include/{PACKAGE}/')} {_owner(tree, line)}"].append(line)
    return dict(found)


def asking(tree: ast.Module, named: Mapping[str, Mapping[str, ast.expr]] = MappingProxyType({})) -> Iterator[int]:
    """Lines that compare, match, look up or test by an operation's name, a table's kind or a change's kind; also where a constant has the
    name, of this module or imported. A call that gives one, and a key by which one part of many is read, only name it. `named`: constants
    of the other modules."""
    constants = {**dict(_imported_constants(tree, named)), **_constants(tree)}
    words = OPERATIONS | TABLES

    def has(node: ast.AST, words: Collection[str]) -> bool:
        return any(word in words for word in _texts(node, constants))

    def mostly(nodes: Sequence[ast.AST | None], least: int) -> bool:
        """Whether they are a list of ours: commands, kinds of readers and fields of JSON share a word with one."""
        among = [[node is not None and has(node, list_) for node in nodes] for list_ in (OPERATIONS, TABLES)]
        return any(sum(hits) >= least and 2 * sum(hits) >= len(hits) for hits, least in zip(among, (1, least), strict=True))

    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                parts = (node.left, *node.comparators)
                asked = any(has(part, words) for part in parts) and not any(_holds(part) in OTHER_LISTS for part in parts)
                asked |= any(has(part, CHANGES.values()) for part in parts) and any(_holds(part) == "kind" for part in parts)
                asked |= any(_named(part) in CHANGES for part in parts)
            case ast.Match():
                of_kind = _holds(node.subject) == "kind"
                values = [part for case in node.cases for part in ast.walk(case.pattern) if isinstance(part, ast.MatchValue)]
                yield from (one.lineno for one in values if has(one.value, words) or (of_kind and has(one.value, CHANGES.values())))
                asked = False
            case ast.MatchClass():
                asked = _named(node.cls) in CHANGES
            case ast.Dict():
                asked = mostly(node.keys, 2)
            case ast.Set() | ast.Call(func=ast.Name(id="frozenset" | "set")):
                asked = has(node, OPERATIONS)
            case ast.Subscript(value=ast.Dict() as table) | ast.Call(func=ast.Attribute(value=ast.Dict() as table, attr="get")):
                asked = mostly(table.keys, 1)
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                asked = any(_named(part) in CHANGES for part in ast.walk(kinds))
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "removeprefix"), args=[text, *_]):
                asked = has(text, OPERATIONS)
            case _:
                asked = False
        if asked and isinstance(node, ast.expr | ast.pattern):
            yield node.lineno


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """What a module names once, at its top."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
            case _:
                pass
    return found


def _imported_constants(tree: ast.Module, named: Mapping[str, Mapping[str, ast.expr]]) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known = named.get(node.module or "", {})
            yield from ((alias.asname or alias.name, known[alias.name]) for alias in node.names if alias.name in known)


def _texts(node: ast.AST, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """The text that it is, or those of a collection."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.List(elts=parts) | ast.Dict(keys=parts):
            for part in parts:
                yield from () if part is None else _texts(part, constants)
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple"), args=[parts]):
            yield from _texts(parts, constants)
        case ast.Name(id=name) if name in constants:
            yield from _texts(constants[name], {})
        case _:
            pass


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
    """The function or the constant in which the line stands."""
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
    """All below the root error, by name."""
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


def entered(root: Path) -> set[str]:
    """Modules of ours of which a function runs while a `run` takes two of three messages on the memory store."""
    world = memory_world({})
    name = TopicName(stream="house", topic="messages")
    world.set_now(Instant(100 * SECOND))
    create_topic(world.services, name, partitions=1, settings={"message_expiry": 10, "max_removed_fraction": 1.0})
    policy = resolve(topic=world.services.topics.describe(name).settings, server={})
    times = [(1, 0), (2, 0), (99, 2)]
    messages = [NewMessage(append_time=Instant(t * SECOND), key=b"k", value=b"v", segment=base) for t, base in times]
    world.writer.append(name, messages, policy)
    assert not isinstance(world.services.gate, GreatExpectationsGate), "the memory store's judge is in plain Python"
    ours, found = str(root / "include" / PACKAGE), set[str]()

    def note(frame: object, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)  # type: ignore[attr-defined]  # a frame, which `sys` gives no name

    sys.setprofile(note)
    try:
        outcome = steps.run(world.services, name, as_of=Instant(100 * SECOND))
    finally:
        sys.setprofile(None)
    assert (outcome.name, dict(outcome.removed)) == ("published", {"expiry": 2}), outcome
    return {path for path in found if path.startswith(ours)}


def main() -> int:
    root = project_root()
    trees = modules(root)
    lines = {path: len((root / path).read_text(encoding="utf-8").splitlines()) for path in trees}
    asked = places(trees)
    protocols, methods = port_methods(trees)
    total = sum(lines.values())
    figures = {
        "lines": total,
        "modules": len(lines),
        "lines of a module, median": sorted(lines.values())[len(lines) // 2],
        "import lines, %": round(100 * sum(import_lines(tree) for tree in trees.values()) / total, 1),
        "places that ask which operation, table or change": sum(map(len, asked.values())),
        "protocols": protocols,
        "methods of protocols": methods,
        "error classes": len(error_classes(trees)),
        "circles of imports": len(circles(trees)),
        "modules that a run on the memory store enters": len(entered(root)),
    }
    for name, figure in figures.items():
        print(f"{figure:>8,}  {name}" if isinstance(figure, int) else f"{figure:>8}  {name}")
    if "--places" in sys.argv:
        for place, where in asked.items():
            print(f"{len(where):>4}  {place}: {', '.join(map(str, where))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
