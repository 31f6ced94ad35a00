"""The page of a plan at each step of its way, as real plans give it: in which state it is, whose run, what came of it."""

from __future__ import annotations

import pytest

from message_lifecycle.app import pages, steps
from message_lifecycle.app.views.plans import plan_page
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from tests.unit.test_pages_afterwards import BASE, shown
from tests.worlds import NOW, SECOND, Lake, make_lake

DAY = 86_400
RUN = "message_cleaner/scheduled__2026-11-21T12:00:00+00:00"


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def audit(lake: Lake) -> TopicName:
    """Set tighter than a removal was accepted, and four of five messages are past it."""
    topic = lake.topic("shop/audit", message_expiry=30 * DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    lake.services.ledger.set_accepted(topic, {"message_expiry": 30 * DAY})
    lake.services.topics.alter(topic, {"message_expiry": DAY})
    return topic


def page_of(lake: Lake, plan_id: str | None) -> str:
    return pages.plan(base=BASE, page=plan_page(lake.services, plan_id or ""))


def test_a_question_is_told_as_open_only_while_it_is(lake: Lake, audit: TopicName) -> None:
    s = lake.services
    plan_id = steps.run(s, audit, as_of=NOW, run=RUN).plan_id or ""
    asked = page_of(lake, plan_id)
    changed = "stricter than the last approved value: message_expiry from 30d (2,592,000 s) to 1d (86,400 s)"
    assert f"A person is asked: {changed}" in shown(asked)
    assert "asks a person" in shown(asked)
    assert "4 of 5 messages to remove (80.0 %)" in shown(asked)
    answer = f"lifecycle approve {plan_id[:12]} --by NAME --why WHY , or refuse ."
    assert "Approval pending until 2026-11-22 12:00:00. Without an answer the plan lapses, and nothing is removed." in shown(asked)
    assert f"It is answered under Airflow's Required Actions , or by {answer}" in shown(asked)
    assert 'href="/lifecycle/runs?dag_id=message_cleaner&amp;run_id=scheduled__2026-11-21T12%3A00%3A00%2B00%3A00"' in asked
    steps.approve(s, plan_id, granted=True, by="ada", text="as it should be")
    assert "ada has approved it, 2026-11-21 12:00:00; it is not published yet." in shown(page_of(lake, plan_id))
    steps.publish(s, plan_id)
    steps.verify(s, plan_id)
    published = shown(page_of(lake, plan_id))
    assert f"A person was asked: {changed}" in published
    assert "is asked" not in published
    assert "asks a person" not in published
    assert "needs approval" not in published
    assert "4 of 5 messages removed (80.0 %)" in published
    assert "Removals" in published
    assert f"Undo until 2026-11-28 12:00:00: lifecycle undo {plan_id[:12]}" in published


def test_checks_that_hold_are_counted_of_all(lake: Lake, audit: TopicName) -> None:
    plan_id = steps.run(lake.services, audit, as_of=NOW, approver=lambda *_: (True, "ada", "fine")).plan_id or ""
    report = lake.services.ledger.record(plan_id).report
    assert report is not None
    held = sum(check.passed for check in report.checks)
    assert f"{held} of {report.declared} checks hold" in shown(page_of(lake, plan_id))


def test_what_came_after_it_is_linked(lake: Lake, audit: TopicName) -> None:
    s = lake.services
    first = steps.run(s, audit, as_of=NOW).plan_id or ""
    assert "Took its place" not in page_of(lake, first)
    assert "5 messages to remove (80.0 %)" in shown(page_of(lake, first))
    s.topics.alter(audit, {"message_expiry": 2 * DAY // 2 + 1})
    second = steps.run(s, audit, as_of=NOW, approver=lambda *_: (True, "ada", "fine")).plan_id or ""
    assert f"Took its place {second[:12]}" in shown(page_of(lake, first))
    assert "5 messages not removed (80.0 %)" in shown(page_of(lake, first))
    undo = steps.run(s, audit, as_of=NOW, approver=lambda *_: (True, "ada", "a slip"), work=UndoPlan(plan_id=second)).plan_id or ""
    assert f"Undone by {undo[:12]}" in shown(page_of(lake, second))
    assert "<dt>Undo</dt>" not in page_of(lake, second)
    assert f"Undoes {second[:12]}" in shown(page_of(lake, undo))


def test_a_window_that_has_passed_offers_nothing(lake: Lake, audit: TopicName) -> None:
    plan_id = steps.run(lake.services, audit, as_of=NOW, approver=lambda *_: (True, "ada", "fine")).plan_id
    assert "<dt>Undo</dt>" in page_of(lake, plan_id)
    lake.world.set_now(Instant(NOW + 7 * DAY * SECOND))
    assert "<dt>Undo</dt>" not in page_of(lake, plan_id)
