"""The way from due to verified as Airflow tasks: one factory for every operation that deletes.

    copies >> topic_copy >> due          sources and mirrors first: an origin may remove copied messages (TTL-6)
                         >> copied       the run is red if a copy failed, although the cleaner has gone on

    due >> OPERATION (plan and stage) >> marker_generation >> quality_gate >> publish >> verify    once, for all topics that are due
        >> waiting >> approval: ask >> record >> publish >> verify    mapped, one for each plan that needs a person

    would_go                             in the DAG `preview`: plans, and stores the plans' text for the run's page; nothing follows

Only the cleaner copies, and makes markers for its removals in a task of its own. A sweep (marker_generation) makes its markers in
its planning task. Compaction, its purge, and documents make no markers. The asset `compacted` is updated after a compaction is verified.

A topic that waits for a person holds up no other topic. Tasks pass ids and counts, and use the ledger through
`message_lifecycle.app.tasks`. No task imports an engine, and Spark work always uses spark-submit. Retention on backends and the reclaim of
space have the same tasks and applications, but Python runs these applications without Spark.

Airflow may retry tasks that only read the lake. Airflow never retries tasks that stage or publish, because a second try can start while the
first try is still alive. Even that would be safe, because of the fence in the commit, not because of this file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import Asset, Context, Param, task, task_group
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lifecycle_operators import Approval, PlainApplication, SparkApplication, page
from lifecycle_schedules import BY_ITSELF, KEEP_RUNNING, SCHEDULE_OFF

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol

    from message_lifecycle.app.windows import Window

RUN = "{{ dag.dag_id }}/{{ run_id }}"
_DRY_RUN = "dry_run"
READ_AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=10), "execution_timeout": timedelta(minutes=10)}

# Despite "done" in its name, the rule skips the task after a skipped one (nothing due), and does not run it when `due` failed.
AFTER_A_FAILURE_TOO = "all_done_min_one_success"

COMPACTED = Asset("compacted")
"""Topics have new compacted views. The extra of an event has `as_of`, the instant that the run judged by, and `topics`."""

OURS: dict[str, Any] = {"owner": "message lifecycle"}
"""The default arguments of every task. The second tag of a DAG names its kind of topics."""

_LOOK_FIRST = "The DAG `preview` shows what would go."
_UNPAUSES = (
    "Where this DAG is paused, leave *Unpause ... on trigger* ticked, here and in the dialog of a backfill: a run waits while its DAG is paused. "
    "The DAG is paused again when its runs have ended, and its schedule removes nothing meanwhile."
)

log = logging.getLogger(__name__)
Application = type[SparkApplication] | type[PlainApplication]


def form() -> dict[str, Param]:
    """Return the trigger form. A run takes only these parameters; `copies` and `due` refuse any other name.

    No parameter makes a dry run: the DAG `preview` shows what would be removed.
    """
    return {
        "topics": Param(
            [],
            type="array",
            items={"type": "string", "minLength": 1},
            title="Topics",
            description_md=f"`stream/topic`, one per line. Empty: every topic that is due. **This run removes.** {_LOOK_FIRST} {_UNPAUSES}",
        ),
        "as_of": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="As of",
            description_md="Judge ages by this time (UTC). Empty: the end of the run's data interval. A time that has not come is refused.",
        ),
        KEEP_RUNNING: Param(
            False,
            type="boolean",
            title="Keep the schedule running",
            description_md="The DAG is not paused again after this run: from now on it runs, and removes, on its schedule, too.",
        ),
    }


def preview_form() -> dict[str, Param]:
    """Return the trigger form of the DAG `preview`."""
    from message_lifecycle.app.operations.registry import Scheduled

    said = {
        "topics": "`stream/topic`, one per line. Empty: every topic that is due, and of each other one why it is not.",
        "as_of": "Judge ages by this time (UTC). Empty: the time of the run. A time that has not come is refused.",
    }
    operations = list(get_args(Scheduled))
    operation = Param(operations[0], type="string", enum=operations, title="Operation", description_md="Whose plan is shown.")
    return {"operation": operation} | {
        name: Param(param.value, **(param.schema | {"description_md": said[name]})) for name, param in form().items() if name in said
    }


def erasure_form() -> dict[str, Param]:
    """Return the trigger form for a recorded request. The form has only the request's id, because only the ledger may know its content."""
    return {
        "request_id": Param(
            type="string",
            # The pattern refuses a key that a person pastes here by mistake, before Airflow stores it.
            pattern="^[0-9a-f]{4,32}$",
            title="Request",
            description_md="The id that `lifecycle erase` printed. Never the key itself: what is written here is kept and shown.",
        )
    }


