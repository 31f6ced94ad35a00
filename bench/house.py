"""How large the house is, and where it asks which operation or which table it is: counted from the code itself, never estimated.

`python -m bench.house` prints the figures that CONTRIBUTING states; `--places` names each place that asks.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from message_lifecycle.app import steps
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.local.layout import project_root
from message_lifecycle.model.change import Change
from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.settings import resolve

FOLDERS = ("include", "plugins", "spark_apps", "dags")
PACKAGE = "message_lifecycle"
REGISTRY = "include/message_lifecycle/app/operations/registry.py"
"""Where alone an operation is meant to be told from another by its name."""
ROOT_ERROR = "LifecycleError"
OPERATIONS = frozenset(get_args(Operation))
TABLES = frozenset(get_args(TableKind))
CHANGES = frozenset(kind.__name__ for kind in get_args(Change))
SECOND = 1_000_000


def modules(root: Path) -> dict[str, ast.Module]:
    """Path from the root -> what stands there."""
    found = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in found}


def asking(tree: ast.Module) -> Iterator[int]:
    """Lines that compare, match, look up or test by an operation's name, a table's kind or a change's kind."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                asked = any(_names(part, OPERATIONS | TABLES) for part in (node.left, *node.comparators))
            case ast.MatchValue():
                asked = _names(node.value, OPERATIONS | TABLES)
            case ast.MatchClass():
                asked = _named(node.cls) in CHANGES
            case ast.Dict():
                asked = any(key is not None and _names(key, OPERATIONS) for key in node.keys)
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                asked = any(_named(part) in CHANGES for part in ast.walk(kinds))
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=[text, *_]):
                asked = _names(text, OPERATIONS)
            case ast.Call(func=ast.Name(id="frozenset" | "set"), args=[kinds]):
                asked = _names(kinds, OPERATIONS)
            case _:
                asked = False
        if asked and isinstance(node, ast.expr | ast.pattern):
            yield node.lineno


def _names(node: ast.AST, words: frozenset[str]) -> bool:
    """Whether it is one of the words, or a collection that has one."""
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(_names(one, words) for one in node.elts)
    return isinstance(node, ast.Constant) and node.value in words


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
    names = {
        path.removeprefix("include/").removesuffix(".py").removesuffix("/__init__").replace("/", "."): tree for path, tree in trees.items()
    }
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
    places = {path: sorted(set(asking(tree))) for path, tree in trees.items() if path != REGISTRY}
    protocols, methods = port_methods(trees)
    total = sum(lines.values())
    figures = {
        "lines": total,
        "modules": len(lines),
        "lines of a module, median": sorted(lines.values())[len(lines) // 2],
        "import lines, %": round(100 * sum(import_lines(tree) for tree in trees.values()) / total, 1),
        "places that ask which operation, table or change": sum(map(len, places.values())),
        "protocols": protocols,
        "methods of protocols": methods,
        "error classes": len(error_classes(trees)),
        "circles of imports": len(circles(trees)),
        "modules that a run on the memory store enters": len(entered(root)),
    }
    for name, figure in figures.items():
        print(f"{figure:>8,}  {name}" if isinstance(figure, int) else f"{figure:>8}  {name}")
    if "--places" in sys.argv:
        for path, where in sorted(places.items(), key=lambda entry: -len(entry[1])):
            if where:
                print(f"{len(where):>4}  {path}: {', '.join(map(str, where))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
