"""Every check of the message cleaner's gate fails when its rule is broken, and only then; what cannot be judged blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.gates.messages import message_cleaner_suite
from message_lifecycle.gates.plain import PlainGate, assemble_report, evaluate
from message_lifecycle.gates.rows import archive_suite
from message_lifecycle.gates.suite import ColumnSum, DeclaredCheck, RowCount, Same, Within
from message_lifecycle.model.change import CommitLog, DropSegments
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, GateReport
from message_lifecycle.model.settings import resolve
from message_lifecycle.operations import message_cleaner
from message_lifecycle.stores.memory import MemoryStore
from tests.changes import named
from tests.evidence import (
    BREAKAGES,
    DEAD_AT,
    MARKER,
    POLICY,
    Breakage,
    Case,
    by_row,
    cell,
    extra,
    good,
    marked,
    nothing_goes,
    policy,
    purged,
    replanned,
    without,
)
from tests.logs import AS_OF, EXPIRY_SECONDS, Log, logs


def judge(case: Case, evidence: Mapping[str, object] | None = None) -> GateReport:
    return PlainGate().judge(
        case.plan, case.staged, suite_of(case.plan, case.staged, case.policy), case.evidence if evidence is None else evidence
    )


def failed(report: GateReport) -> set[str]:
    return {check.id for check in report.checks if not check.passed}


def unevaluated(report: GateReport) -> set[str]:
    return {check.id for check in report.checks if not check.evaluated}


def test_good_evidence_passes_every_check() -> None:
    report = judge(good())
    assert (failed(report), report.judgement, report.evaluated_count) == (set(), "passed", report.declared)


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_each_broken_rule_is_seen_by_its_checks_alone(breakage: Breakage) -> None:
    report = judge(breakage.case)
    assert failed(report) == breakage.fails
    assert report.judgement == breakage.judgement
    assert not unevaluated(report)


def test_every_check_is_broken_by_some_breakage() -> None:
    declared = {check.id for check in message_cleaner_suite(good().plan, good().staged, POLICY)}
    assert declared == set().union(*(breakage.fails for breakage in BREAKAGES))


def test_ids_are_unique_and_every_frame_is_counted_before_it_is_judged() -> None:
    for case in (good(), nothing_goes()):
        suite = message_cleaner_suite(case.plan, case.staged, case.policy)
        assert len({declared.id for declared in suite}) == len(suite)
        counted: set[str] = set()
        for declared in suite:
            if isinstance(declared.test, RowCount):
                counted.add(declared.test.frame)
            elif not isinstance(declared.test, Same):
                assert declared.test.frame in counted


@pytest.mark.parametrize("files", [1, 3])
def test_single_messages_go_whatever_the_number_of_their_files(files: int) -> None:
    assert judge(by_row(files=files)).judgement == "passed"


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (without("rows"), {"rows", "rows_rows", "rows_named", "rows_justified", "rows_active"}),
        (cell("rows", "rows", 7), {"rows_rows"}),
        (cell("rows", "unnamed", 1), {"rows_named"}),
        (cell("rows", "unnamed", None), {"rows_named"}),
        (cell("rows", "unjustified", 1), {"rows_justified"}),
        (cell("rows", "active", True), {"rows_active"}),
        (cell("rows", "active", None), {"rows_active"}),
    ],
)
def test_single_messages_are_held_to_the_plan(change: Callable[[Case], Case], fails: set[str]) -> None:
    case = by_row()
    report = judge(case, change(case).evidence)
    assert (failed(report), report.judgement) == (fails, "blocked")


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (without("markers", rows=1), {"markers"}),
        (extra("markers", MARKER), {"markers"}),
        (extra("unmarked", {"partition": 0}), {"unmarked"}),
        (without("marked"), {"marked", "markers_same", "markers_known"}),
        (cell("marked", "as_made", False), {"markers_same"}),
        (cell("marked", "rows", 3), {"markers_known"}),
        (cell("markers", "emptied", False), {"markers_emptied"}),
        (cell("markers", "emptied", None), {"markers_emptied"}),
        (cell("markers", "single", False, row=1), {"markers_single"}),
        (cell("markers", "caused", False), {"markers_caused"}),
        (cell("markers", "formed", False), {"markers_formed"}),
    ],
)
def test_markers_are_judged_one_by_one_and_all_together(change: Callable[[Case], Case], fails: set[str]) -> None:
    case = marked()
    assert judge(case).judgement == "passed"
    report = judge(case, change(case).evidence)
    assert (failed(report), report.judgement) == (fails, "blocked")


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (without("purged"), {"purged", "purged_key", "purged_keyless"}),
        (extra("purged", {"keys": 1, "keyless": 0}), {"purged"}),
        (cell("purged", "keys", 2), {"purged_key"}),
        (cell("purged", "keys", 0), {"purged_key"}),
        (cell("purged", "keys", None), {"purged_key"}),
        (cell("purged", "keyless", 1), {"purged_keyless"}),
        (cell("purged", "keyless", None), {"purged_keyless"}),
    ],
)
def test_a_purge_is_held_to_one_key(change: Callable[[Case], Case], fails: set[str]) -> None:  # PRG-1
    case = purged()
    assert judge(case).judgement == "passed"
    report = judge(case, change(case).evidence)
    assert (failed(report), report.judgement) == (fails, "blocked")


def test_a_removal_that_is_no_purge_purges_nothing() -> None:
    case = purged()
    removals = tuple(replace(action, reason="removed") for action in case.plan.log_commit.mark)
    plan = replace(case.plan, changes=named(*removals), expected=replace(case.plan.expected, removed=(("removed", 8),)))
    asked = replace(case, plan=plan, staged=replace(case.staged, plan_id=plan.plan_id), evidence=case.evidence | {"purged": []})
    assert judge(asked).judgement == "passed"
    assert failed(judge(asked, case.evidence)) == {"purged"}


def test_markers_that_nobody_looked_for_block() -> None:
    case = marked()
    report = judge(replace(case, staged=replace(case.staged, markers=None)))
    assert failed(report) >= {"markers_looked_for"}
    assert failed(judge(replace(good(), staged=case.staged))) >= {"markers_looked_for"}


def test_an_empty_plan_passes_when_nothing_is_overdue() -> None:
    assert judge(nothing_goes()).judgement == "passed"


def test_an_empty_plan_is_blocked_when_something_is_overdue() -> None:
    case = nothing_goes()
    overdue = {"partition": 0, "base_offset": 0, "last_offset": 9, "rows": 10, "named": False}
    report = judge(case, case.evidence | {"left": [overdue]})
    assert (failed(report), report.judgement) == ({"left"}, "blocked")


def test_a_disabled_cleaner_may_leave_what_is_overdue_but_removes_nothing() -> None:
    case = nothing_goes(with_policy=policy(enabled=False))
    overdue = {"partition": 0, "base_offset": 0, "last_offset": 9, "rows": 10, "named": False}
    assert judge(case, case.evidence | {"left": [overdue]}).judgement == "passed"
    assert failed(judge(case, case.evidence | {"going": good().evidence["going"]})) == {"going"}


def test_an_empty_log_is_not_called_emptied() -> None:
    case = nothing_goes()
    expected = replace(case.plan.expected, rows_in=0, bytes_in=0)
    figures = dict.fromkeys(case.evidence["figures"][0], 0)
    report = judge(replanned(expected=expected)(case), case.evidence | {"figures": [figures]})
    assert report.judgement == "passed"


def test_the_oldest_allowed_time_is_judged_to_the_microsecond() -> None:
    assert "going_expired" not in failed(judge(cell("going", "newest_at", DEAD_AT)(good())))
    assert "going_expired" in failed(judge(cell("going", "newest_at", DEAD_AT + 1)(good())))


def test_a_saturated_deadline_is_never_due() -> None:
    case = replanned(as_of=Instant(INT64_MAX))(good())
    at_the_end = INT64_MAX - POLICY.message_expiry_us
    assert "going_expired" in failed(judge(cell("going", "newest_at", at_the_end)(case)))
    assert "going_expired" not in failed(judge(cell("going", "newest_at", at_the_end - 1)(case)))


# What cannot be evaluated is told apart from what is violated, and blocks as well.


@pytest.mark.parametrize("frame", sorted(good().evidence))
def test_a_missing_frame_blocks(frame: str) -> None:
    case = good()
    report = judge(case, {name: rows for name, rows in case.evidence.items() if name != frame})
    assert unevaluated(report) == failed(report) != set()
    assert report.judgement == "blocked"


@pytest.mark.parametrize("found", [None, 7, "text", iter([]), [1, 2], [None], {"partition": 1}], ids=lambda found: type(found).__name__)
def test_a_frame_that_is_no_list_of_rows_blocks(found: object) -> None:
    case = good()
    report = judge(case, {**case.evidence, "difference": found})
    assert (unevaluated(report), report.judgement) == ({"difference"}, "blocked")


def test_a_missing_column_blocks() -> None:
    case = good()
    rows = [{name: value for name, value in row.items() if name != "any_kept"} for row in case.evidence["going"]]
    report = judge(case, case.evidence | {"going": rows})
    assert (unevaluated(report), report.judgement) == ({"going_kept"}, "blocked")


@pytest.mark.parametrize(
    ("column", "value", "check"),
    [("any_kept", 0, "going_kept"), ("planned", "true", "going_planned"), ("rows", 10.0, "going_rows"), ("rows", True, "going_rows"), ("newest_at", "1970", "going_expired")],
)  # fmt: skip
def test_a_value_of_another_kind_is_not_evaluated(column: str, value: object, check: str) -> None:
    report = judge(cell("going", column, value)(good()))
    assert (unevaluated(report), report.judgement) == ({check}, "blocked")


def test_a_limit_that_could_not_be_evaluated_blocks() -> None:
    report = judge(cell("figures", "fraction_bytes", "much")(good()))
    assert (unevaluated(report), report.judgement) == ({"fraction_bytes", "much_bytes"}, "blocked")


def test_no_evidence_at_all_blocks() -> None:
    report = judge(good(), {})
    assert (unevaluated(report) | {"policy", "markers_looked_for"}, report.judgement) == ({check.id for check in report.checks}, "blocked")


def test_an_exception_inside_a_check_is_a_finding() -> None:
    class Odd(dict[str, object]):
        def __getitem__(self, key: str) -> object:
            raise RuntimeError("a value of a message")

    declared = DeclaredCheck(id="x", says="", what="x", kind="rule", test=ColumnSum(frame="f", column="c", equals=0))
    found = evaluate(declared, {"f": [Odd(c=1)]})
    assert (found.evaluated, found.passed) == (False, False)
    assert "a value of a message" not in found.found


@pytest.mark.parametrize("test", [ColumnSum(frame="f", column="c", equals=0), Within(frame="f", column="c", minimum=None, maximum=5)])
def test_no_test_of_a_column_holds_over_no_rows(test: ColumnSum | Within) -> None:
    declared = DeclaredCheck(id="x", says="", what="x", kind="rule", test=test)
    assert not evaluate(declared, {"f": []}).passed


# The report.


def test_a_finding_left_out_by_the_judge_is_a_check_not_evaluated() -> None:
    case = good()
    suite = message_cleaner_suite(case.plan, case.staged, case.policy)
    report = assemble_report(case.plan, case.staged, suite, {}, {}, took_ms=0)
    assert (report.declared, len(report.checks), report.judgement) == (len(suite), len(suite), "blocked")


def check(id: str, *, kind: str = "rule", evaluated: bool = True, passed: bool = True) -> Check:
    return Check(id=id, says="", kind=kind, evaluated=evaluated, passed=passed, found="")


@pytest.mark.parametrize(
    ("checks", "declared", "judgement"),
    [
        ((check("a"), check("b")), 2, "passed"),
        ((check("a"),), 2, "blocked"),
        ((check("a"), check("a")), 2, "blocked"),
        ((check("a"), check("b")), 1, "blocked"),
        ((), 0, "blocked"),
        ((check("a", kind="limit"),), 1, "blocked"),
        ((check("a"), check("b", kind="limit", passed=False)), 2, "needs_approval"),
        ((check("a"), check("b", kind="limit", evaluated=False, passed=False)), 2, "blocked"),
        ((check("a"), check("b", kind="limit", evaluated=False)), 2, "blocked"),
        ((check("a", passed=False), check("b", kind="limit", passed=False)), 2, "blocked"),
    ],
)
def test_judgement_fails_closed(checks: tuple[Check, ...], declared: int, judgement: str) -> None:
    assert GateReport(plan_id="p", staged_snapshot_id=1, declared=declared, checks=checks).judgement == judgement


def test_the_gate_id_is_of_what_was_judged_not_of_how_long_it_took() -> None:
    report = judge(good())
    assert replace(report, took_ms=99).gate_id == report.gate_id
    assert replace(report, staged_snapshot_id=3).gate_id != report.gate_id


def test_the_report_tells_all_checks_and_can_be_json_without_a_nan() -> None:
    case = cell("figures", "fraction_bytes", float("nan"))(good())
    report = judge(case)
    assert report.judgement == "blocked"
    assert (report.evaluated_count, len(report.checks)) == (report.declared,) * 2
    told = json.loads(json.dumps(asdict(report), allow_nan=False))
    assert dict(told["figures"])["fraction_bytes"] is None
    assert dict(told["figures"])["rows_removed"] == 38
    assert told["plan_id"] == case.plan.plan_id
    assert isinstance(told["took_ms"], int)


def test_findings_read_by_themselves() -> None:
    found = {check.id: check.found for check in judge(without("sample")(cell("going", "newest_at", DEAD_AT + 1)(good()))).checks}
    assert found["going_rows"] == "messages removed: 38, expected 38"
    assert found["going_expired"] == "newest removed time: 1970-01-01T00:15:00.000001Z, expected at most 1970-01-01T00:15:00Z"
    assert found["much_rows"] == "removed share of messages: 38 %, expected at most 50 %"
    assert found["sample"] == "messages sampled: 0, expected at least 1"


@settings(max_examples=150, deadline=None)
@given(log=logs(), max_segments=st.sampled_from([0, 1, 2]))
def test_work_done_as_planned_is_never_blocked(log: Log, max_segments: int) -> None:
    by = resolve(topic={"message_expiry": EXPIRY_SECONDS}, server={"max_segments": max_segments})
    store = MemoryStore()
    name = TopicName(stream="test", topic="messages")
    store.create(name, partitions=log.partitions, settings={}, ledger=("test", 0))
    for batch, seals in zip(log.batches, log.seals, strict=True):
        store.append(name, batch, by)
        for partition in seals:
            store.seal(name, partition)
    stands = store.log(name, latest_allowed_time=Instant(AS_OF + by.clock_skew_us))
    facts = Facts(log=stands, consumers=log.consumers, accepted=by.values)
    plan = message_cleaner.plan(facts, by, as_of=AS_OF, ask=partial(store.rows, stands))
    staged = store.stage(plan)
    report = PlainGate().judge(plan, staged, suite_of(plan, staged, by), store.evidence(plan, staged, by))
    assert report.judgement != "blocked", [check.found for check in report.checks if not check.passed]


def test_a_segment_without_a_message_left_goes_without_a_sample() -> None:
    """Its messages went one by one; a file stayed that showed the segment's age (EXP-4)."""
    case = good()
    empty = DropSegments(
        partition=0, first_base=0, last_base=0, last_offset=9, segments=1, rows=0, size_bytes=10, newest_at=Instant(DEAD_AT)
    )
    suite = message_cleaner_suite(replace(case.plan, changes=named(empty)), case.staged, case.policy)
    assert [declared.test for declared in suite if declared.id.startswith("sample")] == [RowCount(frame="sample", minimum=0, maximum=0)]