def interval(setting: Literal["interval", "compaction_interval", "snapshots_interval", "reclaim_interval"] = "interval") -> timedelta:
    """Return the interval of a schedule.

    The value is `interval` under `[message_cleaner]`, `[compaction]`, `[documents]` or `[reclaim]` of include/lifecycle.toml, a small file.
    """
    from message_lifecycle.app.config import interval_seconds

    return timedelta(seconds=interval_seconds(setting))


def about_a_day() -> timedelta:
    """Return about a day, as a whole number of the cleaner's intervals, so that a backfill judges at the ends of some of them (P6)."""
    from message_lifecycle.app.windows import backfill_window

    return backfill_window(interval())


@contextmanager
def _named_errors() -> Iterator[None]:
    """Turn our errors into Airflow's. An error that a retry cannot mend fails the task at once."""
    from message_lifecycle.model.errors import LifecycleError, TopicBusy, Unavailable

    try:
        yield
    except (Unavailable, TopicBusy) as error:
        log.warning("%s: %s", error.code, error)  # the trace shows only the class of the error
        raise
    except LifecycleError as error:
        message = f"{error.code}: {error}"
        log.error("%s", message)
        raise AirflowFailException(message) from error


def _run(context: Context) -> str:
    return f"{context['dag'].dag_id}/{context['run_id']}"


def _window(context: Context) -> Window:
    from message_lifecycle.app.windows import resolve

    run = context["dag_run"]
    events = context.get("triggering_asset_events") or {}
    return resolve(
        run_type=_type_of(run),
        interval_start=run.data_interval_start,
        interval_end=run.data_interval_end,
        as_of=context["params"]["as_of"],
        asset_extras=[event.extra for of_asset in events.values() for event in of_asset],
    )


def _refuse_unknown(conf: Mapping[str, object] | None, known: Mapping[str, Param], *, secret: bool = False) -> None:
    """Refuse unknown parameter names, because Airflow only checks the values of known parameters (NUM-1).

    Args:
        conf: The parameters of the run.
        known: The known parameters.
        secret: The value may be a key, so hide the name and the value. The name `dry_run`, of earlier versions, is shown.
    """
    from message_lifecycle.model.errors import InvalidSetting

    for key, value in (conf or {}).items():
        if key in known:
            continue
        instead = f". {_LOOK_FIRST}" if key == _DRY_RUN else ""
        name, shown = (key if key == _DRY_RUN else "a name", "(not shown)") if secret else (key, value)
        raise InvalidSetting(where="configuration of this run", key=name, value=shown, allowed=f"{', '.join(known)}{instead}".rstrip("."))


def _only_where_wanted(context: Context) -> None:
    """Skip a run that the schedule should not have started, because a dialog unpaused the DAG for another run."""
    run = context["dag_run"]
    off = (run.conf or {}).get(SCHEDULE_OFF)
    if off and _type_of(run) in BY_ITSELF:
        raise AirflowSkipException(off)


def _only_as_asked(context: Context, *, by_hand: bool) -> None:
    """Skip a scheduled run of a DAG that exists only for backfills."""
    if by_hand and _type_of(context["dag_run"]) == "scheduled":
        raise AirflowSkipException("this DAG is for backfills: what is due now, the message cleaner takes")


def _type_of(run: DagRunProtocol) -> str:
    return str(getattr(run.run_type, "value", run.run_type))


@task(**READ_AGAIN)
def copies(by_hand: bool = False, **context: Unpack[Context]) -> list[str]:
    """Return the arguments of the copying application, without a JVM. With nothing to copy, this task and the copying are skipped."""
    from message_lifecycle.app import tasks

    params = context["params"]
    with _named_errors():
        _only_where_wanted(context)
        _refuse_unknown(context["dag_run"].conf, form())
        _only_as_asked(context, by_hand=by_hand)
        _window(context)  # a run without a known time ends before it begins
        topics = tasks.copies(topics=params["topics"])
    if not topics:
        raise AirflowSkipException("no source or mirror has anything new to copy")
    return ["--topics", ",".join(topics)]


