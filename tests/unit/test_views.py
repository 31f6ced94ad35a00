"""What the command prints and the Airflow pages show: plain values, and the same as the ledger and the log hold."""

from __future__ import annotations

import json

import pytest

from message_lifecycle.app import pages, steps
from message_lifecycle.app.operations.questions import percent
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.app.views.plans import approval_text, plan_page, plan_view
from message_lifecycle.app.views.state import runs, when
from message_lifecycle.app.views.status import status
from message_lifecycle.app.views.topics import topic_page
from message_lifecycle.app.wording import count, share
from message_lifecycle.model.change import RemoveRows, SealSegment
from message_lifecycle.model.instants import Instant, format_span
from message_lifecycle.model.names import safe
from message_lifecycle.model.phrases import size
from tests.ledgers import drop, plan_of
from tests.worlds import HOUR, NOW, SECOND, Lake, make_lake

DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def test_every_view_is_json(lake: Lake) -> None:
    topic = lake.topic("shop/orders", partitions=2, message_expiry=DAY)
    lake.append(topic, 30, 25, 3, 2, 1)
    lake.append_at(topic, None, partition=1)
    lake.say("consumer", "commit", "shop/orders", "billing", "0:0")
    lake.say("run", "shop/orders")
    s = lake.services
    plan_id = runs(s)[0].plan_id
    page = topic_page(s, topic)
    for view in (page, plan_page(s, plan_id), status(s), runs(s), explain_message(s, topic, 0, 0, as_of=NOW)):
        assert json.loads(json.dumps(as_json(view), allow_nan=False)) == as_json(view)
    assert [run.plan_id for run in page.runs] == [plan_id]
    assert page.status.held[0].holder == "consumer"
    assert page.consumers[0].consumer == "billing"


