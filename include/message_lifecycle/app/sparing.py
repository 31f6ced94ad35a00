"""The readers, legal holds and undone plans that keep messages of a topic (DEL-7, DEL-8), and the one check that every publish passes.

A plan names the holds that it heeds. Adding a hold takes the topic's lock and so waits for a publish in flight. Publishing takes the same
lock and refuses a plan that does not know every current hold. The gate reads the holds a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, assert_never

from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.services import find_topic
from message_lifecycle.model.change import Rows
from message_lifecycle.model.errors import HeldByLegalHold, PlanConflict
from message_lifecycle.model.facts import Facts, LogState, Progress
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold, Spared, SparedOffsets, What
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import Tail, ViewState, offsets_of, parse_ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Staged
from message_lifecycle.model.phrases import short
from message_lifecycle.model.plan import Held, Operation, Plan
from message_lifecycle.model.request import PurgeKey, RemoveMessages, Request, TruncateLog
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import QUARANTINE, Undone
from message_lifecycle.operations import compaction
from message_lifecycle.operations.expiry import READER

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def readers_of(s: Services, name: TopicName) -> list[Progress]:
    """Return the readers of the topic: consumers, the store's own groups, replicas, and compaction if there is a view.

    Compaction never falls silent.
    """
    own = () if s.groups is None else s.groups.progress(name)
    return [*s.ledger.consumers(name), *own, *_compaction(s.view_of(name))]


def _compaction(view: ViewState | None) -> list[Progress]:
    # Partitions without a horizon lose nothing, because a reader has read nothing of a partition that it does not name.
    horizons = {} if view is None else view.horizons
    return [Progress(consumer=READER, partition=p, offset=offset, at=None, kind="compaction") for p, offset in sorted(horizons.items())]


def horizons_of(s: Services, name: TopicName) -> Mapping[int, int]:
    """Return the last compacted offset of each partition, NOTHING before the first compaction. Empty: the topic has no view."""
    view = s.view_of(name)
    return {} if view is None else view.horizons


# Messages that no rule may remove


def facts_with_spared(s: Services, facts: Facts, view: ViewState | None = None) -> Facts:
    """Return the facts with the current holds, and the messages of the log (and of `view`) that holds and undone plans keep."""
    holds = holds_of(s, facts.log.topic)
    of_view = () if view is None else spared_in_view(s, facts.log, view, holds)
    kept = (*spared_of(s, facts.log, holds), *of_view, *spared_by_undo(s, facts.log.topic))
    return replace(facts, spared=kept, heeded=ids_of(holds))


def spared_of(s: Services, log: LogState, holds: Sequence[Hold]) -> tuple[Spared, ...]:
    """Return the messages of the log that must stay. A held key covers its messages at the log's snapshot."""
    return tuple(spared for hold in holds for spared in _spared_in_log(s, log, hold))


def spared_in_view(s: Services, log: LogState, view: ViewState, holds: Sequence[Hold]) -> tuple[Spared, ...]:
    """Return the messages of the compacted view that must stay. The view may hold the last copy of a held message."""
    found: list[Spared] = []
    for hold in holds:
        if isinstance(hold.what, HeldKey):
            found += (_spared(hold, partition, offset, offset) for partition, offset, _ in places_of_key(s, log.topic, view, hold.what))
        else:
            found += _spared_in_log(s, log, hold)
    return tuple(found)


def spared_by_undo(s: Services, name: TopicName) -> tuple[Spared, ...]:
    """Return the messages that an undo restored and nobody has released (DEL-7)."""
    return tuple(
        Spared(
            partition=partition,
            first=first,
            last=last,
            holder="undone_plan",
            name=known.plan_id,
            detail=undone_detail(known),
        )
        for known in s.ledger.undone(name)
        if known.released_at is None
        for partition, first, last in known.ranges
        if partition != QUARANTINE
    )


def undone_detail(known: Undone) -> str:
    """Return why the messages stay, and how a person releases them."""
    return (
        f"removed by plan {short(known.plan_id)}, restored by plan {short(known.undone_by)}. Release them: "
        f"`lifecycle undo {short(known.plan_id)} --release --by NAME --why WHY`"
    )


def _spared_in_log(s: Services, log: LogState, hold: Hold) -> Iterator[Spared]:
    match hold.what:
        case HeldTopic():
            for partition in sorted(log.end_offsets):
                yield _spared(hold, partition, 0, None)
        case HeldRange(partition=partition, first=first, last=last):
            yield _spared(hold, partition, first, last)
        case HeldKey(key=key):
            assert key is not None, "the ledger keeps the key for as long as its hold stands"
            for entry in s.reader.find_requested_rows(log, PurgeKey(key=key), as_of=Instant(0)).due:
                for run in parse_ranges_text(entry.taken):
                    yield _spared(hold, entry.partition, run.start, run.stop - 1)
        case never:
            assert_never(never)


