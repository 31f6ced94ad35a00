"""Outcomes and legal holds as every view has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, assert_never

from message_lifecycle.app.operations.registry import is_undone, operation_named, why_not_undone
from message_lifecycle.app.rendering import ABSENT, Block, Count, Line, Notes, Number, Size, Table, View, each, hidden, source
from message_lifecycle.app.services import Services
from message_lifecycle.app.wording import ROWS, count, reasons, text_of
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, OutcomeName
from message_lifecycle.model.phrases import amount, short, size
from message_lifecycle.model.plan import Operation as OperationName


def when(instant: int | None) -> str | None:
    """Return the instant for people, or None if it is unknown."""
    return None if instant is None else format_to_second(instant)


class HeldView(View):
    """A run of overdue segments that stay, with its holder (DEL-6)."""

    partition: Number
    from_: Number = source("first_base")
    to: Number = source("last_offset")
    messages: Count = source("rows")
    overdue_since: Instant | None
    holder: str
    detail: str

    @property
    def offsets(self) -> str:
        return f"{self.from_}..{self.to}"

    table = Table(
        columns={
            "partition": "partition", "offsets": "offsets", "messages": "messages", "due since": "overdue_since", "held by": "holder",
            "because": "detail",
        },
        most=ROWS, title="Due, but on hold",
    )  # fmt: skip


def merge_held(held: Iterable[HeldView]) -> list[HeldView]:
    """Return one entry for each run of offsets with the same holder. A plan may have an entry for each segment."""
    found: list[HeldView] = []
    for one in held:
        last = found[-1] if found else None
        if last is not None and (last.partition, last.holder, last.detail, last.to + 1) == (
            one.partition,
            one.holder,
            one.detail,
            one.from_,
        ):
            times = [time for time in (last.overdue_since, one.overdue_since) if time is not None]
            found[-1] = replace(last, to=one.to, messages=last.messages + one.messages, overdue_since=min(times, default=None))
        else:
            found.append(one)
    return found


_STYLES = {"published": "green", "blocked": "red", "failed": "red", "starved": "red", "needs_approval": "yellow"}


class OutcomeView(View):
    """How a run ended for one topic.

    Args:
        at: When the outcome was recorded.
        undone: The plan was undone since.
        things: The name of the counted things (`Plan.things`).
        undoable: A person may undo the plan, so the result shows the command.
    """

    at: Instant | None = None
    topic: TopicName
    operation: OperationName
    outcome: OutcomeName = source("name")
    undone: bool = False
    as_of: Instant
    plan_id: str | None
    first_plan_id: str | None
    snapshot_id: Number | None
    removed: Mapping[str, int] = source(make=dict)
    removed_messages: Count = source("removed_rows")
    removed_bytes: Size | None
    archived: Count
    restored: Count
    reclaimed_files: Count | None
    reclaimed_bytes: Size | None
    markers: Count
    cancelled_markers: Count
    messages_before: Count | None
    messages_kept: Count | None
    more: bool
    held: tuple[HeldView, ...] = source(make=each(HeldView))
    warnings: Sequence[str]
    detail: str
    things: str = hidden("messages")
    undoable: bool = hidden(False)

    @property
    def ended(self) -> str:
        return "undone" if self.undone else self.outcome

    @property
    def short_id(self) -> str:
        return (self.plan_id or "")[:8]

    table = Table(
        columns={
            "recorded": "at", "topic": "topic", "operation": "operation", "outcome": "ended", "removed": "removed_messages",
            "as of": "as_of", "plan": "short_id",
        },
        wrap=("topic", "operation", "outcome"), wide=("as of",), none="no runs yet",
    )  # fmt: skip

    def screen_blocks(self) -> Iterator[Block]:
        """Yield the result, with its holds, warnings and next steps for a person."""
        yield from self.headline()
        yield HeldView.table.of(merge_held(self.held))
        yield Notes(self.warnings, title="Warnings")
        if self.outcome == "needs_approval":
            yield from how_to_answer(self.plan_id or "", self.operation, self.topic)
        if self.more:
            yield "More is due. The next run continues."
        if self.undoable and self.plan_id:
            yield f"Undo: lifecycle undo {short(self.plan_id)} --by NAME --why WHY"

    def headline(self) -> Iterator[Block]:
        """Yield the result in a line, and the plan that made it."""
        yield Line(f"{self.topic}: {self._result_text()}", style=_STYLES.get(self.outcome), wraps=True)
        needless = f", {count(self.cancelled_markers)} not needed" if self.cancelled_markers else ""
        yield {
            "  by reason": reasons(self.removed),
            "  as of": when(self.as_of),
            "  plan": self.plan_id,
            "  snapshot": str(self.snapshot_id or ""),
            "  archived": amount(self.archived, "messages") if self.archived else "",
            "  markers": f"{count(self.markers)} written{needless}" if self.markers or self.cancelled_markers else "",
            "  done by": f"earlier plan {short(self.first_plan_id)}" if self.first_plan_id else "",
            "  also" if self.outcome == "published" else "  why": self.detail,
        }

    def _result_text(self) -> str:
        if self.reclaimed_bytes is not None:
            ended = "" if self.outcome == "published" else f"{self.outcome}, "
            return f"{ended}freed {size(self.reclaimed_bytes)}, removed {amount(self.reclaimed_files, 'files')}"
        said = {
            "published": operation_named(self.operation).success_text(self.removed_messages, self.restored, self.things),
            "no_op": "nothing to do",
            "needs_approval": "approval pending, nothing removed",
            "failed": f"failed, removed {amount(self.removed_messages, self.things)}",
        }.get(self.outcome, f"{self.outcome}, nothing removed")
        return said if self.messages_kept is None else f"{said}, {count(self.messages_kept)} kept"


def outcome_view(outcome: Outcome, at: Instant | None = None, *, undone: bool = False, things: str = "messages") -> OutcomeView:
    counts = operation_named(outcome.operation).counts_messages
    before, kept = (outcome.rows_in, outcome.rows_kept) if counts else (None, None)
    return OutcomeView.of(outcome, at=at, undone=undone, things=things, messages_before=before, messages_kept=kept)


def result_view(s: Services, outcome: Outcome, *, things: str = "messages") -> OutcomeView:
    """Return the result of a run that just ended, with the command for its undo if an undo is possible."""
    operation = operation_named(outcome.operation)
    changed = outcome.name == "published" and (outcome.removed_rows > 0 or operation.moves_tables)
    return replace(outcome_view(outcome, things=things), undoable=changed and why_not_undone(s, operation, outcome.topic) is None)


def how_to_answer(plan_id: str, operation: OperationName, topic: TopicName) -> Iterator[Block]:
    """Yield the commands that decide a waiting plan."""
    yield ""
    yield Line("Approval pending:", style="yellow")
    yield f"  show     lifecycle explain {short(plan_id)}"
    yield f"  approve  lifecycle approve {short(plan_id)} --by NAME --why WHY"
    yield f"  then     {continue_command(plan_id, operation, topic)}"
    yield f"  refuse   lifecycle refuse {short(plan_id)} --by NAME --why WHY"


def continue_command(plan_id: str, operation: OperationName, topic: TopicName) -> str:
    """The command that carries an approved plan out. Another operation's would make a plan of its own in its place."""
    command = operation_named(operation).command
    return f"lifecycle {command} {topic}" if command else f"lifecycle publish {short(plan_id)}"


