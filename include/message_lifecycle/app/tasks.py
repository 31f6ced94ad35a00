"""Functions for Airflow's own tasks and pages. The functions take and return plain values, and start no JVM."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from message_lifecycle.app import answers, changes, erasures, steps
from message_lifecycle.app.concluding import outcome_of
from message_lifecycle.app.due import Due, record_looks
from message_lifecycle.app.due import due as judge_due
from message_lifecycle.app.known import error_of_one_topic
from message_lifecycle.app.operations.registry import Scheduled, operation_named, preview, topics_to_check, work_on
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import replicas_to_copy
from message_lifecycle.app.views import overview as overview_views
from message_lifecycle.app.views import plans as plan_views
from message_lifecycle.app.views import state as state_views
from message_lifecycle.app.views import status as status_views
from message_lifecycle.app.views import topics as topic_views
from message_lifecycle.app.views.overview import ErasureLine
from message_lifecycle.app.views.plans import PlanView, approval_text, plan_view, question_of, removal_of, waits_until
from message_lifecycle.app.views.state import OutcomeView, outcome_view, outcomes_view
from message_lifecycle.app.views.status import StatusView
from message_lifecycle.app.views.topics import TopicPage
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.errors import LifecycleError, UnknownTopic
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant, parse_instant
from message_lifecycle.model.names import TopicName, safe
from message_lifecycle.model.outcome import Outcome, PlanRecord, RunEntry
from message_lifecycle.model.phrases import size
from message_lifecycle.model.plan import Operation
from message_lifecycle.model.plan_state import PlanState
from message_lifecycle.model.settings import resolve

Values = dict[str, Any]
"""JSON, as Airflow hands it from task to task."""
log = logging.getLogger("lifecycle")


def run_failed(outcomes: list[Outcome]) -> LifecycleError:
    """At least one topic of the run ended in a way that a person must see."""
    failures = "; ".join(f"{outcome.topic}: {outcome.name}: {outcome.detail}" for outcome in outcomes)
    return LifecycleError(f"{failures}. Nothing was removed by these. See docs/runbook.md, by outcome.", code="RunFailed")


def copies(*, topics: list[str]) -> list[str]:
    """Return the replicas with something new to copy: all, or only the named topics and their copies. Reads metadata only."""
    s = lake()
    return [str(name) for name in replicas_to_copy(s, [TopicName.parse(topic) for topic in topics])]


def due(*, run: str, as_of: str, topics: list[str], work: Scheduled = "message_cleaner") -> list[str]:
    """Return the due topics as `stream/topic`, and record it if no topic is due. Without named topics, judge all known topics.

    A returned topic belongs to this run: if two runs judge it at the same time, only one of them gets it.

    A named topic that cannot be judged raises its error. Any other such topic gets a failed outcome in this run, and the others go on.
    """
    s = lake()
    instant = parse_instant(as_of)
    s.ledger.check_as_of(instant, resolve(topic={}, server=s.server).clock_skew_us)
    given = [TopicName.parse(topic) for topic in topics]
    found = judge_due(s, topics_to_check(s, work, given), as_of=instant, run=run, work=work, named=bool(topics))
    record_looks(s, found, as_of=instant, work=work)
    failed = [
        _failed_judgement(s, run, answer, instant, work) for answer in found if answer.error is not None and _is_news(answer.error, topics)
    ]
    found = [_claim_topic(s, run, answer) if answer.due else answer for answer in found]
    for answer in found:
        log.info("%s: %s: %s", answer.topic, "due" if answer.due else "not due", answer.reason)
    if failed and not any(answer.due for answer in found):
        raise run_failed(failed)
    if not any(answer.due for answer in found):
        reasons = [f"{answer.topic}: {answer.reason}{_earlier_result(s, answer.topic, instant, work)}" for answer in found]
        s.ledger.record_idle_run(run, as_of=instant, detail="; ".join(reasons)[:2000])
    return [str(answer.topic) for answer in found if answer.due]


def store_preview(*, run: str, as_of: str, topics: list[str], work: Scheduled) -> None:
    """Plan the named topics, or all due topics, and store the printed plans for the run's page.

    No plan is recorded, and the run claims no topic. Only the ledger keeps the text: it may name documents, and an erasure searches the
    ledger. A topic that cannot be planned hides no other topic.

    Raises:
        RunFailed: Some topics could not be planned. Their errors are in the stored text.
    """
    from message_lifecycle.app.cli.screen import render_text

    s = lake()
    instant = parse_instant(as_of)
    s.ledger.check_as_of(instant, resolve(topic={}, server=s.server).clock_skew_us)
    given = [TopicName.parse(topic) for topic in topics]
    names = topics_to_check(s, work, given)
    answers = [] if given else judge_due(s, names, as_of=instant, work=work)
    texts, failed = [], []
    for name in given or [answer.topic for answer in answers if answer.due or answer.error is not None]:
        try:
            made = preview(s, name, as_of=instant, work=work_on(s, name, work, as_of=instant))
        except Exception as error:  # noqa: BLE001 - the barrier of one topic
            why = error_of_one_topic(s, name, error)
            failed.append(Outcome(name="failed", operation=work, topic=name, as_of=instant, detail=f"{why.code}: {why}"))
        else:
            log.info("%s: plan %s", name, made.plan_id)
            texts.append(render_text(plan_view(made).screen_blocks()))
    texts += [f"{outcome.topic}: cannot be planned: {outcome.detail}\n" for outcome in failed]
    texts += [f"{answer.topic}: not due: {answer.reason}\n" for answer in answers if not answer.due and answer.error is None]
    s.ledger.record_idle_run(run, as_of=instant, detail="\n".join(texts) or "No topic is there for this operation.\n")
    if failed:
        raise run_failed(failed)


def preview_page(*, run: str) -> Values:
    """Return the text that `keep_preview` stored. `printed` is None if there is no text (yet)."""
    kept = next(iter(lake().ledger.runs(run)), None)
    as_of = None if kept is None or kept.as_of is None else format_instant(kept.as_of)
    return {"run_id": run, "as_of": as_of, "printed": None if kept is None or not kept.detail else kept.detail}


def requested_erasure(*, run: str, request_id: str) -> Values:
    """Return the topics of a recorded request, with `as_of` and the request's full id and state. The run claims these topics.

    A done or refused request returns no topics. A request without topics is settled here, because no later task would do it.
    """
    s = lake()
    request = s.ledger.erasure(request_id)
    now = s.ledger.now()
    topics = erasures.topics_of(s, request) if request.state == "requested" else []
    for name in topics:
        s.ledger.claim(run, name, since=now)
    if request.state == "requested" and not topics:
        request = erasures.settle_latest(s, request)
    found = {"request_id": request.request_id, "state": request.state, "as_of": format_instant(now)}
    return {**found, "topics": [str(name) for name in topics]}


def _claim_topic(s: Services, run: str, answer: Due) -> Due:
    rival = s.ledger.claim(run, answer.topic, since=Instant(s.ledger.now() - changes.UNDER_WAY_US))
    return answer if rival is None else replace(answer, due=False, reason=f"another run works on it: {rival}")


def _is_news(error: LifecycleError, named: list[str]) -> bool:
    """Return False for a topic that was dropped after the listing of all topics. Raise the error if topics were named."""
    if named:
        raise error
    return not isinstance(error, UnknownTopic)


def _failed_judgement(s: Services, run: str, answer: Due, as_of: Instant, work: Scheduled) -> Outcome:
    outcome = Outcome(name="failed", operation=work, topic=answer.topic, as_of=as_of, detail=answer.reason)
    return s.ledger.record_run_outcome(run, outcome)


def _earlier_result(s: Services, name: TopicName, as_of: Instant, work: Scheduled) -> str:
    """An interval that is judged again reports its first result (DEL-5)."""
    first = s.ledger.find_published(name, work, as_of)
    if first is None:
        return ""
    if first.outcome is not None and first.outcome.reclaimed_bytes is not None:
        return f" (plan {first.plan.plan_id} brought {size(first.outcome.reclaimed_bytes)} back at this as_of before)"
    removed = sum(count for _, count in removal_of(first))
    return f" (plan {first.plan.plan_id} removed {removed} at this as_of before)"


def wants_markers(*, run: str) -> bool:
    """Return whether a plan of the run may need markers. If not, the task need not start a JVM."""
    s = lake()
    entries = [entry for entry in s.ledger.run_entries(run) if entry.plan_id is not None and entry.state is PlanState.STAGED]
    return any(steps.may_need_markers(s.ledger.record(entry.plan_id).plan) for entry in entries if entry.plan_id is not None)


def waiting_plans(*, run: str) -> list[Values]:
    """Return the plans of this run that need a person, each with the facts for a decision (Markdown) and the seconds left to answer."""
    s = lake()
    questions = []
    for entry in s.ledger.run_entries(run):
        if entry.plan_id is None or entry.state is not PlanState.ASKED:
            continue
        record = s.ledger.record(entry.plan_id)
        if record.state is PlanState.ASKED:
            subject = safe(f"{entry.topic}: {question_of(record)}")
            body = "\n".join(map(safe, approval_text(s, record).split("\n")))
            assert record.report is not None, "what was judged has a report"
            question = {"plan_id": entry.plan_id, "gate_id": record.report.gate_id, "topic": str(entry.topic), "subject": subject}
            questions.append({**question, "body": body, "answer_within": _answer_within(s, record)})
    return questions


def _answer_within(s: Services, record: PlanRecord) -> int:
    until = waits_until(record)
    return 1 if until is None else max(1, (until - s.ledger.now()) // MICROS_PER_SECOND + 1)


def record_approval(*, plan_id: str, gate_id: str, granted: bool, by: str, text: str) -> Values | None:
    """Record a person's answer to the question about this plan and this gate report. A refusal closes the plan.

    Returns:
        None, or how the question had ended before, as in `find_question_end`.
    """
    return _as_values(answers.record_answer(lake(), plan_id, gate_id, granted=granted, by=by, text=text))


def find_question_end(*, plan_id: str, gate_id: str, with_settings: bool = True) -> Values | None:
    """Return how a question to a person ended elsewhere; None: it still waits.

    `granted`: somebody approved the plan, `by` and `text`, and it may go on. `reason`: in words that Airflow may keep.
    """
    return _as_values(answers.find_question_end(lake(), plan_id, gate_id, with_settings=with_settings))


def _as_values(ending: answers.QuestionEnd | None) -> Values | None:
    if ending is None:
        return None
    given = ending.approval
    words = {} if given is None else {"by": given.by, "text": given.text}
    return {"granted": given is not None, "reason": ending.reason, **words}


def verify(*, run: str, plan_id: str | None = None, work: Operation = "message_cleaner") -> list[Values]:
    """Compare the tables with the run's plans and record the outcomes.

    Args:
        run: The id of the run whose plans to verify.
        plan_id: Verify this plan alone. None: all plans of the run.
        work: The operation of the run.

    Raises:
        RunFailed: A topic is blocked, starved or failed, which a person must see.
    """
    s = lake()
    entries = [entry for entry in s.ledger.run_entries(run) if plan_id in (None, entry.plan_id)]
    planned = {entry.topic for entry in entries if entry.plan_id is not None}
    judged = [entry for entry in entries if entry.plan_id is not None or entry.outcome is not None or entry.topic not in planned]
    outcomes = [_outcome(s, run, entry, work, answered=plan_id is not None) for entry in judged]
    for outcome in outcomes:
        log.info("%s: %s %s %s", outcome.topic, outcome.name, dict(outcome.removed), outcome.detail)
    if operation_named(work).by_request:
        _settle(s, entries)
    failed = [outcome for outcome in outcomes if outcome.name in ("blocked", "starved", "failed")]
    if failed:
        raise run_failed(failed)
    # Airflow stores a task's result, so leave out lists that may be as long as a log.
    return [as_json(outcome_view(replace(outcome, held=(), warnings=()))) for outcome in outcomes]


def _outcome(s: Services, run: str, entry: RunEntry, work: Operation, *, answered: bool) -> Outcome:
    """Return the run's outcome for one topic. Close a plan that no task works on any more, so that the next run may begin.

    Args:
        s: The stores, the ledger and the settings.
        run: The id of the run that worked on the topic.
        entry: The run's entry for the topic.
        work: The operation of the run.
        answered: The tasks after a person's answer have ended. Otherwise an approved plan may still be in these tasks.
    """
    if entry.plan_id is None and entry.outcome is None:
        said = "its run ended before it was planned; the log of the first Spark task says why"
        lost = Outcome(name="failed", operation=work, topic=entry.topic, as_of=s.ledger.now(), detail=said)
        return s.ledger.record_run_outcome(run, lost)
    if entry.plan_id is None or entry.state is PlanState.CLOSED:
        assert entry.outcome is not None, "a closed plan has an outcome"
        return entry.outcome
    record = s.ledger.record(entry.plan_id)
    plan = record.plan
    if changes.is_committed(s, plan) or (plan.is_empty and record.state is PlanState.PASSED):
        return steps.verify(s, entry.plan_id)
    if record.state is PlanState.ASKED or (record.approval is not None and not answered):
        if changes.waits_for_person(s, record):
            return outcome_of(plan, "needs_approval", detail="waits for a person")
        outdated = changes.why_outdated(s, plan)
        return steps.close(s, plan, "superseded" if outdated else "lapsed", outdated or "nobody answered in time")
    said = (
        entry.outcome.detail
        if entry.outcome
        else f"its run ended while the plan was {record.state.word}; the logs of the Spark tasks say why"
    )
    return steps.close(s, plan, "failed", said)


def _settle(s: Services, entries: Sequence[RunEntry]) -> None:
    plans = [s.ledger.record(entry.plan_id).plan for entry in entries if entry.plan_id is not None]
    for request_id in {plan.erasure.request_id for plan in plans if plan.erasure is not None}:
        erasures.settle_latest(s, s.ledger.erasure(request_id))


def outcomes_of_run(*, run: str) -> list[OutcomeView]:
    """Return the outcomes that the run has so far."""
    s = lake()
    return outcomes_view(s, [(None, entry.outcome) for entry in s.ledger.run_entries(run) if entry.outcome is not None])


def runs(limit: int = 50) -> list[OutcomeView]:
    return state_views.runs(lake(), limit=limit)


def outcomes_without_erasures(limit: int) -> list[OutcomeView]:
    return overview_views.outcomes_without_erasures(lake(), limit=limit)


def erasures_asked() -> list[ErasureLine]:
    return overview_views.erasure_lines(lake())


def topic_page(topic: str) -> TopicPage:
    s = lake()
    return topic_views.topic_page(s, TopicName.parse(topic))


def plan_page(plan_id: str) -> PlanView:
    return plan_views.plan_page(lake(), plan_id)


def status() -> list[StatusView]:
    return status_views.status(lake())
