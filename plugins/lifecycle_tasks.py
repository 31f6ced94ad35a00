"""The way from due to verified as Airflow tasks: one factory for every operation that deletes.

    copies >> topic_copy >> due          sources and mirrors first: what they have copied their origins may let go (TTL-6)
                         >> copied       the run is red where a copy failed, though the cleaner has gone on

    due >> OPERATION (plan and stage) >> marker_generation >> quality_gate >> publish >> verify    once, for all topics that are due
        >> waiting >> approval: ask >> record >> publish >> verify    mapped, one for each plan that needs a person

    would_go                             of the DAG `preview`: plans, and keeps what they say for the run's page; nothing follows

The cleaner alone copies, and looks for markers of what it takes; a sweep (marker_generation) makes its markers where it is planned;
compaction, the purge of what it covers, and documents make none. What compaction has verified updates the asset `compacted`.

A topic that waits for a person holds up no other. Tasks pass ids and counts, and talk to the ledger through
`message_lifecycle.app.tasks`; no task imports an engine, and Spark work is always spark-submit. Retention on backends that are no tables
goes the same way by the same applications, which Python then runs without Spark; so does the reclaim of tables' space.

Retries: tasks that only read the lake may run again; those that stage or publish never do so by themselves, because Airflow can
start a second try while the first still lives. What makes even that safe is the fence in the commit, not this file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import Asset, Param, task, task_group
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lifecycle_operators import Approval, PlainApplication, SparkApplication, page
from lifecycle_schedules import BY_ITSELF, KEEP_RUNNING, SCHEDULE_OFF

if TYPE_CHECKING:
    from message_lifecycle.app.windows import Window

RUN = "{{ dag.dag_id }}/{{ run_id }}"
_DRY_RUN = "dry_run"
READ_AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=10), "execution_timeout": timedelta(minutes=10)}

# The name says "done"; the rule skips where anything before was skipped (nothing due), and does not run when `due` failed.
AFTER_A_FAILURE_TOO = "all_done_min_one_success"

COMPACTED = Asset("compacted")
"""Topics have new compacted views. Each event's extra: `as_of`, the instant they were judged by, and `topics`."""

OURS: dict[str, Any] = {"owner": "message lifecycle"}
"""What every task of these DAGs has. The second tag of each DAG says for which topics it is."""

_LOOK_FIRST = "The DAG `preview` shows what would go."
_UNPAUSES = (
    "Where this DAG is paused, leave *Unpause ... on trigger* ticked, here and in the dialog of a backfill: a run waits while its DAG is paused. "
    "The DAG is paused again when its runs have ended, and its schedule removes nothing meanwhile."
)

log = logging.getLogger(__name__)
Application = type[SparkApplication] | type[PlainApplication]


def form() -> dict[str, Param]:
    """The trigger form. The names are all that a run may be given; `copies` and `due` refuse any other.

    Nothing here makes a run a trial: the DAG `preview` shows what would go."""
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
    """The form of the DAG that removes nothing."""
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
    """The trigger form of a request that a person has recorded. It names the request: what it is about stands in the ledger alone."""
    return {
        "request_id": Param(
            type="string",
            # A key that is pasted here by mistake is refused before it is kept.
            pattern="^[0-9a-f]{4,32}$",
            title="Request",
            description_md="The id that `lifecycle erase` printed. Never the key itself: what is written here is kept and shown.",
        )
    }


def interval(setting: Literal["interval", "compaction_interval", "snapshots_interval", "reclaim_interval"] = "interval") -> timedelta:
    """How often to look: `interval` under `[message_cleaner]`, `[compaction]`, `[documents]` or `[reclaim]` of include/lifecycle.toml, a small file."""
    from message_lifecycle.app.config import interval_seconds

    return timedelta(seconds=interval_seconds(setting))


def about_a_day() -> timedelta:
    """Whole intervals of the message cleaner: a backfill by them is judged at the ends of some of its intervals (P6)."""
    from message_lifecycle.app.windows import wider

    return wider(interval())


