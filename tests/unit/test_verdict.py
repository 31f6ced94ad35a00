"""What stands between a plan and its publication: every way not to be allowed, and that there is no way around."""

from __future__ import annotations

from dataclasses import replace

import pytest

from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import Approval, Check, GateReport, Judgement
from message_lifecycle.operations.verdict import Verdict, WithheldVerdict, decide
from tests.evidence import SECOND, Case, cell, good, replanned, under

ASKED_AT = Instant(5_000 * SECOND)
TTL = 60 * SECOND
OTHER = "another plan"
MUCH = under(max_removed_fraction=0.3)(good())
"""Both shares are above their limit: the gate asks a person."""


def report_of(case: Case) -> GateReport:
    return PlainGate().judge(case.plan, case.staged, suite_of(case.plan, case.staged, case.policy), case.evidence)


def word(case: Case, *, granted: bool = True, after: int = TTL, text: str = "") -> Approval:
    return Approval(plan_id=case.plan.plan_id, granted=granted, by="ada", at=Instant(ASKED_AT + after), text=text)


def decided(
    case: Case, approval: Approval | None = None, *, report: GateReport | None = None, after: int = TTL
) -> Verdict | WithheldVerdict:
    given = report or report_of(case)
    return decide(case.plan, case.staged, given, approval, asked_at=ASKED_AT, now=Instant(ASKED_AT + after), approval_ttl_us=TTL)


def withheld(found: Verdict | WithheldVerdict) -> tuple[str, str]:
    assert isinstance(found, WithheldVerdict)
    return found.outcome, found.reason


def test_what_passed_may_be_published_at_any_time() -> None:
    case = good()
    verdict = decided(case, after=100 * TTL)
    assert isinstance(verdict, Verdict)
    assert (verdict.plan, verdict.staged, verdict.approval) == (case.plan, case.staged, None)
    assert verdict.gate_id == report_of(case).gate_id


def test_what_was_approved_in_time_may_be_published_at_any_time() -> None:
    approval = word(MUCH)
    verdict = decided(MUCH, approval, after=100 * TTL)
    assert isinstance(verdict, Verdict)
    assert verdict.approval == approval


# Blocked.


def judged(judgement: Judgement, *checks: Check, declared: int | None = None) -> GateReport:
    case = good()
    report = GateReport(
        plan_id=case.plan.plan_id,
        staged_snapshot_id=case.staged.snapshot_id,
        declared=len(checks) if declared is None else declared,
        checks=checks,
    )
    assert report.judgement == judgement
    return report


HELD = Check(id="held", says="", kind="rule", evaluated=True, passed=True, found="")
BROKEN = replace(HELD, id="broken", passed=False)
UNSEEN = replace(HELD, id="unseen", evaluated=False, passed=False)
UNSEEN_LIMIT = replace(UNSEEN, id="unseen limit", kind="limit")
EXCEEDED = replace(BROKEN, id="exceeded", kind="limit", found="much: 0.9")


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (judged("blocked", HELD, BROKEN), "broken"),
        (judged("blocked", HELD, UNSEEN), "unseen"),
        (judged("blocked", HELD, UNSEEN_LIMIT), "unseen limit"),
        (judged("blocked", HELD, EXCEEDED, UNSEEN_LIMIT), "unseen limit"),
        (judged("blocked", BROKEN, UNSEEN, EXCEEDED, UNSEEN_LIMIT), "broken, unseen, unseen limit"),
        (judged("blocked", HELD, declared=2), "fewer evaluated than declared"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_blocks_is_named_and_nothing_else(report: GateReport, told: str) -> None:
    assert withheld(decided(good(), report=report)) == ("blocked", f"gate checks failed or were not evaluated: {told}")


def test_no_approval_publishes_what_is_blocked() -> None:
    case = cell("figures", "fraction_bytes", "much")(good())
    outcome, reason = withheld(decided(case, word(case)))
    assert outcome == "blocked"
    assert reason.endswith(": fraction_bytes, much_bytes")


# Left to a person.


def test_a_yes_to_another_report_is_no_word_and_a_no_is() -> None:
    about = report_of(MUCH).gate_id
    assert isinstance(decided(MUCH, replace(word(MUCH), gate_id=about)), Verdict)
    other = withheld(decided(MUCH, replace(word(MUCH), gate_id="f" * 32)))
    assert other == ("lapsed", f"ada answered gate report {'f' * 12}, but the staged change has report {about[:12]}")
    assert withheld(decided(MUCH, replace(word(MUCH, granted=False), gate_id="f" * 32)))[0] == "refused"


def test_a_question_waits_for_its_time_and_lapses_after_it() -> None:
    limits = "removed share of messages: 38 %, expected at most 30 %; removed share of bytes: 31 %, expected at most 30 %"
    assert withheld(decided(MUCH, after=TTL)) == ("needs_approval", limits)
    assert withheld(decided(MUCH, after=TTL + 1)) == ("lapsed", f"no answer within 1m: {limits}")


@pytest.mark.parametrize("granted", [True, False])
def test_a_late_answer_lapses(granted: bool) -> None:
    assert withheld(decided(MUCH, word(MUCH, granted=granted, after=TTL + 1))) == ("lapsed", "ada answered after the plan had lapsed")


def test_a_refusal_is_told_with_its_reason() -> None:
    assert withheld(decided(MUCH, word(MUCH, granted=False, text="too much"))) == ("refused", "ada refused: too much")
    assert withheld(decided(MUCH, word(MUCH, granted=False))) == ("refused", "ada refused: no reason given")


# Of another plan.


def test_the_report_of_another_plan_or_of_another_snapshot_allows_nothing() -> None:
    case = good()
    mine = report_of(case)
    belongs = ("blocked", "the gate's report or the staged change belongs to another plan")
    assert withheld(decided(case, report=replace(mine, plan_id=OTHER))) == belongs
    assert withheld(decided(replace(case, staged=replace(case.staged, plan_id=OTHER)), report=mine)) == belongs
    assert withheld(decided(replanned(asks=("?",))(case), report=mine)) == belongs
    other = replace(case, staged=replace(case.staged, snapshot_id=3))
    assert withheld(decided(other, report=mine)) == ("blocked", "the gate judged snapshot 2, staged is 3")


@pytest.mark.parametrize("case", [MUCH, good()], ids=["asked", "not asked"])
@pytest.mark.parametrize("granted", [True, False])
def test_an_approval_of_another_plan_says_nothing_about_this_one(case: Case, granted: bool) -> None:
    foreign = replace(word(case, granted=granted), plan_id=OTHER)
    assert withheld(decided(case, foreign)) == ("blocked", "the approval belongs to another plan")


# No way around.


@pytest.mark.parametrize("proof", [None, True, object()])
def test_a_verdict_is_not_made_by_hand(proof: object) -> None:
    case = good()
    with pytest.raises(TypeError, match="decide alone"):
        Verdict(case.plan, case.staged, "g", None, proof)


def test_a_verdict_is_not_altered() -> None:
    verdict = decided(good())
    with pytest.raises(AttributeError):
        verdict.plan = MUCH.plan
