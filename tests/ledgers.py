"""Values for ledger tests: plans and their later records, a clock that stands still, and strategies for every kind of record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from message_lifecycle.ledger import Ledger
from message_lifecycle.model.change import DropSegments, RemoveRows, SealSegment
from message_lifecycle.model.document import OwnChanges, Synced
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, Check, GateReport, Outcome, OutcomeName, Staged
from message_lifecycle.model.plan import Bound, Expected, Held, Plan, Requirements, Selection
from tests.changes import Part, named

TOPIC = TopicName(stream="shop", topic="orders")
OTHER = TopicName(stream="shop", topic="returns")
AS_OF = Instant(1_700_000_000_000_000)


@dataclass(slots=True)
class StandingClock:
    """Time passes when a test says so. Microseconds."""

    now: Instant = AS_OF

    def __call__(self) -> Instant:
        return self.now

    def pass_us(self, micros: int) -> None:
        self.now = Instant(self.now + micros)


def alter(ledger: Ledger, topic: TopicName = TOPIC, **changes: Mapping[str, Any]) -> None:
    """Settings below the topic's, whatever they are together. `changes`: as in `OwnChanges`."""
    ledger.alter_own_settings(topic, OwnChanges(**changes), check=lambda _: None)


def place(ledger: Ledger, topic: TopicName, entry: Synced) -> None:
    """Set a client's progress, whatever the ledger has for the client."""
    ledger.detach(topic, entry.document, entry.client)
    assert ledger.replace_synced(topic, entry.document, entry.client, seen=None, to=entry)


def drop(first: int, last: int, *, partition: int = 0) -> DropSegments:
    return DropSegments(
        partition=partition,
        first_base=first,
        last_base=first,
        last_offset=last,
        segments=1,
        rows=last - first + 1,
        size_bytes=10,
        newest_at=Instant(1),
    )


def plan_of(
    topic: TopicName = TOPIC, *, as_of: int = AS_OF, actions: tuple[Part, ...] | None = None, files: tuple[str, ...] = ("a.parquet",)
) -> Plan:
    actions = (drop(0, 99),) if actions is None else actions
    return Plan(
        operation="message_cleaner",
        topic=topic,
        as_of=Instant(as_of),
        policy=(("approval_ttl", 86_400), ("message_expiry", 10)),
        requirements=Requirements(table_uuid="t", snapshot_id=1, end_offsets=((0, 500),), policy_hash="p", code_version="0"),
        bounds=(),
        changes=named(*actions),
        selection=Selection(files=files),
        expected=Expected(rows_in=500, removed=(("expiry", 100),), removed_bytes=10, bytes_in=50, segments=1),
        held=(),
        warnings=(),
        asks=(),
        more=False,
        due_since=None,
        next_due_at=None,
    )


def staged_of(plan: Plan, *, snapshot_id: int = 2) -> Staged:
    return Staged(plan_id=plan.plan_id, branch="b", snapshot_id=snapshot_id)


def report_of(plan: Plan, *, asks: bool = False, snapshot_id: int = 2) -> GateReport:
    checks = (
        Check(id="rule", says="a rule", kind="rule", evaluated=True, passed=True, found="as it should be"),
        Check(id="limit", says="a limit", kind="limit", evaluated=True, passed=not asks, found="much"),
    )
    return GateReport(plan_id=plan.plan_id, staged_snapshot_id=snapshot_id, declared=2, checks=checks, figures=(("rows", 1),))


def approval_of(plan: Plan, *, granted: bool = True, by: str = "ada", text: str = "fine", at: int = AS_OF) -> Approval:
    return Approval(plan_id=plan.plan_id, granted=granted, by=by, at=Instant(at), text=text)


def outcome_of(plan: Plan, name: OutcomeName = "published", *, detail: str = "") -> Outcome:
    return Outcome(
        name=name,
        operation=plan.operation,
        topic=plan.topic,
        as_of=plan.as_of,
        plan_id=plan.plan_id,
        removed=(("expiry", 100),),
        detail=detail,
    )


def idle_outcome(topic: TopicName = TOPIC, *, name: OutcomeName = "no_op", detail: str = "nothing is due") -> Outcome:
    return Outcome(name=name, operation="message_cleaner", topic=topic, as_of=AS_OF, detail=detail)


# Strategies: every field of everything that is recorded, at its edges.

