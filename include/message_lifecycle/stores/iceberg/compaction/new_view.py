"""The table of a new compacted view. Reading a view needs none of this."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables, side_table_properties
from message_lifecycle.stores.iceberg.columns import PARTITION
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction.view_table import RAW_PROPERTY, SCHEMA
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES as TOPIC_PROPERTIES
from message_lifecycle.stores.iceberg.new_table import TableShape
from message_lifecycle.stores.iceberg.new_table import create as create_table
from message_lifecycle.stores.iceberg.shapes import SORT_ORDER

# Not partitioned by segment: too few messages of a segment survive for files of their own.
PARTITION_SPEC = PartitionSpec(PartitionField(PARTITION, 1000, IdentityTransform(), "partition"), spec_id=0)

SHAPE = TableShape(schema=SCHEMA, spec=PARTITION_SPEC, order=SORT_ORDER, first=TOPIC_SCHEMA)

TABLE_PROPERTIES: Mapping[str, str] = {**TOPIC_PROPERTIES, "write.metadata.metrics.column.delete_horizon": "full"}


def create(tables: Tables, name: TopicName) -> None:
    """Create the view's table, empty and without horizons, if it does not exist. Raises DeletionBegun."""
    place, topic = (name.namespace, name.table(COMPACTED)), tables.document(name)
    if tables.find(place) is None:
        properties = {**TABLE_PROPERTIES, **side_table_properties(name, topic.properties), RAW_PROPERTY: topic.uuid}
        create_table(place, SHAPE, properties=properties, summary={})  # False: another process made it meanwhile
