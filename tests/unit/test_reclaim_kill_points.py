"""A reclaim killed at any step, or run twice at once, leaves what an uninterrupted one leaves (DEL-4, DEL-5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.app.operations.registry import preview
from message_lifecycle.ledger import migrate_ledger
from tests.effort import sample
from tests.histories import ON_OWN_CATALOG
from tests.past_and_die import dies, ended, start
from tests.reclaiming import NAME, NOW, Past, past_in

pytestmark = ON_OWN_CATALOG


def made(folder: Path) -> tuple[Past, str]:
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate_ledger(url)
    past = past_in(folder, ledger_url=url)
    past.table()
    for at, days in enumerate((40, 30, 20)):
        past.append(at, days_old=days)
    past.delete("offset == 0", days_old=15)
    past.touch_all(days_old=10)
    return past, url


def is_as_after_one_run(past: Past, before: set[str], listed: set[str]) -> None:
    assert before - past.files() == listed
    assert len(past.snapshot_ids()) == 1
    assert sorted(past.log.scan().to_arrow()["offset"].to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    "step", sample(("before_expire", "after_expire", "while_deleting", "after_delete"), "after_expire", "while_deleting")
)
def test_the_next_run_brings_it_to_its_end(tmp_path: Path, step: str) -> None:
    past, url = made(tmp_path)
    plan = preview(past.services, NAME, as_of=NOW, work="reclaim")
    listed, before = {name for removal in plan.file_removals for name in removal.files}, past.files()
    dies(tmp_path, url, step, "reclaim")
    outcome = past.run()
    assert (outcome.name, outcome.plan_id, outcome.detail) == ("published", plan.plan_id, "")
    is_as_after_one_run(past, before, listed)
    assert past.run().name == "no_op"


def test_of_two_at_once_one_does_it(tmp_path: Path) -> None:
    past, url = made(tmp_path)
    plan = preview(past.services, NAME, as_of=NOW, work="reclaim")
    listed, before = {name for removal in plan.file_removals for name in removal.files}, past.files()
    told = ended([start(tmp_path, url, "none", "reclaim") for _ in range(2)])
    assert "published" in told, told
    is_as_after_one_run(past, before, listed)
