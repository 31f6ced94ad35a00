"""Retention on backends: the DAG as Airflow reads it, and whole runs of it over real backends, by the applications that it starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lifecycle_local.redis import Address
from message_lifecycle.app import tasks
from message_lifecycle.app.backends import OpenedBackend
from message_lifecycle.app.backends_config import ConfiguredBackend
from message_lifecycle.app.config import backends_file
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.wiring import lake
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.ports import MessageWriter
from tests.dags.conftest import parse
from tests.effort import hunt
from tests.errors import raises

pytestmark = pytest.mark.airflow

CLICKS = TopicName(stream="web", topic="clicks")
AS_OF = "2026-01-01T00:00:00Z"
on_files = pytest.mark.parametrize("beside", ["json_file"], indirect=True)
"""For what the kind of backend makes no difference to."""
YES = {"chosen_options": ["Approve"], "params_input": {"text": "go"}, "responded_by_user": {"id": "1", "name": "ada"}}


@pytest.fixture
def dag(bag: Any) -> Any:
    return bag.dags["backend_retention"]


def test_the_way_from_due_to_verified(dag: Any) -> None:
    assert {task.task_id: set(task.downstream_task_ids) for task in dag.tasks} == {
        "due": {"retention", "verify", "waiting"},
        "retention": {"quality_gate"},
        "quality_gate": {"publish"},
        "publish": {"verify", "waiting"},
        "verify": set(),
        "waiting": {"approval.ask", "approval.record", "approval.publish", "approval.verify"},
        "approval.ask": {"approval.record"},
        "approval.record": {"approval.publish"},
        "approval.publish": {"approval.verify"},
        "approval.verify": set(),
    }


@pytest.mark.parametrize(("dag_id", "planned"), [("backend_retention", "retention"), ("storage_reclaim", "reclaim")])
def test_what_writes_runs_once_in_the_pool_and_never_by_spark(bag: Any, dag_id: str, planned: str) -> None:
    for task_id in (planned, "quality_gate", "publish", "approval.publish"):
        task = bag.dags[dag_id].get_task(task_id)
        assert (task.task_type, task.retries, task.pool) == ("PlainApplication", 0, "lifecycle")
        assert Path(task.application).is_file()


def test_a_dag_survives_being_stored(dag: Any) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert sorted(again.task_ids) == sorted(dag.task_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A configured backend with ten messages in its one topic."""

    backend: ConfiguredBackend

    @property
    def offsets(self) -> list[int]:
        return [message.offset for message in lake().reader.messages(CLICKS)]

    def append(self, count: int) -> None:
        services = OpenedBackend(lake(), self.backend).services_for(CLICKS)
        writer: MessageWriter = services.stores.log  # type: ignore[assignment]  # a record log is one store for all
        new = [NewMessage(append_time=None, key=b"k", value=b"v") for _ in range(count)]
        writer.append(CLICKS, new, policy_of(services, CLICKS))


@pytest.fixture(params=["json_file", pytest.param("redis_streams", marks=[hunt, pytest.mark.redis])])
def beside(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    place = 'root = "files"'
    if request.param == "redis_streams":
        address: Address = request.getfixturevalue("redis_server")
        (tmp_path / "password").write_text(address.password)
        place = f'url = "{address.url}"\npassword_file = "password"'
    (tmp_path / "lifecycle.toml").write_text(
        f'[limits]\nmax_removed_fraction = 1.0\n[backends.x]\nkind = "{request.param}"\n{place}\n[backends.x.topics."web/clicks"]\nmax_records = 4\n'
    )
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "lifecycle.toml"))
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    migrate_ledger(f"sqlite:///{tmp_path}/ledger.db")
    made = Beside(backend=backends_file()[0])
    with ExitStack() as after:
        if request.param == "redis_streams":
            after.callback(_drop_topic, made)
        made.append(10)
        yield made


def _drop_topic(beside: Beside) -> None:
    from message_lifecycle.stores.redis_streams.log import RedisLogs

    groups = OpenedBackend(lake(), beside.backend).services.groups
    assert isinstance(groups, RedisLogs)
    groups.drop(CLICKS)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, database: None) -> Callable[[dict[str, Any]], None]:
    from airflow.providers.standard.operators.hitl import HITLOperator

    def answers(given: dict[str, Any]) -> None:
        def ask(operator: Any, context: Any) -> Any:
            return operator.execute_complete(context, given | {"responded_at": datetime.now(UTC)})

        monkeypatch.setattr(HITLOperator, "execute", ask)

    return answers


def run(**conf: Any) -> tuple[str, dict[str, str]]:
    done = parse("backend_retention").test(run_conf={"as_of": AS_OF, **conf}, logical_date=datetime.now(UTC))
    states = {ti.task_id: str(getattr(ti.state, "value", ti.state)) for ti in done.get_task_instances()}
    return str(getattr(done.state, "value", done.state)), states


def test_a_run_removes_what_is_beyond_the_limits_and_the_next_one_finds_nothing(beside: Beside, database: None) -> None:
    state, states = run()
    assert (state, states["publish"], states["verify"]) == ("success", "success", "success")
    assert beside.offsets == [6, 7, 8, 9]
    ((_, outcome),) = lake().ledger.history(CLICKS, limit=9)
    assert (outcome.name, outcome.operation, dict(outcome.removed), outcome.rows_kept) == (
        "published",
        "retention",
        {"retention_count": 6},
        4,
    )
    report = lake().ledger.record(outcome.plan_id or "").report
    assert report is not None
    assert (report.judgement, report.evaluated_count) == ("passed", report.declared)
    state, states = run()
    assert (state, set(states.values())) == ("success", {"skipped"})


@on_files
def test_a_preview_of_a_backend_takes_nothing(beside: Beside) -> None:
    tasks.store_preview(run="preview/r", as_of=AS_OF, topics=["web/clicks"], work="retention")
    assert "6 by retention_count" in tasks.preview_page(run="preview/r")["printed"]
    assert beside.offsets == list(range(10))
    assert lake().ledger.plans() == []


@on_files
def test_a_large_removal_waits_for_a_persons_word(beside: Beside, answer: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    file = tmp_path / "lifecycle.toml"
    file.write_text(file.read_text().replace("max_removed_fraction = 1.0", "max_removed_fraction = 0.5"))
    answer(YES)
    state, states = run()
    assert (state, states["approval.publish"], states["approval.verify"]) == ("success", "success", "success")
    assert beside.offsets == [6, 7, 8, 9]
    ((_, outcome),) = lake().ledger.history(CLICKS, limit=9)
    assert outcome.name == "published"
    approval = lake().ledger.record(outcome.plan_id or "").approval
    assert approval is not None
    assert (approval.by, approval.text) == ("ada", "go")


@on_files
def test_each_operation_takes_its_own_topics(beside: Beside) -> None:
    """The lake's operations never come near a backend, and retention alone is none of a table's."""
    with raises("UnsupportedLimit", match="message_cleaner"):
        tasks.due(run="r", as_of=AS_OF, topics=["web/clicks"], work="message_cleaner")
    with raises("NotInABackend", match="web/clicks"):
        tasks.due(run="r", as_of=AS_OF, topics=["web/orders"], work="retention")
    assert tasks.due(run="r", as_of=AS_OF, topics=[], work="retention") == ["web/clicks"]
