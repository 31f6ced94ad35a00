"""Lakes behind a REST catalog, or with tables in an object store, and no Spark: one topic of each kind through all that it may meet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pytest

from lifecycle_local.lake_server import GivesKeys
from lifecycle_local.rest_server import Answer, RestRequest, Serve, error_answer
from lifecycle_local.s3_server import Refused, S3Server
from lifecycle_local.s3_server import S3Request as S3Asked
from lifecycle_local.s3_server import Serve as S3Serve
from lifecycle_local.worlds import WORLDS
from message_lifecycle.app import receipts, steps, wiring
from message_lifecycle.app.backends import OpenedBackend
from message_lifecycle.app.config import backends_file
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.parts import with_parts
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic, update_views
from message_lifecycle.app.views.status import status
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.erasure import MIN_SECRET_BYTES, ErasureRequest, KeySecret
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import DeleteTopic, PurgeKey, RemoveMessages, UndoPlan
from message_lifecycle.model.topic import NO_OPTIONS
from message_lifecycle.ports import MessageWriter
from message_lifecycle.stores.archive import ParquetArchive
from message_lifecycle.stores.iceberg import deleted_reclaim
from message_lifecycle.stores.iceberg.catalog import Tables, documents
from message_lifecycle.stores.iceberg.layout import DELETED
from tests.archives import archive_of
from tests.contract.conftest import FAR_LAKES, REST_LAKES
from tests.contract.test_deleted_reclaim import named, reclaim
from tests.contract.test_requests import append, topic_of
from tests.contract.test_topic_delete import deleted
from tests.contract.test_undo_after_erasure import erased
from tests.contract.test_undo_view import compacted, view
from tests.effort import hunt, sample
from tests.engines import change_tasks
from tests.errors import raises
from tests.lakes import Lake, RestLake
from tests.undone import published, run, sealed_segments, stored, undone
from tests.undone_documents import made, purged

SOUGHT = b"sought for, and to be gone"
pytestmark = [pytest.mark.spark, pytest.mark.postgres]


BEHIND_REST = pytest.mark.parametrize("lake", sample(REST_LAKES, "rest_s3"), indirect=True)


@pytest.fixture(params=sample(FAR_LAKES, "rest_s3", "postgres_s3"))
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    found: Lake = request.getfixturevalue(request.param)
    with found.entered():
        yield found


@pytest.fixture
def world(lake: Lake) -> Iterator[World]:
    opened = WORLDS["iceberg"]({}, NO_OPTIONS)
    yield opened
    opened.close()


@hunt
def test_whole_segments_go_and_come_back(world: World) -> None:
    name = topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 2, 500)
    was = stored(world, name)
    plan_id = published(world, name, 200)
    assert [message.offset for message in stored(world, name)] == [6, 7, 8]
    undone(world, name, 210, plan_id)
    assert stored(world, name) == was
    assert run(world, name, 211, UndoPlan(plan_id=plan_id)).name == "no_op"


def test_single_messages_go_leave_markers_and_come_back_and_a_key_is_erased(world: World) -> None:
    name = topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"a", ttl="1s")
    append(world, name, 1, b"b", b"c")
    was = stored(world, name)
    plan_id = published(world, name, 9)
    assert [(m.key, is_marker(m.headers)) for m in stored(world, name)] == [(b"b", False), (b"c", False), (b"a", True)]
    undone(world, name, 10, plan_id)
    assert stored(world, name) == was
    published(world, name, 11, PurgeKey(key=b"b"))
    erased(world, name, 12, b"c")
    assert b"c" not in {message.key for message in stored(world, name)}
    (told,) = status(world.services, [name])
    assert told.messages == len(stored(world, name))


@hunt
def test_a_compacted_view_gives_back_what_was_taken_from_it(world: World) -> None:
    name = compacted(world, b"a", b"b", b"a", b"c")
    was, rows = stored(world, name), view(world, name)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1), (0, 2))))
    undone(world, name, 7, plan_id)
    assert (stored(world, name), view(world, name)) == (was, rows)
    append(world, name, 8, b"a")
    published(world, name, 9, "compaction")
    assert [(m.offset, m.key) for m in read_compacted(world.services, name)] == [(1, b"b"), (3, b"c"), (4, b"a")]


@pytest.mark.parametrize("ends", sample(["while they are read", "when they are read"], "while they are read"))
def test_keys_that_end_within_a_stage_are_renewed(rest_s3: RestLake, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog says when they end: it is asked for others before."""
    store, catalog = rest_s3.s3, rest_s3.catalog
    assert store is not None and isinstance(catalog, GivesKeys)
    monkeypatch.setattr(catalog, "seconds", 1.0)  # each is about to end
    ended = []

    def ending(run: Callable[..., Any], items: Sequence[Any], work: Callable[..., Any]) -> Any:
        if ends == "while they are read":
            ended.append(store.end_keys())
        found = run(items, work)
        ended.append(store.end_keys())
        return found

    with rest_s3.entered():
        world = WORLDS["iceberg"]({}, NO_OPTIONS)
        name = compacted(world, b"a", b"b", b"a")
        append(world, name, 8, b"a", b"c")
        with monkeypatch.context() as patched:
            change_tasks(patched, ending)
            published(world, name, 9, "compaction")
        assert ended and [m.offset for m in read_compacted(world.services, name)] == [1, 3, 4]
        world.close()


