"""`make demo`: the main job on real data, from nothing to a verified deletion, by a scheduled DAG run.

Starts the embedded default, lands 336,776 real flights as topic `flights`, and those of a few airlines once more with a
lifetime of their own, lets the scheduler compact the first topic and run the message cleaner, checks the compacted view against the
files by pandas, prints what went and why, and stops what it started. A document goes the same way: see `demo_document`; and what comes
after a deletion: see `demo_afterwards`. The exit status tells whether it all came out as it must.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from message_lifecycle.app import embedded
from message_lifecycle.local import airflow, stack
from message_lifecycle.local.layout import find_layout
from message_lifecycle.local.progress import Progress
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Policy, Value

# Compact, then expire: what is not in the view yet the cleaner keeps.
DAGS = {
    "log_compaction": "The scheduler runs log compaction (due, plan and stage, gate, publish, verify)",
    "message_cleaner": "The scheduler runs the message cleaner (due, plan and stage, mark, gate, publish, verify)",
    "snapshot_with_purge": "The scheduler makes the document's snapshot and purges what every client has (due, plan and stage, gate, publish, verify)",
}
RECLAIM = "storage_reclaim"
_DONE = {
    **DAGS,
    RECLAIM: "Airflow gives back the space of what was removed longer ago than the undo window (due, plan, gate, publish, verify)",
}
_INTERVALS: dict[str, Literal["compaction_interval", "snapshots_interval"]] = {
    "log_compaction": "compaction_interval",
    "snapshot_with_purge": "snapshots_interval",
}
FLIGHTS = TopicName(stream="demo", topic="flights")
PARTITIONS = 2
# Half a year of a year's flights: under half of them is older, so no person is asked.
# Its undo window is a demo's: the space comes back at once.
SETTINGS: dict[str, Value] = {
    "message_expiry": 190 * 86_400,
    "segment_size_bytes": 2_000_000,
    "cleanup_policy": "compact,delete",
    "undo_window": 1,
}
WITH_TTL = TopicName(stream="demo", topic="flights.with.ttl")
# Of these most go by their TTL, and an aircraft that has no flight left gets a marker; it is a demo, so no person is asked.
TTL_SETTINGS: dict[str, Value] = {"subject_delete_marker_ttl": 30 * 86_400, "max_removed_fraction": 0.9}
_RUN_SECONDS = 420.0


class DemoFailed(LifecycleError):
    """The demo did not come out as it must; the message says where."""


def main() -> int:
    """Run the demo; 0 when all came out as it must."""
    from message_lifecycle.app import demo_afterwards, demo_document
    from message_lifecycle.app.wiring import lake

    started = time.monotonic()
    progress = Progress()
    layout = find_layout()
    ran_before = stack.status(layout)
    try:
        embedded.up(layout, progress=progress)
        landed = _land(progress)
        demo_document.land(lake(), progress)
        api = airflow.connect(layout)
        outcomes = {dag_id: _run(api, progress, dag_id) for dag_id in DAGS}
        _report_view(progress, outcomes["log_compaction"], landed[FLIGHTS])
        _report(progress, outcomes["message_cleaner"], landed)
        demo_document.report(lake(), progress, outcomes["snapshot_with_purge"])
        demo_afterwards.take_back(lake(), progress, WITH_TTL)
        demo_afterwards.report_space(lake(), progress, _run(api, progress, RECLAIM), FLIGHTS)
        demo_afterwards.erase_one(lake(), progress, WITH_TTL)
    finally:
        if not ran_before.address:
            stack.down(layout, progress=progress)
    progress.say(f"\nDone in {time.monotonic() - started:.0f} s. `make up` starts it again and leaves it running, with the UI.")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A topic before any run: its end offsets, and by how many days its times were moved."""

    end_offsets: dict[int, int]
    shift_days: int


