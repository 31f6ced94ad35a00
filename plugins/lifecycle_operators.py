"""Our Airflow operators: an application, with Spark or without, and a question to a person. Every task links to its results."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput
from airflow.sdk.timezone import utcnow

from lifecycle_triggers import QuestionTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import TaskInstanceKey

    from message_lifecycle.app.tasks import Values

APPLICATIONS = Path(__file__).resolve().parents[1] / "spark_apps"
POOL = "lifecycle"
LONGEST_APPLICATION = timedelta(hours=2)
APPROVE, REJECT = "Approve", "Reject"
WITHOUT_TRIGGERER = timedelta(minutes=10)
"""If no triggerer runs, the scheduler ends a question, so much later than the question's own time."""
LONGEST_NAME = 250
"""Airflow keeps so many characters of a mapped task's name."""


def page(path: str) -> str:
    """Return the address of one of our pages, below Airflow's own address."""
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/lifecycle/{path}"


class Results(BaseOperatorLink):
    """A link from a task to its results: its plan's page, or the page of the run."""

    name = "Results"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        plan_id = getattr(operator, "plan_id", None)
        return page(f"plans/{plan_id}" if plan_id else f"runs?dag_id={quote(ti_key.dag_id)}&run_id={quote(ti_key.run_id, safe='')}")


class SparkApplication(SparkSubmitOperator):
    """One of our Spark applications, on the connection `spark_default`. Runs once; the pool limits how many run at the same time."""

    template_fields = (*SparkSubmitOperator.template_fields, "plan_id")
    operator_extra_links = (Results(),)

    def __init__(self, *, application: str, arguments: Any, plan_id: Any = None, **options: Any) -> None:
        super().__init__(
            application=str(APPLICATIONS / f"{application}.py"),
            application_args=arguments,
            name=f"lifecycle {application}",
            pool=POOL,
            retries=0,
            execution_timeout=LONGEST_APPLICATION,
            **options,
        )
        self.plan_id = plan_id


class PlainApplication(BaseOperator):
    """An application that reads no row of a table: the same file, run by this Python, without Spark. Runs once."""

    template_fields = ("arguments", "plan_id")
    operator_extra_links = (Results(),)

    def __init__(self, *, application: str, arguments: Any, plan_id: Any = None, **options: Any) -> None:
        super().__init__(pool=POOL, retries=0, execution_timeout=LONGEST_APPLICATION, **options)
        self.application = str(APPLICATIONS / f"{application}.py")
        self.arguments, self.plan_id = arguments, plan_id
        self._process: SubprocessHook | None = None

    def execute(self, context: Context) -> None:  # noqa: ARG002  # Airflow's own signature
        self._process = SubprocessHook()
        # Run in the project's folder, as Spark's applications do, so that a relative path in a variable means the same to both.
        done = self._process.run_command(
            [sys.executable, self.application, "--without-spark", *self.arguments], env=dict(os.environ), cwd=str(APPLICATIONS.parent)
        )
        if done.exit_code:
            raise AirflowFailException(f"{self.application} ended with status {done.exit_code}; its log above says why")

    def on_kill(self) -> None:
        if self._process is not None:
            self._process.send_sigterm()


class Approval(HITLOperator):
    """Asks a person for one plan. Not Airflow's ApprovalOperator, which skips the task that records a refusal.

    If nobody answers within `approval_ttl`, the task ends without an answer, and the plan lapses. No answer is ever assumed. The plan may
    end elsewhere meanwhile, by the `lifecycle` command or by another run. The task then ends, skipped, and the reason is in its log, its
    name in the grid and its XCom `ending`. If somebody approved the plan elsewhere, the run goes on with that approval.

    A person who answers within a few seconds may be asked again. Airflow 3.3 then queues the second half of the task before the executor
    has reported the end of the first half. Airflow takes that report for the second half, and fails the task (event `state mismatch`).
    """

    template_fields = (*HITLOperator.template_fields, "answer_within", "plan_id", "gate_id")
    operator_extra_links = (Results(),)

    def __init__(self, *, answer_within: Any, plan_id: Any, gate_id: Any, **options: Any) -> None:
        """Create the operator.

        Args:
            answer_within: Seconds, by the topic's settings. The value is known only when the task runs.
            plan_id: The plan that the question is about.
            gate_id: The gate's report that the question shows.
            **options: Options of every operator.
        """
        super().__init__(options=[APPROVE, REJECT], retries=2, retry_delay=timedelta(seconds=1), **options)
        self.answer_within = answer_within
        self.plan_id, self.gate_id = plan_id, gate_id

    def execute(self, context: Context) -> object:
        from message_lifecycle.app import tasks

        ending = tasks.find_question_end(plan_id=self.plan_id, gate_id=self.gate_id)
        if ending is not None:
            return self._end(context, ending)
        self.response_timeout = timedelta(seconds=self.answer_within)
        try:
            return super().execute(context)
        except TaskAwaitingInput:
            # Airflow's own trigger would wait only for an answer, not for another end of the question.
            trigger = QuestionTrigger(
                plan_id=self.plan_id,
                gate_id=self.gate_id,
                ti_id=context["task_instance"].id,
                options=self.options,
                params=self.serialized_params,
                timeout_datetime=utcnow() + self.response_timeout,
            )
            self.defer(trigger=trigger, method_name="execute_complete", timeout=self.response_timeout + WITHOUT_TRIGGERER)

    def execute_complete(self, context: Context, event: Values) -> object:
        if "ending" in event:
            return self._end(context, event["ending"])
        if event.get("error_type") == "timeout":
            return None
        answer = super().execute_complete(context, event)
        granted, text = answer["chosen_options"] == [APPROVE], str(answer["params_input"].get("text") or "")
        return self._answer(granted=granted, by=answer["responded_by_user"]["name"], text=text)

    def _answer(self, *, granted: bool, by: str, text: str) -> Values:
        return {"plan_id": self.plan_id, "gate_id": self.gate_id, "granted": granted, "by": by, "text": text}

    def _end(self, context: Context, ending: Values) -> Values:
        """Return an approval from elsewhere. Otherwise end the task, skipped, and say why."""
        self.subject = f"{self.subject} Ended: {ending['reason']}"[:LONGEST_NAME]
        context["ti"].xcom_push(key="ending", value=ending["reason"])
        said = f"The question ended: {ending['reason']}."
        if not ending["granted"]:
            self.log.info(said)
            raise AirflowSkipException(said)
        self.log.info("%s This run goes on.", said)
        return self._answer(granted=True, by=ending["by"], text=ending["text"])
