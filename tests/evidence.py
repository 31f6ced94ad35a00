"""A plan of the message cleaner with evidence that bears it out, and every way to break one thing of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from message_lifecycle.model.change import DropSegments, RemoveRows
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Judgement, Staged, StagedMarkers
from message_lifecycle.model.plan import Expected, Held, Plan, Requirements, Selection
from message_lifecycle.model.reasons import cleaner_reasons
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import BY_NAME, Policy, resolve
from tests.changes import named

SECOND = 1_000_000
AS_OF = Instant(1_000 * SECOND)
EXPIRY_SECONDS = 100
DEAD_AT = AS_OF - EXPIRY_SECONDS * SECOND
"""The newest append_time that is dead at AS_OF."""

Row = dict[str, Any]
Evidence = dict[str, list[Row]]

SCHEMAS: Mapping[str, str] = {
    "going": "partition int, segment long, rows long, first_offset long, last_offset long, newest_at long, any_kept boolean, active boolean, planned boolean",
    "rows": "partition int, segment long, rows long, unnamed long, unjustified long, active boolean",
    "purged": "keys long, keyless long",
    "difference": "name string, how string",
    "order": "partition int, segment long",
    "markers": "emptied boolean, single boolean, caused boolean, formed boolean",
    "unmarked": "partition int",
    "marked": "rows long, as_made boolean",
    "sample": "partition int, segment long, offset long, append_time long, too_young boolean, outside_bounds boolean",
    "left": "partition int, base_offset long, last_offset long, rows long, named boolean",
    "limits": "most_records long, most_bytes long, within long, beyond long",
    "figures": "rows_in long, rows_removed long, rows_kept long, bytes_in long, bytes_removed long, fraction_rows double, fraction_bytes double, asks int",
}


def policy(**values: Value) -> Policy:
    server = {name: value for name, value in values.items() if not BY_NAME[name].on_topic}
    topic = {name: value for name, value in values.items() if BY_NAME[name].on_topic}
    return resolve(topic={"message_expiry": EXPIRY_SECONDS, **topic}, server=server)


POLICY = policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The arguments of a gate."""

    plan: Plan
    staged: Staged
    policy: Policy
    evidence: Evidence


def good() -> Case:
    """100 messages: four segments go (38 messages), two are held (20), the others are not overdue (42)."""
    drops = (
        DropSegments(
            partition=0, first_base=0, last_base=20, last_offset=29, segments=3, rows=30, size_bytes=300, newest_at=Instant(DEAD_AT)
        ),
        DropSegments(partition=1, first_base=0, last_base=0, last_offset=9, segments=1, rows=8, size_bytes=10, newest_at=Instant(DEAD_AT)),
    )
    held = Held(partition=1, first_base=10, last_offset=29, rows=20, overdue_since=Instant(5), holder="consumer", detail="consumer c")
    plan = Plan(
        operation="message_cleaner",
        topic=TopicName(stream="test", topic="messages"),
        as_of=AS_OF,
        policy=tuple(sorted(POLICY.values.items())),
        requirements=Requirements(table_uuid="u", snapshot_id=1, end_offsets=((0, 60), (1, 40)), policy_hash=POLICY.hash, code_version="0"),
        bounds=(),
        changes=named(*drops),
        selection=Selection(files=("a", "b", "c", "d")),
        expected=Expected(rows_in=100, removed=(("expiry", 38),), removed_bytes=310, bytes_in=1000, segments=4),
        held=(held,),
        warnings=(),
        asks=(),
        more=False,
        due_since=None,
        next_due_at=None,
        reasons=cleaner_reasons(),
    )
    going: list[Row] = [
        {"partition": 0, "segment": base, "rows": 10, "first_offset": base, "last_offset": base + 9, "newest_at": DEAD_AT - base}
        for base in (0, 10, 20)
    ]
    going.append({"partition": 1, "segment": 0, "rows": 8, "first_offset": 0, "last_offset": 9, "newest_at": DEAD_AT})
    for row in going:
        row |= {"any_kept": False, "active": False, "planned": True}
    sample: list[Row] = [
        {"partition": 0, "segment": 0, "offset": offset, "append_time": 7, "too_young": False, "outside_bounds": False}
        for offset in range(3)
    ]
    evidence: Evidence = {
        "going": going,
        "rows": [],
        "difference": [],
        "order": [],
        "markers": [],
        "unmarked": [],
        "marked": [],
        "sample": sample,
        "left": [{"partition": 1, "base_offset": base, "last_offset": base + 9, "rows": 10, "named": True} for base in (10, 20)],
        "figures": [
            {
                "rows_in": 100,
                "rows_removed": 38,
                "rows_kept": 62,
                "bytes_in": 1000,
                "bytes_removed": 310,
                "fraction_rows": 0.38,
                "fraction_bytes": 0.31,
                "asks": 0,
            }
        ],
    }
    return Case(plan=plan, staged=Staged(plan_id=plan.plan_id, branch="b", snapshot_id=2), policy=POLICY, evidence=evidence)


