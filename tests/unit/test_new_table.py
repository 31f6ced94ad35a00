"""Tables as they are made: whole, numbered as the shape says, by the single changes that a catalog's server is told as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from message_lifecycle.sources.block import MESSAGE_BYTES
from message_lifecycle.stores.iceberg import new_table, refused_rows, shapes
from message_lifecycle.stores.iceberg.catalog import _shape
from message_lifecycle.stores.iceberg.compaction import new_view
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import identifier
from message_lifecycle.stores.iceberg.new_table import TableShape
from tests.histories import ON_OWN_CATALOG, PLACE, catalog_in, document_of

pytestmark = ON_OWN_CATALOG

TOLD = {"lifecycle.plan-id": "none"}
SHAPES = {
    "log": (_shape({}, 2)[1], _shape({}, 2)[0]),
    "view": (new_view.SHAPE, new_view.TABLE_PROPERTIES),
    "changes": (shapes.CHANGES_SHAPE, shapes.CHANGES_PROPERTIES),
    "snapshots": (shapes.SNAPSHOTS_SHAPE, shapes.SNAPSHOTS_PROPERTIES),
    "quarantine": (shapes.QUARANTINE_SHAPE, refused_rows._PROPERTIES),
}


def by_us(shape: TableShape, properties: dict[str, str]) -> None:
    assert new_table.create(PLACE, shape, properties=properties, summary=TOLD)
    assert not new_table.create(PLACE, shape, properties=properties, summary=TOLD), "its name is taken"


def by_a_server(shape: TableShape, properties: dict[str, str]) -> None:
    """A REST catalog's server, told the requirements and the single changes; the format's version its client puts before them."""
    jvm: Any = engine_of_process()
    iceberg, place = jvm.jvm.org.apache.iceberg, identifier(jvm, PLACE)
    made = new_table._begun(jvm, PLACE, shape, properties, TOLD).currentMetadata()
    version = getattr(iceberg, "MetadataUpdate$UpgradeFormatVersion")(made.formatVersion())
    changes = [version, *made.changes()]
    rest, needed = iceberg.rest, iceberg.UpdateRequirements.forCreateTable(changes)
    rest.CatalogHandlers.updateTable(jvm.lake, place, rest.requests.UpdateTableRequest.create(place, needed, changes))


@pytest.mark.parametrize("make", [by_us, by_a_server])
@pytest.mark.parametrize("title", SHAPES)
def test_a_table_is_numbered_and_told_of_as_its_shape_says(tmp_path: Path, title: str, make: Any) -> None:
    catalog, (shape, properties) = catalog_in(tmp_path), SHAPES[title]
    make(shape, dict(properties))
    table = catalog.load_table(PLACE)
    assert table.schema().as_struct() == shape.schema.as_struct()
    assert [(field.source_id, field.field_id, str(field.transform), field.name) for field in table.spec().fields] == [
        (field.source_id, field.field_id, str(field.transform), field.name) for field in shape.spec.fields
    ]
    assert [str(field) for field in table.sort_order().fields] == [str(field) for field in shape.order.fields]
    assert table.format_version == int(properties["format-version"])
    assert {**table.properties, "format-version": "3"} == properties
    (snapshot,) = table.snapshots()
    assert snapshot.summary is not None and snapshot.summary["lifecycle.plan-id"] == "none"
    assert snapshot.manifests(table.io) == []
    assert UUID(table.location().rsplit("/", 1)[-1]).version == 4
    assert document_of(table)["refs"]["main"]["snapshot-id"] == snapshot.snapshot_id


@pytest.mark.parametrize("title", SHAPES)
def test_messages_of_the_largest_size_do_not_fill_the_memory_of_a_writer(title: str) -> None:
    """A writer holds a row group, and the rows that it takes before it asks how large the group is."""
    _, properties = SHAPES[title]
    rows = int(properties["write.parquet.row-group-check-max-record-count"])
    assert int(properties["write.parquet.row-group-check-min-record-count"]) <= rows
    assert int(properties["write.parquet.row-group-size-bytes"]) + rows * MESSAGE_BYTES <= 256 << 20
