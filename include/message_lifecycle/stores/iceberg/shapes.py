"""The shapes of new tables. Only the program that makes a table, or a bucket of documents, needs them.

A topic of messages has one table. A topic of documents has two: changes, and next to it snapshots. The quarantine holds refused rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import BinaryType, LongType, NestedField, StringType, TimestamptzType

from message_lifecycle.stores.iceberg.columns import (
    AT,
    BUCKET,
    BUCKETS,
    CLIENT,
    DIGEST,
    DOCUMENT,
    EPOCH,
    OFFSET,
    PARTITION,
    PAYLOAD,
    SCHEMA,
    SEGMENT,
    SERVER_SEQ,
    STATE,
)
from message_lifecycle.stores.iceberg.layout import TABLE_PROPERTIES as TOPIC_PROPERTIES
from message_lifecycle.stores.iceberg.new_table import TableShape

# A table of messages.

_PARTITIONS = PartitionSpec(
    PartitionField(PARTITION, 1000, IdentityTransform(), "partition"),
    PartitionField(SEGMENT, 1001, IdentityTransform(), "segment"),
    spec_id=0,
)

SORT_ORDER = SortOrder(SortField(OFFSET, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1)
MESSAGES_SHAPE = TableShape(schema=SCHEMA, spec=_PARTITIONS, order=SORT_ORDER)


# The two tables of a document topic.

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
