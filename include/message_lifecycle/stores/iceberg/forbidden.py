"""Keys that may not come in, told in a frame by their keyed hash.

By a function of Arrow columns, not by Spark's own sha2: the secret would stand in the plan, which Spark's pages and event logs show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.erasure import KeyMatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def is_forbidden(match: KeyMatch) -> Column:
    """Of the column `key`; false for a null key."""
    from pyspark.sql import functions as F

    def forbidden(keys: pa.Array) -> pa.Array:
        return key_mask(keys, match)

    found: Column = F.arrow_udf(forbidden, "boolean")("key")  # type: ignore[attr-defined]  # Spark's own stubs leave it out
    return found


def mark_forbidden(messages: DataFrame, match: KeyMatch, *, code: str) -> DataFrame:
    """Messages with such a key are refused by this code, whatever else is wrong with them, and their raw text is taken away."""
    from pyspark.sql import functions as F

    marked = messages.withColumn("forbidden", is_forbidden(match))
    return marked.withColumns(
        {
            "code": F.when(F.col("forbidden"), F.lit(code)).otherwise(F.col("code")),
            "raw": F.when(~F.col("forbidden"), F.col("raw")),
        }
    ).drop("forbidden")


# Keys in Arrow columns, looked up by their keyed hash: each distinct key is hashed once.


ArrowColumn = Any
"""A `pyarrow.Array` or `ChunkedArray`: pyarrow says nothing of its types."""


def key_mask(keys: ArrowColumn, match: KeyMatch) -> ArrowColumn:
    """True where the key is one of those looked for, never null: a null key is no key. `keys`: binary or text, of any width."""
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    distinct = pc.unique(keys)
    found = [key for key in distinct.to_pylist() if key is not None and match.matches(key if isinstance(key, bytes) else key.encode())]
    return pc.is_in(keys, value_set=pa.array(found, type=distinct.type))
