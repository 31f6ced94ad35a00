"""A question that Airflow asks ends where the plan ends, and a late answer changes nothing but what keeps data (DEL-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from message_lifecycle.app import steps, tasks
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation
from tests.errors import raises
from tests.unit.test_frozen_question import DAY, judged_anew, report_of
from tests.worlds import NOW, SECOND, Lake, make_lake

TOPIC = TopicName.parse("shop/audit")
RUN = "message_cleaner/r"
Act = Callable[[Lake, str], object]


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = make_lake(capsys)
    monkeypatch.setattr(tasks, "lake", lambda: made.services)
    made.append(made.topic(str(TOPIC), message_expiry=DAY, approval_ttl=60), 40, 35, 30, 25, 1)
    return made


@pytest.fixture
def question(lake: Lake) -> dict[str, Any]:
    """As a run of Airflow asks it."""
    assert steps.run(lake.services, TOPIC, as_of=NOW, run=RUN).name == "needs_approval"
    (asked,) = tasks.waiting_plans(run=RUN)
    return {"plan_id": asked["plan_id"], "gate_id": asked["gate_id"]}


def _approve(lake: Lake, plan_id: str) -> None:
    assert lake.say("approve", plan_id, "--by", "ada", "--why", "fine").status == 0


def _publish(lake: Lake, plan_id: str) -> None:
    _approve(lake, plan_id)
    assert lake.say("run", str(TOPIC)).status == 0


def _refuse(lake: Lake, plan_id: str) -> None:
    assert lake.say("refuse", plan_id, "--by", "ada", "--why", "no").status == 0


def _replace(lake: Lake, plan_id: str) -> None:
    lake.services.topics.alter(TOPIC, {"message_expiry": DAY // 2, "approval_ttl": 60})
    again = steps.run(lake.services, TOPIC, as_of=NOW)
    assert again.plan_id != plan_id


def _change_settings(lake: Lake, plan_id: str) -> None:
    lake.services.topics.alter(TOPIC, {"message_expiry": DAY // 2, "approval_ttl": 60})


def _wait(lake: Lake, plan_id: str) -> None:
    lake.world.set_now(Instant(NOW + 61 * SECOND))


def _wait_and_run(lake: Lake, plan_id: str) -> None:
    _wait(lake, plan_id)
    steps.run(lake.services, TOPIC, as_of=lake.services.ledger.now(), run="message_cleaner/next")


NOTHING = "nothing of it was removed"
ENDINGS: dict[str, tuple[Act, str]] = {
    "published": (_publish, "ada approved the plan elsewhere, and the plan was published"),
    "refused": (_refuse, f"ada refused the plan elsewhere, and the plan was closed; {NOTHING}"),
    "replaced": (_replace, f"the plan gave way to a newer plan; {NOTHING}"),
    "void": (_change_settings, "the topic's settings were changed; nothing of the plan was removed, and the next run asks again"),
    "lapsed": (_wait, "nobody answered in time; nothing of the plan was removed"),
    "lapsed and asked anew": (_wait_and_run, f"the plan lapsed; {NOTHING}"),
    "judged again": (judged_anew, "the plan was judged again; the next question shows the new report"),
}


def test_a_question_that_waits_has_no_end(lake: Lake, question: dict[str, Any]) -> None:
    assert tasks.find_question_end(**question) is None
    assert tasks.find_question_end(**question, with_settings=False) is None


@pytest.mark.parametrize("run", [None, "other/r"])
@pytest.mark.parametrize("work", ["compaction", "purge_compacted", "retention"])
def test_another_operation_that_changes_nothing_leaves_it_open(
    capsys: pytest.CaptureFixture[str], work: Operation, run: str | None
) -> None:  # DEL-3
    lake = make_lake(capsys)
    lake.append(lake.topic(str(TOPIC), message_expiry=DAY, cleanup_policy="compact,delete"), 40, 35, 30, 25, 1)
    assert steps.run(lake.services, TOPIC, as_of=NOW, work="compaction").name == "published"
    asked = steps.run(lake.services, TOPIC, as_of=NOW, run=RUN)
    assert asked.name == "needs_approval"
    assert steps.run(lake.services, TOPIC, as_of=NOW, work=work, run=run).name == "no_op"
    waiting = lake.services.ledger.open_plan(TOPIC)
    assert waiting is not None and waiting.plan.plan_id == asked.plan_id
    _publish(lake, waiting.plan.plan_id)
    assert lake.stored(TOPIC) == [4]


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_end_elsewhere_is_told_and_a_late_answer_makes_no_error(
    lake: Lake, question: dict[str, Any], ending: str, granted: bool
) -> None:
    act, reason = ENDINGS[ending]
    act(lake, question["plan_id"])
    assert tasks.find_question_end(**question) == {"granted": False, "reason": reason}
    before = lake.stored(TOPIC)
    late = tasks.record_approval(**question, granted=granted, by="bob", text="late")
    if granted or ending not in ("void", "lapsed", "judged again"):  # a no to a plan that is still open is taken down
        assert late is not None and not late["granted"]
    assert lake.stored(TOPIC) == before
    (outcome,) = tasks.verify(run=RUN, plan_id=question["plan_id"])
    assert outcome["outcome"] in ("published", "refused", "superseded", "lapsed", "needs_approval")


def test_a_yes_elsewhere_lets_the_run_go_on(lake: Lake, question: dict[str, Any]) -> None:
    _approve(lake, question["plan_id"])
    ending = tasks.find_question_end(**question)
    assert ending == {"granted": True, "reason": "ada approved the plan elsewhere", "by": "ada", "text": "fine"}
    # The task hands the word on as it stands, and a yes that came late changes nothing.
    assert tasks.record_approval(**question, granted=True, by="ada", text="fine") is None
    assert tasks.record_approval(**question, granted=True, by="bob", text="me too") == ending
    assert steps.publish(lake.services, question["plan_id"]) is not None
    (outcome,) = tasks.verify(run=RUN, plan_id=question["plan_id"])
    assert (outcome["outcome"], lake.stored(TOPIC)) == ("published", [4])


def test_a_late_no_keeps_what_is_not_gone_yet(lake: Lake, question: dict[str, Any]) -> None:
    _approve(lake, question["plan_id"])
    ending = tasks.record_approval(**question, granted=False, by="bob", text="wait")
    reason = "ada approved the plan elsewhere, then bob refused it; nothing of the plan was removed"
    assert ending == {"granted": False, "reason": reason}
    (outcome,) = tasks.verify(run=RUN, plan_id=question["plan_id"])
    assert (outcome["outcome"], outcome["detail"]) == ("refused", "bob refused after ada had approved: wait")
    assert lake.stored(TOPIC) == [0, 1, 2, 3, 4]


def test_a_no_after_the_commit_takes_nothing_back_and_says_so(lake: Lake, question: dict[str, Any]) -> None:
    _approve(lake, question["plan_id"])
    assert steps.publish(lake.services, question["plan_id"]) is not None
    ending = tasks.record_approval(**question, granted=False, by="bob", text="wait")
    assert ending is not None
    assert ending["reason"] == "ada approved the plan elsewhere, and the plan was carried out before bob refused it"
    (outcome,) = tasks.verify(run=RUN, plan_id=question["plan_id"])
    assert outcome["outcome"] == "published"


def test_a_person_who_may_not_answer_is_refused_while_the_plan_waits(lake: Lake, question: dict[str, Any]) -> None:
    with raises("UnnamedPerson"):
        tasks.record_approval(**question, granted=True, by="-", text="fine")
    assert tasks.find_question_end(**question) is None


def test_a_page_says_where_a_question_is_answered(lake: Lake, question: dict[str, Any]) -> None:
    asked_by_airflow = tasks.topic_page(str(TOPIC)).status.waiting
    assert asked_by_airflow is not None and asked_by_airflow.asked_in_airflow
    _replace(lake, question["plan_id"])  # by a run of the command
    asked_by_command = tasks.topic_page(str(TOPIC)).status.waiting
    assert asked_by_command is not None
    assert (asked_by_command.asked_in_airflow, asked_by_command.plan_id == question["plan_id"]) == (False, False)
    assert report_of(lake, asked_by_command.plan_id).judgement == "needs_approval"
