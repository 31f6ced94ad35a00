"""What can be wrong with the tables of documents, by name. Nothing is purged over any of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from message_lifecycle.model.errors import Unavailable


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
