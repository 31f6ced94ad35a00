"""Topics in the catalog: settings travel with the table, and tables of others are told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from time import time
from uuid import UUID

import pytest
from tests.errors import raises
from tests.spark.lake import LEDGER, Lake, Rows

from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.errors import CatalogUnavailable, ForeignTable, InvalidSetting, UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES
from message_lifecycle.stores.iceberg.pointers import SqlPointers
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import TableDocument

pytestmark = pytest.mark.spark


def test_a_topic_is_described_as_it_was_created_and_altered(lake: Lake) -> None:
    name = TopicName.parse(f"{lake.stream}/Größe {token_hex(3)}")
    made = lake.topics.create(name, partitions=3, settings={"message_expiry": 5, "undo_window": 60}, ledger=LEDGER)
    assert (made.name, made.partitions, made.role, made.ledger) == (name, 3, "local", LEDGER)
    assert made.settings == {"message_expiry": 5, "undo_window": 60}
    altered = lake.topics.alter(name, {"message_expiry": None, "max_removed_fraction": 0.25})
    assert altered == replace(made, settings={"undo_window": 60, "max_removed_fraction": 0.25})
    assert Tables().load(name).properties["history.expire.max-snapshot-age-ms"] == "60000"
    lake.topics.alter(name, {"undo_window": None})
    assert Tables().load(name).properties["history.expire.max-snapshot-age-ms"] == "604800000"
    assert name in lake.topics.list(lake.stream)
    assert name in lake.topics.list()


def test_altering_changes_properties_and_nothing_else(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2)))
    lake.delete(name, "offset = 1")
    before = dict(Tables().document(name).content)
    lake.topics.alter(name, {"message_expiry": 7})
    after = dict(Tables().document(name).content)
    for key in ("properties", "metadata-log", "last-updated-ms"):
        before.pop(key), after.pop(key)
    assert json.dumps(after, sort_keys=True) == json.dumps(before, sort_keys=True)
    lake.append(name, Rows(base=2, times=(3,)))
    assert lake.offsets(name) == [0, 2]
    assert lake.topics.describe(name).settings == {"message_expiry": 7}


def test_a_table_is_what_spark_would_have_made(lake: Lake) -> None:
    name = lake.topic()
    described = {row["col_name"]: row["data_type"] for row in lake.session.sql(f"DESCRIBE TABLE {sql_table(name)}").collect()}
    assert described["headers"] == "array<struct<name:string,value:binary>>"
    assert described["append_time"] == "timestamp"
    table = Tables().load(name)
    assert table.format_version == 3
    assert [field.name for field in table.spec().fields] == ["partition", "segment"]
    assert {key: value for key, value in table.properties.items() if key in TABLE_PROPERTIES} == {
        key: value for key, value in TABLE_PROPERTIES.items() if key != "format-version"
    }


def test_names_that_are_taken_or_unknown_are_told_apart(lake: Lake) -> None:
    name = lake.topic()
    with raises("TopicExists"):
        lake.topics.create(name, partitions=1, settings={}, ledger=LEDGER)
    missing = TopicName.parse(f"{lake.stream}/missing")
    for ask in (lake.topics.describe, lake.reader.log, lake.reader.marker, lake.store().log, lambda n: lake.topics.alter(n, {})):
        with pytest.raises(UnknownTopic):
            ask(missing)
    assert lake.topics.list("no such stream") == []


def test_a_foreign_table_is_not_a_topic(lake: Lake) -> None:
    name = TopicName.parse(f"{lake.stream}/foreign{token_hex(3)}")
    lake.topic()
    lake.session.sql(f"CREATE TABLE {sql_table(name)} (a int) USING iceberg")
    try:
        assert name not in lake.topics.list()
        for ask in (lake.topics.describe, lake.reader.log):
            with pytest.raises(ForeignTable, match="has no `lifecycle"):
                ask(name)
        with pytest.raises(ForeignTable):
            lake.topics.create(name, partitions=1, settings={}, ledger=LEDGER)
    finally:
        lake.session.sql(f"DROP TABLE {sql_table(name)} PURGE")


def test_a_wrong_setting_in_the_table_is_named_with_it(lake: Lake) -> None:
    name = lake.topic()
    lake.session.sql(f"ALTER TABLE {sql_table(name)} SET TBLPROPERTIES ('lifecycle.message_expiry' = '-1')")
    with pytest.raises(InvalidSetting, match="message_expiry = -1"):
        lake.topics.describe(name)
    lake.session.sql(f"ALTER TABLE {sql_table(name)} UNSET TBLPROPERTIES ('lifecycle.message_expiry')")


def test_a_marker_moves_with_every_change_only(lake: Lake) -> None:
    name = lake.topic()
    first = lake.reader.marker(name)
    assert lake.reader.marker(name) == first
    lake.append(name, Rows(base=0, times=(1,)))
    second = lake.reader.marker(name)
    lake.topics.alter(name, {"message_expiry": 9})
    assert len({first, second, lake.reader.marker(name)}) == 3


def test_a_catalog_that_does_not_answer_is_named(lake: Lake) -> None:
    tables = Tables()
    tables.pointers = SqlPointers({"type": "sql", "uri": "postgresql+psycopg://x:y@127.0.0.1:1/lake"}, {})
    topics = IcebergTopics(tables)
    with pytest.raises(CatalogUnavailable, match="Check that its database runs") as told:
        topics.list()
    assert "PYICEBERG_HOME" not in str(told.value), "the configuration was found: it names the database that does not answer"


def test_a_new_topic_takes_no_files_of_its_predecessor(lake: Lake) -> None:
    name = lake.topic()
    location = TableDocument.read(lake.reader.marker(name), {}).content["location"]
    lake.session.sql(f"DROP TABLE {sql_table(name)}")
    lake.topics.create(name, partitions=1, settings={}, ledger=LEDGER)
    again = Tables().document(name).content["location"]
    assert again != location
    assert UUID(again.rsplit("/", 1)[-1]).version == 4


def test_a_look_at_idle_topics_needs_no_engine(lake: Lake) -> None:
    lake.topic()
    look = (
        "import sys; from message_lifecycle.stores.iceberg.catalog import IcebergTopics; from message_lifecycle.stores.iceberg.read import IcebergReader; "
        "topics, reader = IcebergTopics(), IcebergReader(); "
        "[(topics.describe(name), reader.marker(name)) for name in topics.list()]; "
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'py4j') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], env=dict(os.environ), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_look_at_what_is_not_due_loads_nothing_that_reads_data(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of a store brings all that its module imports; these take longer than the answer does."""
    name = TopicName.parse(f"{lake.stream}/t {token_hex(4)}")
    monkeypatch.setenv("LIFECYCLE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger")
    migrate_ledger(os.environ["LIFECYCLE_LEDGER_URL"])
    create_topic(configured_lake(), name, partitions=2, settings={"message_expiry": 3600})
    lake.append(name, Rows(base=0, times=(time(),)), with_state=False)
    heavy = ("numpy", "pyarrow", "pandas", "fsspec", "duckdb", "py4j", "pyspark", "sqlalchemy.orm")  # the last: PyIceberg's SQL catalog
    look = (
        f"import sys; from message_lifecycle.app.cli import main; name = {str(name)!r}; "
        "said = main(['plan', name, '--dry-run']), main(['status', name]); "
        f"print(said, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], env=dict(os.environ), capture_output=True, text=True, check=True)
    assert "removes       nothing of 1 message" in done.stdout
    assert done.stdout.splitlines()[-1] == "(0, 0) []"


def test_a_table_is_found_by_whichever_line_to_java(lake: Lake) -> None:
    """A thread here has a line of its own; so has what comes after a line that broke."""
    name = lake.topic()
    with ThreadPoolExecutor(1) as other:
        found = other.submit(engine_of_process().table, name).result()
    assert str(found.uuid()) == lake.topics.describe(name).uuid


def test_a_table_that_another_engine_made_again_is_the_one_that_is_loaded(lake: Lake) -> None:
    """Spark keeps a session's tables in a cache, and its library refuses to refresh one table to another."""
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2)))
    before = engine_of_process().table(name)
    catalog, place = Tables().catalog, (name.namespace, name.table())
    schema = catalog.load_table(place).schema()
    catalog.drop_table(place)
    made = catalog.create_table(place, schema, properties={"format-version": "2"})
    assert str(engine_of_process().table(name).uuid()) == str(made.metadata.table_uuid) != str(before.uuid())
    catalog.drop_table(place)
    with pytest.raises(UnknownTopic):
        engine_of_process().table(name)
