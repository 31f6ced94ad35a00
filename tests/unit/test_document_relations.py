"""States and changes as tasks go through them: few at a time, whatever their size."""

from __future__ import annotations

import tracemalloc

import duckdb

from message_lifecycle.stores.iceberg.documents.relations import streamed, streamed_in_order

MANY, SIZE = 600, 50_000
QUERY = (
    f"SELECT printf('d%04d', i) AS document, 0::TINYINT AS kind, i AS server_seq, repeat('x', {SIZE})::BLOB AS content, "
    f"NULL::VARCHAR AS digest FROM range({MANY}) AS t(i)"
)


def test_large_states_are_not_all_in_memory_at_once() -> None:
    with duckdb.connect() as connection:
        list(streamed(connection, "SELECT 'x'::BLOB"))  # what is imported on the way is there from now on
        for rows in (
            ((row.document, len(row.payload)) for _, mine in streamed_in_order(connection, QUERY) for row in mine),
            ((row[0], len(row[3])) for row in streamed(connection, f"{QUERY} ORDER BY document")),
        ):
            tracemalloc.start()
            try:
                found = list(rows)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert found == [(f"d{number:04}", SIZE) for number in range(MANY)]
            assert most < MANY * SIZE / 4, "a few of them as Python's values"
