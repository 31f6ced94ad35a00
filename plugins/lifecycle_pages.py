"""Read-only pages inside Airflow's UI: every topic's state, one topic, one plan, and the outcomes or the preview of a run.

A user who may read the message cleaner's DAG may read the overview and the topics' pages. A run's page also needs read access to the run's
DAG, and a plan's page to each DAG whose run worked on the plan. The application itself has the access check, so no route can lack it.
"""

# No `from __future__ import annotations`: FastAPI would take the parameters of functions made inside a function for queries.
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/lifecycle"
# No single DAG owns a topic. A user who may read this DAG may read the topics' pages.
DAG_ID = "message_cleaner"
STATUS_OF_EXIT = {2: 404, 3: 409, 4: 503}
PREVIEW_DAG_ID = "preview"
RUNS_SHOWN = 20
UNKNOWN_VISITOR, SEE_OTHER = HTTPStatus.UNAUTHORIZED, HTTPStatus.SEE_OTHER
# Airflow's own redirect to the log-in page of its auth manager. After the log-in it goes on to `next`, if that is one of Airflow's pages.
LOGIN = "/api/v2/auth/login"


def application() -> Any:
    """Return the FastAPI application. Only the api-server calls this function, so no other component imports its packages."""
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_authenticated
    from fastapi import Depends, FastAPI, HTTPException, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, RedirectResponse
    from starlette.exceptions import HTTPException as AnyHTTPException

    from message_lifecycle.app import pages
    from message_lifecycle.app.views.status import Health
    from message_lifecycle.model.errors import LifecycleError

    # An auth manager takes an empty id for "any DAG", so refuse it.
    DagId = Annotated[str, Query(min_length=1)]

    def may_read(request: Request, user: GetUserDep) -> None:
        requires_access_dag("GET", param_dag_id=DAG_ID)(request, user)

    def answer(html: str, status: int = 200) -> HTMLResponse:
        return HTMLResponse(html, status_code=status, headers=pages.HEADERS)

    def base(request: Request) -> str:
        return str(request.scope.get("root_path", PREFIX))

    app = FastAPI(
        title="Lifecycle",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_authenticated()), Depends(may_read)],
    )

    @app.exception_handler(LifecycleError)
    def refused(request: Request, error: LifecycleError) -> HTMLResponse:
        status = STATUS_OF_EXIT.get(error.exit_code, 500)
        return answer(pages.error(base=base(request), kind=error.code, message=str(error)), status)

    @app.exception_handler(AnyHTTPException)
    def not_answered(request: Request, error: AnyHTTPException) -> HTMLResponse | RedirectResponse:
        """Send a browser without a log-in to the log-in page, and then back to the requested page. Other programs get the status."""
        if error.status_code == UNKNOWN_VISITOR and "text/html" in request.headers.get("accept", ""):
            asked = quote(f"{request.url.path}?{request.url.query}".removesuffix("?"), safe="")
            return RedirectResponse(f"{base(request).removesuffix(PREFIX)}{LOGIN}?next={asked}", SEE_OTHER, headers=pages.HEADERS)
        kind = HTTPStatus(error.status_code).phrase
        return answer(pages.error(base=base(request), kind=kind, message=str(error.detail)), error.status_code)

    @app.exception_handler(RequestValidationError)
    def not_whole(request: Request, error: RequestValidationError) -> HTMLResponse:
        lacking = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
        message = f"the address of this page lacks, or has wrong: {lacking}"
        return answer(pages.error(base=base(request), kind=HTTPStatus.BAD_REQUEST.phrase, message=message), HTTPStatus.BAD_REQUEST)

    @app.get("/")
    def overview(request: Request, search: str = "", state: Health | None = None) -> HTMLResponse:
        from message_lifecycle.app import tasks

        status, runs, erasures = tasks.status(), tasks.outcomes_without_erasures(RUNS_SHOWN), tasks.erasures_asked()
        return answer(pages.overview(base=base(request), status=status, runs=runs, erasures=erasures, search=search, trouble=state))

    @app.get("/topics/{stream}/{topic}")
    def one_topic(request: Request, stream: str, topic: str) -> HTMLResponse:
        from message_lifecycle.app import tasks

        return answer(pages.topic(base=base(request), page=tasks.topic_page(f"{stream}/{topic}")))

    @app.get("/plans/{plan_id}")
    def one_plan(request: Request, user: GetUserDep, plan_id: str) -> HTMLResponse:
        from message_lifecycle.app import tasks

        page = tasks.plan_page(plan_id)
        for dag_id in {run.dag_id for run in page.runs} - {None}:
            requires_access_dag("GET", param_dag_id=dag_id)(request, user)
        return answer(pages.plan(base=base(request), page=page))

    @app.get("/runs")
    def one_run(request: Request, user: GetUserDep, dag_id: DagId, run_id: str) -> HTMLResponse:
        from message_lifecycle.app import tasks

        requires_access_dag("GET", param_dag_id=dag_id)(request, user)
        run = f"{dag_id}/{run_id}"
        if dag_id == PREVIEW_DAG_ID:
            return answer(pages.preview(base=base(request), **tasks.preview_page(run=run)))
        questions = tasks.waiting_plans(run=run)
        return answer(pages.run(base=base(request), run_id=run, outcomes=tasks.outcomes_of_run(run=run), questions=questions))

    # Without this route, the application would answer a path that does not exist before it asks for a log-in.
    @app.get("/{path:path}")
    def nothing_here(path: str) -> HTMLResponse:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"There is no page {path!r} here.")

    return app


class _OnFirstRequest:
    """Creates the application at the first request: every component of Airflow loads this file, but only the api-server serves it."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            self._app = application()
        await self._app(scope, receive, send)


class LifecyclePages(AirflowPlugin):
    """The pages in Airflow."""

    name = "message_lifecycle"
    fastapi_apps = [{"app": _OnFirstRequest(), "url_prefix": PREFIX, "name": "Lifecycle"}]  # noqa: RUF012 - Airflow reads this attribute of the class
    external_views = [  # noqa: RUF012 - as above
        {"name": "Lifecycle", "href": "lifecycle/", "destination": "nav", "url_route": "lifecycle", "nav_top_level": True},
        {
            "name": "Outcomes",
            "href": "lifecycle/runs?dag_id={DAG_ID}&run_id={RUN_ID}",
            "destination": "dag_run",
            "url_route": "lifecycle-outcomes",
        },
    ]
