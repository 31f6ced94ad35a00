"""The overview: the most urgent topics first, found by name and state, and each erasure as one line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import update

from message_lifecycle.app import pages, steps
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.views import overview as overview_views
from message_lifecycle.app.views.overview import erasure_lines, outcomes_without_erasures, overview
from message_lifecycle.app.views.status import status
from message_lifecycle.ledger import tables
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey
from tests.worlds import HOUR, NOW, Lake, make_lake

BASE = "/lifecycle"
DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    """One topic in each state. Their names are not in the order of the states."""
    lake = make_lake(capsys)
    expiries = {"a.fine": 30 * DAY, "b.held": DAY, "c.overdue": DAY, "d.asks": DAY, "e.failed": 0}
    for name, expiry in expiries.items():
        lake.topic(f"shop/{name}", message_expiry=expiry)
    topics = {str(name): name for name in lake.services.topics.list("shop")}
    lake.append(topics["shop/a.fine"], 2, 1)
    lake.append(topics["shop/b.held"], 60, 2)
    lake.say("hold", "add", "shop/b.held", "--by", "ada", "--why", "a trial")
    lake.append(topics["shop/c.overdue"], 60, 2)
    lake.append(topics["shop/d.asks"], 60, 50)
    failed = topics["shop/e.failed"]
    lake.world.set_now(Instant(NOW + 25 * HOUR))
    for name in ("a.fine", "b.held", "d.asks"):
        steps.run(lake.services, topics[f"shop/{name}"], as_of=Instant(NOW + 25 * HOUR - 1), work="message_cleaner")
    outcome = Outcome(name="failed", operation="message_cleaner", topic=failed, as_of=NOW, detail="the disk is full")
    lake.services.ledger.record_run_outcome(None, outcome)
    return lake


def names(html: str) -> list[str]:
    return re.findall(r'<h3><a href="[^"]*">shop/([^<]+)</a>', html)


def page(lake: Lake, **asked: Any) -> str:
    return pages.overview(base=BASE, status=status(lake.services), runs=[], **asked)


def test_urgent_topics_come_first_and_each_tile_counts_its_topics(lake: Lake) -> None:
    found = overview(status(lake.services))
    assert [str(one.topic) for one in found.topics] == ["shop/e.failed", "shop/d.asks", "shop/c.overdue", "shop/b.held", "shop/a.fine"]
    assert [(tile.trouble, tile.topics) for tile in found.tiles] == [(state, 1) for state in ("failed", "asks", "overdue", "held", "fine")]
    assert found.of_topics == 5
    assert names(page(lake)) == ["e.failed", "d.asks", "c.overdue", "b.held", "a.fine"]


def test_search_and_state_choose_topics_and_leave_the_counts(lake: Lake) -> None:
    assert names(page(lake, search=" E.fAiL ")) == ["e.failed"]
    assert names(page(lake, trouble="held")) == ["b.held"]
    none = page(lake, search="fine", trouble="held")
    assert names(none) == []
    assert "No topic matches." in none
    assert 'href="/lifecycle/?search=fine&amp;state=overdue"' in none
    assert 'name="search" value="fine"' in none
    assert '<input type="hidden" name="state" value="held">' in none


def test_the_tile_of_the_only_question_leads_to_its_plan(lake: Lake) -> None:
    (plan,) = lake.services.ledger.waiting()
    assert (
        f'<a class="tile" href="/lifecycle/plans/{plan.plan_id}"><b class="wait">1</b><span>approval pending: see the question</span>'
        in page(lake)
    )
    other = lake.topic("shop/other", message_expiry=DAY)
    lake.append(other, 60, 50)
    steps.run(lake.services, other, as_of=Instant(NOW + 25 * HOUR - 1), work="message_cleaner")
    assert '<a class="tile" href="/lifecycle/?state=asks"><b class="wait">2</b><span>approvals pending</span>' in page(lake)


def test_a_card_states_the_space_of_its_topic(lake: Lake) -> None:
    fine = next(one for one in status(lake.services) if str(one.topic) == "shop/a.fine")
    assert fine.bytes == sum(segment.size_bytes for segment in lake.services.reader.log(TopicName.parse("shop/a.fine")).segments) > 0
    assert fine.reclaimable_bytes == 0
    assert f"<dt>Space</dt><dd>{fine.bytes} bytes present</dd>" in page(lake, search="a.fine"), "this store keeps no history"


def test_an_erasure_of_many_topics_is_one_line(lake: Lake) -> None:
    s = lake.services
    request = ask(s, [b"customer seventeen of the shop"], topics=[], forbid=False, by="ada", why="a letter")
    (line,) = erasure_lines(s)
    assert (line.state, line.of_topics, line.done, line.waiting) == ("requested", 5, 0, ())
    name = TopicName.parse("shop/a.fine")
    outcome = steps.run(s, name, as_of=s.ledger.now(), work=EraseKey(request_id=request.request_id))
    (line,) = erasure_lines(s)
    assert line.waiting == ((outcome.plan_id,) if outcome.name == "needs_approval" else ())
    assert line.done == (0 if line.waiting else 1)
    assert {one.operation for one in outcomes_without_erasures(s, limit=20)} == {"message_cleaner"}
    html = pages.overview(base=BASE, status=status(s), runs=outcomes_without_erasures(s, limit=20), erasures=erasure_lines(s))
    assert f"{line.done} of 5 done" in html
    assert html.count(f'<td data-label="Request" class="id">{request.request_id[:12]}</td>') == 1


def test_a_line_names_a_plan_that_cannot_be_read(lake: Lake) -> None:
    s = lake.services
    request = ask(s, [b"key"], topics=[], forbid=False, by="ada", why="a letter")
    name = TopicName.parse("shop/a.fine")
    plan_id = steps.run(s, name, as_of=s.ledger.now(), work=EraseKey(request_id=request.request_id)).plan_id
    assert plan_id is not None
    assert [plan.plan_id for plan in s.ledger.waiting() if plan.operation == "erasure"] == [plan_id]
    documents = tables.plan_documents
    with s.ledger._database.writing() as connection:
        connection.execute(update(documents).where(documents.c.plan_id == plan_id).values(document="{"))
    (line,) = erasure_lines(s)
    assert line.waiting == ()
    assert f"plan {plan_id[:12]} of shop/a.fine: CorruptRecord: " in line.detail
    assert "CorruptRecord" in pages.overview(base=BASE, status=[], runs=[], erasures=[line])


def test_only_the_plans_of_erasures_are_read_and_none_without_a_request(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    s = lake.services
    assert s.ledger.waiting()
    monkeypatch.setattr(type(s.ledger), "record", lambda *_: pytest.fail("reads a whole plan"))
    assert erasure_lines(s) == []
    ask(s, [b"key-1"], topics=[], forbid=False, by="ada", why="a letter")
    assert [line.waiting for line in erasure_lines(s)] == [()]


def test_one_query_finds_the_results_of_all_topics_and_requests(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    s = lake.services
    first, second = (ask(s, [key], topics=[], forbid=False, by="ada", why="a letter") for key in (b"key-1", b"key-2"))
    for request, names in ((first, ("a.fine", "c.overdue")), (second, ("a.fine",))):
        for name in names:
            steps.run(s, TopicName.parse(f"shop/{name}"), as_of=s.ledger.now(), work=EraseKey(request_id=request.request_id))
    asked, history, listed = [], type(s.ledger).history, overview_views.topics_of
    monkeypatch.setattr(type(s.ledger), "history", lambda *given, **more: asked.append("query") or history(*given, **more))
    monkeypatch.setattr(overview_views, "topics_of", lambda *given: asked.append("list") or listed(*given))
    assert {line.request_id: line.done for line in erasure_lines(s)} == {first.request_id: 2, second.request_id: 1}
    assert sorted(asked) == ["list", "list", "query"]
