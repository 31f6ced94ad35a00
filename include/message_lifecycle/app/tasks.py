"""What others call to run the verbs for many topics: the Spark applications, and Airflow's own tasks and pages."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from message_lifecycle.app import changes, requests, steps, views
from message_lifecycle.app.due import Due
from message_lifecycle.app.due import due as judge_due
from message_lifecycle.app.operations.registry import Scheduled, Work, again, looked_at, named, of_plan, preview, work_on
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import copy_topic, to_copy
from message_lifecycle.app.views.plans import plan_view
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.errors import EXIT_INTERNAL, LifecycleError, OpenPlan, PlanConflict, UnknownTopic
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant, parse_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanRecord, RunEntry
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.request import EraseKey
from message_lifecycle.model.settings import resolve

# The verbs for all topics of one run, as the Spark applications call them. Topics are isolated: one that fails stops no other.


log = logging.getLogger("lifecycle")
Subject = TypeVar("Subject", TopicName, PlanRecord)


def copy_all(*, topics: list[str]) -> int:
    """Copy into every replica; exit status: 0 unless one failed, for nothing else tells that a replica falls behind."""
    s = lake(app_name="topic_copy")

    def one(name: TopicName) -> None:
        done = copy_topic(s, name)
        log.info("%s: %d new messages copied from %s", name, done.messages, done.origin)

    return _isolated(s, None, None, [TopicName.parse(topic) for topic in topics], one)


def plan_and_stage(*, run: str, as_of: str, topics: list[str], dry_run: bool, work: Scheduled | EraseKey = "message_cleaner") -> int:
    """Plan (and stage) every topic. A topic's error is written down as its outcome; exit status: 0 unless every topic failed."""
    asked = "erasure" if isinstance(work, EraseKey) else work
    operation = named(asked)
    s = lake(app_name=asked, spark_ahead=operation.wants_spark and not dry_run)
    instant = parse_instant(as_of)

    def work_of(name: TopicName) -> Work:
        return work if isinstance(work, EraseKey) else work_on(s, name, work, as_of=instant)

    def one(name: TopicName) -> None:
        if dry_run:
            print(json.dumps(plan_view(preview(s, name, as_of=instant, work=work_of(name))), sort_keys=True))
            return
        record = steps.plan(s, name, as_of=instant, run=run, work=work_of(name))
        if record.outcome is None and record.report is None:
            steps.stage(s, record.plan.plan_id)
        log.info("%s: plan %s at %s: %s", name, record.plan.plan_id, format_instant(instant), summary(s, record))

    return _isolated(s, None if dry_run else run, instant, [TopicName.parse(topic) for topic in topics], one, work=asked)


def mark_all(*, run: str) -> int:
    """Put the markers of every staged plan of the run beside it, where its topic makes any."""
    s = lake(app_name="marker_generation")

    def one(record: PlanRecord) -> None:
        staged = steps.mark(s, record.plan.plan_id)
        made = 0 if staged.markers is None else staged.markers.count
        log.info("%s: plan %s: %d markers", record.plan.topic, record.plan.plan_id, made)

    return _isolated(s, run, None, [record for record in _open_plans(s, run) if _wants_markers(s, record)], one)


def _wants_markers(s: Services, record: PlanRecord) -> bool:
    """A staged plan whose markers nobody has looked for yet."""
    return record.staged is not None and record.staged.markers is None and record.report is None and steps.marks(s, record.plan)


def gate_all(*, run: str) -> int:
    """Judge every staged plan of the run that has no report yet."""
    s = lake(app_name="quality_gate")

    def one(record: PlanRecord) -> None:
        try:
            report = steps.gate(s, record.plan.plan_id)
        except PlanConflict as conflict:
            _again(s, record, conflict, run)
            return
        log.info("%s: plan %s: %s", record.plan.topic, record.plan.plan_id, report.judgement)
        for check in report.checks:
            if not check.passed:
                log.warning("%s: %s: %s", record.plan.topic, check.id, check.found)

    records = [record for record in _open_plans(s, run) if record.staged is not None and record.report is None]
    return _isolated(s, run, None, records, one)