def messages_held(s: Services, hold: Hold) -> int | None:
    """Return the number of messages of the log that the hold covers now, or of the compacted view if the log has none.

    None: the hold is on documents or on a deleted topic, whose messages nobody counts.
    """
    topic = find_topic(s, hold.topic)
    if topic is None or topic.has_documents:
        return None
    log = s.reader.log(hold.topic)
    if found := _rows_held(s, log, hold.what):
        return found
    view = s.view_of(hold.topic)
    return 0 if view is None else sum(1 for _ in _copies(s, hold.topic, view, hold))


def _rows_held(s: Services, log: LogState, what: What) -> int:
    def named(request: Request) -> int:
        return sum(entry.rows for entry in s.reader.find_requested_rows(log, request, as_of=Instant(0)).due)

    match what:
        case HeldTopic():
            return sum(segment.rows for segment in log.segments)
        case HeldRange(partition=partition, first=first, last=last):
            end = log.end_offsets[partition] if last is None else min(last + 1, log.end_offsets[partition])
            below = named(TruncateLog(partition=partition, before=first)) if first else 0
            return named(TruncateLog(partition=partition, before=end)) - below if end > first else 0
        case HeldKey(key=key):
            return named(PurgeKey(key=key or b""))
        case never:
            assert_never(never)


def _spared(hold: Hold, partition: int, first: int, last: int | None) -> Spared:
    return Spared(partition=partition, first=first, last=last, holder="hold", name=hold.hold_id, detail=hold.description)


# Held messages whose only copy is in the compacted view: their raw messages left before the hold was placed (DEL-8).


_KEYS_ASKED = 100
"""With more keys than this, no search for newer messages runs: one of the keys may have one, and then the view waits."""


class Copy(NamedTuple):
    """A held message of the view."""

    partition: int
    offset: int
    key: bytes | None
    hold: Hold


def places_of_key(s: Services, name: TopicName, view: ViewState, held: HeldKey) -> Sequence[tuple[int, int, bytes | None]]:
    """Return the places of the key's messages in the view."""
    assert held.key is not None, "the ledger keeps the key for as long as its hold stands"
    return s.stores.view.places_of(name, view, offsets={}, keys={held.key})


def find_at_risk(
    s: Services, log: LogState, view: ViewState, tails: Iterable[Tail], policy: Policy, *, as_of: Instant, holds: Iterable[Hold]
) -> tuple[Held, ...]:
    """Return the held messages that a compaction might remove now: one entry for each hold and partition."""
    tails = list(tails)
    due = compaction.is_due(view, policy, as_of=as_of)
    if not due and not any(tail.rows for tail in tails):
        return ()
    copies = [copy for hold in holds for copy in _copies(s, log.topic, view, hold)]
    if not copies:
        return ()
    positions = tuple(sorted({(copy.partition, copy.offset) for copy in copies}))
    in_log = {
        (entry.partition, offset)
        for entry in s.reader.find_requested_rows(log, RemoveMessages(positions=positions), as_of=as_of).due
        for offset in offsets_of(entry.taken)
    }
    alone = [copy for copy in copies if (copy.partition, copy.offset) not in in_log]
    if not due:
        newer = _keys_with_newer(s, log, view, {copy.key for copy in alone if copy.key is not None}, as_of)
        alone = [copy for copy in alone if newer is None or copy.key in newer]
    ordered = sorted(alone, key=lambda copy: (copy.hold.hold_id, copy.partition, copy.offset))
    return tuple(_held_copies(list(group)) for _, group in groupby(ordered, key=lambda copy: (copy.hold.hold_id, copy.partition)))


def _copies(s: Services, name: TopicName, view: ViewState, hold: Hold) -> Iterator[Copy]:
    match hold.what:
        case HeldKey():
            yield from (Copy(partition, offset, key, hold) for partition, offset, key in places_of_key(s, name, view, hold.what))
        case HeldTopic():
            for row in s.stores.view.view_rows(name, view):
                if not row.remembered:
                    yield Copy(row.message.partition, row.message.offset, row.message.key, hold)
        case HeldRange(partition=partition, first=first, last=last):
            for row in s.stores.view.view_rows(name, view, partition=partition, start=first):
                if row.message.offset > (INT64_MAX if last is None else last):
                    break
                if not row.remembered:
                    yield Copy(partition, row.message.offset, row.message.key, hold)
        case never:
            assert_never(never)


