"""`lifecycle reclaim`: what people see before space comes back, and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from message_lifecycle.app.cli import main
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.views.status import status
from tests.histories import ON_OWN_CATALOG
from tests.holds import held
from tests.reclaiming import NAME, Past, past_in
from tests.worlds import make_lake

pytestmark = ON_OWN_CATALOG


@pytest.fixture
def past(tmp_path: Path) -> Past:
    made = past_in(tmp_path)
    made.table(max_removed_fraction=1.0)
    for at, days in enumerate((40, 30, 20)):
        made.append(at, days_old=days)
    made.delete("offset == 0", days_old=15)
    made.touch_all(days_old=10)
    return made


def say(past: Past, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    ended = main(arguments, wiring=Wiring(lake=lambda: past.services))
    said = capsys.readouterr()
    return ended, said.out + said.err


def test_a_plan_shows_snapshots_files_and_what_stays(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    before = past.files()
    ended, said = say(past, capsys, "reclaim", "plan", str(NAME), "--files")
    assert ended == 0
    assert "for good" in said and "snapshots" in said and "files: data" in said and "branches and tags" in said
    assert any(name in said for name in before if name.endswith(".parquet"))
    assert past.files() == before


def test_a_plan_that_takes_nothing_says_what_keeps_the_snapshots(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    past.run()
    ended, said = say(past, capsys, "reclaim", "plan", str(NAME))
    assert (ended, "nothing" in said, "branches and tags" in said) == (0, True, True), said
    staying = json.loads(say(past, capsys, "reclaim", "plan", str(NAME), "-o", "json")[1])["staying"]
    [log] = past.services.stores.forget.histories(NAME)
    assert sum(one["snapshots"] for one in staying) == len(log.snapshots), staying
    assert {one["table"] for one in staying} == {"log"}


def staying(past: Past, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, int]]:
    document = json.loads(say(past, capsys, "reclaim", "plan", str(NAME), "-o", "json")[1])
    return [(one["table"], one["reason"], one["snapshots"]) for one in document["staying"]]


def test_only_tables_that_lose_nothing_are_listed_with_their_snapshots(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    past.table("compacted")
    past.append(1, days_old=1, kind="compacted")
    past.append(2, days_old=0.5, kind="compacted")
    assert staying(past, capsys) == [("compacted", "branches and tags", 1), ("compacted", "undo window", 1)]


def test_under_a_legal_hold_the_hold_is_the_reason(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    held(past.services, NAME, offsets=(0, 0))
    assert staying(past, capsys) == []
    assert "nothing is reclaimed: " in say(past, capsys, "reclaim", "plan", str(NAME))[1]


def test_a_run_says_what_it_freed(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    ended, said = say(past, capsys, "reclaim", "run", str(NAME))
    assert ended == 0, said
    assert "freed " in said and "removed " in said
    ended, said = say(past, capsys, "reclaim", "run", str(NAME))
    assert (ended, "nothing to do" in said) == (0, True)


def test_the_hidden_bytes_go_down_when_space_comes_back(past: Past) -> None:
    before = past.services.stores.forget.hidden_bytes(NAME)
    past.run()
    after = past.services.stores.forget.hidden_bytes(NAME)
    assert before is not None and after is not None
    assert before > 0 == after


def test_in_memory_there_is_nothing_to_give_back(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys)
    topic = lake.topic("shop/orders", message_expiry=60)
    told = lake.say("reclaim", "run", str(topic), "--output", "json")
    assert (told.status, told.document["outcome"], told.document["reclaimed_bytes"]) == (0, "no_op", None)
    assert [entry.hidden_bytes or None for entry in status(lake.services)] == [None]