def publish_all(*, run: str, plan_id: str | None = None) -> int:
    """Publish what may be; a plan that waits for a person is left waiting and is no failure."""
    s = lake(app_name="publish")

    def one(record: PlanRecord) -> None:
        try:
            result = steps.publish(s, record.plan.plan_id)
        except PlanConflict as conflict:
            _again(s, record, conflict, run)
            return
        if isinstance(result, Outcome):
            log.info("%s: %s %s", record.plan.topic, result.name, result.detail)
        elif result is not None:
            log.info("%s: plan %s published as snapshot %s", record.plan.topic, result.plan_id, result.snapshot_id)

    records = [s.ledger.record(plan_id)] if plan_id else _open_plans(s, run)
    return _isolated(s, run, None, [record for record in records if record.outcome is None and record.report is not None], one)


def _again(s: Services, record: PlanRecord, conflict: PlanConflict, run: str) -> None:
    """What it was planned on has changed: plan anew and carry that out, all of it here."""
    log.warning("%s", conflict)
    ended = steps.ended_by_another(s, record.plan)
    if ended is not None:
        log.info("%s: plan %s was %s by another run", record.plan.topic, record.plan.plan_id, ended.name)
        return
    steps.close(s, record.plan, "superseded", conflict.reason)
    if of_plan(s, record.plan).by_request:
        raise conflict  # whoever asked is told, and asks again
    outcome = steps.run(s, record.plan.topic, as_of=record.plan.as_of, run=run, work=again(s, record.plan))
    log.info("%s: %s %s", record.plan.topic, outcome.name, outcome.detail)


def _open_plans(s: Services, run: str) -> list[PlanRecord]:
    entries = s.ledger.run_entries(run)
    return [s.ledger.record(entry.plan_id) for entry in entries if entry.plan_id is not None and entry.state != "closed"]


def summary(s: Services, record: PlanRecord) -> str:
    """One line for the log."""
    return of_plan(s, record.plan).summary(record.plan) if record.outcome is None else f"{record.outcome.name} before"


def _isolated(
    s: Services,
    run: str | None,
    as_of: Instant | None,
    subjects: Sequence[Subject],
    one: Callable[[Subject], None],
    *,
    work: Operation = "message_cleaner",
) -> int:
    """Each by itself. The status says that nothing went well, not that something did not: the others must be able to go on.

    `run` None: nothing is written down (a dry run, a copy), and one failure is the status.
    """
    failures = []
    for subject in subjects:
        try:
            one(subject)
        except OpenPlan as rival:
            log.info("%s", rival)
            if run is not None and isinstance(subject, TopicName) and as_of is not None:
                s.ledger.record_run_outcome(run, replace(_failed(subject, None, as_of, rival, work), name="no_op"))
        except LifecycleError as error:
            name = subject if isinstance(subject, TopicName) else subject.plan.topic
            log.error("%s: %s: %s", name, error.code, error)
            failures.append(error.exit_code)
            if run is not None:
                plan = None if isinstance(subject, TopicName) else subject.plan
                s.ledger.record_run_outcome(run, _failed(name, plan, as_of, error, work if plan is None else plan.operation))
    return failures[-1] if failures and (run is None or len(failures) == len(subjects)) else 0


def _failed(name: TopicName, plan: Plan | None, as_of: Instant | None, error: LifecycleError, work: Operation) -> Outcome:
    judged_at = as_of if plan is None else plan.as_of
    assert judged_at is not None
    return Outcome(
        name="failed",
        operation=work,
        topic=name,
        as_of=judged_at,
        plan_id=None if plan is None else plan.plan_id,
        detail=f"{error.code}: {error}",
    )


# The command line of the Spark applications that plan and stage: one, whatever the operation.


