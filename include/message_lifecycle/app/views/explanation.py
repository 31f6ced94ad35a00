"""Why is this message still here, or which plan removed it?

The plan that a run would make now gives the answer, never a second set of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, assert_never

from message_lifecycle.app.holds import holds_of
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.reading import find_beyond_limits
from message_lifecycle.app.rendering import ABSENT, Block, Count, Heading, Line, Notes, Number, Table, View, source
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.past_expiry import KeptBySegment, kept_by_segments
from message_lifecycle.app.views.plans import ApprovalView, BoundView
from message_lifecycle.app.views.state import HoldView, hold_view, when
from message_lifecycle.app.views.status import open_question
from message_lifecycle.app.wording import count
from message_lifecycle.model.change import DropSegments
from message_lifecycle.model.errors import unknown_partition
from message_lifecycle.model.facts import LogState, Segment
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold
from message_lifecycle.model.instants import Instant, deadline, format_duration, format_instant, format_to_second
from message_lifecycle.model.message import Message, Place
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord
from message_lifecycle.model.phrases import short
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import REASONS, reason_text
from message_lifecycle.model.rules import rule_holds, rule_holds_from
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.operations.limits import is_hidden

Verdict = Literal["kept", "held", "due", "gone", "never_there", "not_given"]
_WORDS: Mapping[Verdict, str] = {
    "kept": "is kept",
    "held": "is due, but on hold",
    "due": "is due",
    "gone": "is gone",
    "never_there": "is not stored",
    "not_given": "does not exist yet",
}


class MessageView(View):
    """The message itself. `past_expiry_at` is None if the message never expires by the topic's age."""

    append_time: Instant | None
    past_expiry_at: Instant | None
    own_ttl: str | None
    hidden_from_reads: bool


class SegmentView(View):
    """The segment of the message. `past_expiry`: how many of its messages are past theirs, and stay because the segment is not."""

    base_offset: Number
    last_offset: Number
    messages: Count = source("rows")
    past_expiry: Count
    sealed: bool
    newest_at: Instant | None
    expires_at: Instant | None
    late_messages: Count = source("late_rows")


class RemovalView(View):
    """The plan that removed the message."""

    plan_id: str
    as_of: Instant
    planned_at: Instant
    reason: str
    rule: str
    newest_at: Instant | None = ABSENT
    snapshot_id: Number | None
    gate_id: str | None
    approval: ApprovalView | None


class CameBackView(View):
    """The newest undo that brought the message back (DEL-7)."""

    plan_id: str
    undone_by: str
    at: Instant = source("undone_at")
    released_at: Instant | None
    released_by: str | None
    text: str | None


class CompactedReadView(View):
    """The message in a compacted read."""

    horizon: Number | None
    past_horizon: bool
    in_view: bool

    @property
    def text(self) -> str:
        if self.past_horizon:
            return f"Not compacted yet. Horizon: {'none' if self.horizon is None else f'offset {self.horizon}'}."
        return "In the view." if self.in_view else "Not in the view: a newer message of its key, or a rule, removed it."


class ExpirySetting(View):
    """The topic's `message_expiry` in seconds, and its origin."""

    value: int
    origin: str


