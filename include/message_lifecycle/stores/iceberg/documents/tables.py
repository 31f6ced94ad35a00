"""The two tables of a document topic: where they lie, and which snapshots of theirs a plan builds on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from message_lifecycle.model.document import DocumentTables
from message_lifecycle.model.errors import Unavailable
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.catalog import UNDO_PROPERTY, Tables
from message_lifecycle.stores.iceberg.change import required_head
from message_lifecycle.stores.iceberg.layout import SCRATCH_PROPERTY, SNAPSHOTS, STREAM_PROPERTY, TOPIC_PROPERTY
from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
    from message_lifecycle.stores.iceberg.document import TableDocument


OF_PROPERTY = "lifecycle._changes-table"
"""Uuid of the table of changes that the snapshots are of."""


def create(tables: Tables, name: TopicName) -> None:
    """Make the table of snapshots, empty, where there is none. It travels with the topic: same undo window."""
    from message_lifecycle.stores.iceberg import new_table
    from message_lifecycle.stores.iceberg.documents import columns

    if snapshots_document(tables, name) is not None:
        return
    topic = tables.of_documents(name)
    properties = {
        **columns.SNAPSHOTS_PROPERTIES,
        STREAM_PROPERTY: name.stream,
        TOPIC_PROPERTY: name.topic,
        OF_PROPERTY: topic.uuid,
        **{key: topic.properties[key] for key in (SCRATCH_PROPERTY, UNDO_PROPERTY) if key in topic.properties},
    }
    # False: another process made it meanwhile
    new_table.create((name.namespace, name.table(SNAPSHOTS)), columns.SNAPSHOTS, properties=properties, summary={})


def snapshots_document(tables: Tables, name: TopicName) -> TableDocument | None:
    """Metadata of the table of snapshots; None: there is none yet. Raises NotADocumentTopic, SnapshotsOfAnother."""
    place, topic = (name.namespace, name.table(SNAPSHOTS)), tables.of_documents(name)
    location = tables.pointers.one(place)
    if location is None:
        return None
    document = tables.at(place, location)
    if document.properties.get(OF_PROPERTY) != topic.uuid:
        raise snapshots_of_another(str(name), ".".join(place))
    return document


def tables_of(tables: Tables, name: TopicName) -> DocumentTables:
    """By the metadata documents alone."""
    changes, snapshots = tables.of_documents(name), snapshots_document(tables, name)
    return DocumentTables(
        topic=name,
        changes_uuid=changes.uuid,
        changes_id=changes.current_id,
        snapshots_uuid=None if snapshots is None else snapshots.uuid,
        snapshots_id=None if snapshots is None else snapshots.current_id,
    )


def snapshots_base(table: Java, plan: Plan) -> int:
    """The snapshot of the table of snapshots that the plan builds on, which must be the newest one. Raises PlanConflict."""
    made, changed = "snapshots of its documents were made", "the documents' snapshots have changed"
    return required_head(table, plan.plan_id, plan.snapshots, made=made, changed=changed)


# What can be wrong with the tables of documents, by name. Nothing is purged over any of it.


class UnreadableDocuments(Unavailable):
    """A file of a document topic is gone or damaged."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"table {table}: a file of it cannot be read ({reason}), so nothing was changed. Bring it back from a copy, or roll the table "
            "back to a snapshot before it, and run again."
        )


def damaged_snapshot(table: str, document: str, server_seq: int) -> Unavailable:
    """A stored state that is not the one that was written."""
    return Unavailable(
        f"table {table}: the state of document {document} at server_seq {server_seq} does not match its digest. Bring its file back "
        "from a copy; until then nothing of the document is purged.",
        code="DamagedSnapshot",
    )


def snapshots_of_another(topic: str, table: str) -> Unavailable:
    """The table of snapshots in the topic's place is another topic's."""
    return Unavailable(
        f"topic {topic}: the table {table} in the place of its snapshots is of a topic that was dropped; drop it, too.",
        code="SnapshotsOfAnother",
    )


class FoldingFailed(Unavailable):
    """A task could not do its part; both tables are as they were."""

    def __init__(self, bucket: int, kind: str, reason: str) -> None:
        self.bucket, self.kind, self.reason = bucket, kind, reason
        super().__init__(
            f"folding the documents of bucket {bucket} failed ({kind}): {reason} Nothing was changed; mend that and run again."
        )


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Raises UnreadableDocuments where a file cannot be read."""
    import duckdb

    try:
        yield
    # Not every error of DuckDB: a question that is wrong is our own mistake.
    except (duckdb.OperationalError, duckdb.InvalidInputException, duckdb.DataError, OSError) as error:
        raise UnreadableDocuments(table, f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
