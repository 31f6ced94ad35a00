"""What `status` asks for each topic is a small, fixed number of questions, however many topics there are (OBL-1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.io import InputFile
from sqlalchemy import Connection, event

from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.ledger import Ledger, migrate_ledger, open_ledger
from message_lifecycle.ledger.database import Database
from message_lifecycle.model.facts import LogWitness
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import IcebergTopics
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.log_repair import IcebergLogIntegrity
from tests.foreign_states import NOW, lake_in, no_engine
from tests.ledgers import StandingClock

FEW, MANY = 3, 13
FILES_MOST = 2
"""The list of manifests, and the one manifest."""


def name_of(at: int) -> TopicName:
    return TopicName(stream="shop", topic=f"t{at:02}")


@contextmanager
def counting(ledger: Ledger) -> Iterator[Counter[str]]:
    """Count the statements, connections and clock readings of the ledger, and the files of tables that are opened."""
    found = Counter[str]()
    engine = ledger._database.engine

    def statement(_connection: object, _cursor: object, text: str, *_: object) -> None:
        found["ledger"] += text != "begin"

    def checkout(*_: object) -> None:
        found["connections"] += 1

    new_input = LakeFileIO.new_input

    def counted(self: LakeFileIO, location: str) -> InputFile:
        found["files"] += location.endswith(".avro")
        return new_input(self, location)

    now = Database.now

    def clock(self: Database, connection: Connection) -> Instant:
        found["clock"] += 1  # a statement, where the database is a server
        return now(self, connection)

    event.listen(engine, "before_cursor_execute", statement)
    event.listen(engine, "checkout", checkout)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Database, "now", clock)
            patched.setattr(LakeFileIO, "new_input", counted)
            yield found
    finally:
        event.remove(engine, "before_cursor_execute", statement)
        event.remove(engine, "checkout", checkout)


def test_a_topic_costs_a_fixed_number_of_questions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)
    with open_ledger(url, clock=StandingClock(NOW)) as ledger:
        lake = lake_in(tmp_path, ledger)
        tables = lake.services.topics
        assert isinstance(tables, IcebergTopics)
        lake.services = replace(lake.services, witnesses=IcebergLogIntegrity(tables._tables, no_engine))
        counts = []
        for start, stop in ((0, FEW), (FEW, MANY)):
            for at in range(start, stop):
                lake.topic(name_of(at), message_expiry=5)
            with counting(ledger) as found:
                assert len(status(lake.services)) == stop
            counts.append(found)
        each = {what: (counts[1][what] - counts[0][what]) / (MANY - FEW) for what in counts[1]}
        assert (each["connections"], each["clock"], each["ledger"]) == (0, 0, 0), "one for all topics"
        assert each["files"] <= FILES_MOST


def test_a_look_sees_of_each_topic_what_is_its_own(tmp_path: Path) -> None:
    """Read once for all topics, and given to each: as it is read for one topic alone."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    migrate_ledger(url)
    with open_ledger(url, clock=StandingClock(NOW)) as ledger:
        s = replace(memory_world({}).services, ledger=ledger)
        names = [name_of(at) for at in range(3)]
        create_topic(s, names[0], settings={})
        place_hold(s, names[0], by="ada", why="a court")
        ledger.commit(names[1], "c1", 0, 5, Instant(7))
        ledger.set_accepted(names[2], {"message_expiry": 5})
        witness = LogWitness(table_uuid="u0", kind="", snapshot_id=1, sequence_number=1, offsets={0: 1}, state={})
        ledger.record_log_witnesses(names[0], [witness])
        ledger.set_looks("message_cleaner", {names[0]: True, names[2]: False}, as_of=NOW)
        readers = (
            ledger.holds,
            ledger.consumers,
            ledger.accepted,
            ledger.looks,
            ledger.undone,
            ledger.newest,
            ledger.refused_batches,
        )
        alone = [[read(name) for read in readers] for name in names]
        with ledger.look():
            assert [[read(name) for read in readers] for name in names] == alone
            assert [ledger.log_witness(table_uuid) for table_uuid in ("u0", "u1")] == [witness, None]
            ledger.commit(names[1], "c2", 0, 6, Instant(8))  # a writer is not kept waiting by it
        assert len(ledger.consumers(names[1])) == 2
        assert any(alone[0][0])
        assert not alone[1][0]
