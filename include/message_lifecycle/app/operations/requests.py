"""What a person asks to have removed, from the log and from its compacted view: what is named, and what would come back by it (PRG-1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from message_lifecycle.app.operations.base import Work
from message_lifecycle.app.operations.messages import OfMessages, facts_of, view_as_relied_on
from message_lifecycle.app.services import Services
from message_lifecycle.gates.messages import message_request_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import PurgeKey, RemoveNullKeys, Request, TruncateLog, span_of
from message_lifecycle.model.rows import RowAnswer, offsets_of
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import ViewState
from message_lifecycle.operations import requests

Offsets = dict[int, set[int]]
"""By partition."""


class MessageRequest(OfMessages):
    """Removes the messages that a person names."""

    name = "message_request"
    by_request, marks, undoable, on_records = True, True, True, True

    def is_of(self, plan: Plan, work: Work) -> bool:
        """A request is planned anew each time."""
        return False

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        request, view = cast(Request, work), s.stores.view.view(log.topic)
        facts = facts_of(s, log, view)
        requests.check(log, request)
        found = s.reader.requested(log, request, as_of=as_of)
        of_view = {} if view is None else _rows_of_view(s, log, view, request, found, as_of=as_of)
        return requests.plan(facts, policy, request, found, as_of=as_of, view=view, of_view=of_view)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return message_request_suite(plan, staged, policy)

    def heeds_horizon(self, s: Services, plan: Plan) -> bool:
        return view_as_relied_on(s, plan)


def _rows_of_view(
    s: Services, log: LogState, view: ViewState, request: Request, found: RowAnswer, *, as_of: Instant
) -> Mapping[int, set[int]]:
    """Offsets of the view's messages that go with the request. `found`: what it takes from the log."""
    going: Offsets = {}
    for entry in found.due:
        going.setdefault(entry.partition, set()).update(offsets_of(entry.taken))
    if isinstance(request, PurgeKey):
        return _of_key(s, log, view, request, going, as_of)
    if isinstance(request, TruncateLog | RemoveNullKeys):
        return _of_span(s, log, view, request)
    taken: Offsets = {}
    for partition, offset in request.positions:
        taken.setdefault(partition, set()).add(offset)
    keys = _newest_past_horizon(s, log, view, going)
    rows = s.stores.view.places_of(log.topic, view, offsets=taken, keys={key for _, key in keys})
    chosen: Offsets = {}
    for partition, offset, key in rows:
        named = offset in taken.get(partition, ())
        older = key is not None and offset < keys.get((partition, key), -1)
        if named or older:
            chosen.setdefault(partition, set()).add(offset)
    return chosen


def _of_span(s: Services, log: LogState, view: ViewState, request: TruncateLog | RemoveNullKeys) -> Offsets:
    """All that the view has there: an older message of a key lies below a newer one of it, and so goes with it."""
    span, chosen = span_of(request), set[int]()
    for row in s.stores.view.view_rows(log.topic, view, partition=request.partition, start=span.start):
        if row.message.offset >= span.stop:
            break
        if not row.remembered and (isinstance(request, TruncateLog) or row.message.key is None):
            chosen.add(row.message.offset)
    return {request.partition: chosen} if chosen else {}


def _newest_past_horizon(s: Services, log: LogState, view: ViewState, going: Offsets) -> dict[tuple[int, bytes], int]:
    """The newest message that goes of each key past its horizon: older ones in the view would outlive it."""
    newest: dict[tuple[int, bytes], int] = {}
    for partition, offsets in going.items():
        past = {offset for offset in offsets if offset > view.horizon(partition)}
        if not past:
            continue
        for message in s.reader.messages(log.topic, at=log, after=view.horizons, partition=partition, start=min(past)):
            if message.offset in past and message.key is not None:
                newest[partition, message.key] = message.offset
            if message.offset >= max(past):
                break
    return newest


def _of_key(s: Services, log: LogState, view: ViewState, request: PurgeKey, going: Offsets, as_of: Instant) -> Offsets:
    in_log = s.reader.requested(log, PurgeKey(key=request.key), as_of=as_of)
    of_log: Offsets = {}
    for entry in in_log.due:
        of_log.setdefault(entry.partition, set()).update(offsets_of(entry.taken))
    chosen: Offsets = {}
    for partition, offset, _ in s.stores.view.places_of(log.topic, view, offsets={}, keys={request.key}):
        if _goes(offset, request, of_log.get(partition, set()), going.get(partition, set())):
            chosen.setdefault(partition, set()).add(offset)
    return chosen


def _goes(offset: int, request: PurgeKey, of_log: Iterable[int], going: Iterable[int]) -> bool:
    if request.before is not None:
        return offset < request.before or any(offset < gone for gone in going)
    if request.keep is not None:
        return sum(other > offset for other in of_log) >= request.keep
    return True
