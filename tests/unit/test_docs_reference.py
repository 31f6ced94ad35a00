"""The docs name every kind of obligation, every holder, every variable, and the values that the server file of this project changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from message_lifecycle.app.config import server_settings_file
from message_lifecycle.model.obligation import ObligationKind
from message_lifecycle.model.plan import Holder
from message_lifecycle.model.settings import BY_NAME
from message_lifecycle.ports import ChangeStore

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INTERNAL = {"LIFECYCLE_PROCESS_OF", "LIFECYCLE_AIRFLOW_DB_URL", "LIFECYCLE_AIRFLOW_PORT"}
"""Variables that the embedded default sets for its own processes."""


@pytest.mark.parametrize(("page", "words"), [("metrics.md", ObligationKind), ("explain.md", Holder)])
def test_table_has_a_row_for_each(page: str, words: object) -> None:
    rows = [line.split("|")[1].strip() for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {f"`{word}`" for word in get_args(words)} <= set(rows)


def test_settings_name_every_variable() -> None:
    sources = [path for folder in ("include", "plugins", "dags", "spark_apps") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"[\"'{](LIFECYCLE_[A-Z_]+)", path.read_text(encoding="utf-8"))}
    table = set(re.findall(r"^\| `(LIFECYCLE_\w+)`", (DOCS / "settings.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert table == read - INTERNAL


def test_settings_name_what_the_server_file_changes() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    settings = {BY_NAME[name]: value for name, value in server_settings_file(ROOT / "include" / "lifecycle.toml").items()}
    changed = {setting: value for setting, value in settings.items() if value != setting.default}
    assert len(changed) == 2
    for setting, value in changed.items():
        assert re.search(rf"`\[{setting.section}\] {setting.key}`\s+is\s+{value}\b", page)


def test_contributing_names_the_methods_of_a_store() -> None:
    methods = [name for name, made in vars(ChangeStore).items() if callable(made) and not name.startswith("_")]
    assert ", ".join(f"`{name}`" for name in methods) in " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())


def test_contributing_names_only_what_is_there() -> None:
    """A rename makes a page stale without a word: each compound name between backticks is a word of the code, or a file's."""
    files = [
        ROOT / "pyproject.toml",
        *(path for folder in ("include", "plugins", "spark_apps", "dags", "tests", "bench") for path in (ROOT / folder).rglob("*")),
    ]
    known = {path.stem for path in files}.union(
        *(re.findall(r"\w+", path.read_text(encoding="utf-8")) for path in files if path.suffix in (".py", ".toml"))
    )
    prose = re.sub(r"```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    named = {word for span in re.findall(r"`([^`\n*]+)`", prose) for word in re.findall(r"\b(?:[A-Za-z]\w*_\w+|[A-Z][a-z]+[A-Z]\w+)", span)}
    assert len(named) > 100
    assert named - known == set()