_texts = st.text(max_size=12)
_int64 = st.integers(INT64_MIN, INT64_MAX)
_offsets = st.integers(0, INT64_MAX)
_instants = _int64.map(Instant)
_values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), _texts, st.none())
_counts = st.lists(st.tuples(_texts, _offsets), max_size=3).map(tuple)
topic_names = st.builds(TopicName, stream=_texts, topic=_texts)

actions = st.one_of(
    st.builds(SealSegment, partition=_offsets, base_offset=_offsets, next_offset=_offsets),
    st.builds(
        DropSegments,
        partition=_offsets, first_base=_offsets, last_base=_offsets, last_offset=_offsets, segments=_offsets, rows=_offsets,
        size_bytes=_offsets, newest_at=_instants,
    ),
    st.builds(
        RemoveRows,
        partition=_offsets, base_offset=_offsets, file=_texts, rows=_offsets,
        offsets=st.sets(_offsets, min_size=1, max_size=3).map(lambda offsets: ranges_text(sorted(offsets))),
        reason=st.sampled_from(["expiry", "ttl", "retention_age"]),
    ),
)  # fmt: skip

helds = st.builds(
    Held,
    partition=_offsets,
    first_base=_offsets,
    last_offset=_offsets,
    rows=_offsets,
    overdue_since=st.none() | _instants,
    holder=st.sampled_from(["consumer", "budget", "earlier_segment", "unknown_time", "active_segment", "open_approval"]),
    detail=_texts,
    reason=st.sampled_from(["expiry", "ttl", "retention_age"]),
)

plans = st.builds(
    Plan,
    operation=st.just("message_cleaner"),
    topic=topic_names,
    as_of=_instants,
    policy=st.lists(st.tuples(_texts, _values), max_size=4).map(tuple),
    requirements=st.builds(
        Requirements,
        table_uuid=_texts,
        snapshot_id=st.none() | _int64,
        end_offsets=st.lists(st.tuples(_offsets, _offsets), max_size=2).map(tuple),
        policy_hash=_texts,
        code_version=_texts,
    ),
    bounds=st.lists(st.builds(Bound, name=_texts, partition=_offsets, offset=st.none() | _offsets, reason=_texts), max_size=2).map(tuple),
    changes=st.lists(actions, max_size=4).map(lambda parts: named(*parts)),
    selection=st.builds(Selection, files=st.lists(_texts, max_size=4).map(tuple)),
    expected=st.builds(
        Expected, rows_in=_offsets, removed=_counts, removed_bytes=st.none() | _offsets, bytes_in=st.none() | _offsets, segments=_offsets
    ),
    held=st.lists(helds, max_size=2).map(tuple),
    warnings=st.lists(_texts, max_size=2).map(tuple),
    asks=st.lists(_texts, max_size=2).map(tuple),
    more=st.booleans(),
    due_since=st.none() | _instants,
    next_due_at=st.none() | _instants,
    parent=st.none() | _texts,
)

recorded = st.one_of(
    st.builds(Staged, plan_id=_texts, branch=st.none() | _texts, snapshot_id=st.none() | _int64),
    st.builds(
        GateReport,
        plan_id=_texts,
        staged_snapshot_id=st.none() | _int64,
        declared=_offsets,
        checks=st.lists(
            st.builds(
                Check,
                id=_texts,
                says=_texts,
                kind=st.sampled_from(["rule", "limit"]),
                evaluated=st.booleans(),
                passed=st.booleans(),
                found=_texts,
            ),
            max_size=2,
        ).map(tuple),
        figures=st.lists(st.tuples(_texts, st.none() | _int64 | st.floats(allow_nan=False, allow_infinity=False)), max_size=3).map(tuple),
    ),
    st.builds(Approval, plan_id=_texts, granted=st.booleans(), by=_texts, at=_instants, text=_texts),
    st.builds(
        Outcome,
        name=st.sampled_from(["published", "no_op", "blocked", "needs_approval", "refused", "starved", "lapsed", "superseded", "failed"]),
        operation=st.just("message_cleaner"),
        topic=topic_names,
        as_of=_instants,
        plan_id=st.none() | _texts,
        snapshot_id=st.none() | _int64,
        removed=_counts,
        rows_in=st.none() | _offsets,
        rows_kept=st.none() | _offsets,
        removed_bytes=st.none() | _offsets,
        more=st.booleans(),
        held=st.lists(helds, max_size=2).map(tuple),
        warnings=st.lists(_texts, max_size=2).map(tuple),
        detail=_texts,
        first_plan_id=st.none() | _texts,
    ),
)
