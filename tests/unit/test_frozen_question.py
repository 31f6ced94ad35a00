"""A question to a person is frozen at what the gate judged: the answer names plan and report, and other settings make it void (DEL-3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from message_lifecycle.app import seals, steps, tasks
from message_lifecycle.app.due import due
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from tests.errors import raises
from tests.worlds import NOW, SECOND, Lake, make_lake

DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def asked(lake: Lake) -> str:
    """The plan of four old messages of five, which waits for a person."""
    lake.append(lake.topic("shop/audit", message_expiry=DAY), 40, 35, 30, 25, 1)
    return str(lake.say("run", "shop/audit", "-o", "json").document["plan_id"])


def report_of(lake: Lake, plan_id: str) -> GateReport:
    report = lake.services.ledger.record(plan_id).report
    assert report is not None
    return report


def judged_anew(lake: Lake, plan_id: str) -> GateReport:
    """By another run, with other figures."""
    report = report_of(lake, plan_id)
    record = lake.services.ledger.record(plan_id)
    assert record.staged is not None
    other = seals.sealed_report(lake.services, record, record.staged, replace(report, figures=(*report.figures, ("looked_at", 2))))
    lake.services.ledger.record_report(record.staged, other)
    return report


def test_an_answer_names_the_report_that_it_is_about(lake: Lake, asked: str) -> None:
    gate_id = report_of(lake, asked).gate_id
    told = lake.say("approve", asked, "--report", gate_id[:8], "--by", "ada", "--why", "fine", "-o", "json").document
    assert (told["plan_id"], told["gate_id"]) == (asked, gate_id)
    approval = lake.services.ledger.record(asked).approval
    assert approval is not None and approval.gate_id == gate_id
    assert lake.say("publish", asked).status == 0


def test_without_a_report_it_is_about_the_one_that_stands(lake: Lake, asked: str) -> None:
    assert steps.approve(lake.services, asked, granted=True, by="ada", text="").gate_id == report_of(lake, asked).gate_id


def test_a_yes_to_a_report_that_stands_no_more_is_void_and_the_plan_waits(lake: Lake, asked: str) -> None:
    shown = judged_anew(lake, asked)
    refused = lake.say("approve", asked, "--report", shown.gate_id, "--by", "ada", "--why", "fine")
    assert refused.status == 3
    assert f"VoidAnswer: the approval of plan {asked[:12]} is void: it is about gate report {shown.gate_id[:12]}" in refused.err.replace(
        "\n", " "
    )
    record = lake.services.ledger.record(asked)
    assert (record.state, record.approval, record.outcome) == ("asked", None, None)
    assert lake.say("approve", asked, "--by", "ada", "--why", "read again").status == 0


def test_a_no_to_it_stands_for_it_keeps_data(lake: Lake, asked: str) -> None:
    shown = judged_anew(lake, asked)
    steps.approve(lake.services, asked, granted=False, by="ada", text="no", gate_id=shown.gate_id)
    outcome = lake.services.ledger.record(asked).outcome
    assert outcome is not None and outcome.name == "refused"


def test_a_setting_that_is_changed_meanwhile_makes_a_yes_void_and_it_is_asked_again(lake: Lake, asked: str) -> None:
    name = TopicName.parse("shop/audit")
    lake.services.topics.alter(name, {"message_expiry": DAY // 2})
    with raises("VoidAnswer", match=r"message_expiry from 1d \(86,400 s\) to 12h \(43,200 s\)"):
        steps.approve(lake.services, asked, granted=True, by="ada", text="fine")
    record = lake.services.ledger.record(asked)
    assert record.approval is None
    assert record.outcome is not None and record.outcome.name == "superseded"
    assert lake.stored(name) == [0, 1, 2, 3, 4]
    again = steps.run(lake.services, name, as_of=NOW, run="next")
    assert (again.name, again.plan_id != asked) == ("needs_approval", True)
    with pytest.MonkeyPatch.context() as of_tasks:
        of_tasks.setattr(tasks, "lake", lambda: lake.services)
        (question,) = tasks.waiting_plans(run="next")
    assert question["plan_id"] == again.plan_id
    assert question["gate_id"] == report_of(lake, again.plan_id or "").gate_id
    assert "stricter than the last approved value: message_expiry from 1d (86,400 s) to 12h (43,200 s)" in question["body"]


def test_a_question_of_other_settings_holds_up_no_run(lake: Lake, asked: str) -> None:
    name = TopicName.parse("shop/audit")
    (waits,) = due(lake.services, [name], as_of=NOW)
    assert (waits.due, waits.reason) == (False, f"plan {asked[:12]} is pending approval")
    lake.services.topics.alter(name, {"message_expiry": 2 * DAY})
    (goes_on,) = due(lake.services, [name], as_of=NOW)
    assert not goes_on.due, "nothing is older than two days"
    lake.services.topics.alter(name, {"message_expiry": DAY + DAY // 3})
    (goes_on,) = due(lake.services, [name], as_of=NOW)
    assert goes_on.due, goes_on.reason
    outcome = steps.run(lake.services, name, as_of=NOW)
    assert (outcome.name, dict(outcome.removed)) == ("published", {"expiry": 2}), "less than half of it needs no word"
    closed = lake.services.ledger.record(asked).outcome
    assert closed is not None and closed.name == "superseded", "nobody has failed to answer"
    assert closed.detail.endswith("settings were changed after it was planned: message_expiry from 1d (86,400 s) to 1d8h (115,200 s)")


@pytest.mark.parametrize("void_by", ["settings", "time"])
def test_a_void_question_of_another_run_holds_up_no_run(lake: Lake, void_by: str) -> None:
    """However new it is: nobody works on it."""
    name = lake.topic("shop/clicks", message_expiry=DAY, approval_ttl=60)
    lake.append(name, 40, 35, 30, 25, 1)
    first = steps.run(lake.services, name, as_of=NOW, run="first")
    lake.world.set_now(Instant(NOW + 61 * SECOND))
    if void_by == "settings":
        lake.world.set_now(Instant(NOW + 59 * SECOND))
        lake.services.topics.alter(name, {"message_expiry": DAY // 2, "approval_ttl": 60})
    second = steps.run(lake.services, name, as_of=lake.services.ledger.now(), run="second")
    assert (first.name, second.name) == ("needs_approval", "needs_approval")
    assert second.plan_id != first.plan_id


def test_a_void_question_of_a_compaction_holds_up_none(lake: Lake) -> None:
    name = lake.topic("shop/clicks", cleanup_policy="compact,delete")
    messages = [NewMessage(append_time=NOW, key=key, value=b"v") for key in (b"a", None)]
    lake.world.writer.append(name, messages, policy_of(lake.services, name))
    assert steps.run(lake.services, name, as_of=NOW, run="compaction", work="compaction").name == "published"
    lake.services.topics.alter(name, {"cleanup_policy": "compact,delete", "retain_null_key": False})
    lake.world.set_now(Instant(NOW + SECOND))
    first = steps.run(lake.services, name, as_of=Instant(NOW + SECOND), run="first", work="compaction")
    assert first.name == "needs_approval"
    lake.services.topics.alter(name, {"cleanup_policy": "compact,delete", "retain_null_key": False, "delete_retention": 60.0})
    lake.world.set_now(Instant(NOW + 2 * SECOND))
    assert lake.say("compact", "shop/clicks", "--status", "-o", "json").document["status"] == "ERROR", "nobody works on it any more"
    second = steps.run(lake.services, name, as_of=lake.services.ledger.now(), run="second", work="compaction")
    assert (second.name, second.plan_id != first.plan_id) == ("needs_approval", True)


def test_a_run_whose_question_is_void_says_so_at_its_end(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = lake.topic("shop/clicks", message_expiry=DAY)
    lake.append(name, 40, 35, 30, 25, 1)
    assert steps.run(lake.services, name, as_of=NOW, run="first").name == "needs_approval"
    monkeypatch.setattr(tasks, "lake", lambda: lake.services)
    assert [outcome["outcome"] for outcome in tasks.verify(run="first")] == ["needs_approval"]
    lake.services.topics.alter(name, {"message_expiry": 2 * DAY})
    (told,) = tasks.verify(run="first")
    assert (told["outcome"], told["detail"]) == (
        "superseded",
        "settings were changed after it was planned: message_expiry from 1d (86,400 s) to 2d (172,800 s)",
    )


def test_what_airflow_hands_over_is_the_answer_to_what_was_shown(lake: Lake, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "lake", lambda: lake.services)
    shown = judged_anew(lake, asked)
    ending = tasks.record_approval(plan_id=asked, gate_id=shown.gate_id, granted=True, by="ada", text="fine")
    assert ending == {"granted": False, "reason": "the plan was judged again; the next question shows the new report"}
    assert tasks.record_approval(plan_id=asked, gate_id=report_of(lake, asked).gate_id, granted=True, by="ada", text="fine") is None
    assert steps.publish(lake.services, asked) is not None


def test_a_yes_to_what_is_published_already_takes_nothing_back(lake: Lake) -> None:
    """The gate let it pass, its run died before it was verified, and settings were changed since."""
    name, s = lake.topic("shop/clicks", message_expiry=DAY), lake.services
    lake.append(name, 30, 3, 2, 1)
    plan_id = steps.plan(s, name, as_of=NOW).plan.plan_id
    steps.stage(s, plan_id)
    steps.mark(s, plan_id)
    assert steps.gate(s, plan_id).judgement == "passed"
    steps.publish(s, plan_id)
    s.topics.alter(name, {"message_expiry": 2 * DAY})
    with raises("NotReady"):
        steps.approve(s, plan_id, granted=True, by="ada", text="fine")
    assert s.ledger.record(plan_id).outcome is None
    outcome = steps.verify(s, plan_id)
    assert (outcome.name, outcome.removed_rows) == ("published", 1)


def test_a_word_in_advance_is_about_the_settings_that_stand_by_then(lake: Lake) -> None:
    name, s = lake.topic("shop/audit", message_expiry=DAY), lake.services
    lake.append(name, 40, 35, 30, 25, 1)

    def changes_mind(_plan: object, _report: object) -> tuple[bool, str, str]:
        if s.topics.describe(name).settings["message_expiry"] == DAY:
            s.topics.alter(name, {"message_expiry": DAY + DAY // 2})
        return True, "ada", "fine"

    outcome = steps.run(s, name, as_of=NOW, approver=changes_mind)
    assert (outcome.name, outcome.removed_rows) == ("published", 1), "planned again by the settings that stand"


def test_a_void_question_waits_for_nobody(lake: Lake, asked: str) -> None:
    name = TopicName.parse("shop/audit")
    assert lake.say("status", "shop/audit", "-o", "json").document[0]["waiting"]["plan_id"] == asked
    lake.services.topics.alter(name, {"message_expiry": DAY // 2})
    found = lake.say("status", "shop/audit", "-o", "json").document[0]
    assert (found["waiting"], found["due"]["messages"]) == (None, 4)
    assert all(one["kind"] != "question" for one in found["obligations"])
    page = lake.say("explain", asked, "-o", "json").document
    assert page["waits_until"] is None
    assert page["warnings"][-1].startswith("The approval request is void: settings were changed after it was planned: message_expiry from")