def planning(description: str | None, *, work: Scheduled) -> Callable[[], int]:
    """The main function of the operation's application, for `run_application`."""

    def main() -> int:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--run", required=True, help="name of the run; the plans are found by it")
        parser.add_argument("--as-of", required=True, help="the instant to judge by, ISO 8601 UTC")
        parser.add_argument("--topics", required=True, help="stream/topic, separated by commas")
        parser.add_argument("--dry-run", action="store_true", help="print the plans and stage nothing")
        given = parser.parse_args()
        return plan_and_stage(run=given.run, as_of=given.as_of, topics=given.topics.split(","), dry_run=given.dry_run, work=work)

    return main


# The one error boundary of the Spark applications, and the watch over their parent.
#
# A driver whose parent died must not go on writing: its task has been failed, and another try may run. So a thread leaves as
# soon as the parent process changes.


_POLL_SECONDS = 0.5
EXIT_ORPHANED = 137


def watch_parent(leave: Callable[[int], None] = os._exit, parent: Callable[[], int] = os.getppid) -> threading.Thread:
    """Leave at once (status 137) when the parent process is gone. Start this before anything else."""
    first = parent()
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_POLL_SECONDS):
            if parent() != first:
                print("lifecycle: the parent process is gone; leaving before anything else is written", file=sys.stderr)
                leave(EXIT_ORPHANED)
                return

    thread = threading.Thread(target=watch, name="parent-watch", daemon=True)
    thread.start()
    return thread


def run_application(main: Callable[[], int]) -> None:
    """Run a Spark application's main function and leave with its status; our errors print what to do, others their trace."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "pyiceberg", "great_expectations"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    watch_parent()
    try:
        status = main()
    except LifecycleError as error:
        log.error("%s: %s", error.code, error)
        status = error.exit_code
    except Exception:  # the boundary: whatever it is, its trace is printed and the status says so
        log.exception("internal error; nothing is retried, the ledger and the table tell what was done")
        status = EXIT_INTERNAL
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of the JVM gateway would keep the process for seconds after the work is done.
    os._exit(status)


# What Airflow's own tasks and pages call: plain values in, plain values out, no JVM.


def run_failed(outcomes: list[Outcome]) -> LifecycleError:
    """At least one topic of the run ended in a way that a person must see."""
    told = "; ".join(f"{outcome.topic}: {outcome.name}: {outcome.detail}" for outcome in outcomes)
    return LifecycleError(f"{told}. Nothing was removed by these. See docs/runbook.md, by outcome.", code="RunFailed")


def copies(*, topics: list[str]) -> list[str]:
    """Replicas with something new to copy: all, or those among the named topics and those that copy from them. By metadata."""
    return [str(name) for name in to_copy(lake(), [TopicName.parse(topic) for topic in topics])]


def due(*, run: str, as_of: str, topics: list[str], dry_run: bool = False, work: Scheduled = "message_cleaner") -> list[str]:
    """Topics that are due, as `stream/topic`; all known topics are asked when none is named. Nothing due is recorded too.

    They are this run's from then on: of two runs that look at one time, one carries a topic out (a dry run takes none).

    A topic that cannot be judged is refused if it was named, and else fails in this run's outcomes while the others go on.
    """
    s = lake()
    instant = parse_instant(as_of)
    s.ledger.check_as_of(instant, resolve(topic={}, server=s.server).clock_skew_us)
    given = [TopicName.parse(topic) for topic in topics]
    found = judge_due(s, looked_at(s, work, given), as_of=instant, run=run, work=work, named=bool(topics))
    failed = [_not_judged(s, run, answer, instant, work) for answer in found if answer.error is not None and _is_news(answer.error, topics)]
    if not dry_run:
        found = [_taken(s, run, answer) if answer.due else answer for answer in found]
    for answer in found:
        log.info("%s: %s: %s", answer.topic, "due" if answer.due else "not due", answer.reason)
    if failed and not any(answer.due for answer in found):
        raise run_failed(failed)
    if not any(answer.due for answer in found):
        told = [f"{answer.topic}: {answer.reason}{_done_before(s, answer.topic, instant, work)}" for answer in found]
        s.ledger.record_idle_run(run, as_of=instant, detail="; ".join(told)[:2000])
    return [str(answer.topic) for answer in found if answer.due]


def requested_erasure(*, run: str, request_id: str) -> dict[str, Any]:
    """The topics of a recorded request, which are this run's from then on: with `as_of`, and the request's whole id and state. None where
    it is done or was refused; one that has no topic (any more) is settled here, for no task comes after."""
    s = lake()
    request = s.ledger.erasure(request_id)
    now = s.ledger.now()
    topics = requests.topics_of(s, request) if request.state == "requested" else []
    for name in topics:
        s.ledger.claim(run, name, since=now)
    if request.state == "requested" and not topics:
        request = requests.settle_latest(s, request)
    found = {"request_id": request.request_id, "state": request.state, "as_of": format_instant(now)}
    return {**found, "topics": [str(name) for name in topics]}


def _taken(s: Services, run: str, answer: Due) -> Due:
    rival = s.ledger.claim(run, answer.topic, since=Instant(s.ledger.now() - changes.UNDER_WAY_US))
    return answer if rival is None else replace(answer, due=False, reason=f"another run works on it: {rival}")


def _is_news(error: LifecycleError, named: list[str]) -> bool:
    """A topic that somebody named must be there; one that was dropped since all were listed is nobody's loss."""
    if named:
        raise error
    return not isinstance(error, UnknownTopic)