@task(multiple_outputs=True, **READ_AGAIN)
def due(operation: Any, by_hand: bool = False, **context: Unpack[Context]) -> dict[str, Any]:
    """Find the due topics, without a JVM. If no topic is due, the run ends here, skipped, and the ledger records that."""
    from message_lifecycle.app import tasks
    from message_lifecycle.model.instants import format_instant

    params = context["params"]
    with _named_errors():
        _only_where_wanted(context)
        _refuse_unknown(context["dag_run"].conf, form())
        _only_as_asked(context, by_hand=by_hand)
        window = _window(context)
        log.info("%s", window)
        as_of = format_instant(window.as_of)
        topics = tasks.due(run=_run(context), as_of=as_of, topics=params["topics"], work=operation)
    if not topics:
        raise AirflowSkipException(f"nothing is due ({window})")
    log.info("due: %s", ", ".join(topics))
    arguments = ["--run", _run(context), "--as-of", as_of, "--topics", ",".join(topics)]
    return {"topics": topics, "window": str(window), "arguments": arguments}


@task(**READ_AGAIN)
def would_go(**context: Unpack[Context]) -> None:
    """Show the operation's plans on the run's page, without a JVM. The log has only plan ids, because no erasure reaches the log."""
    from message_lifecycle.app import tasks
    from message_lifecycle.model.instants import format_instant

    params = context["params"]
    with _named_errors():
        _refuse_unknown(context["dag_run"].conf, preview_form())
        window = _window(context)
        log.info("%s", window)
        as_of = format_instant(window.as_of)
        tasks.store_preview(run=_run(context), as_of=as_of, topics=params["topics"], work=params["operation"])
    log.info("what would go stands under this run's tab Outcomes")


@task(multiple_outputs=True, **READ_AGAIN)
def requested(**context: Unpack[Context]) -> dict[str, Any]:
    """Find the topics of a recorded request, without a JVM. If the request is done, the run ends here, skipped."""
    from message_lifecycle.app import tasks

    with _named_errors():
        _refuse_unknown(context["dag_run"].conf, erasure_form(), secret=True)
        found = tasks.requested_erasure(run=_run(context), request_id=context["params"]["request_id"])
    if not found["topics"]:
        raise AirflowSkipException(f"erasure request {found['request_id']} is {found['state']}")
    log.info("erasure request %s: %s", found["request_id"], ", ".join(found["topics"]))
    arguments = ["--run", _run(context), "--as-of", found["as_of"], "--topics", ",".join(found["topics"])]
    return {"topics": found["topics"], "window": found["as_of"], "arguments": [*arguments, "--request", found["request_id"]]}


def _only_with_markers(context: Context) -> None:
    from message_lifecycle.app import tasks

    with _named_errors():
        if not tasks.wants_markers(run=_run(context)):
            raise AirflowSkipException("no plan of this run calls for markers")


@task(**READ_AGAIN)
def waiting(window: str, **context: Unpack[Context]) -> list[dict[str, Any]]:
    """Return the plans of this run that need a person, each with its question."""
    from message_lifecycle.app import tasks

    with _named_errors():
        plans = tasks.waiting_plans(run=_run(context))
    log.info("%d plan(s) wait for a person", len(plans))
    return [
        {
            "plan_id": plan["plan_id"],
            "gate_id": plan["gate_id"],
            "subject": plan["subject"],
            "body": f"{plan['body']}\n\n[All of it: the plan's page]({page('plans/' + plan['plan_id'])})\n\nTime of this run: {window}",
            "answer_within": plan["answer_within"],
        }
        for plan in plans
    ]


@task(**READ_AGAIN)
def record(plan_id: str, answer: dict[str, Any] | None) -> bool:
    """Write a person's answer to the ledger, a refusal too. Return True if the plan may go on. Skipped if the question ended before."""
    from message_lifecycle.app import tasks

    if answer is None:
        log.info("nobody answered in time: plan %s lapses", plan_id)
        return False
    said = f"{answer['by']} {'approved' if answer['granted'] else 'refused'}"
    with _named_errors():
        ending = tasks.record_approval(**answer)
    if ending is None:
        log.info("%s plan %s", said, plan_id)
        return bool(answer["granted"])
    late = f"{said} plan {plan_id} after the question had ended: {ending['reason']}"
    if not ending["granted"]:
        raise AirflowSkipException(late)
    log.info("%s", late)
    return True


def _only_if_granted(context: Context) -> None:
    """Skip without an approval, to save starting Spark. Publishing itself relies only on the ledger's record of the approval.

    The task is no short circuit, because inside a mapped group Airflow 3.3 does not skip the tasks that a short circuit names.
    """
    ti = context["ti"]
    if not ti.xcom_pull(task_ids="approval.record", map_indexes=ti.map_index):
        raise AirflowSkipException("no approval: nothing is published")


