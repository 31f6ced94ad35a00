"""`lifecycle due`, `plan`, `run` and the verbs, from what is due to what is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.services import Services
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, GateReport, Published
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import CommitContext
from tests.changes import named
from tests.worlds import HOUR, NOW, Lake, make_lake

DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    """Two of five messages are a day old."""
    topic = lake.topic("shop/orders", message_expiry=DAY)
    lake.append(topic, 30, 25, 3, 2, 1)
    return topic


@pytest.fixture
def audit(lake: Lake) -> TopicName:
    """Four of five messages are due: more than may go without a person's word."""
    topic = lake.topic("shop/audit", message_expiry=DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    return topic


def test_due_tells_every_topic_with_its_reason(lake: Lake, orders: TopicName) -> None:
    lake.topic("shop/quiet")
    found = lake.say("due", "-o", "json").document
    assert found["as_of"] == "2026-11-21T12:00:00Z"
    assert [(topic["topic"], topic["due"]) for topic in found["topics"]] == [("shop/orders", True), ("shop/quiet", False)]
    assert "2 messages in 2 segments due" in lake.say("due", str(orders)).out


def test_due_by_an_earlier_time_finds_less(lake: Lake, orders: TopicName) -> None:
    found = lake.say("due", "shop/orders", "--as-of", "2026-11-21T05:59:59.999999Z", "-o", "json").document
    assert [topic["due"] for topic in found["topics"]] == [False]


def test_a_topic_that_cannot_be_judged_is_no_quiet_topic(lake: Lake, orders: TopicName) -> None:
    """A monitor that reads the status must not take "not due" for good news."""
    told = lake.say("due", str(orders), "shop/nowhere")
    assert (told.status, "2 messages in 2 segments due" in told.out, "UnknownTopic" in told.out) == (2, True, True)
    assert lake.say("due", str(orders)).status == 0


def test_a_dry_run_records_nothing_and_tells_what_the_plan_would(lake: Lake, orders: TopicName) -> None:
    shown = lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document
    assert lake.services.ledger.open_plan(orders) is None
    made = lake.say("plan", "shop/orders", "-o", "json").document
    assert {name: made[name] for name in shown} == shown
    assert (made["state"], made["plan_id"]) == ("planned", lake.services.ledger.open_plan(orders).plan.plan_id)
    assert (shown["removes"]["messages"], shown["removes"]["of_messages"], shown["removes"]["share"]) == (2, 5, 0.4)
    assert shown["removes"]["by_reason"] == {"expiry": 2}
    assert shown["bounds"][0] | {"reason": ""} == {"partition": 0, "stops_at": 2, "bound": "message_expiry", "reason": ""}


def test_a_plan_reads_well_and_names_what_is_next(lake: Lake, orders: TopicName) -> None:
    lake.say("consumer", "commit", "shop/orders", "billing", "0:0")
    said = lake.say("plan", "shop/orders").out
    plan_id = lake.services.ledger.open_plan(orders).plan.plan_id
    assert f"Plan {plan_id}" in said
    assert "1 of 5 messages (20.0 %)" in said
    assert "consumer billing has processed up to offset 0" in said
    assert f"Next: lifecycle stage {plan_id[:12]}" in said


def test_of_a_plan_whose_run_died_before_its_commit_publish_is_next(lake: Lake, orders: TopicName) -> None:
    """`verify` would find nothing, and `publish` finds the commit where there is one."""
    lake.say("plan", "shop/orders")
    ledger = lake.services.ledger
    plan_id = ledger.open_plan(orders).plan.plan_id
    for verb in ("stage", "gate"):
        lake.say(verb, plan_id)
    record = ledger.record(plan_id)
    ledger.record_publishing(record.staged, record.report)
    said = lake.say("explain", plan_id)
    assert f"State: publishing. Next: lifecycle publish {plan_id[:12]}" in said.out
    assert lake.say("publish", plan_id).status == 0
    assert lake.say("verify", plan_id).status == 0
    assert lake.stored(orders) == [2, 3, 4]


@pytest.mark.parametrize("changes", ["rows", "view", "back"])
def test_a_plan_that_takes_single_messages_can_be_read(lake: Lake, capsys: pytest.CaptureFixture[str], changes: str) -> None:
    from message_lifecycle.app.cli.screen import Screen
    from message_lifecycle.app.views.plans import plan_view
    from message_lifecycle.model.change import RemoveRows, RestoreRows

    topic = lake.topic("shop/carts", max_age_seconds=7200.0)
    lake.append(topic, 3, 3, 1)
    made = preview(lake.services, topic, as_of=NOW)
    assert made.log_commit.mark
    if changes == "view":
        of_view = RemoveRows(partition=0, offsets="1-2", rows=2, reason="purged")
        made = replace(made, changes=named(of_view), operation="message_request")
    if changes == "back":
        made = replace(made, changes=named(RestoreRows(partition=0, offsets="1-2", rows=2), source_id=1), operation="undo")
    capsys.readouterr()
    Screen().draw(plan_view(made).screen_blocks())
    said = {"rows": "remove messages", "view": "remove from the view", "back": "bring back to the view"}[changes]
    assert said in capsys.readouterr().out


def test_file_names_are_counted_and_only_listed_on_request(lake: Lake, orders: TopicName) -> None:
    without = lake.say("plan", "shop/orders", "--dry-run", "-o", "json").document["removes"]["files"]
    assert without["count"] == 2
    assert "names" not in without
    listed = lake.say("plan", "shop/orders", "--dry-run", "--files", "-o", "json").document["removes"]["files"]
    assert listed["names"] == ["0/0", "0/1"]
    assert "0/1" not in lake.say("plan", "shop/orders", "--dry-run").out
    assert "0/1" in lake.say("plan", "shop/orders", "--dry-run", "--files").out


def test_a_plan_of_60_000_files_fits_the_screen(lake: Lake) -> None:
    from message_lifecycle.app.cli.screen import Screen
    from message_lifecycle.app.views.plans import plan_view
    from message_lifecycle.model.plan import Selection
    from tests.ledgers import drop, plan_of

    actions = tuple(drop(offset, offset, partition=offset) for offset in range(60_000))
    plan = replace(plan_of(actions=actions), selection=Selection(files=tuple(f"data/{n}.parquet" for n in range(60_000))))
    Screen().draw(plan_view(plan).screen_blocks())
    said = lake.capsys.readouterr().out
    assert "60,000" in said
    assert ".parquet" not in said
    assert len(said.splitlines()) < 50


def test_the_verbs_one_by_one_do_what_run_does(lake: Lake, orders: TopicName) -> None:
    plan_id = lake.say("plan", "shop/orders", "-o", "json").document["plan_id"]
    short = plan_id[:8]
    assert lake.say("stage", short, "-o", "json").document["branch"] == plan_id
    assert lake.stored(orders) == [0, 1, 2, 3, 4]
    assert lake.say("gate", short, "-o", "json").document["judgement"] == "passed"
    assert lake.say("publish", short, "-o", "json").document["removed"] == {"expiry": 2}
    assert lake.stored(orders) == [2, 3, 4]
    verified = lake.say("verify", short, "-o", "json").document
    assert (verified["outcome"], verified["removed"], verified["messages_kept"]) == ("published", {"expiry": 2}, 3)


def test_every_verb_can_be_said_again(lake: Lake, orders: TopicName) -> None:
    plan_id = lake.say("plan", "shop/orders", "-o", "json").document["plan_id"]
    for verb in ("stage", "gate", "publish", "verify"):
        first, second = lake.say(verb, plan_id, "-o", "json"), None
        if verb != "verify":
            second = lake.say(verb, plan_id, "-o", "json")
            assert (second.status, _without_time(second.out)) == (first.status, _without_time(first.out)), verb
    assert lake.say("verify", plan_id).status == 0
    assert lake.say("publish", plan_id, "-o", "json").document["outcome"] == "published"
    assert lake.stored(orders) == [2, 3, 4]


def _without_time(text: str) -> list[str]:
    return [line for line in text.splitlines() if "took_ms" not in line]


@pytest.mark.parametrize("verb", ["gate", "publish", "verify"])
def test_a_verb_out_of_order_is_refused(lake: Lake, orders: TopicName, verb: str) -> None:
    plan_id = lake.say("plan", "shop/orders", "-o", "json").document["plan_id"]
    refused = lake.say(verb, plan_id)
    assert (refused.status, refused.err.split(":")[0]) == (3, "NotReady")
    assert lake.stored(orders) == [0, 1, 2, 3, 4]


def test_run_removes_verifies_and_a_second_run_has_nothing_to_do(lake: Lake, orders: TopicName) -> None:
    first = lake.say("run", "shop/orders", "-o", "json").lines
    assert [(one["topic"], one["outcome"], one["removed_messages"]) for one in first] == [("shop/orders", "published", 2)]
    assert lake.stored(orders) == [2, 3, 4]
    again = lake.say("run", "shop/orders", "-o", "json")
    assert again.status == 0
    assert [(one["outcome"], one["first_plan_id"]) for one in again.lines] == [("no_op", first[0]["plan_id"])]


def test_run_leaves_a_large_plan_waiting_and_says_how_to_answer(lake: Lake, audit: TopicName) -> None:
    waiting = lake.say("run", "shop/audit")
    plan_id = lake.services.ledger.waiting()[0].plan_id
    assert waiting.status == 5
    assert f"lifecycle approve {plan_id[:12]} --by NAME --why WHY" in waiting.out
    assert lake.stored(audit) == [0, 1, 2, 3, 4]
    assert lake.say("approve", plan_id[:12], "--by", "ada", "--why", "old audit").status == 0
    assert lake.say("run", "shop/audit").status == 0
    assert lake.stored(audit) == [4]
    approval = lake.say("explain", plan_id, "-o", "json").document["approval"]
    assert (approval["by"], approval["text"], approval["at"]) == ("ada", "old audit", "2026-11-21T12:00:00Z")


def test_run_with_yes_records_who_said_so(lake: Lake, audit: TopicName) -> None:
    done = lake.say("run", "shop/audit", "--why", "old audit", "--by", "ada", "-o", "json")
    assert (done.status, done.lines[0]["outcome"]) == (0, "published")
    assert lake.say("explain", done.lines[0]["plan_id"], "-o", "json").document["approval"]["by"] == "ada"


@pytest.mark.parametrize("arguments", [("--why", "why"), ("--by", "ada"), ("--why", " ", "--by", "ada"), ("--why", "why", "--by", "")])
def test_a_word_without_name_or_reason_is_none(lake: Lake, audit: TopicName, arguments: tuple[str, ...]) -> None:
    assert lake.say("run", "shop/audit", *arguments).status == 2
    assert lake.services.ledger.open_plan(audit) is None


def test_a_refusal_closes_the_plan_and_removes_nothing(lake: Lake, audit: TopicName) -> None:
    lake.say("run", "shop/audit")
    plan_id = lake.services.ledger.waiting()[0].plan_id
    assert lake.say("refuse", plan_id, "--by", "ada", "--why", "needed for the trial").status == 0
    assert lake.stored(audit) == [0, 1, 2, 3, 4]
    assert lake.say("approve", plan_id, "--by", "bob", "--why", "no matter").status == 3
    assert lake.say("publish", plan_id, "-o", "json").document["detail"] == "ada refused: needed for the trial"
    assert lake.say("due", "shop/audit", "-o", "json").document["topics"][0]["due"] is False


@pytest.mark.parametrize("arguments", [("--by", "ada"), ("--why", "why"), ("--by", "", "--why", "why"), ("--by", "ada", "--why", " ")])
def test_an_answer_needs_name_and_reason(lake: Lake, audit: TopicName, arguments: tuple[str, ...]) -> None:
    lake.say("run", "shop/audit")
    plan_id = lake.services.ledger.waiting()[0].plan_id
    assert lake.say("approve", plan_id, *arguments).status == 2
    assert lake.services.ledger.record(plan_id).approval is None


def test_one_topic_that_fails_hides_no_other(lake: Lake, orders: TopicName, audit: TopicName) -> None:
    said = lake.say("run", "shop/nowhere", "shop/audit", "shop/orders", "-o", "json")
    assert [one.get("error") or one["outcome"] for one in said.lines] == ["UnknownTopic", "needs_approval", "published"]
    assert said.status == 5
    assert lake.stored(orders) == [2, 3, 4]


class BlockingGate:
    """Finds that nothing is as it should be."""

    def judge(self, plan: object, staged: object, policy: object, evidence: object) -> GateReport:
        check = Check(id="sample", says="a rule", kind="rule", evaluated=True, passed=False, found="3 messages are too young")
        return GateReport(plan_id=plan.plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(check,))


def _with(lake: Lake, **services: object) -> Lake:
    changed: Services = replace(lake.services, **services)
    return replace(lake, world=replace(lake.world, services=changed))


def test_a_blocked_run_says_why_and_ends_with_3(lake: Lake, orders: TopicName) -> None:
    blocked = _with(lake, gate=BlockingGate()).say("run", "shop/orders")
    assert blocked.status == 3
    assert "3 messages are too young" in blocked.out
    assert lake.stored(orders) == [0, 1, 2, 3, 4]


class OvertakenStore:
    """Another writer commits to the table before every publish."""

    def __init__(self, lake: Lake, topic: TopicName) -> None:
        self._lake, self._topic = lake, topic

    def __getattr__(self, name: str) -> object:
        return getattr(self._lake.services.stores.log, name)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        self._lake.world.writer.foreign_delete(self._topic, [(0, self._lake.stored(self._topic)[-1])])
        return self._lake.services.stores.log.publish(verdict, given)


def test_a_starved_run_names_the_rival(lake: Lake, orders: TopicName) -> None:
    lake.append(orders, 0.5, 0.4)
    starved = _with(lake, stores=replace(lake.services.stores, log=OvertakenStore(lake, orders))).say("run", "shop/orders", "-o", "json")
    assert (starved.status, starved.lines[0]["outcome"]) == (3, "starved")
    assert "conflicting delete (snapshot " in starved.lines[0]["detail"]
    assert lake.stored(orders) == [0, 1, 2, 3]
    told = lake.say("status", "shop/orders", "-o", "json")
    assert told.status == 1
    assert told.document[0]["problems"][0].startswith("The last run ended as starved: planned 3 times")


def test_an_earlier_as_of_removes_only_what_was_due_then(lake: Lake, orders: TopicName) -> None:
    done = lake.say("run", "shop/orders", "--as-of", "2026-11-21T06:30:00Z", "-o", "json").lines[0]
    assert (done["removed_messages"], done["as_of"]) == (1, "2026-11-21T06:30:00Z")
    assert lake.stored(orders) == [1, 2, 3, 4]


@pytest.mark.parametrize("verb", [("run",), ("plan",), ("plan", "--dry-run"), ("due",), ("explain",)])
def test_a_time_to_come_is_refused_with_what_to_do(lake: Lake, orders: TopicName, verb: tuple[str, ...]) -> None:
    position = ("0:0",) if verb == ("explain",) else ()
    refused = lake.say(verb[0], "shop/orders", *position, *verb[1:], "--as-of", "2099-01-01")
    assert (refused.status, refused.out) == (3, "")
    assert refused.err.startswith("FutureAsOf: as_of 2099-01-01T00:00:00Z is in the future. The ledger's clock says 2026-11-21T12:00:00Z")
    assert "Give a time in the past" in refused.err
    assert lake.services.ledger.open_plan(orders) is None
    assert lake.stored(orders) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "1e9", "", "now", "2026-11-21T25:00:00Z", "9" * 20])
