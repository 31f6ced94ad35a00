"""A table that the catalog has and that cannot be read is there: it is told by name, and is neither left out nor a fault of the program."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyiceberg.io import FileIO

from message_lifecycle.model.errors import TableUnreadable, UnknownTopic
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import IcebergTopics, Tables
from message_lifecycle.stores.iceberg.layout import PARTITIONS_PROPERTY, STREAM_PROPERTY, TOPIC_PROPERTY
from message_lifecycle.stores.iceberg.pointers import Place, Pointers
from message_lifecycle.stores.iceberg.table_folder import TableDocument

ORDERS = TopicName(stream="shop", topic="orders.eu")


@dataclass(eq=False)
class Catalog(Pointers):
    """Where each table's metadata lies; `later`: what is said from the second time on."""

    places: dict[Place, str]
    later: dict[Place, str | None] = field(default_factory=dict)

    def newest(self, place: Place) -> str | None:
        return self.later.get(place, self.places.get(place))

    def _all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        return [(place, location) for place, location in self.places.items() if namespace in (None, place[0])]

    def read(self, place: Place, location: str) -> TableDocument:
        return TableDocument.read(location, {})

    def file_io(self, place: Place, location: str) -> FileIO:
        raise NotImplementedError

    table = file_io  # type: ignore[assignment]  # nobody asks for either


def metadata(name: TopicName) -> bytes:
    properties = {STREAM_PROPERTY: name.stream, TOPIC_PROPERTY: name.topic, PARTITIONS_PROPERTY: "1"}
    return json.dumps({"table-uuid": "u", "properties": properties}).encode()


def place_of(name: TopicName) -> Place:
    return name.namespace, name.table()


def opened(catalog: Catalog) -> Tables:
    tables = Tables()
    tables.__dict__["pointers"] = catalog
    return tables


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file or directory"),
        (metadata(ORDERS)[:-20], "JSONDecodeError"),
        (b"", "JSONDecodeError"),
        (b"\xff" * 40, "UnicodeDecodeError"),
        (gzip.compress(metadata(ORDERS))[:-12], "EOFError"),
        (gzip.compress(metadata(ORDERS))[:20] + b"\xff" * 30, "error: Error -3"),
    ],
    ids=["lost", "torn", "empty", "no text", "torn gzip", "damaged gzip"],
)
def test_one_that_is_lost_or_torn_is_listed_by_its_name_and_hides_no_other(tmp_path: Path, content: bytes | None, told: str) -> None:
    good = TopicName(stream="shop", topic="good")
    (tmp_path / "good").write_bytes(metadata(good))
    if content is not None:
        (tmp_path / "orders").write_bytes(content)
    catalog = Catalog({place_of(good): str(tmp_path / "good"), place_of(ORDERS): str(tmp_path / "orders")})
    topics = IcebergTopics(opened(catalog))
    assert topics.list() == [good, ORDERS]
    assert topics.describe(good).name == good
    with pytest.raises(TableUnreadable, match=told) as found:
        topics.describe(ORDERS)
    assert str(tmp_path / "orders") in str(found.value)


def test_a_folder_that_is_not_mounted_leaves_every_topic_told(tmp_path: Path) -> None:
    names = [ORDERS, TopicName(stream="shop", topic="prices")]
    topics = IcebergTopics(opened(Catalog({place_of(name): str(tmp_path / "away" / name.topic) for name in names})))
    assert topics.list("shop") == names


def test_one_that_was_dropped_since_it_was_listed_is_no_topic(tmp_path: Path) -> None:
    catalog = Catalog({place_of(ORDERS): str(tmp_path / "gone")}, later={place_of(ORDERS): None})
    tables = opened(catalog)
    assert IcebergTopics(tables).list() == []
    with pytest.raises(UnknownTopic):
        tables.at(place_of(ORDERS), str(tmp_path / "gone"))


def test_one_that_has_moved_on_since_is_read_where_it_is_now(tmp_path: Path) -> None:
    """Another process has changed it, and removed the metadata of before."""
    (tmp_path / "newer").write_bytes(metadata(ORDERS))
    catalog = Catalog({place_of(ORDERS): str(tmp_path / "older")}, later={place_of(ORDERS): str(tmp_path / "newer")})
    assert IcebergTopics(opened(catalog)).list() == [ORDERS]


def test_one_that_no_topic_can_have_made_is_another_writers(tmp_path: Path) -> None:
    catalog = Catalog({("sales", "Report"): str(tmp_path / "gone"), ("lifecycle_deleted", "t1"): str(tmp_path / "gone")})
    assert IcebergTopics(opened(catalog)).list() == []


def test_what_is_read_of_a_table_that_lies_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    topics = IcebergTopics(opened(Catalog({place_of(ORDERS): str(tmp_path / "file" / "metadata")})))
    with pytest.raises(TableUnreadable, match="Not a directory"):
        topics.describe(ORDERS)


def test_metadata_of_a_view_are_read(tmp_path: Path) -> None:
    """A topic's view lies in the same catalog, and every plan looks at its query."""
    file = tmp_path / "00000.metadata.json"
    file.write_text(json.dumps({"view-uuid": "0b22180a", "format-version": 1, "properties": {"a": "b"}, "versions": []}))
    assert TableDocument.read(str(file), {}).content["view-uuid"] == "0b22180a"