def _keys_with_newer(s: Services, log: LogState, view: ViewState, keys: set[bytes], as_of: Instant) -> set[bytes | None] | None:
    """Return the keys with a message past the horizon. None: too many keys to search."""
    if len(keys) > _KEYS_ASKED:
        return None
    return {
        key
        for key in keys
        if any(
            entry.last_offset > view.horizon(entry.partition)
            for entry in s.reader.find_requested_rows(log, PurgeKey(key=key), as_of=as_of).due
        )
    }


def _held_copies(copies: Sequence[Copy]) -> Held:
    return Held(
        partition=copies[0].partition,
        first_base=copies[0].offset,
        last_offset=copies[-1].offset,
        rows=len(copies),
        overdue_since=None,
        holder="hold",
        detail=copies[0].hold.description,
        reason="superseded",
    )


# The check of every publish


def require_known_holds(s: Services, plan: Plan) -> None:
    """Raise PlanConflict if there is a hold that the plan does not know. The next plan will know it."""
    unknown = [hold for hold in holds_of(s, plan.topic) if hold.hold_id not in plan.requirements.heeded]
    if unknown:
        raise PlanConflict(plan.plan_id, f"{unknown[0].description} was placed after it was planned", rival=f"hold {unknown[0].hold_id}")


def evidence(s: Services, plan: Plan, touched: Callable[[Sequence[Hold]], int]) -> list[dict[str, int]]:
    """Return the frame `holds`: one row about the current holds, resolved again, and the number of planned rows that they touch."""
    holds = holds_of(s, plan.topic)
    unheeded = sum(hold.hold_id not in plan.requirements.heeded for hold in holds)
    return [{"holds": len(holds), "unheeded": unheeded, "touched": 0 if not holds or plan.is_empty else touched(holds)}]


def count_messages_under_hold(s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
    """Return the number of the plan's messages and segments that a hold may cover."""
    # At the plan's own snapshot, which is enough to find the messages of a key.
    log = replace(s.reader.log(plan.topic), snapshot_id=plan.requirements.snapshot_id)
    of_log = SparedOffsets(spared_of(s, log, holds))

    @cache  # read the view only if the plan takes messages from it
    def of_view() -> SparedOffsets:
        view = s.view_of(plan.topic)
        return SparedOffsets(() if view is None else spared_in_view(s, log, view, holds))

    touched = sum(of_log.find_spared(run.partition, run.first_base, run.last_offset) is not None for run in plan.log_commit.drop)
    touched += sum(_count_spared(of_log, rows) for rows in (*plan.marked, *staged.superseded))
    touched += sum(_count_spared(of_log, rows) for rows in plan.erased_of("log"))
    touched += sum(_count_spared(of_view(), rows) for rows in (*plan.view_removal.mark, *plan.erased_of("view")))
    return touched + count_tables_under_hold(plan, holds)


def count_view_messages_under_hold(s: Services, plan: Plan, holds: Sequence[Hold]) -> int:
    """Return the number of messages that a hold may cover and that only the view still has: the compaction would lose them."""
    view = s.view_of(plan.topic)
    if view is None:
        return 0
    log, policy = replace(s.reader.log(plan.topic), snapshot_id=plan.requirements.snapshot_id), Policy.from_values(plan.policy)
    tails = s.stores.view.tails(log, view.horizons, as_of=plan.as_of, latest_allowed_time=policy.latest_allowed_time(plan.as_of))
    return sum(held.rows for held in find_at_risk(s, log, view, tails, policy, as_of=plan.as_of, holds=holds))


def count_tables_under_hold(plan: Plan, holds: Sequence[Hold]) -> int:
    """Return the number of tables of an erasure that a hold may cover: rewritten files may have rows without offsets of the log."""
    return sum(not isinstance(hold.what, HeldKey) for hold in holds) * len(plan.rewrites)


def _count_spared(spared: SparedOffsets, rows: Rows) -> int:
    return sum(len(run) for _, held in spared.split(rows.partition, rows.offsets)[1] for run in parse_ranges_text(held))


@contextmanager
def refusals_recorded(s: Services, name: TopicName, operation: Operation, as_of: Instant, run: str | None) -> Iterator[None]:
    """Record in the history each refusal because of a hold (DEL-8)."""
    try:
        yield
    except HeldByLegalHold as refusal:
        detail = f"{refusal.code}: {refusal}"
        s.ledger.record_run_outcome(run, Outcome(name="refused", operation=operation, topic=name, as_of=as_of, detail=detail))
        raise


# The state that the due check remembers


def spared_state(s: Services, name: TopicName) -> tuple[tuple[str, str], ...]:
    """Return the holds and undone plans that keep messages. A change makes the topic due again. No reader's name has a colon."""
    undone = tuple((f"undone:{known.plan_id}", "kept") for known in s.ledger.undone(name) if known.released_at is None)
    return (*((f"hold:{hold_id}", "stands") for hold_id in ids_of(holds_of(s, name))), *undone)