@pytest.mark.parametrize("keep", [None, "/elsewhere", "/archive"])
def test_a_plan_that_does_not_keep_where_the_policy_archives_is_told_without_evidence(keep: str | None) -> None:  # RET-7
    """What the plan leaves out of itself must not leave a check out of the gate."""
    by = resolve(topic={"on_remove": "archive", "archive_to": "/archive"}, server={})
    plan = good().plan
    (log,) = plan.changes
    assert isinstance(log, CommitLog)
    first, *others = archive_suite(replace(plan, changes=(replace(log, keep=keep),)), by)
    assert others and (first.test == RowCount(frame="archive", minimum=1, maximum=1)) is (keep == "/archive")
    assert keep == "/archive" or first.test == Same(found=str(keep), wanted="/archive")


@pytest.mark.parametrize("reason", ["expiry", "ttl", "retention_age", "retention_count", "retention_bytes"])
def test_a_plan_that_leaves_out_a_reason_of_its_operation_is_blocked(reason: str) -> None:  # DEL-6
    """For it nobody would look what is overdue."""
    case = good()
    plan = replace(case.plan, reasons=tuple(one for one in case.plan.reasons if one != reason))
    suite = message_cleaner_suite(plan, case.staged, case.policy)
    assert [one.test for one in suite if one.id == "left"] == [Same(found=f"not for {reason}", wanted="for all")]
