"""Keys that may not come in, told in a frame by their keyed hash.

By a function of Arrow columns, not by Spark's own sha2: the secret would stand in the plan, which Spark's pages and event logs show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.stores.key_mask import key_mask

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
