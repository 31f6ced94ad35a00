"""The table of reasons: it names rules, settings and checks that are there, and a new reason needs its line and its rule alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import operation_named
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.model.reasons import REASONS, DeclaredReason, LimitReason, PurgeReason, reasons_of_family
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.rules import PeriodPassed
from message_lifecycle.model.setting_list import SETTINGS
from message_lifecycle.operations import expiry
from tests.logs import AS_OF, SECOND
from tests.unit.test_steps_again import NAME, append, one, world

ROOT = Path(__file__).parents[2]
GATES = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "include/message_lifecycle/gates").glob("*.py")))

OTHERS = frozenset({"stores/iceberg/evidence.py:value", "stores/iceberg/evidence.py:name", "stores/iceberg/marks.py:reason"})
"""Names of columns that stand where the names of reasons do."""


def table() -> str:
    """The table as docs/rules.md shows it."""
    heads = ["reason", "rules", "settings", "in words", "can be undone", "marker", "checks of the gate"]
    rows = [
        [
            f"`{name}`",
            ", ".join(declared.rules),
            ", ".join(f"`{setting}`" for setting in declared.settings) or "-",
            declared.text,
            "yes" if declared.undoable else "no",
            declared.marker or "-",
            ", ".join(f"`{check}`" for check in declared.checks),
        ]
        for name, declared in REASONS.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def test_the_rules_show_the_table() -> None:
    assert table() in (ROOT / "docs/rules.md").read_text(encoding="utf-8"), f"docs/rules.md lacks:\n{table()}"


@pytest.mark.parametrize("name", REASONS)
def test_a_reason_names_what_is_there(name: str) -> None:
    declared, rules = REASONS[name], (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    assert [rule for rule in declared.rules if f"### {rule} · " not in rules] == []
    assert set(declared.settings) <= {setting.name for setting in SETTINGS}
    assert [check for check in declared.checks if f'"{check}"' not in GATES] == []
    assert declared.rules
    assert declared.checks
    assert (name in expiry.RULES) == (declared.family == "age")
    assert bool(declared.due) == (declared.family in ("age", "limit")), "what the rules find due is explained"


def test_the_lists_that_types_name_are_families_of_the_table() -> None:
    assert get_args(LimitReason) == reasons_of_family("limit")
    assert get_args(PurgeReason) == reasons_of_family("documents")


def _names_reason(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in ("reason", "reasons")


def named_as_reasons(tree: ast.AST) -> Iterator[str]:
    """Each single word that a module compares with a reason, gives as one, or looks up among reasons."""
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(_names_reason, (left, *others))):
                places = [side for side in (left, *others) if not isinstance(side, ast.Call)]
            case ast.keyword(arg="reason" | "reasons", value=ast.Constant() | ast.IfExp() | ast.Tuple() as value):
                places = [value]
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value) if _names_reason(
                target
            ):
                places = [value]
        for place in places:
            for part in ast.walk(place):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and re.fullmatch(r"[a-z_]+", part.value):
                    yield part.value


@pytest.mark.parametrize(
    "text",
    ["x.reason == 'tll'", "'tll' in plan.reasons", "R(reason='tll')", "reason: str = 'a' if b else 'tll'", "reason in ('ttl', 'tll')"],
)
def test_a_misspelt_reason_is_found(text: str) -> None:
    assert "tll" in set(named_as_reasons(ast.parse(text)))


def test_the_product_names_no_reason_that_the_table_lacks() -> None:
    product = ROOT / "include/message_lifecycle"
    found = {
        f"{path.relative_to(product).as_posix()}:{name}": name
        for path in sorted(product.rglob("*.py"))
        for name in named_as_reasons(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {place for place, name in found.items() if name not in REASONS} == OTHERS
    assert len(found) > 30, "the search still finds where reasons are named"


@pytest.mark.parametrize(
    ("reason", "operation"),
    [
        ("erased", "erasure"),
        ("removed", "message_request"),
        ("expiry", "message_cleaner"),
        ("retention_count", "retention"),
        ("compacted", "purge_compacted"),
        ("undone", "undo"),
        ("tombstoned", "compaction"),
        ("purged_synced", "snapshot_with_purge"),
        ("quarantine_age", "quarantine"),
    ],
)
def test_what_can_be_undone_is_what_its_operation_undoes(reason: str, operation: str) -> None:
    assert REASONS[reason].undoable == operation_named(operation).undoable


def test_a_new_reason_needs_its_line_and_its_rule_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned, judged, marked, counted, explained and taken back."""
    declared = DeclaredReason(
        family="age",
        rules=("RET-1",),
        text="an embargo of {max_segments} segments",
        due="its embargo is over",
        checks=("rows_justified",),
        obligation="limits",
        in_view=False,
        marker="MaxAge",
    )
    monkeypatch.setitem(REASONS, "embargo", declared)
    monkeypatch.setitem(expiry.RULES, "embargo", lambda _: PeriodPassed("append_time", 50 * SECOND))
    w = world(subject_delete_marker_ttl=60)
    append(w, one(1, key=b"a"), one(99, key=b"b"))
    s = w.services
    before = explain_message(s, NAME, 0, 0, as_of=AS_OF)
    assert (before.verdict, before.why) == ("due", f"{declared.due}. The next run removes it")
    done = steps.run(s, NAME, as_of=AS_OF)
    assert (done.name, done.removed, done.markers) == ("published", (("embargo", 1),), 1), done.detail
    removal = explain_message(s, NAME, 0, 0, as_of=AS_OF).removed_by
    assert removal is not None and removal.reason == "embargo"
    assert removal.rule.startswith("an embargo of ")
    assert done.plan_id is not None
    undo = steps.run(s, NAME, as_of=AS_OF, work=UndoPlan(plan_id=done.plan_id), approver=lambda *_: (True, "ada", "back"))
    assert (undo.name, undo.restored) == ("published", 1), undo.detail
