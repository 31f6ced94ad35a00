"""The columns of a topic's tables in Iceberg's terms: the field ids that every reader and writer shares, and the buckets of documents.

`shapes.py` has the tables that are made with these columns.
"""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, BooleanType, IntegerType, ListType, LongType, NestedField, StringType, StructType, TimestamptzType

# A table of messages.

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
DICTIONARY_COLUMNS = (
    "partition",
    "key",
    "value",
    "headers.list.element.name",
    "headers.list.element.value",
    "size_bytes",
    "segment",
    "expires_at",
)
"""Columns that get a dictionary in a new data file, by their paths in the file.

Other offsets and times hardly repeat, and their dictionary takes more space than it saves. Without it, a file of 62,500 small messages was
31 % smaller, and was written in 40 % less time. A truth value has no dictionary.
"""


# The two tables of a document topic: its own table of changes, and next to it the table of snapshots.

DOCUMENT, SERVER_SEQ, AT, CLIENT, PAYLOAD = range(1, 6)
EPOCH, STATE, DIGEST = range(3, 6)

BUCKETS = 16
"""The number of buckets. A bucket holds all rows of its documents.

One task folds one bucket, and a reader of one document opens a sixteenth of the files. More buckets would split each incoming batch into
more files. Fewer buckets would leave cores of a larger machine idle. The number is part of the table, so it must never change.
"""
BUCKET = "document_bucket"
