"""What a read met beside good messages: rows to refuse, times that cannot be meant; and moving all times by whole days."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from message_lifecycle.model.instants import MICROS_PER_SECOND
from message_lifecycle.sources.errors import WrongTimeUnit
from message_lifecycle.sources.files import InputFile, shapes
from message_lifecycle.sources.messages import ERASED, FieldMapping
from message_lifecycle.sources.records import block_of, first_lines, line_in_task
from message_lifecycle.sources.times import likely_unit, reading

_DAY_US = 86_400 * MICROS_PER_SECOND


def refused(session: SparkSession, messages: DataFrame, files: Sequence[InputFile], mapping: FieldMapping) -> DataFrame:
    """What goes to quarantine: `file`, `position` (line of a text file, row of a Parquet file, from 1), `code`, `reason`, `raw`."""
    text = [some for shape, some in shapes(files, delimiter=mapping.delimiter).items() if shape.kind != "parquet"]
    bad = messages.where(F.col("code") != ERASED)
    position = F.col("at") + 1
    if text:
        starts = reduce(DataFrame.unionAll, [first_lines(session, some) for some in text])
        bad = bad.withColumn("block", block_of("at")).join(F.broadcast(starts), ["path", "block"], "left")
        position = F.coalesce(F.col("line") + line_in_task("at") - F.col("first"), position)
    return bad.select("file", position.alias("position"), "code", "reason", "raw")


def shifted(messages: DataFrame, days: int) -> DataFrame:
    """All times later (or, negative, earlier) by whole days."""
    if not days:
        return messages
    times = {name: F.timestamp_micros(F.try_add(F.unix_micros(name), F.lit(days * _DAY_US))) for name in ("append_time", "event_time")}
    return messages.withColumns(times)


_TIMES = ("append_time", "event_time")


def _findings() -> list[Column]:
    found = [F.count(F.lit(1)).alias("rows"), F.count_if(F.col("code") != ERASED).alias("refused")]
    found.append(F.count_if(F.col("code") == ERASED).alias("erased"))
    found.append(F.count_if(F.col("code").isNull() & F.col("append_time").isNull()).alias("unknown_times"))
    for name in _TIMES:
        found += [F.count(f"suspect_{name}").alias(f"{name}_suspects"), F.min(f"suspect_{name}").alias(f"{name}_suspect")]
    return found


def observed(messages: DataFrame) -> tuple[DataFrame, Callable[[], Mapping[str, object]]]:
    """The good ones of these messages, and what was met on the way, to be asked when they have all been written."""
    observation = Observation()
    return messages.observe(observation, *_findings()).where(F.col("code").isNull()), lambda: observation.get


def survey(messages: DataFrame) -> Mapping[str, object]:
    """The same by a pass of its own, and `newest`: the greatest append time of a good message, in microseconds, or None."""
    newest = F.max(F.when(F.col("code").isNull(), F.unix_micros("append_time"))).alias("newest")
    return messages.agg(*_findings(), newest).collect()[0].asDict()


def check_units(found: Mapping[str, object], mapping: FieldMapping) -> None:
    """Raises WrongTimeUnit where any time is so far off that its unit must be another."""
    units: tuple[tuple[str | None, str], ...] = (
        (mapping.append_time, mapping.append_time_unit),
        (mapping.event_time, mapping.event_time_unit),
    )
    for name, (field, unit) in zip(_TIMES, units, strict=True):
        count, rows = found[f"{name}_suspects"], found["rows"]
        if field is not None and isinstance(count, int) and isinstance(rows, int) and count:
            value = str(found[f"{name}_suspect"])
            raise WrongTimeUnit(
                field=field, value=value, unit=unit, reads_as=reading(value, unit), likely=likely_unit(value), rows=count, of=rows
            )