def runs(s: Services, name: TopicName | None = None, *, limit: int = 50) -> list[OutcomeView]:
    """Return the newest outcomes of one topic, or of all topics."""
    return outcomes_view(s, s.ledger.history(name, limit=limit))


def outcomes_view(s: Services, found: Sequence[tuple[Instant | None, Outcome]]) -> list[OutcomeView]:
    """Return outcomes with the times of their recording, each with whether its plan is undone now."""
    undone = find_undone(s, [outcome.plan_id for _, outcome in found if outcome.plan_id is not None])
    return [outcome_view(outcome, at, undone=outcome.name == "published" and outcome.plan_id in undone) for at, outcome in found]


def find_undone(s: Services, plan_ids: Collection[str]) -> frozenset[str]:
    """Return the plans that are undone now. For a plan whose topic cannot be read, the ledger decides."""
    return frozenset(plan_id for plan_id in s.ledger.find_undone(plan_ids) if _is_undone(s, plan_id))


def _is_undone(s: Services, plan_id: str) -> bool:
    try:
        return is_undone(s, s.ledger.record(plan_id).plan)
    except LifecycleError:
        return True


class HoldView(View):
    """A legal hold. Its key is shown by its digest, and itself only on request."""

    hold_id: str
    topic: TopicName
    holds: Literal["topic", "key", "range"]
    key_digest: str = ABSENT
    key: object = ABSENT
    partition: Number = ABSENT
    from_: Number = ABSENT
    to: Number | None = ABSENT
    placed_by: str
    placed_at: Instant
    why: str
    released_by: str | None
    released_at: Instant | None
    released_why: str | None
    covers: Count | None = ABSENT
    """The number of messages that the hold covers now. None: unknown."""

    @property
    def what(self) -> str:
        if self.holds == "key":
            return f"a key (digest {self.key_digest[:12]})" if self.key is ABSENT else f"key {self.key}"
        if self.holds == "range":
            return f"partition {self.partition} from {self.from_} {'on' if self.to is None else f'to {self.to}'}"
        return "everything"

    @property
    def ended(self) -> str:
        return "" if self.released_at is None else f"{format_to_second(self.released_at)} by {self.released_by}"

    table = Table(
        columns={
            "hold": lambda one: short(one.hold_id), "topic": "topic", "keeps": "what", "by": "placed_by", "since": "placed_at", "released": "ended",
            "why": "why",
        },
        wrap=("keeps", "why"), wide=("released",), none="no legal holds",
    )  # fmt: skip


def hold_view(hold: Hold, *, keys: bool = False, **given: object) -> HoldView:
    """`keys`: with the key itself."""
    match hold.what:
        case HeldTopic():
            return HoldView.of(hold, holds="topic", **given)
        case HeldKey(key=key, digest=digest):
            shown = text_of(key) if keys and key is not None else ABSENT
            return HoldView.of(hold, holds="key", key_digest=digest, key=shown, **given)
        case HeldRange(partition=partition, first=first, last=last):
            return HoldView.of(hold, holds="range", partition=partition, from_=first, to=last, **given)
        case never:
            assert_never(never)


def holds_view(s: Services, name: TopicName | None, *, released: bool = False, keys: bool = False) -> list[HoldView]:
    """Return the holds of one topic, or of all topics, the oldest first."""
    return [hold_view(hold, keys=keys) for hold in s.ledger.holds(name, released=released)]
