"""The way of a plan through the ledger: idempotent writes, one open plan, first words stand."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event

from message_lifecycle.ledger import Ledger
from message_lifecycle.model.change import EraseRows, RemoveRows, Rewrite, SealSegment
from message_lifecycle.model.errors import NotReady, OpenPlan, UnknownPlan
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import StagedMarkers
from message_lifecycle.model.plan import Plan
from tests.errors import raises
from tests.ledgers import (
    AS_OF,
    OTHER,
    TOPIC,
    StandingClock,
    approval_of,
    drop,
    outcome_of,
    plan_of,
    report_of,
    staged_of,
)


def gated(ledger: Ledger, plan: Plan, *, asks: bool = False) -> Plan:
    ledger.add_plan(plan)
    ledger.record_staged(staged_of(plan))
    ledger.record_report(staged_of(plan), report_of(plan, asks=asks))
    return plan


def published(ledger: Ledger, plan: Plan) -> Plan:
    ledger.record_outcome(outcome_of(gated(ledger, plan)))
    return plan


def test_a_plan_goes_its_way_and_every_step_is_kept(ledger: Ledger, clock: StandingClock) -> None:
    plan = plan_of()
    record = ledger.add_plan(plan)
    assert (record.plan, record.state, record.recorded_at, record.staged) == (plan, "planned", clock.now, None)
    ledger.record_staged(staged_of(plan))
    assert ledger.record(plan.plan_id).state == "staged"
    clock.pass_us(5)
    ledger.record_report(staged_of(plan), report_of(plan, asks=True))
    ledger.record_approval(approval_of(plan))
    ledger.record_publishing(staged_of(plan), report_of(plan, asks=True))
    assert ledger.record(plan.plan_id).state == "publishing"
    ledger.record_outcome(outcome_of(plan))
    record = ledger.record(plan.plan_id)
    assert record.state == "closed"
    assert (record.staged, record.report) == (staged_of(plan), report_of(plan, asks=True))
    assert (record.approval, record.outcome) == (approval_of(plan), outcome_of(plan))
    assert (record.recorded_at, record.reported_at) == (AS_OF, AS_OF + 5)


def test_the_same_plan_again_is_the_plan_that_is_there(ledger: Ledger, clock: StandingClock) -> None:
    plan = gated(ledger, plan_of())
    clock.pass_us(5)
    record = ledger.add_plan(plan_of())
    assert (record.state, record.recorded_at) == ("passed", AS_OF)
    ledger.record_outcome(outcome_of(plan))
    assert ledger.add_plan(plan).outcome == outcome_of(plan)
    assert len(ledger.plans()) == 1


def test_a_topic_has_one_open_plan(ledger: Ledger) -> None:
    """DEL-1."""
    first = plan_of()
    ledger.add_plan(first)
    with pytest.raises(OpenPlan) as refused:
        ledger.add_plan(plan_of(as_of=AS_OF + 1))
    assert (refused.value.topic, refused.value.plan_id) == (str(TOPIC), first.plan_id)
    assert ledger.open_plan(TOPIC) == ledger.record(first.plan_id)
    ledger.add_plan(plan_of(OTHER))
    ledger.record_outcome(outcome_of(first, "superseded"))
    assert ledger.open_plan(TOPIC) is None
    ledger.add_plan(plan_of(as_of=AS_OF + 1))


def test_the_first_outcome_stands(ledger: Ledger) -> None:
    plan = published(ledger, plan_of())
    assert ledger.record_outcome(outcome_of(plan, "failed")) == outcome_of(plan, "published")
    assert ledger.record(plan.plan_id).outcome == outcome_of(plan, "published")
    assert [outcome.name for _, outcome in ledger.history()] == ["published"]


def test_nothing_is_published_without_a_gate(ledger: Ledger) -> None:
    plan = plan_of()
    ledger.add_plan(plan)
    ledger.record_staged(staged_of(plan))
    with pytest.raises(NotReady):
        ledger.record_outcome(outcome_of(plan, "published"))
    with pytest.raises(NotReady):
        ledger.record_publishing(staged_of(plan), report_of(plan))
    assert ledger.record(plan.plan_id).state == "staged"
    ledger.record_outcome(outcome_of(plan, "failed"))


def test_the_gate_needs_something_staged(ledger: Ledger) -> None:
    plan = plan_of()
    ledger.add_plan(plan)
    with pytest.raises(NotReady):
        ledger.record_report(staged_of(plan), report_of(plan))


def test_another_staged_change_must_be_judged_again(ledger: Ledger, clock: StandingClock) -> None:
    plan = gated(ledger, plan_of())
    ledger.record_staged(staged_of(plan))
    assert ledger.record(plan.plan_id).report is not None
    ledger.record_staged(staged_of(plan, snapshot_id=3))
    record = ledger.record(plan.plan_id)
    assert (record.state, record.report, record.reported_at) == ("staged", None, None)


@pytest.mark.parametrize("other", [{"snapshot_id": 3}, {"branch": "c"}, {"markers": StagedMarkers(count=0, digest="d")}])
def test_a_report_about_what_was_exchanged_while_the_gate_looked_is_not_kept(ledger: Ledger, other: dict[str, Any]) -> None:
    plan = gated(ledger, plan_of())
    ledger.record_staged(replace(staged_of(plan), **other))
    with pytest.raises(NotReady, match="that the gate has looked at"):
        ledger.record_report(staged_of(plan), report_of(plan))
    record = ledger.record(plan.plan_id)
    assert (record.state, record.report) == ("staged", None)


def test_the_same_report_again_keeps_the_first_time_and_another_one_asks_anew(ledger: Ledger, clock: StandingClock) -> None:
    """Else each rerun would lengthen the time in which an approval may be given."""
    plan = gated(ledger, plan_of(), asks=True)
    clock.pass_us(7)
    ledger.record_report(staged_of(plan), report_of(plan, asks=True))
    assert ledger.record(plan.plan_id).reported_at == AS_OF
    ledger.record_report(staged_of(plan), replace(report_of(plan, asks=True), figures=()))
    assert ledger.record(plan.plan_id).reported_at == AS_OF + 7


def test_what_a_person_has_judged_is_not_exchanged(ledger: Ledger) -> None:
    plan = gated(ledger, plan_of(), asks=True)
    ledger.record_approval(approval_of(plan))
    with pytest.raises(NotReady):
        ledger.record_staged(staged_of(plan, snapshot_id=3))
    with pytest.raises(NotReady):
        ledger.record_report(staged_of(plan), report_of(plan))
    record = ledger.record(plan.plan_id)
    assert (record.staged, record.report) == (staged_of(plan), report_of(plan, asks=True))


def test_what_is_being_published_is_not_exchanged(ledger: Ledger) -> None:
    plan = gated(ledger, plan_of())
    ledger.record_publishing(staged_of(plan), report_of(plan))
    ledger.record_publishing(staged_of(plan), report_of(plan))
    with pytest.raises(NotReady):
        ledger.record_staged(staged_of(plan, snapshot_id=3))
    with pytest.raises(NotReady):
        ledger.record_report(staged_of(plan), report_of(plan, asks=True))
    assert ledger.record_outcome(outcome_of(plan, "superseded")).name == "superseded"


def test_what_was_exchanged_since_it_was_judged_is_not_published(ledger: Ledger) -> None:
    plan = gated(ledger, plan_of())
    for staged, report in (
        (staged_of(plan, snapshot_id=3), report_of(plan)),
        (staged_of(plan), report_of(plan, asks=True)),
    ):
        with pytest.raises(NotReady, match="the staged change that was judged"):
            ledger.record_publishing(staged, report)
    assert ledger.record(plan.plan_id).state == "passed"


def test_a_closed_plan_takes_nothing_more(ledger: Ledger) -> None:
    plan = gated(ledger, plan_of(), asks=True)
    ledger.record_outcome(outcome_of(plan, "lapsed"))
    for write in (
        lambda: ledger.record_staged(staged_of(plan)),
        lambda: ledger.record_report(staged_of(plan), report_of(plan)),
        lambda: ledger.record_approval(approval_of(plan)),
        lambda: ledger.record_publishing(staged_of(plan), report_of(plan, asks=True)),
    ):
        with pytest.raises(NotReady, match="closed \\(lapsed\\)"):
            write()


def test_an_answer_is_given_once(ledger: Ledger) -> None:
    """DEL-3."""
    plan = gated(ledger, plan_of(), asks=True)
    first = approval_of(plan)
    assert ledger.record_approval(first) == first
    assert ledger.record_approval(replace(first, at=Instant(AS_OF + 1))) == first
    for other in (approval_of(plan, granted=False), approval_of(plan, by="bob"), approval_of(plan, text="no")):
        with raises("AlreadyAnswered"):
            ledger.record_approval(other)
    assert ledger.record(plan.plan_id).approval == first


def test_the_same_answer_is_returned_after_the_end_too(ledger: Ledger) -> None:
    plan = gated(ledger, plan_of(), asks=True)
    refusal = approval_of(plan, granted=False)
    ledger.record_approval(refusal)
    ledger.record_outcome(outcome_of(plan, "refused"))
    assert ledger.record_approval(refusal) == refusal


@pytest.mark.parametrize("by", ["", "  "])
def test_an_answer_names_a_person(ledger: Ledger, by: str) -> None:
    plan = gated(ledger, plan_of(), asks=True)
    with raises("UnnamedPerson"):
        ledger.record_approval(approval_of(plan, by=by))


def test_only_a_plan_that_waits_can_be_answered(ledger: Ledger) -> None:
    plan = gated(ledger, plan_of(), asks=False)
    with pytest.raises(NotReady):
        ledger.record_approval(approval_of(plan))
    other = plan_of(OTHER)
    ledger.add_plan(other)
    with pytest.raises(NotReady):
        ledger.record_approval(approval_of(other))


def test_waiting_lists_the_questions_without_an_answer_longest_first(ledger: Ledger, clock: StandingClock) -> None:
    late, early = plan_of(), plan_of(OTHER)
    ledger.add_plan(late)
    gated(ledger, early, asks=True)
    clock.pass_us(9)
    ledger.record_staged(staged_of(late))
    ledger.record_report(staged_of(late), report_of(late, asks=True))
    assert [(entry.topic, entry.plan_id, entry.reported_at) for entry in ledger.waiting()] == [
        (OTHER, early.plan_id, AS_OF),
        (TOPIC, late.plan_id, AS_OF + 9),
    ]
    ledger.record_approval(approval_of(early))
    ledger.record_outcome(outcome_of(late, "lapsed"))
    assert ledger.waiting() == []


def test_a_plan_that_passed_waits_for_nobody(ledger: Ledger) -> None:
    gated(ledger, plan_of(), asks=False)
    assert ledger.waiting() == []


def test_a_plan_is_found_by_a_unique_beginning(ledger: Ledger) -> None:
    plans = [published(ledger, plan_of(as_of=AS_OF + n)) for n in range(17)]  # 17 ids, 16 first digits: two share one
    ids = sorted(plan.plan_id for plan in plans)
    shared = next(a[0] for a, b in pairwise(ids) if a[0] == b[0])
    with raises("AmbiguousPlan"):
        ledger.record(shared)
    for plan in plans:
        assert ledger.record(plan.plan_id[:12]).plan == plan


@pytest.mark.parametrize("unknown", ["", "%", "_" * 32, "0" * 32, "x", "\\"])
def test_an_unknown_plan_is_an_error(ledger: Ledger, unknown: str) -> None:
    ledger.add_plan(plan_of())
    with pytest.raises(UnknownPlan):
        ledger.record(unknown)


def test_writes_for_an_unknown_plan_are_errors(ledger: Ledger) -> None:
    plan = plan_of()
    for write in (
        lambda: ledger.record_staged(staged_of(plan)),
        lambda: ledger.record_report(staged_of(plan), report_of(plan)),
        lambda: ledger.record_approval(approval_of(plan)),
        lambda: ledger.record_publishing(staged_of(plan), report_of(plan)),
        lambda: ledger.record_outcome(outcome_of(plan)),
        lambda: ledger.record_outcome(replace(outcome_of(plan), plan_id=None)),
    ):
        with pytest.raises(UnknownPlan):
            write()
    assert ledger.history() == []


def test_published_is_found_by_topic_operation_and_interval(ledger: Ledger) -> None:
    blocked = gated(ledger, plan_of(as_of=AS_OF + 1))
    ledger.record_outcome(outcome_of(blocked, "blocked"))
    published(ledger, plan_of())
    second = published(ledger, plan_of(actions=(drop(100, 199),)))
    found = ledger.find_published(TOPIC, "message_cleaner", AS_OF)
    assert found is not None
    assert found.plan == second
    assert found.outcome == outcome_of(second)
    assert ledger.find_published(TOPIC, "message_cleaner", blocked.as_of) is None
    assert ledger.find_published(OTHER, "message_cleaner", AS_OF) is None


def test_an_offset_is_explained_by_the_plans_that_took_it(ledger: Ledger) -> None:
    rows = RemoveRows(partition=1, base_offset=50, file="f", offsets="50,52-54,59", rows=5, reason="ttl")
    seal = SealSegment(partition=0, base_offset=200, next_offset=300)
    first = published(ledger, plan_of(actions=(seal, drop(0, 99), drop(150, 199), rows)))
    again = published(ledger, plan_of(as_of=AS_OF + 1, actions=(drop(90, 120),)))
    blocked = gated(ledger, plan_of(as_of=AS_OF + 2, actions=(drop(0, 10_000),)))
    assert ledger.plans_that_removed(TOPIC, 0, 99)[0].plan == first  # while the third is open, it has removed nothing
    ledger.record_outcome(outcome_of(blocked, "blocked"))

    def took(partition: int, offset: int) -> list[Plan]:
        return [record.plan for record in ledger.plans_that_removed(TOPIC, partition, offset)]

    assert took(0, 0) == took(0, 89) == took(0, 150) == took(0, 199) == [first]
    assert took(0, 90) == took(0, 99) == [first, again]
    assert took(0, 100) == took(0, 120) == [again]
    assert took(0, 121) == took(0, 149) == took(0, 200) == took(0, 299) == []
    assert took(1, 50) == took(1, 53) == took(1, 59) == [first]
    assert took(1, 49) == took(1, 51) == took(1, 58) == took(1, 60) == took(2, 0) == []
    assert ledger.plans_that_removed(OTHER, 0, 50) == []


def test_an_erased_offset_may_lie_in_two_files_and_a_document_has_none(ledger: Ledger) -> None:
    """A tag may stand on files that were written again since."""
    files = tuple(EraseRows(partition=0, base_offset=0, file=name, offsets="3,5", rows=2, live=2) for name in ("old", "rewritten"))
    erased = (Rewrite(table="log", table_uuid="t", rows=files, refs=(), undo=(), snapshots=(), files=()),)
    plan = published(ledger, replace(plan_of(), changes=erased))
    assert [record.plan for record in ledger.plans_that_removed(TOPIC, 0, 5)] == [plan]
    published(ledger, replace(plan_of(OTHER), changes=erased, policy=(("fold", "yjs"),)))
    assert ledger.plans_that_removed(OTHER, 0, 5) == []


def test_lists_read_no_plan_document(ledger: Ledger) -> None:
    """A plan may be of 8 MB."""
    gated(ledger, plan_of(), asks=True)
    asked: list[str] = []
    event.listen(ledger._database.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    assert (len(ledger.plans()), len(ledger.waiting()), len(ledger.history()), len(ledger.runs())) == (1, 1, 0, 0)
    assert ledger.due_states() == {}
    assert asked
    assert not [text for text in asked if "document" in text]


def test_plans_are_listed_newest_first(ledger: Ledger) -> None:
    first = published(ledger, plan_of())
    second = plan_of(OTHER)
    ledger.add_plan(second)
    third = plan_of(as_of=AS_OF + 1)
    ledger.add_plan(third)
    assert [entry.plan_id for entry in ledger.plans()] == [third.plan_id, second.plan_id, first.plan_id]
    assert [entry.plan_id for entry in ledger.plans(TOPIC, limit=1)] == [third.plan_id]
    summary = ledger.plans(TOPIC)[1]
    assert (summary.state, summary.outcome, summary.judgement, summary.approval) == ("closed", "published", "passed", None)
    assert (summary.expected_rows, summary.expected_bytes, summary.as_of) == (100, 10, AS_OF)


def test_since_when_something_may_be_needed_that_can_still_be_undone(ledger: Ledger, clock: StandingClock) -> None:
    """By its plan's recording: the outcome may be written long after the commit (DEL-7)."""
    recorded = []
    for as_of, name in ((10, "published"), (20, "failed"), (30, "superseded")):
        clock.pass_us(100)
        plan = gated(ledger, plan_of(as_of=as_of))
        recorded.append(ledger.record(plan.plan_id).recorded_at)
        clock.pass_us(100)
        ledger.record_outcome(outcome_of(plan, name))
    since = partial(ledger.planned_since, TOPIC, {"message_cleaner", "retention"})
    for reading in (nullcontext(), ledger.look()):
        with reading:
            assert since(published_after=Instant(recorded[0] - 1)) == recorded[0]
            assert since(published_after=Instant(recorded[0] + 100)) == recorded[1], "not of an outcome at that very time"
            assert since(published_after=Instant(recorded[1] + 100)) is None, "a plan that gave way has taken nothing"
            assert ledger.planned_since(OTHER, {"message_cleaner"}, published_after=Instant(0)) is None
            assert ledger.planned_since(TOPIC, {"retention"}, published_after=Instant(0)) is None


