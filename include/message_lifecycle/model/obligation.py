"""What a topic's settings and requests oblige, and how late it is (OBL-1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.outcome import OutcomeName
from message_lifecycle.model.plan import Held, Operation

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
"""`refused`: more than half of a batch was refused, and nobody has seen to it. `unknown`: what an operation has to do could not be judged; nothing is well by that."""
ObligationState = Literal["late", "held", "due", "idle"]
"""`late`: a person must see it. `due`: a run can take it. `held`: somebody keeps all of it. `idle`: nothing is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What of one kind is due by facts and `as_of` alone: whether anything is enabled, scheduled or running has no part in it.

    `amount`: of `unit`s that nothing holds; `held`: the rest. `since`: when the first of it came due; None: the facts do not tell.
    `exact`: `since` is that very instant. Else it is no later, and a look that found nothing due proves that it came due after that look.
    `by_setting`: a setting asks for it, and a command or a schedule carries it out: it must be looked at also while nothing is due."""

    kind: ObligationKind
    amount: int = 0
    unit: str = "messages"
    since: Instant | None = None
    exact: bool = False
    held: tuple[Held, ...] = ()
    by_setting: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """When a run of an operation last looked at a topic, and when it last found nothing due there and nothing held; None: never."""

    looked_at: Instant | None
    settled_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligation:
    """One kind of what a topic obliges, as it stands. `problems`: why it makes the topic not ok, in words. `last_run`: when the operation
    last came to an outcome for the topic, and to which. `amount` None: nobody counts it."""

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
    """How much of `amount` is due for longer than `max_overdue` allows. The topic is not ok then."""

    @property
    def state(self) -> ObligationState:
        if self.problems:
            return "late"
        if self.amount != 0:
            return "due"
        return "held" if self.held else "idle"


OF_TOPIC = ""
"""In place of an operation: a look at the topic itself."""


def spares(held: Held) -> bool:
    """Whether a person keeps it on purpose, and says so by name: a legal hold, or an undone plan that nobody has released (DEL-7, DEL-8)."""
    return held.holder in get_args(SparedBy)


def judged(
    owed: Owed,
    *,
    operation: Operation,
    look: Look,
    last_run: tuple[Instant, OutcomeName] | None,
    bound_us: int,
    stands_since: Instant | None,
    now: Instant,
) -> Obligation:
    """The obligation, with what is wrong with it. `bound_us`: microseconds that it may be due before that is told (`max_overdue`);
    `stands_since`: when the topic was made, or its settings were last altered: before that no run could have come for them."""

    def is_late(since: Instant) -> bool:
        return now - max(since, stands_since or since) > bound_us

    since = owed.since
    if not owed.exact and look.settled_at is not None:
        since = look.settled_at if since is None else max(since, look.settled_at)
    problems, times = [], []
    is_overdue = bool(owed.amount) and since is not None and is_late(since)
    if is_overdue:
        ran = (
            "no run has come to an end for it yet"
            if last_run is None
            else f"the last run ended as {last_run[1]}, {format_instant(last_run[0])}"
        )
        problems.append(f"{owed.kind}: {owed.amount:,} {owed.unit} due since {format_instant(since)}, and {ran}")
    for held in owed.held:
        held_since = since if held.overdue_since is None else held.overdue_since
        times += [] if held_since is None else [held_since]
        if held_since is not None and is_late(held_since) and not spares(held):
            problems.append(
                f"{owed.kind}: {held.rows:,} {owed.unit} due since {format_instant(held_since)} are held ({held.holder}): {held.detail}"
            )
    if owed.by_setting and look.looked_at is None:
        problems.append(
            f"{owed.kind}: no run of {operation} has looked at the topic yet, and the ledger does not know since when it stands"
        )
    elif owed.by_setting and look.looked_at is not None and now - look.looked_at > bound_us:
        problems.append(
            f"{owed.kind}: no run of {operation} has looked at the topic since {format_instant(look.looked_at)}: is its DAG paused, or no scheduler running?"
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
