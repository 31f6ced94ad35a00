"""Find and read the tables of a topic of documents."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot
from message_lifecycle.model.errors import PartlyUnavailable, Unavailable, undo_source_gone
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.undo import DocumentsBefore
from message_lifecycle.stores.iceberg.catalog import Tables, side_table_properties
from message_lifecycle.stores.iceberg.change import required_head
from message_lifecycle.stores.iceberg.documents import DocumentFile, files_at, files_that_may_hold
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS
from message_lifecycle.stores.iceberg.named import WithNamedErrors

if TYPE_CHECKING:
    from message_lifecycle.stores.iceberg.table_folder import TableDocument

# The two tables of a document topic, and the snapshots that a plan builds on.


OF_PROPERTY = "lifecycle._changes-table"
"""The uuid of the table of changes that the snapshots belong to."""


def create(tables: Tables, name: TopicName) -> None:
    """Create the table of snapshots, empty, if it does not exist. Raises DeletionBegun."""
    from message_lifecycle.stores.iceberg import new_table, shapes

    if snapshots_document(tables, name) is not None:
        return
    topic = tables.document_topic(name)
    properties = {**shapes.SNAPSHOTS_PROPERTIES, **side_table_properties(name, topic.properties), OF_PROPERTY: topic.uuid}
    # The result False means that another process has created the table meanwhile.
    new_table.create((name.namespace, name.table(SNAPSHOTS)), shapes.SNAPSHOTS_SHAPE, properties=properties, summary={})


def snapshots_document(tables: Tables, name: TopicName) -> TableDocument | None:
    """Return the metadata of the table of snapshots; None: no table yet.

    Raises:
        NotADocumentTopic: The topic holds messages, not documents.
        SnapshotsOfAnother: The table belongs to a topic that was dropped.
    """
    place, topic = (name.namespace, name.table(SNAPSHOTS)), tables.document_topic(name)
    document = tables.find(place)
    if document is None:
        return None
    if document.properties.get(OF_PROPERTY) != topic.uuid:
        raise snapshots_of_another(str(name), ".".join(place))
    return document


def tables_of(tables: Tables, name: TopicName) -> DocumentTables:
    """Return the ids of both tables, from their metadata documents alone."""
    changes, snapshots = tables.document_topic(name), snapshots_document(tables, name)
    return DocumentTables(
        topic=name,
        changes_uuid=changes.uuid,
        changes_id=changes.current_id,
        snapshots_uuid=None if snapshots is None else snapshots.uuid,
        snapshots_id=None if snapshots is None else snapshots.current_id,
    )


def snapshots_base(table: Java, plan: Plan) -> int:
    """Return the snapshot that the plan builds on, in the table of snapshots. Raises PlanConflict unless it is the newest one."""
    made, changed = "snapshots of its documents were made", "the documents' snapshots have changed"
    return required_head(table, plan.plan_id, plan.snapshots, made=made, changed=changed)


# Errors of the tables of documents. Any of them prevents a purge.


class UnreadableDocuments(PartlyUnavailable):
    """A file of a document topic is missing or damaged."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"table {table}: a file of it cannot be read ({reason}), so nothing was changed. Bring it back from a copy, or roll the table "
            "back to a snapshot before it, and run again."
        )


def damaged_snapshot(table: str, document: str, server_seq: int) -> PartlyUnavailable:
    """Return the error for a stored state that differs from its digest."""
    return PartlyUnavailable(
        f"table {table}: the state of document {document} at server_seq {server_seq} does not match its digest. Bring its file back "
        "from a copy; until then nothing of the document is purged.",
        code="DamagedSnapshot",
    )


def snapshots_of_another(topic: str, table: str) -> PartlyUnavailable:
    """Return the error for a table of snapshots that belongs to another topic."""
    return PartlyUnavailable(
        f"topic {topic}: the table {table} in the place of its snapshots is of a topic that was dropped; drop it, too.",
        code="SnapshotsOfAnother",
    )


