"""A few points of `bench faults`, the same each time; `make hunt` runs a tenth of a whole campaign, other points each time."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from secrets import randbelow

import pytest
from bench.fault_operations import OPERATIONS
from bench.faults import Ran, results
from hypothesis import settings
from tests.effort import HUNT, generated

from lifecycle_local.layout import project_root

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64"),
]
_TENTH = 300
_FAULTS = ("kill", "refused", "lost")
# Of an expiry: where its removal is about to be seen, and where the ledger is about to be told so.
_BOUNDARIES = ("catalog: UPDATE iceberg_tables #3", "database: COMMIT #4")


def run(kept: Path, *options: str) -> list[Ran]:
    """All points that the command has run, none of which differs."""
    command = [sys.executable, "-m", "bench.faults", "--results", str(kept), *options]
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return list(results(kept).values())


@generated
def test_the_next_run_makes_whole_what_a_fault_has_left(embedded: Path, tmp_path: Path) -> None:
    hunting = settings.get_current_profile_name() == HUNT
    sample = ("--operation", "expiry", "--fault", *_FAULTS, "--at", *_BOUNDARIES)
    tenth = ("--each", str(_TENTH // len(OPERATIONS) + 1), "--seed", str(randbelow(1_000_000)), "--jobs", "2")
    ran = run(tmp_path / "faults.tsv", *(tenth if hunting else sample))
    assert {one.point.operation for one in ran} == ({*OPERATIONS} if hunting else {"expiry"})
    assert {one.found for one in ran} <= {"same", "not reached"}
    assert len(ran) >= (_TENTH if hunting else len(_FAULTS) * len(_BOUNDARIES))
    assert sum(one.found == "same" for one in ran) > 0.9 * len(ran), "points that are not reached prove nothing"
