"""What a catalog that is no SQL database is asked, and what is taken from its answer alone; and a table read by the rows of one that is."""

from __future__ import annotations

import json
import time
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from unittest.mock import Mock

import pytest
import requests
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, ServerError, ServiceUnavailableError, UnauthorizedError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from message_lifecycle.model.errors import CatalogUnavailable, TableUnreadable, UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import lake_io
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.layout import LIVE, OF_TABLE, STREAM_PROPERTY, TOPIC_PROPERTY
from message_lifecycle.stores.iceberg.pointers import CatalogPointers, SqlPointers, look
from message_lifecycle.stores.iceberg.table_folder import TableDocument, local_path

PLACE = ("shop", "orders")
NAME = TopicName(stream="shop", topic="orders")
SCHEMA = Schema(NestedField(1, "offset", LongType(), required=True))


@pytest.fixture
def catalog(tmp_path: Path) -> InMemoryCatalog:
    made = InMemoryCatalog("lake", warehouse=str(tmp_path))
    made.create_namespace("shop")
    return made


def test_metadata_are_what_the_catalog_has_answered_and_no_file_beside_it(catalog: InMemoryCatalog) -> None:
    """Where credentials are given for each table, the catalog's own do not reach its files."""
    pointers = CatalogPointers(catalog)
    made = catalog.create_table(PLACE, SCHEMA, properties={"a": "b"})
    location = pointers.one(PLACE)
    assert location == made.metadata_location
    written = TableDocument.read(location, {})
    local_path(location).unlink()
    found = pointers.read(PLACE, location)
    assert (found.uuid, found.location, found.properties) == (str(made.metadata.table_uuid), location, {"a": "b"})
    told = {key: value for key, value in found.content.items() if key not in ("schemas", "schema")}
    assert told == {key: value for key, value in written.content.items() if key not in ("schemas", "schema")}
    assert pointers.table(PLACE, location).metadata_location == location
    assert pointers.file_io(PLACE, location) is pointers.table(PLACE, location).io, "the table's own way"


def test_a_table_that_has_moved_is_asked_for_again(catalog: InMemoryCatalog) -> None:
    pointers = CatalogPointers(catalog)
    made = catalog.create_table(PLACE, SCHEMA)
    before = pointers.one(PLACE)
    assert before is not None
    with made.transaction() as changes:
        changes.set_properties(a="c")
    after = pointers.one(PLACE)
    assert after not in (None, before)
    newest = pointers.read(PLACE, before)
    assert (newest.location, newest.properties["a"]) == (after, "c"), "or newer ones"


def test_what_is_gone_is_none_and_is_not_read_from_an_older_answer(catalog: InMemoryCatalog) -> None:
    pointers = CatalogPointers(catalog)
    catalog.create_table(PLACE, SCHEMA)
    location = pointers.one(PLACE)
    assert location is not None
    assert pointers.all(None) == pointers.all("shop") == [(PLACE, location)]
    catalog.drop_table(PLACE)
    assert (pointers.one(PLACE), pointers.all(None), pointers.all("nobody")) == (None, [], [])
    with pytest.raises(UnknownTopic):
        pointers.read(PLACE, location)
    with pytest.raises(UnknownTopic):
        pointers.table(PLACE, location)


def test_a_catalog_without_views_has_none(catalog: InMemoryCatalog) -> None:
    assert CatalogPointers(catalog).one(("shop", f"orders__{LIVE}")) is None


def test_another_s_table_of_a_view_s_name_is_there(catalog: InMemoryCatalog) -> None:
    pointers, place = CatalogPointers(catalog), ("shop", f"orders__{LIVE}")
    location = catalog.create_table(place, SCHEMA).metadata_location
    assert pointers.one(place) == location
    assert pointers.all("shop") == [(place, location)]


