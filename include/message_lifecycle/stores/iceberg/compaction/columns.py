"""The compacted table in Iceberg's terms: a topic's columns, and what compaction itself has to remember."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, NestedField, TimestamptzType

from message_lifecycle.stores.iceberg.columns import PARTITION
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.columns import SORT_ORDER as SORT_ORDER
from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES as TOPIC_PROPERTIES

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

TABLE_PROPERTIES: Mapping[str, str] = {**TOPIC_PROPERTIES, "write.metadata.metrics.column.delete_horizon": "full"}
