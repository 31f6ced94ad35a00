"""The table of a compacted view: where it lies, and what its newest commit says of it (CMP-4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, NestedField, TimestamptzType

from message_lifecycle.model.errors import CompactedTableMissing, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.view import ViewState
from message_lifecycle.stores.iceberg.catalog import UNDO_PROPERTY, Tables
from message_lifecycle.stores.iceberg.columns import PARTITION
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.columns import SORT_ORDER as SORT_ORDER
from message_lifecycle.stores.iceberg.layout import COMPACTED, SCRATCH_PROPERTY, STREAM_PROPERTY, TOPIC_PROPERTY, offsets_of
from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES as TOPIC_PROPERTIES
from message_lifecycle.stores.iceberg.new_table import Layout
from message_lifecycle.stores.iceberg.new_table import create as create_table
from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
    from message_lifecycle.stores.iceberg.document import TableDocument


# The compacted table in Iceberg's terms: a topic's columns, and what compaction itself has to remember.


DELETE_HORIZON, REMEMBERED = 16, 17

SCHEMA = Schema(
    *TOPIC_SCHEMA.fields,
    # From when on a retained tombstone may go (CMP-7); null in every other row.
    NestedField(DELETE_HORIZON, "delete_horizon", TimestamptzType(), required=False),
    # A row without a message, which keeps a late event from bringing its key back (CMP-12).
    NestedField(REMEMBERED, "remembered", BooleanType(), required=False),
    schema_id=0,
)

# Not by segment: what survives of a segment is too little for files of its own.
PARTITION_SPEC = PartitionSpec(PartitionField(PARTITION, 1000, IdentityTransform(), "partition"), spec_id=0)

LAYOUT = Layout(schema=SCHEMA, spec=PARTITION_SPEC, order=SORT_ORDER, first=TOPIC_SCHEMA)

TABLE_PROPERTIES: Mapping[str, str] = {**TOPIC_PROPERTIES, "write.metadata.metrics.column.delete_horizon": "full"}


RAW_PROPERTY = "lifecycle._raw-table"
"""Uuid of the topic's table that the view is of."""
HORIZONS = "lifecycle.horizons"
DUE_AT = "lifecycle.due-at"
SETTINGS = "lifecycle.view-settings"
"""Hash of the settings by which the view's messages were judged and that was told; empty where not all by the same."""
MEMORIES = "lifecycle.memories"
"""Rows of the view that are no messages any more (CMP-12)."""


def create(tables: Tables, name: TopicName) -> None:
    """Make the view's table, empty and without horizons, where there is none. It travels with the topic: same undo window."""
    topic = tables.document(name)
    properties = {
        **TABLE_PROPERTIES,
        STREAM_PROPERTY: name.stream,
        TOPIC_PROPERTY: name.topic,
        RAW_PROPERTY: topic.uuid,
        **{key: topic.properties[key] for key in (SCRATCH_PROPERTY, UNDO_PROPERTY) if key in topic.properties},
    }
    place = name.namespace, name.table(COMPACTED)
    if tables.pointers.one(place) is None:
        create_table(place, LAYOUT, properties=properties, summary={})  # False: another process made it meanwhile


def state_of(tables: Tables, name: TopicName) -> ViewState | None:
    """By the metadata document alone. None: nothing was ever compacted. Raises CompactedTableMissing."""
    document = document_of(tables, name)
    summary = next(document.summaries(), {}) if document is not None else {}
    if document is None or HORIZONS not in summary:
        return None
    due_at = summary.get(DUE_AT)
    hidden = _number(summary, "total-position-deletes")
    return ViewState(
        table_uuid=document.uuid,
        snapshot_id=int(document.content["current-snapshot-id"]),
        horizons=offsets_of(summary[HORIZONS]),
        rows=_number(summary, "total-records") - hidden - _number(summary, MEMORIES),
        hidden_rows=hidden,
        size_bytes=_number(summary, "total-files-size"),
        due_at=None if due_at is None else Instant(int(due_at)),
        settings_hash=summary.get(SETTINGS, ""),
    )


def document_of(tables: Tables, name: TopicName) -> TableDocument | None:
    """The table's metadata; None: there is no table. Raises CompactedTableMissing where its files are gone or damaged, or are another's."""
    try:
        document = tables.document(name, kind=COMPACTED)
    except UnknownTopic:
        return None
    except (OSError, ValueError) as error:
        raise CompactedTableMissing(str(name), f"its metadata cannot be read ({type(error).__name__})") from error
    if document.properties.get(RAW_PROPERTY) != tables.document(name).uuid:
        raise CompactedTableMissing(
            str(name), f"the table {name.namespace}.{name.table(COMPACTED)} in its place is of a topic that was dropped; drop it, too"
        )
    return document


def memories(table: Java) -> int:
    """How many rows of the view's newest snapshot are memories."""
    return int(str(table.currentSnapshot().summary().get(MEMORIES) or "0"))


def _number(summary: Mapping[str, str], key: str) -> int:
    return int(summary.get(key, "0"))
