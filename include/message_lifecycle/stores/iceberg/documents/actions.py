"""A plan's documents as relations that questions about changes and snapshots are joined with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.change import SnapshotDocument

if TYPE_CHECKING:
    import duckdb

_LONGS = ("seq", "after", "snapshot", "epoch", "purge_from", "purge_before")


def register(connection: duckdb.DuckDBPyConnection, documents: Sequence[SnapshotDocument]) -> None:
    """`plan`: a row for each document; `planned_drops`: (document, server_seq) of the snapshots that go."""
    columns = {name: pa.array([getattr(action, name) for action in documents], pa.int64()) for name in _LONGS}
    names = pa.array([action.document for action in documents], pa.string())
    connection.register("plan", pa.table({"document": names, **columns}))
    drops = [(action.document, seq) for action in documents for seq in action.dropped]
    register_pairs(connection, "planned_drops", drops)


def register_pairs(connection: duckdb.DuckDBPyConnection, name: str, pairs: Sequence[tuple[str, int]]) -> None:
    """A relation (document, server_seq)."""
    documents = pa.array([document for document, _ in pairs], pa.string())
    connection.register(name, pa.table({"document": documents, "server_seq": pa.array([seq for _, seq in pairs], pa.int64())}))


def newest_of(connection: duckdb.DuckDBPyConnection, snapshots: str) -> Mapping[str, int]:
    """The newest snapshot that each of the plan's documents has in the relation."""
    rows = connection.execute(
        f"SELECT document, max(server_seq) FROM {snapshots} SEMI JOIN plan USING (document) WHERE digest IS NOT NULL GROUP BY document"
    )
    return dict(rows.fetchall())