def test_a_time_that_cannot_be_read_is_refused(lake: Lake, orders: TopicName, text: str) -> None:
    refused = lake.say("run", "shop/orders", "--as-of", text)
    assert refused.status == 2
    assert refused.err.startswith("InvalidInstant: ")
    assert "2026-11-21T00:00:00Z" in refused.err
    assert lake.stored(orders) == [0, 1, 2, 3, 4]


def test_microseconds_are_a_time_too(lake: Lake, orders: TopicName) -> None:
    told = lake.say("plan", "shop/orders", "--dry-run", "--as-of", str(NOW - 1), "-o", "json").document
    assert told["as_of"] == "2026-11-21T11:59:59.999999Z"


@pytest.mark.parametrize("verb", ["stage", "gate", "publish", "verify", "explain"])
def test_an_unknown_plan_is_refused(lake: Lake, orders: TopicName, verb: str) -> None:
    refused = lake.say(verb, "abc123")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownPlan")
    assert "lifecycle ledger list" in refused.err


def test_more_is_told_while_the_budget_ends_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, max_segments=1)
    topic = lake.topic("shop/orders", message_expiry=DAY)
    lake.append(topic, 30, 25, 3, 2, 1)
    assert "The next run continues" in lake.say("run", "shop/orders").out
    assert lake.say("run", "shop/orders", "-o", "json").lines[0]["more"] is False
    assert lake.stored(topic) == [2, 3, 4]


def test_a_question_lapses(lake: Lake, audit: TopicName) -> None:
    lake.say("run", "shop/audit")
    plan_id = lake.services.ledger.waiting()[0].plan_id
    lake.world.set_now(Instant(NOW + DAY * 1_000_000 + 1 + HOUR))
    assert lake.say("publish", plan_id, "-o", "json").document["outcome"] == "lapsed"
    assert lake.stored(audit) == [0, 1, 2, 3, 4]


def test_a_store_without_refused_rows_says_so(lake: Lake) -> None:
    lake.topic("one")
    for words in (("run", "one"), ("one",), ("list", "one"), ("show", "one")):
        told = lake.say("quarantine", *words)
        assert told.status == 2
        assert "NoQuarantine" in told.out + told.err