class FoldingFailed(Unavailable):
    """A task could not do its part. The tables have not changed."""

    def __init__(self, bucket: int, kind: str, reason: str) -> None:
        self.bucket, self.kind, self.reason = bucket, kind, reason
        super().__init__(
            f"folding the documents of bucket {bucket} failed ({kind}): {reason} Nothing was changed; mend that and run again."
        )


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Turn read errors into UnreadableDocuments."""
    import duckdb

    try:
        yield
    # Not every error of DuckDB: a wrong query is our own mistake.
    except (duckdb.OperationalError, duckdb.InvalidInputException, duckdb.DataError, OSError) as error:
        raise UnreadableDocuments(table, f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


# Read documents without a JVM: their state by one aggregate over both tables, their changes and snapshots file by file.


_STATES = """
WITH stored AS (
    SELECT document, min(server_seq) AS first, max(server_seq) AS last,
        min(server_seq) FILTER (WHERE cut IS NULL OR "at" IS NULL OR epoch_us("at") >= cut) AS younger
    FROM (FROM changes LEFT JOIN own USING (document) SELECT changes.*, CASE WHEN own.found THEN own.cut ELSE {cut} END AS cut)
    GROUP BY document
), kept AS (
    SELECT document, max(server_seq) AS last, max(epoch) AS epoch,
        list_sort(coalesce(list(server_seq) FILTER (WHERE digest IS NOT NULL), [])) AS seqs
    FROM snapshots GROUP BY document
)
SELECT document, greatest(coalesce(stored.last, 0), coalesce(kept.last, 0)), first, coalesce(seqs, []), coalesce(epoch, 0), younger
FROM stored FULL JOIN kept USING (document){only} ORDER BY document
"""


class IcebergDocumentReader(WithNamedErrors):
    """Implements the reading part of `ports.Documents`."""

    def __init__(self, tables: Tables | None = None) -> None:
        self._tables = tables or Tables()

    def tables(self, name: TopicName) -> DocumentTables:
        return tables_of(self._tables, name)

    def states(
        self,
        name: TopicName,
        tables: DocumentTables,
        *,
        older_than: Instant | None = None,
        own: Mapping[str, Instant | None] | None = None,
        only: Collection[str] | None = None,
    ) -> Sequence[DocumentState]:
        """Raises UnreadableDocuments, UnreadableDeletes."""
        import pyarrow as pa

        from message_lifecycle.stores.iceberg.documents.relations import relate_changes, relate_snapshots
        from message_lifecycle.stores.iceberg.relations import database

        changes = self._files(name, "", tables.changes_id)
        snapshots = [] if tables.snapshots_uuid is None else self._files(name, SNAPSHOTS, tables.snapshots_id)
        if only is not None:
            changes, snapshots = _holding_any(changes, only), _holding_any(snapshots, only)
        own = own or {}
        cuts = {
            "document": pa.array(own, pa.string()),
            "cut": pa.array([None if cut is None else int(cut) for cut in own.values()], pa.int64()),
            "found": pa.array([True] * len(own), pa.bool_()),
        }
        with reading(str(name)), database() as connection:
            relate_changes(connection, "changes", changes)
            relate_snapshots(connection, "snapshots", snapshots)
            connection.register("own", pa.table(cuts))
            connection.register("wanted", pa.table({"document": pa.array(only or (), pa.string())}))
            cut = "NULL::BIGINT" if older_than is None else str(int(older_than))
            semi = "" if only is None else " SEMI JOIN wanted USING (document)"
            found = connection.execute(_STATES.format(cut=cut, only=semi)).fetchall()
        return [
            DocumentState(document=document, seq=seq, first=first, snapshots=tuple(seqs), epoch=epoch, younger=younger)
            for document, seq, first, seqs, epoch, younger in found
        ]

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        """Raises UnreadableDocuments, UnreadableDeletes."""
        from message_lifecycle.stores.iceberg.documents.relations import relate_changes, streamed
        from message_lifecycle.stores.iceberg.relations import database, literal

        files = _holding_any(self._files(name, "", self._tables.document_topic(name).current_id), [document], after=after)
        if not files:
            return
        with reading(str(name)), database() as connection:
            relate_changes(connection, "changes", files)
            query = (
                'SELECT server_seq, client, epoch_us("at"), payload FROM changes '
                f"WHERE document = {literal(document)} AND server_seq > {after} ORDER BY server_seq"
            )
            for seq, client, at, payload in streamed(connection, query):
                yield Change(document=document, server_seq=seq, client=client, at=None if at is None else Instant(at), payload=payload)

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        """Raises DamagedSnapshot, UnreadableDocuments, UnreadableDeletes."""
        from message_lifecycle.stores.iceberg.documents.relations import relate_snapshots
        from message_lifecycle.stores.iceberg.relations import database

        place = snapshots_document(self._tables, name)
        files = (
            [] if place is None else _holding_any(self._files(name, SNAPSHOTS, place.current_id), [document], after=(server_seq or 1) - 1)
        )
        if not files:
            return ()
        one = "" if server_seq is None else f"AND server_seq = {server_seq} "
        with reading(str(name)), database() as connection:
            relate_snapshots(connection, "snapshots", files)
            rows = connection.execute(
                "SELECT server_seq, epoch, state, digest FROM snapshots "
                f"WHERE document = ? AND digest IS NOT NULL {one}ORDER BY server_seq",
                [document],
            ).fetchall()
        for seq, _, state, digest in rows:
            if state is None or digest_of(state) != digest:
                raise damaged_snapshot(name.table(SNAPSHOTS), document, seq)
        return [Snapshot(document=document, server_seq=seq, epoch=epoch, state=state) for seq, epoch, state, _ in rows]

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        from message_lifecycle.stores.iceberg.undo_sources import source_of

        now = self.tables(plan.topic)
        if now.snapshots_uuid is None:
            raise undo_source_gone(plan.plan_id, "the table of its snapshots is not there any more")
        purged, dropped = any(action.purged for action in taken), any(action.dropped for action in taken)
        changes_id = source_of(self._tables.load(plan.topic), plan).snapshot_id if purged else None
        snapshots_id = source_of(self._tables.load(plan.topic, kind=SNAPSHOTS), plan).snapshot_id if dropped else None
        then = replace(now, changes_id=changes_id, snapshots_id=snapshots_id)
        try:
            states = self.states(plan.topic, then, only={action.document for action in taken})
        except UnreadableDocuments as lost:
            raise undo_source_gone(plan.plan_id, f"a file of the tables' history cannot be read: {lost.reason}") from lost
        return DocumentsBefore(changes_id=changes_id, snapshots_id=snapshots_id, states={state.document: state for state in states})

    def _files(self, name: TopicName, kind: str, snapshot_id: int | None) -> list[DocumentFile]:
        self._tables.document_topic(name)
        table = self._tables.load(name, kind=kind)
        with reading(".".join(table.name())):
            return files_at(table, None if snapshot_id is None else table.snapshot_by_id(snapshot_id))


def digest_of(state: bytes) -> str:
    """Return the digest that the table keeps next to a stored state, to detect a changed state."""
    return hashlib.sha256(state).hexdigest()


def _holding_any(files: Sequence[DocumentFile], documents: Collection[str], *, after: int = 0) -> list[DocumentFile]:
    """Return the files that may hold one of the documents."""
    from message_lifecycle.stores.iceberg.shapes import bucket_of

    found = {
        file.file.path: file for document in documents for file in files_that_may_hold(files, document, bucket_of(document), after=after)
    }
    return list(found.values())
