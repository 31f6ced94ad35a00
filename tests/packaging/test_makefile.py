"""`make` alone explains itself; every word it lists exists and does what the documents say."""

from __future__ import annotations

import os
import re
import subprocess

from tests.packaging.files import ROOT

WORDS = {"demo", "test", "test-fast", "check", "docs", "smoke", "bench", "up", "down", "lock", "help"}


def make(*arguments: str) -> str:
    # A `make` around these tests would hand its own options on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def listed() -> dict[str, str]:
    return dict(re.findall(r"^  make (\S+) +(\S.*)$", make("help"), re.MULTILINE))


def test_make_alone_is_help() -> None:
    assert make() == make("help")


def test_every_word_has_its_line() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    assert set(listed()) == set(phony.group(1).split()) >= WORDS


def test_nothing_is_to_be_installed_twice() -> None:
    assert make("-n", "install") in ("", "make: Nothing to be done for 'install'.\n")


def test_what_the_words_do() -> None:
    assert make("-n", "test").strip() == '.venv/bin/python -m pytest -n 3 -m "not hunt"'
    assert '-m "hunt or generated"' in make("-n", "hunt")
    assert make("-n", "demo").strip() == ".venv/bin/lifecycle demo"
    assert make("-n", "smoke").strip() == ".venv/bin/python -m bench smoke"
    check = make("-n", "check").splitlines()
    assert [line.split()[0] for line in check] == [f".venv/bin/{tool}" for tool in ("ruff", "ruff", "mypy", "lint-imports", "python")]
    assert check[-1] == ".venv/bin/python -m bench.plain"


def test_ci_runs_check_then_docs_then_smoke_then_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-5:] == [
        'export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --hypothesis-profile=ci --durations=10"',
        "make check",
        "make docs",
        "make smoke",
        "make test",
    ]


def test_the_page_names_each_file_of_which_make_test_leaves_something_out() -> None:
    marking = re.compile(r"^@hunt$|^@TABLES_HUNTED$|(?<![.\w])sample\(|\[hunt[,\]]|\bif hunting\(\)", re.MULTILINE)
    found = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*/test_*.py") if marking.search(path.read_text(encoding="utf-8"))}
    found.discard("tests/packaging/test_makefile.py")
    assert found == set(re.findall(r"`(tests/\w+/test_\w+\.py)`", (ROOT / "docs" / "hunt.md").read_text(encoding="utf-8")))