def test_which_plans_can_still_be_undone(ledger: Ledger, clock: StandingClock) -> None:
    plans, ended = [], []
    for as_of, name in ((10, "published"), (20, "failed"), (30, "superseded")):
        plans.append(gated(ledger, plan_of(as_of=as_of)).plan_id)
        clock.pass_us(100)
        ledger.record_outcome(outcome_of(ledger.record(plans[-1]).plan, name))
        ended.append(ledger.published_at(plans[-1]))
    since = partial(ledger.published_since, TOPIC, {"message_cleaner", "retention"})
    assert ended[0] is not None
    assert since(published_after=Instant(ended[0] - 1)) == set(plans[:2]), "a plan that gave way has taken nothing"
    assert since(published_after=ended[0]) == {plans[1]}, "not of an outcome at that very time"
    assert ledger.published_since(OTHER, {"message_cleaner"}, published_after=Instant(0)) == set()
    assert since(published_after=Instant(0)) and not ledger.published_since(TOPIC, {"retention"}, published_after=Instant(0))


def test_of_two_undos_of_a_plan_the_one_counts_that_came_to_its_end(ledger: Ledger) -> None:
    undos = [plan_of(as_of=as_of) for as_of in (10, 20, 30)]
    places = (None, undos[0].plan_id, undos[0].plan_id)
    for undo, name, instead_of in zip(undos, ("superseded", "published", "published"), places, strict=True):
        gated(ledger, undo)
        ledger.set_undone(TOPIC, "p", undo.plan_id, (), instead_of=instead_of)
        ledger.record_outcome(outcome_of(undo, name))
    assert ledger.undone_by("p") == undos[1].plan_id