@contextmanager
def _named_errors() -> Iterator[None]:
    """Our errors as Airflow's: what another try cannot mend fails at once."""
    from message_lifecycle.model.errors import LifecycleError, TopicBusy, Unavailable

    try:
        yield
    except (Unavailable, TopicBusy) as error:
        log.warning("%s: %s", error.code, error)  # the trace names its class alone
        raise
    except LifecycleError as error:
        told = f"{error.code}: {error}"
        log.error("%s", told)
        raise AirflowFailException(told) from error


def _run(context: Mapping[str, Any]) -> str:
    return f"{context['dag'].dag_id}/{context['run_id']}"


def _window(context: Mapping[str, Any]) -> Window:
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


def _refuse_unknown(conf: Mapping[str, Any] | None, known: Mapping[str, Param], *, secret: bool = False) -> None:
    """Airflow checks the values of known parameters and lets unknown names through (NUM-1). `secret`: what was given may be a key, and is not
    told; but that of `dry_run`, which earlier versions knew, is."""
    from message_lifecycle.model.errors import InvalidSetting

    for key, value in (conf or {}).items():
        if key in known:
            continue
        instead = f". {_LOOK_FIRST}" if key == _DRY_RUN else ""
        name, shown = (key if key == _DRY_RUN else "a name", "(not shown)") if secret else (key, value)
        raise InvalidSetting(where="configuration of this run", key=name, value=shown, allowed=f"{', '.join(known)}{instead}".rstrip("."))


def _only_where_wanted(context: Mapping[str, Any]) -> None:
    """Skip a run that its DAG's schedule started while nobody wants the schedule: a dialog unpaused the DAG for another run."""
    run = context["dag_run"]
    off = (run.conf or {}).get(SCHEDULE_OFF)
    if off and _type_of(run) in BY_ITSELF:
        raise AirflowSkipException(off)


def _only_as_asked(context: Mapping[str, Any], *, by_hand: bool) -> None:
    """A DAG that is there for backfills does nothing by its own schedule."""
    if by_hand and _type_of(context["dag_run"]) == "scheduled":
        raise AirflowSkipException("this DAG is for backfills: what is due now, the message cleaner takes")


def _type_of(run: Any) -> str:
    return str(getattr(run.run_type, "value", run.run_type))


@task(**READ_AGAIN)
def copies(by_hand: bool = False, **context: Any) -> list[str]:
    """Arguments of the application that copies; without a JVM. None: skipped, and so is the copying."""
    from message_lifecycle.app import tasks

    params = context["params"]
    with _named_errors():
        _only_where_wanted(context)
        _refuse_unknown(context["dag_run"].conf, form())
        _only_as_asked(context, by_hand=by_hand)
        _window(context)  # a run that cannot tell its time ends before it begins
        topics = tasks.copies(topics=params["topics"])
    if not topics:
        raise AirflowSkipException("no source or mirror has anything new to copy")
    return ["--topics", ",".join(topics)]


@task(multiple_outputs=True, **READ_AGAIN)
def due(operation: Any, by_hand: bool = False, **context: Any) -> dict[str, Any]:
    """Which topics are due, without a JVM. None: the run ends here, skipped, and the ledger says so."""
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
def would_go(**context: Any) -> None:
    """What the operation would take, on the run's page, without a JVM. The log names the plans by their ids alone: an erasure does not reach it."""
    from message_lifecycle.app import tasks
    from message_lifecycle.model.instants import format_instant

    params = context["params"]
    with _named_errors():
        _refuse_unknown(context["dag_run"].conf, preview_form())
        window = _window(context)
        log.info("%s", window)
        as_of = format_instant(window.as_of)
        tasks.keep_preview(run=_run(context), as_of=as_of, topics=params["topics"], work=params["operation"])
    log.info("what would go stands under this run's tab Outcomes")