@task(**READ_AGAIN)
def verify(operation: Any, plan_id: str | None = None, topics: list[str] | None = None, **context: Unpack[Context]) -> list[dict[str, Any]]:
    """Read the tables again and record the outcomes. The task fails if a topic is blocked, starved or failed, or has no outcome."""
    from message_lifecycle.app import tasks
    from message_lifecycle.model.instants import format_instant

    with _named_errors():
        outcomes = tasks.verify(run=_run(context), plan_id=plan_id, work=operation)
    missing = sorted(set(topics or ()) - {outcome["topic"] for outcome in outcomes})
    if missing:
        raise AirflowFailException(
            f"no outcome for {', '.join(missing)}: the logs of the tasks before say why; nothing of theirs was removed"
        )
    for asset in context["task"].outlets:
        done = sorted(outcome["topic"] for outcome in outcomes if outcome["outcome"] == "published")
        context["outlet_events"][asset].extra = {"as_of": format_instant(_window(context).as_of), "topics": done}
    return outcomes


@task_group
def approval(
    operation: str,
    application: Application,
    outlets: Sequence[Asset],
    plan_id: str,
    gate_id: str,
    subject: str,
    body: str,
    answer_within: int,
) -> None:
    """The tasks for one plan that needs a person. Every plan goes on as soon as its own question is answered."""
    why = Param("", type="string", title="Why", description_md="Kept in the ledger beside your name.")
    ask = Approval(
        task_id="ask",
        subject=subject,
        body=body,
        answer_within=answer_within,
        plan_id=plan_id,
        gate_id=gate_id,
        params={"text": why},
        map_index_template="{{ task.subject }}",
    )
    granted = record(plan_id, ask.output)
    published = application(
        task_id="publish",
        application="publish",
        arguments=["--run", RUN, "--plan", plan_id],
        plan_id=plan_id,
        pre_execute=_only_if_granted,
    )
    granted >> published >> verify.override(trigger_rule="none_failed", outlets=outlets)(operation, plan_id)


def requested_deletion(operation: str) -> None:
    """Create all tasks for a person's request, in order: as `gated_deletion`, but without `due` and without markers."""
    _from_plan_on(operation, requested())


def gated_deletion(
    operation: str,
    *,
    application: Application = SparkApplication,
    outlets: Sequence[Asset] = (),
    copies_and_marks: bool = False,
    by_hand: bool = False,
) -> None:
    """Create all tasks of one operation, in order. Call this function inside a `@dag` function.

    Args:
        operation: The name of the operation.
        application: Plans, judges and publishes. Use `PlainApplication` if the operation reads no row of a table.
        outlets: The assets to update after verifying.
        copies_and_marks: Copy sources and mirrors first, and make markers for the removals.
        by_hand: Skip runs that the schedule starts.
    """
    # The origin holds messages that are not copied, so a failed copy is no reason to stop the other topics.
    found = due.override(trigger_rule="all_done")(operation, by_hand)
    if copies_and_marks:
        copied = SparkApplication(task_id="topic_copy", application="topic_copy", arguments=copies(by_hand))
        copied >> [found, EmptyOperator(task_id="copied", **READ_AGAIN)]
    _from_plan_on(operation, found, application=application, outlets=outlets, marks=copies_and_marks)


def _from_plan_on(
    operation: str, found: Any, *, application: Application = SparkApplication, outlets: Sequence[Asset] = (), marks: bool = False
) -> None:
    planned = application(task_id=operation, application=operation, arguments=found["arguments"])
    gated = application(
        task_id="quality_gate",
        application="quality_gate",
        arguments=["--run", RUN],
        # The task of markers may be skipped, but not the planning: if nothing was due, there is nothing to judge.
        trigger_rule="none_failed_min_one_success",
    )
    published = application(task_id="publish", application="publish", arguments=["--run", RUN])
    # `verify` reads the tables and the ledger, so it also finds the work of an application that died.
    verified = verify.override(trigger_rule=AFTER_A_FAILURE_TOO, outlets=outlets)(operation, topics=found["topics"])
    # Ask after publishing, because publishing may have planned a topic again.
    questions = waiting.override(trigger_rule=AFTER_A_FAILURE_TOO)(found["window"])
    found >> planned >> gated >> published >> [verified, questions]
    if marks:
        marked = SparkApplication(
            task_id="marker_generation", application="marker_generation", arguments=["--run", RUN], pre_execute=_only_with_markers
        )
        planned >> marked >> gated
    approval.partial(operation=operation, application=application, outlets=outlets).expand_kwargs(questions)