def _not_judged(s: Services, run: str, answer: Due, as_of: Instant, work: Scheduled) -> Outcome:
    outcome = Outcome(name="failed", operation=work, topic=answer.topic, as_of=as_of, detail=answer.reason)
    return s.ledger.record_run_outcome(run, outcome)


def _done_before(s: Services, name: TopicName, as_of: Instant, work: Scheduled) -> str:
    """An interval that is judged again reports its first result (DEL-5)."""
    first = s.ledger.find_published(name, work, as_of)
    if first is None:
        return ""
    if first.outcome is not None and first.outcome.reclaimed_bytes is not None:
        return f" (plan {first.plan.plan_id} brought {first.outcome.reclaimed_bytes} bytes back at this as_of before)"
    removed = sum(count for _, count in views.removal_of(first))
    return f" (plan {first.plan.plan_id} removed {removed} at this as_of before)"


def wants_markers(*, run: str) -> bool:
    """Whether a plan of the run may call for markers: else no JVM need be started to find out."""
    s = lake()
    entries = [entry for entry in s.ledger.run_entries(run) if entry.plan_id is not None and entry.state == "staged"]
    return any(steps.marks(s, s.ledger.record(entry.plan_id).plan) for entry in entries if entry.plan_id is not None)


def waiting(*, run: str) -> list[dict[str, Any]]:
    """Plans of this run that need a person, with what they should know to decide (Markdown), and how long they have: seconds."""
    s = lake()
    questions = []
    for entry in s.ledger.run_entries(run):
        if entry.plan_id is None or entry.judgement != "needs_approval" or entry.state != "gated":
            continue
        record = s.ledger.record(entry.plan_id)
        if record.approval is None and not record.plan.is_older:
            subject = f"{entry.topic}: {views.question_of(record)}"
            question = {"plan_id": entry.plan_id, "topic": str(entry.topic), "subject": subject}
            questions.append({**question, "body": views.approval_text(record), "answer_within": _answer_within(s, record)})
    return questions