@task(multiple_outputs=True, **READ_AGAIN)
def requested(**context: Any) -> dict[str, Any]:
    """The topics of a recorded request, without a JVM; done before: the run ends here, skipped."""
    from message_lifecycle.app import tasks

    with _named_errors():
        _refuse_unknown(context["dag_run"].conf, erasure_form(), secret=True)
        found = tasks.requested_erasure(run=_run(context), request_id=context["params"]["request_id"])
    if not found["topics"]:
        raise AirflowSkipException(f"erasure request {found['request_id']} is {found['state']}")
    log.info("erasure request %s: %s", found["request_id"], ", ".join(found["topics"]))
    arguments = ["--run", _run(context), "--as-of", found["as_of"], "--topics", ",".join(found["topics"])]
    return {"topics": found["topics"], "window": found["as_of"], "arguments": [*arguments, "--request", found["request_id"]]}


def _only_with_markers(context: Mapping[str, Any]) -> None:
    from message_lifecycle.app import tasks

    with _named_errors():
        if not tasks.wants_markers(run=_run(context)):
            raise AirflowSkipException("no plan of this run calls for markers")


@task(**READ_AGAIN)
def waiting(window: str, **context: Any) -> list[dict[str, Any]]:
    """The plans of this run that need a person, each with the question."""
    from message_lifecycle.app import tasks

    with _named_errors():
        plans = tasks.waiting(run=_run(context))
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


def _only_if_granted(context: Mapping[str, Any]) -> None:
    """Saves starting Spark; publishing itself takes nobody's word but the ledger's.

    Not a short circuit: inside a mapped group Airflow 3.3 does not skip what one says to skip.
    """
    ti = context["ti"]
    if not ti.xcom_pull(task_ids="approval.record", map_indexes=ti.map_index):
        raise AirflowSkipException("no approval: nothing is published")


@task(**READ_AGAIN)
def verify(operation: Any, plan_id: str | None = None, topics: list[str] | None = None, **context: Any) -> list[dict[str, Any]]:
    """Read the tables again and write the outcomes. Red when a topic is blocked, starved or failed, or came to no outcome."""
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
    """One plan that needs a person. Each goes on as soon as its own question is answered."""
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
    """All tasks of what a person has asked for, in order: as `gated_deletion`, but nothing is due, and no markers are made."""
    _from_plan_on(operation, requested())


def gated_deletion(
    operation: str,
    *,
    application: Application = SparkApplication,
    outlets: Sequence[Asset] = (),
    copies_and_marks: bool = False,
    by_hand: bool = False,
) -> None:
    """All tasks of one operation, in order. To be called inside a `@dag` function.

    `application`: what plans, judges and publishes; a `PlainApplication` where no row of a table is read. `outlets`: updated by what was
    verified. `copies_and_marks`: sources and mirrors are copied first, and markers are looked for of what is to go. `by_hand`: runs that the schedule starts
    are skipped."""
    # What is not copied is held, so a failed copy is no reason to leave the other topics alone.
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
        # Markers may be skipped, planning not: where nothing was due, nothing is judged.
        trigger_rule="none_failed_min_one_success",
    )
    published = application(task_id="publish", application="publish", arguments=["--run", RUN])
    # What an application did before it died is found by reading the tables and the ledger.
    verified = verify.override(trigger_rule=AFTER_A_FAILURE_TOO, outlets=outlets)(operation, topics=found["topics"])
    # After publishing, which may have had to plan a topic again.
    questions = waiting.override(trigger_rule=AFTER_A_FAILURE_TOO)(found["window"])
    found >> planned >> gated >> published >> [verified, questions]
    if marks:
        marked = SparkApplication(
            task_id="marker_generation", application="marker_generation", arguments=["--run", RUN], pre_execute=_only_with_markers
        )
        planned >> marked >> gated
    approval.partial(operation=operation, application=application, outlets=outlets).expand_kwargs(questions)
