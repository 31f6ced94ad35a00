"""Another engine's maintenance and rollbacks on a topic's tables: the log's state survives, or everything stops by name (MSG-4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from tests.errors import raises
from tests.spark.lake import Lake, tables
from tests.spark.other_engines import LONG_AGO, WORDS, Topic

from message_lifecycle.app import steps, witness
from message_lifecycle.app.erasures import settle_latest
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, WITNESS
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.session import sql_table


@pytest.fixture
def topic(lake: Lake, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Topic]:
    settings = getattr(request, "param", {"message_expiry": 2 * 86_400, "segment_max_seconds": 3600})
    made = Topic(lake, tmp_path, TopicName.parse(f"{lake.stream}/o {token_hex(4)}"), **settings)
    yield made
    made.ledger.close()


def test_offsets_go_on_after_a_rewrite_and_an_expiry(topic: Topic) -> None:
    topic.ingest("a", "b", "c", "d")
    topic.ledger.commit(topic.name, "billing", 0, 3, None, end_offset=4)
    topic.rewrite()
    topic.expire()
    assert END_OFFSETS not in next(iter(tables().document(topic.name).summaries())), "no snapshot says where the log ends"
    assert topic.s.reader.end_offsets(topic.name) == {0: 4}
    assert topic.ingest("e", "f", "g").end_offsets == {0: 7}
    assert topic.places() == [0, 1, 2, 3, 4, 5, 6]
    assert topic.lags() == {"billing": 3}, "what it has not read is not counted as read"
    assert topic.remove(2).removed == (("removed", 1),)
    assert topic.places() == [0, 1, 3, 4, 5, 6]
    assert topic.status()["ok"] or "LogStateLost" not in str(topic.status())


def test_offsets_go_on_after_several_commits_of_others_and_an_expiry(topic: Topic) -> None:
    topic.ingest("a", "b", "c", "d")
    topic.sql("DELETE FROM {t} WHERE offset = 3")
    topic.rewrite()
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('another.property' = '1')")
    topic.expire()
    assert topic.ingest("e").end_offsets == {0: 5}, "earlier metadata documents prove where the head comes from"
    assert topic.places() == [0, 1, 2, 4]


def test_an_emptied_log_keeps_its_end_through_an_expiry(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.sql("DELETE FROM {t} WHERE true")
    topic.expire()
    assert topic.ingest("c").end_offsets == {0: 3}
    assert topic.places() == [2]


def test_a_lost_property_stops_the_topic_until_it_is_repaired(topic: Topic, capsys: pytest.CaptureFixture[str]) -> None:
    topic.ingest("a", "b", "c")
    topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')")
    topic.stops("LogStateLost")
    (topic.inbox / f"{topic._file}.jsonl").unlink()
    found = witness.inspect_topic(topic.s, topic.name).found[0]
    assert found.witnesses["table property"] is None
    assert found.offsets == {0: 3}
    command = ("topic", "repair", str(topic.name))
    capsys.readouterr()
    assert topic.say(*command) == 3, "a look changes nothing"
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["table", "property", "missing"] in shown
    assert ["after", "a", "repair", "0:3"] in shown
    assert topic.say(*command, "--by", "ada") == 2, "a name without a reason"
    assert topic.say(*command, "--by", "ada", "--why", "checked with the other team") == 0
    assert topic.say(*command) == 0
    assert topic.ingest("d").end_offsets == {0: 4}


def test_all_witnesses_of_the_table_lost_are_rebuilt_from_ledger_and_data(topic: Topic) -> None:
    topic.ingest("a", "b", "c")
    topic.remove(2)
    topic.rewrite()
    topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')")
    topic.expire()
    topic.stops("LogStateLost")
    (topic.inbox / f"{topic._file}.jsonl").unlink()
    found = witness.inspect_topic(topic.s, topic.name).found[0]
    assert found.witnesses["data"] == {0: 2}, "the last message has gone"
    assert witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False).repaired
    assert topic.ingest("d").end_offsets == {0: 4}, "never lower than the ledger knows"
    with raises("NothingToRepair"):
        witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False)


@pytest.mark.parametrize("said", ["{}", "no json", '{"snapshot-id": 1, "sequence-number": 99, "state": {"lifecycle.end-offsets": "none"}}'])
def test_a_property_that_another_engine_wrote_is_not_believed(topic: Topic, said: str) -> None:
    topic.ingest("a", "b", "c")
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('" + WITNESS + f"' = '{said}')".replace("{", "{{").replace("}", "}}"))
    assert not topic.status()["ok"]
    with raises("LogRolledBack" if "99" in said else "LogStateLost"):
        topic.run()


@pytest.mark.parametrize("topic", [{"message_expiry": 86_400, "segment_max_seconds": 60}], indirect=True)
def test_a_rollback_stops_the_topic_until_a_person_accepts_it(topic: Topic) -> None:
    topic.ingest("a")
    first = topic.head()
    topic.ingest("b", "c", "d", at=LONG_AGO + 1000)
    ours = topic.head()
    topic.ledger.commit(topic.name, "billing", 0, 3, None, end_offset=4)
    topic.roll_back(first)
    topic.stops("LogRolledBack")
    (topic.inbox / f"{topic._file}.jsonl").unlink()
    assert str(first) in str(topic.status()["problems"])
    assert str(ours) in str(topic.status()["problems"])
    assert topic.say("topic", "repair", str(topic.name), "--by", "ada", "--why", "fine") == 3, "a rollback is accepted by a word of its own"
    done = witness.repair(topic.s, topic.name, **WORDS, accept_rollback=True)
    assert done.set_back == (("billing", 0, 3),)
    assert [Path(file).name for file in done.files] == ["2.jsonl"]
    assert newest_state(tables().load(topic.name)).end_offsets == {0: 4}
    assert topic.ingest("e", "f", at=LONG_AGO + 2000).end_offsets == {0: 9}, "2.jsonl is taken again"
    assert topic.places() == [0, 4, 5, 6, 7, 8]
    topic.run()
    assert topic.places() == [4, 5, 6, 7, 8], "billing has read none of these"
    topic.roll_back(first)
    topic.stops("LogRolledBack")  # one rollback was accepted, and no other


def test_a_rollback_behind_an_expiry_is_told_apart(topic: Topic) -> None:
    topic.ingest("a")
    first = topic.head()
    topic.ingest("b", "c")
    topic.roll_back(first)
    topic.sql("INSERT INTO {t} SELECT partition, offset + 1, append_time, event_time, key, value, headers, size_bytes, segment, "
              "expires_at, never, origin_offset FROM {t}")  # fmt: skip
    topic.expire()
    topic.stops("LogRolledBack")


def test_a_table_in_place_of_ours_is_another(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.sql("CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT * FROM {t} LIMIT 1")
    told = topic.status()
    assert not told["ok"]
    with pytest.raises(Exception, match=r"(?s)LogRolledBack|rolled the table back|LogStateLost|has no `lifecycle"):
        topic.run()


def test_a_batch_that_a_dead_run_committed_is_found_after_an_expiry(topic: Topic) -> None:
    topic.ingest("a", "b")
    with topic.ledger._database.writing() as connection:
        connection.exec_driver_sql("update lifecycle_batches set state = 'open', ended_at = null, snapshot_id = null")
    topic.rewrite()
    topic.expire()
    topic.take()
    assert topic.places() == [0, 1], "its files are not taken a second time"


def test_what_was_read_long_ago_can_be_read_while_the_state_is_lost(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')")
    assert topic.places() == [0, 1]


@pytest.mark.parametrize("accepted", [False, True], ids=["", "accepted"])
def test_verify_and_undo_look_at_a_table_that_was_rolled_back_behind_a_publish(topic: Topic, accepted: bool) -> None:  # DEL-6, DEL-7
    topic.ingest("a", "b", "c")
    before = topic.head()
    plan_id = topic.remove(1).plan_id
    assert plan_id is not None
    assert steps.verify(topic.s, plan_id).name == "published"
    topic.roll_back(before)
    if accepted:
        witness.repair(topic.s, topic.name, **WORDS, accept_rollback=True)
    code = "CommitNotOnMain" if accepted else "LogRolledBack"
    with raises(code):
        steps.verify(topic.s, plan_id)
    with raises(code):
        topic.run(UndoPlan(plan_id=plan_id))
    assert topic.places() == [0, 1, 2]
    if accepted:
        assert topic.remove(1).removed == (("removed", 1),), "it is planned anew"


def test_verify_of_a_plan_that_was_undone_or_whose_history_was_expired_repeats_its_outcome(topic: Topic) -> None:
    topic.ingest("a", "b", "c")
    undone = topic.remove(1).plan_id or ""
    assert topic.run(UndoPlan(plan_id=undone)).restored == 1
    assert steps.verify(topic.s, undone).name == "published"
    plan_id = topic.remove(2).plan_id or ""
    topic.rewrite()
    topic.expire()
    assert steps.verify(topic.s, plan_id).name == "published"
    with raises("UndoSourceGone", match="expired"):
        topic.run(UndoPlan(plan_id=plan_id))


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_a_compacted_view_keeps_its_horizon_through_a_rewrite_and_an_expiry(topic: Topic) -> None:  # CMP-4
    topic.ingest("a", "b", "a")
    assert topic.run("compaction").name == "published"
    before = [(message.offset, message.key) for message in read_compacted(topic.s, topic.name)]
    topic.rewrite("compacted")
    topic.expire("compacted")
    view = topic.s.stores.view.view(topic.name)
    assert view is not None
    assert view.horizons == {0: 2}
    assert [(message.offset, message.key) for message in read_compacted(topic.s, topic.name)] == before
    topic.ingest("b")
    assert topic.run("compaction").name == "published"
    assert [message.offset for message in read_compacted(topic.s, topic.name)] == [2, 3]


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_a_view_without_any_witness_gets_its_horizon_back_from_the_ledger(topic: Topic) -> None:
    topic.ingest("a", "b", "a")
    topic.run("compaction")
    topic.rewrite("compacted")
    topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')", "compacted")
    topic.expire("compacted")
    assert not topic.status()["ok"]
    with raises("LogStateLost"):
        topic.run("compaction")
    assert witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False).repaired
    assert [message.offset for message in read_compacted(topic.s, topic.name)] == [1, 2]
    topic.ingest("b")
    assert topic.run("compaction").name == "published"
    assert [message.offset for message in read_compacted(topic.s, topic.name)] == [2, 3]


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_a_view_whose_rows_another_writer_has_changed_is_not_read_as_ours(topic: Topic) -> None:
    topic.ingest("a", "b", "a")
    topic.run("compaction")
    topic.sql("DELETE FROM {t} WHERE offset = 1", "compacted")
    with raises("CompactedTableMissing"):
        list(read_compacted(topic.s, topic.name))


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
@pytest.mark.parametrize("kind", ["compacted", "quarantine"])
@pytest.mark.parametrize("deed", ["renamed", "dropped"])
def test_an_erasure_is_not_done_while_a_table_is_away(
    topic: Topic, kind: str, deed: str, capsys: pytest.CaptureFixture[str]
) -> None:  # DEL-7
    topic.ingest("a", "b")
    (topic.inbox / "refused.jsonl").write_text('{"key": "a", "at": "no time", "value": "a"}\n{"key": "b", "at": 1600000000}\n')
    assert topic.take().quarantined
    topic.run("compaction")
    table, away = sql_table(topic.name, kind=kind), f"`{topic.name.namespace}`.`{topic.name.table()}_{kind}_away`"
    topic.lake.session.sql(f"ALTER TABLE {table} RENAME TO {away}" if deed == "renamed" else f"DROP TABLE {table} PURGE")
    assert topic.erase() == "", "the log is rid of the key"
    (request,) = topic.ledger.erasures()
    assert request.state == "requested"
    assert f"{kind} table" in request.detail
    assert f"lifecycle topic repair {topic.name}" in request.detail
    capsys.readouterr()
    assert topic.say("topic", "repair", str(topic.name)) == 3
    assert "is not in the catalog under its name" in " ".join(capsys.readouterr().out.split())
    if deed == "renamed":
        topic.lake.session.sql(f"ALTER TABLE `lake`.{away} RENAME TO {table.removeprefix('`lake`.')}")
        engine_of_process().forget(topic.name, kind=kind)
        settled = settle_latest(topic.secret_services, request)
        assert settled.state == "requested", "it may hold the key, and nobody has searched it"
        assert f"{kind} table" in settled.detail and "was missing during the search" in settled.detail
    else:
        given = ("topic", "repair", str(topic.name), "--by", "ada", "--why", "its files are gone")
        assert topic.say(*given) == 3, "a repair of the log says nothing of tables beside it"
        assert topic.say(*given, "--give-up-tables") == 0
    assert topic.say("topic", "repair", str(topic.name)) == 0
    assert topic.erase(request.request_id) == ""
    assert topic.ledger.erasure(request.request_id).state == "erased"
    assert b"a" not in {message.key for message in topic.s.reader.messages(topic.name)}


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_a_view_that_is_away_while_it_would_be_searched_keeps_the_request_open(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:  # DEL-7
    topic.ingest("a", "b")
    topic.run("compaction")
    view, away = sql_table(topic.name, kind="compacted"), f"`{topic.name.namespace}`.`{topic.name.table()}_away`"
    eraser = topic.s.stores.rewrite
    search = eraser.find_key

    def renamed_meanwhile(*given: object, **named: object) -> object:
        topic.lake.session.sql(f"ALTER TABLE {view} RENAME TO {away}")
        try:
            return search(*given, **named)
        finally:
            topic.lake.session.sql(f"ALTER TABLE `lake`.{away} RENAME TO {view.removeprefix('`lake`.')}")
            engine_of_process().forget(topic.name, kind="compacted")

    with monkeypatch.context() as patched:
        patched.setattr(eraser, "find_key", renamed_meanwhile)
        assert topic.erase() == ""
    (request,) = topic.ledger.erasures()
    assert (request.state, "was missing during the search" in request.detail) == ("requested", True), request.detail
    assert topic.erase(request.request_id) == ""
    assert topic.ledger.erasure(request.request_id).state == "erased"
    assert b"a" not in {message.key for message in read_compacted(topic.s, topic.name)}


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
@pytest.mark.parametrize("work", ["erasure", "compaction"])
def test_a_published_plan_stays_published_while_its_view_is_away(topic: Topic, work: str) -> None:  # DEL-6
    topic.ingest("a", "b")
    topic.run("compaction")
    topic.ingest("a")
    plan_id = topic.published(work)
    view, away = sql_table(topic.name, kind="compacted"), f"`{topic.name.namespace}`.`{topic.name.table()}_away`"
    topic.lake.session.sql(f"ALTER TABLE {view} RENAME TO {away}")
    with raises("TablesMissing", match="compacted table"):
        steps.verify(topic.secret_services, plan_id)
    assert topic.ledger.record(plan_id).outcome is None
    topic.lake.session.sql(f"ALTER TABLE `lake`.{away} RENAME TO {view.removeprefix('`lake`.')}")
    engine_of_process().forget(topic.name, kind="compacted")
    assert steps.verify(topic.secret_services, plan_id).name == "published"


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
@pytest.mark.parametrize("work", ["erasure", "compaction"])
def test_a_published_plan_ends_after_its_view_is_given_up(topic: Topic, work: str) -> None:  # DEL-6
    topic.ingest("a", "b")
    topic.run("compaction")
    topic.ingest("a")
    plan_id = topic.published(work)
    topic.lake.session.sql(f"DROP TABLE {sql_table(topic.name, kind='compacted')} PURGE")
    with raises("TablesMissing", match="--give-up-tables"):
        steps.verify(topic.secret_services, plan_id)
    assert topic.say("topic", "repair", str(topic.name), "--by", "ada", "--why", "its files are gone", "--give-up-tables") == 0
    if work == "erasure":
        assert steps.verify(topic.secret_services, plan_id).name == "published", "the log has its commit"
    assert topic.say("compact", str(topic.name), "--anew") == 0
    outcome = topic.ledger.record(plan_id).outcome
    assert outcome is not None
    assert outcome.name == ("published" if work == "erasure" else "superseded"), "the compaction went with its view"
    assert [message.key for message in read_compacted(topic.s, topic.name)] == ([b"b"] if work == "erasure" else [b"b", b"a"])


@pytest.mark.parametrize("topic", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_a_view_that_was_rolled_back_is_repaired(topic: Topic) -> None:
    topic.ingest("a", "b")
    topic.run("compaction")
    first = topic.s.stores.view.view(topic.name)
    assert first is not None
    topic.ingest("a")
    topic.run("compaction")
    topic.sql("CALL lake.system.rollback_to_snapshot('{p}', " + str(first.snapshot_id) + ")", "compacted")
    with raises("LogRolledBack"):
        topic.run("compaction")
    assert witness.inspect_topic(topic.s, topic.name).missing == ()
    assert witness.repair(topic.s, topic.name, **WORDS, accept_rollback=True).repaired
    assert topic.run("compaction").name == "published"
    assert [message.offset for message in read_compacted(topic.s, topic.name)] == [1, 2]
