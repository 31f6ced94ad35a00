"""What went before an upgrade is explained, verified and taken back after it; what was open is finished or asked again (DEL-1, DEL-6, DEL-7)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, text

from message_lifecycle.app import applications, changes, steps, tasks, views
from message_lifecycle.app.cli import main
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.due import due
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.app.views.plans import approval_text, plan_page, waits_until
from message_lifecycle.ledger import migrate_ledger, open_ledger
from message_lifecycle.model.errors import NotReady, PlanConflict
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.plan import PLAN_FORMAT, Plan
from message_lifecycle.model.request import UndoPlan
from tests.errors import raises
from tests.older_plans import FILES, OLDER, Upgraded, as_it_was, upgraded

YES = True, "bob", "as asked"


@pytest.fixture(params=OLDER)
def file(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def old(file: str, tmp_path: Path) -> Upgraded:
    return upgraded(file, tmp_path)


def run(old: Upgraded, topic: str, work: object = "message_cleaner", *, by_hand: bool = True) -> Outcome:
    return steps.run(
        old.s,
        TopicName.parse(topic),
        as_of=old.clock.now,
        work=work,  # type: ignore[arg-type]  # any of them
        run=None if by_hand else "run-now",
        approver=lambda _plan, _report: YES,
    )


def undo(old: Upgraded, topic: str, operation: str = "message_cleaner") -> Outcome:
    return run(old, topic, UndoPlan(plan_id=old.id_of(topic, operation)))


def test_all_that_was_recorded_is_shown(old: Upgraded, capsys: pytest.CaptureFixture[str]) -> None:
    s = old.s
    assert len(s.ledger.history()) >= 10
    for found in s.ledger.runs():
        assert s.ledger.run_entries(found.run_id)
    for (topic, _), plan_id in old.ids.items():
        page = plan_page(s, plan_id)
        assert (page["plan_id"], page["topic"]) == (plan_id, topic)
        record = s.ledger.record(plan_id)
        if record.report is not None:
            assert approval_text(s, record) and views.question_of(record)
        assert main(["explain", plan_id[:12]], wiring=Wiring(lake=lambda: s)) == 0
    assert {plan.plan_id for plan in s.ledger.plans()} >= set(old.ids.values())
    for name in s.topics.list():
        if name.stream != "notes":
            assert views.topic_page(s, name)["topic"] == str(name)
    assert len(views.status(s)) == len(s.topics.list())
    capsys.readouterr()


def test_a_message_is_explained_by_the_plan_that_took_it(old: Upgraded) -> None:
    name = TopicName.parse("shop/orders")
    for offset, operation in ((0, "message_cleaner"), (6, "message_cleaner"), (7, "message_request")):
        found = explain_message(old.s, name, 0, offset, as_of=old.clock.now)
        assert (found["verdict"], found["removed_by"]["plan_id"]) == ("gone", old.id_of("shop/orders", operation))


def test_a_published_plan_is_verified_by_its_outcome(old: Upgraded) -> None:
    for plan_id in old.ids.values():
        record = old.s.ledger.record(plan_id)
        if record.outcome is not None:
            assert steps.verify(old.s, plan_id) == record.outcome
        if record.outcome is not None and record.outcome.name == "published":
            found = old.s.ledger.find_published(record.plan.topic, record.plan.operation, record.plan.as_of)
            assert found is not None and found.plan.topic == record.plan.topic


def test_one_whose_run_died_before_its_outcome_is_verified_against_the_table(old: Upgraded) -> None:
    plan_id = old.id_of("open/publish", "message_cleaner")
    outcome = steps.verify(old.s, plan_id)
    assert (outcome.name, dict(outcome.removed), outcome.detail, outcome.plan_id) == ("published", {"expiry": 4}, "", plan_id)
    assert undo(old, "open/publish").restored == 4
    assert old.stored("open/publish") == [0, 1, 2, 3, 4]


def test_it_is_verified_by_the_next_run_as_well(old: Upgraded) -> None:
    run(old, "open/publish")
    outcome = old.record("open/publish", "message_cleaner").outcome
    assert outcome is not None and outcome.name == "published"


def test_a_removal_comes_back_and_its_markers_go(old: Upgraded) -> None:
    """The outcome does not tell where they lie, as later ones do; the log's history does."""
    record = old.record("shop/orders", "message_cleaner")
    assert record.outcome is not None and (record.outcome.markers, record.outcome.marker_offsets) == (3, None)
    assert old.stored("shop/orders") == [5, 9, 10, 11, 12, 13]
    outcome = undo(old, "shop/orders")
    assert (outcome.name, outcome.restored, dict(outcome.removed), outcome.detail) == ("published", 6, {"undone": 3}, "")
    assert old.stored("shop/orders") == [0, 1, 2, 3, 4, 5, 6, 12, 13]
    assert old.s.ledger.undoing(record.plan.plan_id) is not None
    assert undo(old, "shop/orders").name == "no_op"