@pytest.mark.parametrize(
    "error", [requests.ConnectionError("refused"), UnauthorizedError("the token has ended"), ServiceUnavailableError("busy")]
)
def test_a_catalog_that_does_not_answer_is_named(catalog: InMemoryCatalog, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    pointers = CatalogPointers(catalog)
    for method in ("load_table", "list_namespaces"):
        monkeypatch.setattr(catalog, method, Mock(side_effect=error))
    with pytest.raises(CatalogUnavailable, match=str(error)):
        pointers.one(PLACE)
    with pytest.raises(CatalogUnavailable, match=str(error)):
        pointers.all(None)


def test_a_table_that_is_not_there_is_none_also_where_the_catalog_failed_first(
    catalog: InMemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who looks whether a deletion has begun would be told of a topic that nobody has named."""
    tables = Tables()
    tables.__dict__["pointers"] = CatalogPointers(catalog)
    load = Mock(side_effect=[ServerError("busy"), NoSuchTableError("none")])
    monkeypatch.setattr(catalog, "load_table", load)
    assert tables.find(PLACE) is None
    assert load.call_count == 2
    monkeypatch.setattr(catalog, "load_table", Mock(side_effect=ServerError("busy")))
    with pytest.raises(TableUnreadable, match="busy"):
        tables.find(PLACE)


def test_a_table_that_the_catalog_cannot_read_is_no_absent_one(catalog: InMemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata may be lost; nothing is done to it, and the others go on."""
    tables = Tables()
    pointers = tables.__dict__["pointers"] = CatalogPointers(catalog)
    other = catalog.create_table(("shop", "prices"), SCHEMA)
    catalog.create_table(PLACE, SCHEMA)
    load = catalog.load_table

    def refuse(place: tuple[str, str]) -> object:
        if place == PLACE:
            raise ServerError("NotFoundException: its metadata are gone")
        return load(place)

    monkeypatch.setattr(catalog, "load_table", refuse)
    found = dict(pointers.all(None))
    assert set(found) == {PLACE, ("shop", "prices")}
    assert found["shop", "prices"] == other.metadata_location
    with pytest.raises(TableUnreadable, match="its metadata are gone"):
        tables.at(PLACE, found[PLACE])


class Elsewhere(FileIO):
    def new_input(self, location: str) -> InputFile:
        return f"in {location}"  # type: ignore[return-value]  # a word tells who was asked

    def new_output(self, location: str) -> OutputFile:
        return f"out {location}"  # type: ignore[return-value]  # a word tells who was asked

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise FileExistsError(str(location))


def test_each_path_goes_by_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of a store was once written into the working folder, `./s3:/...`, and a snapshot committed that named it."""
    asked: list[tuple[str, dict[str, str]]] = []

    def load(properties: dict[str, str], location: str) -> FileIO:
        asked.append((location, properties))
        return Elsewhere(properties)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lake_io, "load_file_io", load)
    io = LakeFileIO({PY_IO_IMPL: "this one", "s3.endpoint": "there", "s3.signer": "theirs"})
    assert (io.new_input("s3://lake/a"), io.new_output("s3://lake/b"), io.new_input("gs://lake/c")) == (
        "in s3://lake/a",
        "out s3://lake/b",
        "in gs://lake/c",
    )
    with pytest.raises(FileExistsError):
        io.delete("s3://lake/a")
    told = {"s3.endpoint": "there", "s3.signer": "theirs"}
    assert asked == [("s3://lake/a", told), ("gs://lake/c", told)], "one for each scheme"
    for name in (str(tmp_path / "x"), f"file://{tmp_path / 'y'}"):
        with io.new_output(name).create() as stream:
            stream.write(b"here")
        assert local_path(name).read_bytes() == b"here"
        io.delete(name)
    assert not list(tmp_path.iterdir())


def test_a_look_asks_for_each_table_once(catalog: InMemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    pointers, beside, late = CatalogPointers(catalog), ("shop", "orders__compacted"), ("shop", "late")
    catalog.create_table(PLACE, SCHEMA)
    asked = Mock(wraps=catalog.load_table)
    monkeypatch.setattr(catalog, "load_table", asked)
    with look():
        found = pointers.one(PLACE)
        with look():
            assert (pointers.one(PLACE), pointers.one(beside), pointers.one(beside)) == (found, None, None)
        assert asked.call_count == 2
        assert pointers.all(None) == [(PLACE, found)]
        assert pointers.one(("shop", "prices__compacted")) is None, "all were listed"
        assert asked.call_count == 3
        assert pointers.one(late) is None
        location = catalog.create_table(late, SCHEMA).metadata_location
        assert pointers.one(late) == location, "that a topic is gone is asked again before somebody says so"
    with catalog.load_table(PLACE).transaction() as changes:
        changes.set_properties(a="b")
    assert pointers.one(PLACE) not in (None, found), "after it all is asked anew"


@pytest.fixture
def sql(tmp_path: Path) -> SqlCatalog:
    """Has the table of the topic shop/orders."""
    files = {PY_IO_IMPL: f"{LakeFileIO.__module__}.{LakeFileIO.__name__}", "s3.endpoint": "there"}
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog", warehouse=str(tmp_path), **files)
    made.create_namespace("shop")
    made.create_table(PLACE, SCHEMA, properties={STREAM_PROPERTY: "shop", TOPIC_PROPERTY: "orders", "s3.region": "here"})
    return made


def tables_of(sql: SqlCatalog) -> Tables:
    tables = Tables()
    tables.__dict__["pointers"] = SqlPointers({"uri": sql.properties["uri"]}, sql.properties)
    return tables


def test_a_table_of_a_sql_catalog_is_the_one_that_it_would_load_itself(sql: SqlCatalog) -> None:
    found, own = tables_of(sql).load(NAME), sql.load_table(PLACE)
    assert (found.name(), found.metadata_location, found.metadata) == (own.name(), own.metadata_location, own.metadata)
    assert (type(found.io), found.io.properties) == (LakeFileIO, own.io.properties)
    assert {"s3.endpoint", "s3.region"} <= found.io.properties.keys()
    assert found.scan().to_arrow().num_rows == 0


def test_a_table_that_has_moved_since_it_was_asked_for_is_read_where_it_is(sql: SqlCatalog) -> None:
    """A commit deletes the metadata that are older than those it keeps."""
    tables = tables_of(sql)
    with look():
        before = tables.document(NAME)
        with sql.load_table(PLACE).transaction() as changes:
            changes.set_properties(a="c")
        local_path(before.location).unlink()
        assert tables.load(NAME).properties["a"] == "c"
    tables = tables_of(sql)
    with look():
        left = tables.document(NAME).location
        local_path(left).unlink()
        with pytest.raises(TableUnreadable, match=left):
            tables.load(NAME)
        sql.drop_table(PLACE)
        with pytest.raises(UnknownTopic, match="shop/orders"):
            tables.load(NAME)


def test_metadata_that_are_none_of_a_table_are_named(sql: SqlCatalog) -> None:
    """What they say of the topic is told all the same."""
    location = sql.load_table(PLACE).metadata_location
    content = json.loads(local_path(location).read_bytes())
    local_path(location).write_text(json.dumps({**content, "last-sequence-number": "many"}), encoding="utf-8")
    assert tables_of(sql).document(NAME).properties[TOPIC_PROPERTY] == "orders"
    with pytest.raises(TableUnreadable, match=location) as told:
        tables_of(sql).load(NAME)
    assert "last-sequence-number" in str(told.value)


def test_keys_that_are_about_to_end_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = int(time.time() * 1000)
    table = Mock()
    table.io.properties = {"s3.access-key-id": "new", "s3.session-token-expires-at-ms": str(now_ms + 3_600_000), "uri": "there"}
    opened = Mock()
    opened.return_value.load_table.return_value = table
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", opened)
    given = {
        "uri": "there",
        "s3.access-key-id": "old",
        "s3.session-token-expires-at-ms": str(now_ms + 1_000),
        OF_TABLE: '["shop", "orders"]',
    }
    io = LakeFileIO(given)
    assert [io.properties["s3.access-key-id"] for _ in range(3)] == ["new"] * 3
    opened.assert_called_once_with("lake", **{"uri": "there", "s3.access-key-id": "old"})
    opened.return_value.load_table.assert_called_once_with(PLACE)
    opened.return_value.load_table.side_effect = NoSuchTableError("forgotten")
    assert LakeFileIO(given).properties == given, "what there is, for as long as it is good"


class Counted(InputFile):
    opened = 0

    def __len__(self) -> int:
        return 3

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:  # PyIceberg's signature
        Counted.opened += 1
        return BytesIO(b"abc")


def test_a_manifest_of_a_store_is_asked_for_once_and_data_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elsewhere, "new_input", lambda _, location: Counted(location))
    monkeypatch.setattr(lake_io, "load_file_io", lambda properties, _: Elsewhere(properties))
    for name, times in ((f"s3://lake/{token_hex(4)}.avro", 1), (f"s3://lake/{token_hex(4)}.parquet", 2)):
        Counted.opened = 0
        for _ in range(2):
            with LakeFileIO().new_input(name).open() as stream:
                assert stream.read() == b"abc"
        assert Counted.opened == times