def test_a_question_tells_what_a_person_must_know(lake: Lake) -> None:
    topic = lake.topic("shop/audit", message_expiry=DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    lake.say("run", "shop/audit")
    record = lake.services.ledger.open_plan(topic)
    assert record is not None
    text = approval_text(lake.services, record)
    assert "removes 4 of 5 messages (80 %), 32 bytes of 40 bytes (80 %), 4 whole segments, as of 2026-11-21T12:00:00Z." in text
    assert "removed share of messages: 80 %, expected at most 50 %" in text
    assert "* age: from 2026-11-19 to 2026-11-20, by the times of their segments" in text
    plan_id = record.plan.plan_id
    back = f"`lifecycle undo {plan_id[:12]} --by NAME --why WHY`, within 7d of publishing (published now: until 2026-11-28T12:00:00Z)"
    assert f"* undo: {back}" in text
    text, table = text.split("\n\n|")
    assert text.endswith(f"\n* plan: `{plan_id}`; newer messages are not affected")
    assert table.splitlines()[2:] == [
        f"| 2026-11-19 | 1 | 0 | {'█' * 7} |",
        f"| 2026-11-20 | 3 | 0 | {'█' * 20} |",
        f"| 2026-11-21 | 0 | 1 | {'░' * 6} |",
    ]
    assert record.report is not None
    assert f"* approval covers: this plan and gate report `{record.report.gate_id[:12]}`. A change of settings makes it void" in text
    assert "* without an answer: nothing is removed, and the plan lapses at 2026-11-22T12:00:00Z. The next run asks again" in text
    first, blank, *listed = text.splitlines()
    assert first.startswith("**shop/audit**: ") and not blank
    assert all(line.startswith("* ") for line in listed), "Airflow shows paragraphs one below the other, without a space between them"


def test_a_question_has_no_part_of_a_second(lake: Lake) -> None:
    lake.world.set_now(Instant(NOW + 123_456))
    lake.append(lake.topic("shop/audit", message_expiry=DAY), 40, 35, 30, 25, 1)
    lake.say("run", "shop/audit", "--as-of", "2026-11-21T12:00:00Z")
    (record,) = lake.services.ledger.waiting()
    text = approval_text(lake.services, lake.services.ledger.record(record.plan_id))
    assert "lapses at 2026-11-22T12:00:00Z. " in text
    assert "until 2026-11-28T12:00:00Z)" in text


def test_a_question_about_single_messages_names_no_segment(lake: Lake) -> None:
    topic = lake.topic("shop/audit", approver_is_not_requester=True)
    lake.append(topic, 3, 2, 1)
    lake.say("message", "delete", "shop/audit", "0:0", "0:1", "--by", "ada", "--why", "please")
    record = lake.services.ledger.open_plan(topic)
    assert record is not None
    text = approval_text(lake.services, record)
    assert "removes 2 of 3 messages (67 %)" in text
    assert ", single messages, as of" in text


def test_a_question_about_what_was_asked_for_says_who_asks_again(lake: Lake) -> None:
    topic = lake.topic("shop/audit", approver_is_not_requester=True)
    lake.append_at(topic, None)
    lake.say("message", "delete", "shop/audit", "0:0", "--by", "ada", "--why", "please")
    record = lake.services.ledger.open_plan(topic)
    assert record is not None
    text = approval_text(lake.services, record)
    assert "* age: from an unknown day" in text
    assert ". Request it again" in text


@pytest.mark.parametrize(("part", "told"), [(0, "0 %"), (4, "under 1 %"), (833, "83 %"), (999, "over 99 %"), (1_000, "100 %")])
def test_a_share_is_whole_percents_and_never_all_or_nothing_by_rounding(part: int, told: str) -> None:
    assert percent(part, 1_000) == told


def test_a_question_takes_others_words_as_words(lake: Lake) -> None:
    topic = lake.topic("shop/audit", message_expiry=DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    evil = "see\n# ![x](https://elsewhere.example/p) [yes](https://elsewhere.example) <img src=x> \\[no](x)"
    assert lake.say("hold", "add", "shop/audit", "--from", "0", "--to", "0", "--by", "ada", "--why", evil).status == 0
    lake.say("run", "shop/audit")
    record = lake.services.ledger.open_plan(topic)
    assert record is not None
    text = approval_text(lake.services, record)
    assert "see # !\\[x](https://elsewhere.example/p) \\[yes](https://elsewhere.example) &lt;img src=x> \\\\\\[no](x)" in text


def test_each_kind_of_action_is_shown(lake: Lake) -> None:
    rows = RemoveRows(partition=0, base_offset=100, file="f", offsets="100-189", rows=90, reason="retention_age")
    seal = SealSegment(partition=0, base_offset=100, next_offset=200)
    shown = plan_view(plan_of(actions=(seal, drop(0, 99), rows))).actions
    assert [(action.action, action.from_, action.to) for action in shown] == [
        ("seal_segment", 100, 199),
        ("drop_segments", 0, 99),
        ("remove_rows", 100, 189),
    ]
    assert (shown[2].messages, shown[2].reason, shown[2].bytes) == (90, "retention_age", None)


def test_the_oldest_overdue_message_is_told_over_all_partitions(lake: Lake) -> None:
    topic = lake.topic("shop/orders", partitions=2, message_expiry=DAY)
    lake.append(topic, 30, 25, 1)
    lake.append(topic, 48, 26, partition=1)
    (found,) = status(lake.services)
    assert as_json(found)["due"] == {"messages": 4, "since": "2026-11-20T12:00:00Z", "for_seconds": DAY}
    assert as_json(found)["overdue"] == {"messages": 0, "since": None, "for_seconds": None, "max_overdue": DAY}


def test_status_looks_at_the_ledgers_clock(lake: Lake) -> None:
    topic = lake.topic("shop/orders", message_expiry=DAY)
    lake.append(topic, 1)
    assert status(lake.services)[0].due.messages == 0
    lake.world.set_now(Instant(NOW + DAY * SECOND))
    assert status(lake.services)[0].due.messages == 1


def test_numbers_in_words() -> None:
    assert [size(n) for n in (None, 0, 1, 999, 1000, 999_499, 999_500, 12_345_678)] == [
        "unknown", "0 bytes", "1 byte", "999 bytes", "1 kB", "999 kB", "1 MB", "12.3 MB",
    ]  # fmt: skip
    assert [share(f) for f in (None, 0.0, 0.00001, 0.5, 0.99999, 1.0)] == [
        "unknown", "0.0 %", "under 0.1 %", "50.0 %", "over 99.9 %", "100.0 %",
    ]  # fmt: skip
    assert [format_span(s) for s in (None, 0, 59, 3_600, 90_061)] == ["unknown", "0s", "59s", "1h", "1d1h"]
    assert count(None) == "unknown"
    assert safe("plain \u00e4\u4e16") == "plain \u00e4\u4e16"
    assert safe("a\x1b[0m\u202eb\n") == "a\\x1b[0m\\u202eb\\n"


def test_the_last_removal_is_told_by_its_end_and_not_by_its_plan(lake: Lake) -> None:
    topic = lake.topic("shop/late", message_expiry=HOUR // SECOND, max_removed_fraction=1.0)
    lake.append(topic, 5, 0)
    plan_id = steps.plan(lake.services, topic, as_of=NOW).plan.plan_id
    steps.stage(lake.services, plan_id)
    steps.gate(lake.services, plan_id)
    lake.world.set_now(Instant(NOW + 3 * HOUR))
    steps.publish(lake.services, plan_id)
    steps.verify(lake.services, plan_id)
    (found,) = (one for one in status(lake.services) if str(one.topic) == "shop/late")
    assert (found.last_removal.plan_id, when(found.last_removal.at)) == (plan_id, "2026-11-21T15:00:00Z")


def test_a_plan_that_was_undone_says_so(lake: Lake) -> None:
    topic = lake.topic("shop/back", message_expiry=HOUR // SECOND, max_removed_fraction=1.0)
    lake.append(topic, 5, 0)
    plan_id = steps.run(lake.services, topic, as_of=NOW).plan_id or ""
    assert ": undone" not in lake.say("explain", plan_id).out
    assert lake.say("undo", plan_id, "--by", "ada", "--why", "a mistake").status == 0
    told = lake.say("explain", plan_id)
    assert f"Plan {plan_id}: undone" in told.out
    html = pages.plan(base="/lifecycle", page=plan_page(lake.services, plan_id))
    assert '<span class="badge wait">undone</span>' in html
