"""Reports and approvals that somebody wrote into the ledger's database by hand are not believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from message_lifecycle.app import seals, steps
from message_lifecycle.app.views.status import topic_status
from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import from_json, plan_id_of, to_json
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import erasure_secret_missing
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Staged
from tests.errors import raises
from tests.worlds import NOW, Lake, make_lake

Row = dict[str, str | None]


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def name(lake: Lake) -> TopicName:
    topic = lake.topic("shop/orders", message_expiry=60)
    lake.append(topic, 1)
    return topic


def asked(lake: Lake, name: TopicName) -> str:
    """A plan that the gate leaves to a person: it empties the log."""
    plan_id = steps.plan(lake.services, name, as_of=NOW).plan.plan_id
    steps.stage(lake.services, plan_id)
    assert steps.gate(lake.services, plan_id).judgement == "needs_approval"
    return plan_id


def rewrite(lake: Lake, plan_id: str, change: Callable[[Row], None]) -> None:
    """As a statement of SQL does."""
    of_plan = tables.plans.c.plan_id == plan_id
    with lake.services.ledger._database.writing() as connection:
        row: Row = dict(connection.execute(select(tables.plans).where(of_plan)).one()._mapping)
        before = dict(row)
        change(row)
        connection.execute(update(tables.plans).where(of_plan).values({key: value for key, value in row.items() if value != before[key]}))


def all_passed(row: Row) -> None:
    report = from_json(GateReport, str(row["report"]))
    checks = tuple(replace(check, passed=True, evaluated=True) for check in report.checks)
    row.update(report=to_json(replace(report, checks=checks)), judgement="passed")


def limits_left_out(row: Row) -> None:
    report = from_json(GateReport, str(row["report"]))
    kept = tuple(check for check in report.checks if check.kind == "rule")
    row.update(report=to_json(replace(report, checks=kept, declared=len(kept))), judgement="passed")


def no_seal(row: Row) -> None:
    all_passed(row)
    row["report"] = to_json(replace(from_json(GateReport, str(row["report"])), seal=None))


def unkeyed_seal(row: Row) -> None:
    all_passed(row)
    row["report"] = to_json(replace(from_json(GateReport, str(row["report"])), seal="none:" + "0" * 64))


def granted(row: Row) -> None:
    report = from_json(GateReport, str(row["report"]))
    word = Approval(plan_id=str(row["plan_id"]), granted=True, by="bob", at=NOW, text="fine", gate_id=report.gate_id)
    row["approval"] = to_json(word)


def granted_with_the_reports_seal(row: Row) -> None:
    granted(row)
    seal = from_json(GateReport, str(row["report"])).seal
    row["approval"] = to_json(replace(from_json(Approval, str(row["approval"])), seal=seal))


def another_stage(row: Row) -> None:
    row["staged"] = to_json(replace(from_json(Staged, str(row["staged"])), branch="another"))


def another_requester(row: Row) -> None:
    row["requested_by"] = "eve"


CHANGES = [all_passed, limits_left_out, no_seal, unkeyed_seal, granted, granted_with_the_reports_seal, another_stage, another_requester]


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_changed_by_sql_is_not_believed(lake: Lake, name: TopicName, change: Callable[[Row], None]) -> None:
    plan_id = asked(lake, name)
    rewrite(lake, plan_id, change)
    told = lake.say("publish", plan_id)
    assert (told.status, "LedgerTampered" in told.err) == (3, True), told.err
    assert lake.stored(name) == [0]
    status = topic_status(lake.services, name)
    assert status.ok is False
    assert any(problem.startswith("LedgerTampered") for problem in status.problems)


def test_a_plan_changed_by_sql_is_not_believed(lake: Lake, name: TopicName) -> None:
    """An erasure takes names out of a plan's text and notes the new text's id; nobody else may."""
    plan_id = asked(lake, name)
    documents = tables.plan_documents
    with lake.services.ledger._database.writing() as connection:
        text = str(connection.execute(select(documents.c.document).where(documents.c.plan_id == plan_id)).scalar_one())
        plan = json.loads(text) | {"warnings": ["nothing to see"]}
        changed = json.dumps(plan, sort_keys=True, separators=(",", ":"))
        connection.execute(update(documents).where(documents.c.plan_id == plan_id).values(document=changed, text_id=plan_id_of(changed)))
    with raises("LedgerTampered"):
        steps.approve(lake.services, plan_id, granted=True, by="bob", text="fine")


def test_an_approval_of_another_person_or_time_is_not_believed(lake: Lake, name: TopicName) -> None:
    plan_id = asked(lake, name)
    steps.approve(lake.services, plan_id, granted=True, by="bob", text="fine")
    changes: list[dict[str, object]] = [{"by": "eve"}, {"at": int(NOW) + 1}, {"text": "by order"}]
    for change in changes:

        def other(row: Row, change: dict[str, object] = change) -> None:
            row["approval"] = json.dumps(json.loads(str(row["approval"])) | change, sort_keys=True, separators=(",", ":"))

        before = lake.services.ledger.record(plan_id).approval
        rewrite(lake, plan_id, other)
        assert seals.broken_seal(lake.services, lake.services.ledger.record(plan_id)) == "the approval", change
        rewrite(lake, plan_id, lambda row, kept=before: row.update(approval=to_json(kept)))  # type: ignore[misc]
    assert lake.say("publish", plan_id).status == 0
    assert lake.stored(name) == []


def test_a_forged_report_is_not_approved_and_a_refusal_ends_it(lake: Lake, name: TopicName) -> None:
    plan_id = asked(lake, name)
    rewrite(lake, plan_id, another_stage)
    with raises("LedgerTampered"):
        steps.approve(lake.services, plan_id, granted=True, by="bob", text="fine")
    assert lake.say("refuse", plan_id, "--by", "bob", "--why", "forged").status == 0
    assert lake.stored(name) == [0]


def test_a_refusal_ends_a_plan_with_a_forged_approval(lake: Lake, name: TopicName) -> None:
    plan_id = asked(lake, name)
    steps.approve(lake.services, plan_id, granted=True, by="bob", text="fine")

    def forge(row: Row) -> None:
        row["approval"] = json.dumps(json.loads(str(row["approval"])) | {"by": "eve"}, sort_keys=True, separators=(",", ":"))

    rewrite(lake, plan_id, forge)
    assert lake.say("publish", plan_id).status == 3
    assert lake.say("refuse", plan_id, "--by", "bob", "--why", "forged").status == 0
    assert (lake.stored(name), lake.services.ledger.open_plan(name)) == ([0], None)


def test_another_secret_does_not_pass(lake: Lake, name: TopicName) -> None:
    plan_id = asked(lake, name)
    other = replace(lake.services, key_secret=lambda _make: KeySecret(b"another secret of thirty-two bytes"))
    with raises("LedgerTampered"):
        steps.publish(other, plan_id)


def test_without_a_secret_the_seal_shows_damage(lake: Lake, name: TopicName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFECYCLE_ERASURE_SECRET_FILE", raising=False)

    def none(_make: bool) -> KeySecret:
        raise erasure_secret_missing("/nowhere", "no such file")

    s = replace(lake.services, key_secret=none)
    plan_id = steps.plan(s, name, as_of=NOW).plan.plan_id
    steps.stage(s, plan_id)
    steps.gate(s, plan_id)
    rewrite(lake, plan_id, all_passed)
    with raises("LedgerTampered"):
        steps.publish(s, plan_id)
    monkeypatch.setenv("LIFECYCLE_ERASURE_SECRET_FILE", "/nowhere")
    with raises("ErasureSecretMissing"):
        steps.publish(s, plan_id)