@hunt
@pytest.mark.parametrize("lake", ["rest_s3", "postgres_s3"], indirect=True)
def test_what_a_bucket_keeps_beneath_keeps_an_erasure_open(lake: Lake) -> None:
    """The key is in no object, and in versions of objects that only the bucket's owner can end."""
    store = lake.s3
    assert store is not None
    with store.keeping_versions("lake"):
        world = WORLDS["iceberg"]({}, NO_OPTIONS)
        name = topic_of(world)
        append(world, name, 1, b"a", SOUGHT)
        erased(world, name, int(time.time()), SOUGHT)  # the store has a clock of its own
        (request,) = world.services.ledger.erasures()
        below = Tables().load(name).location().removeprefix("s3://")
        assert request.state == "requested"
        assert (
            request.detail == f"{name}: {_kept(store, below)}. Then run `lifecycle erase run {request.request_id[:12]} --by NAME --why WHY`"
        )
        assert any(SOUGHT in content for path, content in store.earlier_versions(below) if path.endswith(".parquet"))
        assert not any(SOUGHT in store.content(path) for path in store.objects(below))
        assert receipts.verify(world.services, request.request_id) == [f"{name}: {_kept(store, below)}"]

        def refuse(asked: S3Asked, serve: S3Serve) -> Any:
            return Refused(HTTPStatus.FORBIDDEN, "AccessDenied") if "versions" in asked.query else serve()

        store.around = refuse
        assert "let the keys list them" in _carried_out(world, request.request_id).detail
        store.around = lambda _, serve: serve()
        store.end_versions(below)
        assert _carried_out(world, request.request_id).state == "erased"
        assert receipts.verify(world.services, request.request_id) == []
        world.close()


@hunt
@pytest.mark.parametrize("lake", ["rest_s3", "postgres_s3"], indirect=True)
def test_a_reclaim_says_what_a_bucket_keeps_beneath(lake: Lake) -> None:
    """Of what it has removed, whether the topic stands or was deleted: space comes back when the bucket's owner ends it."""
    store = lake.s3
    assert store is not None
    with store.keeping_versions("lake"):
        world = WORLDS["iceberg"]({}, NO_OPTIONS)
        name, now = topic_of(world, undo_window=100), int(time.time())  # the store has a clock of its own
        append(world, name, now, b"a", b"b")
        published(world, name, now + 1, PurgeKey(key=b"a"))
        below = Tables().load(name).location().removeprefix("s3://")
        outcome = run(world, name, now + 200, "reclaim")
        assert (outcome.name, bool(outcome.reclaimed_files)) == ("published", True)
        assert outcome.warnings == (_kept(store, below),)
        assert outcome == world.services.ledger.record(outcome.plan_id or "").outcome

        outcome = reclaim(world, deleted(world, name, now + 201), now + 302)
        assert (outcome.name, bool(outcome.reclaimed_files)) == ("published", True)
        assert outcome.warnings == (_kept(store, below),)
        assert not store.objects(below)
        world.close()


