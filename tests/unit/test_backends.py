"""The matrix of backends: what is printed, what the page says, and what a policy is refused by are one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from message_lifecycle.app import routing, steps
from message_lifecycle.app.backends import with_backends
from message_lifecycle.app.backends_config import BackendTopic, ConfiguredBackend, Folder
from message_lifecycle.app.backends_reference import BEGIN, END, reference
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.operations.registry import Scheduled, operations_on_records
from message_lifecycle.app.parts import Later, with_parts
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic, update_latest_view
from message_lifecycle.app.views.plans import approval_text, plan_page
from message_lifecycle.app.views.state import result_view
from message_lifecycle.app.wiring import json_file_world, memory_world
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.model.errors import InvalidSetting
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.setting_list import DOCUMENT_SETTINGS, Value
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.topic import BACKENDS, RECORD_LOGS, Backend, check_operation, check_policy, matrix, store_options
from message_lifecycle.ports import Eraser, Groups, MessageReader, MessageStore, Topics
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.memory import MemoryStore
from message_lifecycle.stores.record_log.store import RecordLogStore
from tests.errors import raises
from tests.ledgers import plan_of
from tests.worlds import make_lake

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
ASKED: dict[str, Value] = {
    "max_age_seconds": 5.0,
    "max_records": 5,
    "max_total_bytes": 5,
    "message_expiry": 5,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 5,
    "cleanup_policy": "compact,delete",
    "origin": "a/b",
    "fold": "json_patch",
    "on_remove": "archive",
}


def test_the_page_says_what_the_code_does() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) : text.index(END) + len(END)] == reference()


def test_every_backend_says_something_of_every_limit() -> None:
    found = [(support.backend, support.limit) for support in matrix()]
    assert sorted(found) == sorted(product(BACKENDS, ASKED))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("limit", ASKED)
def test_what_is_printed_as_refused_is_refused(backend: Backend, limit: str) -> None:
    (support,) = (each for each in matrix() if (each.backend, each.limit) == (backend, limit))
    own = {limit: ASKED[limit]}
    policy = resolve(topic=own, server={})
    if not support.refused:
        check_policy(backend, policy, own, where="topic a/b")
        return
    assert backend in RECORD_LOGS or limit == "on_remove"
    with raises("UnsupportedLimit") as refused:
        check_policy(backend, policy, own, where="topic a/b")
    for told in ("topic a/b", backend, f"{limit} = ", "max_age_seconds, max_records, max_total_bytes"):
        assert told in str(refused.value)


def test_what_is_refused_is_what_was_asked_for_and_not_what_that_implies() -> None:
    own: dict[str, Value] = {"subject_delete_marker_ttl": 5}
    with raises("UnsupportedLimit", match="does not support subject_delete_marker_ttl = 5"):
        check_policy("json_file", resolve(topic=own, server={}), own, where="topic a/b")
    with raises("UnsupportedLimit", match="does not support message_expiry = 5"):
        check_policy("json_file", resolve(topic={}, server={"message_expiry": 5}), {}, where="topic a/b")


@pytest.mark.parametrize("name", DOCUMENT_SETTINGS)
def test_no_setting_of_documents_is_passed_over(name: str) -> None:
    own: dict[str, Value] = {name: 1}
    with raises("UnsupportedLimit", match=name):
        check_policy("json_file", resolve(topic=own, server={}), own, where="topic a/b")


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_of_whole_logs_are_refused_elsewhere(backend: Backend) -> None:
    check_operation(backend, "retention", operations_on_records(), where="topic a/b")
    if backend in RECORD_LOGS:
        with raises("UnsupportedLimit", match="the operation compaction"):
            check_operation(backend, "compaction", operations_on_records(), where="topic a/b")
    else:
        check_operation(backend, "compaction", operations_on_records(), where="topic a/b")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", None])
def test_options_of_stores_are_checked(value: object) -> None:
    with pytest.raises(InvalidSetting, match="a whole number of bytes from 1"):
        store_options({"max_bytes": value}, where="store")
    with pytest.raises(InvalidSetting, match="max_size"):
        store_options({"max_size": 5}, where="store")
    assert store_options({"max_bytes": 5}, where="store").max_bytes == 5


def test_the_command_prints_it_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys)
    document = lake.say("backends", "--output", "json").document
    refused = {"backend": "json_file", "limit": "message_expiry", "logical": False, "physical": None, "refused": True}
    assert refused in document
    assert len(document) == len(list(matrix()))
    text = lake.say("backends")
    assert text.status == 0
    assert all(any(line.split()[:2] == [each["backend"], each["limit"]] for line in text.out.splitlines()) for each in document)


def test_a_topic_of_the_lake_is_not_hidden_by_a_backends(tmp_path: Path) -> None:
    lake = memory_world({}).services
    shared, own = TopicName(stream="web", topic="clicks"), TopicName(stream="web", topic="visits")
    topics = {name: BackendTopic(partitions=1, settings={}) for name in (shared, own)}
    backend = ConfiguredBackend(name="audit", kind="json_file", place=Folder(root=tmp_path / "audit"), topics=topics)
    assert with_backends(lake, (backend,)).topics.describe(own).partitions == 1
    create_topic(lake, shared, settings={})
    with pytest.raises(InvalidSetting, match=r"backend audit.*web/clicks.*no topic of the lake has"):
        with_backends(lake, (backend,)).topics.describe(own)


def test_a_topic_of_single_records_gets_no_span_of_segments_from_the_server(tmp_path: Path) -> None:
    """No time ends a segment there; and its settings are those of the file, so that they are not altered at each start."""
    name = TopicName(stream="web", topic="visits")
    topics = {name: BackendTopic(partitions=1, settings={})}
    backend = ConfiguredBackend(name="audit", kind="json_file", place=Folder(root=tmp_path), topics=topics)
    found = with_backends(memory_world({"segment_max_seconds": 60}).services, (backend,))
    assert dict(found.topics.describe(name).settings) == {}
    assert create_topic(found, TopicName(stream="web", topic="clicks"), settings={}).settings == {"segment_max_seconds": 60}
    assert create_topic(found, TopicName(stream="web", topic="letters"), settings={"fold": "text_splice"}).settings == {
        "fold": "text_splice"
    }


def test_every_store_that_a_backend_has_is_asked_for_its_topics(tmp_path: Path) -> None:
    """One that the lake answered in its place would look for a table. What single records cannot have is refused by name."""
    name = TopicName(stream="web", topic="clicks")
    backend = ConfiguredBackend(
        name="audit", kind="json_file", place=Folder(root=tmp_path), topics={name: BackendTopic(partitions=1, settings={})}
    )
    found = with_backends(memory_world({}).services, (backend,))
    plan = plan_of(name)
    assert [found.stores.store_for(key).find_published(plan) for key in ("log", "rewrite")] == [None, None]
    assert (found.view_of(name), found.view_commit(plan), update_latest_view(found, name)) == (None, None, None)
    scheduled: set[Scheduled] = set(get_args(Scheduled))
    for work in scheduled - {"retention"}:
        with raises("UnsupportedLimit", match=f"topic web/clicks: the backend json_file does not support the operation {work}"):
            steps.plan(found, name, as_of=Instant(0), work=work)


def test_nothing_offers_an_undo_of_a_removal_from_a_log_of_single_records(tmp_path: Path) -> None:
    name = TopicName(stream="web", topic="clicks")
    topics = {name: BackendTopic(partitions=1, settings={"max_records": 3, "max_removed_fraction": 1.0})}
    backend = ConfiguredBackend(name="audit", kind="json_file", place=Folder(root=tmp_path), topics=topics)
    s = with_backends(replace(memory_world({}).services, gate=GreatExpectationsGate()), (backend,))
    new = [NewMessage(append_time=None, key=b"k", value=b"v")] * 5
    RecordLogStore(JsonFiles(tmp_path), server={}, operations=operations_on_records).append(name, new, policy_of(s, name))
    outcome = steps.run(s, name, as_of=s.ledger.now(), work="retention")
    assert (outcome.name, outcome.removed_rows) == ("published", 2)
    assert not [line for line in result_view(s, outcome).screen_blocks() if "Undo" in str(line)]
    record = s.ledger.record(str(outcome.plan_id))
    assert plan_page(s, record.plan.plan_id).undo_until is None
    assert "* undo: not possible: a json_file log keeps nothing of what it removed" in approval_text(s, record)
    with raises("NotUndoable"):
        steps.plan(s, name, as_of=s.ledger.now(), work=UndoPlan(plan_id=record.plan.plan_id))


@pytest.mark.parametrize(
    ("routed", "port"),
    [
        (routing.RoutingTopics, Topics),
        (routing.RoutingReader, MessageReader),
        (routing.RoutingLogs, MessageStore),
        (routing.RoutingEraser, Eraser),
        (routing.RoutingGroups, Groups),
    ],
    ids=lambda found: found.__name__,
)
def test_every_method_of_a_port_is_sent_to_the_topics_backend(routed: type, port: type) -> None:
    """A method that is missing would answer with the default of its protocol, for every backend alike."""
    methods = [name for name in dir(port) if not name.startswith("_")]
    assert methods
    assert [name for name in methods if getattr(routed, name).__module__ != routing.__name__] == []


def test_a_part_that_a_backend_does_not_have_is_refused_by_name() -> None:
    world = json_file_world({})
    services, stores = world.services, world.services.stores
    assert stores.store_for("log") is stores.log
    for part, read in {
        "view": lambda: stores.view,
        "forget": lambda: stores.forget,
        "documents": lambda: services.documents,
        "copier": lambda: services.copier,
    }.items():
        with raises("UnsupportedLimit", match=f"json_file does not support {part}"):
            read()
    world.close()


def test_a_part_is_made_once_at_its_first_use() -> None:
    made = list[MemoryStore]()

    def make() -> MemoryStore:
        made.append(MemoryStore())
        return made[-1]

    services = memory_world({}).services
    lazy = with_parts(services, stores=with_parts(services.stores, log=Later(make)))
    other = with_parts(lazy, key_secret=None)
    assert not made
    assert lazy.stores.log is other.stores.log is made[0]
    assert len(made) == 1


def test_an_erasure_of_all_topics_is_not_done_while_a_backend_holds_one_that_is_not_configured(tmp_path: Path) -> None:
    lake, key = replace(memory_world({}).services, gate=GreatExpectationsGate()), b"customer 17 of the north"
    kept, former = TopicName(stream="web", topic="clicks"), TopicName(stream="web", topic="visits")

    def backend(*names: TopicName) -> ConfiguredBackend:
        topics = {name: BackendTopic(partitions=1, settings={}) for name in names}
        return ConfiguredBackend(name="audit", kind="json_file", place=Folder(root=tmp_path), topics=topics)

    def state(s: Services, *topics: TopicName) -> tuple[str, str]:
        request = ask(s, [key], topics=topics, forbid=False, by="ada", why="a letter")
        carry_out(s, request.request_id, approver=lambda _plan, _report: (True, "ada", "a letter"))
        found = s.ledger.erasure(request.request_id)
        return found.state, found.detail

    both = with_backends(lake, (backend(kept, former),))
    policy = policy_of(both, former)  # and both are made
    RecordLogStore(JsonFiles(tmp_path), server={}, operations=operations_on_records).append(
        former, [NewMessage(append_time=None, key=key, value=b"v")], policy
    )
    one = with_backends(lake, (backend(kept),))
    assert state(one)[0] == "requested"
    assert "web/visits: lies in backend audit" in state(one)[1]
    assert state(one, kept) == ("not_found", "")
    assert state(both) == ("erased", "")
    assert state(one)[0] == "requested", "what nobody reaches may get the key again"
    (tmp_path / "web" / "visits.jsonl").write_bytes(b"no log")
    assert "backend audit: DamagedLog" in state(with_backends(lake, (backend(kept),)))[1]
    (tmp_path / "web" / "visits.jsonl").write_bytes((tmp_path / "web" / "clicks.jsonl").read_bytes())
    assert state(with_backends(lake, (backend(kept),)))[0] == "requested", "a copy of a log that is reached is none that is"
    assert "found the log of topic web/clicks" in state(with_backends(lake, (backend(kept),)))[1]
