"""`make demo`: the main job on real data, from nothing to a verified deletion, by a scheduled DAG run.

The demo starts the embedded default and lands 336,776 real flights as topic `flights`. The flights of a few airlines also land in a second
topic, with lifetimes of their own. The scheduler compacts the first topic and runs the message cleaner. The demo checks the compacted view
against the files with pandas, and prints how many messages were removed and why, with one removed and one remaining message as examples.

A document follows: 18,335 real edits come in, two clients synchronise, the edits that both have are removed, and the text stays. The demo
then reads the text as a new client does, and compares it with the text that the recorded edits end with.

After a deletion, the demo undoes one plan, reclaims the space of another plan, and erases a key with a receipt. At the end it stops what it
started. The output has forty lines; the last lines say what to look at next. The exit status is 0 only if every result is correct.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from lifecycle_local import airflow, demo_data, embedded, stack
from lifecycle_local.layout import find_layout
from lifecycle_local.progress import Progress
from message_lifecycle.app import documents, erasures, receipts, steps, tasks
from message_lifecycle.app.config import interval_seconds
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.app.views.state import OutcomeView
from message_lifecycle.app.wording import end_offsets_text, reasons
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.errors import EpochMismatch, LifecycleError
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.message import is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import size
from message_lifecycle.model.plan_content import content_digest
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A DAG that the demo lets run, in words. `interval`: the setting of its schedule; None: it is triggered."""

    dag_id: str
    title: str
    interval: Literal["interval", "compaction_interval", "snapshots_interval"] | None


COMPACTION = Shown(dag_id="log_compaction", title="Airflow runs the DAG log_compaction", interval="compaction_interval")
CLEANER = Shown(
    dag_id="message_cleaner",
    title="Airflow runs the DAG message_cleaner: due, plan and stage, mark, gate, publish, verify",
    interval="interval",
)
DOCUMENTS = Shown(
    dag_id="snapshot_with_purge",
    title="Airflow runs the DAG snapshot_with_purge",
    interval="snapshots_interval",
)
RECLAIM = Shown(
    dag_id="storage_reclaim",
    title="Airflow runs the DAG storage_reclaim: what was removed longer ago than the undo window leaves the disk",
    interval=None,
)
FLIGHTS = TopicName(stream="demo", topic="flights")
PARTITIONS = 2
# Half a year of a year's flights: under half of them is older, so no person is asked.
# Its undo window is a demo's: the space comes back at once. A segment ends by its size, for a day of flights is a small file.
SETTINGS: dict[str, Value] = {
    "message_expiry": 190 * 86_400,
    "segment_size_bytes": 2_000_000,
    "segment_max_seconds": 0,
    "cleanup_policy": "compact,delete",
    "undo_window": 1,
}
WITH_TTL = TopicName(stream="demo", topic="flights.with.ttl")
# Most of these flights expire by their TTL, and an aircraft without a remaining flight gets a marker. The demo asks no person for approval.
TTL_SETTINGS: dict[str, Value] = {"subject_delete_marker_ttl": 30 * 86_400, "max_removed_fraction": 0.9, "segment_max_seconds": 0}
COMPONENTS = TopicName(stream="demo", topic="components")
DOCUMENT_SETTINGS: dict[str, Value] = {"fold": "text_splice", "snapshot_with_purging_changes": True}
DOCUMENT = "game.svelte"
LAPTOP, PHONE = "laptop", "phone"
PHONE_HAS = 12_000
"""How far the slower client has come. No later change may be removed."""
BY, WHY = "demo", "make demo shows it"
LOOK = "`make up` starts it again and leaves it running"
LOOK_AT_CLUSTER = "`export LIFECYCLE_STACK=cluster`, then `make up`, and the demo leaves it running"
TRY = f"""
{{look}}: `Lifecycle` in Airflow's navigation has a page of each topic and of each plan. Then try:
  .venv/bin/lifecycle status                         # of each topic: what is overdue and who holds it, what went last
  .venv/bin/lifecycle explain {FLIGHTS} 0:0       # why one message is there, or which plan removed it
  .venv/bin/lifecycle plan {FLIGHTS} --dry-run    # what would go now, and what holds the rest"""
_RUN_SECONDS = 420.0


