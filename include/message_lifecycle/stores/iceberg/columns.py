"""The columns of a topic table in Iceberg's own terms, with the field ids that every reader and writer shares."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

PARTITION, OFFSET, APPEND_TIME, EVENT_TIME, KEY, VALUE, HEADERS, SIZE_BYTES, SEGMENT, EXPIRES_AT, NEVER, ORIGIN_OFFSET = range(1, 13)

_HEADER = StructType(NestedField(14, "name", StringType(), required=False), NestedField(15, "value", BinaryType(), required=False))

SCHEMA = Schema(
    NestedField(PARTITION, "partition", IntegerType(), required=True),
    NestedField(OFFSET, "offset", LongType(), required=True),
    NestedField(APPEND_TIME, "append_time", TimestamptzType(), required=False),
    NestedField(EVENT_TIME, "event_time", TimestamptzType(), required=False),
    NestedField(KEY, "key", BinaryType(), required=False),
    NestedField(VALUE, "value", BinaryType(), required=False),
    NestedField(HEADERS, "headers", ListType(13, _HEADER, element_required=False), required=False),
    NestedField(SIZE_BYTES, "size_bytes", LongType(), required=True),
    NestedField(SEGMENT, "segment", LongType(), required=True),
    NestedField(EXPIRES_AT, "expires_at", TimestamptzType(), required=False),
    NestedField(NEVER, "never", BooleanType(), required=False),
    NestedField(ORIGIN_OFFSET, "origin_offset", LongType(), required=False),
    schema_id=0,
)

PARTITION_SPEC = PartitionSpec(
    PartitionField(PARTITION, 1000, IdentityTransform(), "partition"),
    PartitionField(SEGMENT, 1001, IdentityTransform(), "segment"),
    spec_id=0,
)

SORT_ORDER = SortOrder(SortField(OFFSET, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1)