def test_markers_that_nothing_tells_of_any_more_refuse_an_undo(old: Upgraded, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stayed would hide what comes back."""
    for found in ((), ((0, 9, 10),), ((0, 9, 12),)):
        monkeypatch.setattr(old.s.reader, "marker_offsets", lambda *_, found=found: found)
        with raises("UndoSourceGone", match="which messages are the 3 markers"):
            undo(old, "shop/orders")
    assert old.stored("shop/orders") == [5, 9, 10, 11, 12, 13]


def test_markers_of_one_that_was_taken_back_are_told_by_its_undo(old: Upgraded, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of what another undo brings back, also when the history that told them has gone."""
    undo(old, "shop/orders")
    told = old.s.reader.marker_offsets
    own = old.id_of("shop/orders", "message_request")
    monkeypatch.setattr(old.s.reader, "marker_offsets", lambda name, plan_id: told(name, plan_id) if plan_id == own else ())
    outcome = undo(old, "shop/orders", "message_request")
    assert (outcome.name, outcome.restored, dict(outcome.removed)) == ("published", 1, {"undone": 1})


def test_a_request_on_a_compacted_topic_comes_back_to_log_and_view(old: Upgraded) -> None:
    name = TopicName.parse("prices/verify")
    assert [m.key for m in read_compacted(old.s, name)] == [b"b", b"c"]
    outcome = undo(old, "prices/verify", "message_request")
    assert (outcome.name, outcome.restored) == ("published", 2)
    assert old.stored("prices/verify") == [0, 1, 2, 3, 4, 5]
    assert [m.key for m in read_compacted(old.s, name)] == [b"a", b"b", b"c"]


def test_a_purge_of_what_is_compacted_comes_back(old: Upgraded) -> None:
    before = old.stored("shop/stock")
    assert undo(old, "shop/stock", "purge_compacted").restored == 7
    assert len(old.stored("shop/stock")) == len(before) + 7


def test_a_request_that_a_later_compaction_has_built_on_is_refused_by_its_older_plan(old: Upgraded) -> None:
    with raises("LaterPlan"):
        undo(old, "shop/stock", "message_request")


@pytest.mark.parametrize("file", OLDER[1:], indirect=True)
def test_a_purge_of_documents_comes_back(old: Upgraded) -> None:
    name = TopicName.parse("notes/verify")
    assert [change.server_seq for change in old.s.documents.changes(name, "plan.a")] == [9, 10, 11, 12]
    assert undo(old, "notes/verify", "snapshot_with_purge").restored == 8
    assert [change.server_seq for change in old.s.documents.changes(name, "plan.a")] == list(range(1, 13))


@pytest.mark.parametrize("file", OLDER[2:], indirect=True)
def test_limits_and_what_went_past_the_lag_come_back(old: Upgraded) -> None:
    assert undo(old, "shop/few", "retention").restored == 4
    outcome = undo(old, "lag/verify")
    assert (outcome.restored, outcome.detail) == (4, "1 message(s) came back to the compacted view")


# Open plans


HALFWAY = [(file, "prices/halfway", "message_request", 2) for file in OLDER] + [("format_4", "lag/halfway", "message_cleaner", 4)]


@pytest.mark.parametrize(("file", "topic", "operation", "went"), HALFWAY, indirect=["file"])
def test_a_halfway_plan_is_finished_in_its_own_order_under_its_own_id(old: Upgraded, topic: str, operation: str, went: int) -> None:
    """By whatever comes next to the topic: settings that came with the upgrade are as if they had had their defaults."""
    before = len(old.stored(topic))
    record = old.record(topic, operation)
    assert record.plan.is_older and record.outcome is None
    run(old, topic)
    outcome = old.s.ledger.record(record.plan.plan_id).outcome
    assert outcome is not None
    assert (outcome.name, outcome.plan_id, outcome.removed_rows, outcome.detail) == ("published", record.plan.plan_id, went, "")
    assert len(old.stored(topic)) <= before - went
    assert undo(old, topic, operation).restored == went


def test_a_halfway_plan_may_be_published_and_verified_by_hand(old: Upgraded) -> None:
    plan_id = old.id_of("prices/halfway", "message_request")
    assert not isinstance(steps.publish(old.s, plan_id), Outcome | None)
    assert steps.verify(old.s, plan_id).name == "published"


def test_a_halfway_plan_stops_where_a_setting_was_changed_since(old: Upgraded) -> None:
    """Also one that was not known then, once it is not its default. What is there of it is remembered."""
    name = TopicName.parse("prices/halfway")
    plan_id = old.id_of("prices/halfway", "message_request")
    old.s.topics.alter(name, {"retention_scope": "key", "max_records": 1_000_000})
    with pytest.raises(PlanConflict, match="settings were changed"):
        steps.publish(old.s, plan_id)
    run(old, "prices/halfway")
    outcome = old.s.ledger.record(plan_id).outcome
    assert outcome is not None and outcome.name == "superseded"
    assert "The compacted view is without what it took from there" in outcome.detail


def test_a_halfway_plan_stops_at_a_hold_that_its_version_could_not_heed(old: Upgraded) -> None:
    place_hold(old.s, TopicName.parse("prices/halfway"), by="ann", why="a claim")
    with pytest.raises(PlanConflict):
        steps.publish(old.s, old.id_of("prices/halfway", "message_request"))


@pytest.mark.parametrize("file", OLDER[1:], indirect=True)
def test_documents_with_snapshots_and_no_purge_yet_are_planned_anew(old: Upgraded) -> None:
    plan_id = old.id_of("notes/halfway", "snapshot_with_purge")
    with pytest.raises(PlanConflict, match="planned by an earlier version"):
        steps.publish(old.s, plan_id)
    outcome = run(old, "notes/halfway", "snapshot_with_purge")
    assert (outcome.name, dict(outcome.removed)) == ("published", {"purged_synced": 8})
    assert old.record("notes/halfway", "snapshot_with_purge").outcome == _superseded(old, plan_id)


def _superseded(old: Upgraded, plan_id: str) -> Outcome:
    """How a plan ended that an earlier version had made."""
    outcome = old.s.ledger.record(plan_id).outcome
    assert outcome is not None
    assert (outcome.name, outcome.removed) == ("superseded", ())
    assert "it was planned by an earlier version, as plans of format" in outcome.detail
    assert outcome.detail.endswith(f"; this one makes format {PLAN_FORMAT}")
    return outcome


@pytest.mark.parametrize("state", ["plan", "stage", "gate", "approve"])
def test_a_plan_of_which_nothing_is_done_is_made_and_asked_again(old: Upgraded, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, dropped = f"open/{state}", []
    plan_id = old.id_of(topic, "message_cleaner")
    discard = old.s.stores.log.discard
    monkeypatch.setattr(old.s.stores.log, "discard", lambda plan: (dropped.append(plan.plan_id), discard(plan)))
    record = steps.plan(old.s, TopicName.parse(topic), as_of=old.clock.now)
    assert (record.plan.plan_id != plan_id, record.plan.format, record.state) == (True, PLAN_FORMAT, "planned")
    _superseded(old, plan_id)
    assert set(dropped) == {plan_id}, "its stage goes"
    outcome = steps.carry_out(old.s, record)
    assert outcome.name == "needs_approval", "an earlier answer is none to this"
    assert old.stored(topic) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("state", ["gate", "approve"])
def test_no_old_verdict_publishes(old: Upgraded, state: str) -> None:
    plan_id = old.id_of(f"open/{state}", "message_cleaner")
    with pytest.raises(PlanConflict, match="planned by an earlier version"):
        steps.publish(old.s, plan_id)
    assert old.stored(f"open/{state}") == [0, 1, 2, 3, 4]


def test_a_staged_one_is_judged_no_more_and_no_word_is_taken_for_a_judged_one(old: Upgraded) -> None:
    with pytest.raises(PlanConflict, match="planned by an earlier version"):
        steps.gate(old.s, old.id_of("open/stage", "message_cleaner"))
    asked = old.id_of("open/gate", "message_cleaner")
    with pytest.raises(PlanConflict, match="planned by an earlier version"):
        steps.approve(old.s, asked, granted=True, by="bob", text="fine")
    assert old.s.ledger.record(asked).approval is None


def test_a_refusal_is_taken_all_the_same(old: Upgraded) -> None:
    asked = old.id_of("open/gate", "message_cleaner")
    steps.approve(old.s, asked, granted=False, by="bob", text="not now")
    outcome = old.s.ledger.record(asked).outcome
    assert outcome is not None and outcome.name == "refused"


def test_an_old_question_is_asked_nobody_and_hinders_nothing(old: Upgraded) -> None:
    """Else the topic would wait for an answer that counts for nothing."""
    name = TopicName.parse("open/gate")
    record = old.record("open/gate", "message_cleaner")
    assert old.s.ledger.waiting() == []
    assert not changes.waits(old.s, record)
    assert waits_until(record) is None
    (answer,) = due(old.s, [name], as_of=old.clock.now)
    assert (answer.due, "can go" in answer.reason) == (True, True)
    made = steps.plan(old.s, name, as_of=old.clock.now)
    steps.stage(old.s, made.plan.plan_id)
    steps.gate(old.s, made.plan.plan_id)
    assert [plan.plan_id for plan in old.s.ledger.waiting()] == [made.plan.plan_id]


def test_a_run_that_began_before_the_upgrade_ends_after_it(old: Upgraded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plans that were to be judged or published are made anew in it; those that only wait are closed, and the next run asks."""
    for module in (applications, tasks):
        monkeypatch.setattr(module, "lake", lambda **_: old.s)
    entries = {
        entry.topic.topic: (run.run_id, entry.plan_id)
        for run in old.s.ledger.runs()
        for entry in run.entries
        if entry.topic.stream == "open"
    }
    run_id, plan_id = entries["gate"]
    assert tasks.waiting(run=run_id) == []
    (told,) = tasks.verify(run=run_id)
    assert told["outcome"] == "superseded"
    assert plan_id is not None and "planned by an earlier version" in _superseded(old, plan_id).detail
    for state, go_on in (("stage", applications.gate_all), ("approve", applications.publish_all)):
        run_id, plan_id = entries[state]
        assert go_on(run=run_id) == 0
        assert plan_id is not None
        _superseded(old, plan_id)
        assert [question["plan_id"] != plan_id for question in tasks.waiting(run=run_id)] == [True]


def test_a_begun_reclaim_of_an_earlier_version_goes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such one was ever recorded before format 5: which it is, is asked of each part alone."""
    plan = object.__new__(Plan)
    object.__setattr__(plan, "format", PLAN_FORMAT - 1)
    object.__setattr__(plan, "plan_id", "p")
    object.__setattr__(plan, "changes", ())
    told = dict.fromkeys(("begun", "second"), False)
    parts = {name: lambda _plan, name=name: told[name] or None for name in told}
    commits = [SimpleNamespace(published=lambda _plan: None, has_begun=parts["begun"]), SimpleNamespace(published=parts["second"])]
    asked = {"published": lambda _plan, done: done[0], "gives_back": False}
    monkeypatch.setattr(changes, "stores", lambda _s, _plan: commits)
    monkeypatch.setattr(changes, "of_plan", lambda _s, _plan: SimpleNamespace(**asked))
    with pytest.raises(PlanConflict):
        changes.require_todays(None, plan)  # type: ignore[arg-type]  # nothing is asked of it here
    for name in told:
        told[name] = True
        changes.require_todays(None, plan)  # type: ignore[arg-type]  # as above
        told[name] = False


# A damaged ledger


@pytest.mark.parametrize("file", FILES)
def test_a_text_that_was_changed_in_the_ledger_is_used_for_nothing(file: str, tmp_path: Path) -> None:
    url = as_it_was(file, tmp_path)
    migrate_ledger(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        was, now = '"more":false', '"more":true'
        connection.execute(text("update lifecycle_plan_documents set document = replace(document, :was, :now)"), {"was": was, "now": now})
    engine.dispose()
    with open_ledger(url) as ledger:
        for plan in ledger.plans():
            with raises("CorruptRecord", match="its text was changed after it was recorded"):
                ledger.record(plan.plan_id)
        with raises("CorruptRecord"):
            ledger.open_plan(TopicName.parse("open/plan"))


def test_a_verb_out_of_order_says_what_it_says_of_any_plan(old: Upgraded) -> None:
    refused = old.id_of("open/refuse", "message_cleaner")
    with pytest.raises(NotReady):
        steps.stage(old.s, refused)
    with raises("AlreadyAnswered"):
        steps.approve(old.s, refused, granted=True, by="bob", text="fine")