def demo_failed(text: str) -> LifecycleError:
    """The demo did not come out as it must; the message says where."""
    return LifecycleError(text, code="DemoFailed")


def document_differs(text: str) -> LifecycleError:
    """The document's life did not come out as it must; the message says where."""
    return LifecycleError(text, code="DocumentDiffers")


def afterwards_failed(text: str) -> LifecycleError:
    """Create the error for a wrong result after the deletion. `text` says which result."""
    return LifecycleError(text, code="AfterwardsFailed")


def main() -> int:
    """Run the demo; 0 when all came out as it must."""
    from message_lifecycle.app.wiring import lake
    from message_lifecycle.stores.iceberg.engine import end_engine

    started = time.monotonic()
    progress = Progress(announced=False)
    layout = find_layout()
    ran_before = stack.status(layout)
    try:
        with progress.step("PostgreSQL, Spark and Airflow, set up where they are not yet, and started"):
            embedded.up(layout)
        landed = _land(progress)
        _land_document(lake(), progress)
        api = airflow.connect_to_airflow(layout)
        # Compact, then expire: what is not in the view yet the cleaner keeps.
        compacted, cleaned, purged = (_run(api, progress, dag) for dag in (COMPACTION, CLEANER, DOCUMENTS))
        _report_view(progress, compacted, landed[FLIGHTS])
        _report(progress, cleaned, landed)
        _explain_two(lake(), progress, FLIGHTS)
        _report_document(lake(), progress, purged)
        _take_back(lake(), progress, WITH_TTL)
        on_disk = stack.bytes_of_tables(layout)
        _report_space(lake(), progress, _run(api, progress, RECLAIM), FLIGHTS, on_disk=on_disk)
        _erase_one(lake(), progress, WITH_TTL)
    finally:
        if not (ran_before.address or any(ran_before.cluster.values())):  # whose store keeps its objects as long as it runs
            end_engine()  # else it misses its cluster, in many lines
            kept = "what was in the store is gone" if layout.is_cluster else "the data stays"
            with progress.step(f"Everything that was started is stopped; {kept}"):
                stack.down(layout)
    look = LOOK_AT_CLUSTER if layout.is_cluster else LOOK
    progress.say(f"Done in {time.monotonic() - started:.0f} s: it all came out as it must.\n{TRY.format(look=look)}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A topic before any run: its end offsets, and by how many days its times were moved."""

    end_offsets: dict[int, int]
    shift_days: int


def _land(progress: Progress, *, shift_to: date | None = None) -> dict[TopicName, Landed]:
    """Create the topics and land the flights, the last of them on that day (default: today); the second time all is there and nothing is added."""
    from message_lifecycle.app.wiring import lake

    s = lake()
    landed = {}
    for name, settings, land, what in (
        (FLIGHTS, SETTINGS, demo_data.ingest_flights, "flights of 2013, moved by whole days to end today"),
        (WITH_TTL, TTL_SETTINGS, demo_data.ingest_flights_with_ttl, "a few airlines' flights, each with a TTL of its own"),
    ):
        with progress.step(f"Topic {name}: {what}"):
            if name not in s.topics.list(name.stream):
                create_topic(s, name, partitions=PARTITIONS, settings=settings)
            elif name == FLIGHTS:  # it may be from before there was compaction
                alter_topic(s, name, {"cleanup_policy": SETTINGS["cleanup_policy"]})
            result = land(name, shift_to=shift_to)
        progress.say(f"  {result.rows:,} messages landed" if result.rows else "  they are all there already")
        landed[name] = Landed(end_offsets=dict(s.reader.end_offsets(name)), shift_days=result.shift_days)
    return landed


def _run(api: airflow.AirflowApi, progress: Progress, dag: Shown) -> list[OutcomeView]:
    """Unpause the DAG and wait until the scheduler has run it to an end; returns the outcomes of the run.

    A scheduler that owes two intervals makes both runs at once, and one leaves to the other what that works on: both are waited for.
    """
    dag_id = dag.dag_id
    with progress.step(dag.title):
        api.wait_for_dag(dag_id, seconds=120)
        before = _runs(api, dag_id)
        known = {run["dag_run_id"] for run in before}
        api.set_paused(dag_id, False)
        run_id = (
            _scheduled_run(api, dag_id, known)
            if _owes_a_run(dag, before)  # the DAG's newest day ended before the demo began, so the scheduler makes a run
            else _triggered(api, dag_id)
        )
        state = api.wait_for_run(dag_id, run_id, seconds=_RUN_SECONDS)
        beside = [str(run["dag_run_id"]) for run in _runs(api, dag_id) if run["dag_run_id"] not in {*known, run_id}]
        for other in beside:
            api.wait_for_run(dag_id, other, seconds=_RUN_SECONDS)
        api.set_paused(dag_id, True)
    if state != "success":
        for task in api.tasks(dag_id, run_id):
            progress.say(f"  {task.task_id}: {task.state}")
        raise demo_failed(f"the run {run_id} of {dag_id} ended as {state}; its logs are under {find_layout().logs}")
    return [outcome for one in (run_id, *beside) for outcome in tasks.outcomes_of_run(run=f"{dag_id}/{one}")]


def _runs(api: airflow.AirflowApi, dag_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.request("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=100&order_by=-run_after")["dag_runs"]
    return found


def _owes_a_run(dag: Shown, before: list[dict[str, Any]]) -> bool:
    """True if the newest interval has had no run yet. The scheduler makes exactly one run for each interval."""
    if dag.interval is None:
        return False
    interval = timedelta(seconds=interval_seconds(dag.interval))
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
    raise demo_failed(f"the scheduler started no run of {dag_id} in time; see {find_layout().logs}/scheduler.log")


def _report_view(progress: Progress, outcomes: list[OutcomeView], landed: Landed) -> None:
    """Report the compaction, and check by another computation that the view holds the latest flight of each aircraft."""
    from message_lifecycle.app.wiring import lake

    s = lake()
    progress.say("")
    view = s.view_of(FLIGHTS)
    compactions = s.ledger.history(FLIGHTS, operations=["compaction"])
    last = next((outcome for _, outcome in compactions if outcome.name == "published"), None)
    if view is None or last is None or last.plan_id is None:
        raise demo_failed(f"{FLIGHTS}: nothing was compacted: {'; '.join(outcome.detail for outcome in outcomes) or 'the run was idle'}")
    since = (
        "" if any(outcome.outcome == "published" for outcome in outcomes) else "; nothing was new since, and nothing in the view was due"
    )
    progress.say(
        f"{FLIGHTS}: compacted: {view.rows:,} messages in the view, left out {reasons(dict(last.removed))}{_content(s, last.plan_id)}{since}"
    )
    rows = [row.message for row in s.stores.view.view_rows(FLIGHTS, view) if not row.remembered]
    there = demo_data.latest_found(rows)
    policy = Policy.from_values(s.ledger.record(last.plan_id).plan.policy)
    wanted = demo_data.latest_expected(
        demo_data.flights_folder(), shift_days=landed.shift_days, as_of=last.as_of, message_expiry_us=policy.message_expiry_us
    )
    wrong = demo_data.differences(wanted, there)
    if wrong:
        raise demo_failed(
            f"{FLIGHTS}: of {len(wanted)} aircraft {len(wrong)} have another latest flight in the view than in the files: {wrong[:5]}"
        )
    # Without a key nothing is superseded: that is why the view holds more messages than there are aircraft.
    of_no_aircraft = sum(message.key is None for message in rows)
    others = f"; {of_no_aircraft:,} name no aircraft: without a key, each of them is kept" if of_no_aircraft else ""
    progress.say(f"  {len(there):,} are each an aircraft's latest flight, as pandas finds them in the files{others}")


def _report(progress: Progress, outcomes: list[OutcomeView], landed: dict[TopicName, Landed]) -> None:
    from message_lifecycle.app.wiring import lake

    s = lake()
    markers = dict[TopicName, int]()
    for name, before in ((name, topic.end_offsets) for name, topic in landed.items()):
        for outcome in (outcome for outcome in outcomes if outcome.topic == name and outcome.outcome != "no_op"):
            progress.say(f"{name}: {outcome.outcome}, removed {_removed(s, outcome)}")
            plans = f"plan {outcome.plan_id}{_content(s, outcome.plan_id)}"
            progress.say(f"  as of {format_instant(outcome.as_of)}, {plans}, {outcome.detail or 'verified'}")
            markers[name] = markers.get(name, 0) + outcome.markers
        log = s.reader.log(name)
        if not any(outcome.removed for outcome in outcomes if outcome.topic == name):
            history = s.ledger.history(name, operations=["message_cleaner"])
            last = next((o for _, o in history if o.name == "published"), None)
            plans = f"the last one removed {last.removed_rows:,} (plan {last.plan_id})" if last else "and no earlier run has"
            progress.say(f"{name}: nothing was due, nothing was removed; {plans}")
        left = sum(segment.rows for segment in log.segments)
        made = f"; {_markers(s, name, markers[name])}" if markers.get(name) else ""
        progress.say(f"{name}: {left:,} messages are left; end offsets {end_offsets_text(log.end_offsets)}{made}")
        moved = sum(log.end_offsets.values()) - sum(before.values())
        if moved != markers.get(name, 0):
            raise demo_failed(
                f"{name}: the end offsets moved from {end_offsets_text(before)} to {end_offsets_text(log.end_offsets)}, by other than the markers"
            )


def _removed(s: Services, outcome: OutcomeView) -> str:
    """`3 of 10 messages (3 by expiry), 1.2 kB of 4 kB`."""
    gone, found = sum(outcome.removed.values()), ""
    if not gone or outcome.plan_id is None:
        return "nothing"
    expected = s.ledger.record(outcome.plan_id).plan.expected
    if expected.removed_bytes and expected.bytes_in is not None:  # single messages are marked in their files, which stay
        found = f", {size(expected.removed_bytes)} of {size(expected.bytes_in)}"
    return f"{gone:,} of {outcome.messages_before:,} messages ({reasons(outcome.removed)}){found}"


def _content(s: Services, plan_id: str | None) -> str:
    """The digest of what the plan does, which is the same on each stack for equal input."""
    return "" if plan_id is None else f", content {content_digest(s.ledger.record(plan_id).plan)[:16]}"


def _markers(s: Services, name: TopicName, count: int) -> str:
    """Describe the number of keys without a remaining message, and the marker of one of them."""
    marker = next(message for message in s.reader.messages(name) if is_marker(message.headers))
    shown = ", ".join(f"{header}: {content.decode()}" for header, content in marker.headers)
    return f"{count:,} markers stand for aircraft that have none, as {(marker.key or b'').decode()} ({shown})"


def _explain_two(s: Services, progress: Progress, name: TopicName) -> None:
    """Why the first message went, and why the first that is there stayed: what `lifecycle explain` answers of any of them."""
    now, segments = s.ledger.now(), sorted(s.reader.log(name).segments, key=lambda segment: (segment.partition, segment.base_offset))
    places = [(0, 0), *((segment.partition, segment.base_offset) for segment in segments[:1])]
    for (partition, offset), wanted in zip(places, ("gone", "kept"), strict=True):
        found = explain_message(s, name, partition, offset, as_of=now)
        if found.verdict != wanted:
            raise demo_failed(f"{name}: message {partition}:{offset} is {found.verdict} and not {wanted}: {found.why}")
        progress.say(f"why {name} {partition}:{offset} {'went' if wanted == 'gone' else 'stayed'}: {found.why}")


def _land_document(s: Services, progress: Progress) -> None:
    """Make the topic, take the edits in, and let two clients synchronise; the second time all is there and nothing is added."""
    with progress.step(f"Topic {COMPONENTS}: a program text as it was typed, edit by edit (Joseph Gentle, editing-traces, CC BY 4.0)"):
        if COMPONENTS not in s.topics.list(COMPONENTS.stream):
            create_topic(s, COMPONENTS, settings=DOCUMENT_SETTINGS)
        state = next(iter(s.documents.states(COMPONENTS, s.documents.tables(COMPONENTS), only=(DOCUMENT,))), None)
        there = 0 if state is None else state.seq
        missing = demo_data.editing_trace(document=DOCUMENT, client=LAPTOP).changes[there:]
        if missing:
            documents.add_changes(s, COMPONENTS, missing)
    clients = f"{LAPTOP} has them all, {PHONE} those up to {PHONE_HAS:,}"
    progress.say(f"  {len(missing):,} changes added; {clients}" if missing else "  they are all there already")
    if there < demo_data.TRANSACTIONS:
        for client, has in ((LAPTOP, demo_data.TRANSACTIONS), (PHONE, PHONE_HAS)):
            documents.sync(s, COMPONENTS, DOCUMENT, client=client, server_seq=has, at=s.ledger.now())


def _report_document(s: Services, progress: Progress, outcomes: list[OutcomeView]) -> None:
    """Report the DAG's result and the remaining changes, and check the text. Raises DocumentDiffers."""
    last = next((outcome for _, outcome in s.ledger.history(COMPONENTS, operations=["snapshot_with_purge"]) if outcome.plan_id), None)
    (found,) = documents.describe(s, COMPONENTS, DOCUMENT)
    if last is None or last.name not in ("published", "no_op") or not found.state.snapshots:
        raise document_differs(
            f"{COMPONENTS}: no snapshot was made: {'; '.join(outcome.detail for outcome in outcomes) or 'the run was idle'}"
        )
    new = any(outcome.plan_id == last.plan_id for outcome in outcomes)
    ended = last.detail or "verified" if new else "of an earlier run; nothing was due since"
    gone = f"{last.removed_rows:,} of {demo_data.TRANSACTIONS:,} changes ({reasons(dict(last.removed))})" if last.removed else "nothing"
    progress.say(f"{COMPONENTS}: {last.name}, removed {gone}, plan {last.plan_id}{_content(s, last.plan_id)}, {ended}")
    state = found.state
    stored = "no change" if state.first is None else f"changes {state.first:,} to {state.seq:,}"
    progress.say(
        f"  document {DOCUMENT}: {stored} are left, snapshots at {', '.join(f'{seq:,}' for seq in state.snapshots)}, epoch {state.epoch}"
    )
    _check_clients(s, progress)
    _check_text(s, progress)


def _check_clients(s: Services, progress: Progress) -> None:
    """Check that the slower client can go on, and that a client that was away during the purge gets an error instead of a gap."""
    pinned = min((row.server_seq for row in s.ledger.synced(COMPONENTS, DOCUMENT)), default=None)
    slowest = ""
    if pinned is not None:
        documents.pull(s, COMPONENTS, DOCUMENT, client=PHONE, client_seq=pinned)
        slowest = f"the slowest client goes on from {pinned:,}; "
    try:
        documents.pull(s, COMPONENTS, DOCUMENT, client="tablet", client_seq=100, epoch=0)
    except EpochMismatch as error:
        progress.say(f"  {slowest}a tablet that was away gets EpochMismatch (epoch {error.brought}, now {error.epoch}) and attaches again")
        return
    raise document_differs(f"{COMPONENTS}: a client that stood on purged changes was let go on")


def _check_text(s: Services, progress: Progress) -> None:
    """Compare a new client's text with the text at the end of the recording."""
    got = documents.attach(s, COMPONENTS, DOCUMENT, client="visitor")
    entries = list(documents.history(s, COMPONENTS, DOCUMENT, start=got.seq))
    wanted = demo_data.editing_trace(document=DOCUMENT, client=LAPTOP).text
    if not entries or entries[-1] != (demo_data.TRANSACTIONS, wanted):
        raise document_differs(f"{COMPONENTS}: the text of {DOCUMENT} at change {got.seq:,} is not the one that its edits end in")
    if got.snapshot is not None and got.snapshot.server_seq == demo_data.TRANSACTIONS and got.state != wanted:
        raise document_differs(
            f"{COMPONENTS}: the snapshot of {DOCUMENT} at {demo_data.TRANSACTIONS:,} is another text than its edits give"
        )
    progress.say(f"  its text, {len(wanted):,} characters, is the one that the {demo_data.TRANSACTIONS:,} edits end in")


def _take_back(s: Services, progress: Progress, topic: TopicName) -> None:
    """Undo the cleaner's last deletion of the topic, markers and all; what came back is left alone from then on."""
    history = s.ledger.history(topic, operations=["message_cleaner"])
    plan_id = next((outcome.plan_id for _, outcome in history if outcome.name == "published"), None)
    if plan_id is None:
        raise afterwards_failed(f"{topic}: the cleaner has removed nothing that could be taken back")
    before = _messages(s, topic)
    with progress.step(f"That deletion of {topic} is taken back"):
        outcome = steps.run(s, topic, as_of=s.ledger.now(), approver=lambda _plan, _report: (True, BY, WHY), work=UndoPlan(plan_id=plan_id))
    if outcome.name not in ("published", "no_op"):
        raise afterwards_failed(f"{topic}: plan {plan_id} was not taken back: {outcome.name}: {outcome.detail}")
    after = _messages(s, topic)
    came, removed = outcome.restored, s.ledger.record(plan_id).plan.expected.removed_rows
    if outcome.name == "published" and (came != removed or after != before + came - outcome.removed_rows):
        raise afterwards_failed(f"{topic}: {removed:,} messages went with plan {plan_id}, {came:,} came back, {after:,} are there")
    effect = f"{came:,} messages came back, {outcome.removed_rows:,} markers went" if outcome.name == "published" else "it was before"
    again = steps.run(s, topic, as_of=s.ledger.now())
    if again.removed_rows:
        raise afterwards_failed(f"{topic}: what came back was removed again: {dict(again.removed)}")
    progress.say(f"  {effect}; {after:,} messages are there, and the cleaner, run again, takes none of them")


def _report_space(s: Services, progress: Progress, outcomes: list[OutcomeView], topic: TopicName, *, on_disk: int) -> None:
    """Report how many of the bytes `on_disk` the reclaim gave back, or the result of an earlier demo's reclaim."""
    found = next((o for _, o in s.ledger.history(topic, operations=["reclaim"]) if o.name == "published"), None)
    if found is None or found.reclaimed_files is None or found.reclaimed_bytes is None:
        outcomes_text = "; ".join(f"{outcome.topic}: {outcome.outcome}: {outcome.detail}" for outcome in outcomes)
        raise afterwards_failed(f"{topic}: no space came back: {outcomes_text or 'the run was idle'}")
    new = any(outcome.topic == topic and outcome.outcome == "published" for outcome in outcomes)
    of = f" of the {size(on_disk)} that all topics had on disk" if new else ""
    ended = "verified" if new else "of an earlier run; nothing more was past its undo window"
    progress.say(f"  {topic}: {found.reclaimed_files:,} files are gone, {size(found.reclaimed_bytes)}{of}; plan {found.plan_id}, {ended}")


def _erase_one(s: Services, progress: Progress, topic: TopicName) -> None:
    """Erase the first aircraft that still has a message, and hold the receipt to the tables."""
    key = next((m.key for m in s.reader.messages(topic) if m.key is not None and not is_marker(m.headers)), None)
    if key is None:
        raise afterwards_failed(f"{topic}: no message with a key is left that could be erased")
    with progress.step(f"An aircraft is erased from {topic}, from its history and from what an undo would bring back"):
        request = erasures.ask(s, [key], topics=[topic], forbid=True, by=BY, why=WHY)
        (found,) = erasures.carry_out(s, request.request_id, approver=lambda _plan, _report: (True, BY, WHY))
    if not found.is_done:
        raise afterwards_failed(f"the erasure was not carried out: {found.why_not_done()}")
    wrong = receipts.verify(s, request.request_id)
    if wrong or any(message.key == key for message in s.reader.messages(topic)):
        raise afterwards_failed(f"{topic}: the erased key is still to be found: {'; '.join(wrong) or 'a reader sees it'}")
    receipt = Receipt.from_json(s.ledger.receipt(request.request_id))
    tables = [table for of_topic in receipt.topics for table in of_topic.tables]
    progress.say(
        f"  {sum(of_topic.rows for of_topic in receipt.topics):,} messages of one key are erased; "
        f"{sum(len(table.gone) for table in tables):,} files are gone, {sum(table.files_searched for table in tables):,} searched again"
    )
    progress.say(f"  receipt {request.request_id}: `lifecycle receipt verify {request.request_id[:12]}` holds it to the tables at any time")


def _messages(s: Services, topic: TopicName) -> int:
    return sum(segment.rows for segment in s.reader.log(topic).segments)
