"""How a topic's newest compaction ended, its figures, and how far the compacted view reaches (CMP-10, CMP-11).

The figures follow from plans, outcomes and the tables' own metadata. No other state is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from message_lifecycle.app.changes import situation_of_open_plan
from message_lifecycle.app.operations.registry import operation_named, operation_of_plan
from message_lifecycle.app.rendering import Block, Count, Line, Number, Size, Table, View, source
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.state import when
from message_lifecycle.app.views.status import last_compaction
from message_lifecycle.app.wording import count, reasons
from message_lifecycle.model.errors import CompactedTableMissing
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanRecord
from message_lifecycle.model.phrases import short, size
from message_lifecycle.model.plan_state import OpenPlanSituation

Status = Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
_GOOD_ENDS = ("published", "no_op")
_MILLIS = 1000
_STYLES = {"SUCCESS": "green", "ERROR": "red"}


class CompactedView(View):
    """The compacted view by its metadata."""

    snapshot_id: Number
    messages: Count = source("rows")
    superseded_in_files: Count = source("hidden_rows")
    bytes: Size = source("size_bytes")
    due_at: Instant | None


class ReachView(View):
    """How far one partition is compacted. `lag`: offsets past the horizon; the messages there may be fewer."""

    partition: Number
    end_offset: Number
    horizon: Number | None
    lag: Count

    table = Table(
        columns={"partition": "partition", "horizon": "horizon", "end": "end_offset", "behind": "lag"},
        right=("horizon",), absent={"horizon": "none"}, title="Partitions",
    )  # fmt: skip


class CompactionView(View):
    """The newest compaction of a topic. A figure is None if the compaction does not have it.

    Args:
        read_bytes_per_second: Bytes by the whole time of the work, reading and writing alike (CMP-11).
    """

    topic: TopicName
    status: Status
    message: str
    plan_id: str | None
    as_of: Instant | None
    ended_at: Instant | None
    removed: Mapping[str, int] | None
    rows_in: Count | None
    rows: Count | None
    bytes_read: Size | None
    bytes_written: Size | None
    duration_seconds: float | None
    read_bytes_per_second: Size | None
    write_bytes_per_second: Size | None
    engine: str | None
    view: CompactedView | None
    partitions: tuple[ReachView, ...]

    def screen_blocks(self) -> Iterator[Block]:
        yield Line(f"{self.topic}: {self.status}: {self.message}", style=_STYLES.get(self.status), wraps=True)
        yield {
            "  as of": when(self.as_of),
            "  ended at": when(self.ended_at),
            "  left out": reasons(self.removed or {}),
            "  duration": None if self.duration_seconds is None else f"{self.duration_seconds:.1f} s ({self.engine})",
            "  read": _rate(self.bytes_read, self.read_bytes_per_second),
            "  written": _rate(self.bytes_written, self.write_bytes_per_second),
            "  view": None if self.view is None else f"{count(self.view.messages)} messages, {size(self.view.bytes)}",
            "  next due": None if self.view is None else when(self.view.due_at),
        }
        yield ReachView.table.of(self.partitions)


def _rate(amount: int | None, per_second: int | None) -> str | None:
    return amount if amount is None else size(amount) if per_second is None else f"{size(amount)}, {size(per_second)} per second"


def compaction_view(s: Services, name: TopicName) -> CompactionView:
    """A view that is lost is an ERROR. Raises UnknownTopic."""
    s.topics.describe(name)
    ended = last_compaction(s, name)
    under_way = s.ledger.open_plan(name)
    record = under_way if under_way is not None and operation_of_plan(under_way.plan) is operation_named("compaction") else None
    view, missing = view_state(s, name)
    if missing is None and view is None and s.ledger.accepted_view(name) is not None:
        missing = f"the table of its view is missing. Start again from the log: lifecycle compact {name} --anew"
    status, message = ("ERROR", missing) if missing is not None else _status(s, record, None if ended is None else ended[1])
    if record is None and ended is not None and ended[1].plan_id is not None:
        record = s.ledger.record(ended[1].plan_id)
    staged = None if record is None or record.staged is None else record.staged.view
    seconds = None if staged is None or not staged.took_ms else staged.took_ms / _MILLIS
    as_of = record.plan.as_of if record is not None else None if ended is None else ended[1].as_of
    return CompactionView.of(
        staged,
        **{figure: getattr(staged, figure, None) for figure in ("rows", "bytes_read", "bytes_written", "engine")},
        topic=name,
        status=status,
        message=message,
        plan_id=None if record is None else record.plan.plan_id,
        as_of=as_of,
        ended_at=None if ended is None or status == "RUNNING" else ended[0],
        removed=None if ended is None or status != "SUCCESS" else dict(ended[1].removed),
        rows_in=None if staged is None else staged.view_rows + staged.tail_rows,
        duration_seconds=seconds,
        read_bytes_per_second=None if staged is None or seconds is None else round(staged.bytes_read / seconds),
        write_bytes_per_second=None if staged is None or seconds is None else round(staged.bytes_written / seconds),
        view=None if view is None else CompactedView.of(view),
        partitions=tuple(_reach(view, partition, end) for partition, end in sorted(s.reader.end_offsets(name).items())),
    )


def view_state(s: Services, name: TopicName) -> tuple[ViewState | None, str | None]:
    """Return the view, and why it cannot be read: a topic's page is worth showing without it."""
    try:
        return s.view_of(name), None
    except CompactedTableMissing as missing:
        return None, str(missing)


def _reach(view: ViewState | None, partition: int, end: int) -> ReachView:
    horizon = None if view is None else view.reach(partition)
    return ReachView(partition=partition, end_offset=end, horizon=horizon, lag=end if horizon is None else end - 1 - horizon)


def _status(s: Services, under_way: PlanRecord | None, ended: Outcome | None) -> tuple[Status, str]:
    if under_way is not None:
        plan_id = under_way.plan.plan_id
        if ended is not None and ended.plan_id == plan_id:
            return "ERROR", f"{ended.name}: {ended.detail}"
        stands = situation_of_open_plan(s, under_way)
        if stands.is_question:
            return "RUNNING", f"plan {short(plan_id)} is pending approval: lifecycle approve {short(plan_id)} --by NAME --why WHY"
        if stands is OpenPlanSituation.RECENT:
            return "RUNNING", f"plan {short(plan_id)} is {under_way.state.word}"
        return "ERROR", f"its run ended while plan {short(plan_id)} was {under_way.state.word}. The next run replaces it"
    if ended is None:
        return "NOT_RUN", "nothing was compacted yet"
    if ended.name in _GOOD_ENDS:
        return "SUCCESS", "no new messages" if ended.name == "no_op" else f"plan {short(ended.plan_id or '')} is published"
    return "ERROR", f"{ended.name}: {ended.detail}"