def _land(progress: Progress) -> dict[TopicName, Landed]:
    """Create the topics and land the flights; the second time all is there and nothing is added."""
    from message_lifecycle.app.flights import ingest_flights, ingest_flights_with_ttl
    from message_lifecycle.app.topics import alter_topic, create_topic
    from message_lifecycle.app.wiring import lake

    s = lake()
    landed = {}
    for name, settings, land, what in (
        (FLIGHTS, SETTINGS, ingest_flights, "Flights of 2013, moved by whole days to end today"),
        (WITH_TTL, TTL_SETTINGS, ingest_flights_with_ttl, "A few airlines' flights, each with a TTL of its own"),
    ):
        if name in s.topics.list(name.stream):
            progress.say(f"Topic {name} is there already")
            if name == FLIGHTS:  # it may be from before there was compaction
                alter_topic(s, name, {"cleanup_policy": SETTINGS["cleanup_policy"]})
        else:
            with progress.step(f"Topic {name}"):
                create_topic(s, name, partitions=PARTITIONS, settings=settings)
        with progress.step(what):
            result = land(name)
        progress.say(f"  {result.rows:,} messages landed{'' if result.rows else ' (they are all there already)'}")
        landed[name] = Landed(end_offsets=dict(s.reader.end_offsets(name)), shift_days=result.shift_days)
    return landed


def _run(api: airflow.AirflowApi, progress: Progress, dag_id: str) -> list[dict[str, Any]]:
    """Unpause the DAG and wait until the scheduler has run it to an end; returns the outcomes of the run."""
    from message_lifecycle.app import tasks

    with progress.step(_DONE[dag_id]):
        api.wait_for_dag(dag_id, seconds=120)
        before = _runs(api, dag_id)
        api.set_paused(dag_id, False)
        run_id = (
            _scheduled_run(api, dag_id, {run["dag_run_id"] for run in before})
            if dag_id != RECLAIM and _owes_a_run(dag_id, before)  # whose day, of which the scheduler makes a run, has ended before we began
            else _triggered(api, dag_id)
        )
        state = api.wait_for_run(dag_id, run_id, seconds=_RUN_SECONDS)
        api.set_paused(dag_id, True)
    progress.say(f"  DAG run {run_id}: {state}")
    if state != "success":
        for task in api.tasks(dag_id, run_id):
            progress.say(f"  {task.task_id}: {task.state}")
        raise DemoFailed(f"the run {run_id} of {dag_id} ended as {state}; its logs are under .lifecycle/logs")
    return tasks.outcomes_of_run(run=f"{dag_id}/{run_id}")


