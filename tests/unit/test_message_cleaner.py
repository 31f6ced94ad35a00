"""The planner against EXP-1 to EXP-7, said again quadratically in tests/logs.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.facts import Facts, Progress
from message_lifecycle.model.hold import Spared
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import DueRows, NewMessage, RowAnswer, RowQuestion
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan, Selection
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.operations import message_cleaner
from message_lifecycle.stores.memory import MemoryStore
from tests.changes import named
from tests.ledgers import drop, plan_of
from tests.logs import AS_OF, EXPIRY_SECONDS, SECOND, Log, expired_by_the_rules, logs

NAME = TopicName(stream="test", topic="messages")


def policy(**values: Value) -> Policy:
    return resolve(topic={"message_expiry": EXPIRY_SECONDS}, server=values)


def stored(log: Log, by: Policy) -> MemoryStore:
    store = MemoryStore()
    store.create(NAME, partitions=log.partitions, settings={}, ledger=("test", 0))
    for batch, seals in zip(log.batches, log.seals, strict=True):
        store.append(NAME, batch, by, latest_allowed_time=by.latest_allowed_time(AS_OF))
        for partition in seals:
            store.seal(NAME, partition)
    return store


def planned(
    store: MemoryStore, by: Policy, *, as_of: Instant = AS_OF, consumers: tuple[Progress, ...] = (), spared: tuple[Spared, ...] = ()
) -> Plan:
    log = store.log(NAME, latest_allowed_time=Instant(as_of + by.clock_skew_us))
    facts = Facts(log=log, consumers=consumers, accepted=by.values, spared=spared)
    return message_cleaner.plan(facts, by, as_of=as_of, ask=partial(store.rows, log))


def nothing_asked(question: RowQuestion) -> RowAnswer:
    raise AssertionError(f"metadata is enough here: {question}")


def covered(store: MemoryStore, plan: Plan) -> set[tuple[int, int]]:
    """Positions that the plan's actions take."""
    return {(m.partition, m.offset) for m in store.messages(NAME) if plan.removal_at(m.partition, m.offset) is not None}


def one(time: float | None, *, value: bytes = b"x", **more: int) -> NewMessage:
    at = None if time is None else Instant(round(time * SECOND))
    return NewMessage(append_time=at, key=b"k", value=value, **more)


@given(logs())
@settings(max_examples=400, deadline=None)
def test_plan_takes_exactly_what_the_rules_take(log: Log) -> None:
    by = policy(segment_size_bytes=log.segment_bytes, consumer_expiry=50)
    store = stored(log, by)
    plan = planned(store, by, consumers=log.consumers)
    expected = expired_by_the_rules(
        store.messages(NAME),
        log.consumers,
        expiry_us=EXPIRY_SECONDS * SECOND,
        consumer_expiry_us=50 * SECOND,
        as_of=AS_OF,
    )
    assert covered(store, plan) == expected
    assert plan.expected.removed_rows == len(expected)


SPARED = st.builds(
    Spared,
    partition=st.integers(0, 1),
    first=st.integers(0, 12),
    last=st.one_of(st.none(), st.integers(12, 20)),
    holder=st.sampled_from(["hold", "undone_plan"]),
    name=st.just("h"),
    detail=st.just("case 7"),
)


