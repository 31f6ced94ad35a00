"""Another engine's maintenance and rollbacks on a topic's tables: the log's state survives, or everything stops by name (MSG-4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.errors import raises
from tests.spark.lake import Lake, tables
from tests.spark.landing import Landing

from message_lifecycle.app import steps, witness
from message_lifecycle.app.intake import IngestOptions, IngestResult, take_files
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, WITNESS
from message_lifecycle.stores.iceberg.read import newest_state
from message_lifecycle.stores.iceberg.session import forget_cached, sql_table

MAPPING = FieldMapping(key="key", value="value", append_time="at", append_time_unit="s")
WORDS = {"by": "ada", "text": "checked with the other team"}
LONG_AGO = 1_600_000_000
"""Seconds; older than any expiry of these tests."""


class Topic(Landing):
    """One topic, a ledger of its own, and another engine: Spark's own SQL."""

    def __init__(self, lake: Lake, folder: Path, name: TopicName, **settings: Any) -> None:
        super().__init__(lake, folder, few_bytes=1 << 20)
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.s: Services = replace(lake.services(), ledger=self.ledger)
        self.name = create_topic(self.s, name, settings=settings).name
        self._file = 0

    def ingest(self, *keys: str, at: int = LONG_AGO) -> IngestResult:
        self._file += 1
        (self.inbox / f"{self._file}.jsonl").write_text(
            "".join(json.dumps({"key": key, "at": at + n, "value": f"{self._file}"}) + "\n" for n, key in enumerate(keys))
        )
        return self.take()

    def take(self) -> IngestResult:
        return take_files(self.intake, self.name, str(self.inbox), IngestOptions(mapping=MAPPING))

    def sql(self, text: str, kind: str = "") -> list[Any]:
        """Run a statement of another engine; `{t}` is the table with its catalog, `{p}` without."""
        table = sql_table(self.name, kind=kind)
        found = self.lake.session.sql(text.format(t=table, p=table.removeprefix("`lake`."))).collect()
        forget_cached(self.lake.session, self.name, kind=kind)
        return list(found)

    def rewrite(self, kind: str = "") -> None:
        options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
        self.sql("CALL lake.system.rewrite_data_files(table => '{p}', options => " + options + ")", kind)

    def expire(self, kind: str = "") -> None:
        self.sql("CALL lake.system.expire_snapshots(table => '{p}', older_than => TIMESTAMP '2099-01-01', retain_last => 1)", kind)

    def head(self) -> int:
        snapshot = tables().load(self.name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def roll_back(self, snapshot_id: int) -> None:
        self.sql("CALL lake.system.rollback_to_snapshot('{p}', " + str(snapshot_id) + ")")

    def places(self) -> list[int]:
        return [message.offset for message in self.s.reader.messages(self.name)]

    def run(self, work: Any = "message_cleaner") -> Outcome:
        return steps.run(self.s, self.name, as_of=self.ledger.now(), work=work, approver=lambda *_: (True, "ada", "as planned"))

    def remove(self, *offsets: int) -> Outcome:
        return self.run(RemoveMessages(positions=tuple((0, offset) for offset in offsets)))

    def status(self) -> dict[str, Any]:
        return dict(status(self.s, [self.name])[0])

    def stops(self, code: str) -> None:
        """Everything that writes or removes refuses by this name, and status is not ok."""
        before = self.places()
        with raises(code):
            self.ingest("later")
        with raises(code):
            self.run()
        with raises(code):
            self.remove(0)
        told = self.status()
        assert not told["ok"]
        assert code in " ".join(told["problems"])
        assert self.places() == before


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


def test_a_lost_property_stops_the_topic_until_it_is_repaired(topic: Topic) -> None:
    topic.ingest("a", "b", "c")
    topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')")
    topic.stops("LogStateLost")
    (topic.inbox / f"{topic._file}.jsonl").unlink()
    found = witness.look(topic.s, topic.name).found[0]
    assert found.witnesses["table property"] is None
    assert found.offsets == {0: 3}
    assert witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False).repaired
    assert topic.ingest("d").end_offsets == {0: 4}


def test_all_witnesses_of_the_table_lost_are_rebuilt_from_ledger_and_data(topic: Topic) -> None:
    topic.ingest("a", "b", "c")
    topic.remove(2)
    topic.rewrite()
    topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('" + WITNESS + "')")
    topic.expire()
    topic.stops("LogStateLost")
    (topic.inbox / f"{topic._file}.jsonl").unlink()
    found = witness.look(topic.s, topic.name).found[0]
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
    with raises("LogRolledBack"):
        witness.repair(topic.s, topic.name, **WORDS, accept_rollback=False)
    done = witness.repair(topic.s, topic.name, **WORDS, accept_rollback=True)
    assert done.set_back == (("billing", 0, 3),)
    assert [Path(file).name for file in done.files] == ["2.jsonl"]
    assert newest_state(tables().load(topic.name)).end_offsets == {0: 4}
    assert topic.ingest("e", "f", at=LONG_AGO + 2000).end_offsets == {0: 9}, "2.jsonl is taken again"
    assert topic.places() == [0, 4, 5, 6, 7, 8]
    topic.run()
    assert topic.places() == [4, 5, 6, 7, 8], "billing has read none of these"


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
    with pytest.raises(Exception, match=r"(?s)LogRolledBack|rolled it back|LogStateLost|carries no"):
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