def _kept(store: S3Server, below: str) -> str:
    kept = len(store.earlier_versions(below))
    return f"lake keeps {kept} earlier versions of its objects, which nothing here reads or removes: let a rule of the bucket end them"


def _carried_out(world: World, request_id: str) -> ErasureRequest:
    carry_out(world.services, request_id)
    return world.services.ledger.erasure(request_id)


@hunt
def test_documents_are_folded_purged_and_come_back(world: World) -> None:
    topic = made(world)
    plans, was = purged(topic)
    assert topic.undone(4, plans[-1]).restored
    assert topic.shown()[0] == was[0]


@BEHIND_REST
@pytest.mark.parametrize("when", ["it begins", "it is made"])
def test_a_catalog_that_makes_tables_of_an_older_version_is_refused(world: World, lake: RestLake, when: str) -> None:
    """As Nessie does, where version 3 is asked for and nothing is said."""

    def older(asked: RestRequest, serve: Serve) -> Answer:
        if when == "it begins":
            return serve(replace(asked, body=asked.body.replace('"format-version":"3"', '"format-version":"2"')))
        found = serve(asked)
        # Of a table that is there, and of none that only began.
        return replace(found, text=found.text.replace('"format-version":3', '"format-version":2')) if asked.method == "GET" else found

    lake.catalog.around = older
    try:
        with raises("CatalogUnavailable", match="format version 3.* it makes an older one"):
            topic_of(world)
    finally:
        lake.catalog.around = lambda asked, serve: serve(asked)
    assert world.services.topics.list() == []


def test_a_topic_is_altered_deleted_brought_back_and_given_up(world: World, lake: Lake) -> None:
    name = topic_of(world, undo_window=1000, cleanup_policy="compact")
    append(world, name, 1, b"a", b"b")
    published(world, name, 2, "compaction")
    alter_topic(world.services, name, {"undo_window": 100})
    was, uuid = stored(world, name), world.services.topics.describe(name).uuid
    undone(world, name, 6, deleted(world, name, 5))
    assert (stored(world, name), world.services.topics.describe(name).uuid) == (was, uuid)
    (location,) = {str(document.content["location"]) for kind, document in documents(Tables(), name) if not kind}
    plan_id = deleted(world, name, 7)
    assert lake.files(location)
    if lake.s3 is not None:
        lake.s3.asked.clear()
    outcome: Outcome = reclaim(world, plan_id, 108)
    assert (outcome.name, named(world, name)) == ("published", [])
    assert lake.files(location) == [], "nor an object that stands for an empty folder"
    assert lake.s3 is None or not [one for one in lake.s3.asked if one.method == "DELETE"], "many with each request"


@BEHIND_REST
@pytest.mark.parametrize("times", [1, 100], ids=["for a moment", "for long"])
def test_a_place_that_the_catalog_does_not_tell_of_is_not_taken_for_one_that_is(world: World, lake: RestLake, times: int) -> None:
    """A gate that blocks ends the plan; what nobody knows is asked again."""
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a")
    plan_id = steps.plan(s, name, as_of=Instant(0), work=DeleteTopic()).plan.plan_id
    steps.stage(s, plan_id)
    failing = iter(range(times))
    lake.catalog.around = lambda asked, serve: (
        error_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "by the test", "Fault")
        if asked.method == "GET" and asked.path[1] == DELETED and next(failing, None) is not None
        else serve(asked)
    )
    try:
        if times > 1:
            with raises("TableUnreadable", match=f"{DELETED}.*by the test"):
                steps.gate(s, plan_id)
            assert s.ledger.record(plan_id).outcome is None
            lake.catalog.around = lambda asked, serve: serve(asked)
        assert steps.gate(s, plan_id).judgement == "needs_approval"
        assert times > 1 or next(failing, None) is None, "it was met"
    finally:
        lake.catalog.around = lambda asked, serve: serve(asked)