class Explanation(View):
    """Why a message is still there, or how it left.

    Args:
        why: The verdict in words.
        compacted: None if the topic was never compacted.
    """

    topic: TopicName
    partition: Number
    offset: Number
    as_of: Instant
    verdict: Verdict
    why: str
    message: MessageView | None
    segment: SegmentView | None
    message_expiry: ExpirySetting
    bounds: Sequence[BoundView]
    removed_by: RemovalView | None
    holds: Sequence[HoldView]
    came_back: CameBackView | None
    compacted: CompactedReadView | None
    warnings: Sequence[str]

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.topic} {self.partition}:{self.offset} {_WORDS[self.verdict]}", style="bold")
        yield Line(f"{self.why[0].upper()}{self.why[1:]}.", wraps=True)
        if self.message is not None:
            yield Heading("Message")
            yield {
                "append time": when(self.message.append_time) or "unknown",
                "expires at": when(self.message.past_expiry_at) or "never",
                "readers": "hidden (read --raw shows it)" if self.message.hidden_from_reads else "visible",
            }
        if self.holds:
            yield Heading("Legal holds")
            yield {one.hold_id: f"by {one.placed_by} since {when(one.placed_at)}: {one.why}" for one in self.holds}
        if self.compacted is not None:
            yield Heading("Compacted view")
            yield Line(self.compacted.text, wraps=True)
        if self.segment is not None:
            past = self.segment.past_expiry
            yield Heading("Segment")
            yield {
                "offsets": f"{self.segment.base_offset}..{self.segment.last_offset}, {'sealed' if self.segment.sealed else 'active'}",
                "messages": count(self.segment.messages),
                "past expiry": f"{count(past)}, kept until the segment expires" if past else "",
                "newest message": when(self.segment.newest_at) or "unknown",
                "expires at": when(self.segment.expires_at) or "never",
            }
        if self.removed_by is not None:
            yield from self._removal(self.removed_by)
            return
        yield Heading(f"Bounds of partition {self.partition}")
        yield {"as of": when(self.as_of), "message_expiry": f"{format_duration(self.message_expiry.value)} ({self.message_expiry.origin})"}
        yield _BOUNDS.of(self.bounds)
        yield Notes(self.warnings)

    def _removal(self, by: RemovalView) -> Iterator[Block]:
        word = by.approval
        yield Heading("Removed by")
        yield {
            "plan": by.plan_id,
            "as of": when(by.as_of),
            "rule": f"{by.reason}: {by.rule}",
            "newest message": None if by.newest_at is ABSENT else when(by.newest_at) or "unknown",
            "gate report": by.gate_id,
            "snapshot": str(by.snapshot_id or ""),
            "approval": f"{word.by} at {when(word.at)}: {word.text}" if word else "not required",
        }
        yield ""
        yield f"Plan: lifecycle explain {short(by.plan_id)}"


_BOUNDS = Table(columns={"kept from": "stops_at", "bound": "bound", "because": "reason"}, absent={"kept from": "none"})


def explain_message(s: Services, name: TopicName, partition: int, offset: int, *, as_of: Instant) -> Explanation:
    """Raises UnknownTopic, UnknownPartition, FutureAsOf."""
    policy = policy_of(s, name)
    plan = preview(s, name, as_of=as_of)
    log = s.reader.log(name, latest_allowed_time=policy.latest_allowed_time(as_of))
    if partition not in log.end_offsets:
        raise unknown_partition(str(name), partition, sorted(log.end_offsets))
    message = _find_stored_message(s, name, partition, offset)
    segment = _segment_of(log, message)
    removal = None if message else _removal(s, name, partition, offset)
    question = open_question(s, s.ledger.waiting(), name)
    asked = None if question is None else question.plan_id
    # Ask only whether a limit by number or size hides the message. The message itself shows whether a rule of age hides it.
    beyond = message is not None and message in find_beyond_limits(s, log, policy, as_of)
    verdict, why = _verdict(plan, policy, log, (partition, offset), message, segment, removal, asked, beyond=beyond)
    holds = [] if message is None else _holds_on_message(s, message, name)
    if verdict == "held" or (holds and message is not None and (beyond or is_hidden(message, policy, as_of))):
        verdict, why = "held", f"it is due, but on {'; '.join(hold.description for hold in holds)}" if holds else why
    came_back = None if message is None else _find_restoration(s, name, partition, offset)
    if came_back is not None:
        why += f". Plan {short(came_back.undone_by)} undid plan {short(came_back.plan_id)} at {when(came_back.at)}"
    return Explanation(
        topic=name,
        partition=partition,
        offset=offset,
        as_of=as_of,
        verdict=verdict,
        why=why,
        message=None if message is None else _message_view(message, policy, as_of, beyond=beyond),
        segment=None if segment is None else _segment_view(segment, policy, kept_by_segments(s, name, policy, as_of)),
        message_expiry=ExpirySetting.of(dict(policy.settings)["message_expiry"]),
        bounds=[BoundView.of(bound) for bound in plan.bounds if bound.partition == partition],
        removed_by=removal,
        holds=[hold_view(hold) for hold in holds],
        came_back=came_back,
        compacted=_compacted(s, name, partition, offset),
        warnings=plan.warnings,
    )