def by_row(*, files: int = 1) -> Case:
    """The fourth segment does not go whole: `files` of its files lose all but two messages, by row."""
    base = good()
    rows = [8 - (files - 1), *([1] * (files - 1))]
    removals = tuple(
        RemoveRows(partition=1, base_offset=0, file=f"d{n}", offsets="0-7", rows=count, reason="ttl") for n, count in enumerate(rows)
    )
    plan = replace(base.plan, changes=named(base.plan.log_commit.drop[0], *removals), selection=Selection(files=("a", "b", "c")))
    plan = replace(plan, expected=replace(plan.expected, removed=(("expiry", 30), ("ttl", 8)), removed_bytes=300))
    evidence = deepcopy(base.evidence)
    evidence["going"].pop()
    evidence["rows"] = [{"partition": 1, "segment": 0, "rows": count, "unnamed": 0, "unjustified": 0, "active": False} for count in rows]
    return Case(plan=plan, staged=replace(base.staged, plan_id=plan.plan_id), policy=base.policy, evidence=evidence)


MARKER: Row = {"emptied": True, "single": True, "caused": True, "formed": True}


def purged() -> Case:
    """As `good`, but that a person has asked for all messages of a key: eight of two files."""
    base = by_row(files=2)
    removals = tuple(replace(action, reason="purged") for action in base.plan.log_commit.mark)
    plan = replace(
        base.plan,
        operation="message_request",
        reasons=("removed", "purged"),
        changes=named(*removals),
        selection=Selection(),
        expected=replace(base.plan.expected, removed=(("purged", 8),), removed_bytes=0, segments=0),
        held=(),
    )
    evidence = deepcopy(base.evidence) | {"going": [], "sample": [], "left": [], "purged": [{"keys": 1, "keyless": 0}]}
    evidence["figures"][0] |= {"rows_removed": 8, "rows_kept": 92, "bytes_removed": 0, "fraction_rows": 0.08, "fraction_bytes": 0.0}
    return Case(plan=plan, staged=replace(base.staged, plan_id=plan.plan_id), policy=base.policy, evidence=evidence)


def marked() -> Case:
    """As `good`, on a topic that makes markers: two keys are emptied."""
    base = good()
    with_markers = policy(subject_delete_marker_ttl=60, allow_msg_ttl=True)
    plan = replace(
        base.plan,
        policy=tuple(sorted(with_markers.values.items())),
        requirements=replace(base.plan.requirements, policy_hash=with_markers.hash),
    )
    evidence = base.evidence | {"markers": [dict(MARKER), dict(MARKER)], "marked": [{"rows": 2, "as_made": True}]}
    staged = replace(base.staged, plan_id=plan.plan_id, markers=StagedMarkers(count=2, digest="d"))
    return Case(plan=plan, staged=staged, policy=with_markers, evidence=evidence)


