"""Find keys in an Arrow column by their keyed hash."""

from __future__ import annotations

from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.erasure import MARK_DIGITS, KeyMatch

ArrowColumn = Any
"""A `pyarrow.Array` or `ChunkedArray`: pyarrow has no types for type checkers."""

_MARKED = f"SELECT key FROM keys WHERE list_contains($marks, substr(md5($salt || key), 1, {MARK_DIGITS}))"


def key_mask(keys: ArrowColumn, match: KeyMatch) -> ArrowColumn:
    """Return a mask that is true where the key matches. The mask is never null: a null key is no key.

    A fast mark selects candidates. Only they are compared by their keyed hash, once per distinct key.

    Args:
        keys: Binary or text of any width, or a dictionary of such values.
        match: Matches the keys to find.
    """
    distinct = distinct_keys(keys)
    found = matching(distinct, match)
    if not found:
        return pa.repeat(pa.scalar(False), len(keys))
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    return pc.is_in(keys, value_set=pa.array(found, pa.large_binary()).cast(distinct.type), skip_nulls=True)


def distinct_keys(keys: ArrowColumn) -> pa.Array:
    """Return each key once, without null. A dictionary may have keys that no row uses."""
    if not pa.types.is_dictionary(keys.type):
        return pc.drop_null(pc.unique(keys))
    dictionaries = [chunk.dictionary for chunk in (keys.chunks if isinstance(keys, pa.ChunkedArray) else (keys,))]
    return pc.drop_null(pc.unique(pa.chunked_array(dictionaries, keys.type.value_type)) if len(dictionaries) != 1 else dictionaries[0])


def matching(distinct: pa.Array, match: KeyMatch) -> list[bytes]:
    """Return the keys that match. One call for many keys is faster than many calls: each asks a database."""
    return list(filter(match, _candidate_keys(distinct.cast(pa.large_binary()), match))) if len(distinct) and match else []


def _candidate_keys(keys: pa.Array, match: KeyMatch) -> list[bytes]:
    with _database().cursor() as connection:
        connection.register("keys", pa.table({"key": keys}))
        found = connection.execute(_MARKED, {"salt": match.secret.salt, "marks": sorted(match.marks)}).fetchall()
    return [key for (key,) in found]


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the process's database, opened once: opening one costs more than most columns."""
    return duckdb.connect(config={"threads": 1})