def _holds_on_message(s: Services, message: Message, name: TopicName) -> list[Hold]:
    """The holds that keep this very message."""
    return [hold for hold in holds_of(s, name) if _covers_message(hold, message)]


def _covers_message(hold: Hold, message: Message) -> bool:
    match hold.what:
        case HeldTopic():
            return True
        case HeldKey(key=key):
            return key == message.key
        case HeldRange(partition=partition, first=first, last=last):
            return partition == message.partition and first <= message.offset and (last is None or message.offset <= last)
        case never:
            assert_never(never)


def _find_stored_message(s: Services, name: TopicName, partition: int, offset: int) -> Message | None:
    # An offset inside a segment's bounds may still be a gap, or a row that another writer deleted: only the log knows.
    found = next(iter(s.reader.messages(name, partition=partition, start=offset)), None)
    return found if found is not None and found.offset == offset else None


def _find_restoration(s: Services, name: TopicName, partition: int, offset: int) -> CameBackView | None:
    found = s.ledger.undone(name, at=(partition, offset))
    return CameBackView.of(found[-1]) if found else None


def _compacted(s: Services, name: TopicName, partition: int, offset: int) -> CompactedReadView | None:
    view = s.view_of(name)
    if view is None:
        return None
    horizon = view.horizon(partition)
    row = next(iter(s.stores.view.view_rows(name, view, partition=partition, start=offset)), None) if offset <= horizon else None
    in_view = row is not None and row.message.offset == offset and not row.remembered
    return CompactedReadView(horizon=view.reach(partition), past_horizon=offset > horizon, in_view=in_view)


def _segment_of(log: LogState, message: Message | None) -> Segment | None:
    if message is None:
        return None
    place = (message.partition, message.segment)
    return next((segment for segment in log.segments if (segment.partition, segment.base_offset) == place), None)


def _verdict(
    plan: Plan,
    policy: Policy,
    log: LogState,
    position: tuple[int, int],
    message: Message | None,
    segment: Segment | None,
    removal: RemovalView | None,
    asked: str | None,
    *,
    beyond: bool,
) -> tuple[Verdict, str]:
    partition, offset = position
    if offset >= log.end_offsets[partition]:
        return "not_given", f"the next offset of partition {partition} is {log.end_offsets[partition]}"
    if removal is not None:
        return "gone", f"plan {short(removal.plan_id)} removed it by {removal.reason}, as of {when(removal.as_of)}"
    if message is None or segment is None:
        return (
            "never_there",
            "no plan removed a message at this offset. The offset is a gap, or another program deleted the message",
        )
    if not policy.cleaner_enabled:
        return "kept", "the message cleaner is disabled ([message_cleaner] enabled = false in the server file)"
    action = plan.removal_at(partition, offset)
    if action is not None:
        what = "its whole segment is expired" if isinstance(action, DropSegments) else REASONS[action.reason].due
        if asked is not None:
            return "held", f"{what}. Plan {short(asked)} is pending approval"
        return "due", f"{what}. The next run removes it"
    if beyond or is_hidden(message, policy, plan.as_of):
        for entry in plan.held:
            if entry.partition == partition and entry.first_base <= segment.base_offset <= entry.last_offset:
                what = "its segment is" if entry.reason == "expiry" else "it is"
                return (
                    "held",
                    f"{what} due since {format_to_second(entry.overdue_since)}. On hold ({entry.holder}): {entry.detail}",
                )
    past = _past_expiry_since(message, policy, plan.as_of)
    why = _why_kept(message, segment, policy, plan.as_of)
    return "kept", why if past is None else f"it expired at {format_to_second(past)}, but its segment did not. {why[0].upper()}{why[1:]}"