def nothing_goes(*, with_policy: Policy = POLICY) -> Case:
    """An empty plan over the same log, none of it overdue."""
    base = good()
    plan = replace(
        base.plan,
        requirements=replace(base.plan.requirements, policy_hash=with_policy.hash),
        changes=(),
        selection=Selection(),
        expected=Expected(rows_in=100, removed=(), removed_bytes=0, bytes_in=1000, segments=0),
        held=(),
    )
    figures = base.evidence["figures"][0] | {
        "rows_removed": 0, "rows_kept": 100, "bytes_removed": 0, "fraction_rows": 0.0, "fraction_bytes": 0.0
    }  # fmt: skip
    evidence: Evidence = {
        "going": [],
        "rows": [],
        "difference": [],
        "order": [],
        "sample": [],
        "left": [],
        "figures": [figures],
        "markers": [],
        "unmarked": [],
        "marked": [],
    }
    return Case(plan=plan, staged=Staged(plan_id=plan.plan_id, branch=None, snapshot_id=1), policy=with_policy, evidence=evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """One thing made wrong, the checks that must see it (no others may), and the judgement."""

    name: str
    fails: frozenset[str]
    judgement: Judgement
    change: Callable[[Case], Case]

    @property
    def case(self) -> Case:
        return self.change(good())


def cell(frame: str, column: str, value: object, *, row: int = 0) -> Callable[[Case], Case]:
    """Good evidence with one cell changed."""

    def change(case: Case) -> Case:
        evidence = deepcopy(case.evidence)
        evidence[frame][row][column] = value
        return replace(case, evidence=evidence)

    return change


def extra(frame: str, row: Row) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        evidence = deepcopy(case.evidence)
        evidence[frame].append(row)
        return replace(case, evidence=evidence)

    return change


def without(frame: str, *, rows: int | None = None) -> Callable[[Case], Case]:
    """The last `rows` rows of a frame gone; None: all of them."""

    def change(case: Case) -> Case:
        kept = [] if rows is None else case.evidence[frame][:-rows]
        return replace(case, evidence=case.evidence | {frame: kept})

    return change


def replanned(**changes: Any) -> Callable[[Case], Case]:
    """Good evidence for a plan that is not quite this one."""

    def change(case: Case) -> Case:
        plan = replace(case.plan, **changes)
        return replace(case, plan=plan, staged=replace(case.staged, plan_id=plan.plan_id))

    return change


def under(**values: Value) -> Callable[[Case], Case]:
    """The same plan, made and judged under other settings."""

    def change(case: Case) -> Case:
        other = policy(**values)
        required = replace(case.plan.requirements, policy_hash=other.hash)
        return replace(replanned(requirements=required)(case), policy=other)

    return change


def both(first: Callable[[Case], Case], second: Callable[[Case], Case]) -> Callable[[Case], Case]:
    return lambda case: second(first(case))


def _emptied(case: Case) -> Case:
    """Change the case so that it removes all 100 messages, within the limits on shares."""
    wide = under(max_removed_fraction=1.0)(case)
    expected = replace(wide.plan.expected, removed=(("expiry", 100),), removed_bytes=1000)
    first, *others = wide.plan.log_commit.drop
    evidence = deepcopy(wide.evidence)
    evidence["going"][0]["rows"] = 72
    evidence["figures"][0] |= {"rows_removed": 100, "rows_kept": 0, "bytes_removed": 1000, "fraction_rows": 1.0, "fraction_bytes": 1.0}
    return replace(replanned(expected=expected, changes=named(replace(first, rows=92), *others))(wide), evidence=evidence)


def _looked_for(case: Case) -> Case:
    marks = StagedMarkers(count=0, digest="")
    evidence = case.evidence | {"marked": [{"rows": 0, "as_made": True}]}
    return replace(case, staged=replace(case.staged, markers=marks), evidence=evidence)


def _nan(column: str) -> Callable[[Case], Case]:
    return cell("figures", column, float("nan"))


GONE: Row = {
    "partition": 0, "segment": 30, "rows": 0, "first_offset": 30, "last_offset": 39, "newest_at": 1, "any_kept": False, "active": False, "planned": True
}  # fmt: skip


def _breakage(name: str, fails: str, judgement: Judgement, change: Callable[[Case], Case]) -> Breakage:
    return Breakage(name=name, fails=frozenset(fails.split()), judgement=judgement, change=change)


BREAKAGES: tuple[Breakage, ...] = (
    _breakage("one file more goes", "going", "blocked", extra("going", GONE)),
    _breakage("one file less goes", "going going_rows", "blocked", without("going", rows=1)),
    _breakage("nothing goes though rows are planned", "going going_rows going_expired going_kept going_active going_planned", "blocked", without("going")),
    _breakage("a file holds one message more", "going_rows", "blocked", cell("going", "rows", 11)),
    _breakage("a file's messages are not counted", "going_rows", "blocked", cell("going", "rows", None)),
    _breakage("a microsecond too young", "going_expired", "blocked", cell("going", "newest_at", DEAD_AT + 1, row=3)),
    _breakage("a newest time unknown", "going_expired", "blocked", cell("going", "newest_at", None, row=2)),
    _breakage("a message that never expires goes", "going_kept", "blocked", cell("going", "any_kept", True, row=3)),
    _breakage("whether any never expires is unknown", "going_kept", "blocked", cell("going", "any_kept", None)),
    _breakage("a file of the active segment goes", "going_active", "blocked", cell("going", "active", True)),
    _breakage("whether it is active is unknown", "going_active", "blocked", cell("going", "active", None)),
    _breakage("a file goes that the plan does not name", "going_planned", "blocked", cell("going", "planned", False)),
    _breakage("whether it is planned is unknown", "going_planned", "blocked", cell("going", "planned", None, row=1)),
    _breakage("single messages go that nobody planned", "rows", "blocked", extra("rows", {"partition": 0, "segment": 50, "rows": 1, "unnamed": 1, "unjustified": 0, "active": False})),
    _breakage("a marker where none is made", "markers", "blocked", extra("markers", MARKER)),
    _breakage("a key emptied without a marker", "unmarked", "blocked", extra("unmarked", {"partition": 0})),
    _breakage("markers are told of where none are made", "marked", "blocked", extra("marked", {"rows": 0, "as_made": True})),
    _breakage("markers were looked for where none are made", "markers_looked_for marked", "blocked", _looked_for),
    _breakage("another file differs", "difference", "blocked", extra("difference", {"name": "d", "how": "gone"})),
    _breakage("a hole in the log", "order", "blocked", extra("order", {"partition": 0, "segment": 50})),
    _breakage("nothing was sampled", "sample sample_expired sample_bounds", "blocked", without("sample")),
    _breakage("a sampled message is too young", "sample_expired", "blocked", cell("sample", "too_young", True, row=2)),
    _breakage("a sampled message's age is unknown", "sample_expired", "blocked", cell("sample", "too_young", None)),
    _breakage("a sampled message is outside its bounds", "sample_bounds", "blocked", cell("sample", "outside_bounds", True)),
    _breakage("an overdue segment without a holder", "left_named", "blocked", cell("left", "named", False, row=1)),
    _breakage("a holder unknown", "left_named", "blocked", cell("left", "named", None)),
    _breakage("an overdue segment is missing", "left_rows", "blocked", without("left", rows=1)),
    _breakage("overdue segments are said to be held, and there are none", "left left_rows left_named", "blocked", without("left")),
    _breakage("no figures", "figures rows_in rows_removed rows_kept fraction_rows fraction_bytes asks much_rows much_bytes emptied tightened", "blocked", without("figures")),
    _breakage("the log had other rows", "rows_in", "blocked", cell("figures", "rows_in", 101)),
    _breakage("fewer rows went", "rows_removed", "blocked", cell("figures", "rows_removed", 37)),
    _breakage("a kept row is missing", "rows_kept", "blocked", cell("figures", "rows_kept", 61)),
    _breakage("kept rows unknown", "rows_kept emptied", "blocked", cell("figures", "rows_kept", None)),
    _breakage("the share was divided as whole numbers", "fraction_rows", "blocked", cell("figures", "fraction_rows", 0.0)),
    _breakage("the share of rows is not a number", "fraction_rows much_rows", "blocked", _nan("fraction_rows")),
    _breakage("the share of bytes is too small to be true", "fraction_bytes", "blocked", cell("figures", "fraction_bytes", 0.2)),
    _breakage("the share of bytes is not a number", "fraction_bytes much_bytes", "blocked", _nan("fraction_bytes")),
    _breakage("the share of bytes is unknown", "fraction_bytes much_bytes", "blocked", cell("figures", "fraction_bytes", None)),
    _breakage("too large a share of bytes", "much_bytes", "needs_approval", cell("figures", "fraction_bytes", 0.51)),
    _breakage("both shares above the limit", "much_rows much_bytes", "needs_approval", under(max_removed_fraction=0.3)),
    _breakage("the share of rows above the limit", "much_rows", "needs_approval", under(max_removed_fraction=0.37)),
    _breakage("the log is emptied", "emptied", "needs_approval", _emptied),
    _breakage("a setting was tightened", "tightened", "needs_approval", both(cell("figures", "asks", 1), replanned(asks=("tightened: message_expiry",)))),
    _breakage("the plan asks and the evidence does not", "asks", "blocked", replanned(asks=("tightened: message_expiry",))),
    _breakage("questions unknown", "asks tightened", "blocked", cell("figures", "asks", None)),
    _breakage("other settings than planned", "policy", "blocked", lambda case: replace(case, policy=policy(undo_window=1))),
    _breakage("nothing may expire at all", "going", "blocked", under(message_expiry=0)),
    _breakage("the plan overlooks what is overdue", "left", "blocked", replanned(held=())),
)  # fmt: skip
