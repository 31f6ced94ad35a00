"""The answer to the making of a table is lost: what the catalog names stays whole, what nobody knows is said, for every table of a topic."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tests.effort import sample
from tests.spark.documents import SETTINGS
from tests.spark.lake import LEDGER, Lake
from tests.spark.tables import unheard_operations
from tests.spark.test_unknown_commit import LOST, UNKNOWN

from message_lifecycle.model.errors import CommitUnknown
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg import new_table, refused_rows
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction import new_view
from message_lifecycle.stores.iceberg.documents import tables as of_documents
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, QUARANTINE, SNAPSHOTS
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = pytest.mark.spark

TAKEN = "AlreadyExistsException"
"""What a database says that is told again to make a table, because its first answer was lost."""


class Begun:
    """Iceberg's transaction that makes a table, on a catalog that loses the answer."""

    def __init__(self, session: SparkSession, real: Java, *, made: bool, by: str) -> None:
        self._session, self._real, self._made, self._by = session, real, made, by

    def underlyingOps(self) -> Java:  # the name is Iceberg's
        return unheard_operations(self._real.underlyingOps(), made=self._made, by=self._by)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


Make = Callable[[Lake, TopicName], object]


def topic(**settings: Value) -> Make:
    return lambda lake, name: lake.topics.create(name, partitions=1, settings=settings, ledger=LEDGER)


DOCUMENTS = topic(**SETTINGS)
TABLES: dict[str, tuple[str, Make | None, Make]] = {
    "log": ("", None, topic()),
    "documents": ("", None, DOCUMENTS),
    "view": (COMPACTED, topic(), lambda _, name: new_view.create(Tables(), name)),
    "snapshots": (SNAPSHOTS, DOCUMENTS, lambda _, name: of_documents.create(Tables(), name)),
    "quarantine": (QUARANTINE, topic(), lambda _, name: refused_rows._create(engine_of_process(), name)),
}
"""By title: the table's kind, what is made before it, how it is made."""


class Case:
    def __init__(self, lake: Lake, title: str) -> None:
        self.kind, before, self._make = TABLES[title]
        self.lake, self.name = lake, TopicName.parse(f"{lake.stream}/made {title} {token_hex(4)}")
        if before is not None:
            before(lake, self.name)

    def make(self) -> None:
        self._make(self.lake, self.name)

    def unheard(self, *, made: bool, by: str) -> None:
        """The same, on a catalog that loses the answer."""
        real = new_table._begun
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(new_table, "_begun", lambda *asked: Begun(self.lake.session, real(*asked), made=made, by=by))
            self.make()

    def is_whole(self) -> bool:
        """Every file that the catalog leads to is there and can be read."""
        table = Tables().load(self.name, kind=self.kind)
        snapshot = table.current_snapshot()
        assert local_path(table.metadata_location).is_file()
        return snapshot is not None and snapshot.manifests(table.io) == [] and table.scan().plan_files() is not None

    def is_there(self) -> bool:
        return Tables().pointers.one((self.name.namespace, self.name.table(self.kind))) is not None


def words(*of_log: str, of_others: str) -> pytest.MarkDecorator:
    """Tables with what their catalog says. One function makes all tables: the log hears every word, the others one."""
    every = [(title, word) for title in TABLES for word in of_log]
    kept = [(title, word) for title, word in every if title == "log" or word == of_others]
    return pytest.mark.parametrize(("title", "word"), sample(every, *kept))


@words(UNKNOWN, LOST, TAKEN, of_others=TAKEN)
def test_a_table_that_was_made_though_the_answer_was_lost_is_whole(lake: Lake, title: str, word: str) -> None:
    case = Case(lake, title)
    case.unheard(made=True, by=word)
    assert case.is_whole()


@words(UNKNOWN, LOST, of_others=LOST)
def test_a_table_that_may_have_been_made_is_not_told_as_made_and_is_made_by_the_next(lake: Lake, title: str, word: str) -> None:
    case = Case(lake, title)
    with pytest.raises(CommitUnknown, match="making the table"):
        case.unheard(made=False, by=word)
    assert not case.is_there()
    case.make()
    assert case.is_whole()


@words(UNKNOWN, LOST, TAKEN, of_others=TAKEN)
def test_a_table_that_cannot_be_looked_up_stays_unknown_and_loses_no_file(lake: Lake, title: str, word: str) -> None:
    case = Case(lake, title)

    def gone(*_: object) -> str:
        raise Py4JError("the line is dead")

    with pytest.MonkeyPatch.context() as patched, pytest.raises(CommitUnknown, match="making the table"):
        patched.setattr(new_table, "uuid_at", gone)
        case.unheard(made=True, by=word)
    assert case.is_whole()