@given(logs(), st.lists(SPARED, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_segment_that_is_spared_is_skipped_whole_and_the_walk_goes_on(log: Log, spared: list[Spared]) -> None:  # EXP-5, DEL-8
    by = policy(segment_size_bytes=log.segment_bytes, consumer_expiry=50)
    store = stored(log, by)
    plan = planned(store, by, consumers=log.consumers, spared=tuple(spared))
    due = expired_by_the_rules(
        store.messages(NAME), log.consumers, expiry_us=EXPIRY_SECONDS * SECOND, consumer_expiry_us=50 * SECOND, as_of=AS_OF
    )
    spans = {(s.partition, s.base_offset): s for s in store.log(NAME).segments}
    segment_of = {(m.partition, m.offset): spans[m.partition, m.segment] for m in store.messages(NAME)}
    kept = {
        place
        for place in due
        if any(
            s.partition == place[0] and s.first <= segment_of[place].last_offset and s.end >= segment_of[place].base_offset for s in spared
        )
    }
    assert covered(store, plan) == due - kept
    assert sum(entry.rows for entry in plan.held if entry.holder in ("hold", "undone_plan")) >= len(kept)


@given(logs(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_passes_with_a_budget_end_where_one_pass_without_does(log: Log, max_segments: int) -> None:
    by = policy(segment_size_bytes=log.segment_bytes)
    store = stored(log, by)
    whole = covered(store, planned(store, by, consumers=log.consumers))
    taken: set[tuple[int, int]] = set()
    limited = policy(segment_size_bytes=log.segment_bytes, max_segments=max_segments)
    for _ in range(50):
        plan = planned(store, limited, consumers=log.consumers)
        taken |= (now := covered(store, plan))
        assert plan.expected.segments <= max_segments
        store.foreign_delete(NAME, sorted(now))
        if not plan.more:
            break
    assert taken == whole


@given(logs(), st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_a_later_as_of_takes_no_less(log: Log, early: int, later: int) -> None:  # P2
    by = policy(segment_size_bytes=log.segment_bytes)
    store = stored(log, by)
    first, second = sorted((early, later))
    # A time ahead of the first run counts for its segment once it has come (CLK-4), and then keeps it whole (EXP-5).
    ahead = range(by.latest_allowed_time(Instant(AS_OF + first * SECOND)) + 1, by.latest_allowed_time(Instant(AS_OF + second * SECOND)) + 1)
    assume(not any(message.append_time in ahead for batch in log.batches for message in batch if message.append_time is not None))
    at_first = covered(store, planned(store, by, as_of=Instant(AS_OF + first * SECOND)))
    at_second = covered(store, planned(store, by, as_of=Instant(AS_OF + second * SECOND)))
    assert at_first <= at_second


@given(logs())
@settings(max_examples=100, deadline=None)
def test_next_due_is_never_too_late(log: Log) -> None:
    """Nothing more may become removable before `next_due_at`, or the due check would sleep through it."""
    by = policy(segment_size_bytes=log.segment_bytes, consumer_expiry=50)
    store = stored(log, by)
    plan = planned(store, by, consumers=log.consumers)
    store.foreign_delete(NAME, sorted(covered(store, plan)))
    due_at = plan.next_due_at if plan.next_due_at is not None else Instant(AS_OF + 10_000 * SECOND)
    just_before = Instant(max(AS_OF, due_at - 1))
    again = planned(store, by, as_of=just_before, consumers=log.consumers)
    assert plan.more or not covered(store, again)


@pytest.mark.parametrize(("shift", "goes"), [(-1, False), (0, True), (1, True)])
def test_deadline_is_inclusive_to_the_microsecond(shift: int, goes: bool) -> None:  # CLK-2
    by = policy()
    store = stored(Log(batches=((one(50),),), seals=((),), consumers=(), partitions=1, segment_bytes=1000), by)
    plan = planned(store, by, as_of=Instant((50 + EXPIRY_SECONDS) * SECOND + shift))
    assert plan.is_empty is not goes


def test_a_time_at_the_end_of_time_never_expires() -> None:  # CLK-3, P10
    by = policy()
    far = NewMessage(append_time=Instant(INT64_MAX - 1), key=None, value=b"")
    store = stored(Log(batches=((far,),), seals=((),), consumers=(), partitions=1, segment_bytes=1000), by)
    plan = planned(store, by, as_of=Instant(INT64_MAX - 61 * SECOND))
    assert plan.is_empty
    newest = planned(store, by, as_of=Instant(INT64_MAX))
    assert newest.is_empty
    assert any("CLK-3" in warning for warning in newest.warnings)


def test_late_messages_stay_by_row_and_do_not_hold_the_log() -> None:  # CLK-4
    by = policy(segment_size_bytes=4)
    batch = (one(1), one(10_000), one(2), one(3), one(99))
    store = stored(Log(batches=(batch,), seals=((),), consumers=(), partitions=1, segment_bytes=4), by)
    plan = planned(store, by)
    assert covered(store, plan) == {(0, 0), (0, 2), (0, 3)}
    by_row = plan.log_commit.mark
    assert [(action.rows, action.reason) for action in by_row] == [(1, "expiry")]
    assert any("after as_of" in warning for warning in plan.warnings)
    store.foreign_delete(NAME, sorted(covered(store, plan)))
    assert planned(store, by).is_empty
    assert covered(store, planned(store, by, as_of=Instant(20_000 * SECOND))) == {(0, 1), (0, 4)}


@pytest.mark.parametrize("beside", [(), (1,), (1, 99), (None,)])
def test_late_messages_are_looked_at_again_in_time(beside: tuple[float | None, ...]) -> None:
    """At an `as_of` of the past everything newer is late, and must not be taken for something that never expires (CLK-4)."""
    by = policy(segment_size_bytes=4)
    batch = (*map(one, beside), one(170), one(10_000))
    store = stored(Log(batches=(batch,), seals=((),), consumers=(), partitions=1, segment_bytes=4), by)
    plan = planned(store, by)
    for _ in range(10_000):
        store.foreign_delete(NAME, sorted(covered(store, plan)))
        if plan.next_due_at is None:
            break
        plan = planned(store, by, as_of=Instant(max(plan.next_due_at, plan.as_of + 1)))
    left = {message.append_time for message in store.messages(NAME)}
    assert left == (set() if None not in beside else {None if time is None else Instant(time * SECOND) for time in (None, 170, 10_000)})


def test_the_slow_consumer_is_named_and_falls_silent() -> None:  # EXP-6
    by = policy(segment_size_bytes=1, consumer_expiry=30)
    log = Log(batches=((one(1), one(2), one(99)),), seals=((),), consumers=(), partitions=1, segment_bytes=1)
    store = stored(log, by)
    slow = Progress(consumer="slow", partition=0, offset=0, at=Instant(80 * SECOND))
    held = planned(store, by, consumers=(slow,))
    assert covered(store, held) == {(0, 0)}
    assert [(h.holder, h.first_base, "slow" in h.detail) for h in held.held] == [("consumer", 1, True)]
    assert held.next_due_at == slow.silent_at(30 * SECOND) == 110 * SECOND + 1
    silent = planned(store, by, as_of=Instant(110 * SECOND + 1), consumers=(slow,))
    assert covered(store, silent) == {(0, 0), (0, 1), (0, 2)}
    assert any("slow" in warning for warning in silent.warnings)


def test_disabled_cleaner_and_expiry_of_zero_remove_nothing() -> None:  # EXP-1, EXP-2
    store = stored(Log(batches=((one(1),),), seals=((),), consumers=(), partitions=1, segment_bytes=1), policy())
    off = planned(store, policy(enabled=False))
    assert off.is_empty
    assert any("disabled" in warning for warning in off.warnings)
    never = resolve(topic={"message_expiry": 0}, server={"message_expiry": 5})
    assert planned(store, never).is_empty


def test_a_tightened_setting_asks() -> None:  # DEL-3
    store = stored(Log(batches=((one(1),),), seals=((),), consumers=(), partitions=1, segment_bytes=1), policy())
    facts = Facts(log=store.log(NAME), accepted={**policy().values, "message_expiry": EXPIRY_SECONDS + 1})
    assert message_cleaner.plan(facts, policy(), as_of=AS_OF, ask=nothing_asked).asks
    looser = replace(facts, accepted={**policy().values, "message_expiry": EXPIRY_SECONDS - 1})
    assert not message_cleaner.plan(looser, policy(), as_of=AS_OF, ask=nothing_asked).asks
    assert message_cleaner.plan(replace(facts, accepted=None), policy(), as_of=AS_OF, ask=nothing_asked).asks


def test_plan_id_is_a_function_of_the_plan() -> None:
    store = stored(Log(batches=((one(1),),), seals=((),), consumers=(), partitions=1, segment_bytes=1), policy())
    assert planned(store, policy()).plan_id == planned(store, policy()).plan_id
    assert planned(store, policy()).plan_id != planned(store, policy(), as_of=Instant(AS_OF + 1)).plan_id


def test_no_two_plans_that_do_other_things_have_one_id() -> None:  # DEL-1
    """All that a plan names is in its id: else a person's word on one plan, or the gate's, would stand for another."""
    plan = plan_of(actions=(drop(0, 1), drop(2, 5)))
    first, second = plan.log_commit.drop
    others = [
        replace(plan, changes=()),
        replace(plan, changes=named(first)),
        replace(plan, changes=named(replace(first, last_offset=first.last_offset + 1), second)),
        replace(plan, selection=Selection(files=(*plan.selection.files, "another"))),
        replace(plan, expected=replace(plan.expected, rows_in=plan.expected.rows_in + 1)),
        replace(plan, requirements=replace(plan.requirements, snapshot_id=0)),
        replace(plan, requirements=replace(plan.requirements, heeded=("a hold",))),
        replace(plan, operation="retention"),
        replace(plan, asks=("?",)),
        replace(plan, parent="a plan"),
    ]
    assert len({other.plan_id for other in (plan, *others)}) == len(others) + 1
    with pytest.raises(AttributeError):
        plan.changes = ()  # type: ignore[misc]  # what was hashed stays what it is


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 3)), max_size=6), st.integers(0, 1), st.integers(0, 40))
def test_which_segments_go_whole_is_told_by_the_runs_that_name_them(runs: list[tuple[int, int, int]], partition: int, base: int) -> None:
    free: dict[int, int] = {}
    actions = []
    for at, gap, length in runs:  # runs of one partition do not overlap
        first = free.get(at, 0) + gap
        actions.append(replace(drop(first, first + length, partition=at), last_base=first + length))
        free[at] = first + length + 1
    plan = plan_of(actions=tuple(reversed(actions)))
    assert plan.drops(partition, base) is any(a.partition == partition and a.first_base <= base <= a.last_base for a in actions)


def test_files_of_a_segment_go_whole_together_or_not_at_all() -> None:  # EXP-4
    """Without both of them the segment is gone; without the one that shows its newest time it would look older than it is."""
    by = resolve(topic={"allow_msg_ttl": True}, server={"max_segments": 1})
    store = stored(Log(batches=((one(80), one(81)),), seals=((),), consumers=(), partitions=1, segment_bytes=1000), by)

    def due(file: str, offset: int) -> DueRows:
        return DueRows(
            partition=0,
            base_offset=0,
            file=file,
            reason="ttl",
            taken=str(offset),
            rows=1,
            first_offset=offset,
            last_offset=offset,
            since=AS_OF,
        )

    answer = RowAnswer(due=(due("newest", 1), due("older", 0)), whole={"newest": 1, "older": 1})
    plan = message_cleaner.plan(Facts(log=store.log(NAME), accepted=by.values), by, as_of=AS_OF, ask=lambda _: answer)
    assert [action.file for action in plan.log_commit.mark] == ["newest"]
    assert plan.selection.files == ()


def test_the_evidence_sees_single_messages_expire_above_a_segment_that_stays() -> None:  # EXP-5
    by = policy(segment_size_bytes=1, allow_msg_ttl=True)
    store = stored(Log(batches=((one(99), one(1), one(98)),), seals=((),), consumers=(), partitions=1, segment_bytes=1), by)
    made = planned(store, by)
    assert made.is_empty
    above = RemoveRows(partition=0, base_offset=1, file="0/1", offsets="1", rows=1, reason="expiry")
    wrong = replace(made, changes=named(above))
    assert store.evidence(wrong, store.stage(wrong), by)["order"] == [{"partition": 0, "segment": 1}]


@pytest.mark.parametrize(("rows", "going"), [(1, []), (0, [1])])
def test_a_segment_that_has_lost_its_last_message_holds_nothing(rows: int, going: list[int]) -> None:  # EXP-5, CLK-4
    """A table's file is there still, and says that a time is not known."""
    by = policy(segment_size_bytes=1)
    store = MemoryStore()
    store.create(NAME, partitions=1, settings={}, ledger=("test", 0))
    store.append(NAME, [one(None), one(1), one(float(AS_OF // SECOND))], by)
    log = store.log(NAME, latest_allowed_time=AS_OF)
    of_tables = replace(log, segments=(replace(log.segments[0], rows=rows), *log.segments[1:]))
    plan = message_cleaner.plan(Facts(log=of_tables, consumers=(), accepted=by.values), by, as_of=AS_OF, ask=nothing_asked)
    assert [run.first_base for run in plan.log_commit.drop] == going
