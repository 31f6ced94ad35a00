"""The tables of a topic in Iceberg's terms: columns, their field ids, and the shape of a new table.

A topic of messages has one table. A topic of documents has two: changes, and next to it snapshots. The quarantine holds refused rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import BinaryType, BooleanType, IntegerType, ListType, LongType, NestedField, StringType, StructType, TimestamptzType

from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES as TOPIC_PROPERTIES
from message_lifecycle.stores.iceberg.new_table import TableShape

# A table of messages: its field ids, which every reader and writer shares, its columns, and its shape.

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

_PARTITIONS = PartitionSpec(
    PartitionField(PARTITION, 1000, IdentityTransform(), "partition"),
    PartitionField(SEGMENT, 1001, IdentityTransform(), "segment"),
    spec_id=0,
)

SORT_ORDER = SortOrder(SortField(OFFSET, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1)
MESSAGES_SHAPE = TableShape(schema=SCHEMA, spec=_PARTITIONS, order=SORT_ORDER)


# The two tables of a document topic: its own table of changes, and next to it the table of snapshots.

DOCUMENT, SERVER_SEQ, AT, CLIENT, PAYLOAD = range(1, 6)
EPOCH, STATE, DIGEST = range(3, 6)

BUCKETS = 16
"""The number of buckets. A bucket holds all rows of its documents.

One task folds one bucket, and a reader of one document opens a sixteenth of the files. More buckets would split each incoming batch into
more files. Fewer buckets would leave cores of a larger machine idle. The number is part of the table, so it must never change.
"""
BUCKET = "document_bucket"
_SPEC = PartitionSpec(PartitionField(DOCUMENT, 1000, BucketTransform(BUCKETS), BUCKET), spec_id=0)
_ORDER = SortOrder(
    *(SortField(field, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST) for field in (DOCUMENT, SERVER_SEQ)), order_id=1
)
_PROPERTIES: Mapping[str, str] = {key: text for key, text in TOPIC_PROPERTIES.items() if ".metrics.column." not in key}
_BOUNDS = "write.metadata.metrics.column."

CHANGES_SHAPE = TableShape(
    schema=Schema(
        NestedField(DOCUMENT, "document", StringType(), required=True),
        NestedField(SERVER_SEQ, "server_seq", LongType(), required=True),
        NestedField(AT, "at", TimestamptzType(), required=False),
        NestedField(CLIENT, "client", StringType(), required=True),
        NestedField(PAYLOAD, "payload", BinaryType(), required=True),
        schema_id=0,
    ),
    spec=_SPEC,
    order=_ORDER,
)
CHANGES_PROPERTIES: Mapping[str, str] = {
    **_PROPERTIES,
    **{f"{_BOUNDS}{column}": "full" for column in ("document", "server_seq", "at")},
}

SNAPSHOTS_SHAPE = TableShape(
    schema=Schema(
        NestedField(DOCUMENT, "document", StringType(), required=True),
        NestedField(SERVER_SEQ, "server_seq", LongType(), required=True),
        NestedField(EPOCH, "epoch", LongType(), required=True),
        # State and digest are null if a purge raised the epoch without a new snapshot (SNP-7). The state is then in the previous row.
        NestedField(STATE, "state", BinaryType(), required=False),
        NestedField(DIGEST, "digest", StringType(), required=False),
        schema_id=0,
    ),
    spec=_SPEC,
    order=_ORDER,
)
SNAPSHOTS_PROPERTIES: Mapping[str, str] = {
    **_PROPERTIES,
    **{f"{_BOUNDS}{column}": "full" for column in ("document", "server_seq")},
}


# The quarantine next to a topic: rows that broke a rule.

QUARANTINE_SHAPE = TableShape(
    schema=Schema(
        NestedField(1, "at", TimestamptzType(), required=True),
        NestedField(2, "batch", StringType(), required=True),
        NestedField(3, "file", StringType(), required=True),
        NestedField(4, "position", LongType(), required=True),
        NestedField(5, "code", StringType(), required=True),
        NestedField(6, "reason", StringType(), required=False),
        NestedField(7, "raw", StringType(), required=False),
        schema_id=0,
    ),
    spec=PartitionSpec(spec_id=0),
    order=SortOrder(order_id=0),
)


_bucket = BucketTransform(BUCKETS).transform(StringType())


def bucket_of(document: str) -> int:
    """Return the bucket of a document."""
    found = _bucket(document)
    assert found is not None
    return found
