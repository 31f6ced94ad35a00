"""The obligations of a topic, from its settings and requests, and their delay (OBL-1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.outcome import OutcomeName
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Held, Holder, Operation

ObligationKind = Literal[
    "expiry",
    "ttl",
    "limits",
    "purge",
    "compaction",
    "documents",
    "quarantine",
    "reclaim",
    "markers",
    "erasure",
    "question",
    "refused",
    "unknown",
]
"""The kinds of obligations.

`refused`: more than half of a batch was refused, and nobody has resolved the refused rows. `unknown`: the work of an operation could
not be judged, so the topic is not ok.
"""
ObligationState = Literal["late", "held", "due", "idle"]
"""`late`: a person must act. `due`: a run can do the work. `held`: holders keep every due message. `idle`: no work is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """The due work of one kind, from facts and `as_of` alone. Enabled, scheduled or running operations make no difference.

    Attributes:
        amount: The number of units that nothing holds.
        held: The remaining units.
        since: When the first unit became due. None: the facts do not say.
        exact: `since` is the exact instant. Otherwise `since` may be too early. If an earlier look found nothing due, the work became due
            after that look.
        by_setting: A setting asks for the work, and a command or a schedule does it. A run must look at the topic even while nothing is
            due.
    """

    kind: ObligationKind
    amount: int = 0
    unit: str = "messages"
    since: Instant | None = None
    exact: bool = False
    held: tuple[Held, ...] = ()
    by_setting: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """When a run of an operation last looked at a topic, and when it last found nothing due and nothing held. None: never."""

    looked_at: Instant | None
    settled_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligation:
    """One kind of obligation of a topic, now.

    Attributes:
        amount: None: nobody counts it.
        last_run: When the operation last reached an outcome for the topic, and the outcome.
        problems: Why the topic is not ok, in words.
    """

    kind: ObligationKind
    operation: Operation
    amount: int | None
    unit: str
    due_since: Instant | None
    held: tuple[Held, ...]
    last_run: tuple[Instant, OutcomeName] | None
    looked_at: Instant | None
    problems: tuple[str, ...]
    overdue: int = 0
    """The part of `amount` that is due for longer than `max_overdue` allows. The topic is not ok then."""

    @property
    def state(self) -> ObligationState:
        if self.problems:
            return "late"
        if self.amount != 0:
            return "due"
        return "held" if self.held else "idle"


OF_TOPIC = ""
"""Stands in place of an operation for a look at the topic itself."""


def is_kept_by_person(held: Held) -> bool:
    """Return True if a person keeps the messages on purpose: a legal hold, or an undone plan that nobody has released (DEL-7, DEL-8)."""
    return held.holder in get_args(SparedBy)


def judge(
    owed: Owed,
    *,
    operation: Operation,
    look: Look,
    last_run: tuple[Instant, OutcomeName] | None,
    bound_us: int,
    stands_since: Instant | None,
    now: Instant,
) -> Obligation:
    """Return the obligation with its problems.

    Args:
        owed: The work that is due.
        operation: The operation that does the work.
        look: When a run last checked the topic, and when nothing was due.
        last_run: The time and the outcome of the last run.
        bound_us: How long work may be due before it is a problem (`max_overdue`), in microseconds.
        stands_since: When the topic was made or its settings last changed. No run could have come for the work before that.
        now: The present time.
    """

    def is_late(since: Instant) -> bool:
        return now - max(since, stands_since or since) > bound_us

    since = owed.since
    if not owed.exact and look.settled_at is not None:
        since = look.settled_at if since is None else max(since, look.settled_at)
    problems, times = [], []
    is_overdue = bool(owed.amount) and since is not None and is_late(since)
    if is_overdue:
        ran = "no run has ended yet" if last_run is None else f"the last run ended as {last_run[1]} at {format_to_second(last_run[0])}"
        problems.append(f"{owed.kind}: {amount(owed.amount, owed.unit)} due since {format_to_second(since)}. {ran[0].upper()}{ran[1:]}")
    late: dict[tuple[Holder, str], tuple[int, Instant]] = {}
    for held in owed.held:
        held_since = since if held.overdue_since is None else held.overdue_since
        times += [] if held_since is None else [held_since]
        if held_since is not None and is_late(held_since) and not is_kept_by_person(held):
            rows, first = late.get((held.holder, held.detail), (0, held_since))
            late[held.holder, held.detail] = rows + held.rows, min(first, held_since)
    for (holder, detail), (rows, first) in late.items():
        problems.append(f"{owed.kind}: {amount(rows, owed.unit)} due since {format_to_second(first)}, on hold ({holder}): {detail}")
    if owed.by_setting and look.looked_at is None:
        problems.append(f"{owed.kind}: no run of {operation} has checked the topic yet")
    elif owed.by_setting and look.looked_at is not None and now - look.looked_at > bound_us:
        problems.append(
            f"{owed.kind}: no run of {operation} since {format_to_second(look.looked_at)}. Check that its DAG is not paused, and that a scheduler runs"
        )
    return Obligation(
        kind=owed.kind,
        operation=operation,
        amount=owed.amount,
        unit=owed.unit,
        due_since=min([*([since] if owed.amount and since is not None else []), *times], default=None),
        held=owed.held,
        last_run=last_run,
        looked_at=look.looked_at,
        problems=tuple(problems),
        overdue=owed.amount if is_overdue else 0,
    )