def _answer_within(s: Services, record: PlanRecord) -> int:
    until = views.waits_until(record)
    return 1 if until is None else max(1, (until - s.ledger.now()) // MICROS_PER_SECOND + 1)


def record_approval(*, plan_id: str, granted: bool, by: str, text: str) -> None:
    """Write down a person's answer; a refusal closes the plan."""
    steps.approve(lake(), plan_id, granted=granted, by=by, text=text)


def verify(*, run: str, plan_id: str | None = None, work: Operation = "message_cleaner") -> list[dict[str, Any]]:
    """Check what was published against the plans and write the outcomes; `work`: what the run was for. Raises RunFailed for what a
    person must see."""
    s = lake()
    entries = [entry for entry in s.ledger.run_entries(run) if plan_id in (None, entry.plan_id)]
    planned = {entry.topic for entry in entries if entry.plan_id is not None}
    judged = [entry for entry in entries if entry.plan_id is not None or entry.outcome is not None or entry.topic not in planned]
    outcomes = [_outcome(s, run, entry, work, answered=plan_id is not None) for entry in judged]
    for outcome in outcomes:
        log.info("%s: %s %s %s", outcome.topic, outcome.name, dict(outcome.removed), outcome.detail)
    if named(work).by_request:
        _settle(s, entries)
    failed = [outcome for outcome in outcomes if outcome.name in ("blocked", "starved", "failed")]
    if failed:
        raise run_failed(failed)
    return [told(outcome) for outcome in outcomes]


def _outcome(s: Services, run: str, entry: RunEntry, work: Operation, *, answered: bool) -> Outcome:
    """What the run has come to for one topic; a plan that nobody works on any more is closed, so that the next run may begin.

    `answered`: asked after the way that follows a person's word; else such a plan may still be on it.
    """
    if entry.plan_id is None and entry.outcome is None:
        said = "its run ended before it was planned; the log of the first Spark task says why"
        lost = Outcome(name="failed", operation=work, topic=entry.topic, as_of=s.ledger.now(), detail=said)
        return s.ledger.record_run_outcome(run, lost)
    if entry.plan_id is None or entry.state == "closed":
        assert entry.outcome is not None, "a closed plan has an outcome"
        return entry.outcome
    record = s.ledger.record(entry.plan_id)
    plan, judgement = record.plan, record.report.judgement if record.report else None
    if changes.is_committed(s, plan) or (plan.is_empty and judgement == "passed"):
        return steps.verify(s, entry.plan_id)
    try:
        changes.require_todays(s, plan)
    except PlanConflict as older:
        return steps.close(s, plan, "superseded", older.reason)
    if judgement == "needs_approval" and not (answered and record.approval is not None):
        if changes.waits(s, record):
            return steps.outcome_of(plan, "needs_approval", detail="waits for a person")
        return steps.close(s, plan, "lapsed", "nobody answered in time")
    said = entry.outcome.detail if entry.outcome else f"its run ended while the plan was {entry.state}; the logs of the Spark tasks say why"
    return steps.close(s, plan, "failed", said)


def _settle(s: Services, entries: Sequence[RunEntry]) -> None:
    plans = [s.ledger.record(entry.plan_id).plan for entry in entries if entry.plan_id is not None]
    for request_id in {plan.erasure.request_id for plan in plans if plan.erasure is not None}:
        requests.settle_latest(s, s.ledger.erasure(request_id))


def outcomes_of_run(*, run: str) -> list[dict[str, Any]]:
    """What the run has come to so far."""
    return [told(entry.outcome) for entry in lake().ledger.run_entries(run) if entry.outcome is not None]


def told(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values."""
    return {
        "topic": str(outcome.topic),
        "operation": outcome.operation,
        "outcome": outcome.name,
        "plan_id": outcome.plan_id,
        "first_plan_id": outcome.first_plan_id,
        "as_of": format_instant(outcome.as_of),
        "removed": dict(outcome.removed),
        "markers": outcome.markers,
        "restored": outcome.restored,
        "reclaimed_bytes": outcome.reclaimed_bytes,
        "rows_in": outcome.rows_in,
        "rows_kept": outcome.rows_kept,
        "snapshot_id": outcome.snapshot_id,
        "more": outcome.more,
        "detail": outcome.detail,
    }


def runs(limit: int = 50) -> list[dict[str, Any]]:
    return views.runs(lake(), limit=limit)


def topic_page(topic: str) -> dict[str, Any]:
    return views.topic_page(lake(), TopicName.parse(topic))


def plan_page(plan_id: str) -> dict[str, Any]:
    return views.plan_page(lake(), plan_id)


def status() -> list[dict[str, Any]]:
    return views.status(lake())