def _why_kept(message: Message, segment: Segment, policy: Policy, as_of: Instant) -> str:
    kept = expiry.kept_by_own_ttl(policy)
    if kept is not None and rule_holds(kept, message, as_of):
        return (
            "its own TTL is never, so it does not expire"
            if message.never
            else f"its own TTL ends at {format_to_second(message.expires_at)}"
        )
    if not policy.message_expiry_us:
        limits = ". It is within max_records and max_total_bytes" if policy.limits is not None else ""
        return f"nothing expires by age, because message_expiry is 0{limits}"
    return _why_not_expired(message, segment, policy)


def _why_not_expired(message: Message, segment: Segment, policy: Policy) -> str:
    if segment.late_rows and segment.newest_at is not None and message.append_time is not None and message.append_time > segment.newest_at:
        return "its time was in the future for the run. Such a message stays when its segment is removed (CLK-4)"
    if segment.newest_at is None:
        return "its segment has a message of unknown append_time. Such a segment never expires (CLK-4)"
    expires_at = segment.expires_at(policy.message_expiry_us)
    return f"segment {segment.base_offset} expires at {format_to_second(expires_at)}. Segments are removed whole"


def _past_expiry_since(message: Message, policy: Policy, as_of: Instant) -> Instant | None:
    """Return when the message passed its expiry. None if it has not, or never expires by age."""
    rule = expiry.expiry_rule(policy)
    since = None if rule is None else rule_holds_from(rule, message)
    return since if since is not None and since <= as_of else None


def _message_view(message: Message, policy: Policy, as_of: Instant, *, beyond: bool) -> MessageView:
    expires_at = None
    if message.append_time is not None and policy.message_expiry_us:
        expires_at = deadline(message.append_time, policy.message_expiry_us)
    own_ttl = "never" if message.never else None if message.expires_at is None else format_instant(message.expires_at)
    hidden = beyond or is_hidden(message, policy, as_of)
    return MessageView(append_time=message.append_time, past_expiry_at=expires_at, own_ttl=own_ttl, hidden_from_reads=hidden)


def _segment_view(segment: Segment, policy: Policy, past_expiry: Mapping[Place, KeptBySegment]) -> SegmentView:
    expiry_us = policy.message_expiry_us
    kept = past_expiry.get((segment.partition, segment.base_offset))
    expires_at = segment.expires_at(expiry_us) if expiry_us else None
    return SegmentView.of(segment, past_expiry=0 if kept is None else kept.messages, expires_at=expires_at)


def _removal(s: Services, name: TopicName, partition: int, offset: int) -> RemovalView | None:
    records = s.ledger.plans_that_removed(name, partition, offset)
    # An earlier one was taken back, or the message would not have been there for the last.
    return _removal_view(records[-1], partition, offset) if records else None


def _removal_view(record: PlanRecord, partition: int, offset: int) -> RemovalView:
    plan = record.plan
    action = plan.removal_at(partition, offset)
    assert action is not None, "the ledger found the plan by this offset"
    return RemovalView.of(
        plan,
        planned_at=record.recorded_at,
        reason=action.reason,
        rule=reason_text(action.reason, Policy.from_values(plan.policy)),
        newest_at=action.newest_at if isinstance(action, DropSegments) else ABSENT,
        snapshot_id=record.outcome.snapshot_id if record.outcome else None,
        gate_id=record.report.gate_id if record.report else None,
        approval=ApprovalView.of(record.approval) if record.approval else None,
    )
