"""The functions that the Spark applications call: each verb, applied to all topics of one run.

The module also holds the parts that all applications share: the command line, the error boundary and the watch over the parent process.
Topics are isolated, so a failed topic stops no other topic.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from message_lifecycle.app import steps
from message_lifecycle.app.known import error_of_one_topic
from message_lifecycle.app.operations.registry import Scheduled, Work, operation_of_plan, work_on
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import copy_topic
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.errors import EXIT_INTERNAL, LifecycleError, OpenPlan, PlanConflict, UnknownTopic
from message_lifecycle.model.instants import Instant, format_to_second, parse_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanRecord
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.plan_state import Event, PlanState, allows_event
from message_lifecycle.model.request import EraseKey
from message_lifecycle.operations.admission import span_doubled

log = logging.getLogger("lifecycle")
Subject = TypeVar("Subject", TopicName, PlanRecord)


def copy_all(*, topics: list[str]) -> int:
    """Copy new messages into each of the replicas `topics`.

    Returns:
        The exit status. One failed copy makes it nonzero, because nothing else reports a replica that falls behind.
    """
    s = lake()

    def one(name: TopicName) -> None:
        done = copy_topic(s, name)
        log.info("%s: %d new messages copied from %s", name, done.messages, done.origin)
        if done.span_seconds is not None:
            log.warning("%s: %s", name, span_doubled(done.span_seconds))

    return _run_isolated(s, None, None, [TopicName.parse(topic) for topic in topics], one)


def plan_and_stage(*, run: str, as_of: str, topics: list[str], work: Scheduled | EraseKey = "message_cleaner") -> int:
    """Plan and stage every topic. A topic's error is written down as its outcome; exit status: 0 unless every topic failed."""
    asked = "erasure" if isinstance(work, EraseKey) else work
    s = lake()
    instant = parse_instant(as_of)

    def work_of(name: TopicName) -> Work:
        return work if isinstance(work, EraseKey) else work_on(s, name, work, as_of=instant)

    def one(name: TopicName) -> None:
        record = steps.plan(s, name, as_of=instant, run=run, work=work_of(name))
        if record.state in (PlanState.PLANNED, PlanState.STAGED):
            steps.stage(s, record.plan.plan_id)
        log.info("%s: plan %s at %s: %s", name, record.plan.plan_id, format_to_second(instant), summary(record))

    return _run_isolated(s, run, instant, [TopicName.parse(topic) for topic in topics], one, work=asked)


def mark_all(*, run: str) -> int:
    """Stage the markers of every staged plan of the run, if its topic makes markers."""
    s = lake()

    def one(record: PlanRecord) -> None:
        staged = steps.mark(s, record.plan.plan_id)
        made = 0 if staged.markers is None else staged.markers.count
        log.info("%s: plan %s: %d markers", record.plan.topic, record.plan.plan_id, made)

    return _run_isolated(s, run, None, [record for record in _open_plans(s, run) if _wants_markers(record)], one)


def _wants_markers(record: PlanRecord) -> bool:
    """Return True for a staged plan whose markers are not staged yet."""
    return (
        record.state is PlanState.STAGED
        and record.staged is not None
        and record.staged.markers is None
        and steps.may_need_markers(record.plan)
    )


def gate_all(*, run: str) -> int:
    """Judge every staged plan of the run that has no report yet."""
    s = lake()

    def one(record: PlanRecord) -> None:
        try:
            report = steps.gate(s, record.plan.plan_id)
        except PlanConflict as conflict:
            _plan_again(s, record, conflict, run)
            return
        log.info("%s: plan %s: %s", record.plan.topic, record.plan.plan_id, report.judgement)
        for check in report.checks:
            if not check.passed:
                log.warning("%s: %s: %s", record.plan.topic, check.id, check.found)

    records = [record for record in _open_plans(s, run) if record.state is PlanState.STAGED]
    return _run_isolated(s, run, None, records, one)


def publish_all(*, run: str, plan_id: str | None = None) -> int:
    """Publish every plan of the run that may be published. A plan that waits for a person keeps waiting, and is no failure."""
    s = lake()

    def one(record: PlanRecord) -> None:
        try:
            result = steps.publish(s, record.plan.plan_id)
        except PlanConflict as conflict:
            _plan_again(s, record, conflict, run)
            return
        if isinstance(result, Outcome):
            log.info("%s: %s %s", record.plan.topic, result.name, result.detail)
        elif result is not None:
            log.info("%s: plan %s published as snapshot %s", record.plan.topic, result.plan_id, result.snapshot_id)

    records = [s.ledger.record(plan_id)] if plan_id else _open_plans(s, run)
    return _run_isolated(s, run, None, [record for record in records if allows_event(record.state, Event.VERIFY)], one)


