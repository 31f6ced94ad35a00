"""Quarantine rows go at their age, file by file, and not a microsecond before (QUA-1, CLK-2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.operations.registry import operation_named, suite_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.ledger.codec import from_json
from message_lifecycle.model.change import QuarantinedFile
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Judgement, RefusedBatch, SettledAs, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.tables import QuarantineFile, QuarantineReturning, QuarantineState, RestoredQuarantineRows
from message_lifecycle.model.undo import QUARANTINE, ranges_in
from message_lifecycle.operations import quarantine
from message_lifecycle.stores.iceberg.quarantine import find_returning_files, returned

TOPIC = TopicName(stream="shop", topic="orders")
SECOND = 1_000_000
AS_OF = Instant(100 * SECOND)
AGE = 10


def file(name: str, newest: int | None, *, oldest: int | None = None, rows: int = 3) -> QuarantineFile:
    at = None if newest is None else Instant(newest)
    return QuarantineFile(name=name, rows=rows, size_bytes=7, oldest_at=at if oldest is None else Instant(oldest), newest_at=at)


def plan(
    *files: QuarantineFile,
    holds: tuple[str, ...] = (),
    accepted: dict[str, Value | None] | None = None,
    age: int = AGE,
    undone: tuple[RestoredQuarantineRows, ...] = (),
    replayed: tuple[RefusedBatch, ...] = (),
) -> Plan:
    policy = resolve(topic={"quarantine_max_age": age}, server={})
    state = QuarantineState(table_uuid="t", snapshot_id=1, files=files)
    return quarantine.plan(TOPIC, state, policy, accepted, holds, undone, replayed, as_of=AS_OF)


@pytest.mark.parametrize(
    ("newest", "goes"), [(90 * SECOND, True), (90 * SECOND + 1, False), (89 * SECOND, True), (None, False), (INT64_MAX - 1, False)]
)
def test_a_file_goes_when_its_newest_row_has_reached_the_age(newest: int | None, goes: bool) -> None:
    made = plan(file("a", newest, oldest=0))
    assert made.is_empty is not goes
    assert made.selection.files == (("a",) if goes else ())


def test_a_plan_names_exactly_what_goes_and_tells_when_the_next_does() -> None:
    made = plan(file("a", 50 * SECOND), file("b", 95 * SECOND), file("c", 60 * SECOND, rows=5), file("d", 93 * SECOND))
    assert made.quarantine_commit.files == (
        QuarantinedFile(file="a", rows=3, size_bytes=7, oldest_at=Instant(50 * SECOND), newest_at=Instant(50 * SECOND)),
        QuarantinedFile(file="c", rows=5, size_bytes=7, oldest_at=Instant(60 * SECOND), newest_at=Instant(60 * SECOND)),
    )
    assert (made.expected.rows_in, made.expected.removed, made.expected.removed_bytes) == (14, (("quarantine_age", 8),), 14)
    assert (made.due_since, made.next_due_at) == (60 * SECOND, 103 * SECOND)


def test_unknown_age_stays_and_is_told() -> None:
    made = plan(file("a", None))
    assert made.is_empty
    assert made.warnings == ("1 file of the quarantine kept: the age of their rows is unknown",)


def test_a_hold_on_the_topic_keeps_all_of_it() -> None:
    made = plan(file("a", 50 * SECOND), file("b", 95 * SECOND), holds=("h1",))
    assert made.is_empty
    (held,) = made.held
    assert (held.holder, held.rows, held.overdue_since) == ("hold", 3, 60 * SECOND)
    assert "h1" in held.detail
    assert plan(file("b", 95 * SECOND), holds=("h1",)).held == ()


def test_what_came_back_stays_and_is_told_as_long_as_nobody_releases_it() -> None:
    """Its times tell it: an erasure gives the file another name, and may leave fewer rows."""
    back = RestoredQuarantineRows(times=((50 * SECOND, 60 * SECOND),), detail="undone")
    files = [file("a", 40 * SECOND), file("b", 50 * SECOND), file("c", 60 * SECOND), file("d", 70 * SECOND, oldest=55 * SECOND)]
    made = plan(*files, file("e", 80 * SECOND, oldest=61 * SECOND), file("young", 95 * SECOND), undone=(back,))
    assert made.selection.files == ("a", "e")
    (held,) = made.held
    assert (held.holder, held.rows, held.overdue_since, held.detail) == ("undone_plan", 9, 60 * SECOND, "undone")
    assert (made.due_since, made.expected.removed_rows) == (50 * SECOND, 6)
    assert plan(file("young", 95 * SECOND), undone=(back,)).held == ()


@pytest.mark.parametrize(("accepted", "asks"), [(None, 0), ({"quarantine_max_age": 11}, 1), ({"quarantine_max_age": 10}, 0), ({}, 0)])
def test_a_shorter_age_than_was_accepted_asks_a_person(accepted: dict[str, Value | None] | None, asks: int) -> None:
    assert len(plan(file("a", 50 * SECOND), accepted=accepted).asks) == asks


@pytest.mark.parametrize(("oldest", "then"), [(50 * SECOND, AGE), (95 * SECOND, 11)], ids=["rows went", "nothing went"])
def test_an_age_by_which_rows_went_is_accepted_and_no_other_setting(oldest: int, then: int) -> None:  # DEL-3
    s = memory_world({}).services
    create_topic(s, TOPIC, settings={})
    s.ledger.set_accepted(TOPIC, {"quarantine_max_age": 11, "message_expiry": 7})
    operation_named("quarantine").record_effects(s, plan(file("a", oldest)), None)
    assert s.ledger.accepted(TOPIC) == {"quarantine_max_age": then, "message_expiry": 7}


@given(st.lists(st.none() | st.integers(0, 200 * SECOND)), st.integers(1, 300))
def test_nothing_younger_goes_and_nothing_older_stays(times: list[int | None], age: int) -> None:
    made = plan(*(file(str(n), at) for n, at in enumerate(times)), age=age)
    dead = {str(n) for n, at in enumerate(times) if at is not None and at + age * SECOND <= AS_OF}
    assert set(made.selection.files) == dead


def judged(made: Plan, **frames: list[dict[str, object]]) -> tuple[Judgement, list[str]]:
    policy = resolve(topic={"quarantine_max_age": AGE}, server={})
    right: dict[str, object] = {
        "going": [{"rows": 3, "newest_at": 50 * SECOND, "planned": True}],
        "difference": [],
        "figures": [{"rows_in": 6, "rows_removed": 3, "rows_kept": 3, "asks": len(made.asks)}],
    }
    report = PlainGate().judge(
        made,
        Staged(plan_id=made.plan_id, branch="b", snapshot_id=2),
        suite_of(made, Staged(plan_id=made.plan_id, branch="b", snapshot_id=2), policy),
        right | frames,
    )
    return report.judgement, [check.id for check in report.checks if not check.passed]


def test_what_the_gate_holds_it_to() -> None:
    made = plan(file("a", 50 * SECOND), file("b", 95 * SECOND))
    row = {"rows": 3, "newest_at": 50 * SECOND, "planned": True}
    assert judged(made) == ("passed", [])
    assert judged(made, going=[row | {"newest_at": 90 * SECOND + 1}]) == ("blocked", ["going_old"])
    assert judged(made, going=[row | {"rows": 4}]) == ("blocked", ["going_rows"])
    assert judged(made, going=[row | {"planned": False}]) == ("blocked", ["going_planned"])
    assert judged(made, going=[])[0] == "blocked"
    assert judged(made, difference=[{"name": "b"}]) == ("blocked", ["difference"])
    tightened = plan(file("a", 50 * SECOND), file("b", 95 * SECOND), accepted={"quarantine_max_age": 11})
    assert judged(tightened)[0] == "needs_approval"


def batch(begun: int, ended: int, *, how: SettledAs | None = "replayed") -> RefusedBatch:
    return RefusedBatch(
        batch_id="b", topic=TOPIC, begun_at=Instant(begun), ended_at=Instant(ended), rows=0, refused=3, unsettled=0,
        settled_as=how, settled_at=Instant(97 * SECOND),
    )  # fmt: skip


YOUNG = 95 * SECOND


@pytest.mark.parametrize(
    ("young", "settled", "goes"),
    [
        (file("b", YOUNG), batch(YOUNG, YOUNG), True),
        (file("b", YOUNG), batch(YOUNG - 1, YOUNG + 1), True),
        (file("b", YOUNG), batch(YOUNG, YOUNG, how="accepted"), False),
        (file("b", YOUNG), batch(YOUNG, YOUNG, how=None), False),
        (file("b", YOUNG), batch(YOUNG + 1, YOUNG + 2), False),
        (file("b", YOUNG), batch(YOUNG - 2, YOUNG - 1), False),
        (file("b", YOUNG, oldest=YOUNG - 1), batch(YOUNG - 2, YOUNG), False),
        (file("b", None), batch(0, YOUNG), False),
    ],
)
def test_a_file_goes_before_its_age_where_all_of_it_was_replayed(young: QuarantineFile, settled: RefusedBatch, goes: bool) -> None:  # QUA-2
    made = plan(file("a", 50 * SECOND), young, replayed=(settled,))
    assert made.selection.files == (("a", "b") if goes else ("a",))
    replayed = (("quarantine_replayed", 3),) if goes else ()
    assert made.expected.removed == (("quarantine_age", 3), *replayed)
    assert made.due_since == 60 * SECOND


def test_replayed_rows_ask_nobody_and_accept_no_age_and_a_hold_keeps_them() -> None:  # QUA-2, DEL-3, DEL-8
    settled = batch(YOUNG, YOUNG)
    made = plan(file("b", YOUNG), replayed=(settled,), accepted={"quarantine_max_age": 11})
    assert (made.asks, made.due_since) == ((), 97 * SECOND)
    s = memory_world({}).services
    create_topic(s, TOPIC, settings={})
    s.ledger.set_accepted(TOPIC, {"quarantine_max_age": 11})
    operation_named("quarantine").record_effects(s, made, None)
    assert s.ledger.accepted(TOPIC) == {"quarantine_max_age": 11}
    held = plan(file("b", YOUNG), replayed=(settled,), holds=("h",))
    assert (held.is_empty, [one.holder for one in held.held]) == (True, ["hold"])


def test_what_the_gate_holds_replayed_rows_to() -> None:  # QUA-2
    made = plan(file("a", 50 * SECOND), file("b", YOUNG), replayed=(batch(YOUNG, YOUNG),))
    figures: list[dict[str, object]] = [{"rows_in": 6, "rows_removed": 6, "rows_kept": 0, "asks": 0}]
    row: dict[str, object] = {"rows": 3, "planned": True, "settled": True}
    assert judged(made, figures=figures, replayed=[row]) == ("passed", [])
    assert judged(made, figures=figures, replayed=[row | {"settled": False}]) == ("blocked", ["replayed_settled"])
    assert judged(made, figures=figures, replayed=[row | {"planned": False}]) == ("blocked", ["replayed_planned"])
    assert judged(made, figures=figures, replayed=[row | {"rows": 2}]) == ("blocked", ["replayed_rows"])
    assert judged(made, figures=figures, replayed=[])[0] == "blocked"
    assert judged(made, figures=figures)[0] == "blocked"


def found(made: Plan, source: list[QuarantineFile], *now: QuarantineFile, rewritten: bool = True) -> tuple[list[tuple[str, int]], int]:
    got = find_returning_files(made, source_id=7, rewritten=rewritten, source=source, now=now)
    assert got.source_id == 7
    return [(one.name, one.rows) for one, _ in got.files], got.present


def test_what_a_plan_took_is_found_by_name_and_after_an_erasure_by_its_times() -> None:
    young = file("d/c", 95 * SECOND)
    files = [file("d/a", 50 * SECOND, oldest=40 * SECOND), file("d/b", 60 * SECOND), young]
    made = plan(*files)
    assert found(made, [*files, file("d/late", 60 * SECOND, rows=9)], young) == ([("d/a", 3), ("d/b", 3)], 0)
    # The newest row of the first was erased; one of what is young, too, which stands; a file of unknown times comes back by nobody's word.
    anew = [file("d/erased-1", 45 * SECOND, oldest=40 * SECOND, rows=2), files[1], file("d/erased-2", 45 * SECOND), file("d/z", None)]
    assert found(made, anew, anew[2]) == ([("d/erased-1", 2), ("d/b", 3)], 0)
    assert found(made, anew, anew[2], rewritten=False) == ([("d/b", 3)], 0), "an erasure of before has copied what did not go"
    copy = file("d/x-undo-000000.parquet", 45 * SECOND, oldest=40 * SECOND, rows=2)
    assert found(made, anew, anew[2], copy) == ([("d/b", 3)], 2)
    beyond = [file("d/erased-3", 51 * SECOND, oldest=40 * SECOND), file("d/other", 45 * SECOND)]
    assert found(made, beyond) == ([], 0)


def test_what_an_undo_has_brought_is_counted_by_its_files() -> None:
    made, before = undo(), [file("c", 95 * SECOND)]
    assert returned(made, before, [*before, file("copy", 50 * SECOND)]) == 3
    assert returned(made, before, [*before, file("one", 50 * SECOND), file("two", 50 * SECOND)]) == 3
    assert returned(made, before, [*before, file("copy", 50 * SECOND, rows=2)]) == 0
    assert returned(made, before, before) == 0


def test_a_file_that_two_undos_may_have_brought_is_told_once() -> None:
    backs = tuple(RestoredQuarantineRows(times=((at * SECOND, 60 * SECOND),), detail=f"undone {at}") for at in (50, 55))
    made = plan(file("a", 60 * SECOND), file("b", 52 * SECOND), undone=backs)
    assert [(entry.detail, entry.rows) for entry in made.held] == [("undone 50", 6)]
    assert made.is_empty


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3))), st.integers(0, 60), st.integers(0, 5))
def test_a_file_may_have_come_back_where_its_times_meet_any_span(gaps: list[tuple[int, int]], oldest: int, length: int) -> None:
    spans, at = [], 0
    for gap, long in gaps:
        spans.append((at + gap, at + gap + long))
        at += gap + long + 1
    meets = any(first <= oldest + length and oldest <= last for first, last in spans)
    assert RestoredQuarantineRows(times=tuple(spans), detail="").may_be(file("a", oldest + length, oldest=oldest)) is meets


def undo(*, present: int = 0) -> Plan:
    taken = plan(file("a", 50 * SECOND), file("b", 60 * SECOND), file("c", 95 * SECOND))
    at = Instant(50 * SECOND)
    found = QuarantineReturning(source_id=7, files=((file("a", at), (at, at)),), present=present)
    state = QuarantineState(table_uuid="t", snapshot_id=9, files=(file("c", 95 * SECOND),))
    policy = resolve(topic={"quarantine_max_age": AGE}, server={})
    return quarantine.plan_undo(state, found, policy, taken, as_of=AS_OF, heeded=("h1",))


def test_the_plan_of_an_undo_names_what_comes_back_and_tells_what_does_not() -> None:
    made = undo()
    assert (made.restored_rows, made.things, made.expected.removed_rows) == (3, "rows", 0)
    assert (made.requirements.snapshot_id, made.requirements.heeded, made.quarantine_return.source_id) == (9, ("h1",), 7)
    assert made.warnings == ("3 rows of the plan cannot come back: no file has them",)
    assert undo(present=3).warnings == ("3 rows of the plan are back already",)
    assert from_json(Plan, made.to_json()) == made
    assert ranges_in((), made.quarantine_return.files) == ((QUARANTINE, 50 * SECOND, 50 * SECOND),)


def test_what_the_gate_holds_an_undo_to() -> None:
    made = undo()
    row = {"rows": 3, "planned": True, "same": True}
    figures = {"rows_in": 3, "rows_restored": 3, "rows_kept": 6, "asks": 1}
    right: dict[str, object] = {"back": [row], "difference": [], "figures": [figures], "holds": [{"holds": 1, "unheeded": 0, "touched": 0}]}
    policy = resolve(topic={"quarantine_max_age": AGE}, server={})

    def judge(**frames: list[dict[str, object]]) -> tuple[Judgement, list[str]]:
        report = PlainGate().judge(
            made,
            Staged(plan_id=made.plan_id, branch="b", snapshot_id=2),
            suite_of(made, Staged(plan_id=made.plan_id, branch="b", snapshot_id=2), policy),
            right | frames,
        )
        return report.judgement, [check.id for check in report.checks if not check.passed]

    assert judge() == ("needs_approval", ["undo"])
    assert judge(back=[row | {"same": False}])[1] == ["back_same", "undo"]
    assert judge(back=[row | {"planned": False}])[1] == ["back_planned", "undo"]
    assert judge(back=[row | {"rows": 2}])[1] == ["back_rows", "undo"]
    assert judge(back=[row, row | {"rows": 0}])[1] == ["back", "undo"]
    assert judge(back=[])[0] == "blocked"
    assert judge(difference=[{"name": "c"}])[1] == ["difference", "undo"]
    assert judge(figures=[figures | {"rows_kept": 5}])[1] == ["rows_kept", "undo"]
    assert judge(figures=[figures | {"rows_in": 2}])[1] == ["rows_in", "undo"]
    assert judge(figures=[figures | {"rows_restored": 4}])[1] == ["rows_restored", "undo"]
