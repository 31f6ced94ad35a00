"""Plans of removals that a person requested (MRK-2, PRG-1). They wait for no consumer (EXP-6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, assert_never

from message_lifecycle.model.change import CommitLog, RemoveFromView, RemoveRows, non_empty_commits
from message_lifecycle.model.errors import HeldByLegalHold, offset_not_given, unknown_partition
from message_lifecycle.model.facts import Facts, LogState
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import RowAnswer, ViewState, offsets_of, ranges_text
from message_lifecycle.model.plan import Plan, Selection
from message_lifecycle.model.reasons import request_reasons
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, RemoveRanges, Request, TruncateLog, requested_offsets
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.planning import empty_plan_of_log, removal_of, view_requirements


def check(log: LogState, request: Request) -> None:
    """Raise UnknownPartition or OffsetNotGiven if the log never had a named offset. A removed message may be named again."""
    for partition, offset in _positions(request):
        end = log.end_offsets.get(partition)
        if end is None:
            raise unknown_partition(str(log.topic), partition, sorted(log.end_offsets))
        if offset >= end:
            raise offset_not_given(str(log.topic), partition, offset, end)


def _positions(request: Request) -> Sequence[tuple[int, int]]:
    """Return the positions that the log must have assigned."""
    match request:
        case RemoveMessages(positions=positions):
            return positions
        case TruncateLog() | RemoveNullKeys():
            return ((request.partition, requested_offsets(request)[-1]),)
        case RemoveRanges(ranges=ranges):
            return [(partition, last) for partition, _, last in ranges]
        case PurgeKey():
            return ()
        case never:
            assert_never(never)


def plan(
    facts: Facts,
    policy: Policy,
    request: Request,
    found: RowAnswer,
    *,
    as_of: Instant,
    view: ViewState | None = None,
    of_view: Mapping[int, Collection[int]] | None = None,
) -> Plan:
    """Plan the removal of the found messages. The plan is empty if there are none.

    Args:
        facts: The facts of the topic.
        policy: The topic's policy.
        request: The person's request.
        found: The messages that the request names.
        as_of: The instant of the plan.
        view: The topic's compacted view, if it has one.
        of_view: Offsets that leave the view, by partition.

    Raises:
        HeldByLegalHold: The request names a held message.
    """
    _refuse_held(facts, found, of_view or {})
    removed: dict[str, int] = {}
    for entry in found.due:
        removed[entry.reason] = removed.get(entry.reason, 0) + entry.rows
    made = empty_plan_of_log("message_request", facts, policy, as_of=as_of)
    return replace(
        made,
        changes=non_empty_commits(
            RemoveFromView(mark=tuple(_view_removals(request, of_view or {}))), CommitLog(mark=tuple(map(removal_of, found.due)))
        ),
        selection=Selection(files=tuple(sorted(found.whole))),
        expected=replace(made.expected, removed=tuple(sorted(removed.items())), removed_bytes=sum(found.whole.values())),
        warnings=_missing(request, sum(removed.values())) if not of_view else (),
        reasons=request_reasons(),
        view=None if view is None else view_requirements(view),
    )


def _refuse_held(facts: Facts, found: RowAnswer, of_view: Mapping[int, Collection[int]]) -> None:
    """Raise HeldByLegalHold if the request names a held message of the log or of the view, and refuse the request whole (DEL-8).

    Messages that an undone plan keeps may leave, because a person asks for it.
    """
    holds = SparedOffsets(spared for spared in facts.spared if spared.holder == "hold")
    texts = [(entry.partition, entry.taken) for entry in found.due]
    texts += [(partition, ranges_text(sorted(offsets))) for partition, offsets in of_view.items()]
    held: set[tuple[int, int]] = set()
    holding: set[str] = set()
    for partition, text in texts:
        for by, kept in holds.split(partition, text)[1]:
            holding.add(by.detail)
            held.update((partition, offset) for offset in offsets_of(kept))
    if held:
        raise HeldByLegalHold(str(facts.log.topic), len(held), sorted(holding))


def _view_removals(request: Request, of_view: Mapping[int, Collection[int]]) -> Iterator[RemoveRows]:
    reason: Literal["removed", "purged"] = "purged" if isinstance(request, PurgeKey) else "removed"
    for partition, offsets in sorted(of_view.items()):
        yield RemoveRows(partition=partition, offsets=ranges_text(sorted(offsets)), rows=len(offsets), reason=reason)


def _missing(request: Request, found: int) -> tuple[str, ...]:
    match request:
        case RemoveMessages(positions=positions):
            missing = len(set(positions)) - found
            if not missing:
                return ()
            if not found:
                return ("none of the named messages exists any more",)
            return (f"{missing} of the {len(positions)} named messages no longer exist",)
        case PurgeKey():
            return () if found else ("no message of this key matches the request. Keys are compared byte by byte",)
        case TruncateLog(partition=partition, before=before):
            return () if found else (f"partition {partition} has no message below offset {before}",)
        case RemoveRanges():
            return () if found else ("none of the messages at these offsets exists any more",)
        case RemoveNullKeys(partition=partition, first=first, last=last):
            return () if found else (f"partition {partition} has no message without a key from offset {first} to {last}",)
        case never:
            assert_never(never)
