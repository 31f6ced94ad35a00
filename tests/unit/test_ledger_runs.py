"""Every run leaves a word, also one that had nothing to do."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from message_lifecycle.ledger import Ledger
from message_lifecycle.model.errors import UnknownPlan
from message_lifecycle.model.instants import Instant
from tests.ledgers import AS_OF, OTHER, TOPIC, StandingClock, idle_outcome, outcome_of, plan_of


def test_a_run_knows_its_topics_plans_and_outcomes_in_order(ledger: Ledger) -> None:
    plan = plan_of()
    ledger.record_run_outcome("r1", idle_outcome(OTHER))
    ledger.add_plan(plan, run="r1")
    ledger.record_outcome(outcome_of(plan, "blocked"))
    assert [(e.topic, e.plan_id, e.state, e.outcome) for e in ledger.run_entries("r1")] == [
        (OTHER, None, None, idle_outcome(OTHER)),
        (TOPIC, plan.plan_id, "closed", outcome_of(plan, "blocked")),
    ]
    assert ledger.run_entries("r2") == []


def test_a_plan_can_be_met_by_several_runs_and_a_run_meets_it_once(ledger: Ledger) -> None:
    plan = plan_of()
    ledger.add_plan(plan, run="r1")
    ledger.add_plan(plan, run="r1")
    ledger.link_run("r2", plan.plan_id)
    ledger.link_run("r2", plan.plan_id)
    ledger.link_run(None, plan.plan_id)
    assert [entry.plan_id for entry in ledger.run_entries("r1")] == [plan.plan_id]
    assert [entry.plan_id for entry in ledger.run_entries("r2")] == [plan.plan_id]
    with pytest.raises(UnknownPlan):
        ledger.link_run("r3", "0" * 32)
    assert ledger.run_entries("r3") == []


def test_the_same_run_outcome_again_adds_nothing_and_another_takes_its_place(ledger: Ledger) -> None:
    failed, done = idle_outcome(name="failed", detail="catalog down"), idle_outcome()
    assert ledger.record_run_outcome("r1", failed) == failed
    ledger.record_run_outcome("r1", failed)
    assert [outcome for _, outcome in ledger.history()] == [failed]
    ledger.record_run_outcome("r1", done)
    assert [entry.outcome for entry in ledger.run_entries("r1")] == [done]
    assert [outcome for _, outcome in ledger.history()] == [done, failed]


def test_equal_outcomes_of_two_runs_are_two(ledger: Ledger) -> None:
    ledger.record_run_outcome("r1", idle_outcome())
    ledger.record_run_outcome("r2", idle_outcome())
    ledger.record_run_outcome(None, idle_outcome())
    assert len(ledger.history()) == 3


def test_a_history_leaves_nothing_out_that_nobody_limits(ledger: Ledger) -> None:
    for _ in range(51):
        ledger.record_run_outcome(None, idle_outcome())
    assert (len(ledger.history()), len(ledger.history(limit=50))) == (51, 50)


def test_a_run_that_failed_leaves_its_plan_open_until_it_has_an_outcome(ledger: Ledger) -> None:
    plan = plan_of()
    ledger.add_plan(plan, run="r1")
    ledger.record_run_outcome("r1", outcome_of(plan, "failed"))
    (entry,) = ledger.run_entries("r1")
    assert (entry.state, entry.outcome) == ("planned", outcome_of(plan, "failed"))
    assert ledger.open_plan(TOPIC) is not None
    ledger.record_outcome(outcome_of(plan, "superseded"))
    (entry,) = ledger.run_entries("r1")
    assert (entry.state, entry.outcome) == ("closed", outcome_of(plan, "superseded"))


def test_a_run_that_found_nothing_due_is_recorded(ledger: Ledger, clock: StandingClock) -> None:
    ledger.record_idle_run("r1", as_of=AS_OF, detail="nothing before noon")
    clock.pass_us(1)
    ledger.record_idle_run("r1", as_of=AS_OF, detail="nothing before noon")
    ledger.add_plan(plan_of(), run="r2")
    busy, idle = ledger.runs()
    assert (idle.run_id, idle.recorded_at, idle.as_of, idle.detail, idle.entries) == ("r1", AS_OF, AS_OF, "nothing before noon", ())
    assert (busy.run_id, busy.recorded_at, busy.as_of, busy.detail) == ("r2", AS_OF + 1, None, "")
    assert [entry.topic for entry in busy.entries] == [TOPIC]
    assert [run.run_id for run in ledger.runs(limit=1)] == ["r2"]


def test_history_is_newest_first_by_topic_with_its_time(ledger: Ledger, clock: StandingClock) -> None:
    ledger.record_run_outcome("r1", idle_outcome())
    clock.pass_us(-5)  # the order is that of the commits, not that of a clock
    ledger.record_run_outcome("r2", idle_outcome(detail="again"))
    ledger.record_run_outcome("r2", idle_outcome(OTHER))
    assert [(at, outcome.detail) for at, outcome in ledger.history(TOPIC)] == [(AS_OF - 5, "again"), (AS_OF, "nothing is due")]
    assert [outcome.topic for _, outcome in ledger.history(limit=1)] == [OTHER]


def test_the_last_outcome_is_the_newest_of_the_operations(ledger: Ledger, clock: StandingClock) -> None:
    plan = plan_of()
    ledger.record_run_outcome("r1", outcome_of(plan))
    clock.pass_us(-5)  # the order is that of the commits, not that of a clock
    ledger.record_run_outcome("r1", idle_outcome())
    for reading in (nullcontext(), ledger.look()):
        with reading:
            assert ledger.last(TOPIC, ["retention", "message_cleaner"]) == (AS_OF - 5, idle_outcome())
            assert (ledger.last(TOPIC, ["retention"]), ledger.last(OTHER, ["message_cleaner"])) == (None, None)
            assert ledger.has_published(TOPIC, [plan.operation])
            assert not ledger.has_published(TOPIC, ["retention"])
            assert not ledger.has_published(OTHER, [plan.operation])


class TestClaims:
    """Of two runs that look at one time, one carries a topic out."""

    def test_the_first_run_takes_the_topic_and_may_ask_again(self, ledger: Ledger) -> None:
        assert ledger.claim("r1", TOPIC, since=Instant(0)) is None
        assert ledger.claim("r1", TOPIC, since=Instant(0)) is None
        assert ledger.claim("r2", TOPIC, since=Instant(0)) == "r1"
        assert ledger.run_entries("r2") == []
        (entry,) = ledger.run_entries("r1")
        assert (entry.topic, entry.plan_id, entry.outcome) == (TOPIC, None, None)

    def test_other_topics_are_free(self, ledger: Ledger) -> None:
        ledger.claim("r1", TOPIC, since=Instant(0))
        assert ledger.claim("r2", OTHER, since=Instant(0)) is None

    def test_a_claim_ends_with_the_plan(self, ledger: Ledger) -> None:
        ledger.claim("r1", TOPIC, since=Instant(0))
        ledger.add_plan(plan_of(), run="r1")
        assert ledger.claim("r2", TOPIC, since=Instant(0)) is None

    def test_a_claim_ends_with_the_outcome(self, ledger: Ledger) -> None:
        ledger.claim("r1", TOPIC, since=Instant(0))
        ledger.record_run_outcome("r1", idle_outcome(TOPIC, name="failed"))
        assert ledger.claim("r2", TOPIC, since=Instant(0)) is None

    def test_a_claim_of_long_ago_counts_no_more(self, ledger: Ledger) -> None:
        ledger.claim("r1", TOPIC, since=Instant(0))
        assert ledger.claim("r2", TOPIC, since=ledger.now()) is None
