"""States and changes as tasks go through them: few at a time, whatever their size."""

from __future__ import annotations

import tracemalloc

import duckdb
import pytest

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
            ((row.document, len(row.payload)) for _, mine in streamed_in_order(connection, QUERY, part_bytes=40 * SIZE) for row in mine),
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


@pytest.mark.parametrize("part", [1, 7, 1_000_000])
def test_documents_come_in_order_and_whole_however_few_are_sorted_at_a_time(part: int) -> None:
    names = ["", "a", "a b", "o'ne", "z", "ä", "\U0001f600"]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (document VARCHAR, kind TINYINT, server_seq BIGINT, content BLOB, digest VARCHAR)")
        for seq in (3, 1, 2):
            for name in names[::-1]:
                connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, NULL)", [name, seq % 2, seq, b"x" * seq if name < "o" else None])
        rows_of = streamed_in_order(connection, "SELECT * FROM t", part_bytes=part)
        found = [(name, [(row.kind, row.server_seq) for row in rows]) for name, rows in rows_of]
        assert found == [(name, [(0, 2), (1, 1), (1, 3)]) for name in names]
        assert list(streamed_in_order(connection, "SELECT * FROM t WHERE kind = 2")) == []
