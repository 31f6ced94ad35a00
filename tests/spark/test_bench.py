"""A benchmark that fails half-way leaves nothing behind, and a smoke run fails on errors alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import size, smoke
from tests.effort import sample

from message_lifecycle.app.wiring import lake as wired

BREAKS = """
import importlib, sys
def breaks(*_arguments, **_options):
    raise RuntimeError("the step is broken")
module = importlib.import_module(f"bench.{sys.argv[1]}")
owner, _, name = sys.argv[2].rpartition(".")
setattr(getattr(module, owner) if owner else module, name, breaks)
sys.argv[1:] = sys.argv[3:]
sys.exit(module.main())
"""
STEPS = {
    "compaction": ("compact", "--only", "unique"),
    "due": ("cost",),
    "erasure": ("erased",),
    "object_store": ("Side.measure",),
    "ttl_rows": ("removed",),
}
"""A step of each benchmark that comes after it has made its topics, and options. The others make their topics as one of these does."""


def scratch(folder: Path) -> set[str]:
    """Files and folders that benchmarks make for one run, apart from the data that the next run uses again."""
    return {
        path.name
        for path in (folder / "scratch").rglob("*")
        if path.name.startswith(("ledger-", "making", "rewritten", "bench-compaction"))
    }


# The benchmark of the object store ends its topics in the same block as that of compaction, and that of single messages as an erasure's.
@pytest.mark.parametrize("name", sample(STEPS, "compaction", "due", "erasure"))
def test_benchmark_that_fails_leaves_no_topic(name: str, embedded: Path) -> None:
    namespaces, files, known = smoke.streams(), scratch(embedded), set(wired().ledger.known_topics())
    done = subprocess.run(
        [sys.executable, "-c", BREAKS, name, *STEPS[name]],
        env={**os.environ, size.PART: "1000"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "the step is broken" in done.stderr
    assert smoke.streams() == namespaces
    assert scratch(embedded) == files
    assert set(wired().ledger.known_topics()) == known


def test_smoke_run_fails_on_an_error(embedded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert smoke.run(["ttl_parsing", "no_such_benchmark"], skipped=["large"]) == 1
    said = capfd.readouterr().out
    assert "skipped  large" in said
    assert "FAILED   no_such_benchmark" in said
    assert "ok       ttl_parsing" in said
    assert "No module named bench.no_such_benchmark" in said


@pytest.mark.parametrize(("divisor", "status"), [("1", 1), ("20", 0)])
def test_limit_counts_at_the_whole_size_alone(divisor: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(size.PART, divisor)
    assert size.status(kept=False) == status
    assert size.status(kept=True) == 0
    assert size.of(40) == 40 // int(divisor)
    assert size.of(3) == (3 if divisor == "1" else 1)