def _plan_again(s: Services, record: PlanRecord, conflict: PlanConflict, run: str) -> None:
    """Plan the topic again and run that plan, because the facts behind the first plan have changed."""
    log.warning("%s", conflict)
    ended = steps.outcome_of_other_run(s, record.plan)
    if ended is not None:
        log.info("%s: plan %s was %s by another run", record.plan.topic, record.plan.plan_id, ended.name)
        return
    steps.close(s, record.plan, "superseded", conflict.reason)
    if operation_of_plan(record.plan).by_request:
        raise conflict  # the person who requested it sees the error, and requests it again
    outcome = steps.run(
        s, record.plan.topic, as_of=record.plan.as_of, run=run, work=operation_of_plan(record.plan).replan_work(record.plan)
    )
    log.info("%s: %s %s", record.plan.topic, outcome.name, outcome.detail)


def _open_plans(s: Services, run: str) -> list[PlanRecord]:
    entries = s.ledger.run_entries(run)
    return [s.ledger.record(entry.plan_id) for entry in entries if entry.plan_id is not None and entry.state is not PlanState.CLOSED]


def summary(record: PlanRecord) -> str:
    """One line for the log."""
    return operation_of_plan(record.plan).summary(record.plan) if record.outcome is None else f"{record.outcome.name} before"


def _run_isolated(
    s: Services,
    run: str | None,
    as_of: Instant | None,
    subjects: Sequence[Subject],
    one: Callable[[Subject], None],
    *,
    work: Operation = "message_cleaner",
) -> int:
    """Run `one` for each subject, isolated from the others, and return the exit status.

    The status is nonzero only if every subject failed, because the later tasks must go on with the other topics.

    Args:
        s: The stores, the ledger and the settings.
        run: Record outcomes under this run. None, for copies: record nothing, and one failure makes the status nonzero.
        as_of: The instant by which the run judges.
        subjects: Topics or plans.
        one: The work on one subject.
        work: The operation of the run.
    """
    failures = []
    for subject in subjects:
        try:
            one(subject)
        except OpenPlan as rival:
            log.info("%s", rival)
            if run is not None and isinstance(subject, TopicName) and as_of is not None:
                # The run examined nothing here, so the outcome must not settle anything.
                s.ledger.record_run_outcome(run, replace(_failed_outcome(subject, None, as_of, rival, work), name="no_op", more=True))
        except Exception as error:  # noqa: BLE001 - the barrier of one topic
            name = subject if isinstance(subject, TopicName) else subject.plan.topic
            named_error = (
                error if isinstance(error, LifecycleError) and not isinstance(error, UnknownTopic) else error_of_one_topic(s, name, error)
            )
            log.error("%s: %s: %s", name, named_error.code, named_error)
            failures.append(named_error.exit_code)
            if run is not None:
                plan = None if isinstance(subject, TopicName) else subject.plan
                s.ledger.record_run_outcome(run, _failed_outcome(name, plan, as_of, named_error, work if plan is None else plan.operation))
    return failures[-1] if failures and (run is None or len(failures) == len(subjects)) else 0


def _failed_outcome(name: TopicName, plan: Plan | None, as_of: Instant | None, error: LifecycleError, work: Operation) -> Outcome:
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


# The command line of the Spark applications that plan and stage, the same for every operation.


def planning_main(description: str | None, *, work: Scheduled) -> Callable[[], int]:
    """Return the main function of the operation's application, for `run_application`."""

    def main() -> int:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--run", required=True, help="name of the run; the plans are found by it")
        parser.add_argument("--as-of", required=True, help="the instant to judge by, ISO 8601 UTC")
        parser.add_argument("--topics", required=True, help="stream/topic, separated by commas")
        given = parser.parse_args()
        return plan_and_stage(run=given.run, as_of=given.as_of, topics=given.topics.split(","), work=work)

    return main


# The one error boundary of the Spark applications, and the watch over their parent.
#
# A driver whose parent died must not go on writing: Airflow has failed its task, and another try may run. So a thread ends the process as
# soon as the parent process changes.


_POLL_SECONDS = 0.5
EXIT_ORPHANED = 137
WITHOUT_SPARK = "--without-spark"
"""Argument of every application: no row of a table is read, so there is no work for Spark."""


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
    """Run an application's main function and exit with its status. Our own errors print a remedy, other errors their trace.

    Spark starts first, and runs all tasks of the application. With the argument `--without-spark`, Spark does not start.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "pyiceberg", "great_expectations"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    watch_parent()
    try:
        if WITHOUT_SPARK in sys.argv:
            sys.argv.remove(WITHOUT_SPARK)
        else:
            from message_lifecycle.stores.iceberg.engine import start_application

            start_application(Path(sys.argv[0]).stem)
        status = main()
    except LifecycleError as error:
        log.error("%s: %s", error.code, error)
        status = error.exit_code
    except Exception:  # the boundary: print the trace of any other error, and report it in the status
        log.exception("internal error; nothing is retried, the ledger and the table tell what was done")
        status = EXIT_INTERNAL
    with suppress(Exception):  # the cluster or Java may be gone, but the work is done, and the status reports its result
        from message_lifecycle.stores.iceberg.engine import end_application

        end_application()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of the JVM gateway would keep the process for seconds after the work is done.
    os._exit(status)
