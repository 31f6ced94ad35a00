"""Pages of what comes after a deletion, as real plans give them: a person sees what happens, and nothing of a key."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from message_lifecycle.app import documents, pages, steps
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.plans import approval_text, question_of
from message_lifecycle.app.views.plans import plan_page as page_of_plan
from message_lifecycle.app.views.state import runs
from message_lifecycle.app.views.status import status
from message_lifecycle.app.views.topics import topic_page
from message_lifecycle.model.document import Change
from message_lifecycle.model.hold import HeldKey
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.model.settings import value_text as with_unit
from message_lifecycle.model.tables import QuarantineFile, QuarantineReturning, QuarantineState
from message_lifecycle.operations import quarantine
from tests.holds import held
from tests.reclaiming import NAME, aged_past
from tests.spark.key_search import files_with
from tests.worlds import NOW, Lake, make_lake

BASE = "/lifecycle"
KEY = b"customer seventeen of the shop"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    """Three expired messages, which the cleaner has taken, two living ones, and two of the key."""
    topic = lake.topic("shop/orders", message_expiry=86_400)
    lake.append(topic, 72, 60, 50, 3, 2)
    assert run(lake.services, topic, "message_cleaner").name == "published"
    lake.world.writer.append(topic, [NewMessage(append_time=NOW, key=KEY, value=b"v")] * 2, policy_of(lake.services, topic))
    return topic


def run(s: Services, topic: TopicName, work: Work, *, word: bool = True) -> Outcome:
    return steps.run(s, topic, as_of=NOW, approver=(lambda *_: (True, "ada", "as asked")) if word else None, work=work)


def shown(page: str) -> str:
    """The words of a page, tile by tile and cell by cell."""
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def plan_page(s: Services, outcome: Outcome) -> str:
    return shown(pages.plan(base=BASE, page=page_of_plan(s, outcome.plan_id or "")))


def test_an_undo_shows_what_comes_back_and_of_which_plan(lake: Lake, orders: TopicName) -> None:
    s = lake.services
    (taken,) = [outcome.plan_id for _, outcome in s.ledger.history(orders) if outcome.name == "published"]
    page_text = plan_page(s, run(s, orders, UndoPlan(plan_id=taken or "")))
    assert f"3 messages return, which {(taken or '')[:12]} removed" in page_text
    assert "Actions Action" in page_text
    assert "3 came back" in page_text.partition("How it ended")[2]
    topic = shown(pages.topic(base=BASE, page=topic_page(s, orders)))
    assert re.search(r"published undo [\d: -]+ 3 came back 7", topic)


def test_an_undo_of_a_purge_shows_what_comes_back_of_each_document(lake: Lake) -> None:
    settings = {"snapshot_interval": 10, "snapshot_threshold": 5, "snapshot_with_purging_changes": True}
    s, letters = lake.services, lake.topic("shop/letters", fold="last_write", **settings)
    changes = [Change(document="note", server_seq=seq, client="ann", at=NOW, payload=b"1") for seq in range(1, 13)]
    documents.add_changes(s, letters, changes)
    documents.sync(s, letters, "note", client="ann", server_seq=8, at=NOW)
    taken = run(s, letters, "snapshot_with_purge").plan_id or ""
    page_text = plan_page(s, run(s, letters, UndoPlan(plan_id=taken)))
    assert f"7 changes return, which {taken[:12]} removed" in page_text
    assert "Actions Document Returned changes Returned snapshots note 1 – 7 none" in page_text
    assert "7 came back" in page_text.partition("How it ended")[2]


@pytest.mark.parametrize("word", [False, True])
def test_an_erasure_shows_where_the_key_was_and_nothing_of_it(lake: Lake, orders: TopicName, tmp_path: Path, word: bool) -> None:
    s = lake.services
    request = ask(s, [KEY], topics=[orders], forbid=False, by="ada", why="a letter")
    outcome = run(s, orders, EraseKey(request_id=request.request_id), word=word)
    record = s.ledger.record(outcome.plan_id or "")
    assert question_of(record) == "erase 1 key for good, with 2 of 4 messages?"
    text = approval_text(s, record)
    assert "removes 2 of 4 messages (50 %)" in text
    assert ", with every row of the key in the topic's tables and their history, as of" in text
    assert "* undo: not possible: " in text
    page_text = plan_page(s, outcome)
    assert "2 erased rows in all tables and their history" in page_text
    assert re.search(r"\d+ snapshots end, and time travel to them", page_text)
    assert "erase rows of the log 0 5-6 2 erased" in page_text
    assert "Removed files" not in page_text, "the page names no file: it counts the rewritten files of each table"
    assert re.search(r"erase table log main \d+ 0", page_text)
    shows = {
        "plan": pages.plan(base=BASE, page=page_of_plan(s, record.plan.plan_id)),
        "topic": pages.topic(base=BASE, page=topic_page(s, orders)),
        "overview": pages.overview(base=BASE, status=status(s), runs=runs(s)),
        "question": approval_text(s, record),
    }
    for name, text in shows.items():
        (tmp_path / name).write_text(text)
    assert files_with(tmp_path, KEY) == []


def test_a_topic_shows_who_holds_it_and_not_by_which_key(lake: Lake, orders: TopicName, tmp_path: Path) -> None:
    s = lake.services
    key, offsets, topic = held(s, orders, key=KEY), held(s, orders, offsets=(3, 900)), held(s, orders)
    page = pages.topic(base=BASE, page=topic_page(s, orders))
    page_text = shown(page)
    assert f"{key.hold_id} a key ada" in page_text
    assert isinstance(key.what, HeldKey)
    assert key.what.digest[:8] not in page
    assert f"{offsets.hold_id} partition 0, offsets from 3 to 900 ada 2026-11-21 12:00:00 case 7" in page_text
    assert f"{topic.hold_id} the topic ada" in page_text
    (tmp_path / "topic").write_text(page)
    assert files_with(tmp_path, KEY) == []


def test_a_compaction_shows_what_its_view_leaves_out_and_takes_nothing_from_the_log(lake: Lake) -> None:
    topic = lake.topic("shop/prices", cleanup_policy="compact,delete")
    lake.append(topic, 2, 1)
    page_text = plan_page(lake.services, run(lake.services, topic, "compaction"))
    assert "1 of 2 messages are left out of the compacted view (50.0 %)" in page_text
    assert "Actions Action" in page_text
    assert "unknown" not in page_text
    assert "whole segments" not in page_text


def test_the_quarantine_shows_rows_files_and_bytes(lake: Lake, orders: TopicName) -> None:
    state = QuarantineState(
        table_uuid="t", snapshot_id=1, files=(QuarantineFile(name="old.parquet", rows=3, size_bytes=1_700, oldest_at=NOW, newest_at=NOW),)
    )
    policy = policy_of(lake.services, orders)
    later = Instant(NOW + policy["quarantine_max_age"] * 1_000_000)
    plan = lake.services.ledger.add_plan(quarantine.plan(orders, state, policy, None, (), as_of=later)).plan
    page_text = shown(pages.plan(base=BASE, page=page_of_plan(lake.services, plan.plan_id)))
    assert "3 of 3 rows of the quarantine to remove (100.0 %)" in page_text
    assert "1 whole file of the quarantine" in page_text
    assert "drop quarantined old.parquet 3 1.7 kB" in page_text
    assert "segments" not in page_text


def test_refused_rows_that_come_back_are_told_as_rows(lake: Lake, orders: TopicName) -> None:
    old = QuarantineFile(name="old.parquet", rows=3, size_bytes=1_700, oldest_at=NOW, newest_at=NOW)
    policy = policy_of(lake.services, orders)
    later = Instant(NOW + policy["quarantine_max_age"] * 1_000_000)
    state = QuarantineState(table_uuid="t", snapshot_id=1, files=(old,))
    plan = quarantine.plan(orders, state, policy, None, (), as_of=later)
    found = QuarantineReturning(source_id=1, files=((old, (NOW, NOW)),), present=0)
    emptied = replace(state, snapshot_id=2, files=())
    undo = lake.services.ledger.add_plan(quarantine.plan_undo(emptied, found, policy, plan, as_of=later, heeded=())).plan
    page_text = shown(pages.plan(base=BASE, page=page_of_plan(lake.services, undo.plan_id)))
    assert f"3 rows of the quarantine return, which {plan.plan_id[:8]}" in page_text
    assert "1 whole file of the quarantine" in page_text
    assert "Actions Action" in page_text
    assert "restore quarantined old.parquet 3 1.7 kB" in page_text
    assert "segments" not in page_text
    assert "messages" not in page_text


def test_a_question_about_no_message_of_the_log_is_not_told_as_one(lake: Lake, orders: TopicName) -> None:
    s = lake.services
    (taken,) = [outcome.plan_id for _, outcome in s.ledger.history(orders) if outcome.name == "published"]
    assert run(s, orders, UndoPlan(plan_id=taken or ""), word=False).name == "needs_approval"
    topic = shown(pages.topic(base=BASE, page=topic_page(s, orders)))
    assert "A person is asked whether a plan may continue: plan " in topic


def test_numbers_of_settings_have_their_units(lake: Lake) -> None:
    assert with_unit(1.5, "seconds") == "1.5s"
    assert with_unit(0.0, "seconds") == "0 seconds"
    assert with_unit(86_400.0, "seconds") == "1d (86,400 s)"
    assert with_unit(0.5, "") == "0.5"
    assert pages.own_value(3_600, "client_deactivate_after") == "1h (3,600 s)"
    letters = lake.topic("shop/letters", fold="last_write")
    assert lake.say("document", "alter", "shop/letters", "--document", "note", "client_deactivate_after=3600").status == 0
    assert "document note client_deactivate_after 1h (3,600 s)" in shown(pages.topic(base=BASE, page=topic_page(lake.services, letters)))


@pytest.mark.postgres
@pytest.mark.spark
def test_a_reclaim_shows_files_bytes_and_snapshots(tmp_path: Path, own_catalog: None) -> None:
    past = aged_past(tmp_path)
    outcome = past.run()
    page_text = plan_page(past.services, outcome)
    assert f"{outcome.reclaimed_files} files removed for good" in page_text
    assert f"{pages.size(outcome.reclaimed_bytes)} of space" in page_text.partition("How it ended")[2]
    assert re.search(r"3 snapshots end", page_text)
    assert "expire snapshots log 3 remove files log data 1" in page_text
    assert "messages to remove" not in page_text and "messages removed" not in page_text
    assert str(NAME) in page_text