class Died(BaseException):
    """What ends a process, and no handler catches."""


@pytest.mark.parametrize("lake", ["rest_s3"], indirect=True)
@pytest.mark.parametrize("offered", sample([True, False], True))
def test_a_reclaim_that_died_when_the_table_was_forgotten_is_brought_to_its_end(
    world: World, lake: RestLake, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys to its files went with the table: the catalog is told of it once more, where it lets itself be told."""
    name = topic_of(world, undo_window=100, cleanup_policy="compact")
    append(world, name, 1, b"a", b"b")
    published(world, name, 2, "compaction")
    below = [str(document.content["location"]) for _, document in documents(Tables(), name)]
    plan_id = deleted(world, name, 5)

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(deleted_reclaim, "delete_files", dies)
        with pytest.raises(Died):
            reclaim(world, plan_id, 106)
    assert named(world, name) == [] and all(map(lake.files, below))
    world.services.stores.drop_tables._ways.clear()  # as of another process
    if not offered:
        lake.catalog.around = lambda asked, serve: (
            error_answer(HTTPStatus.BAD_REQUEST, "by the test", "BadRequestException") if asked.path[-1] == "register" else serve(asked)
        )
        with raises("StorageRefused", match=below[0]):
            reclaim(world, plan_id, 106)
        lake.catalog.around = lambda asked, serve: serve(asked)
    assert reclaim(world, plan_id, 106).name == "published"
    assert [lake.files(location) for location in below] == [[], []]
    assert named(world, name) == []


@hunt
@pytest.mark.parametrize("lake", REST_LAKES, indirect=True)
def test_a_catalog_that_fails_for_another_table_is_asked_again(world: World, lake: RestLake) -> None:
    """Where that one lies nobody knows, so nothing goes."""
    name, other = topic_of(world, undo_window=100), topic_of(world)
    append(world, name, 1, b"a")
    plan_id = deleted(world, name, 5)
    lake.catalog.around = lambda asked, serve: (
        error_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "by the test", "Fault") if asked.path[-1] == other.table() else serve(asked)
    )
    try:
        with raises("TableNotTold", match=f"location of table .*{other.namespace}.{other.table()}.*Try again"):
            reclaim(world, plan_id, 106)
    finally:
        lake.catalog.around = lambda asked, serve: serve(asked)
    assert reclaim(world, plan_id, 106).name == "published"


def test_a_compaction_asks_the_store_once_for_a_small_file(rest_s3: RestLake) -> None:
    """And its gate once more. The questions of either are several, and each opens the file and reads its end; of a small one that is all of it."""
    store = rest_s3.s3
    assert store is not None
    with rest_s3.entered():
        world = WORLDS["iceberg"]({}, NO_OPTIONS)
        name = compacted(world, b"a", b"b", b"a")
        append(world, name, 8, b"a", b"c")
        store.asked.clear()
        published(world, name, 9, "compaction")
        asked = Counter((one.path.removeprefix("/"), one.method) for one in store.asked if one.path.endswith(".parquet"))
        assert [m.offset for m in read_compacted(world.services, name)] == [1, 3, 4]
        world.close()
    written = {path for path, method in asked if method not in ("HEAD", "GET")}
    read = {path: (asked[path, "HEAD"], asked[path, "GET"]) for path, _ in asked if path not in written}
    assert read
    assert max(read.values()) == (2, 2), read


@BEHIND_REST
def test_a_catalog_is_asked_once_for_each_table_however_many_files_it_has(world: World, lake: RestLake) -> None:
    asked: list[str] = []

    def noted(one: RestRequest, serve: Serve) -> Answer:
        asked.append(one.path[-1])
        return serve(one)

    lake.catalog.around = noted
    try:
        few, many = _status(world, asked, files=1), _status(world, asked, files=6)
    finally:
        lake.catalog.around = lambda one, serve: serve(one)
    assert set(few.values()) == set(many.values()) == {1}
    assert len(few) == len(many)


@BEHIND_REST
def test_who_keeps_a_topics_views_asks_for_each_table_once(world: World, lake: RestLake) -> None:
    """Every plan begins with it."""
    name = topic_of(world)
    update_views(world.services, name)  # they are as the settings say
    asked: list[tuple[str, ...]] = []

    def noted(one: RestRequest, serve: Serve) -> Answer:
        asked.append(one.path)
        return serve(one)

    lake.catalog.around = noted
    try:
        update_views(world.services, name)
    finally:
        lake.catalog.around = lambda one, serve: serve(one)
    assert [path[-1] for path in asked].count(name.table()) == 1, asked
    assert set(Counter(asked).values()) == {1}


def _status(world: World, asked: list[str], *, files: int) -> Counter[str]:
    name = topic_of(world)
    for at_s in range(files):
        append(world, name, at_s + 1, b"a")
    asked.clear()
    status(world.services, [name])
    return Counter(asked)


def test_a_log_beside_the_lake_archives_into_its_store_and_a_key_is_erased_there(
    rest_s3: RestLake, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is configured: the backend by lifecycle.toml, the store's keys by the catalog's own settings."""
    with archive_of("object_store", request) as archive:
        place, name = '[backends.audit]\nkind = "json_file"\nroot = "files"\n', TopicName(stream="shop", topic="audit")
        policy = f'[backends.audit.topics."shop/audit"]\nmax_records = 1\non_remove = "archive"\narchive_to = "{archive.to}"\n'
        (tmp_path / "lifecycle.toml").write_text(f"{place}{policy}")
        monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "lifecycle.toml"))
        monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
        migrate_ledger(f"sqlite:///{tmp_path}/ledger.db")
        # One a process: it would have these keys to the end.
        monkeypatch.setattr(wiring, "_tables", lambda _home: Tables())
        secret = KeySecret(token_bytes(MIN_SECRET_BYTES))
        own = with_parts(OpenedBackend(wiring.lake(), backends_file()[0]).services_for(name), key_secret=lambda _: secret)
        writer: MessageWriter = own.stores.log  # type: ignore[assignment]  # a record log is one store for all
        new = [NewMessage(append_time=own.ledger.now(), key=key, value=b"v") for key in (b"a", SOUGHT, b"b")]
        writer.append(name, new, policy_of(own, name))
        s = replace(wiring.lake(), key_secret=lambda _: secret)
        done = steps.run(s, name, as_of=s.ledger.now(), work="retention", approver=lambda _plan, _report: (True, "ada", "as expected"))
        assert (done.name, done.archived) == ("published", 2), done.detail
        assert archive.files() == [f"{archive.to}/shop/audit/{done.plan_id}.parquet"]
        assert archive.holds(SOUGHT)
        asked = ask(s, [SOUGHT], topics=[name], forbid=False, by="ada", why="a letter").request_id
        (found,) = carry_out(s, asked, approver=lambda _plan, _report: (True, "ada", "a letter"))
        assert found.is_done, found.why_not_done()
        assert s.ledger.erasure(asked).state == "erased"
        assert receipts.verify(s, asked) == []
        assert not archive.holds(SOUGHT)
        assert done.plan_id is not None
        assert [message.key for message in ParquetArchive(archive.to).read(name, done.plan_id)] == [b"a"]
