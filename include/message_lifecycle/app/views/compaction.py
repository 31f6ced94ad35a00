"""What is known of a topic's compaction: how the newest run ended, what it did, and how far the view reaches (CMP-10).

All of it follows from plans, outcomes and the view's own metadata; nothing else is kept."""

from __future__ import annotations

from message_lifecycle.app.open_plans import belongs_to_another, waits
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.values import View, when
from message_lifecycle.model.errors import CompactedTableMissing
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Staged
from message_lifecycle.model.view import ViewState
from message_lifecycle.ports import PlanRecord

_GOOD_ENDS = ("published", "no_op")
_MILLIS = 1000


def compaction_status(s: Services, name: TopicName) -> View:
    """`status`: NOT_RUN, RUNNING, SUCCESS or ERROR, with `message` in words; figures are the newest run's, null where it has none.

    `lag`: offsets past the horizon; the messages there may be fewer. A view that is lost is an ERROR. Raises UnknownTopic."""
    s.topics.describe(name)
    ended = last_compaction(s, name)
    under_way = s.ledger.open_plan(name)
    record = under_way if under_way is not None and under_way.plan.operation == "compaction" else None
    (view, missing), ends = compacted(s, name), s.reader.end_offsets(name)
    if missing is None and view is None and s.ledger.accepted_view(name) is not None:
        missing = f"its view was published, and its table is not there any more; to begin anew: lifecycle compact {name} --anew"
    status, message = ("ERROR", missing) if missing is not None else _status(s, record, None if ended is None else ended[1])
    if record is None and ended is not None and ended[1].plan_id is not None:
        record = s.ledger.record(ended[1].plan_id)
    return {
        "topic": str(name),
        "status": status,
        "message": message,
        "plan_id": None if record is None else record.plan.plan_id,
        "as_of": when(ended[1].as_of if record is None and ended is not None else None if record is None else record.plan.as_of),
        "ended_at": None if ended is None or status == "RUNNING" else when(ended[0]),
        "removed": None if ended is None or status != "SUCCESS" else dict(ended[1].removed),
        **_figures(None if record is None else record.staged),
        "view": view_facts(view),
        "partitions": [
            {"partition": partition, "end_offset": end, **_reach(view, partition, end)} for partition, end in sorted(ends.items())
        ],
    }


def last_compaction(s: Services, name: TopicName) -> tuple[Instant, Outcome] | None:
    """The newest outcome of a compaction, with the time of its recording."""
    return next(iter(s.ledger.history(name, limit=1, operations=["compaction"])), None)


def compaction_problem(s: Services, name: TopicName) -> str | None:
    """In words, how the newest compaction ended, where a person must see it."""
    ended = last_compaction(s, name)
    if ended is None or ended[1].name not in ("blocked", "starved", "failed"):
        return None
    return f"the last compaction ended as {ended[1].name}: {ended[1].detail}"


def compacted(s: Services, name: TopicName) -> tuple[ViewState | None, str | None]:
    """The view as it is, and why it cannot be looked at: a topic's page is worth showing without it."""
    try:
        return s.views.view(name), None
    except CompactedTableMissing as missing:
        return None, str(missing)


def view_facts(view: ViewState | None) -> View | None:
    if view is None:
        return None
    return {
        "snapshot_id": view.snapshot_id,
        "messages": view.rows,
        "superseded_in_files": view.hidden_rows,
        "bytes": view.size_bytes,
        "due_at": when(view.due_at),
    }


def horizon_of(view: ViewState | None, partition: int) -> int | None:
    """The last offset compacted; None: none yet."""
    return None if view is None else view.horizons.get(partition)


def _reach(view: ViewState | None, partition: int, end: int) -> View:
    horizon = horizon_of(view, partition)
    return {"horizon": horizon, "lag": end if horizon is None else end - 1 - horizon}


def _status(s: Services, under_way: PlanRecord | None, ended: Outcome | None) -> tuple[str, str]:
    if under_way is not None:
        plan_id = under_way.plan.plan_id
        if ended is not None and ended.plan_id == plan_id:
            return "ERROR", f"{ended.name}: {ended.detail}"
        if waits(s, under_way):
            return "RUNNING", f"plan {plan_id} waits for a person: lifecycle approve {plan_id[:12]} --by NAME --text WHY"
        if belongs_to_another(s, plan_id, under_way.recorded_at, None):
            return "RUNNING", f"plan {plan_id} is {under_way.state}"
        return "ERROR", f"its run ended while plan {plan_id} was {under_way.state}; the next run takes its place"
    if ended is None:
        return "NOT_RUN", "nothing was compacted yet"
    if ended.name in _GOOD_ENDS:
        return "SUCCESS", "nothing was new" if ended.name == "no_op" else f"plan {ended.plan_id} is published"
    return "ERROR", f"{ended.name}: {ended.detail}"


def _figures(staged: Staged | None) -> View:
    """Of the work itself. Rates are bytes by the whole time of the work, reading and writing alike (CMP-11)."""
    view = None if staged is None else staged.view
    if view is None:
        names = ("rows_in", "rows", "bytes_read", "bytes_written", "duration_seconds", "read_bytes_per_second", "write_bytes_per_second")
        return {**dict.fromkeys(names), "engine": None}
    seconds = view.took_ms / _MILLIS if view.took_ms else None
    return {
        "rows_in": view.view_rows + view.tail_rows,
        "rows": view.rows,
        "bytes_read": view.bytes_read,
        "bytes_written": view.bytes_written,
        "duration_seconds": seconds,
        "read_bytes_per_second": None if seconds is None else round(view.bytes_read / seconds),
        "write_bytes_per_second": None if seconds is None else round(view.bytes_written / seconds),
        "engine": view.engine,
    }
