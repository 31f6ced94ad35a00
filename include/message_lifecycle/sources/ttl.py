"""`Nats-TTL` of the messages of a frame: read once, as `lifetime`; what a topic refuses of it, and what the rest die of (TTL-1 to TTL-6).

`lifetime` is microseconds, or one of the numbers of `lifetimes`; null where a message has no such header. A frame of messages
that can have no headers has no such column, and nothing is asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.ttl import INVALID_TTL, TTL_DISABLED, TTL_HEADER
from message_lifecycle.sources.lifetimes import INVALID, NEVER, NO_LIFETIME, lifetimes

LIFETIME = "lifetime"


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRules:
    """What the topic makes of the header. `copies`: its messages are no publishes, so nothing is refused (TTL-6)."""

    allow_msg_ttl: bool = False
    reject_zero: bool = False
    copies: bool = False


def lifetime(headers: Column) -> Column:
    """Of the first header of that exact name (TTL-1)."""
    first = F.get(F.filter(headers, lambda header: header["name"] == TTL_HEADER), F.lit(0))["value"]
    # One column of bytes goes to Python and one of numbers comes back: the grammar has one place, and it is not SQL.
    found: Column = arrow_udf(lifetimes, "bigint")(first)  # type: ignore[call-overload]  # the kind is taken from the hints
    return found


def refusal_of_ttl(rules: TtlRules) -> Column:
    """{code, reason} for a message that the topic refuses for its TTL, by its column `lifetime`; null: it does not (TTL-4)."""
    if rules.copies:
        return F.lit(None).cast("struct<code: string, reason: string>")
    zero = ", and not zero" if rules.reject_zero else ""
    invalid = F.struct(
        F.lit(str(INVALID_TTL)).alias("code"),
        F.lit(f"{TTL_HEADER} is neither a duration of at least 1s, nor whole seconds, nor never{zero}").alias("reason"),
    )
    disabled = F.struct(
        F.lit(str(TTL_DISABLED)).alias("code"), F.lit(f"the message has {TTL_HEADER}, the topic has allow_msg_ttl off").alias("reason")
    )
    found = F.col(LIFETIME)
    refused = [INVALID, NO_LIFETIME] if rules.reject_zero else [INVALID]
    return F.when(found.isin(refused), invalid).when(found.isNotNull() & F.lit(not rules.allow_msg_ttl), disabled)


def with_deadlines(messages: DataFrame) -> DataFrame:
    """`lifetime` replaced by `expires_at`, saturating (CLK-3) and null where the time is unknown (CLK-4), and `never`."""
    if LIFETIME not in messages.columns:
        return messages
    found, at = F.col(LIFETIME), F.unix_micros("append_time")
    # A saturated lifetime is never due, also where the time it counts from is far below zero.
    beyond = (found == INT64_MAX) | (at > F.lit(INT64_MAX) - found)
    due = F.when(at.isNotNull() & (found > 0), F.when(beyond, F.lit(INT64_MAX)).otherwise(at + found))
    never = F.when(found == NEVER, F.lit(True))
    return messages.withColumns({"expires_at": F.timestamp_micros(due), "never": never}).drop(LIFETIME)


def with_own_lifetimes(copies: DataFrame) -> DataFrame:
    """`expires_at` and `never` as the headers say, of messages that are copied: a value that is not valid has no effect (TTL-6)."""
    return with_deadlines(copies.withColumn(LIFETIME, lifetime(F.col("headers"))))