def _runs(api: airflow.AirflowApi, dag_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.request("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=100&order_by=-run_after")["dag_runs"]
    return found


def _owes_a_run(dag_id: str, before: list[dict[str, Any]]) -> bool:
    """Whether the newest interval had no run yet; the scheduler makes one for each, and no second."""
    from message_lifecycle.app.config import interval_seconds

    interval = timedelta(seconds=interval_seconds(_INTERVALS.get(dag_id, "interval")))
    ends = [datetime.fromisoformat(run["data_interval_end"]) for run in before if run["run_type"] == "scheduled"]
    return not ends or datetime.now(UTC) >= max(ends) + interval


def _triggered(api: airflow.AirflowApi, dag_id: str) -> str:
    return api.trigger(dag_id, logical_date=datetime.now(UTC).isoformat())


def _scheduled_run(api: airflow.AirflowApi, dag_id: str, before: set[str]) -> str:
    deadline = time.monotonic() + _RUN_SECONDS
    while time.monotonic() < deadline:
        for run in reversed(_runs(api, dag_id)):
            if run["run_type"] == "scheduled" and run["dag_run_id"] not in before:
                return str(run["dag_run_id"])
        time.sleep(0.5)
    raise DemoFailed(f"the scheduler started no run of {dag_id} in time; see .lifecycle/logs/scheduler.log")


def _report_view(progress: Progress, outcomes: list[dict[str, Any]], landed: Landed) -> None:
    """What was compacted, and whether the view holds the latest flight of each aircraft, by another computation."""
    from message_lifecycle.app import latest_flights
    from message_lifecycle.app.flights import flights_folder
    from message_lifecycle.app.wiring import lake
    from message_lifecycle.model.instants import format_instant

    s = lake()
    progress.say("")
    view = s.views.view(FLIGHTS)
    compactions = s.ledger.history(FLIGHTS, operations=["compaction"])
    last = next((outcome for _, outcome in compactions if outcome.name == "published"), None)
    if view is None or last is None or last.plan_id is None:
        raise DemoFailed(f"{FLIGHTS}: nothing was compacted: {'; '.join(outcome['detail'] for outcome in outcomes) or 'the run was idle'}")
    at = f"as of {format_instant(last.as_of)}, plan {last.plan_id}"
    counts = ", ".join(f"{count:,} by {reason}" for reason, count in last.removed)
    progress.say(f"{FLIGHTS}: compacted {at}: {view.rows:,} messages in the view, left out {counts}")
    if not any(outcome["outcome"] == "published" for outcome in outcomes):
        progress.say("  nothing was new since, and nothing in the view was due")
    rows = [row.message for row in s.views.view_rows(FLIGHTS, view) if not row.remembered]
    there = latest_flights.found(rows)
    policy = Policy.of_values(s.ledger.record(last.plan_id).plan.policy)
    wanted = latest_flights.expected(
        flights_folder(), shift_days=landed.shift_days, as_of=last.as_of, message_expiry_us=policy.message_expiry_us
    )
    wrong = latest_flights.differences(wanted, there)
    if wrong:
        raise DemoFailed(
            f"{FLIGHTS}: of {len(wanted)} aircraft {len(wrong)} have another latest flight in the view than in the files: {wrong[:5]}"
        )
    progress.say(f"  {len(there):,} are each an aircraft's latest flight, as pandas finds them in the files")
    # Without a key nothing is superseded: that is why the view holds more messages than there are aircraft.
    if of_no_aircraft := sum(message.key is None for message in rows):
        progress.say(f"  {of_no_aircraft:,} name no aircraft: without a key, each of them is kept")


def _report(progress: Progress, outcomes: list[dict[str, Any]], landed: dict[TopicName, Landed]) -> None:
    from message_lifecycle.app.cli.screen import ends
    from message_lifecycle.app.wiring import lake
    from message_lifecycle.model.marker import is_marker

    s = lake()
    progress.say("")
    markers = {}
    for outcome in outcomes:
        counts = ", ".join(f"{count:,} by {reason}" for reason, count in outcome["removed"].items()) or "nothing"
        progress.say(f"{outcome['topic']}: {outcome['outcome']}, removed {counts}, as of {outcome['as_of']}")
        progress.say(f"  plan {outcome['plan_id']}, snapshot {outcome['snapshot_id']}, {outcome['detail'] or 'verified'}")
        markers[outcome["topic"]] = outcome["markers"]
        if outcome["markers"]:
            progress.say(f"  {outcome['markers']:,} markers: keys that have no message left")
    for name, before in ((name, topic.end_offsets) for name, topic in landed.items()):
        log = s.reader.log(name)
        if not any(outcome["removed"] for outcome in outcomes if outcome["topic"] == str(name)):
            history = s.ledger.history(name, operations=["message_cleaner"])
            last = next((o for _, o in history if o.name == "published"), None)
            told = f"the last one removed {last.removed_rows:,} (plan {last.plan_id})" if last else "and no earlier run has"
            progress.say(f"{name}: nothing was due, nothing was removed; {told}")
        left = sum(segment.rows for segment in log.segments)
        progress.say(f"{name}: {left:,} messages are left; end offsets {ends(log.end_offsets)}")
        moved = sum(log.end_offsets.values()) - sum(before.values())
        if moved != markers.get(str(name), 0):
            raise DemoFailed(f"{name}: the end offsets moved from {ends(before)} to {ends(log.end_offsets)}, by other than the markers")
    some = [m for m in s.reader.messages(WITH_TTL) if is_marker(m.headers)][:2]
    for marker in some:
        shown = ", ".join(f"{header}: {content.decode()}" for header, content in marker.headers)
        progress.say(f"  a marker: aircraft {(marker.key or b'').decode()}, {shown}")
