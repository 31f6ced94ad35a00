"""Each page and each answer is refused to a user who may not read or change its DAG."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from message_lifecycle.app import tasks
from tests.dags import samples

pytestmark = pytest.mark.airflow
Visit = Callable[..., int]


@pytest.fixture(scope="module")
def visit(database: None, plugins: None) -> Iterator[Visit]:
    """Return the status of a request by a user who has the named DAGs alone."""
    from airflow.api_fastapi.app import create_app, get_auth_manager, purge_cached_app
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "tests.dags.one_dag.OneDagEach")
        purge_cached_app()
        client = TestClient(create_app(apps="core"), raise_server_exceptions=False)

        def status(path: str, *dags: str, method: str = "GET", body: Any = None) -> int:
            # The role allows everything: the DAGs alone may refuse.
            token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=",".join(dags), role="admin"))
            return client.request(method, path, json=body, headers={"Authorization": f"Bearer {token}"}).status_code

        yield status
        purge_cached_app()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that a run of the erasure's DAG made, `erasure`, and one that a person's command made, `command`."""
    runs = {"erasure": {"dag_id": "erasure", "run_id": "r"}, "command": {"dag_id": None, "run_id": "by hand"}}
    monkeypatch.setattr(tasks, "plan_page", lambda plan_id: samples.Sample(samples.plan(runs=[samples.Sample(runs[plan_id])])))
    monkeypatch.setattr(tasks, "topic_page", lambda _: samples.topic())
    monkeypatch.setattr(tasks, "outcomes_of_run", lambda **_: [])
    monkeypatch.setattr(tasks, "status", list)
    monkeypatch.setattr(tasks, "outcomes_without_erasures", lambda _: [])
    monkeypatch.setattr(tasks, "erasures_asked", list)
    monkeypatch.setattr(tasks, "waiting_plans", lambda **_: [])
    monkeypatch.setattr(tasks, "preview_page", lambda run: {"run_id": run, "as_of": None, "printed": None})


OWN = ("/", "/?search=a&state=failed", "/topics/a/b", "/plans/command", "/runs?dag_id=message_cleaner&run_id=r")
OF_OTHERS = ("/plans/erasure", "/runs?dag_id=erasure&run_id=r", "/runs?dag_id=preview&run_id=r", "/runs?dag_id=~&run_id=r")


@pytest.mark.parametrize("path", [*OWN, *OF_OTHERS, "/nowhere"])
def test_a_page_is_refused_to_a_user_without_its_dag(visit: Visit, known: None, path: str) -> None:
    assert visit(f"/lifecycle{path}") == 403
    assert visit(f"/lifecycle{path}", "compaction") == 403


@pytest.mark.parametrize("path", OF_OTHERS)
def test_the_message_cleaner_opens_no_page_of_another_dag(visit: Visit, known: None, path: str) -> None:
    assert visit(f"/lifecycle{path}", "message_cleaner") == 403


@pytest.mark.parametrize("path", OWN)
def test_the_message_cleaner_opens_its_own_pages_and_those_of_topics(visit: Visit, known: None, path: str) -> None:
    assert visit(f"/lifecycle{path}", "message_cleaner") == 200


def test_both_dags_open_a_page_and_no_dag_is_not_any_dag(visit: Visit, known: None) -> None:
    assert visit("/lifecycle/plans/erasure", "message_cleaner", "erasure") == 200
    assert visit("/lifecycle/runs?dag_id=erasure&run_id=r", "message_cleaner", "erasure") == 200
    assert visit("/lifecycle/runs?dag_id=&run_id=r", "message_cleaner") == 400


def test_an_answer_to_a_question_is_refused_to_a_user_of_another_dag(visit: Visit) -> None:
    question = "/api/v2/dags/erasure/dagRuns/r/taskInstances/approval.ask/0/hitlDetails"
    answer = {"chosen_options": ["Approve"], "params_input": {"text": "yes"}}
    for dags in ((), ("message_cleaner",)):
        assert visit(question, *dags) == 403
        assert visit(question, *dags, method="PATCH", body=answer) == 403
    assert visit(question, "erasure", method="PATCH", body=answer) == 404, "there is no such run: the user was let through"
